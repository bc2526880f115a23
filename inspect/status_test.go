package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A status says up to when a target is swept, and what is due, before its first sweep
// and after it.
func TestStatus(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.target.Retention = 2 * time.Hour
		st := w.status()
		if len(st.Ranges) != 0 || st.SweptTo != nil || st.OldestDue != nil || st.LastSweep != nil {
			t.Errorf("before anybody came: %+v", st)
		}
		if _, _, err := sweep.EnsureRecord(t.Context(), w.config(), w.target); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		w.put(1, 4, "older", now.Add(-5*time.Hour))
		w.put(1, 4, "old", now.Add(-4*time.Hour))
		w.put(1, 4, "retained", now.Add(-time.Hour))
		st = w.status()
		if !same(st.OldestDue, now.Add(-3*time.Hour)) || !same(st.SweptTo, now.Add(-5*time.Hour)) ||
			st.LastSweep != nil {
			t.Errorf("with something due: %+v", st)
		}
		w.sweep()
		now = time.Now()
		time.Sleep(time.Minute)
		st = w.status()
		if st.OldestDue != nil || !same(st.SweptTo, time.Now().Add(-w.target.Retention)) {
			t.Errorf("after the sweep: %+v", st)
		}
		if len(st.Workers) != 0 || st.Rate != 0 || st.Unlimited {
			t.Errorf("nobody is at work: %+v", st)
		}
		if st.LastSweep == nil || now.Add(-w.target.Retention).Sub(*st.LastSweep).Abs() > time.Second {
			t.Errorf("the last sweep was at %v, up to %v", now, st.LastSweep)
		}
	})
}

func same(got *time.Time, want time.Time) bool { return got != nil && got.Equal(want) }

// The names in JSON are promises, and lists are never null.
func TestStatusJSON(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		text, err := json.Marshal(w.status())
		if err != nil {
			t.Fatal(err)
		}
		want := `{"name":"sessions","layout":"generation","verdict":"IDLE","why":"nobody has loaded or swept it yet",` +
			`"paused":false,"breaker":"","held":"","reason":"","oldest_due":null,"last_sweep":null,"swept_to":null,` +
			`"backlog":0,"backlog_at_least":false,"rate":0,"unlimited":false,"gone_at":null,` +
			`"behind":0,"behind_at_least":false,"behind_since":null,"behind_gone_by":null,"behind_counted":"2000-01-01T00:00:00Z",` +
			`"would_trip":null,"empty_index":false,"empty_kind":true,` +
			`"paused_by":"","paused_at":null,"paused_until":null,` +
			`"workers":[],"generations":[],"ranges":[],"adoption":null,"superseded_by":"","unread":[]}`
		if string(text) != want {
			t.Errorf("%s\nwant %s", text, want)
		}
		w.sweep()
		if text, err = json.Marshal(w.status()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"namespace", "generation", "shard", "position", "rate", "throttled_by", "owner",
			"lease_until", "oldest_due", "next_due", "deleted", "swept", "refused", "number", "state",
			"shards", "opened", "closed", "sealed"} {
			if !strings.Contains(string(text), `"`+name+`":`) {
				t.Errorf("no %s in %s", name, text)
			}
		}
	})
}

// A status says what holds a target: its gate first, and then a pause. It asks the gate once,
// and does not wait long for the answer.
func TestHeld(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		asked := 0
		w.target.Gate = func(context.Context) error { asked++; return nil }
		if st := w.status(); st.Held != "" || asked != 1 {
			t.Errorf("an open gate, asked %d times: %+v", asked, st)
		}
		w.target.Gate = func(context.Context) error { return errors.New("not now") }
		if st := w.status(); st.Held != "gate" || st.Paused || st.Verdict != inspect.Held || st.Reason != "not now" {
			t.Errorf("a closed gate: %+v", st)
		}
		w.target.Gate = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		asking := time.Now()
		if st := w.status(); st.Held != "gate" || time.Since(asking) > 5*time.Second {
			t.Errorf("a gate that hangs, after %v: %+v", time.Since(asking), st)
		}
		w.pause()
		if st := w.status(); st.Held != "gate" || !st.Paused || st.Verdict != inspect.Held {
			t.Errorf("paused, with a gate that hangs: %+v", st)
		}
		w.target.Gate = nil
		if st := w.status(); st.Held != "paused" || !st.Paused || st.Verdict != inspect.Paused || st.Ranges[0].ThrottledBy != "paused" {
			t.Errorf("paused: %+v", st)
		}
	})
}

