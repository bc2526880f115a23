package restore_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A dry run over an archive that has nothing of a sweep.
func Example() {
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "sharded", Shards: 16, Lease: 30 * time.Second,
	}
	res, err := restore.Run(context.Background(), restore.Config{
		Sweep:  sweep.Config{Store: modelstore.New(time.Now), Now: time.Now, Log: slog.New(slog.DiscardHandler)},
		Target: target, Bucket: &memory{}, Pick: restore.Selection{Sweeps: []string{"a-sweep"}},
		Expiry: restore.Expiry{In: 7 * day}, From: restore.FromArchive, Rate: throttle.Limits{Unlimited: true},
	})
	fmt.Println(res.Restorable, res.Complete, err)
	// Output: 0 true <nil>
}
