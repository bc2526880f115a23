package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An operator reshards a live target by opening its next generation, and pauses it.
func Example() {
	ctx := context.Background()
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 16, MaxClockSkew: 10 * time.Second, Lease: 30 * time.Second,
		Policy: generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute,
			Slack: 10 * time.Minute, Keep: 32},
	}
	c := sweep.Config{Store: modelstore.New(time.Now), Owner: "example", Now: time.Now,
		Log: slog.New(slog.DiscardHandler)}

	record, err := control.Advance(ctx, c, target, 64, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	newest := record.Generations[len(record.Generations)-1]
	fmt.Println("generation", newest.Number, "has", newest.Shards, "shards")

	why := control.Order{Actor: "ann@example.com", Reason: "a restore is under way"}
	record, now, err := control.Pause(ctx, c, target, why, 2*time.Hour)
	fmt.Println("paused:", record.IsPaused(now), "by", record.PauseNote.Actor, err)
	// Output:
	// generation 2 has 64 shards
	// paused: true by ann@example.com <nil>
}
