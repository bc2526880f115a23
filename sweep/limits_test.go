package sweep_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// limited returns a world with n due entities, and limits.
func limited(t *testing.T, n int, l breaker.Limits) *world {
	w := newWorld(t)
	w.target.Limits = l
	w.target.Page = 20
	w.begin()
	for i := range n {
		w.put(1, 4, fmt.Sprintf("e-%05d", i), time.Now().Add(-time.Duration(i)*time.Minute))
	}
	return w
}

// A sweep stops at its limit, without an error, and each hour of the clock gives as much again,
// however many processes there are.
func TestLimitsOfAnHour(t *testing.T) {
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := limited(t, 250, breaker.Limits{PerHour: 100, PerDay: 230})
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
				time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)))
				for hour, want := range []int{150, 50, 20, 20} {
					for range 2 { // what is used up stays so
						results := w.together(processes)
						if left := len(w.left()); left != want {
							t.Fatalf("hour %d: %d are left, not %d: %+v", hour, left, want, results[0])
						}
						held := 0
						for _, res := range results {
							if res.Held == string(throttle.ReasonLimit) && !res.Complete {
								held++
							} else if !res.Complete || res.Held != "" { // others hold what is left, and say why
								t.Fatalf("hour %d: %+v", hour, res)
							}
							if res.Error != "" || res.Throttled["breaker"] > 0 { // it is off
								t.Fatalf("hour %d: %+v", hour, res)
							}
						}
						if held == 0 {
							t.Fatalf("hour %d: nobody says that the limit is used up: %+v", hour, results)
						}
					}
					time.Sleep(time.Hour)
				}
				time.Sleep(24 * time.Hour)
				if res := w.together(processes)[0]; len(w.left()) > 0 || res.Held != "" || !res.Complete {
					t.Errorf("the next day: %+v", res)
				}
			})
		})
	}
}

// What a sweep with --yes deletes counts, but it does not wait.
func TestYesSetsLimitsAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := limited(t, 100, breaker.Limits{PerHour: 10})
		c := w.config()
		c.Yes = true
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Deleted != 100 || !res.Complete {
			t.Fatalf("%+v", res)
		}
		w.put(1, 4, "another", time.Now())
		time.Sleep(time.Second)
		if res := w.sweep(); res.Deleted > 0 || res.Held != string(throttle.ReasonLimit) {
			t.Errorf("the hundred do not count: %+v", res)
		}
	})
}

// A daemon waits for the end of the hour, and goes on by itself.
func TestDaemonWaitsForTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 100, throttle.Limits{Unlimited: true})
		p.target.Limits.PerHour, p.target.Next = 150, everyMinute
		d := p.serve(p.config())
		time.Sleep(10 * time.Minute)
		if st := d.state(); st.Deleted != 150 || st.Held != throttle.ReasonLimit || st.Err != "" {
			t.Errorf("in the first hour: %+v", st)
		}
		time.Sleep(3 * time.Hour)
		if st := d.state(); st.Deleted != 400 || st.Held != "" {
			t.Errorf("after three hours: %+v", st)
		}
	})
}

// --yes sets the limits aside, and never the breaker.
func TestYesDoesNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.target.Limits.PerHour = 1000
		w.restamp(time.Now())
		time.Sleep(time.Second)
		c := w.config()
		c.Yes = true
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Held != string(throttle.ReasonBreaker) || len(w.left()) < 500 {
			t.Errorf("%d are left: %+v", len(w.left()), res)
		}
	})
}

// What a process gives back it does not use, also if nobody knows whether that was stored: the
// answer got lost, and what failed then was one more try.
func TestLimitWhenGivingBackIsInDoubt(t *testing.T) {
	doubts := 0
	for range 30 { // by which steps are at work when the limit is reached, nothing is given back
		synctest.Test(t, func(t *testing.T) {
			if givesBackInDoubt(t) {
				doubts++
			}
		})
	}
	if doubts == 0 {
		t.Error("nothing was given back whose answer was lost")
	}
}

// givesBackInDoubt sweeps up to a limit, and reports whether something was given back, its answer lost,
// and the next try failed for certain.
func givesBackInDoubt(t *testing.T) bool {
	w := limited(t, 250, breaker.Limits{PerHour: 110})
	spent, lost, failed := int64(0), false, false
	isSave := func(c modelstore.Call) bool { return c.Method == "Save" && c.Record.Sort == store.BudgetRecord }
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		if !isSave(c) || !lost || failed {
			return nil
		}
		failed = true
		return fmt.Errorf("one more try: %w", store.ErrFailed)
	}
	w.s.After = func(_ context.Context, c modelstore.Call) error {
		if !isSave(c) {
			return nil
		}
		b, err := breaker.Decode(c.Record)
		if err != nil {
			return err
		}
		was := spent
		if spent = b.Spent.InHour; spent < was && !lost {
			lost = true
			return fmt.Errorf("no answer: %w", store.ErrUnavailable)
		}
		return nil
	}
	for range 3 {
		w.sweep()
	}
	if gone := 250 - len(w.left()); gone > 110 {
		t.Errorf("%d are gone in an hour (an answer was lost: %v)", gone, failed)
	}
	return failed
}

// A slowSaver is a store that takes long to save the budget.
type slowSaver struct {
	*modelstore.Store
	by time.Duration
}

func (s slowSaver) Save(ctx context.Context, r store.Record, prev string) error {
	err := s.Store.Save(ctx, r, prev)
	if r.Sort == store.BudgetRecord {
		time.Sleep(s.by)
	}
	return err
}

// What was granted in one hour of the clock is not used in the next, also if the answer came late.
func TestLimitAtTheTurnOfTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := limited(t, 400, breaker.Limits{PerHour: 100})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)) - 2*time.Second)
		c := w.config()
		c.Store = slowSaver{w.s, 3 * time.Second}
		turn := time.Now().Add(2 * time.Second)
		at := map[bool]int{}
		var mu sync.Mutex
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				mu.Lock()
				defer mu.Unlock()
				at[time.Now().After(turn)] += len(c.Ops)
			}
			return nil
		}
		sweep.Run(t.Context(), c)
		w.sweep()
		if at[true] > 100 {
			t.Errorf("%d in the last hour, %d in this one", at[false], at[true])
		}
	})
}
