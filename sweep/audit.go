package sweep

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// An auditJob reads what should be empty in one namespace: retired generations and parts of
// sealed ones. It resumes at the position that the last claim saved. A round from the top
// begins at the start. One worker at a time does this.
type auditJob struct {
	c       *collector
	r       shardquery.Range // all of the namespace
	visit   *visit           // nil until it is claimed; its readings follow each other
	spans   []*reading       // that are still to be read
	holder  string           // the revision by which another worker was seen to hold it
	fromTop bool             // a full round, for reaper audit
}

func newAuditJob(c *collector, namespace string) *auditJob {
	return &auditJob{c: c, r: shardquery.Range{Namespace: namespace}}
}

// step does what the audit needs next.
func (j *auditJob) step(t turn, todo todo) outcome {
	if err := j.c.clock.check(); err != nil {
		return j.conclude(outcome{state: failed, err: err})
	}
	if j.visit == nil {
		if out, begun := j.begin(t, todo); !begun {
			return j.conclude(out)
		}
	}
	return j.conclude(j.auditSpans(t))
}

// begin claims the audit of the namespace.
func (j *auditJob) begin(t turn, todo todo) (out outcome, begun bool) {
	c, cur := j.c, todo.cursor
	if len(todo.spans) == 0 {
		return outcome{state: ended}, false
	}
	if c.cfg.Apply {
		if wait := c.keeper.Wait(cur); wait > 0 { // a worker killed during an audit never releases its lease
			c.viewer.wantCursor(cur.ID)
			c.viewer.watch.ask(wait)
			moves := c.keeper.IsHeld(cur) || j.holder != "" && j.holder != cur.Revision
			if j.fromTop && moves {
				return outcome{state: failed, err: cursor.ErrTaken}, false // another worker runs the audit
			}
			j.holder = cur.Revision
			return outcome{state: waiting, wake: c.cfg.Now().Add(min(wait, c.target.Lease/6)), why: throttle.ReasonLease}, false
		}
		if why := c.heldBy(); why != "" {
			return outcome{state: waiting, wake: c.cfg.Now().Add(heldFor), why: why}, false
		}
	}
	v := &visit{writer: writer{c: c, lateFrom: shardquery.LastInstant}, r: j.r, horizon: c.horizon(), auditing: true,
		start: start{cursor: cur, began: cur.Rewind.Began}}
	v.carry = newStrayCarrier(c, j.r.Namespace, todo.spans)
	if err := v.take(t, nil); err != nil {
		switch {
		case errors.Is(err, cursor.ErrTaken) && j.fromTop:
			return outcome{state: failed, err: err}, false
		case errors.Is(err, cursor.ErrTaken):
			return outcome{state: ended}, false // another worker runs the audit
		}
		return c.outcomeOf(t, j.r, nil, err), false
	}
	at := cur.Position
	if j.fromTop || v.start.began.IsZero() {
		at, v.start.began = store.Position{}, c.clock.Now().Truncate(time.Microsecond)
	}
	v.update(func(c *cursor.Cursor) { c.Position, c.Rewind.Began = at, v.start.began })
	for _, s := range todo.spans {
		if at.Value.Text < s.To {
			j.spans = append(j.spans, j.reading(s, at))
		}
	}
	j.visit = v
	return outcome{}, true
}

// reading returns the read of one span, from a position on.
func (j *auditJob) reading(s plan.KeySpan, at store.Position) *reading {
	c := j.c
	reader := &shardquery.SpanReader{Store: c.cfg.Store, Target: c.target.Target, Namespace: j.r.Namespace,
		From: s.From, To: s.To,
		Floor: c.floor(c.horizon()), Timeout: fromStartTimeout, Now: c.cfg.Now}
	rd := &reading{reader: reader, fromStart: true, save: func(c *cursor.Cursor, to store.Position) { c.Position = to }}
	if at.Value.Text > s.From {
		reader.After, rd.reached = at, at
	}
	return rd
}

// auditSpans continues a claimed audit, span by span. An entity that cannot be settled in one
// span does not hold up the others; the saved position stays before it.
func (j *auditJob) auditSpans(t turn) outcome {
	v := j.visit
	for {
		if v.allRead() && len(j.spans) > 0 {
			v.readings = slices.DeleteFunc(v.readings, func(rd *reading) bool { return !rd.stuck })
			v.readings, j.spans = append(v.readings, j.spans[0]), j.spans[1:]
			v.holdUp(v.readings[len(v.readings)-1])
		}
		v.horizon = j.c.horizon()
		out, allRead := v.run(t)
		switch {
		case v.allRead() && len(j.spans) > 0 && (allRead || out.contended):
		case allRead:
			v.update(func(c *cursor.Cursor) { c.Position, c.Rewind = store.Position{}, cursor.Rewind{Done: v.start.began} })
			return outcome{state: ended}
		default:
			return out
		}
	}
}

// conclude gives the claim back if the outcome of a step ends the audit.
func (j *auditJob) conclude(out outcome) outcome {
	out.slow = true
	switch out.state {
	case resting, lost:
		out.state = ended
	case failed:
		out.err = fmt.Errorf("audit: %w", out.err)
	case stopped, ended:
	case ready, running, waiting:
		return out
	}
	return j.end(out)
}

// end gives up what the audit holds between two steps.
func (j *auditJob) end(out outcome) outcome {
	if j.visit != nil {
		out.release = j.visit.release
		j.visit.forgetAsides()
	}
	j.visit, j.spans = nil, nil
	return out
}
