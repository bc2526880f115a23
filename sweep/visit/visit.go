package visit

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// idleLag is how far the cursor of a range without work may lag before it is moved, if
	// probes of the range are dear: they take longer than dearProbe, or step over more than
	// dearSteps deleted points. When an application extends an entity, that leaves a
	// tombstone in the index, too.
	idleLag   = time.Hour
	dearProbe = 100 * time.Millisecond
	dearSteps = 1000
	// horizonEvery is how old the horizon of a reading may be at its end: from an
	// older one on there may be more that is due.
	horizonEvery = time.Second
	// A paced range on the embedded store takes a page about so often, of no fewer
	// entries than this.
	smallPageEvery = 20 * time.Millisecond
	smallestPage   = 8
)

// A visit is the work on a range, or on the audit of a namespace, from the moment when
// this process finds something to do there until the range is at rest again. The range is
// claimed meanwhile. A visit has many steps; one goroutine at a time works on it.
type visit struct {
	writer
	r        shardquery.Range
	start    start
	horizon  time.Time
	readings []*reading // in the order in which they take turns
	turns    int        // steps so far: the readings take turns
	asides   []*deferred
	size     batchSize
	failing  failing
	kept     keptSet
	disposed bool // something was deleted or carried
	auditing bool // what is found are strays
}

// A start is the state in which a visit began.
type start struct {
	cursor cursor.Cursor
	need   plan.Need
	began  time.Time     // of the read from the start, in the store's time
	oldest time.Time     // when what a dry run found first became due
	probed time.Duration // how long the probe took
}

// until returns the last instant of expiry that a visit wants of its range: the
// horizon, or all there is if what is not due is carried.
func (v *visit) until() time.Time {
	if v.carry != nil {
		return shardquery.LastInstant
	}
	return v.horizon
}

// limit returns the latest instant of a saved cursor, the horizon less the overlap: so
// entities written a little late are not behind it.
func (v *visit) limit() time.Time { return v.horizon.Add(-v.c.Target.Overlap) }

// saveMain moves the cursor over what was disposed of, as far as its limit.
func (v *visit) saveMain(c *cursor.Cursor, to store.Position) {
	if stop := v.r.At(v.limit()); v.carry == nil && to.Value.Compare(stop.Value) >= 0 {
		to = stop
	}
	c.Position = later(c.Position, to)
	if v.start.need.Unread { // another claim resumes it like any read from the start
		c.Rewind = cursor.Rewind{Began: v.start.began, Position: to, Window: v.readings[0].window}
	}
}

// later returns the later of two positions in a range, because a cursor never goes back.
// If both have the same value, that is b: only the store knows the order of keys, and b
// was read after a.
func later(a, b store.Position) store.Position {
	if c := b.Value.Compare(a.Value); c < 0 || c == 0 && b.Key == "" {
		return a
	}
	return b
}

// emptyUpTo returns the instant up to which a probe has found nothing so far.
func (v *visit) emptyUpTo(known time.Time) time.Time {
	at, err := v.r.Expires(v.readings[0].reached.Value)
	if at = at.Add(v.c.Target.Overlap); err == nil && at.After(known) {
		return at
	}
	return known
}

// moveIdle moves the cursor of a range without work if it lags and that makes its probes
// dear, and returns it then; else a cursor without revision.
func (v *visit) moveIdle(t step.Turn) (moved cursor.Cursor, err error) {
	to := v.r.At(v.limit())
	dear := v.start.probed > dearProbe || t.Scratch.Page.SteppedOver > dearSteps
	if !v.c.Cfg.Apply || to.IsZero() || !dear {
		return moved, nil
	}
	at, err := v.r.Expires(v.start.cursor.Position.Value)
	if err == nil && v.limit().Sub(at) <= idleLag {
		return moved, nil
	}
	next, ok, err := v.c.Keeper.Move(t.Ctx, v.start.cursor, func(c *cursor.Cursor) {
		c.Position = later(c.Position, to)
		c.Swept = v.horizon.Truncate(time.Microsecond)
		if v.start.need.Fresh {
			c.Rewind.Done = v.start.began
		}
	})
	switch {
	case ok:
		return next, nil
	case err == nil:
		v.c.Viewer.WantCursor(v.start.cursor.ID) // somebody else has moved it, or holds it
	case store.Transient(err):
		v.c.Log.DebugContext(t.Ctx, "cannot move an idle cursor; the next tick tries again", "range", v.start.cursor.Key(),
			"error", err)
		return moved, nil
	}
	return moved, err
}

