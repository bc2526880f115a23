package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "cloud.google.com/go/datastore"

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
	if store.IsMapped(err) {
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
		switch text := err.Error(); {
		case strings.Contains(text, "internal error: server returned the wrong"): // a part of the reply is missing
			kind = store.ErrUnavailable
		case strings.Contains(text, "internal error"):
			kind = store.ErrFailed
		}
		return fmt.Errorf("%s: %w: %w", op, kind, err)
	}
	kind := cmp.Or(d.learnMode(rpc.status), google.Sentinel(rpc.status))
	at, hint := d.endpoint, ""
	switch {
	case errors.Is(kind, store.ErrUnsupported):
		at, hint = at+"; "+groupsMode, groupsAdvice
	case errors.Is(kind, store.ErrMissingIndex):
		hint = "check that the property is indexed; reaper indexes prints the definitions of composite indexes"
	}
	err = fmt.Errorf("%s: %w (%s at %s)", op, google.Explain(ctx, kind, rpc.status), rpc.method, at)
	if hint != "" {
		return store.WithHint(err, hint)
	}
	return err
}
