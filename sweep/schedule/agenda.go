package schedule

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/chore"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/sweep/visit"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// choresFirst is how long one sweep waits for the chores that are due when it
	// begins.
	choresFirst = 10 * time.Second
	// contendedFor is how long one sweep, after everything else, retries entities and
	// records that another client holds in a transaction. The locks of a dead process
	// end with its transaction, which the services end after 60 s without a request.
	contendedFor = 90 * time.Second
	// brakedFor is how long one sweep looks at the ranges of a target whose breaker is open, or
	// of which as much was deleted as its limits allow.
	brakedFor = 2 * time.Second
	// beyondFor is how long it then continues work that the next sweep can resume:
	// reads from the start, drains, the audit.
	beyondFor = 5 * time.Minute
)

// A oneSweep is the agenda of one sweep: due chores first, then every range, then
// the chores and ranges that became due by these.
type oneSweep struct {
	phase phase
	began time.Time
	done  time.Time // when every range had come as far as it could
	held  bool      // from the beginning: ranges are only looked at
	stuck time.Time // since when all that is left waits for somebody else's transaction; zero if it does not
}

// A phase is how far one sweep has come.
type phase uint8

const (
	opening phase = iota // chores that are due
	sweeping
	finishing // contended entities, reads from the start, and what became due meanwhile
	over
)

func (o *oneSweep) open(ctx context.Context, b *book) error { return openOnce(ctx, b) }

func (o *oneSweep) failed(b *book, err error) {
	o.phase = over
	b.failOpening(err)
}

func (o *oneSweep) chores() bool { return o.phase != over }

func (o *oneSweep) isOver(*book) bool { return o.phase == over }

func (o *oneSweep) next(b *book, now time.Time) time.Duration {
	switch {
	case o.phase == opening:
		if wait := o.began.Add(choresFirst).Sub(now); wait > 0 {
			return min(heartbeat, wait)
		}
	case o.phase != opening && o.phase != over && b.active == 0:
		return 0 // the next look begins the next phase
	}
	return heartbeat
}

func (o *oneSweep) look(s *scheduler, b *book, now time.Time) {
	if s.ctx.Err() != nil || b.isHeldForLong(now) {
		o.stop(s, b, now)
		return
	}
	switch o.phase {
	case opening:
		o.begin(s, b, now)
	case sweeping:
		if o.held && b.count.pending == b.lookedAt {
			o.stop(s, b, now)
		} else if b.active == 0 || b.count.pending == b.contended {
			o.phase, o.done = finishing, now
		}
	case finishing:
		o.finish(s, b, now)
	case over:
		b.stop(s, now)
	}
}

// begin waits for the chores that are due, and then makes the ranges ready.
func (o *oneSweep) begin(s *scheduler, b *book, now time.Time) {
	if o.began.IsZero() {
		o.began = now
	}
	for c := range b.chores {
		if isFirst(c.Kind) && now.Sub(o.began) < choresFirst {
			return
		}
	}
	b.checkHold(s, now)
	o.phase, o.held = sweeping, b.held.why != ""
	b.readyAll(s, now)
	b.openCount(now)
	b.estimate(s, now)
}

// isFirst reports whether a chore finds ranges, or changes which there are.
func isFirst(k plan.Kind) bool {
	return k == plan.Life || k == plan.Probe || k == plan.Seal || k == plan.Look
}

// finish ends the sweep once nothing is left to do, or its time is over.
func (o *oneSweep) finish(s *scheduler, b *book, now time.Time) {
	if b.held.why == "" && b.count.pending > b.contended { // what was blocked has become work: the store answers again
		o.phase = sweeping
		return
	}
	if b.count.pending > 0 && now.Sub(o.done) >= contendedFor {
		for _, it := range s.queued(b) {
			if !it.pending {
				continue
			}
			if it.out.Blocked != nil {
				b.fail(it, it.out.Blocked)
			}
			b.stopItem(s, it, now)
		}
	}
	if b.count.pending == 0 && now.Sub(o.done) >= choresFirst {
		b.cancelChores(plan.Look, chore.Estimate)
	}
	switch {
	case b.active == 0 && b.dirty:
		b.replan(s, now)
		if b.active == 0 {
			o.phase = over
		}
	case b.active == 0:
		for _, it := range b.ranges {
			b.settleCount(it, true)
		}
		o.phase = over
	case !b.c.Rules.ReadSince.IsZero() && b.working > 0: // what was asked for is finished, unless others hold it
		if o.isStuck(b, now) {
			o.stop(s, b, now)
		}
	case now.Sub(o.done) >= beyondFor && b.count.pending == 0:
		o.stop(s, b, now)
	}
}