// take claims the range. Its bucket is empty, and begins to fill now. A dry run claims
// nothing, and obeys the same pace.
func (v *visit) take(t step.Turn, full func(held int) bool) error {
	c := v.c
	pacer := c.Pacing.Open(c.Pacing.KeptPace(v.start.cursor), c.Pacing.OwnPart(v.r))
	if !c.Cfg.Apply {
		v.pacer = pacer
		c.Pacing.Register(v.start.cursor.Key(), pacer)
		return nil
	}
	claim, err := c.Keeper.ClaimUnless(t.Ctx, v.start.cursor, full)
	if err != nil {
		c.Pacing.Close(pacer)
		if errors.Is(err, cursor.ErrTaken) {
			c.Viewer.WantCursor(v.start.cursor.ID)
		}
		return err
	}
	v.claim, v.pacer = claim, pacer
	c.TookOver(v.start.cursor.Lease)
	c.Cfg.Metrics.LeaseHeld(c.Target.Name, 1)
	c.Pacing.Register(v.start.cursor.Key(), pacer)
	return nil
}

// update changes the cursor in memory, from where the claim saves it.
func (v *visit) update(change func(*cursor.Cursor)) {
	if v.claim != nil {
		v.claim.Update(change)
	}
}

// run continues a visit until its turn is over, or it has to wait. AllRead says that
// nothing is left to read, and no entity waits aside.
func (v *visit) run(t step.Turn) (out step.Outcome, allRead bool) {
	t.Began = v.turns
	defer func() {
		if t.Scratch.Ahead.Drop() {
			for _, rd := range v.readings {
				rd.reader.Seek(rd.reached)
			}
		}
	}()
	for {
		if !t.Slow && v.isSlowAt(t.Began) {
			if !v.mainGoesOn() { // for instance, a tick found nothing new to read
				return v.between(step.Outcome{State: step.Ready}), false
			}
			t.Began = 0 // the normal reading continues; the other one keeps its turn
		}
		out, over, allRead := v.once(t)
		switch {
		case over || allRead:
			return out, allRead
		case t.Ctx.Err() != nil:
			return outcomeOf(v.c, t, v.r, v, background.ErrStopped), false
		case t.Over():
			return v.between(step.Outcome{State: step.Ready}), false
		}
	}
}

// once does one thing: tries what waits aside, or reads a page. Over says that the
// step ends with this outcome.
func (v *visit) once(t step.Turn) (out step.Outcome, over, allRead bool) {
	now := v.c.Cfg.Now()
	if v.claim != nil && v.claim.Err() != nil {
		return outcomeOf(v.c, t, v.r, v, v.claim.Err()), true, false
	}
	if at := v.nextAside(); !at.IsZero() && !now.Before(at) {
		if err := v.retryAsides(t); err != nil {
			return outcomeOf(v.c, t, v.r, v, err), true, false
		}
		return step.Outcome{}, false, false
	}
	rd, wait, why := v.pick(t, now)
	switch {
	case rd != nil && !t.Slow && rd != v.readAheadOf(t.Scratch) && v.isSlowAt(t.Began):
		return v.between(step.Outcome{State: step.Ready}), true, false // the one in the fast lane waits for the budget
	case rd != nil:
	case wait > 0:
		return v.between(step.Outcome{State: step.Waiting, Wake: now.Add(wait), Why: why}), true, false
	case len(v.asides) > 0:
		return step.Outcome{State: step.Waiting, Wake: v.nextAside(), Why: throttle.ReasonPushBack, Contended: true,
				NextLane: step.NextLane{Slow: true}},
			true, false
	default:
		return step.Outcome{}, false, true
	}
	n := v.c.Target.Page
	if v.pacer != nil {
		if n, wait, why = v.pacer.Ready(v.pageSize()); wait > 0 {
			wake := now.Add(wait + v.stagger())
			return v.between(step.Outcome{State: step.Waiting, Wake: wake, Why: why}), true, false
		}
	}
	if v.turns == t.Began { // the other reading's turn is next, in another step
		v.turns++
	}
	err := v.page(t, rd, n)
	rd.lack = v.Shortfall
	if err != nil {
		return outcomeOf(v.c, t, v.r, v, err), true, false
	}
	v.extend(rd)
	return step.Outcome{}, false, false
}

