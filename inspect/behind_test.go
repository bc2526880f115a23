package inspect_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// after returns the instant that an explanation names.
func after(t *testing.T, why string) time.Time {
	t.Helper()
	m := regexp.MustCompile(`sweep after ([0-9TZ:-]+)`).FindStringSubmatch(why)
	if m == nil {
		t.Fatalf("no instant in %q", why)
	}
	at, err := time.Parse(time.RFC3339, m[1])
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// sweepUntil sweeps every five minutes up to an instant.
func (w *world) sweepUntil(at time.Time) {
	w.t.Helper()
	for time.Until(at) > 5*time.Minute {
		time.Sleep(5 * time.Minute)
		w.sweep()
	}
}

// Entities behind the cursors are deleted when an explanation says so: not much earlier, and
// not later. Three thousand entities are restamped to yesterday.
func TestExplainBehindTheCursorComesTrue(t *testing.T) {
	const n = 3000
	for name, c := range map[string]struct {
		change func(*world)
		until  time.Duration // it is gone by then
		says   string
	}{
		"rewind": {func(w *world) { layouts["timestamp"](&w.target) }, 24 * time.Hour,
			"after it had expired: the next read of the range from its start, by the first sweep after"},
		"sealing": {func(w *world) { w.target.Policy = hourly; w.target.Policy.Keep = 30 }, 2 * time.Hour,
			"once its generation is sealed, the range is read from its start"},
		"sealed": {func(w *world) { w.target.Policy = hourly; w.target.Policy.Keep = 30 }, 48 * time.Hour,
			"was written into a generation that was sealed already: the daily audit"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				c.change(w)
				w.target.Rewind, w.target.Page = 24*time.Hour, 500
				w.sweep()
				if name == "sealed" {
					w.put(1, 4, "later", time.Now().Add(300*time.Hour)) // keeps the generation from retiring
					w.sweepFor(30 * time.Hour)                          // with an audit
				} else {
					w.sweepFor(30 * time.Minute)
				}
				yesterday := time.Now().Add(-24 * time.Hour)
				for i := range n {
					w.put(1, 4, fmt.Sprint("e-", i), yesterday.Add(time.Duration(i)*time.Millisecond))
				}
				x := w.explain("e-7")
				if x.Verdict != "due" || !strings.Contains(x.Why, c.says) {
					t.Fatalf("%+v", x)
				}
				at := after(t, x.Why)
				if d := time.Until(at); d <= 0 || d > c.until {
					t.Fatalf("in %v: %s", d, x.Why)
				}
				w.sweepUntil(at)
				if x := w.explain("e-7"); x.Verdict != "due" {
					t.Errorf("it went before %v: %+v", at, x)
				}
				w.sweepFor(30 * time.Minute) // an estimate of the sealing waits for ticks
				if x := w.explain("e-7"); x.Verdict != "absent" {
					t.Errorf("it is there after %v: %+v", at, x)
				}
				left := len(w.s.Entities("Session", ""))
				if name == "sealed" {
					left-- // what is to come
				}
				if left != 0 {
					t.Errorf("%d of %d are left", left, n)
				}
			})
		})
	}
}

// A read from the start that is under way finds what it has not passed yet.
func TestExplainWhileARewindIsUnderWay(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		layouts["timestamp"](&w.target)
		w.sweep()
		began := time.Now().UTC().Truncate(time.Microsecond)
		w.edit(cursor.ID{Target: "sessions", Shard: "0000"}, func(c *cursor.Cursor) {
			c.Rewind.Began, c.Rewind.Position = began, store.Position{Value: store.InstantValue(began.Add(-10 * time.Hour))}
		})
		w.put(0, 1, "ahead of it", began.Add(-9*time.Hour))
		w.put(0, 1, "passed", began.Add(-11*time.Hour))
		if x := w.explain("ahead of it"); !strings.HasSuffix(x.Why, "which is under way, deletes it") {
			t.Errorf("%+v", x)
		}
		x := w.explain("passed")
		if d := time.Until(after(t, x.Why)); !strings.Contains(x.Why, "has passed it") || d < 19*time.Hour || d > 24*time.Hour {
			t.Errorf("%+v", x)
		}
		w.sweep()
		if a, b := w.explain("ahead of it"), w.explain("passed"); a.Verdict != "absent" || b.Verdict != "due" {
			t.Errorf("%+v, %+v", a, b)
		}
		w.sweepUntil(after(t, x.Why))
		w.sweepFor(10 * time.Minute)
		if x := w.explain("passed"); x.Verdict != "absent" {
			t.Errorf("%+v", x)
		}
	})
}

