package sweep_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// fromStart sweeps once and reads each range from its start.
func (w *world) fromStart() sweep.TargetResult {
	c := w.config()
	c.FromStart = true
	return sweep.Run(w.t.Context(), c).Targets[0]
}

// A sweep from the start finds what lies behind the cursors, which others leave to the
// next rewind.
func TestSweepFromStart(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.touch()
		time.Sleep(time.Minute)
		for i := range 300 {
			w.put(i%2, 4, fmt.Sprint("behind-", i), time.Now().Add(-time.Hour))
		}
		w.put(1, 4, "live", time.Now().Add(time.Hour))
		if res := w.sweep(); res.Deleted != 0 || !res.Complete {
			t.Fatalf("a plain sweep: %+v", res)
		}
		dry := w.config()
		dry.Apply, dry.FromStart = false, true
		writes := w.s.Writes()
		if res := sweep.Run(t.Context(), dry).Targets[0]; res.Expired != 300 || !res.Complete || w.s.Writes() != writes {
			t.Errorf("without apply: %+v, %d writes", res, w.s.Writes()-writes)
		}
		if res := w.fromStart(); res.Deleted != 300 || !res.Complete {
			t.Errorf("from the start: %+v", res)
		}
		w.wantLeft("live")
		w.checkCursors()
		for id, c := range w.cursors() {
			if id.Shard != "audit" && time.Since(c.Rewind.Done) > time.Second {
				t.Errorf("%v was read from its start at %v", id, c.Rewind.Done)
			}
		}
	})
}

// Sealed ranges at rest are read, too, and what is not due stays.
func TestSweepFromStartInSealedGenerations(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = generation.Policy{Every: time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 30}
		w.touch()
		w.put(1, 4, "later", time.Now().Add(300*time.Hour))
		for range 40 {
			time.Sleep(5 * time.Minute)
			w.sweep()
		}
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprint("late-", shard), time.Now().Add(-30*time.Minute))
		}
		if res := w.sweep(); res.Deleted != 0 {
			t.Fatalf("a plain sweep: %+v", res)
		}
		if res := w.fromStart(); res.Deleted != 4 || !res.Complete {
			t.Errorf("%+v", res)
		}
		w.wantLeft("later")
	})
}

// A range that another process holds is read once that one gives it back.
func TestSweepFromStartBesideADaemon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 5, Max: 5}
		w.touch()
		began := time.Now()
		for shard := range 4 {
			for i := range 300 { // a minute's work
				w.dueIn(1, shard, fmt.Sprintf("backlog-%d-%d", shard, i), began.Add(time.Duration(i)*time.Millisecond))
			}
		}
		w.serve(w.config())
		time.Sleep(10 * time.Second)
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprint("behind-", shard), began.Add(-time.Hour))
		}
		res := w.fromStart()
		if !res.Complete || res.Error != "" {
			t.Errorf("%+v", res)
		}
		for _, name := range w.left() {
			if name[:6] == "behind" {
				t.Errorf("%s is left", name)
			}
		}
		w.checkLeases()
	})
}

// A sweep that was stopped before it had read all ranges is not complete, though nothing
// was left before the cursors.
func TestSweepFromStartStopped(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.touch()
		time.Sleep(time.Minute)
		ctx, stop := context.WithCancel(t.Context())
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Scan" || shardOf(c.Query) != "0002" || c.Query.Limit == 1 {
				return nil
			}
			stop()
			return store.ErrUnavailable
		}
		c := w.config()
		c.FromStart = true
		if res := sweep.Run(ctx, c).Targets[0]; res.Complete || res.Incomplete == 0 || res.Error != "" {
			t.Errorf("%+v", res)
		}
		w.s.Before = nil
		if res := w.fromStart(); !res.Complete {
			t.Errorf("%+v", res)
		}
		if res := w.sweep(); !res.Complete { // the orders were for one sweep
			t.Errorf("%+v", res)
		}
		for id, c := range w.cursors() {
			if c.Rewind != (cursor.Rewind{Done: c.Rewind.Done}) {
				t.Errorf("%v: %+v", id, c.Rewind)
			}
		}
	})
}
