package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// small are the rules of these tests: a hundred always go.
var small = breaker.Rules{On: true, Floor: 100, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour}

// withBreaker returns a world whose target has a breaker with a breaker that has learnt for two days, in which
// a hundredth of n entities expires each hour.
func withBreaker(t *testing.T, n int) *world {
	w := newWorld(t)
	w.target.Breaker = small
	w.begin()
	w.put(1, 4, "first", time.Now().Add(time.Minute))
	for i := range n {
		w.put(1, 4, fmt.Sprintf("e-%05d", i), time.Now().Add(100*time.Hour+time.Duration(i)*100*time.Hour/time.Duration(n)))
	}
	time.Sleep(2 * time.Minute)
	w.mustSweep() // unswept ground, with one due
	time.Sleep(48 * time.Hour)
	w.put(1, 4, "second", time.Now())
	w.mustSweep()
	return w
}

// withNewGround returns a world whose target was swept with a longer retention: of the 300 entities that are due
// now, and not late, one expired in each hour.
func withNewGround(t *testing.T) *world {
	w := newWorld(t)
	w.target.Breaker = small
	w.target.Retention = 400 * time.Hour
	w.begin()
	w.mustSweep()
	time.Sleep(350 * time.Hour) // so that what expires meanwhile is not late
	w.putEvery(300, -time.Hour)
	w.target.Retention = 0
	return w
}

func (w *world) mustSweep() {
	w.t.Helper()
	if res := w.sweep(); res.Error != "" || !res.Complete || res.Held != "" {
		w.t.Fatalf("%+v", res)
	}
}

// restamp lets everything expire at an instant.
func (w *world) restamp(at time.Time) {
	for _, name := range w.left() {
		w.put(1, 4, name, at)
	}
}

// approve approves the trip that is open.
func (w *world) approve(count int64) breaker.Trip {
	w.t.Helper()
	id := w.record().Trip.ID
	_, trip, err := control.Approve(w.t.Context(), w.config(), w.target, control.Order{Actor: "ann", Reason: "it is right"},
		control.Approval{ID: id, Count: count})
	if err != nil {
		w.t.Fatal(err)
	}
	return trip
}

// together sweeps with several processes at once.
func (w *world) together(n int) (results []sweep.TargetResult) {
	results = make([]sweep.TargetResult, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { results[i] = w.sweep() })
	}
	all.Wait()
	return results
}

// TestBreakerHoldsEvents lets everything expire at once, before the cursors and behind them,
// with one process and with three. It stays held for a week, and after the approval all of it goes.
func TestBreakerHoldsEvents(t *testing.T) {
	events := map[string]func(now time.Time) time.Time{
		"to now":       func(now time.Time) time.Time { return now },
		"to yesterday": func(now time.Time) time.Time { return now.Add(-24 * time.Hour) },
	}
	for name, event := range events {
		for _, processes := range []int{1, 3} {
			t.Run(fmt.Sprint(name, " ", processes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := withBreaker(t, 600)
					w.restamp(event(time.Now()))
					time.Sleep(time.Second)
					var last sweep.TargetResult
					for range 7 {
						last = w.together(processes)[0]
						time.Sleep(26 * time.Hour)
					}
					rec := w.record()
					if gone := 600 - len(w.left()); !rec.Trip.IsOpen() || gone > 100 || last.Held != string(throttle.ReasonBreaker) ||
						last.Complete || last.Error != "" || !rec.Paused {
						t.Fatalf("%d are gone; %+v, %+v", gone, rec.Trip, last)
					}
					trip := w.approve(0)
					if rec := w.record(); rec.Paused || rec.Trip.IsOpen() || rec.BreakerNote.Actor != "ann" {
						t.Fatalf("after the approval: %+v", rec)
					}
					for range 3 {
						w.together(processes)
						time.Sleep(26 * time.Hour)
					}
					if left := len(w.left()); left > 0 {
						t.Errorf("%d of %+v are left after the approval: %+v", left, trip, w.record().Trip)
					}
				})
			})
		}
	}
}

