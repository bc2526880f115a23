package visit

import (
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/dispose"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/sweep/view"
	"github.com/reaper-ttl/reaper/throttle"
)

// A rangeJob is one range, step by step.
type rangeJob struct {
	c     *site.Site
	r     shardquery.Range
	visit *visit // nil while it is at rest
	// empty is the instant up to which this process has found nothing more to be
	// due: probes begin there, a little less the overlap, not at the saved cursor.
	empty time.Time
	// read is when this process last began to read from its start a range that has no record,
	// and found nothing, in the store's time.
	read time.Time
	// readAll says that all of it was read from its start, since somebody asked for that.
	readAll bool
	// failing is what the recent probes have met; nil if nothing.
	failing *failing
	// yielded is when this process left the range to others for a moment; zero if it has not.
	yielded time.Time
	// held is another process's lease on the range, as it was when it was met first; nil
	// before.
	held *cursor.Lease
}

// NewRange returns the job of a range, which is at rest.
func NewRange(c *site.Site, r shardquery.Range) step.Range { return &rangeJob{c: c, r: r} }

// Step does what the range needs next. A visit that is under way goes by the need
// that it was begun with.
func (j *rangeJob) Step(t step.Turn, todo step.Todo) step.Outcome {
	if err := j.c.Clock.Check(); err != nil {
		return j.End(step.Outcome{State: step.Failed, Err: err})
	}
	if j.visit == nil {
		out, begun := j.begin(t, todo)
		if !out.Yields {
			j.yielded = time.Time{}
		}
		if !begun {
			return j.conclude(out)
		}
	} else {
		j.rewind(todo.Plan)
	}
	out, allRead := j.visit.run(t)
	if allRead {
		out = j.finish(t, j.visit)
	}
	return j.conclude(out)
}

// conclude ends the visit if the outcome of a step ends it.
func (j *rangeJob) conclude(out step.Outcome) step.Outcome {
	switch out.State {
	case step.Resting, step.Failed, step.Stopped, step.Lost:
		return j.End(out)
	case step.Ready, step.Running, step.Waiting, step.Ended:
	}
	return out
}

// begin finds out whether there is anything to do, claims the range if there is,
// and works on the page that was found.
func (j *rangeJob) begin(t step.Turn, todo step.Todo) (out step.Outcome, begun bool) {
	todo.Cursor, todo.Need = j.fit(todo.Cursor, todo.Need)
	c, need, cur := j.c, todo.Need, todo.Cursor
	if !need.Read {
		return step.Outcome{State: step.Resting, Reached: c.Horizon()}, false
	}
	j.readAll = j.readAll || !cur.Rewind.Done.Before(c.Rules.ReadSince) // another process may have read it meanwhile
	if out, waits := j.waitsFor(t, cur); waits {
		return out, false
	}
	full, wait := j.yields(todo)
	if wait > 0 {
		return j.yield(wait), false
	}
	v := j.newVisit(todo)
	need = v.start.need
	var more bool
	// A range in which nothing is due waits unclaimed until it is read from its start.
	waits := need.Behind && !need.IsSlow() && !t.Slow
	probes := (need.Fresh || !need.FromStart()) && !need.Inventory || waits // else it is claimed before anything is read
	if probes {
		probed := c.Cfg.Now()
		found, err := j.probe(t, v, &more)
		v.start.probed = c.Cfg.Now().Sub(probed)
		if err != nil {
			return j.probeFailed(t, v, err), false
		}
		switch {
		case !found && waits:
			SawDue(c, v.hold.Key(), time.Time{}, 0)
			return step.Outcome{State: step.Ready, Reached: v.decide.Horizon, NextLane: step.NextLane{Slow: true}}, false
		case !found:
			return j.rest(t, v), false
		}
	}
	if err := v.hold.Take(t.Ctx, v.r, full); errors.Is(err, cursor.ErrFull) {
		return j.yield(view.ReadAtMost), false
	} else if err != nil {
		return outcomeOf(c, t, j.r, j.visit, err), false
	}
	j.visit, j.read = v, time.Time{} // should its record get lost, it is read from its start again
	if probes {
		if err := v.work(t, v.readings[0], more); err != nil {
			return outcomeOf(c, t, j.r, j.visit, err), false
		}
	}
	return step.Outcome{}, true
}

