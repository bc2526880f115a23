package schedule

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// choresFirst is how long one sweep waits, when it begins, for the chores that are due.
	choresFirst = 10 * time.Second
	// contendedFor is how long one sweep, after everything else, retries entities and
	// records that another client holds in a transaction. The locks of a dead process
	// end with its transaction, which the services end after 60 s without a request.
	contendedFor = 90 * time.Second
	// beyondFor is how long it then continues work that the next sweep could resume:
	// reads from the start, drains, the audit.
	beyondFor = 5 * time.Minute
)

// A oneSweep is the agenda of one sweep: due chores first, then every range, then
// the chores and ranges that became due by these.
type oneSweep struct {
	phase phase
	began time.Time
	done  time.Time // when every range had got as far as it could
	held  bool      // since it began: ranges are only looked at
	stuck time.Time // since when all that is left waits for another client's transaction; zero if not so
}

// A phase is how far one sweep has got.
type phase uint8

const (
	opening phase = iota // chores that are due
	sweeping
	finishing // contended entities, reads from the start, and what became due meanwhile
	over
)

// openOnce reads the records, and does not retry if that fails.
func openOnce(ctx context.Context, c *site.Site) error {
	if err := c.Open(ctx); err != nil {
		return err
	}
	c.Until = c.Clock.Now()
	if c.Cfg.FromStart || !c.Cfg.Apply { // a dry run reports what lies behind the cursors
		c.Rules.ReadSince = c.Until.Truncate(time.Microsecond) // as a record says of a read that begins now
	}
	return nil
}

func (o *oneSweep) open(ctx context.Context, c *site.Site) error { return openOnce(ctx, c) }

