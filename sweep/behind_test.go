package sweep_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// gauge returns a gauge of one target; -1 if it is not shown yet.
func (s *service) gauge(name string) float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// behind returns the gauge of what is due behind the cursors.
func (s *service) behind() float64 {
	s.t.Helper()
	return s.gauge("reaper_behind_entities")
}

// A daemon counts every ten minutes what is due behind the cursors, which no tick meets, and not at
// each tick. It says nothing before the first count, and keeps the number if a count fails.
func TestDaemonCountsBehindTheCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Next = everyMinute
		w.begin()
		var denied atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if denied.Load() && c.Method == "Scan" {
				return fmt.Errorf("not today: %w", store.ErrDenied)
			}
			return nil
		}
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprintf("first-%d", shard), time.Now())
		}
		s := w.serve(w.config())
		time.Sleep(50 * time.Second)
		if n := s.behind(); n != -1 {
			t.Errorf("before the first count: %v", n)
		}
		time.Sleep(30 * time.Second)
		if n := s.behind(); n != 0 {
			t.Errorf("after the first count: %v", n)
		}
		old := time.Now().Add(-24 * time.Hour)
		for i := range 150 { // more than are read before they are counted
			w.dueIn(1, 0, fmt.Sprintf("late-%d", i), old)
		}
		w.dueIn(1, 1, "one", old)
		time.Sleep(8 * time.Minute)
		if n := s.behind(); n != 0 {
			t.Errorf("before the second count: %v", n)
		}
		time.Sleep(3 * time.Minute)
		if n := s.behind(); n != 151 || len(w.left()) != 151 {
			t.Errorf("%v are behind the cursors, and %d are left", n, len(w.left()))
		}
		denied.Store(true)
		time.Sleep(time.Hour)
		if n := s.behind(); n != 151 {
			t.Errorf("after a count that failed: %v", n)
		}
		denied.Store(false)
		once := w.config()
		once.FromStart = true
		res := sweep.Run(t.Context(), once).Targets[0]
		if res.Deleted != 151 || !res.Complete || res.BehindCursors == nil || *res.BehindCursors != 0 {
			t.Errorf("from the start: %+v", res)
		}
		time.Sleep(time.Hour)
		if n := s.behind(); n != 0 {
			t.Errorf("after they are gone: %v", n)
		}
	})
}

// Of what is restamped to yesterday while three daemons work, each daemon's gauge, a status, a
// dry run and, once it is asked to delete all of it, a sweep give the same number.
func TestDaemonsAgreeOnWhatIsBehind(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 300
		w.target.Next = everyMinute
		w.begin()
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprintf("first-%d", shard), time.Now())
		}
		all := []*service{w.serve(w.config()), w.serve(w.config()), w.serve(w.config())}
		time.Sleep(10 * time.Minute)
		for i := range n {
			w.dueIn(1, i%4, fmt.Sprintf("late-%d", i), time.Now().Add(-24*time.Hour))
		}
		time.Sleep(11 * time.Minute)
		for i, s := range all {
			if got := s.behind(); got != n {
				t.Errorf("daemon %d counts %v", i, got)
			}
		}
		st, err := inspect.Status(t.Context(), w.config(), w.target)
		if err != nil || st.Behind == nil || *st.Behind != n || st.Verdict != inspect.Behind || !st.LateOnes {
			t.Errorf("status: %+v, %v", st, err)
		}
		dry := w.config()
		dry.Apply = false
		if res := sweep.Run(t.Context(), dry).Targets[0]; res.BehindCursors == nil || *res.BehindCursors != n || res.Expired != 0 {
			t.Errorf("a dry run: %+v", res)
		}
		once := w.config()
		once.FromStart = true
		if res := sweep.Run(t.Context(), once).Targets[0]; res.Deleted != n || !res.Complete {
			t.Errorf("from the start: %+v", res)
		}
	})
}