// pick returns the reading whose page is next. One that has to wait for the breaker's budget holds up
// no other one. It returns nil if all are done; or if they have to wait, for how long, and why.
func (v *visit) pick(t step.Turn, now time.Time) (rd *reading, wait time.Duration, why throttle.Reason) {
	if rd = v.readAheadOf(t.Scratch); rd == nil {
		rd, wait = v.nextReading(now, t.Began)
	}
	for ; rd != nil; rd, wait = v.nextReading(now, t.Began) {
		v.Shortfall = rd.lack
		lacks := v.c.Budget.RetryAfter(&v.Asker)
		if lacks == 0 {
			return rd, 0, ""
		}
		rd.lack.Until = now.Add(lacks)
		if t.Scratch.Ahead.Drop() {
			rd.reader.Seek(rd.reached)
		}
	}
	why = throttle.ReasonPushBack
	for _, rd := range v.readings {
		if rd.lack.Until.After(now) {
			why = v.c.Budget.Reason()
		}
	}
	return nil, wait, why
}

// readAheadOf returns the reading of which a page was read ahead; nil if none was.
func (v *visit) readAheadOf(s *step.Scratch) *reading {
	for _, rd := range v.readings {
		if s.Ahead.Done != nil && s.Ahead.Reader == rd.reader {
			return rd
		}
	}
	return nil
}

// nextReading returns the reading whose turn it is. It returns nil if all are done; or if
// they have to wait, and for how long.
func (v *visit) nextReading(now time.Time, turn int) (rd *reading, wait time.Duration) {
	for i := range v.readings {
		next := v.readings[(turn+i)%len(v.readings)]
		if next.done {
			continue
		}
		if d := max(next.failing.until.Sub(now), next.lack.Until.Sub(now)); d > 0 {
			if wait == 0 || d < wait {
				wait = d
			}
			continue
		}
		return next, 0
	}
	return nil, wait
}

// allRead reports whether all readings have ended.
func (v *visit) allRead() bool {
	for _, rd := range v.readings {
		if !rd.done {
			return false
		}
	}
	return true
}

// pageSize returns how many entries a page may have at most. On the embedded store
// a paced range takes many small pages: a large one holds up other writers.
func (v *visit) pageSize() int {
	status := v.pacer.Status()
	if _, embedded := v.c.Cfg.Store.(store.Pressured); !embedded || status.Unlimited {
		return v.c.Target.Page
	}
	return min(v.c.Target.Page, max(smallestPage, int(status.Rate*smallPageEvery.Seconds())))
}

// stagger returns how long a range waits before a small page though its tokens are there:
// ranges that are claimed together must not all take their pages at the same instant. The
// tokens of the meantime are not lost; the next page gets them.
func (v *visit) stagger() time.Duration {
	if v.pageSize() == v.c.Target.Page {
		return 0
	}
	return 5*smallPageEvery - plan.Jitter(5*smallPageEvery, v.start.cursor.Key())
}

// extend lets the main reading continue to a newer horizon if its own is old by now.
func (v *visit) extend(rd *reading) {
	if !rd.done || v.auditing || rd != v.readings[0] || v.carry != nil {
		return
	}
	if now := v.c.Horizon(); now.Sub(v.horizon) >= horizonEvery {
		v.extendTo(now)
	}
}