func (o *oneSweep) failed(b *book, err error) {
	o.phase = over
	b.count.failOpening(err)
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

func (o *oneSweep) look(b *book, now time.Time) {
	if b.s.isStopping() || b.hold.isLong(now) {
		o.stop(b, now)
		return
	}
	switch o.phase {
	case opening:
		o.begin(b, now)
	case sweeping:
		if o.held && b.count.pending == b.lookedAt {
			o.stop(b, now)
		} else if b.active == 0 || b.hold.why == "" && b.count.pending == b.contended {
			o.phase, o.done = finishing, now
		}
	case finishing:
		o.finish(b, now)
	case over:
		b.stop(now)
	}
}

// begin makes the ranges ready, once the chores that are due have ended or taken too long.
func (o *oneSweep) begin(b *book, now time.Time) {
	if o.began.IsZero() {
		o.began = now
	}
	for c := range b.chores {
		if isFirst(c.Kind) && now.Sub(o.began) < choresFirst {
			return
		}
	}
	b.checkHold(now)
	o.phase, o.held = sweeping, b.hold.why != ""
	b.readyAll(now)
	b.count.begin(b.ranges, now)
	if b.c.Cfg.Progress.Estimate {
		b.beginChore(plan.Chore{Kind: chore.Estimate}, 0, now)
	}
}

// isFirst reports whether a chore finds, adds or removes ranges.
func isFirst(k plan.Kind) bool {
	return k == plan.Life || k == plan.Probe || k == plan.Seal || k == plan.Look
}

// finish ends the sweep once nothing is left to do, or its time is over.
func (o *oneSweep) finish(b *book, now time.Time) {
	if b.hold.why == "" && b.count.pending > b.contended { // what was blocked has become work: the store answers again
		o.phase = sweeping
		return
	}
	if b.count.pending > 0 && now.Sub(o.done) >= contendedFor {
		for _, it := range b.s.queued(b) {
			if !it.pending {
				continue
			}
			if it.out.Blocked != nil {
				b.count.fail(it, it.out.Blocked)
			}
			b.stopItem(it, now)
		}
	}
	if b.count.pending == 0 && now.Sub(o.done) >= choresFirst {
		b.cancelChores(plan.Look, chore.Estimate)
	}
	switch {
	case b.active == 0 && b.dirty:
		b.replan(now)
		if b.active == 0 {
			o.phase = over
		}
	case b.active == 0:
		b.count.giveUp(b.ranges)
		o.phase = over
	case !b.c.Rules.ReadSince.IsZero() && b.working > 0: // ordered reads may take longer than beyondFor
		if o.isStuck(b, now) {
			o.stop(b, now)
		}
	case now.Sub(o.done) >= beyondFor && b.count.pending == 0:
		o.stop(b, now)
	}
}

// isStuck reports whether, for long enough, all ranges in work have waited for transactions
// of other clients, or retried after them.
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
func (o *oneSweep) stop(b *book, now time.Time) {
	if o.phase == opening && b.count.ranges == 0 {
		b.count.ranges = b.plan.Len()
		b.count.left = b.count.ranges
	}
	o.phase = over
	b.stop(now)
	b.cancelChores(plan.Look, chore.Estimate)
}

func (o *oneSweep) task() string { return "sweep" }

func (o *oneSweep) summary(b *book) Summary {
	if !b.c.Rules.ReadSince.IsZero() {
		b.count.left = max(b.count.left, unread(b.ranges))
	}
	return summaryOf(b)
}

// unread counts the ranges that one sweep should have read from their start, and did not.
func unread(ranges map[shardquery.Range]*item) (n int) {
	for _, it := range ranges {
		if j, ok := it.rangeJob(); ok && !j.WasReadAll() {
			n++
		}
	}
	return n
}

// A oneAudit is the agenda of one full round of the audit in every namespace.
type oneAudit struct {
	begun, over bool
	stuck       time.Time // since when all that is left waits for another client's transaction; zero if not so
}

func (o *oneAudit) open(ctx context.Context, c *site.Site) error { return openOnce(ctx, c) }

func (o *oneAudit) failed(b *book, err error) {
	o.over = true
	b.count.failOpening(err)
}

func (o *oneAudit) chores() bool { return false }

func (o *oneAudit) isOver(*book) bool { return o.over }

func (o *oneAudit) next(*book, time.Time) time.Duration { return heartbeat }

func (o *oneAudit) look(b *book, now time.Time) {
	if !o.begun {
		o.begun = true
		b.count.open = true
		for i, ns := range b.view.Namespaces {
			b.addChore(plan.Chore{Kind: plan.Audit, Namespace: ns}, b.Round(ns), i, now)
		}
	}
	waits := b.active > 0
	for _, it := range b.chores {
		waits = waits && it.isContended()
	}
	switch {
	case !waits:
		o.stuck = time.Time{}
	case o.stuck.IsZero():
		o.stuck = now
	}
	isStuck := waits && now.Sub(o.stuck) >= contendedFor
	if o.over = o.over || isStuck || b.s.isStopping() || b.active == 0 || b.hold.isLong(now); o.over {
		if b.active > 0 {
			b.count.left = 1 // not all of it was read
		}
		b.stop(now)
	}
}

func (o *oneAudit) task() string { return "audit" }

func (o *oneAudit) summary(b *book) Summary { return summaryOf(b) }

// A Summary is how the work on one target ended. What was done is in the tally of its site.
type Summary struct {
	Complete           bool // nothing failed, and every range reached its horizon
	Ranges, Incomplete int
	Held               throttle.Reason // why nothing may be deleted; empty if it may
	Fault              error           // if a record or the archive holds the target: what is wrong; may be nil
	Err                error           // what failed
	View               *plan.View      // of the records; nil if they could not be read
	Ended              time.Time       // by this process's clock
	Open               bool            // it was stopped before all ranges had ended
}

// summaryOf returns how the work on a target ended.
func summaryOf(b *book) Summary {
	if b.hold.why == throttle.ReasonRecord {
		if err := b.hold.unreadable(); err != nil {
			b.count.failOpening(err)
		}
	}
	s := Summary{Ranges: b.count.ranges, Incomplete: b.count.left, Held: b.hold.why, Err: b.count.err(), View: b.view,
		Open: !b.count.open || b.count.pending > 0}
	if s.Held == throttle.ReasonRecord || s.Held == throttle.ReasonArchive {
		s.Fault = b.hold.fault
	}
	s.Complete = s.Err == nil && s.Incomplete == 0 && b.count.open
	return s
}