// An explanation also names the pause for an entity behind the cursor, and what it says will
// follow the pause comes true.
func TestExplainBehindTheCursorUnderAPause(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		layouts["timestamp"](&w.target)
		w.target.Retention = time.Hour
		w.sweep()
		w.put(0, 1, "ahead", time.Now().Add(-30*time.Minute))
		w.put(0, 1, "behind", time.Now().Add(-24*time.Hour))
		o := control.Order{Actor: "ann", Reason: "a restore"}
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, o, 48*time.Hour); err != nil {
			t.Fatal(err)
		}
		if x := w.explain("ahead"); x.Verdict != "early" || x.Why != "it is due in 30m" || x.Held != "" {
			t.Errorf("retained: %+v", x)
		}
		w.sweepFor(30 * time.Hour)
		for name, why := range map[string]string{"ahead": "After that: it is due, and the next sweep deletes it",
			"behind": "After that: it is due, but was written behind its range's cursor"} {
			x := w.explain(name)
			if x.Held != "paused" || !strings.HasPrefix(x.Why, "nothing is deleted while the target is paused, by ann until 2000-01-03T") ||
				!strings.Contains(x.Why, why) {
				t.Errorf("%s: %+v", name, x)
			}
		}
		w.sweepFor(18*time.Hour + 10*time.Minute)
		if left := len(w.s.Entities("Session", "")); left != 0 {
			t.Errorf("%d are left after the pause: %s", left, w.explain("behind").Why)
		}
	})
}

// A store whose index lacks an entity, as Datastore's does if its property was written
// without an index.
type lacking struct {
	*modelstore.Store
	key string
}

func (s lacking) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	most := q.Limit
	q.Limit++
	err := s.Store.Scan(ctx, q, page)
	page.Entries = slices.DeleteFunc(page.Entries, func(e store.Entry) bool { return e.Key == s.key })
	page.More = page.More || len(page.Entries) > most
	page.Entries = page.Entries[:min(most, len(page.Entries))]
	return err
}

// An explanation says if a property is not indexed, due or not: no sweep will see it. A
// distant instant is shown in years.
func TestExplainUnindexed(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "hidden", time.Now().Add(time.Minute))
		w.put(1, 4, "shown", time.Now().Add(time.Minute))
		w.put(1, 4, "2999", time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC))
		c := w.config()
		c.Store = lacking{w.s, `"hidden"`}
		explain := func(name string) inspect.Explanation {
			x, err := inspect.Explain(t.Context(), c, w.target, "", store.Entity{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		for _, when := range []string{"early", "due"} {
			x := explain("hidden")
			sharded := w.target.ShardProperty != "" // the index by both has neither
			if !sharded && (x.Verdict != "unindexed" || !strings.Contains(x.Why, "is not indexed: no sweep ever sees it") || x.Held != "") ||
				sharded && (x.Verdict != "outside" || !strings.Contains(x.Why, "no index has it by shard and expires")) {
				t.Errorf("%s: %+v", when, x)
			}
			if x := explain("shown"); x.Verdict != when {
				t.Errorf("%+v", x)
			}
			time.Sleep(2 * time.Minute)
		}
		if x := explain("2999"); x.Verdict != "early" || x.Why != "it is due in 999 years" {
			t.Errorf("%+v", x)
		}
		// The sweep does what was said.
		c.Targets = []sweep.Target{w.target}
		c.Targets[0].Pace = throttle.Limits{Unlimited: true}
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Deleted != 1 || res.Error != "" {
			t.Errorf("%+v", res)
		}
	})
}

// statusOfAll is a status that looks into ranges at rest, too.
func (w *world) statusOfAll() (st inspect.TargetStatus) {
	w.t.Helper()
	w.looking(func() (err error) {
		st, err = inspect.StatusWith(w.t.Context(), w.config(), w.target, inspect.Look{All: true})
		return err
	})
	return st
}

