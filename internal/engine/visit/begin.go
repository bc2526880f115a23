package visit

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A resting is what this process knows of a range at rest. Visits begin from it.
type resting struct {
	c *site.Site
	r shardquery.Range
	// empty is the instant up to which this process has found nothing more to be
	// due: probes begin there, a little less the overlap, not at the saved cursor.
	empty time.Time
	// read is when this process last began to read from its start a range that has no record,
	// and found nothing, in the store's time.
	read time.Time
	// failing is what the recent probes have met; nil if nothing.
	failing *failing
}

// newVisit returns a visit with its readings, which nobody has claimed yet.
func (q *resting) newVisit(todo step.Todo) *visit {
	c, need, cur := q.c, todo.Need, q.restart(todo.Cursor, todo.Need)
	horizon := q.horizon(cur.Position)
	is := task{c: c, r: q.r, need: need, began: c.Clock.Now().Truncate(time.Microsecond)}
	var carry *dispose.Carrier
	if need.Stage.Drain {
		carry = dispose.NewDrainCarrier(c, todo.Plan, q.r)
	}
	v := newVisit(is, cur, horizon, q.lateFrom(need, cur.Position), carry)
	resumes := need.Fresh && q.isRead(v.task.began) // it need not read again what it has read of the range
	if resumes {
		v.task.began = q.read
	}
	from := cur.Position
	if at := q.r.At(q.empty.Add(-c.Target.Overlap)); !q.empty.IsZero() && !need.Inventory && (!need.Unread || resumes) &&
		from.Value.Compare(at.Value) < 0 {
		from = at
	}
	if !c.Cfg.Apply && need.Behind {
		from.Key = "" // otherwise both readings would count other entries with the cursor's value
	}
	main := &reading{fromStart: need.Unread && !resumes, reached: from, save: v.course.saveMain}
	if q.failing != nil {
		main.failing = *q.failing
	}
	reader := q.reader(cur, from, v.course.until(), v.decide.Horizon)
	if main.fromStart {
		reader.Timeout = index.FromStartTimeout
		// A range without a record has had few tombstones so far: one query may read it all.
		if !need.Fresh {
			reader.Window = index.Window(cur)
		}
	}
	main.reader = reader
	v.readings.list = append(v.readings.list, main)
	if need.Behind {
		v.readings.list = append(v.readings.list, q.behind(v, cur, from))
	}
	return v
}

// restart forgets a read from the start that shows too little. What a pass says of a range without a
// record must not come to stand in one: a visit finds out itself.
func (q *resting) restart(cur cursor.Cursor, need plan.Need) cursor.Cursor {
	switch {
	case need.Fresh:
		cur.Rewind, cur.Stock, cur.Swept = cursor.Rewind{}, cursor.Stock{}, time.Time{}
	case need.Behind && (cur.Rewind.Began.IsZero() || cur.Rewind.Began.Before(need.Since)):
		cur.Rewind = cursor.Rewind{Done: cur.Rewind.Done, Refused: cur.Rewind.Refused && need.SuspectsOnly}
	}
	return cur
}

// isRead reports whether this process has read the range from its start recently. The next
// such read finds what was written behind this one.
func (q *resting) isRead(now time.Time) bool {
	period := plan.Jitter(q.c.Rules.Rewind, q.c.Rules.ID(q.r).Key())
	return !q.read.IsZero() && !q.empty.IsZero() && now.Sub(q.read) < period
}

// horizon returns the horizon of a visit that begins at a position. A single sweep
// deletes nothing that falls due after it began. But if other processes have moved the cursor
// further meanwhile, it also deletes what is behind that: a read from the start ends at the
// cursor.
func (q *resting) horizon(at store.Position) time.Time {
	h := q.c.Horizon()
	if !q.isBeyond(at, h) {
		return h
	}
	now := q.c.Clock.Now().Add(-q.c.Target.Retention)
	if passed, _ := q.r.Passed(at.Value); passed.Before(now) {
		return passed
	}
	return now
}

// lateClock is more than a horizon can be late by the clock alone.
const lateClock = 20 * time.Second

// fit adjusts a cursor that lies past the horizon, and what its range needs, for a visit. A read
// from the start never gets past the horizon, and entities between that and the cursor may have
// been written behind the cursor.
func (q *resting) fit(cur cursor.Cursor, need plan.Need) (cursor.Cursor, plan.Need) {
	now, horizon := q.c.Clock.Now(), q.horizon(cur.Position)
	isCarried := need.Stage.Drain || need.Stage.State == generation.Draining // what is carried moves it ahead
	switch {
	case q.isEdited(cur.Position, now, isCarried):
		if q.empty.IsZero() { // once in this process
			q.c.Log.Warn("position discarded: it lies in the future or outside the range, so somebody has edited the record",
				"cursor", cur.Key(), "position", cur.Position.Value.String(), "now", now)
		}
		if cur.Swept.Before(horizon) { // how far it was swept is known apart from the position
			horizon = cur.Swept
		}
		cur.Position = q.justBefore(horizon)
	case !q.isBeyond(cur.Position, horizon):
	case !need.Stage.IsSealed() && !q.isBeyond(cur.Position, horizon.Add(lateClock)):
		need.Behind = false // the clock is late: the next visit may do this
	case need.Behind && !need.Stage.Drain:
		// A process with a shorter retention has moved it there, or a drain that began meanwhile has, or
		// somebody by hand. Everything from the horizon on is read once more; otherwise the mark of this
		// read would be false. In a drain the read from the start goes as far as the cursor.
		cur.Position = q.justBefore(horizon)
	}
	return cur, need
}

