package visit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// A paced range on the embedded store takes a page about so often, of no fewer
	// entries than this.
	smallPageEvery = 20 * time.Millisecond
	smallestPage   = 8
)

// A visit is the work on a range, or on the audit of a namespace, from the moment when
// this process finds something to do there until the range is at rest again. The range is
// claimed meanwhile. A visit has many steps; one goroutine at a time works on it.
type visit struct {
	task     task
	hold     dispose.Hold
	decide   dispose.Decider
	writer   dispose.Writer
	kept     dispose.Kept
	readings readings
	course   course
	account  account
	sieve    sieve
	settler  settler
	pages    pager
}

// newVisit returns a visit without readings, which has claimed nothing yet. What was due before
// lateFrom is late, for the breaker.
func newVisit(is task, before cursor.Cursor, horizon, lateFrom time.Time, carry *dispose.Carrier) *visit {
	c := is.c
	v := &visit{task: is, hold: dispose.NewHold(c, before), decide: dispose.NewDecider(c, is.r.Generation, horizon, carry)}
	v.writer = dispose.NewWriter(c, &v.hold, carry, lateFrom)
	v.course = course{c, is.r, &v.task, &v.hold, &v.decide, &v.readings, horizon}
	v.account = account{task: &v.task, hold: &v.hold, decide: &v.decide, kept: &v.kept,
		dry: dryRun{task: &v.task, hold: &v.hold, decide: &v.decide, readings: &v.readings}}
	v.sieve = sieve{task: &v.task, hold: &v.hold, decide: &v.decide, kept: &v.kept, account: &v.account,
		deferred: &v.settler.deferred}
	v.settler = settler{task: &v.task, hold: &v.hold, decide: &v.decide, writer: &v.writer, kept: &v.kept,
		account: &v.account, readings: &v.readings}
	v.pages = pager{task: &v.task, hold: &v.hold, decide: &v.decide, writer: &v.writer, kept: &v.kept,
		account: &v.account, sieve: &v.sieve, settler: &v.settler, readings: &v.readings}
	return v
}

// run continues a visit until its turn is over or it has to wait. AllRead says that nothing is left to read or try.
func (v *visit) run(t step.Turn) (out step.Outcome, allRead bool) {
	t.Began = v.readings.turns
	defer v.hold.Pacer.Use()()
	defer func() {
		if t.Scratch.Ahead.Drop() {
			for _, rd := range v.readings.list {
				rd.back()
			}
		}
	}()
	for {
		if !t.Slow && v.isSlowAt(t.Began) {
			if !v.mainHasMore() { // for instance, a tick found nothing new to read
				return v.between(step.Outcome{State: step.Ready}), false
			}
			t.Began = 0 // the normal reading continues; the other one keeps its turn
		}
		out, over, allRead := v.once(t)
		switch {
		case over || allRead:
			return out, allRead
		case t.Ctx.Err() != nil:
			return outcomeOf(v.task.c, t, v.task.r, v, background.ErrStopped), false
		case t.Over() && v.readings.aheadOf(t.Scratch) == nil: // a page that is read ahead is paid for
			return v.between(step.Outcome{State: step.Ready}), false
		}
	}
}

// once does one thing: tries again the entities that are due for it, or reads a page; after the turn, the
// one that was read ahead. Over says that the step ends with this outcome.
func (v *visit) once(t step.Turn) (out step.Outcome, over, allRead bool) {
	now := v.task.c.Cfg.Now()
	if v.hold.Err() != nil {
		return outcomeOf(v.task.c, t, v.task.r, v, v.hold.Err()), true, false
	}
	if at := v.settler.deferred.next(); !at.IsZero() && !now.Before(at) &&
		(!t.Over() || v.readings.aheadOf(t.Scratch) == nil) {
		if err := v.settler.retryDue(t); err != nil {
			return outcomeOf(v.task.c, t, v.task.r, v, err), true, false
		}
		return step.Outcome{}, false, false
	}
	rd, wait, why := v.pick(t, now)
	switch {
	case rd != nil && !t.Slow && rd != v.readings.aheadOf(t.Scratch) && v.isSlowAt(t.Began):
		return v.between(step.Outcome{State: step.Ready}), true, false // the one in the fast lane waits for the budget
	case rd != nil:
	case wait > 0:
		return v.between(step.Outcome{State: step.Waiting, Wake: now.Add(wait), Why: why}), true, false
	case len(v.settler.deferred.list) > 0:
		return step.Outcome{State: step.Waiting, Wake: v.settler.deferred.next(), Why: throttle.ReasonPushBack,
			Contended: v.settler.deferred.areContended(), NextLane: step.NextLane{Slow: true}}, true, false
	default:
		return step.Outcome{}, false, true
	}
	n := v.task.c.Target.Page
	if v.hold.Pacer != nil {
		if n, wait, why = v.hold.Pacer.Ready(v.pageSize()); wait > 0 {
			wake := now.Add(wait + v.stagger())
			return v.between(step.Outcome{State: step.Waiting, Wake: wake, Why: why}), true, false
		}
	}
	if v.readings.turns == t.Began { // the other reading's turn is next, in another step
		v.readings.turns++
	}
	err := v.pages.page(t, rd, n)
	rd.shortfall = v.writer.Asker.Shortfall
	if err != nil {
		return outcomeOf(v.task.c, t, v.task.r, v, err), true, false
	}
	v.course.extend(rd)
	return step.Outcome{}, false, false
}