// Two deployments sweep other namespaces of one target. An event in both is one event, though
// each part of it would be usual: whichever deployment counts the hour first counts both.
func TestBreakerCountsForAllDeployments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		sweepIn := func(namespace string) sweep.TargetResult {
			w.target.Namespaces = []string{namespace}
			return w.sweep()
		}
		if res := sweepIn("eu"); res.Error != "" {
			t.Fatal(res.Error)
		}
		now := time.Now()
		for i := range 120 {
			w.put(1, 4, fmt.Sprint("here-", i), now)
			w.putIn("eu", 1, 4, fmt.Sprint("there-", i), now)
		}
		time.Sleep(time.Second)
		sweepIn("")
		rec := w.record()
		gone := 240 - len(w.s.Entities("Session", "eu"))
		for name := range w.s.Entities("Session", "") {
			if strings.Contains(name, "here-") {
				gone--
			}
		}
		if !rec.Trip.IsOpen() || gone > int(small.Floor) || rec.Trip.Due < 140 {
			t.Errorf("%d of 240 are gone: %+v", gone, rec.Trip)
		}
	})
}

func TestBreakerCoversOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1200)
		names := w.left()
		for _, name := range names[:600] {
			w.put(1, 4, name, time.Now())
		}
		time.Sleep(time.Second)
		w.sweep()
		first := w.approve(0)
		w.sweep()
		if left := len(w.left()); left != 600 {
			t.Fatalf("%d are left, not 600: %+v", left, w.record().Trip)
		}
		time.Sleep(2 * time.Hour)
		for _, name := range names[600:] {
			w.put(1, 4, name, time.Now())
		}
		time.Sleep(time.Second)
		res := w.sweep()
		if rec := w.record(); len(w.left()) < 500 || !rec.Trip.IsOpen() || rec.Trip.ID == first.ID || res.Held != "breaker" {
			t.Errorf("%d of the next event are left, trip %+v, held %q", len(w.left()), rec.Trip, res.Held)
		}
	})
}

// What another process has reserved of an approval, and not deleted yet, is no other event for a
// process that finds nothing left to reserve.
func TestApprovedEventIsSharedByProcesses(t *testing.T) {
	for name, expires := range map[string]time.Duration{"burst": 0, "late": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withBreaker(t, 1200)
				w.restamp(time.Now().Add(expires))
				for !w.record().Trip.IsOpen() {
					time.Sleep(time.Hour)
					w.sweep()
				}
				trip, before := w.approve(0), len(w.left())
				rules, mine := sweep.BreakerRules(w.target), breaker.Key{Approval: trip.ID}
				change := func(do func(breaker.Budget) breaker.Budget) {
					b, err := spend.Load(t.Context(), w.s, w.target.Name)
					if err == nil {
						b = do(b)
						err = w.s.Save(t.Context(), b.Encode(), b.Revision)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				change(func(b breaker.Budget) breaker.Budget {
					b, _, _ = b.Reserve(rules, time.Now(), w.record().Approvals, []breaker.Want{{Key: mine, N: trip.Due - 200}})
					return b
				})
				w.fromStart()
				if trip := w.record().Trip; trip.IsOpen() {
					t.Fatalf("it trips on what was approved: %+v", trip)
				}
				change(func(b breaker.Budget) breaker.Budget { // the other process ends
					return b.Take([]breaker.Report{{Key: mine, Rest: trip.Due - 200}})
				})
				if res := w.fromStart(); len(w.left()) > 0 || res.Held != "" {
					t.Errorf("%d of %+v are left after the approval: %+v", len(w.left()), trip, w.record().Trip)
				}
				// What went by the floor meanwhile is not left of the approval, for another event.
				b, err := spend.Load(t.Context(), w.s, w.target.Name)
				if used := b.At(mine).Granted; err != nil || used < int64(before) {
					t.Errorf("%d entities went, and %d of the approval are used: %v", before, used, err)
				}
			})
		})
	}
}

func TestBreakerLetsAPartPass(t *testing.T) {
	for _, part := range []int64{130, 481} { // what the second one leaves would be no unusual hour by itself
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withBreaker(t, 600)
				w.restamp(time.Now())
				time.Sleep(time.Second)
				w.sweep()
				before := len(w.left())
				w.approve(part)
				w.sweep()
				if gone := before - len(w.left()); gone != int(part) || !w.record().Trip.IsOpen() {
					t.Errorf("%d of the %d that were approved are gone; trip %+v", gone, part, w.record().Trip)
				}
				w.approve(0) // the approval that is used up holds up nothing
				if res := w.sweep(); len(w.left()) > 0 || !res.Complete || res.Held != "" || res.Duration > 60 {
					t.Errorf("%d are left: %+v", len(w.left()), res)
				}
			})
		})
	}
}

