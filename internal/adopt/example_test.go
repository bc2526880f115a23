package adopt_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// Sessions expire thirty days after their property created. Those that have no key get
// one, at most 300 a second.
func Example() {
	ctx := context.Background()
	s := modelstore.New(time.Now)
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "sharded", Shards: 16, Page: 500, MaxAge: 1825 * day, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
	}
	created := time.Now().Add(-10 * day).UTC().Format(time.RFC3339)
	session := store.Entity{Name: "s-1842", Data: fmt.Appendf(nil, `{"created": %q}`, created)}
	if err := s.Put(ctx, target.Target, "", []store.Entity{session}); err != nil {
		fmt.Println(err)
		return
	}
	cfg := adopt.Config{
		Sweep:  sweep.Config{Store: s, Workers: 4, Owner: "example", Now: time.Now, Log: slog.New(slog.DiscardHandler)},
		Target: target, Rule: adopt.Rule{Property: "created", Plus: 30 * day}, Spread: day, Percent: 100,
		Rate: throttle.Limits{Start: 300, Max: 300},
	}
	for _, apply := range []bool{false, true} {
		cfg.Sweep.Apply = apply
		res, err := adopt.Run(ctx, cfg)
		fmt.Printf("apply %v: %d of %d without a key, %d stamped; complete: %v, %v\n",
			apply, res.Counts[adopt.Unstamped], res.Scanned, res.Stamped, res.Complete, err)
	}
	// Output:
	// apply false: 1 of 1 without a key, 0 stamped; complete: true, <nil>
	// apply true: 1 of 1 without a key, 1 stamped; complete: true, <nil>
}
