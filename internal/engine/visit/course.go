package visit

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// idleLag is how far the cursor of a range without work may lag before it is moved, if
	// probes of the range are costly: they take longer than slowProbe, or step over more than
	// manySteps deleted points. When an application extends an entity, that leaves a
	// tombstone in the index, too.
	idleLag   = time.Hour
	slowProbe = 100 * time.Millisecond
	manySteps = 1000
	// horizonEvery is how old the horizon of a reading may be at its end: from an
	// older one on there may be more that is due.
	horizonEvery = time.Second
)

// A task is what a visit is to do.
type task struct {
	c        *site.Site
	r        shardquery.Range
	need     plan.Need
	began    time.Time // of the read from the start, in the store's time
	auditing bool      // what is found are strays
}

// A course says where the readings of a visit end, and how far its cursor may move.
type course struct {
	c        *site.Site
	r        shardquery.Range
	task     *task
	hold     *dispose.Hold
	decide   *dispose.Decider
	readings *readings
	began    time.Time // the horizon with which the visit began
}

// until returns the latest expiry that a visit reads: the horizon, or the last
// that there is if survivors are carried.
func (o *course) until() time.Time {
	if o.decide.Carry != nil {
		return shardquery.LastInstant
	}
	return o.decide.Horizon
}

// limit returns the latest instant of a saved cursor, the horizon less the overlap: so
// entities written a little late are not behind it.
func (o *course) limit() time.Time { return o.decide.Horizon.Add(-o.c.Target.Overlap) }

// saveMain moves the cursor over what was disposed of, as far as its limit.
func (o *course) saveMain(c *cursor.Cursor, to store.Position) {
	if stop := o.r.At(o.limit()); o.decide.Carry == nil && to.Value.Compare(stop.Value) >= 0 {
		to = stop
	}
	c.Position = index.Later(c.Position, to)
	if o.task.need.Unread { // another claim resumes it like any read from the start
		c.Rewind = cursor.Rewind{Began: o.task.began, Position: to, Window: o.readings.main().window,
			Refused: c.Rewind.Refused}
	}
}

// emptyUpTo returns the instant up to which a probe has found nothing so far.
func (o *course) emptyUpTo(known time.Time) time.Time {
	at, err := o.r.Expires(o.readings.main().reached.Value)
	if at = at.Add(o.c.Target.Overlap); err == nil && at.After(known) {
		return at
	}
	return known
}

// moveIdle moves the cursor of a range without work if it lags and that makes its probes
// costly, and returns it then; otherwise a cursor without revision. The probe took as long as probed.
func (o *course) moveIdle(t step.Turn, probed time.Duration) (moved cursor.Cursor, err error) {
	to := o.r.At(o.limit())
	costly := probed > slowProbe || t.Scratch.Page.SteppedOver > manySteps
	if !o.c.Cfg.Apply || to.IsZero() || !costly || o.task.need.Stage.IsSealed() {
		return moved, nil
	}
	at, err := o.r.Expires(o.hold.Before.Position.Value)
	if err == nil && o.limit().Sub(at) <= idleLag {
		return moved, nil
	}
	next, ok, err := o.c.Keeper.Move(t.Ctx, o.hold.Before, func(c *cursor.Cursor) {
		c.Position = index.Later(c.Position, to)
		c.Swept = o.decide.Horizon.Truncate(time.Microsecond)
		if o.task.need.Fresh {
			c.Rewind.Done = o.task.began
		}
	})
	switch {
	case ok:
		return next, nil
	case err == nil:
		o.c.Viewer.WantCursor(o.hold.Before.ID) // somebody else has moved it, or holds it
	case store.Transient(err):
		o.c.Log.DebugContext(t.Ctx, "cannot move an idle cursor; the next tick tries again", "range", o.hold.Key(),
			"error", err)
		return moved, nil
	}
	return moved, err
}

// extend lets the main reading continue to a newer horizon if its own is old by now.
func (o *course) extend(rd *reading) {
	if !rd.done || o.task.auditing || rd != o.readings.main() || o.decide.Carry != nil {
		return
	}
	if now := o.c.Horizon(); now.Sub(o.decide.Horizon) >= horizonEvery {
		o.extendTo(now)
	}
}

// extendTo lets the main reading continue to another horizon.
func (o *course) extendTo(horizon time.Time) {
	main := o.readings.main()
	r, ok := main.reader.(*shardquery.Reader)
	if !ok || !horizon.After(o.decide.Horizon) || main.counted {
		return
	}
	// What was written a little late may lie behind what was read meanwhile.
	if back := o.r.At(o.limit()); o.decide.Carry == nil && main.reader.Position().Value.Compare(back.Value) > 0 {
		r.Seek(back)
		main.reached = back
	}
	o.decide.Horizon = horizon
	if main.done { // new entries first; if it is not done, the other readings keep their turns
		o.readings.turns = 0
	}
	main.pastDue = false
	if o.decide.Carry == nil {
		r.Extend(horizon)
		main.done = false
	}
}

// reached returns the instant up to which everything due in the range is disposed of or waits for
// another try; zero if that is not known.
func (o *course) reached() time.Time {
	main := o.readings.main()
	if main.done || main.pastDue {
		return o.decide.Horizon
	}
	at, ok := o.r.Passed(main.reached.Value)
	if !ok {
		return time.Time{}
	}
	if at.After(o.decide.Horizon) {
		return o.decide.Horizon
	}
	return at.Add(-o.r.Resolution())
}

// swept returns the horizon that a finished visit puts into the record. If draining began
// during a visit that carries nothing, the record must not look as if it had carried.
func (o *course) swept() time.Time {
	at := o.decide.Horizon
	if o.decide.Carry == nil && o.task.need.Stage.IsSealed() {
		at = o.began // draining may have begun since without this process knowing
		from := o.task.need.Stage.DrainFrom
		if before := from.Add(-o.c.Target.Retention - time.Microsecond); !from.IsZero() && before.Before(at) {
			at = before
		}
	}
	return at.Truncate(time.Microsecond)
}