// waitsFor returns the outcome of a step on a range on which no work may begin at present.
func (j *rangeJob) waitsFor(t step.Turn, cur cursor.Cursor) (out step.Outcome, waits bool) {
	c := j.c
	if !c.Cfg.Apply {
		return out, false
	}
	if wait := c.Keeper.Wait(cur); wait > 0 {
		return j.leaveToHolder(cur, wait), true
	}
	switch why := c.HeldBy(); {
	case why == throttle.ReasonRecord && c.IsUnread():
		// The store does not even answer for one record: queries would keep it from that.
		return step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(asideEvery), Why: why}, true
	case why != "":
		return j.look(t, cur, why), true
	case c.Keeper.Pulse.IsAwaited():
		return step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(time.Second), Why: throttle.ReasonLease, Contended: true,
			Blocked: fmt.Errorf("%v: the heartbeat of this process is not written yet", j.r)}, true
	}
	return out, false
}

// leaveToHolder returns the outcome of a step on a range that another process holds. One
// whose heartbeat has moved since is alive: one sweep leaves the range to it, unless it may soon
// be given its part. A daemon, and a sweep that reads all ranges from their start, wait for its
// release or its death.
func (j *rangeJob) leaveToHolder(cur cursor.Cursor, wait time.Duration) step.Outcome {
	c := j.c
	if j.held == nil || j.held.Owner != cur.Lease.Owner || j.held.Token != cur.Lease.Token {
		lease := cur.Lease // a pointer into cur would keep all of it
		j.held = &lease
	}
	out := step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(min(wait, c.Target.Lease/6)), Why: throttle.ReasonLease,
		Elsewhere: step.Elsewhere{Theirs: c.Keeper.IsHeld(cur)}}
	if cur.Lease.Epoch == 0 { // a process of an older version renews it in the record
		c.Viewer.WantCursor(cur.ID)
		out.Theirs = cur.Lease.Renewals > j.held.Renewals
	}
	c.Watch.Ask(wait)
	if out.Theirs && !c.Until.IsZero() && c.Rules.ReadSince.IsZero() && !c.Watch.Hopes(c.Target.Lease) {
		out.State = step.Resting
	}
	return out
}

// probeFailed returns the outcome of a probe that failed. What cannot be read for long
// has failed for good.
func (j *rangeJob) probeFailed(t step.Turn, v *visit, err error) step.Outcome {
	out := outcomeOf(j.c, t, j.r, v, err)
	if out.State == step.Failed {
		j.failing = nil
	}
	return out
}

// newVisit returns a visit with its readings, which nobody has claimed yet.
func (j *rangeJob) newVisit(todo step.Todo) *visit {
	c, need, cur := j.c, todo.Need, todo.Cursor
	horizon := j.horizon(cur.Position)
	begin := start{need: need, began: c.Clock.Now().Truncate(time.Microsecond)}
	lateFrom := j.lateFrom(need, cur.Position)
	var carry *dispose.Carrier
	if need.Stage.Drain {
		carry = dispose.NewDrainCarrier(c, todo.Plan, j.r)
	}
	v := newVisit(c, j.r, cur, begin, horizon, carry, lateFrom)
	goesOn := need.Fresh && j.isRead(v.start.began) // what it read of the range it need not read again
	if goesOn {
		v.start.began = j.read
	}
	from := cur.Position
	if at := j.r.At(j.empty.Add(-c.Target.Overlap)); !j.empty.IsZero() && !need.Inventory && (!need.Unread || goesOn) &&
		from.Value.Compare(at.Value) < 0 {
		from = at
	}
	if !c.Cfg.Apply && need.Behind {
		from.Key = "" // else both readings would count what else has the cursor's value
	}
	main := &reading{fromStart: need.Unread && !goesOn, reached: from, save: v.saveMain}
	if j.failing != nil {
		main.failing = *j.failing
	}
	reader := j.reader(cur, from, v.until(), v.decide.Horizon)
	if main.fromStart {
		reader.Timeout = index.FromStartTimeout
		// A range without a record has had few tombstones so far: one query may read it all.
		if !need.Fresh {
			reader.Window = index.Window(cur)
		}
	}
	main.reader = reader
	v.readings = append(v.readings, main)
	if need.Behind {
		v.readings = append(v.readings, j.behind(v, cur, from))
	}
	return v
}

