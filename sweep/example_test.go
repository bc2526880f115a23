package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An application gives each entity a key by the target record. A sweep deletes those that
// have expired.
func ExampleRun() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "reaper")
	defer os.RemoveAll(dir)
	db, err := embedded.Open(dir, embedded.Options{Create: true, Now: time.Now})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: layout.Generation, Generations: true, Shards: 4, Page: 500, Lease: 30 * time.Second,
		MaxAge: 5 * 365 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true}, MaxClockSkew: 10 * time.Second}
	cfg := sweep.Config{Store: db, Targets: []sweep.Target{target}, Apply: true, Workers: 4,
		Owner: "example", Now: time.Now, Log: slog.New(slog.DiscardHandler)}

	record, _, err := sweep.EnsureRecord(ctx, cfg, target)
	for name, life := range map[string]time.Duration{"old": -time.Hour, "new": time.Hour} {
		key, _ := record.Stamper().Name(name, time.Now().Add(life))
		session := store.Entity{Name: name, Expiry: store.TextValue(key.String())}
		err = errors.Join(err, db.Put(ctx, target.Target, "", []store.Entity{session}))
	}
	result := sweep.Run(ctx, cfg).Targets[0]
	fmt.Println(err, result.Complete, result.Expired, "expired,", result.Deleted, "deleted")
	// Output: <nil> true 1 expired, 1 deleted
}