// A status counts the due entities behind the cursors and says by when they are deleted,
// and is right. Three thousand entities are restamped to yesterday.
func TestStatusBehindComesTrue(t *testing.T) {
	const n = 3000
	inEachLayout(t, func(t *testing.T, w *world) {
		w.target.Page = 500
		w.sweep()
		if st := w.statusOfAll(); st.Behind == nil || *st.Behind != 0 || st.BehindGoneBy != nil ||
			!strings.HasPrefix(st.Why, "nothing is due") {
			t.Errorf("nothing is behind: %+v", st.BehindCount)
		}
		yesterday := time.Now().Add(-24 * time.Hour)
		for i := range n {
			w.put(1, 4, fmt.Sprint("e-", i), yesterday.Add(time.Duration(i)*time.Millisecond))
		}
		w.put(1, 4, "live", time.Now().Add(1000*time.Hour))
		st := w.status()
		if st.Behind == nil || *st.Behind != n || st.BehindAtLeast || st.BehindGoneBy == nil || time.Until(*st.BehindGoneBy) > 24*time.Hour ||
			st.Verdict != inspect.Behind || !strings.HasPrefix(st.Why, "3000 lie behind the cursors, written late or refused; the read from the start after ") ||
			len(st.Unread) > 0 {
			t.Fatalf("%s, %s: %+v", st.Verdict, st.Why, st.BehindCount)
		}
		if !same(st.OldestDue, yesterday) || *st.Backlog != n || !same(st.GoneAt, *st.BehindGoneBy) || !same(st.BehindCounted, time.Now()) {
			t.Errorf("oldest %v, backlog %d, gone %v, counted %v", st.OldestDue, *st.Backlog, st.GoneAt, st.BehindCounted)
		}
		w.sweepUntil(*st.BehindGoneBy)
		left := w.statusOfAll()
		if left.Behind == nil || *left.Behind == 0 || *left.Behind != int64(len(w.s.Entities("Session", ""))-1) || !same(left.BehindGoneBy, *st.BehindGoneBy) {
			t.Errorf("just before: %+v, %d are there", left.BehindCount, len(w.s.Entities("Session", ""))-1)
		}
		w.sweepFor(10 * time.Minute)
		if st := w.statusOfAll(); st.Behind == nil || *st.Behind != 0 || len(w.s.Entities("Session", "")) != 1 {
			t.Errorf("after it: %+v", st.BehindCount)
		}
	})
}

// Malformed and suspect entities are never deleted, and do not count as behind. Due entities
// of a sealed generation do, until the audit deletes them.
func TestStatusBehindCountsWhatGoes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Policy.Keep = 30
		w.sweep()
		w.put(1, 4, "later", time.Now().Add(300*time.Hour))
		w.sweepFor(30 * time.Hour)
		now := time.Now()
		w.raw("malformed", "00000000.0002.1999")
		w.put(0, 4, "suspect", now.Add(-w.target.MaxAge-time.Hour))
		w.put(1, 4, "late", now.Add(-time.Hour))
		w.put(1, 4, "later", now.Add(300*time.Hour))
		st := w.statusOfAll()
		if st.Behind == nil || *st.Behind != 1 || st.BehindGoneBy == nil {
			t.Fatalf("%+v", st.BehindCount)
		}
		w.sweepUntil(*st.BehindGoneBy)
		w.sweepFor(30 * time.Minute)
		if st := w.statusOfAll(); st.Behind == nil || *st.Behind != 0 || w.explain("late").Verdict != "absent" {
			t.Errorf("%+v", st.BehindCount)
		}
	})
}

// A status does not wait without end for the count behind the cursors, either.
func TestStatusBehindOfAStoreThatHangs(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "due", time.Now().Add(time.Second))
		yesterday := time.Now().Add(-24 * time.Hour)
		w.put(1, 4, "late", yesterday)
		time.Sleep(time.Minute)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && c.Query.Limit > 100 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		began := time.Now()
		st := w.statusOfAll()
		if took := time.Since(began); took > inspect.Within {
			t.Errorf("it took %v", took)
		}
		if st.Behind == nil || *st.Behind != 1 || !st.BehindAtLeast || !same(st.OldestDue, yesterday) || st.Backlog == nil || *st.Backlog != 2 ||
			!st.AtLeast || st.Verdict != inspect.Behind || !strings.HasPrefix(st.Why, "at least 1 lies behind") {
			t.Errorf("%s, %s, %q: %+v", st.Verdict, st.Why, st.Unread, st.BehindCount)
		}
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && c.Query.After.IsZero() { // all that do not begin at a cursor
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		st = w.statusOfAll()
		if st.Behind != nil || len(st.Unread) == 0 || !strings.Contains(strings.Join(st.Unread, "; "), "what lies behind the cursors in ") {
			t.Errorf("%s, %q: %+v", st.Verdict, st.Unread, st.BehindCount)
		}
	})
}