// isRead reports whether this process has read the range from its start lately: what was
// written behind that is found by the next one.
func (j *rangeJob) isRead(now time.Time) bool {
	period := plan.Jitter(j.c.Rules.Rewind, j.c.Rules.ID(j.r).Key())
	return !j.read.IsZero() && !j.empty.IsZero() && now.Sub(j.read) < period
}

// horizon returns the horizon of a visit that begins at a position. One sweep wants
// nothing that falls due after it began; but where others have come further meanwhile,
// what is behind their cursor goes, too: who reads a range from its start reads up to
// the cursor.
func (j *rangeJob) horizon(at store.Position) time.Time {
	h := j.c.Horizon()
	if !j.isBeyond(at, h) {
		return h
	}
	now := j.c.Clock.Now().Add(-j.c.Target.Retention)
	if expires, _ := j.r.Expires(at.Value); expires.Before(now) {
		return expires
	}
	return now
}

// lateClock is more than a horizon can be late by the clock alone.
const lateClock = 20 * time.Second

// fit makes a cursor that lies behind the horizon, and what its range needs, fit for a visit. A read
// from the start never gets beyond the horizon, and what lies between that and the cursor may have
// been written behind it.
func (j *rangeJob) fit(cur cursor.Cursor, need plan.Need) (cursor.Cursor, plan.Need) {
	now, horizon := j.c.Clock.Now(), j.horizon(cur.Position)
	isCarried := need.Stage.Drain || need.Stage.State == generation.Draining // what is carried moves it ahead
	switch {
	case j.isEdited(cur.Position, now, isCarried):
		if j.empty.IsZero() { // once in this process
			j.c.Log.Warn("position discarded: it lies in the future or is malformed, so somebody has edited the record",
				"cursor", cur.Key(), "position", cur.Position.Value.String(), "now", now)
		}
		if cur.Swept.Before(horizon) { // how far it was swept is known apart from the position
			horizon = cur.Swept
		}
		cur.Position = j.justBefore(horizon)
	case !j.isBeyond(cur.Position, horizon):
	case !need.Stage.IsSealed() && !j.isBeyond(cur.Position, horizon.Add(lateClock)):
		need.Behind = false // the clock is late: the next visit may do this
	case need.Behind && !need.SuspectsOnly:
		// A process with a shorter retention has moved it there, or draining has, or somebody by hand.
		// What lies from the horizon on is read once more, or the mark of this read would be false.
		cur.Position = j.justBefore(horizon)
	}
	return cur, need
}

// isEdited reports whether no process can have saved a position.
func (j *rangeJob) isEdited(at store.Position, now time.Time, isCarried bool) bool {
	const tolerance = time.Minute // between two servers' clocks, and more
	if _, err := j.r.Expires(at.Value); err != nil {
		return !at.IsZero()
	}
	return !isCarried && j.isBeyond(at, now.Add(tolerance))
}

// justBefore returns the position from which all is read that may not have been disposed of by an instant.
func (j *rangeJob) justBefore(horizon time.Time) store.Position {
	at := horizon.Add(-j.c.Target.Overlap)
	if at.Before(shardquery.FirstInstant) {
		at = shardquery.FirstInstant
	}
	return j.r.At(at)
}