// A part of an event is approved, and the rest is extended: what comes to be due later in that hour
// is no part of the event any more.
func TestRestOfAPartIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		w.sweep()
		w.approve(int64(len(w.left()) - 300))
		w.sweep()
		if len(w.left()) != 300 || !w.record().Trip.IsOpen() {
			t.Fatalf("%d are left; trip %+v", len(w.left()), w.record().Trip)
		}
		w.restamp(time.Now().Add(48 * time.Hour))
		if err := w.clear(); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			w.put(1, 4, fmt.Sprint("later-", i), time.Now().Add(time.Second))
		}
		time.Sleep(time.Minute)
		if res := w.sweep(); len(w.left()) != 300 || res.Held != "" || w.record().Trip.IsOpen() {
			t.Errorf("%d are left: %+v", len(w.left()), res)
		}
	})
}

func TestBreakerOnNewGround(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"first sweep": nil,
		"retention":   func(w *world) { w.target.Retention = time.Hour },
		"property":    func(w *world) { w.target.Property = "expiry_kez" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.target.Breaker = small
				property := w.target.Property
				if change != nil {
					w.target.Retention = 200 * time.Hour
					if change(w); w.target.Retention == time.Hour {
						w.target.Retention = 200 * time.Hour
					}
					w.begin()
					w.mustSweep()
				}
				w.target.Property = property
				if change == nil {
					w.begin()
				}
				w.putEvery(300, -time.Hour/2)
				w.target.Retention = 0
				res := w.sweep()
				if rec := w.record(); len(w.left()) != 300 || rec.Trip.Rule != breaker.NewGround || rec.Trip.Due != 300 || res.Held != "breaker" {
					t.Fatalf("%d are left, trip %+v, %+v", len(w.left()), rec.Trip, res)
				}
				w.approve(0)
				w.mustSweep()
				if left := len(w.left()); left > 0 || w.record().NewGround {
					t.Errorf("%d are left after the approval", left)
				}
			})
		})
	}
}

// A part of what is due on unswept ground is approved: no more goes, however it is spread, by any
// number of processes. Less may go of several: one of them may have reserved what it cannot use.
func TestPartOfNewGroundIsApproved(t *testing.T) {
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withNewGround(t)
				w.sweep()
				first := w.approve(30)
				for range 3 {
					w.together(processes)
				}
				rec := w.record()
				left := len(w.left())
				if left < 270 || left == 300 || processes == 1 && left != 270 || rec.Trip.Rule != breaker.NewGround ||
					rec.Trip.Due != int64(left) || rec.Trip.ID == first.ID {
					t.Fatalf("%d are left after 30 of 300 were approved: %+v", left, rec.Trip)
				}
				w.approve(int64(left - 20)) // the rest is below the floor, but it belongs to the same event
				w.together(processes)
				left = len(w.left())
				if trip := w.record().Trip; left < 20 || processes == 1 && left != 20 || trip.Due != int64(left) {
					t.Fatalf("%d are left after all but 20 were approved: %+v", left, trip)
				}
				w.approve(0)
				w.mustSweep()
				if left, rec := len(w.left()), w.record(); left > 0 || rec.NewGround || rec.Trip.IsOpen() {
					t.Errorf("%d are left after the approval: %+v", left, rec.Trip)
				}
			})
		})
	}
}

// Once what is left of unswept ground was extended, its trip can be cleared, however much was approved.
func TestRestOfNewGroundIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		w.putEvery(300, -time.Hour)
		w.sweep()
		w.approve(250)
		w.sweep()
		if left, trip := len(w.left()), w.record().Trip; left != 50 || trip.Due != 50 || trip.Gone != 250 {
			t.Fatalf("%d are left: %+v", left, trip)
		}
		w.restamp(time.Now().Add(100 * time.Hour))
		_, _, err := control.Clear(t.Context(), w.config(), w.target, control.Order{Actor: "ann"},
			func(trip breaker.Trip) (int64, error) {
				return sweep.CountTrip(t.Context(), w.config(), w.target, trip)
			})
		if err != nil {
			t.Fatal(err)
		}
		w.put(1, 4, "next", time.Now())
		time.Sleep(time.Second)
		w.mustSweep()
		if left, rec := len(w.left()), w.record(); left != 50 || rec.NewGround {
			t.Errorf("%d are left: %+v", left, rec)
		}
	})
}

// What a part of unswept ground was approved for is extended before any of it has gone: what comes
// to be due later does not wait for it.
func TestApprovedPartIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		w.putEvery(300, -time.Hour)
		w.sweep()
		w.approve(30)
		w.restamp(time.Now().Add(100 * time.Hour))
		time.Sleep(time.Minute)
		w.put(1, 4, "next", time.Now())
		time.Sleep(time.Second)
		w.mustSweep()
		if left, rec := len(w.left()), w.record(); left != 300 || rec.NewGround {
			t.Errorf("%d are left: %+v", left, rec)
		}
	})
}