// A status that has no time to count what lies behind the cursors shows what a daemon has counted in the last
// ten minutes, and how long ago.
func TestStatusBehindByADaemon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Next = func(at time.Time) time.Time { return at.Truncate(time.Minute).Add(time.Minute) }
		w.sweep()
		yesterday := time.Now().Add(-24 * time.Hour).Truncate(time.Millisecond)
		for i := range 300 {
			w.put(1, 4, fmt.Sprint("late-", i), yesterday)
		}
		var hanging atomic.Pointer[func(store.Query) bool]
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if hangs := hanging.Load(); c.Method == "Scan" && ctx.Value(asks{}) != nil && (*hangs)(c.Query) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			sweep.NewDaemon(w.config(), true).Run(ctx)
			close(done)
		}()
		time.Sleep(4*time.Minute + 30*time.Second)
		for what, hangs := range map[string]func(store.Query) bool{
			"all":         func(q store.Query) bool { return q.After.IsZero() }, // all that do not begin at a cursor
			"the counts":  func(q store.Query) bool { return q.Limit > 100 },
			"none at all": func(store.Query) bool { return false },
		} {
			hanging.Store(&hangs)
			began := time.Now()
			st, err := inspect.Status(context.WithValue(t.Context(), asks{}, true), w.config(), w.target)
			if err != nil || st.Behind == nil || *st.Behind != 300 || st.BehindAtLeast || !same(st.BehindSince, yesterday) ||
				st.BehindGoneBy == nil || st.Verdict != inspect.Behind {
				t.Errorf("%s: %v: %s, %s, %q: %+v", what, err, st.Verdict, st.Why, st.Unread, st.BehindCount)
			}
			if by := strings.Contains(st.Why, "that was counted "); by != (what != "none at all") ||
				by != began.After(st.BehindCounted.Add(time.Minute)) {
				t.Errorf("%s: %s; counted at %v", what, st.Why, st.BehindCounted)
			}
		}
		cancel()
		<-done
	})
}

// asks marks the calls of a status.
type asks struct{}

// What lies behind the cursors is counted again after ten minutes. Until then a repeated status shows what
// it has counted, and asks each range once.
func TestStatusCountsBehindEveryTenMinutes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "late", time.Now().Add(-24*time.Hour))
		var scans atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				scans.Add(1)
			}
			return nil
		}
		st, counted := inspect.TargetStatus{}, time.Now()
		for minute := range 21 {
			scans.Store(0)
			var err error
			if st, err = inspect.StatusWith(t.Context(), w.config(), w.target, inspect.Look{Last: st.BehindCount}); err != nil {
				t.Fatal(err)
			}
			again := minute%10 == 0
			if again {
				counted = time.Now()
			}
			if n := scans.Load(); again != (n > 10) {
				t.Errorf("minute %d: %d queries of %d ranges", minute, n, len(st.Ranges))
			}
			if *st.Behind != 1 || *st.Backlog != 1 || st.Verdict != inspect.Behind || !same(st.BehindCounted, counted) {
				t.Errorf("minute %d: %s, %s: %+v", minute, st.Verdict, st.Why, st.BehindCount)
			}
			time.Sleep(time.Minute)
		}
	})
}

// While a target is held, nobody knows when what lies behind its cursors is gone.
func TestStatusBehindUnderAPause(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "late", time.Now().Add(-24*time.Hour))
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, control.Order{Actor: "bob"}, 0); err != nil {
			t.Fatal(err)
		}
		if st := w.status(); st.Verdict != inspect.Paused || *st.Behind != 1 || *st.Backlog != 1 || st.GoneAt != nil {
			t.Errorf("%s: gone at %v, %+v", st.Verdict, st.GoneAt, st.BehindCount)
		}
	})
}