// extendTo lets the main reading continue to another horizon.
func (v *visit) extendTo(horizon time.Time) {
	r, ok := v.readings[0].reader.(*shardquery.Reader)
	if !ok || !horizon.After(v.horizon) || v.readings[0].counted {
		return
	}
	// What was written a little late may lie behind what was read meanwhile.
	if back := v.r.At(v.limit()); v.carry == nil && v.readings[0].reader.Position().Value.Compare(back.Value) > 0 {
		r.Seek(back)
		v.readings[0].reached = back
	}
	v.horizon = horizon
	if v.readings[0].done { // new entries first; if it is not done, the other readings keep their turns
		v.turns = 0
	}
	v.readings[0].pastDue = false
	if v.carry == nil {
		r.Extend(horizon)
		v.readings[0].done = false
	}
}

// readsAhead reports whether the next page of a reading is read while this one is written:
// if the pace lets both go, and somebody wants it.
func (v *visit) readsAhead(t step.Turn, rd *reading) bool {
	return (v.pacer == nil || v.pacer.Status().Unlimited) && !t.Over() && !v.samples(t.Scratch, rd)
}

// reached returns the instant up to which everything due in the range is disposed
// of; zero if that is not known.
func (v *visit) reached() time.Time {
	if v.auditing || len(v.asides) > 0 {
		return time.Time{}
	}
	if v.readings[0].done || v.readings[0].pastDue {
		return v.horizon
	}
	at, err := v.r.Expires(v.readings[0].reached.Value)
	if err != nil {
		return time.Time{}
	}
	if at.After(v.horizon) {
		return v.horizon
	}
	return at.Add(-v.r.Resolution())
}

// between fills in the state of the visit between two steps.
func (v *visit) between(out step.Outcome) step.Outcome {
	out.Slow, out.Either, out.Reached = v.isSlow(), v.mainGoesOn(), v.reached()
	out.Contended = out.Contended || v.allRead() && len(v.asides) > 0 // a slow try has ended its turn
	return out
}

// mainGoesOn reports whether the normal reading has more to do, even if it is another reading's turn.
func (v *visit) mainGoesOn() bool {
	main := v.readings[0]
	now := v.c.Cfg.Now()
	return !main.done && !main.fromStart && !v.auditing && now.After(main.failing.until) && now.After(main.lack.Until) &&
		(v.carry == nil || v.reached().Before(v.horizon))
}

// isSlow reports whether the next step belongs to the slow lane.
func (v *visit) isSlow() bool { return v.isSlowAt(v.turns) }

func (v *visit) isSlowAt(turn int) bool {
	rd, _ := v.nextReading(v.c.Cfg.Now(), turn)
	if rd == nil { // it waits for a retry, or is done: then the claim can be released at once
		return v.auditing || !v.allRead() || len(v.asides) > 0
	}
	return v.auditing || rd.fromStart || v.carry != nil && !v.reached().Before(v.horizon)
}

// swept returns the horizon that a finished visit puts into the record. If draining began
// during a visit that carries nothing, the record must not look as if it had carried.
func (v *visit) swept() time.Time {
	at := v.horizon
	if from := v.start.need.Stage.DrainFrom; v.carry == nil && !from.IsZero() {
		if before := from.Add(-v.c.Target.Retention - time.Microsecond); before.Before(at) {
			at = before
		}
	}
	return at.Truncate(time.Microsecond)
}

// forgetAsides leaves the entities that wait aside to a later visit, which counts them as
// due again.
func (v *visit) forgetAsides() {
	for _, a := range v.asides {
		if !a.carry {
			v.c.Tally.Counts.Expired.Add(-1)
		}
	}
	v.asides = nil
}

// release gives the claim back and returns the cursor as it was saved. It may take as long
// as a lease, but occupies no worker.
func (v *visit) release(work context.Context) (cur cursor.Cursor, err error) {
	v.carry.close()
	v.c.Pacing.Unregister(v.start.cursor.Key())
	defer v.c.Pacing.Close(v.pacer) // also if it panics
	if v.claim == nil {
		return v.start.cursor, nil
	}
	v.c.Cfg.Metrics.LeaseHeld(v.c.Target.Name, -1)
	v.claim.Update(func(c *cursor.Cursor) { v.c.Pacing.Save(c, v.pacer) })
	err = v.claim.Release(work)
	return v.claim.Cursor(), err
}
