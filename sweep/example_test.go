package sweep_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An application stamps its entities by the target record; the sweep deletes
// what has expired.
func ExampleRun() {
	ctx := context.Background()
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 16, Page: 500, Lease: 30 * time.Second,
		MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Start: 5000, Max: 5000},
	}
	c := sweep.Config{Store: modelstore.New(time.Now), Targets: []sweep.Target{target}, Apply: true, Workers: 16,
		Grace: 8 * time.Second, Owner: "example", Now: time.Now, Log: slog.New(slog.DiscardHandler)}

	record, _, err := sweep.EnsureRecord(ctx, c, target)
	if err != nil {
		fmt.Println(err)
		return
	}
	write(c.Store, target, record.Stamper(), "old", -time.Hour)
	write(c.Store, target, record.Stamper(), "new", time.Hour)

	res := sweep.Run(ctx, c)
	fmt.Println(res.Complete, res.Targets[0].Expired, res.Targets[0].Deleted)
	// Output: true 1 1
}

func write(s store.Store, t sweep.Target, stamp generation.Stamper, name string, ttl time.Duration) {
	key, err := stamp.Name(name, time.Now().Add(ttl))
	if err == nil {
		err = s.(store.Writer).Put(context.Background(), t.Target, "", []store.Entity{{Name: name, Expiry: store.TextValue(key.String())}})
	}
	if err != nil {
		fmt.Println(err)
	}
}