// A breaker that is open comes before a gate that is closed, as in sweeps: a person has to end it,
// and who asks for the status must learn of it.
func TestBreakerComesBeforeTheGate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Breaker = roomy
		w.put(1, 4, "due", time.Now())
		rec, now, err := sweep.EnsureRecord(t.Context(), w.config(), w.target)
		if err != nil {
			t.Fatal(err)
		}
		w.save(rec.Tripped(breaker.Trip{ID: "a-trip", Rule: breaker.NewGround, At: now, Through: now, Due: 5000, Limit: 1000}))
		w.target.Gate = func(context.Context) error { return errors.New("not now") }
		if st := w.status(); st.Verdict != inspect.Held || st.Held != "breaker" || !strings.Contains(st.Why, "breaker") ||
			!strings.Contains(st.Reason, "5000 are due") || !strings.Contains(st.Reason, "not now") {
			t.Errorf("%+v", st)
		}
		if x := w.explain("due"); x.Held != "breaker" || !strings.Contains(x.Why, "breaker is open") {
			t.Errorf("%+v", x)
		}
		if res := sweep.Run(t.Context(), w.config()).Targets[0]; res.Held != "breaker" {
			t.Errorf("%+v", res)
		}
	})
}

// pause sets the switch of the target record.
func (w *world) pause() {
	w.t.Helper()
	rec, _, err := sweep.EnsureRecord(w.t.Context(), w.config(), w.target)
	if err != nil {
		w.t.Fatal(err)
	}
	rec.Paused = true
	w.save(rec)
}

// The leases that have not run out show which workers a target has, and at what rate they work.
func TestWorkers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 100, Max: 500}
		w.put(1, 4, "a", time.Now().Add(-time.Hour))
		for i := range 8 {
			w.put(1, 4, strings.Repeat("x", i), time.Now().Add(-time.Hour))
		}
		w.sweep()
		var dead atomic.Bool // the processes that hold ranges
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && dead.Load() {
				return store.ErrDenied
			}
			return nil
		}
		id := func(shard string) cursor.ID { return cursor.ID{Target: "sessions", Generation: 1, Shard: shard} }
		first, second, third := w.claim("b", id("0000")), w.claim("a", id("0001")), w.claim("b", id("0002"))
		time.Sleep(25 * time.Second)
		st := w.status()
		if len(st.Workers) != 2 {
			t.Fatalf("%+v", st.Workers)
		}
		if a, b := st.Workers[0], st.Workers[1]; a.Owner != "a" || a.Ranges != 1 || b.Owner != "b" || b.Ranges != 2 {
			t.Errorf("%+v", st.Workers)
		}
		for _, worker := range st.Workers {
			if age := time.Since(worker.Seen); age < 0 || age > w.target.Lease/3+time.Second {
				t.Errorf("%s was seen %v ago", worker.Owner, age)
			}
		}
		if st.Rate < 3*100 || st.Rate > 3*500 || st.Unlimited {
			t.Errorf("three ranges at 100 to 500 a second: %v", st.Rate)
		}
		w.target.Total = throttle.Limit{PerSecond: 120}
		if st := w.status(); st.Rate != 120 {
			t.Errorf("with a total of 120 a second: %v", st.Rate)
		}
		w.target.Total, w.target.Pace = throttle.Limit{}, throttle.Limits{Unlimited: true}
		if st := w.status(); st.Rate != 0 || !st.Unlimited {
			t.Errorf("without limits: %v, %v", st.Rate, st.Unlimited)
		}
		w.release(first)
		w.release(second)
		dead.Store(true)
		time.Sleep(time.Minute)
		if st := w.status(); len(st.Workers) != 0 || st.Unlimited || st.Ranges[2].Owner != "b" {
			t.Errorf("after everybody left or died: %+v", st)
		}
		_ = third.Release(context.WithoutCancel(t.Context()))
	})
}

// Sealed ranges rest until something in them is due, and a status says when that is.
func TestStatusOfSealedRanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Policy.Keep = 30
		w.sweep()
		at := time.Now().Add(10 * time.Hour)
		w.put(1, 4, "late", at)
		w.sweepFor(3 * time.Hour)
		st := w.status()
		rests := 0
		for _, r := range st.Ranges {
			if r.NextDue != nil && r.NextDue.Equal(at) {
				rests++
			}
		}
		if rests != 1 || st.Generations[0].State != "sealed" || st.Generations[0].Sealed == nil || st.OldestDue != nil {
			t.Errorf("status: %+v", st)
		}
		if st.Generations[len(st.Generations)-1].Number != 0 || st.Ranges[len(st.Ranges)-1].Generation != 0 {
			t.Errorf("the nursery is not the last: %+v", st)
		}
		if x := w.explain("late"); x.Verdict != "early" || x.State != "sealed" {
			t.Errorf("%+v", x)
		}
		var scans atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				scans.Add(1)
			}
			return nil
		}
		if w.status(); scans.Load() > 2*(int64(len(st.Ranges))-4)+1 { // those of generation 1 rest, at least; one looks past the last generation
			t.Errorf("%d scans", scans.Load())
		}
	})
}

// If the records cannot be read, the status is an error; it does not look fine.
func TestStatusFails(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(1, 4, "old", time.Now().Add(-time.Hour))
		w.sweep()
		w.put(1, 4, "old", time.Now().Add(-time.Second))
		for _, method := range []string{"Load", "Scan"} {
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == method {
					return store.ErrDenied
				}
				return nil
			}
			if _, err := inspect.Status(t.Context(), w.config(), w.target); !errors.Is(err, store.ErrDenied) {
				t.Errorf("where %s fails: %v", method, err)
			}
		}
	})
}