// isBeyond reports whether a position lies behind all that expires up to a horizon.
func (j *rangeJob) isBeyond(at store.Position, horizon time.Time) bool {
	expires, err := j.r.Expires(at.Value)
	return err == nil && expires.After(horizon)
}

func (j *rangeJob) reader(cur cursor.Cursor, from store.Position, until, horizon time.Time) *shardquery.Reader {
	c := j.c
	return &shardquery.Reader{Store: c.Cfg.Store, Target: c.Target.Target, Range: j.r, From: from, Until: until,
		Floor: c.Index.ReadFloor(j.r, cur, horizon), Now: c.Cfg.Now}
}

// behind returns the reading of what was written behind the cursor: from the
// range's start, or from where the last attempt came to, up to where the main
// reading begins.
func (j *rangeJob) behind(v *visit, cur cursor.Cursor, upTo store.Position) *reading {
	began, from := cur.Rewind.Began, cur.Rewind.Position
	// An attempt from before the sealing shows too little. A dry run also says what it has passed.
	if began.IsZero() || began.Before(v.start.need.Since) || !j.c.Cfg.Apply {
		began, from = v.start.began, store.Position{}
		cur.Rewind.Window = 0
	}
	v.start.began = began
	rd := &reading{fromStart: true, reached: from}
	reader := j.reader(cur, from, v.until(), v.decide.Horizon)
	reader.Timeout = index.FromStartTimeout
	if j.c.Cfg.Apply { // else nobody waits for what lies between, and few queries cost less
		reader.Window = index.Window(cur)
	}
	if until, err := j.r.Expires(upTo.Value); err == nil && until.Before(reader.Until) {
		reader.Until = until
		if upTo.Key == "" {
			reader.Until = until.Add(-j.r.Resolution())
		}
	}
	if floor := j.c.Index.Floor(v.decide.Horizon); v.start.need.SuspectsOnly && floor.Before(reader.Until) {
		reader.Until = floor
	}
	rd.reader = reader
	rd.save = func(c *cursor.Cursor, to store.Position) {
		if rd.done && !v.start.need.Stage.IsSealed() { // the main reading may have no end
			c.Rewind = cursor.Rewind{Done: began}
			return
		}
		c.Rewind.Began, c.Rewind.Position, c.Rewind.Window = began, to, rd.window
	}
	return rd
}

// rewind begins another read from the start within a visit whose backlog lasts for
// longer than the time between two of them.
func (j *rangeJob) rewind(p *plan.Plan) {
	v := j.visit
	if v == nil || !v.hold.IsClaimed() || len(v.asides) > 0 || v.start.need.Stage.IsSealed() ||
		p.Stage(j.r.Generation).IsSealed() { // what is sealed has inventories, and they a visit of their own
		return
	}
	if v.start.need.Unread {
		if j.c.Clock.Now().Sub(v.start.began) < plan.Jitter(j.c.Rules.Rewind, v.hold.Key()) {
			return
		}
		v.start.need.Unread, v.readings[0].fromStart = false, false // from here on it is read as any other range
		v.hold.Update(func(c *cursor.Cursor) { c.Rewind = cursor.Rewind{} })
	}
	behind := v.readings[1:]
	at := v.readings[0].reader.Position()
	if cur := v.hold.Cursor(); (len(behind) == 0 || behind[0].done) && p.IsBehindDue(j.r, cur) &&
		!j.isBeyond(at, v.decide.Horizon) {
		v.start.began = j.c.Clock.Now().Truncate(time.Microsecond)
		v.start.need.Behind = true
		v.writer.Asker.LateFrom = j.lateSince(v)
		v.kept = keptSet{} // the rest may have been put right since
		v.readings = append(v.readings[:1], j.behind(v, cur, at))
	}
}

// lateFrom returns the instant before which what the range holds is late, for the breaker.
func (j *rangeJob) lateFrom(need plan.Need, from store.Position) time.Time {
	if j.c.Budget == nil {
		return time.Time{}
	}
	if !need.Stage.IsSealed() && !j.empty.IsZero() {
		j.c.Budget.NoteSwept(j.r, j.empty.Add(-j.c.Target.Overlap))
	}
	return j.c.Budget.LateFrom(j.r, from)
}

