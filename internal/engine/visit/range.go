package visit

import (
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A rangeJob is one range, step by step.
type rangeJob struct {
	rest  resting
	peers site.Peers
	visit *visit // nil while it is at rest
	// readAll says that all of it was read from its start, since somebody asked for that.
	readAll bool
}

// NewRange returns the job of a range, which is at rest.
func NewRange(c *site.Site, r shardquery.Range) step.Range {
	return &rangeJob{rest: resting{c: c, r: r}}
}

// Step does what the range needs next. A visit that is under way keeps to the need
// that it began with.
func (j *rangeJob) Step(t step.Turn, todo step.Todo) step.Outcome {
	if err := j.rest.c.Clock.Check(); err != nil {
		return j.End(step.Outcome{State: step.Failed, Err: err})
	}
	if j.visit == nil {
		out, begun := j.begin(t, todo)
		if !out.Yields {
			j.peers.End()
		}
		if !begun {
			return j.conclude(out)
		}
	} else {
		j.rest.rewind(j.visit, todo.Plan)
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
	todo.Cursor, todo.Need = j.rest.fit(todo.Cursor, todo.Need)
	c, need, cur := j.rest.c, todo.Need, todo.Cursor
	if !need.Read {
		return step.Outcome{State: step.Resting, Reached: c.Horizon()}, false
	}
	j.readAll = j.readAll || !cur.Rewind.Done.Before(c.Rules.ReadSince) // another process may have read it meanwhile
	if out, waits := j.waitsFor(t, cur); waits {
		return out, false
	}
	full, wait := j.peers.Yields(c, todo, !j.rest.empty.IsZero())
	if wait > 0 {
		return j.peers.Yield(c, c.Rules.ID(j.rest.r), wait), false
	}
	v := j.rest.newVisit(todo)
	need = v.task.need
	var more bool
	// A range in which nothing is due waits unclaimed until it is read from its start.
	waits := need.Behind && !need.IsSlow() && !t.Slow
	probes := (need.Fresh || !need.FromStart()) && !need.Inventory || waits // otherwise it is claimed first
	if probes {
		began := c.Cfg.Now()
		found, err := j.probe(t, v, &more)
		probed := c.Cfg.Now().Sub(began)
		if err != nil {
			return j.probeFailed(t, v, err), false
		}
		switch {
		case !found && waits:
			c.SawDue(v.hold.Key(), time.Time{}, 0)
			return step.Outcome{State: step.Ready, Reached: v.decide.Horizon, NextLane: step.NextLane{Slow: true}}, false
		case !found:
			return j.foundNothing(t, v, probed), false
		}
	}
	if err := v.hold.Take(t.Ctx, t.Work, v.task.r, full); errors.Is(err, cursor.ErrFull) {
		return j.peers.Yield(c, c.Rules.ID(j.rest.r), view.ReadAtMost), false
	} else if err != nil {
		return outcomeOf(c, t, j.rest.r, j.visit, err), false
	}
	j.visit, j.rest.read = v, time.Time{} // should its record get lost, it is read from its start again
	if probes {
		defer v.hold.Pacer.Use()()
		if err := v.pages.work(t, v.readings.main(), more); err != nil {
			return outcomeOf(c, t, j.rest.r, j.visit, err), false
		}
	}
	return step.Outcome{}, true
}

// waitsFor returns the outcome of a step on a range on which no work may begin at present.
func (j *rangeJob) waitsFor(t step.Turn, cur cursor.Cursor) (out step.Outcome, waits bool) {
	c := j.rest.c
	if !c.Cfg.Apply {
		return out, false
	}
	if wait := c.Keeper.Wait(cur); wait > 0 {
		return j.peers.LeaveToHolder(c, cur, wait), true
	}
	switch why, missing := c.HeldBy(), c.Keeper.Pulse.Missing(); {
	case why == throttle.ReasonRecord && c.IsUnread():
		// The store does not even return one record: queries would only add to its load.
		return step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(step.RetryEvery), Why: why}, true
	case why != "":
		return j.look(t, cur, why), true
	case missing != nil:
		return step.OutcomeOfBlocked(j.rest.r, c.Cfg.Now().Add(time.Second), missing), true
	}
	return out, false
}

// probeFailed returns the outcome of a probe that failed. A range that cannot be
// read for long has failed for good.
func (j *rangeJob) probeFailed(t step.Turn, v *visit, err error) step.Outcome {
	out := outcomeOf(j.rest.c, t, j.rest.r, v, err)
	if out.State == step.Failed {
		j.rest.failing = nil
	}
	return out
}

// probe reads the first page that has entries, without a claim.
func (j *rangeJob) probe(t step.Turn, v *visit, more *bool) (found bool, err error) {
	c, main := j.rest.c, v.readings.main()
	for {
		most := c.Pacing.PaceOf(j.rest.r, v.hold.Before).Burst(c.Cfg.Now(), c.Target.Page)
		*more, err = v.pages.read(t, main, most)
		if err != nil {
			failure := v.pages.readFailed(t, main, err)
			met := main.failing
			if j.rest.failing = &met; isShrunk(err) && t.Ctx.Err() == nil {
				*more = true // a visit keeps the reader, which asks for less
				return true, nil
			}
			return false, failure
		}
		j.rest.failing = nil
		if len(t.Scratch.Page.Entries) > 0 {
			return true, nil
		}
		if !*more {
			return false, nil
		}
		main.reached = main.reader.Position()
		if t.Over() {
			if c.Cfg.Apply {
				j.rest.empty = v.course.emptyUpTo(j.rest.empty)
				if need := v.task.need; need.Fresh && main.fromStart {
					j.rest.read = v.task.began // the next probe continues there
				}
			}
			return false, &throttle.Pause{}
		}
	}
}

// foundNothing ends a probe that found nothing, and took as long as probed.
func (j *rangeJob) foundNothing(t step.Turn, v *visit, probed time.Duration) step.Outcome {
	if j.rest.c.Cfg.Apply { // a dry run leaves what is due in place
		j.rest.empty = v.decide.Horizon
		if v.task.need.Fresh {
			j.rest.read = v.task.began
		}
	}
	j.readAll = j.readAll || v.task.need.FromStart()
	j.rest.c.SawDue(v.hold.Key(), time.Time{}, 0)
	moved, err := v.course.moveIdle(t, probed)
	if err != nil {
		return outcomeOf(j.rest.c, t, j.rest.r, j.visit, err)
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
	c := j.rest.c
	at, err := c.FirstDue(t.Ctx, j.rest.r, cur.Position)
	if err != nil && store.Transient(err) && t.Ctx.Err() == nil {
		return step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(step.RetryEvery), Why: why}
	}
	if err != nil {
		return outcomeOf(c, t, j.rest.r, j.visit, err)
	}
	c.SawDue(cur.Key(), at, 0)
	if c.Until.IsZero() { // the next tick looks again
		return step.Outcome{State: step.Resting, Held: why}
	}
	return step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(dispose.HeldFor), Why: why, Held: why}
}

