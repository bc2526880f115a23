package inspect_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A status shows what is due in a target. An explanation shows why one entity is still
// there.
func Example() {
	ctx := context.Background()
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expires", Type: store.Instant},
		Layout: "timestamp", Page: 500, Lease: 30 * time.Second, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Start: 5000, Max: 5000},
	}
	s := modelstore.New(time.Now)
	c := sweep.Config{Store: s, Workers: 16, Owner: "example", Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	if _, _, err := sweep.EnsureRecord(ctx, c, target); err != nil {
		fmt.Println(err)
		return
	}
	old := store.Entity{Name: "s-1842", Expiry: store.InstantValue(time.Now().Add(-time.Hour))}
	if err := s.Put(ctx, target.Target, "", []store.Entity{old}); err != nil {
		fmt.Println(err)
		return
	}

	status, err := inspect.Status(ctx, c, target)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("due for", time.Since(*status.OldestDue).Round(time.Minute), "and worked on by", len(status.Workers))
	x, err := inspect.Explain(ctx, c, target, "", store.Entity{Name: "s-1842"})
	fmt.Println(x.Verdict+":", x.Why, err)
	// Output:
	// due for 1h0m0s and worked on by 0
	// due: it is due, and the next sweep deletes it <nil>
}
