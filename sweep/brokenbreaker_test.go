package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An event that is too large to be counted trips in one range, too.
func TestBreakerCountsUpToItsLimitInOneRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		layouts["timestamp"](&w.target)
		w.target.Breaker = small
		w.begin()
		w.put(1, 4, "first", time.Now()) // from now on it learns
		time.Sleep(time.Minute)
		w.mustSweep()
		n := 6000
		for i := range n {
			w.put(1, 4, fmt.Sprintf("e-%05d", i), time.Now().Add(100*time.Hour+time.Duration(i)*100*time.Hour/time.Duration(n)))
		}
		time.Sleep(48 * time.Hour)
		w.mustSweep()
		for _, name := range w.left()[:4000] {
			w.put(1, 4, name, time.Now())
		}
		time.Sleep(time.Second)
		s := &slowCounter{Store: w.s}
		res := w.with(s)
		trip := w.record().Trip
		if gone := n - len(w.left()); gone > 100 || !trip.IsOpen() || !trip.More {
			t.Fatalf("%d are gone: %+v, %+v", gone, trip, res)
		}
	})
}

// What the audit finds asks the budget: at most the floor of due strays goes.
func TestBreakerHoldsStrays(t *testing.T) {
	for _, audit := range []bool{false, true} {
		t.Run(fmt.Sprint("by hand ", audit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.target.Breaker = small
				w.target.Policy = hourly
				w.begin()
				for range 30 {
					w.mustSweep()
					time.Sleep(time.Hour)
				}
				if rec := w.record(); len(rec.Generations) == 0 || rec.Generations[0].Number < 3 {
					t.Fatalf("nothing has retired: %+v", rec.Generations)
				}
				for i := range 400 {
					w.put(1, 4, fmt.Sprint("stray-", i), time.Now().Add(-time.Duration(i%100)*time.Hour))
				}
				for range 5 {
					if audit {
						sweep.Audit(t.Context(), w.config())
					}
					w.sweep()
					time.Sleep(25 * time.Hour)
				}
				if trip := w.record().Trip; 400-len(w.left()) > 100 || trip.Rule != breaker.LateOnes {
					t.Fatalf("%d are left: %+v", len(w.left()), trip)
				}
				w.approve(0)
				for range 5 {
					w.sweep()
					time.Sleep(25 * time.Hour)
				}
				if trip := w.record().Trip; len(w.left()) > 0 || trip.IsOpen() {
					t.Errorf("%d are left after the approval: %+v", len(w.left()), trip)
				}
			})
		})
	}
}

// What is about to be carried and comes to be due meanwhile asks the budget, too, though it is
// settled one by one.
func TestSettledCarriesAskTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.target.Policy = generation.Policy{Every: 1000 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 1}
		w.begin()
		w.put(1, 4, "first", time.Now())
		time.Sleep(time.Minute)
		w.mustSweep()
		for i := range 400 {
			w.put(1, 4, fmt.Sprintf("e-%03d", i), time.Now().Add(3000*time.Hour+time.Duration(i)*time.Hour))
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Dispose" {
				return nil
			}
			for _, op := range c.Ops {
				if op.To.Type == store.Missing { // not carried
					continue
				}
				name, _ := strconv.Unquote(op.Entry.Key)
				k, _ := generation.Stamper{Generation: 1, Shards: 4}.Name(name, time.Now().Add(-time.Hour))
				_ = w.s.Put(context.Background(), w.target.Target, "", []store.Entity{{Name: name, Expiry: store.TextValue(k.String())}})
			}
			return nil
		}
		for range 100 {
			time.Sleep(50 * time.Hour)
			before := len(w.left())
			w.sweep()
			gone, trip := before-len(w.left()), w.record().Trip
			if gone > 2*(100+100/6) { // an hour that was counted, and what is late: a floor and a slice of each
				t.Fatalf("%d went in one sweep: %+v", gone, trip)
			}
			if trip.IsOpen() {
				if len(w.left()) < 100 { // what is late has another floor each day
					t.Errorf("%d are left: %+v", len(w.left()), trip)
				}
				return
			}
		}
		t.Errorf("no trip, and %d are left", len(w.left()))
	})
}

