package restore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// putUntil writes sessions that expire at an instant.
func (w *world) putUntil(at time.Time, prefix string, n int) {
	w.t.Helper()
	list := make([]store.Entity, 0, n)
	for i := range n {
		k, err := generation.Stamper{Shards: 4}.Name(fmt.Sprintf("%s-%04d", prefix, i), at)
		if err != nil {
			w.t.Fatal(err)
		}
		list = append(list, store.Entity{Name: fmt.Sprintf("%s-%04d", prefix, i), Expiry: store.TextValue(k.String())})
	}
	for len(list) > 0 {
		part := list[:min(len(list), store.MaxPage)]
		if err := w.s.Put(w.t.Context(), w.target.Target, "", part); err != nil {
			w.t.Fatal(err)
		}
		list = list[len(part):]
	}
}

// sweepOnce sweeps for real, and returns what held the target.
func (w *world) sweepOnce() (held string) {
	w.t.Helper()
	cfg := w.config().Sweep
	cfg.Targets, cfg.Workers = []sweep.Target{w.target}, 4
	res := sweep.Run(w.t.Context(), cfg)
	if res.Targets[0].Error != "" {
		w.t.Fatal(res.Targets[0].Error)
	}
	return res.Targets[0].Held
}

// What is restored at once expires at once. The breaker takes that for a burst, unless the restore has announced it.
func TestAnnouncedRestoreIsNoBurst(t *testing.T) {
	for _, announces := range []bool{true, false} {
		t.Run(fmt.Sprintf("announces %v", announces), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.target.Breaker = breaker.Rules{On: true, Floor: 50, Fraction: 0.05, Window: time.Hour, Learn: 14 * day}
				w.putUntil(time.Now().Add(30*day), "lives", 2000)
				for hour := range 30 { // a day until the breaker has learnt
					w.putUntil(time.Now().Add(30*time.Minute), fmt.Sprintf("usual-%d", hour), 10)
					time.Sleep(time.Hour)
					if held := w.sweepOnce(); held != "" {
						t.Fatalf("hour %d: held by %q", hour, held)
					}
				}
				w.gone(300, 100)
				cfg := w.config()
				cfg.Expiry = restore.Expiry{In: 2 * time.Hour}
				if announces { // as the command does
					cfg.Announce = func(ctx context.Context, expiries []time.Time) error {
						stamped := map[time.Time]int64{}
						for _, at := range expiries {
							stamped[at]++
						}
						return control.Announce(ctx, cfg.Sweep, w.target, stamped)
					}
				}
				w.run(cfg)
				time.Sleep(4 * time.Hour)
				held, left := w.sweepOnce(), len(w.entities())-2000
				if announces && (held != "" || left > 0) {
					t.Errorf("held by %q, %d of 300 are left", held, left)
				}
				if !announces && (held != "breaker" || left < 200) {
					t.Errorf("held by %q, %d of 300 are left: without an announcement they are a burst", held, left)
				}
			})
		})
	}
}
