package visit

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// An auditJob reads what should be empty in one namespace: retired generations and parts of
// sealed ones. It resumes at the position that the last claim saved. A round from the top
// begins at the start. One worker at a time does this.
type auditJob struct {
	c       *site.Site
	r       shardquery.Range // all of the namespace
	visit   *visit           // nil until it is claimed; its readings follow each other
	spans   []*reading       // that are still to be read
	holder  string           // the revision by which another worker was seen to hold it
	fromTop bool             // a full round, for reaper audit
}

// NewAudit returns the audit of one namespace, or with fromTop a full round of it.
func NewAudit(c *site.Site, namespace string, fromTop bool) step.Job {
	return &auditJob{c: c, r: shardquery.Range{Namespace: namespace}, fromTop: fromTop}
}

// IsClaimed implements [step.Job].
func (j *auditJob) IsClaimed() bool { return j.visit != nil }

// Step does what the audit needs next.
func (j *auditJob) Step(t step.Turn, todo step.Todo) step.Outcome {
	if err := j.c.Clock.Check(); err != nil {
		return j.conclude(step.Outcome{State: step.Failed, Err: err})
	}
	if j.visit == nil {
		if out, begun := j.begin(t, todo); !begun {
			return j.conclude(out)
		}
	}
	return j.conclude(j.auditSpans(t))
}

// begin claims the audit of the namespace.
func (j *auditJob) begin(t step.Turn, todo step.Todo) (out step.Outcome, begun bool) {
	c, cur := j.c, todo.Cursor
	if len(todo.Spans) == 0 {
		return step.Outcome{State: step.Ended}, false
	}
	if c.Cfg.Apply {
		if wait := c.Keeper.Wait(cur); wait > 0 { // a worker killed during an audit never releases its lease
			c.Viewer.WantCursor(cur.ID)
			c.Watch.Ask(wait)
			moves := c.Keeper.IsHeld(cur) || j.holder != "" && j.holder != cur.Revision
			if j.fromTop && moves {
				return step.Outcome{State: step.Failed, Err: cursor.ErrTaken}, false // another worker runs the audit
			}
			j.holder = cur.Revision
			wake := c.Cfg.Now().Add(min(wait, c.Target.Lease/6))
			return step.Outcome{State: step.Waiting, Wake: wake, Why: throttle.ReasonLease}, false
		}
		if why := c.HeldBy(); why != "" {
			return step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(dispose.HeldFor), Why: why}, false
		}
	}
	v := newVisit(task{c: c, r: j.r, began: cur.Rewind.Began, auditing: true}, cur, c.Horizon(), shardquery.LastInstant,
		dispose.NewStrayCarrier(c, todo.Spans))
	if err := v.hold.Take(t.Ctx, t.Work, v.task.r, nil); err != nil {
		switch {
		case errors.Is(err, cursor.ErrTaken) && j.fromTop:
			return step.Outcome{State: step.Failed, Err: err}, false
		case errors.Is(err, cursor.ErrTaken):
			return step.Outcome{State: step.Ended}, false // another worker runs the audit
		}
		return outcomeOf(c, t, j.r, nil, err), false
	}
	at := cur.Position
	if j.fromTop || v.task.began.IsZero() {
		at, v.task.began = store.Position{}, c.Clock.Now().Truncate(time.Microsecond)
	}
	v.hold.Update(func(c *cursor.Cursor) { c.Position, c.Rewind.Began = at, v.task.began })
	for _, s := range todo.Spans {
		if at.Value.Text < s.To {
			j.spans = append(j.spans, j.reading(s, at))
		}
	}
	j.visit = v
	return step.Outcome{}, true
}

// reading returns the read of one span, from a position on.
func (j *auditJob) reading(s plan.KeySpan, at store.Position) *reading {
	c := j.c
	reader := &shardquery.SpanReader{Store: c.Cfg.Store, Target: c.Target.Target, Namespace: j.r.Namespace,
		From: s.From, To: s.To,
		Floor: c.Index.Floor(c.Horizon()), Timeout: index.FromStartTimeout, Now: c.Cfg.Now}
	rd := &reading{reader: reader, fromStart: true, save: func(c *cursor.Cursor, to store.Position) { c.Position = to }}
	if at.Value.Text > s.From {
		reader.After, rd.reached = at, at
	}
	return rd
}

// auditSpans continues a claimed audit, span by span. An entity that cannot be settled in one
// span does not hold up the others; the saved position stays before it.
func (j *auditJob) auditSpans(t step.Turn) step.Outcome {
	v := j.visit
	for {
		if v.readings.allRead() && len(j.spans) > 0 {
			v.readings.list = slices.DeleteFunc(v.readings.list, func(rd *reading) bool { return !rd.stuck })
			v.readings.list, j.spans = append(v.readings.list, j.spans[0]), j.spans[1:]
			v.settler.deferred.holdUp(v.readings.list[len(v.readings.list)-1])
		}
		v.decide.Horizon = j.c.Horizon()
		out, allRead := v.run(t)
		switch {
		case v.readings.allRead() && len(j.spans) > 0 && (allRead || out.Contended):
		case allRead:
			v.hold.Update(func(c *cursor.Cursor) { c.Position, c.Rewind = store.Position{}, cursor.Rewind{Done: v.task.began} })
			return step.Outcome{State: step.Ended}
		default:
			return out
		}
	}
}

// conclude gives the claim back if the outcome of a step ends the audit.
func (j *auditJob) conclude(out step.Outcome) step.Outcome {
	out.Slow = true
	switch out.State {
	case step.Resting, step.Lost:
		out.State = step.Ended
	case step.Failed:
		out.Err = fmt.Errorf("audit: %w", out.Err)
	case step.Stopped, step.Ended:
	case step.Ready, step.Running, step.Waiting:
		return out
	}
	return j.End(out)
}

// End gives up what the audit holds between two steps.
func (j *auditJob) End(out step.Outcome) step.Outcome {
	if j.visit != nil {
		out.Release = j.visit.release
		j.visit.forgetDeferred()
	}
	j.visit, j.spans = nil, nil
	return out
}