// While nothing can be counted, what a read from the start finds goes no further than the floor,
// and what comes to be due meanwhile goes in time.
func TestLateOnesWithoutCountsHoldUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		for i := range 40 { // so that all cursors are here
			w.put(1, 4, fmt.Sprint("now-", i), time.Now())
		}
		time.Sleep(time.Second)
		w.mustSweep()
		cfg := w.config()
		cfg.Store = &slowCounter{Store: w.s, all: true}
		cfg.Targets = []sweep.Target{w.target}
		cfg.Targets[0].Rewind = 6 * time.Hour
		cfg.Targets[0].Next = func(now time.Time) time.Time { return now.Truncate(10 * time.Minute).Add(10 * time.Minute) }
		w.serve(cfg)
		time.Sleep(time.Minute)
		for i := range 300 { // behind the cursors
			w.put(1, 4, fmt.Sprint("late-", i), time.Now().Add(-time.Hour))
		}
		for i := range 60 {
			w.put(1, 4, fmt.Sprint("due-", i), time.Now().Add(time.Duration(i)*10*time.Minute))
		}
		count := func() (late, due int) {
			for _, name := range w.left() {
				at := w.expires[name]
				switch is := strings.HasPrefix(name, "late-"); {
				case is:
					late++
				case strings.HasPrefix(name, "due-") && time.Since(at) > 20*time.Minute:
					due++
				}
			}
			return late, due
		}
		for hour := range 9 {
			time.Sleep(time.Hour)
			if _, due := count(); due > 0 {
				t.Fatalf("after %d hours %d that came to be due wait", hour, due)
			}
		}
		late, _ := count()
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		if late < 50 || late > 250 || err != nil || b.Uncounted == "" {
			t.Errorf("%d late ones are left; %v, %+v, %q", late, err, w.record().Trip, b.Uncounted)
		}
	})
}

// A visit lasts longer than a rewind, because the backlog of its range is large. What is written behind
// its present place is late, though it is not behind the cursor with which the visit began.
func TestLateOnesInALongVisit(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 200)
		w.target.Shards, w.target.Rewind, w.target.Page, w.target.Next = 1, 6*time.Hour, 10, everyMinute
		for i := range 4 { // so that the cursors are here
			w.dueIn(1, i, fmt.Sprint("now-", i), time.Now())
		}
		time.Sleep(time.Second)
		w.mustSweep()
		const hours, events = 60, 900
		began := time.Now()
		time.Sleep(hours * time.Hour)
		for i := range hours * 40 { // less than the floor in each hour
			w.dueIn(1, 0, fmt.Sprint("backlog-", i), began.Add(time.Duration(i)*time.Hour/40))
		}
		w.target.Pace = throttle.Limits{Start: 0.02, Max: 0.02}
		w.serve(w.config())
		time.Sleep(16 * time.Hour) // in which the backlog of 28 hours goes
		for i := range events {
			w.dueIn(1, 0, fmt.Sprint("event-", i), began.Add(time.Duration(i)*20*time.Hour/events))
		}
		for range 24 {
			if time.Sleep(time.Hour); w.record().Trip.IsOpen() {
				break
			}
		}
		left := 0
		for _, name := range w.left() {
			if strings.HasPrefix(name, "event-") {
				left++
			}
		}
		if trip := w.record().Trip; trip.Rule != breaker.LateOnes || events-left > 200 { // a part of the floor is forgotten
			t.Errorf("%d of the event are gone: %+v", events-left, trip)
		}
	})
}

// If what is due on unswept ground cannot be counted, nothing goes. A sweep fails, and says so; a daemon
// is not held by its records, and status says what its breaker cannot do, until it can.
func TestUnsweptGroundWithoutCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		w.putEvery(50, -time.Hour)
		weak := func() string {
			st, err := inspect.Status(t.Context(), w.config(), w.target)
			if err != nil {
				t.Fatal(err)
			}
			return st.Breaker
		}
		s := &slowCounter{Store: w.s, all: true}
		if res := w.with(s); res.Held != "" || !strings.Contains(res.Error, "cannot count") || res.Hint == "" {
			t.Errorf("%+v", res)
		}
		if why := weak(); !strings.Contains(why, "nothing goes: what is due on unswept ground") {
			t.Errorf("status says %q", why)
		}
		cfg := w.config()
		cfg.Store = s
		d := w.serve(cfg)
		time.Sleep(10 * time.Minute)
		if st := d.state(); st.Held == throttle.ReasonRecord || len(w.left()) != 50 {
			t.Errorf("%d are left: %+v", len(w.left()), st)
		}
		d.stop()
		w.mustSweep()
		if why := weak(); len(w.left()) > 0 || strings.Contains(why, "count") {
			t.Errorf("%d are left, and status says %q", len(w.left()), why)
		}
	})
}

// Status says what a breaker that is well cannot do: as long as it only learns, and if no hour can be
// unusual.
func TestStatusOfABlindBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		want := func(what string) {
			t.Helper()
			st, err := inspect.Status(t.Context(), w.config(), w.target)
			if err != nil || st.Breaker != what {
				t.Errorf("status says %q, not %q: %v", st.Breaker, what, err)
			}
		}
		want("")
		w.put(1, 4, "first", time.Now())
		time.Sleep(time.Second)
		w.mustSweep()
		want("bursts pass for a day: it only learns")
		time.Sleep(25 * time.Hour)
		want("")
		w.target.Breaker.Fraction = 1
		want("blind to bursts: its fraction is 100%")
		w.target.Breaker.Fraction = small.Fraction
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		b.Days = []breaker.Day{{Begin: time.Now().Truncate(24 * time.Hour), Share: 0.7}}
		if err = errors.Join(err, w.s.Save(t.Context(), b.Encode(), b.Revision)); err != nil {
			t.Fatal(err)
		}
		want("blind to bursts: lives are shorter than a window")
	})
}