// pick returns the reading whose page is next. One that has to wait for the breaker's budget holds up
// no other one. It returns nil if all are done; or if they have to wait, for how long, and why.
func (v *visit) pick(t step.Turn, now time.Time) (rd *reading, wait time.Duration, why throttle.Reason) {
	if rd = v.readings.aheadOf(t.Scratch); rd == nil {
		rd, wait = v.readings.next(now, t.Began)
	}
	for ; rd != nil; rd, wait = v.readings.next(now, t.Began) {
		v.writer.Asker.Shortfall = rd.shortfall
		after := v.task.c.Budget.RetryAfter(&v.writer.Asker)
		if after == 0 {
			return rd, 0, ""
		}
		rd.shortfall.Until = now.Add(after)
		if t.Scratch.Ahead.Drop() {
			rd.back()
		}
	}
	why = throttle.ReasonPushBack
	for _, rd := range v.readings.list {
		if rd.shortfall.Until.After(now) {
			why = v.task.c.Budget.Reason()
		}
	}
	return nil, wait, why
}

// pageSize returns how many entries a page may have at most. On the embedded store
// a paced range takes many small pages: a large one holds up other writers.
func (v *visit) pageSize() int {
	status := v.hold.Pacer.Status()
	if _, embedded := v.task.c.Cfg.Store.(store.Pressured); !embedded || status.Unlimited {
		return v.task.c.Target.Page
	}
	return min(v.task.c.Target.Page, max(smallestPage, int(status.Rate*smallPageEvery.Seconds())))
}

// stagger returns how long a range waits before a small page though its tokens are there:
// ranges that are claimed together must not all take their pages at the same instant. The
// tokens of the meantime are not lost; the next page gets them.
func (v *visit) stagger() time.Duration {
	if v.pageSize() == v.task.c.Target.Page {
		return 0
	}
	return 5*smallPageEvery - plan.Jitter(5*smallPageEvery, v.hold.Key())
}

// reached returns the instant up to which everything due in the range is disposed
// of; zero if that is not known.
func (v *visit) reached() time.Time {
	if v.task.auditing || len(v.settler.deferred.list) > 0 {
		return time.Time{}
	}
	return v.course.reached()
}

// between fills in the state of the visit between two steps.
func (v *visit) between(out step.Outcome) step.Outcome {
	out.Slow, out.Either, out.Reached = v.isSlow(), v.mainHasMore(), v.reached()
	if v.readings.allRead() && len(v.settler.deferred.list) > 0 { // a slow try has ended its turn
		out.Contended = v.settler.deferred.areContended()
	}
	return out
}

// mainHasMore reports whether the normal reading has more to do, even if it is another reading's turn.
func (v *visit) mainHasMore() bool {
	if v.task.auditing { // it may have nothing to read
		return false
	}
	main := v.readings.main()
	now := v.task.c.Cfg.Now()
	return !main.done && !main.fromStart &&
		now.After(main.failing.until) && now.After(main.shortfall.Until) &&
		(v.decide.Carry == nil || v.reached().Before(v.decide.Horizon))
}

// isSlow reports whether the next step belongs to the slow lane.
func (v *visit) isSlow() bool { return v.isSlowAt(v.readings.turns) }

func (v *visit) isSlowAt(turn int) bool {
	rd, _ := v.readings.next(v.task.c.Cfg.Now(), turn)
	if rd == nil { // it waits for a retry, or is done: then the claim can be released at once
		return v.task.auditing || !v.readings.allRead() || len(v.settler.deferred.list) > 0
	}
	return v.task.auditing || rd.fromStart || v.decide.Carry != nil && !v.reached().Before(v.decide.Horizon)
}

// forgetDeferred leaves the entities that wait for another try to a later visit, which counts them as
// due again.
func (v *visit) forgetDeferred() {
	for _, a := range v.settler.deferred.list {
		if !a.op.IsCarry() {
			v.task.c.Tally.Counts.Expired.Add(-1)
		}
	}
	v.settler.deferred.list = nil
}

// release gives the claim back, and returns the cursor as it was saved.
func (v *visit) release(work context.Context) (cursor.Cursor, error) {
	v.decide.Carry.Close()
	return v.hold.Release(work)
}

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
		return step.OutcomeOfBlocked(r, now.Add(step.RetryEvery), err)
	}
	return step.Outcome{State: step.Failed, Err: fmt.Errorf("%v: %w", r, err)}
}
