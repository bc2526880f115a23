package sweep_test

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// What a live process holds is left to it: a sweep beside a daemon with a backlog ends
// soon, and so does what another daemon counts as one.
func TestSweepsLeaveRangesToALiveProcess(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.sweep()
		for i := range 1000 { // it takes an hour
			w.dueIn(1, i%2, fmt.Sprintf("backlog-%04d", i), time.Now().Add(-5*time.Second))
		}
		w.serve(w.config())
		time.Sleep(time.Minute)
		w.dueIn(1, 3, "due", time.Now())
		began := time.Now()
		res := w.sweep()
		if took := time.Since(began); !res.Complete || res.Error != "" || took > w.target.Lease {
			t.Errorf("a sweep beside it, after %v: %+v", took, res)
		}
		other := w.serve(w.config())
		time.Sleep(2 * time.Minute)
		if n := other.sweeps("complete"); n < 60 {
			t.Errorf("another daemon has come to the end of %d sweeps in two minutes", n)
		}
		if left := len(w.left()); left < 500 {
			t.Errorf("only %d entities are left: there was no backlog", left)
		}
		w.checkLeases()
	})
}

// everyHour is the schedule of a daemon that must not wait for its next tick.
func everyHour(at time.Time) time.Time { return at.Truncate(time.Hour).Add(time.Hour) }

// A range that failed is tried again soon, not only at the next tick; and what a pause
// interrupted goes on when it is over.
func TestDaemonGoesOnBetweenTicks(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.sweep()
		for i := range 600 {
			w.dueIn(1, i%2, fmt.Sprintf("backlog-%04d", i), time.Now().Add(-5*time.Second))
		}
		var denied atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" && denied.Load() {
				return store.ErrDenied
			}
			return nil
		}
		cfg := w.config()
		cfg.Targets[0].Next = everyHour
		s := w.serve(cfg)
		time.Sleep(4 * time.Minute)
		denied.Store(true)
		time.Sleep(7 * time.Second)
		denied.Store(false)
		before := s.state().Deleted
		time.Sleep(3 * time.Minute)
		if n := s.state().Deleted - before; n < 100 {
			t.Errorf("%d were deleted in the three minutes after a failure", n)
		}
		pause := func(paused bool) {
			_, err := control.Change(t.Context(), w.config(), w.target, func(r *generation.Record) { r.Paused = paused })
			if err != nil {
				t.Fatal(err)
			}
		}
		pause(true)
		time.Sleep(5 * time.Minute)
		before = s.state().Deleted
		pause(false)
		time.Sleep(3 * time.Minute)
		if n := s.state().Deleted - before; n < 100 {
			t.Errorf("%d were deleted in the three minutes after a pause", n)
		}
	})
}

// A range that has just failed waits until it is tried again, and no sweep is complete
// meanwhile.
func TestSweepWithARangeThatHasJustFailed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && shardOf(c.Query) == "0002" {
				return fmt.Errorf("this shard: %w", store.ErrDenied)
			}
			return nil
		}
		s := w.serve(w.config())
		time.Sleep(time.Minute)
		if done, failed := s.sweeps("complete"), s.sweeps("failed"); done > 0 || failed < 3 {
			t.Errorf("%d complete sweeps and %d failed ones", done, failed)
		}
	})
}

// A store that is slow whatever it is asked is given the time that it takes: reads from
// the start do not make ever shorter windows for it.
func TestSlowStoreIsGivenTime(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 1
		live := w.fill(200, 48*time.Hour)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				return throttle.Sleep(ctx, 7*time.Second)
			}
			return nil
		}
		began := time.Now()
		res := w.sweep()
		if w.wantLeft(live...); res.Error != "" || !res.Complete || time.Since(began) > 10*time.Minute {
			t.Errorf("after %v: %+v", time.Since(began), res)
		}
	})
}

// Ranges in work that are unlimited have no rate that could be added up.
func TestRateOfUnlimitedRanges(t *testing.T) {
	for want, pace := range map[float64]throttle.Limits{
		math.Inf(1): {Unlimited: true}, 8: {Start: 2, Max: 2},
	} {
		in(t, func(t *testing.T, w *world) {
			w.sweep()
			w.target.Pace = pace
			for i := range 400 {
				w.dueIn(1, i%4, fmt.Sprintf("due-%04d", i), time.Now())
			}
			w.s.Before = func(ctx context.Context, c modelstore.Call) error {
				if c.Method == "Dispose" {
					return throttle.Sleep(ctx, 3*time.Second)
				}
				return nil
			}
			s := w.serve(w.config())
			time.Sleep(5 * time.Second)
			if st := s.state(); math.Abs(st.Rate-want) > 0.01 && st.Rate != want {
				t.Errorf("%+v has the rate %v, not %v", pace, st.Rate, want)
			}
		})
	}
}