// lateSince returns the instant before which what the range holds is late by now: a visit that has
// lasted for long has disposed of what was due before that.
func (j *rangeJob) lateSince(v *visit) time.Time {
	at, err := j.r.Expires(v.readings[0].reached.Value)
	if at = at.Add(-j.c.Target.Overlap); err != nil || j.c.Budget == nil || !at.After(v.writer.Asker.LateFrom) {
		return v.writer.Asker.LateFrom
	}
	j.c.Budget.NoteSwept(j.r, at)
	return at
}

// probeAgain reads the first page that has entries, without a claim.
func (j *rangeJob) probe(t step.Turn, v *visit, more *bool) (found bool, err error) {
	for {
		*more, err = v.read(t, v.readings[0], j.c.Pacing.PaceOf(j.r, v.hold.Before).Burst(j.c.Cfg.Now(),
			j.c.Target.Page))
		if err != nil {
			failure := v.readFailed(t, v.readings[0], err)
			met := v.readings[0].failing
			if j.failing = &met; isShrunk(err) && t.Ctx.Err() == nil {
				*more = true // a visit keeps the reader, which asks for less
				return true, nil
			}
			return false, failure
		}
		j.failing = nil
		if len(t.Scratch.Page.Entries) > 0 {
			return true, nil
		}
		if !*more {
			return false, nil
		}
		v.readings[0].reached = v.readings[0].reader.Position()
		if t.Over() {
			if j.c.Cfg.Apply {
				j.empty = v.emptyUpTo(j.empty)
				if need := v.start.need; need.Fresh && v.readings[0].fromStart {
					j.read = v.start.began // the next probe goes on there
				}
			}
			return false, &throttle.Pause{}
		}
	}
}

// rest ends a probe that found nothing.
func (j *rangeJob) rest(t step.Turn, v *visit) step.Outcome {
	if j.c.Cfg.Apply { // else it is a dry run, which leaves what is due in place
		j.empty = v.decide.Horizon
		if v.start.need.Fresh {
			j.read = v.start.began
		}
	}
	j.readAll = j.readAll || v.start.need.FromStart()
	SawDue(j.c, v.hold.Key(), time.Time{}, 0)
	moved, err := v.moveIdle(t)
	if err != nil {
		return outcomeOf(j.c, t, j.r, j.visit, err)
	}
	out := step.Outcome{State: step.Resting, Reached: v.decide.Horizon}
	if moved.Revision != "" {
		out.Moved = &moved
	}
	return out
}

// look finds out what is due in a range of a target that is held, so that status
// and metrics stay true.
func (j *rangeJob) look(t step.Turn, cur cursor.Cursor, why throttle.Reason) step.Outcome {
	at, err := FirstDue(j.c, t.Ctx, j.r, cur.Position)
	if err != nil && store.Transient(err) && t.Ctx.Err() == nil {
		return step.Outcome{State: step.Waiting, Wake: j.c.Cfg.Now().Add(asideEvery), Why: why}
	}
	if err != nil {
		return outcomeOf(j.c, t, j.r, j.visit, err)
	}
	SawDue(j.c, cur.Key(), at, 0)
	if j.c.Until.IsZero() { // the next tick looks again
		return step.Outcome{State: step.Resting, Held: why}
	}
	return step.Outcome{State: step.Waiting, Wake: j.c.Cfg.Now().Add(dispose.HeldFor), Why: why, Held: why}
}

// Range implements [step.Range].
func (j *rangeJob) Range() shardquery.Range { return j.r }

// IsClaimed implements [step.Job].
func (j *rangeJob) IsClaimed() bool { return j.visit != nil }

// MayEnd implements [step.Range]: what waits aside would have to be met again.
func (j *rangeJob) MayEnd() bool { return j.visit != nil && len(j.visit.asides) == 0 }

