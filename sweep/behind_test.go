package sweep_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// behind returns the gauge of what is due behind the cursors; -1 before the first count.
func (s *service) behind() float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "reaper_behind_entities" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// A daemon counts once an hour what is due behind the cursors, which no tick meets, and not at
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
		time.Sleep(10 * time.Minute)
		old := time.Now().Add(-24 * time.Hour)
		for i := range 150 { // more than are read before they are counted
			w.dueIn(1, 0, fmt.Sprintf("late-%d", i), old)
		}
		w.dueIn(1, 1, "one", old)
		time.Sleep(40 * time.Minute)
		if n := s.behind(); n != -1 {
			t.Errorf("before the first count: %v", n)
		}
		time.Sleep(20 * time.Minute)
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
		time.Sleep(61 * time.Minute)
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
