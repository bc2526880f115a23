package sweep_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A process may be frozen for an hour between any two of its steps. The marks that it writes
// into the target record are still never older than a write may take. Otherwise a
// generation would count as sealed while writers still stamp it.
func TestStandsStillAnywhere(t *testing.T) {
	for _, lost := range []bool{false, true} {
		reads := 0
		in(t, func(t *testing.T, w *world) { reads = w.standStill(0, lost) })
		if reads < 20 {
			t.Errorf("only %d readings of the clock", reads)
		}
		stride := nightly.Size(t, 1, 3)
		if testing.Short() {
			stride = 7
		}
		for at := 1; at <= reads; at += stride {
			in(t, func(t *testing.T, w *world) { w.standStill(at, lost) })
			if t.Failed() {
				t.Fatalf("it stood still at the clock's reading %d of %d, record lost: %v", at, reads, lost)
			}
		}
	}
}

// standStill sweeps while a generation is to be opened and another one closed, and stands
// still at one reading of the clock, from 1 on. It returns how many there are.
func (w *world) standStill(at int, lost bool) (reads int) {
	var n atomic.Int64
	const most = 12 * time.Second // a write, and the second in which it begins
	w.target.Policy = hourly
	w.begin()
	w.fill(20, 48*time.Hour)
	w.sweep()
	time.Sleep(time.Hour + 10*time.Minute) // generation 2 is due
	w.sweep()
	time.Sleep(time.Hour + 10*time.Minute) // generation 3 is due, and generation 1 is to be read
	if lost {
		rec := store.Record{Sort: store.TargetRecord, Key: "sessions", Target: "sessions"}
		if err := w.s.Save(w.t.Context(), rec, w.targetRecord().Revision); err != nil {
			w.t.Fatal(err)
		}
	}
	var mu sync.Mutex // the breaker writes the target record, too
	known := map[int]generation.Generation{}
	if !lost {
		for _, g := range w.targetRecord().Generations {
			known[g.Number] = g
		}
	}
	w.s.After = func(ctx context.Context, c modelstore.Call) error {
		if c.Method != "Save" || c.Record.Sort != store.TargetRecord {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		now := w.s.Now()
		for _, g := range w.targetRecord().Generations {
			before := known[g.Number]
			if before.Closed.IsZero() && !g.Closed.IsZero() && now.Sub(g.Closed) > most {
				w.t.Errorf("generation %d is closed as of %v ago", g.Number, now.Sub(g.Closed))
			}
			known[g.Number] = g
		}
		return nil
	}
	cfg := w.config()
	var jump atomic.Int64 // the machine stands still: its clock is right when it goes on, and its timers have not moved
	w.s.Now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
	cfg.Now = func() time.Time {
		now := w.s.Now()
		if !isSaving() && n.Add(1) == int64(at) {
			jump.Store(int64(time.Hour))
		}
		return now
	}
	sweep.Run(w.t.Context(), cfg)
	return int(n.Load())
}

// isSaving reports whether the clock is read by a write of the target record that is under
// way: from there on its deadline ends it, on the clock of the machine.
func isSaving() bool {
	callers := make([]uintptr, 10)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "(*targetRecord).save") {
			return true
		}
		if !more {
			return false
		}
	}
}