// isEdited reports whether no process can have saved a position.
func (q *resting) isEdited(at store.Position, now time.Time, isCarried bool) bool {
	const tolerance = time.Minute // between two servers' clocks, and more
	if _, ok := q.r.Passed(at.Value); !ok {
		return !at.IsZero()
	}
	return !isCarried && q.isBeyond(at, now.Add(tolerance))
}

// justBefore returns the position from which to read everything that may be left at an instant.
func (q *resting) justBefore(horizon time.Time) store.Position {
	at := horizon.Add(-q.c.Target.Overlap)
	if at.Before(shardquery.FirstInstant) {
		at = shardquery.FirstInstant
	}
	return q.r.At(at)
}

// isBeyond reports whether a position lies past everything that expires up to a horizon.
func (q *resting) isBeyond(at store.Position, horizon time.Time) bool {
	passed, ok := q.r.Passed(at.Value)
	return ok && passed.After(horizon)
}

func (q *resting) reader(cur cursor.Cursor, from store.Position, until, horizon time.Time) *shardquery.Reader {
	c := q.c
	return &shardquery.Reader{Store: c.Cfg.Store, Target: c.Target.Target, Range: q.r, From: from, Until: until,
		Floor: c.Index.ReadFloor(q.r, cur, horizon), Now: c.Cfg.Now}
}

// behind returns the reading of what was written behind the cursor: from the
// range's start, or from where the last attempt ended, up to where the main
// reading begins.
func (q *resting) behind(v *visit, cur cursor.Cursor, upTo store.Position) *reading {
	began, from := cur.Rewind.Began, cur.Rewind.Position
	if began.IsZero() || !q.c.Cfg.Apply { // a dry run also counts what the last attempt has passed
		began, from = v.task.began, store.Position{}
	}
	if _, ok := q.r.Passed(from.Value); !ok { // somebody has edited the record
		from = store.Position{}
	}
	v.task.began = began
	rd := &reading{fromStart: true, reached: from}
	reader := q.reader(cur, from, v.course.until(), v.decide.Horizon)
	reader.Timeout = index.FromStartTimeout
	if q.c.Cfg.Apply { // in a dry run nobody waits for what lies between, and fewer queries cost less
		reader.Window = index.Window(cur)
	}
	if until, ok := q.r.Passed(upTo.Value); ok && until.Before(reader.Until) {
		reader.Until = until
		if upTo == q.r.At(until) {
			reader.Until = until.Add(-q.r.Resolution())
		}
	}
	if floor := q.c.Index.Floor(v.decide.Horizon); v.task.need.SuspectsOnly && floor.Before(reader.Until) {
		reader.Until = floor
	}
	rd.reader = reader
	rd.save = func(c *cursor.Cursor, to store.Position) {
		if rd.done && !v.task.need.Stage.IsSealed() { // the main reading may have no end
			c.Rewind = cursor.Rewind{Done: began}
			return
		}
		c.Rewind.Began, c.Rewind.Position, c.Rewind.Window = began, to, rd.window
	}
	return rd
}

// lateFrom returns the instant before which entities of the range are late, for the breaker.
func (q *resting) lateFrom(need plan.Need, from store.Position) time.Time {
	if q.c.Budget == nil {
		return time.Time{}
	}
	if !need.Stage.IsSealed() && !q.empty.IsZero() {
		q.c.Budget.NoteSwept(q.r, q.empty.Add(-q.c.Target.Overlap))
	}
	return q.c.Budget.LateFrom(q.r, from)
}

// lateSince returns the instant before which entities of the range are late by now: a visit that has
// lasted for long has disposed of those that were due before.
func (q *resting) lateSince(v *visit) time.Time {
	at, ok := q.r.Passed(v.readings.main().reached.Value)
	if at = at.Add(-q.c.Target.Overlap); !ok || q.c.Budget == nil || !at.After(v.writer.Asker.LateFrom) {
		return v.writer.Asker.LateFrom
	}
	q.c.Budget.NoteSwept(q.r, at)
	return at
}

// rewind begins another read from the start within a visit whose backlog lasts for
// longer than the time between two of them.
func (q *resting) rewind(v *visit, p *plan.Plan) {
	if !v.hold.IsClaimed() || len(v.settler.deferred.list) > 0 || v.task.need.Stage.IsSealed() ||
		p.Stage(q.r.Generation).IsSealed() { // a sealed range has an inventory, which needs a visit of its own
		return
	}
	if v.task.need.Unread {
		if q.c.Clock.Now().Sub(v.task.began) < plan.Jitter(q.c.Rules.Rewind, v.hold.Key()) {
			return
		}
		v.task.need.Unread, v.readings.main().fromStart = false, false // from here on it is read like any other range
		v.hold.Update(func(c *cursor.Cursor) { c.Rewind = cursor.Rewind{} })
	}
	behind := v.readings.list[1:]
	at := v.readings.main().reader.Position()
	if cur := v.hold.Cursor(); (len(behind) == 0 || behind[0].done) && p.IsBehindDue(q.r, cur) &&
		!q.isBeyond(at, v.decide.Horizon) {
		v.task.began = q.c.Clock.Now().Truncate(time.Microsecond)
		v.task.need.Behind = true
		v.writer.Asker.LateFrom = q.lateSince(v)
		v.kept, v.sieve.suspectsRead = dispose.Kept{}, 0 // their entities may have been repaired since
		v.readings.list = append(v.readings.list[:1], q.behind(v, q.restart(cur, v.task.need), at))
	}
}
