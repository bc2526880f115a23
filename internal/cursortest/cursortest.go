// Package cursortest lets tests hold ranges as other processes do. The invariant is that of
// package cursor: a range is held only while its holder's heartbeat is kept, which ends with
// the test. Limits: for tests alone, and for the clock of the test.
package cursortest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
)

// Start returns the keeper of a process of that name, whose heartbeat is kept until the test
// ends.
func Start(t testing.TB, s store.Store, target, owner string, lease time.Duration) *cursor.Keeper {
	t.Helper()
	k := &cursor.Keeper{Store: s, Owner: owner, Lease: lease, Now: time.Now, StoreNow: time.Now,
		Log: slog.New(slog.DiscardHandler)}
	Keep(t, k, target)
	return k
}

// Keep keeps the heartbeat of a keeper until the test ends.
func Keep(t testing.TB, k *cursor.Keeper, target string) {
	t.Helper()
	k.Pulse = k.NewPulse(target, "test", func(cursor.Beat) {})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Pulse.Run(ctx, ctx, false)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// Look lets a keeper read the heartbeats.
func Look(t testing.TB, k *cursor.Keeper, target string) {
	t.Helper()
	if _, _, err := k.Look(context.WithoutCancel(t.Context()), target); err != nil {
		t.Fatal(err)
	}
}