// wouldTrip returns the gauge that says whether the breaker would trip at the next reads from the start.
func (s *service) wouldTrip() float64 {
	s.t.Helper()
	return s.gauge("reaper_breaker_would_trip")
}

// A daemon says long before that its breaker will trip for what lies behind the cursors: in its gauge, its
// heartbeat, its log and in a status. It is right, and it takes that back once the entities are live again.
func TestDaemonForeseesThatItsBreakerTrips(t *testing.T) {
	for _, ends := range []string{"mended", "tripped"} {
		t.Run(ends, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withBreaker(t, 3000)
				for shard := range 4 {
					w.dueIn(1, shard, fmt.Sprintf("first-%d", shard), time.Now())
				}
				w.mustSweep()
				w.target.Next = everyMinute
				c, log := w.config(), new(quietLog)
				c.Log = slog.New(slog.NewTextHandler(log, nil))
				s := w.serve(c)
				time.Sleep(5 * time.Minute)
				if s.behind() != 0 || s.wouldTrip() != 0 {
					t.Fatalf("before: %v behind, %v", s.behind(), s.wouldTrip())
				}
				was := map[string]time.Time{}
				for _, name := range w.left()[:1500] {
					was[name] = w.expires[name]
					w.put(1, 4, name, time.Now().Add(-24*time.Hour))
				}
				time.Sleep(11 * time.Minute)
				st, err := inspect.Status(t.Context(), w.config(), w.target)
				if err != nil || st.WouldTrip == nil || st.WouldTrip.Due != 1500 || st.WouldTrip.Rule != breaker.LateOnes ||
					!strings.Contains(st.Why, "its breaker would trip at the next reads from the start: 1500 are late, where ") {
					t.Fatalf("status: %s, %+v, %v", st.Why, st.WouldTrip, err)
				}
				if s.behind() != 1500 || s.wouldTrip() != 1 || log.count("the breaker would trip") != 1 || len(w.left()) != 3000 {
					t.Errorf("%v behind, would trip %v, said %d times, %d are left", s.behind(), s.wouldTrip(),
						log.count("the breaker would trip"), len(w.left()))
				}
				if ends == "tripped" {
					time.Sleep(25 * time.Hour)
					trip := w.record().Trip
					if !trip.IsOpen() || trip.Rule != breaker.LateOnes || trip.Due+trip.Gone != st.WouldTrip.Due ||
						trip.Limit > st.WouldTrip.Limit || trip.Limit < st.WouldTrip.Limit*9/10 { // fewer are there by then
						t.Errorf("foreseen: %+v; the trip: %+v", st.WouldTrip, trip)
					}
					return
				}
				for name, at := range was {
					w.put(1, 4, name, at)
				}
				time.Sleep(11 * time.Minute)
				st, err = inspect.Status(t.Context(), w.config(), w.target)
				if err != nil || st.WouldTrip != nil || s.wouldTrip() != 0 || log.count("would no longer trip") != 1 {
					t.Errorf("after: %+v, %v, %v", st, err, s.wouldTrip())
				}
				time.Sleep(25 * time.Hour)
				if w.record().Trip.IsOpen() {
					t.Errorf("it trips: %+v", w.record().Trip)
				}
			})
		})
	}
}

// What lies behind the cursors is counted soon after a pause: much may have come meanwhile.
func TestDaemonCountsBehindAfterAPause(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.begin()
		w.dueIn(1, 0, "first", time.Now())
		s := w.serve(w.config())
		time.Sleep(2 * time.Minute)
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, control.Order{Actor: "ann"}, 4*time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		for i := range 7 {
			w.dueIn(1, 0, fmt.Sprint("late-", i), time.Now().Add(-24*time.Hour))
		}
		time.Sleep(3 * time.Minute) // the pause ended two minutes ago
		if n := s.behind(); n != 7 {
			t.Errorf("%v are behind the cursors", n)
		}
	})
}
