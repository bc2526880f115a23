package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// fail turns an error of the client into one of the contract's: it wraps a
// sentinel or the context's error, or both, keeps the service's own message and
// status, and names the operation and the endpoint.
func (d *DB) fail(ctx context.Context, op string, err error) error {
	var multi sdk.MultiError
	if errors.As(err, &multi) { // it has no Unwrap
		for _, e := range multi {
			if e != nil && !errors.Is(e, sdk.ErrNoSuchEntity) {
				err = e
				break
			}
		}
	}
	if mapped(err) {
		return fmt.Errorf("%s: %w", op, err)
	}
	var rpc *rpcError
	if !errors.As(err, &rpc) {
		if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
			return fmt.Errorf("%s: %w: %w", op, ctxErr, err)
		} else if ctxErr != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		// The client refuses names, keys and values by itself before it sends
		// anything, and calls bad replies internal errors.
		kind := store.ErrInvalid
		if strings.Contains(err.Error(), "internal error") {
			kind = store.ErrFailed
		}
		return fmt.Errorf("%s: %w: %w", op, kind, err)
	}
	kind := cmp.Or(d.learnMode(rpc.status), google.Sentinel(rpc.status))
	hint := ""
	switch {
	case errors.Is(kind, store.ErrUnsupported):
		hint = "; " + groupsMode + ": " + groupsAdvice
	case errors.Is(kind, store.ErrNotFound):
		hint = "; check the project's id, the database's name and that it is in Datastore mode"
	case errors.Is(kind, store.ErrMissingIndex):
		hint = "; check that the property is indexed"
	}
	at := fmt.Sprintf("(%s at %s%s)", rpc.method, d.endpoint, hint)
	switch rpc.status.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		if ctxErr := ctx.Err(); errors.Is(ctxErr, context.Canceled) {
			return fmt.Errorf("%s: %w: %w %s", op, ctxErr, rpc.status.Err(), at)
		} else if ctxErr != nil {
			return fmt.Errorf("%s: %w: %w: %w %s", op, store.ErrDeadline, ctxErr, rpc.status.Err(), at)
		}
	}
	return fmt.Errorf("%s: %w: %w %s", op, kind, rpc.status.Err(), at)
}

// mapped reports whether this package itself found what is wrong.
func mapped(err error) bool {
	for _, own := range []error{
		store.ErrInvalid, store.ErrConflict, store.ErrCorrupt, store.ErrTooLarge, store.ErrUnsupported,
	} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}
