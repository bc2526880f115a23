package sweep_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A batch that was contended may have taken effect anyway, if another of its writes ended without an answer:
// what is gone at the next try was deleted by this sweep, and by nobody else.
func TestContendedBatchThatTookEffect(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.putEvery(40, -time.Hour/8)
		var once atomic.Bool
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Dispose" || !once.CompareAndSwap(false, true) {
				return nil
			}
			for i := range c.Ops {
				c.Ops[i].Outcome = store.Unknown
			}
			return store.InDoubt(store.ErrContention)
		}
		res := w.sweep()
		if !once.Load() || len(w.left()) > 0 || res.Deleted != 40 || res.Conflicts != 0 {
			t.Errorf("%d are left; %+v", len(w.left()), res)
		}
	})
}

// The same is true of an entity that is tried alone after that, and then waits aside.
func TestContendedEntityThatWasDeleted(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.putEvery(1, -time.Hour)
		var disposed, settled atomic.Bool
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Dispose" || !disposed.CompareAndSwap(false, true) {
				return nil
			}
			c.Ops[0].Outcome = store.Unknown
			return store.InDoubt(store.ErrContention)
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Settle" || !settled.CompareAndSwap(false, true) {
				return nil
			}
			return store.ErrContention
		}
		res := w.sweep()
		if !disposed.Load() || !settled.Load() || len(w.left()) > 0 || res.Deleted != 1 || res.Conflicts != 0 {
			t.Errorf("disposed %v, settled %v, %d are left; %+v", disposed.Load(), settled.Load(), len(w.left()), res)
		}
	})
}

// An entity that waits aside is held to the budget by what it holds once it is deleted: if it was stamped again
// meanwhile, it is of the event of that hour.
func TestWhatWaitsAsideIsOfTheHourThatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(90 * time.Minute)))
		was, is := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		w.put(1, 4, "x", was)
		tries := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Dispose" && c.Method != "Settle" {
				return nil
			}
			if tries++; tries == 4 {
				w.put(1, 4, "x", is)
			}
			if tries <= 4 {
				return store.ErrContention
			}
			return nil
		}
		w.mustSweep()
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		if err != nil {
			t.Fatal(err)
		}
		rules := sweep.BreakerRules(w.target)
		if n := b.At(rules.HourOf(is)).Done; tries <= 4 || n != 1 {
			t.Errorf("after %d tries %d are gone of the hour that it holds: %+v", tries, n, b.Tallies)
		}
	})
}

// An entity that is stamped before each try with another expiry that has passed is contended: it is not tried every
// 20 ms, and a sweep leaves it to the next one.
func TestStampedBeforeEachTry(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(1, 4, "e", time.Now())
		time.Sleep(time.Second)
		began, tries := time.Now(), 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			switch {
			case c.Method == "Dispose" && tries == 0:
				return store.ErrContention
			case c.Method == "Settle":
				tries++
				w.put(1, 4, "e", began.Add(-time.Duration(tries)*time.Minute))
			}
			return nil
		}
		res := w.sweep()
		if took := time.Since(began); tries < 3 || tries > 12 || took > 3*time.Minute || res.Complete || len(w.left()) != 1 {
			t.Errorf("%d tries in %v; %+v", tries, took, res)
		}
	})
}
