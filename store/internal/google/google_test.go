package google_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// A token that cannot be fetched may be there a moment later, but who has none for long is told where
// credentials come from.
func TestNoToken(t *testing.T) {
	s := status.New(codes.Unauthenticated, "transport: per-RPC creds failed due to error: cannot fetch token: timeout")
	err := google.Explain(t.Context(), google.Sentinel(s), s)
	isSaid := slices.ContainsFunc(store.Hints(err), func(h string) bool { return strings.Contains(h, google.Credentials) })
	if !store.Transient(err) || !isSaid || !strings.Contains(err.Error(), "cannot fetch token") {
		t.Errorf("%v; %q", err, store.Hints(err))
	}
	s = status.New(codes.Unauthenticated, "Request had invalid authentication credentials.")
	if err := google.Explain(t.Context(), google.Sentinel(s), s); store.Transient(err) {
		t.Errorf("%v may pass", err)
	}
}