// isStuck reports whether all ranges at work have waited for long enough for transactions
// of somebody else, or retried after them.
func (o *oneSweep) isStuck(b *book, now time.Time) bool {
	for _, it := range b.ranges {
		if it.state != step.Resting && !it.isContended() {
			o.stuck = time.Time{}
			return false
		}
	}
	if o.stuck.IsZero() {
		o.stuck = now
	}
	return now.Sub(o.stuck) >= contendedFor
}

// stop ends the sweep now.
func (o *oneSweep) stop(s *scheduler, b *book, now time.Time) {
	if o.phase == opening && b.count.ranges == 0 {
		b.count.ranges = b.plan.Len()
		b.count.left = b.count.ranges
	}
	o.phase = over
	b.stop(s, now)
	b.cancelChores(plan.Look, chore.Estimate)
}

func (o *oneSweep) task() string { return "sweep" }

func (o *oneSweep) summary(b *book) Summary {
	if !b.c.Rules.ReadSince.IsZero() {
		b.count.left = max(b.count.left, b.unread())
	}
	return summaryOf(b)
}

// unread returns how many ranges one sweep was asked to read from their start, and did not.
func (b *book) unread() (n int) {
	for _, it := range b.ranges {
		if j, ok := it.rangeJob(); ok && !j.WasReadAll() {
			n++
		}
	}
	return n
}

// A Summary is how the work on one target has ended. What was done to it stands in its tally.
type Summary struct {
	Complete           bool // nothing failed, and every range came to its horizon
	Ranges, Incomplete int
	Held               throttle.Reason // why nothing may be deleted; empty if it may
	Fault              error           // if a record holds the target: what is wrong with it; may be nil
	Err                error           // what failed
	View               *plan.View      // of the records; nil if they could not be read
	Ended              time.Time       // by this process's clock
	Open               bool            // it was stopped before all ranges were counted
}

// summaryOf returns how the work on a target has ended.
func summaryOf(b *book) Summary {
	if b.held.why == throttle.ReasonRecord {
		if err := b.unreadable(); err != nil {
			b.failOpening(err)
		}
	}
	s := Summary{Ranges: b.count.ranges, Incomplete: b.count.left, Held: b.held.why, Err: b.count.err(), View: b.view,
		Open: !b.count.open || b.count.pending > 0}
	if s.Held == throttle.ReasonRecord {
		s.Fault = b.held.fault
	}
	s.Complete = s.Err == nil && s.Incomplete == 0 && b.count.open
	return s
}

// isHeldForLong reports whether nothing could be deleted for so long that one sweep
// should end.
func (b *book) isHeldForLong(now time.Time) bool {
	most := b.c.Target.Lease
	switch b.held.why {
	case "":
		return false
	case throttle.ReasonBreaker, throttle.ReasonLimit: // a person ends it, or the hour
		most = brakedFor
	case throttle.ReasonRecord:
		most = visit.Patience
		if b.unreadable() != nil {
			return true
		}
	}
	return now.Sub(b.held.since) > most
}

// unreadable returns why a record that is needed cannot be read or written; nil if it can, or
// if another try may help.
func (b *book) unreadable() error {
	for _, err := range []error{b.c.Viewer.Failing(), b.c.Budget.Failing(), b.c.Story.Failing()} {
		if err != nil && !store.Transient(err) {
			return err
		}
	}
	if _, err := b.c.Watch.Failing(); err != nil && !store.Transient(err) && b.c.IsUncounted() {
		return err
	}
	return nil
}
