package spend_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const floor = 20

// opsOf returns a batch of n deletes of entities that expired a minute ago.
func opsOf(n int) (ops []store.Op) {
	k, err := expirykey.New(1, 2, time.Now().Add(-time.Minute))
	if err != nil {
		panic(err)
	}
	for i := range n {
		ops = append(ops, store.Op{Entry: store.Entry{Key: fmt.Sprint(i), Value: store.TextValue(k.String())}})
	}
	return ops
}

// process returns the site of one process with a breaker and limits, whose spender runs until the
// test ends or stop is called.
func process(t *testing.T, s store.Store, limits breaker.Limits) (c *site.Site, stop func()) {
	t.Helper()
	setup := sitetest.Setup(s, time.Now)
	setup.Target.Breaker = breaker.Rules{On: limits == breaker.Limits{}, Floor: floor, Fraction: 0.25, Window: time.Hour,
		Learn: 14 * 24 * time.Hour, Rewind: 24 * time.Hour, Limits: limits}
	setup.Target.Limits = limits
	c = site.New(setup)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Budget.Run(ctx, context.WithoutCancel(ctx))
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return c, stop
}

// spendAll asks for batches, and settles each with an outcome, until it has to wait. It returns how many
// deletes were allowed, and what it waits for.
func spendAll(t *testing.T, c *site.Site, batch int, outcome store.Outcome) (n int, why throttle.Reason) {
	t.Helper()
	w := &spend.Asker{}
	for range 1000 {
		ops := opsOf(batch)
		err := c.Budget.Ensure(t.Context(), w, ops)
		if err == nil {
			keys, taken := c.Budget.Take(w, ops)
			if err = taken; err == nil {
				for i := range ops {
					ops[i].Outcome = outcome
				}
				c.Budget.Settle(keys, ops, outcome == store.Unknown)
				n += batch
				continue
			}
		}
		var pause *throttle.Pause
		if !errors.As(err, &pause) {
			t.Fatal(err)
		}
		return n, pause.Why
	}
	t.Fatal("nothing stops it")
	return n, why
}

func budgetOf(t *testing.T, s store.Store) breaker.Budget {
	t.Helper()
	b, err := spend.Load(t.Context(), s, sitetest.Target.Name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Without a reservation in the store nothing may be deleted.
func TestNothingIsTakenUnreserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		c, _ := process(t, s, breaker.Limits{PerHour: 100})
		w := &spend.Asker{}
		if _, err := c.Budget.Take(w, opsOf(5)); err == nil {
			t.Fatalf("taken, and reserved are %d", budgetOf(t, s).Spent.InHour)
		}
		synctest.Wait()
		if _, err := c.Budget.Take(w, opsOf(5)); err != nil {
			t.Error(err)
		}
		if got := budgetOf(t, s).Spent.InHour; got < 5 {
			t.Errorf("5 were taken, and %d reserved", got)
		}
	})
}

// All processes together delete as much as the limit of an hour allows, and no more. What may have
// been deleted counts.
func TestProcessesShareALimit(t *testing.T) {
	for _, outcome := range []store.Outcome{store.Deleted, store.Unknown} {
		synctest.Test(t, func(t *testing.T) {
			s := modelstore.New(time.Now)
			limits := breaker.Limits{PerHour: 100}
			one, stop := process(t, s, limits)
			other, _ := process(t, s, limits)
			n, _ := spendAll(t, one, 7, outcome)
			stop() // gives back what is left
			m, why := spendAll(t, other, 1, outcome)
			if n+m != 100 || n == 0 || why != throttle.ReasonLimit {
				t.Errorf("%v: %d and %d went, then %q", outcome, n, m, why)
			}
		})
	}
}

// What is due in a target that was never swept is counted before the first delete.
func TestUnsweptTargetIsCountedFirst(t *testing.T) {
	for due, want := range map[int]breaker.Rule{floor: "", floor + 1: breaker.NewGround} {
		synctest.Test(t, func(t *testing.T) {
			s := modelstore.New(time.Now)
			for i, op := range opsOf(due) {
				e := store.Entity{Name: fmt.Sprint(i), Expiry: op.Entry.Value}
				if err := s.Put(t.Context(), sitetest.Target, "", []store.Entity{e}); err != nil {
					t.Fatal(err)
				}
			}
			c, _ := process(t, s, breaker.Limits{})
			n, why := spendAll(t, c, 1, store.Deleted)
			trip := c.Viewer.View().Record.Trip
			if trip.Rule != want || trip.IsOpen() && (n > 0 || trip.Due != int64(due)) || n > floor || why != throttle.ReasonBreaker {
				t.Errorf("%d are due: %d went, then %q, trip %+v", due, n, why, trip)
			}
		})
	}
}

// Of an hour that holds too much at most the floor goes, by all processes together.
func TestFloorIsSharedByProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		b := breaker.Budget{Target: sitetest.Target.Name, Began: time.Now().Add(-48 * time.Hour)} // else a count would only learn
		if err := s.Save(t.Context(), b.Encode(), ""); err != nil {
			t.Fatal(err)
		}
		one, _ := process(t, s, breaker.Limits{})
		other, _ := process(t, s, breaker.Limits{})
		synctest.Wait() // what is due in the target was counted: nothing
		for i, op := range opsOf(5 * floor) {
			e := store.Entity{Name: fmt.Sprint(i), Expiry: op.Entry.Value}
			if err := s.Put(t.Context(), sitetest.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		n, _ := spendAll(t, one, 3, store.Unknown)
		m, _ := spendAll(t, other, 1, store.Unknown)
		if n+m > floor || n == 0 {
			t.Errorf("%d and %d went before a count", n, m)
		}
	})
}

// What a process has reserved and not used is not lost where the budget cannot be read: nothing was sent.
func TestFailedReadOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		var fails atomic.Bool
		var failed atomic.Int64
		s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Load" || c.Record.Sort != store.BudgetRecord || !fails.Load() {
				return nil
			}
			failed.Add(1)
			return store.InDoubt(store.ErrContention)
		}
		limits := breaker.Limits{PerHour: 100}
		one, _ := process(t, s, limits)
		spendTwo := func(c *site.Site) {
			w := &spend.Asker{}
			_, _ = c.Budget.Take(w, opsOf(5))
			synctest.Wait()
			if _, err := c.Budget.Take(w, opsOf(2)); err != nil {
				t.Fatal(err)
			}
		}
		spendTwo(one)
		other, _ := process(t, s, limits)
		spendTwo(other) // changes the record that the first one knows
		fails.Store(true)
		time.Sleep(25 * time.Minute)
		fails.Store(false)
		time.Sleep(25 * time.Minute) // it gives back what it has not used for so long
		if got := budgetOf(t, s).Spent.InHour; got != 4 || failed.Load() == 0 {
			t.Errorf("4 went, and %d are reserved; %d reads failed", got, failed.Load())
		}
	})
}