// WasReadAll implements [step.Range].
func (j *rangeJob) WasReadAll() bool { return j.readAll }

// GoOn implements [step.Range].
func (j *rangeJob) GoOn() {
	if j.visit != nil {
		j.visit.extendTo(j.c.Horizon())
	}
}

// AtHorizon implements [step.Range].
func (j *rangeJob) AtHorizon() bool { return j.visit != nil && j.visit.readings[0].done }

// outcomeOf returns the outcome of a step on a range that ended with an error. The
// visit is nil before it is claimed.
func outcomeOf(c *site.Site, t step.Turn, r shardquery.Range, v *visit, err error) step.Outcome {
	now := c.Cfg.Now()
	var later *throttle.Pause
	switch {
	case errors.As(err, &later):
		out := step.OutcomeOfPause(later, now)
		if v != nil {
			out = v.between(out)
		}
		return out
	case errors.Is(err, cursor.ErrTaken):
		return step.Outcome{State: step.Waiting, Wake: now.Add(view.ReadAtMost), Why: throttle.ReasonLease}
	case errors.Is(err, background.ErrStopped), step.IsEnd(t.Ctx, err), step.IsEnd(t.Work, err):
		return step.Outcome{State: step.Stopped}
	case errors.Is(err, cursor.ErrLost), v != nil && v.hold.Err() != nil && store.Transient(err):
		// Another worker has the range now, or will take it: that is no failure.
		c.Log.Failed("hold a range", c.Rules.ID(r).Key(), err)
		c.Story.LostCursor()
		c.Viewer.WantCursor(c.Rules.ID(r))
		return step.Outcome{State: step.Lost}
	case v == nil && cursor.MayPass(err):
		// Nobody holds the range: its record did not take the claim. Another process,
		// perhaps a dead one, has it in a transaction.
		c.Log.Failed("claim a range", c.Rules.ID(r).Key(), err)
		return step.Outcome{State: step.Waiting, Wake: now.Add(asideEvery), Why: throttle.ReasonLease, Contended: true,
			Blocked: fmt.Errorf("%v: the cursor record is blocked: %w", r, err)}
	}
	return step.Outcome{State: step.Failed, Err: fmt.Errorf("%v: %w", r, err)}
}

// finish ends a visit in which everything was read and nothing waits aside.
func (j *rangeJob) finish(t step.Turn, v *visit) step.Outcome {
	v.hold.Update(func(c *cursor.Cursor) {
		c.Position = later(c.Position, v.r.At(v.limit()))
		c.Swept = v.swept()
	})
	if v.start.need.Inventory && v.hold.IsClaimed() {
		if err := v.takeInventory(t); err != nil {
			return outcomeOf(j.c, t, j.r, j.visit, err)
		}
	}
	v.hold.Update(func(c *cursor.Cursor) { // only now: a generation retires by what the inventory says and this mark
		switch {
		case v.start.need.Unread, v.start.need.Behind && !v.start.need.SuspectsOnly:
			c.Rewind = cursor.Rewind{Done: v.start.began}
		case v.start.need.Behind:
			c.Rewind = cursor.Rewind{Done: v.hold.Before.Rewind.Done}
		}
	})
	j.readAll = j.readAll || v.start.need.FromStart()
	if !j.c.Cfg.Apply {
		return step.Outcome{State: step.Resting, Reached: v.decide.Horizon}
	}
	if !v.start.need.Inventory {
		j.empty = v.decide.Horizon
	}
	SawDue(j.c, v.hold.Key(), time.Time{}, 0)
	return step.Outcome{State: step.Resting, Reached: v.decide.Horizon}
}

// End ends the visit, if there is one. The claim is given back off the workers.
func (j *rangeJob) End(out step.Outcome) step.Outcome {
	v := j.visit
	if v == nil {
		return out
	}
	if out.Reached.IsZero() {
		out.Reached = v.reached()
	}
	j.visit = nil
	out.Release = v.release
	v.forgetAsides()
	return out
}
