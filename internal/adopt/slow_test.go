package adopt_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/twoclocks"
	"github.com/reaper-ttl/reaper/store"
)

// A worker looks whether it may still write, and then renews its part, which takes half a minute, as long as the
// store fails. Somebody undoes the adoption meanwhile: the worker writes no key behind that.
func TestSlowRenewalBesideUndo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put("one", 40*day)
		var undo sync.WaitGroup
		var announced atomic.Bool
		var began atomic.Pointer[time.Time] // of the undo
		undoing := func(limit time.Duration) bool {
			at := began.Load()
			return at != nil && time.Since(*at) < limit
		}
		cfg := w.config()
		cfg.Announce = func(context.Context, []time.Time) error {
			time.Sleep(11 * time.Second) // then the part's record is to be renewed
			announced.Store(true)
			return nil
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			owner, _ := c.Record.Fields["owner"].(string)
			switch {
			case c.Method == "Save" && owner == cfg.Sweep.Owner && announced.Load():
				if now := time.Now(); began.CompareAndSwap(nil, &now) {
					u := w.config()
					u.Order = adopt.Undo
					undo.Go(func() {
						if res, err := adopt.Run(t.Context(), u); err != nil || !res.Complete {
							t.Errorf("undo: %+v, %v", res, err)
						}
					})
				}
				if undoing(28 * time.Second) {
					return store.ErrUnavailable
				}
			case c.Method == "Restamp" && undoing(35*time.Second):
				time.Sleep(20 * time.Second)
			}
			return nil
		}
		_, err := adopt.Run(t.Context(), cfg)
		undo.Wait()
		if n := w.stamped(); n > 0 || began.Load() == nil {
			t.Errorf("%d keys are left after the undo; the worker ended with %v", n, err)
		}
	})
}

// A follower has read that the adoption goes on, and is about to claim the index, when somebody undoes the adoption. It
// writes one key, slowly, which the undo waits for.
func TestFollowerClaimsBesideUndo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(10)
		w.run(w.config())
		w.create("new")
		cfg, u := w.config(), w.config()
		u.Order = adopt.Undo
		var undo sync.WaitGroup
		var claimed, wrote atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			switch owner, _ := c.Record.Fields["owner"].(string); {
			case c.Method == "Save" && owner == cfg.Sweep.Owner && claimed.CompareAndSwap(false, true):
				undo.Go(func() { w.run(u) })
				time.Sleep(2 * time.Second)
			case c.Method == "Restamp" && claimed.Load() && wrote.CompareAndSwap(false, true):
				time.Sleep(20 * time.Second)
			}
			return nil
		}
		stop := w.follow(cfg)
		time.Sleep(2 * time.Minute)
		undo.Wait()
		if _, err := stop(); !adopt.IsNewRound(err) || !wrote.Load() {
			t.Errorf("the follower wrote: %v, %v", wrote.Load(), err)
		}
		if n := w.stamped(); n > 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// A follower is in a pass as another process makes a round, which ends at once, and somebody undoes the adoption. It writes
// one key, slowly. The other process may have followed for a moment, and said that it does no longer.
func TestFollowerOfAnEarlierRoundBesideUndo(t *testing.T) {
	for _, follows := range []bool{false, true} {
		in(t, func(t *testing.T, w *world) { undoBesideEarlierFollower(t, w, follows) })
	}
}