// finish ends a visit in which everything was read and no entity waits for another try.
func (j *rangeJob) finish(t step.Turn, v *visit) step.Outcome {
	v.hold.Update(func(c *cursor.Cursor) {
		c.Position = index.Later(c.Position, v.task.r.At(v.course.limit()))
		c.Swept = v.course.swept()
	})
	if v.task.need.Inventory && v.hold.IsClaimed() {
		if err := v.takeInventory(t); err != nil {
			return outcomeOf(j.rest.c, t, j.rest.r, j.visit, err)
		}
	}
	v.hold.Update(func(c *cursor.Cursor) { // only now: a generation retires by what the inventory says and this mark
		switch {
		case v.task.need.Unread, v.task.need.Behind && !v.task.need.SuspectsOnly:
			c.Rewind = cursor.Rewind{Done: v.task.began}
		case v.task.need.Behind:
			c.Rewind = cursor.Rewind{Done: v.hold.Before.Rewind.Done}
		}
	})
	j.readAll = j.readAll || v.task.need.FromStart()
	if !j.rest.c.Cfg.Apply {
		return step.Outcome{State: step.Resting, Reached: v.decide.Horizon}
	}
	if !v.task.need.Inventory {
		j.rest.empty = v.decide.Horizon
	}
	j.rest.c.SawDue(v.hold.Key(), time.Time{}, 0)
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
	v.forgetDeferred()
	return out
}

// Range implements [step.Range].
func (j *rangeJob) Range() shardquery.Range { return j.rest.r }

// IsClaimed implements [step.Job].
func (j *rangeJob) IsClaimed() bool { return j.visit != nil }

// MayEnd implements [step.Range]: an entity that waits for another try would have to be met again.
func (j *rangeJob) MayEnd() bool { return j.visit != nil && len(j.visit.settler.deferred.list) == 0 }

// WasReadAll implements [step.Range].
func (j *rangeJob) WasReadAll() bool { return j.readAll }

// GoOn implements [step.Range].
func (j *rangeJob) GoOn() {
	if j.visit != nil {
		j.visit.course.extendTo(j.rest.c.Horizon())
	}
}

// AtHorizon implements [step.Range].
func (j *rangeJob) AtHorizon() bool { return j.visit != nil && j.visit.readings.main().done }