// A backlog of many hours goes by itself.
func TestBreakerLetsBacklogsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 6000)
		time.Sleep(170 * time.Hour) // nobody sweeps for days, and sixty an hour come to be due
		for range 3 {
			w.together(2)
		}
		w.wantLive()
		if trip := w.record().Trip; trip.IsOpen() {
			t.Errorf("it trips: %+v", trip)
		}
	})
}

// What is gone, and not reported yet, belongs to the event: one that is less than two floors does not
// pass because the first one went while it was counted.
func TestBreakerWaitsForReports(t *testing.T) {
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withBreaker(t, 190)
				w.restamp(time.Now())
				time.Sleep(time.Second)
				w.s.After = func(_ context.Context, c modelstore.Call) error {
					if c.Method == "Dispose" { // it has taken effect, and the answer is late
						time.Sleep(2 * time.Second)
					}
					return nil
				}
				for range 3 {
					w.together(processes)
				}
				if gone, trip := 190-len(w.left()), w.record().Trip; gone > 100 || trip.Rule != breaker.Burst {
					t.Errorf("%d are gone: %+v", gone, trip)
				}
			})
		})
	}
}

// An event that is late in some ranges, and not in others, loses one floor, though what is late is
// counted apart from its hour.
func TestEventThatIsPartlyLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		for i := range 20 { // so that the cursors of two ranges are here
			w.dueIn(1, i%2, fmt.Sprint("now-", i), time.Now())
		}
		time.Sleep(time.Second)
		w.mustSweep()
		time.Sleep(25 * time.Hour) // so that they are read from their start
		w.restamp(time.Now().Add(-26 * time.Hour))
		before := len(w.left())
		for range 3 {
			w.with(laggard{w.s})
		}
		if gone, trip := before-len(w.left()), w.record().Trip; gone > 100 || !trip.IsOpen() {
			t.Errorf("%d are gone: %+v", gone, trip)
		}
	})
}

// Nothing goes beyond what was granted while the budget cannot be written.
func TestBreakerNeedsItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		for i := range 50 {
			w.put(1, 4, fmt.Sprint("due-", i), time.Now())
		}
		time.Sleep(time.Second)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.BudgetRecord {
				return fmt.Errorf("no writes: %w", store.ErrDenied)
			}
			return nil
		}
		res := w.sweep()
		if res.Deleted > 0 || res.Held != string(throttle.ReasonRecord) || !errors.Is(res.Err, store.ErrDenied) {
			t.Errorf("%+v", res)
		}
		w.s.Before = nil
		w.mustSweep()
		if n := len(w.left()); n != 600 {
			t.Errorf("%d are left, not 600", n)
		}
	})
}

func TestApprovalsThatAreWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		order := control.Order{Actor: "ann", Reason: "it is right"}
		give := func(id string, o control.Order, n int64) error {
			_, _, err := control.Approve(t.Context(), w.config(), w.target, o, control.Approval{ID: id, Count: n})
			return err
		}
		if err := give("none", order, 0); !errors.Is(err, control.ErrNoTrip) {
			t.Errorf("no trip is open: %v", err)
		}
		w.restamp(time.Now())
		time.Sleep(time.Second)
		w.sweep()
		id := w.record().Trip.ID
		if err := give("another", order, 0); !errors.Is(err, control.ErrNoTrip) {
			t.Errorf("another id: %v", err)
		}
		if err := give(id, control.Order{Actor: "ann"}, 0); err == nil {
			t.Error("no reason is needed")
		}
		if err := give(id, order, -1); err == nil {
			t.Error("a negative number is approved")
		}
		if !w.record().Trip.IsOpen() {
			t.Fatal("a wrong approval has closed the breaker")
		}
		if err := errors.Join(give(id, order, 0)); err != nil {
			t.Fatal(err)
		}
		if err := give(id, order, 0); !errors.Is(err, control.ErrNoTrip) {
			t.Errorf("used twice: %v", err)
		}
	})
}

// The breaker reads and writes little, compared to what is deleted.
func TestBreakerCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 6000)
		loads, deleted := 0, int64(0)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Records.Sort == store.BudgetRecord {
				loads++
			}
			return nil
		}
		for range 20 {
			time.Sleep(5 * time.Hour)
			deleted += w.sweep().Deleted
		}
		if deleted < 2000 || float64(loads) > 0.01*float64(deleted) {
			t.Errorf("%d reads of the budget for %d deletes", loads, deleted)
		}
	})
}
