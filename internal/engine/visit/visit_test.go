package visit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// claimed returns a visit of range 1.0000 that holds it until the test ends.
func claimed(t *testing.T) *visit {
	t.Helper()
	s := modelstore.New(time.Now)
	c := site.New(sitetest.Setup(s, s.Now))
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
	})
	go c.Keeper.Pulse.Run(ctx, ctx, false)
	p := plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now())
	r := shardquery.Range{Generation: 1}
	known := resting{c: c, r: r}
	v := known.newVisit(step.Todo{Need: p.Range(r), Cursor: p.Cursor(r), Plan: p})
	if err := v.hold.Take(ctx, ctx, r, nil); err != nil {
		t.Fatal(err)
	}
	return v
}

func entry(t *testing.T, key string, expires time.Time) store.Entry {
	t.Helper()
	k, err := expirykey.New(1, 0, expires)
	if err != nil {
		t.Fatal(err)
	}
	return store.Entry{Key: key, Value: store.TextValue(k.String())}
}

// The cursor is never past an entry that was not disposed of.
func TestCursorStaysBeforeWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := claimed(t)
		turn := step.Turn{Ctx: t.Context(), Work: t.Context(), Scratch: &step.Scratch{}}
		past := time.Now().Add(-time.Hour)
		first, second, third := entry(t, "a", past), entry(t, "b", past.Add(time.Second)), entry(t, "c", past.Add(2*time.Second))
		main := v.readings.main()
		v.pages.advance(main, first.Position())
		op := &store.Op{Entry: second}
		if err := v.settler.deferOp(turn, main, op, store.ErrContention); err != nil {
			t.Fatal(err)
		}
		v.pages.advance(main, third.Position())
		if at := v.hold.Cursor().Position; at != first.Position() {
			t.Errorf("the cursor is at %v although an entity before that waits", at)
		}
		v.settler.clear(v.settler.deferred.list[0])
		if at := v.hold.Cursor().Position; at != third.Position() {
			t.Errorf("nothing waits any more, and the cursor is at %v", at)
		}
	})
}

// A saved cursor is never past the horizon less the overlap, and never goes back.
func TestCursorStaysBeforeTheHorizon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := claimed(t)
		limit := v.task.r.At(v.course.limit())
		late := entry(t, "a", v.decide.Horizon.Add(-time.Second))
		v.pages.advance(v.readings.main(), late.Position())
		if at := v.hold.Cursor().Position; at != limit {
			t.Errorf("the cursor is at %v, not at %v", at, limit)
		}
		v.pages.advance(v.readings.main(), entry(t, "b", v.decide.Horizon.Add(-time.Hour)).Position())
		if at := v.hold.Cursor().Position; at != limit {
			t.Errorf("the cursor went back to %v", at)
		}
	})
}

// Readings take turns, and one that has to wait holds up no other one.
func TestReadingsTakeTurns(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	a, b := &reading{}, &reading{}
	r := readings{list: []*reading{a, b}}
	for turn, want := range []*reading{a, b, a, b} {
		if rd, wait := r.next(now, turn); rd != want || wait != 0 {
			t.Errorf("turn %d is another reading's, or waits %v", turn, wait)
		}
	}
	a.failing.until = now.Add(time.Minute)
	if rd, _ := r.next(now, 0); rd != b {
		t.Error("b is held up")
	}
	b.done = true
	if rd, wait := r.next(now, 1); rd != nil || wait != time.Minute || r.allRead() {
		t.Errorf("a has to wait for a minute, not for %v", wait)
	}
	a.done = true
	if !r.allRead() {
		t.Error("both are done")
	}
}

// An entity that two readings have met holds up both, until it is disposed of.
func TestDeferredHoldsUpAllReadings(t *testing.T) {
	a, b := &reading{}, &reading{}
	one := &deferred{rds: []*reading{a}, op: store.Op{Entry: store.Entry{Key: "x"}}}
	d := deferrals{list: []*deferred{one}}
	if d.has(b, "y") || b.stuck {
		t.Error("y does not wait")
	}
	if !d.has(b, "x") || !b.stuck || len(one.rds) != 2 {
		t.Error("x waits, and b has met it")
	}
	if d.has(b, "x"); len(one.rds) != 2 {
		t.Error("b has met it twice")
	}
}

// Before it reads a range, a visit forgets what would be wrong in its record.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := claimed(t)
		q := resting{c: v.task.c, r: v.task.r}
		since := time.Now().UTC()
		done, began := since.Add(-time.Hour), since.Add(-time.Minute)
		place := store.TextValue("00000001.0000.20000101T000000.000Z")
		underWay := func(began time.Time) cursor.Rewind {
			return cursor.Rewind{Done: done, Began: began, Position: store.Position{Value: place}, Window: time.Hour, Refused: true}
		}
		sealed := cursor.Cursor{Swept: done, Stock: cursor.Stock{Emptied: done}}
		with := func(r cursor.Rewind) cursor.Cursor { c := sealed; c.Rewind = r; return c }
		for _, c := range []struct {
			name        string
			need        plan.Need
			cursor, was cursor.Cursor
		}{
			{"no record", plan.Need{Fresh: true, Unread: true}, cursor.Cursor{}, with(cursor.Rewind{Done: done})},
			{"goes on", plan.Need{Behind: true, Since: began}, with(underWay(began)), with(underWay(began))},
			{"too early", plan.Need{Behind: true, Since: since}, with(cursor.Rewind{Done: done}), with(underWay(began))},
			{"too early, and reads a part", plan.Need{Behind: true, SuspectsOnly: true, Since: since},
				with(cursor.Rewind{Done: done, Refused: true}), with(underWay(began))},
			{"reads on from the cursor", plan.Need{Since: since}, with(underWay(began)), with(underWay(began))},
		} {
			if is := q.restart(c.was, c.need); is != c.cursor {
				t.Errorf("%s: %+v", c.name, is)
			}
		}
	})
}

// A visit that carries nothing cannot say that it has carried what was due when draining began.
func TestSweptBeforeADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := claimed(t)
		before := v.course.swept()
		time.Sleep(time.Hour)
		v.decide.Horizon = v.task.c.Horizon()
		if at := v.course.swept(); !at.After(before) {
			t.Errorf("open to writers: swept up to %v, and %v before", at, before)
		}
		v.task.need.Stage.Sealed = time.Now().Add(-2 * time.Hour)
		if at := v.course.swept(); !at.Equal(before) {
			t.Errorf("sealed: swept up to %v, and to %v when the visit began", at, before)
		}
		v.task.need.Stage.DrainFrom = before.Add(v.task.c.Target.Retention)
		if at := v.course.swept(); !at.Before(before) {
			t.Errorf("drains: swept up to %v, and draining began at %v", at, before)
		}
	})
}
