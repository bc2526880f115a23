package sweep_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An unbraked store does not tell when it is under pressure.
type unbraked struct {
	store.Store
	store.Exclusive
}

// TestSweepGivesWayToCompaction pauses compaction in the middle of a sweep, while
// another client writes. With the brake the sweep waits, so that the engine does not make
// the other client wait. The test logs what happens without the brake.
func TestSweepGivesWayToCompaction(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it needs 120,000 entities, so that compaction falls behind")
	}
	for _, braked := range nightly.Size(t, []bool{true, false}, []bool{true}) {
		t.Run(fmt.Sprintf("braked %v", braked), func(t *testing.T) {
			var paused atomic.Bool
			db, err := embedded.Open(t.TempDir(), embedded.Options{Create: true, Now: time.Now, CompactionPaused: paused.Load})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			c := sweep.Config{Store: db, Apply: true, Workers: 4, Grace: time.Second, Owner: "sweep", Now: time.Now,
				Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
				Targets: []sweep.Target{{
					Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
					Layout: "sharded", Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
					Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
				}}}
			if !braked {
				c.Store = unbraked{db, db}
			}
			const n = 60_000
			long := strings.Repeat("x", 900) // long names make many tables of few entities
			batch := make([]store.Entity, 0, 500)
			for i := range n {
				name := fmt.Sprintf("e-%05d-%s", i, long)
				key, err := generation.Stamper{Shards: 4}.Name(name, time.Now().Add(-time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(key.String())})
				if len(batch) == cap(batch) {
					if err := db.Put(t.Context(), c.Targets[0].Target, "", batch); err != nil {
						t.Fatal(err)
					}
					batch = batch[:0]
				}
			}
			stalls := db.Stalls()
			paused.Store(true)
			ctx, enough := context.WithCancel(t.Context())
			defer enough()
			go func() { // it goes on a second after it has fallen behind, however long that takes
				for !db.Pressed() && ctx.Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(time.Second)
				paused.Store(false)
			}()
			written, worst := make(chan int), time.Duration(0)
			go func() {
				other := store.Target{Name: "other", Kind: "Other", Property: "expiry_key", Type: store.Text}
				data := []byte(`{"text":"` + strings.Repeat("y", 2000) + `"}`)
				done := 0
				for ; ctx.Err() == nil; done++ {
					began := time.Now()
					err := db.Put(context.WithoutCancel(ctx), other, "", []store.Entity{{Name: fmt.Sprint("o-", done), Data: data}})
					if err != nil {
						t.Error(err)
					}
					worst = max(worst, time.Since(began))
					time.Sleep(2 * time.Millisecond)
				}
				written <- done
			}()
			res := sweep.Run(t.Context(), c).Targets[0]
			enough()
			writes := <-written
			t.Logf("%d deletes, waited %.1f s for compaction; another client: %d writes, the slowest took %v; %d stalls",
				res.Deleted, res.Throttled["compaction"], writes, worst, db.Stalls()-stalls)
			if res.Error != "" || !res.Complete || res.Deleted != n {
				t.Errorf("%+v", res)
			}
			if braked && (db.Stalls() > stalls || res.Throttled["compaction"] == 0) {
				t.Errorf("%d stalls; the sweep waited %.1f s", db.Stalls()-stalls, res.Throttled["compaction"])
			}
		})
	}
}
