package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// removeCursors removes the cursor records that pass a filter, as an operator might.
func (w *world) removeCursors(which func(cursor.Cursor) bool) (n int) {
	w.t.Helper()
	for id, c := range w.cursors() {
		if !which(c) {
			continue
		}
		rec := store.Record{Sort: store.CursorRecord, Key: id.Key(), Target: id.Target}
		if err := w.s.Save(context.WithoutCancel(w.t.Context()), rec, c.Revision); err != nil {
			w.t.Fatal(err)
		}
		n++
	}
	return n
}

// Cursor records that are removed while a daemon runs cost time and nothing else, whether
// the daemon has read them or only written them.
func TestCursorsRemovedUnderADaemon(t *testing.T) {
	for _, withTarget := range []bool{false, true} {
		in(t, func(t *testing.T, w *world) {
			w.target.Generations, w.target.Layout = false, "sharded"
			w.serve(w.config())
			for i := range 3 {
				var names []string
				for j := range 16 {
					names = append(names, w.put(0, 4, fmt.Sprintf("e-%d-%d", i, j), time.Now().Add(time.Minute)))
				}
				time.Sleep(2 * time.Minute)
				if left := w.left(); len(left) > 0 {
					t.Fatalf("round %d, target record removed too: %v: of %d there are left %v", i, withTarget, len(names), left)
				}
				if n := w.removeCursors(func(cursor.Cursor) bool { return true }); n != 4 {
					t.Fatalf("round %d: there were %d cursor records", i, n)
				}
				if withTarget {
					lose(t, w.s)
				}
				time.Sleep(time.Minute)
			}
		})
	}
}

// A daemon refuses an old target record that somebody puts back while it runs: it deletes
// nothing by that record, logs the reason, and does not read it without pause.
func TestOldRecordPutBackUnderADaemon(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Policy = hourly
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" {
				time.Sleep(5 * time.Millisecond) // else a loop without a pause would take no time at all
			}
			return nil
		}
		w.begin()
		load := func() store.Record {
			got, err := w.s.Load(context.WithoutCancel(t.Context()), store.RecordQuery{Sort: store.TargetRecord, Target: "sessions"})
			if err != nil || len(got.List) != 1 {
				t.Fatal(len(got.List), err)
			}
			return got.List[0]
		}
		first := load()
		c, watched := w.config(), time.Now().Add(2*time.Hour)
		c.Targets[0].Next = func(at time.Time) time.Time { // the hours before need few ticks
			if at.Before(watched) {
				return everyMinute(at)
			}
			return everySecond(at)
		}
		d := w.serve(c)
		time.Sleep(time.Until(watched))
		newest := load()
		if err := w.s.Save(t.Context(), first, newest.Revision); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		w.put(0, 4, "due", time.Now().Add(-time.Second))
		w.forget()
		time.Sleep(20 * time.Second)
		w.mu.Lock()
		n := w.calls["Load"]
		w.mu.Unlock()
		if n > 45 {
			t.Errorf("%d reads of records in 20 s", n)
		}
		if st := d.state(); st.Held != throttle.ReasonRecord || len(w.left()) != 1 {
			t.Errorf("held %q, left %v", st.Held, w.left())
		}
		if err := w.s.Save(t.Context(), newest, first.Revision); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if st := d.state(); st.Held != "" {
			t.Errorf("with the newest record back: held %q", st.Held)
		}
	})
}

// A process that cannot read the heartbeats, and so gets no share of the total, leaves
// the ranges to others, and says why.
func TestHeartbeatsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Total = throttle.Limit{PerSecond: 100}
		live := w.fill(400, 48*time.Hour)
		newer := store.Record{Sort: store.WorkerRecord, Key: "sessions@future", Target: "sessions", Revision: "1-a",
			Fields: store.Fields{"schema": int64(cursor.HeartbeatSchema + 1)}}
		if err := w.s.Save(t.Context(), newer, ""); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		res := w.sweep()
		if res.Complete || !errors.Is(res.Err, cursor.ErrNewer) || time.Since(began) > 10*time.Minute {
			t.Errorf("after %v: complete %v, %v", time.Since(began), res.Complete, res.Err)
		}
		for id, c := range w.cursors() {
			if c.Lease.Owner != "" {
				t.Errorf("%v is still held", id)
			}
		}
		if err := w.s.Save(t.Context(), store.Record{Sort: newer.Sort, Key: newer.Key, Target: newer.Target}, newer.Revision); err != nil {
			t.Fatal(err)
		}
		if res := w.sweep(); !res.Complete || res.Error != "" {
			t.Errorf("without the newer heartbeat: %+v", res)
		}
		w.wantLeft(live...)
	})
}

// A visit whose cursor cannot be saved at the end does not count as a success.
func TestReleaseThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		live := w.fill(400, 48*time.Hour)
		var deny atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				deny.Store(true)
			}
			if deny.Load() && c.Method == "Save" && c.Record.Sort == store.CursorRecord && c.Record.Fields["owner"] == "" {
				return store.ErrDenied
			}
			return nil
		}
		if res := w.sweep(); res.Complete || !errors.Is(res.Err, store.ErrDenied) {
			t.Errorf("complete %v, error %q", res.Complete, res.Error)
		}
		w.s.Before = nil
		if res := w.sweep(); !res.Complete || res.Error != "" {
			t.Errorf("afterwards: %+v", res)
		}
		w.wantLeft(live...)
	})
}

// Requests for the reaper's own records that fail are counted as such.
func TestRecordErrorsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin()
		var denied atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if denied.Load() && (c.Method == "Load" || c.Method == "Save") {
				return store.ErrDenied
			}
			return nil
		}
		s := w.serve(w.config())
		time.Sleep(time.Minute)
		if n := s.counter("reaper_store_errors_total", "op", "record", "code", "denied"); n != 0 {
			t.Errorf("%v errors before there were any", n)
		}
		denied.Store(true)
		time.Sleep(time.Minute)
		if n := s.counter("reaper_store_errors_total", "op", "record", "code", "denied"); n < 10 {
			t.Errorf("%v errors of records in a minute", n)
		}
	})
}

// Two daemons leave the ranges of a retired generation alone.
func TestRetiredRangesStayAlone(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Policy = hourly
		if !nightly.Run() { // which has a tick each second
			w.target.Next = everyMinute
		}
		w.begin()
		w.serve(w.config())
		w.serve(w.config())
		retired := map[int]bool{}
		for hour := range 10 {
			now := numbers(w.record())
			for number := range now[0] {
				retired[number] = number > expirykey.Nursery
			}
			g := w.record().Generations[len(now)-1]
			for i := range 40 {
				w.put(g.Number, g.Shards, fmt.Sprintf("e-%d-%d", hour, i), time.Now().Add(time.Duration(i)*time.Minute))
			}
			w.forget()
			time.Sleep(time.Hour)
			w.mu.Lock()
			saves := slices.Clone(w.saves)
			w.mu.Unlock()
			for _, s := range saves {
				number := int(s.fields["generation"].(int64))
				if retired[number] && s.fields["owner"] != "" {
					t.Errorf("hour %d: %s was claimed, of a retired generation", hour, s.key)
				}
			}
		}
		if len(retired) < 3 || !slices.ContainsFunc(numbers(w.record()), func(n int) bool { return n > 5 }) {
			t.Errorf("retired %v, there are %v", retired, numbers(w.record()))
		}
	})
}