func undoBesideEarlierFollower(t *testing.T, w *world, secondFollows bool) {
	w.s.Indexed = "created"
	w.many(10)
	w.run(w.config())
	cfg, second, u := w.config(), w.config(), w.config()
	u.Order = adopt.Undo
	var undo sync.WaitGroup
	var follows, passes, wrote atomic.Bool
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		switch {
		case c.Method == "Scan" && c.Query.Target.Property == "created" && follows.Load() && passes.CompareAndSwap(false, true):
			w.run(second)
			if secondFollows {
				stop := w.follow(second)
				time.Sleep(time.Second)
				if _, err := stop(); err != nil {
					t.Error(err)
				}
			}
			w.create("new")
			undo.Go(func() { w.run(u) })
			time.Sleep(time.Second)
		case c.Method == "Restamp" && passes.Load() && wrote.CompareAndSwap(false, true):
			time.Sleep(20 * time.Second)
		}
		return nil
	}
	stop := w.follow(cfg)
	time.Sleep(15 * time.Second)
	follows.Store(true)
	time.Sleep(2 * time.Minute)
	undo.Wait()
	_, err := stop()
	if n := w.stamped(); n > 0 || !wrote.Load() || !adopt.IsNewRound(err) {
		t.Errorf("%d keys are left; it wrote: %v, %v", n, wrote.Load(), err)
	}
}

// A worker is in a slow write as another process makes a round of a larger share, which ends at once, and somebody undoes
// the adoption.
func TestWorkerOfAnEarlierRoundBesideUndo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(10)
		cfg, second, u := w.config(), w.config(), w.config()
		cfg.Percent, u.Order = 50, adopt.Undo
		var undo sync.WaitGroup
		var wrote atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Restamp" && wrote.CompareAndSwap(false, true) {
				w.run(second)
				undo.Go(func() { w.run(u) })
				time.Sleep(20 * time.Second)
			}
			return nil
		}
		_, err := adopt.Run(t.Context(), cfg)
		undo.Wait()
		if n := w.stamped(); n > 0 || !wrote.Load() {
			t.Errorf("%d keys are left; it wrote: %v, %v", n, wrote.Load(), err)
		}
	})
}

// However long an adoption was planned, its first key comes after all sweeps know of it.
func TestFirstKeyAfterASlowPlan(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put("one", 40*day)
		var saved, key atomic.Pointer[time.Time]
		var walks atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Walk" {
				if walks.Add(1) == 1 {
					time.Sleep(70 * time.Second)
				}
			}
			if now := time.Now(); c.Method == "Restamp" {
				key.CompareAndSwap(nil, &now)
			}
			return nil
		}
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if now := time.Now(); c.Method == "Save" && c.Record.Sort == store.AdoptRecord {
				saved.CompareAndSwap(nil, &now)
			}
			return nil
		}
		if res, err := adopt.Run(t.Context(), w.config()); err != nil || res.Stamped != 1 {
			t.Fatalf("%+v, %v", res, err)
		}
		if wait := key.Load().Sub(*saved.Load()); wait < 5*time.Second {
			t.Errorf("the first key came %v after the record", wait)
		}
	})
}

// The monotonic clock of an adopter's machine stands still now and then, as while it sleeps: it renews its lease in time.
func TestAdoptOnAMachineThatSleeps(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		cfg, began := w.config(), time.Now()
		cfg.Sweep.Workers = 1
		cfg.Sweep.Now = func() time.Time { return twoclocks.At(time.Now(), time.Since(began)/4) }
		var renewed time.Time
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			owner, _ := c.Record.Fields["owner"].(string)
			if c.Method == "Save" && owner == cfg.Sweep.Owner {
				renewed = time.Now()
			}
			if c.Method != "Restamp" {
				return nil
			}
			if old := time.Since(renewed); old > w.target.Lease/2 {
				t.Errorf("it writes by a lease of %v ago", old)
			}
			if time.Since(began) < 2*time.Minute {
				time.Sleep(9 * time.Second)
				return store.ErrContention
			}
			return nil
		}
		w.run(cfg)
	})
}

// Where each renewal of a part takes most of a lease, the worker gives up instead of renewing for ever.
func TestEachRenewalIsSlow(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put("one", 40*day)
		cfg := w.config()
		cfg.Target.Lease = 6 * time.Second
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if _, isOwned := c.Record.Fields["owner"]; c.Method == "Save" && isOwned {
				time.Sleep(4500 * time.Millisecond)
			}
			return nil
		}
		began := time.Now()
		_, err := adopt.Run(t.Context(), cfg)
		if took := time.Since(began); !errors.Is(err, store.ErrDeadline) || took > 10*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
