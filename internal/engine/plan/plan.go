package plan

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A Plan says what each range and chore of a target needs at one instant. It puts together
// what the records say, which ranges there are, and the stages of their generations.
type Plan struct {
	*records
	*rangeSet
	stages
	audits
	totals totals
	moment moment
}

// New returns the plan for an instant in the store's time.
func New(rules Rules, view *View, book Book, now time.Time) *Plan {
	ranges := findRanges(&rules, view)
	rec := newRecords(rules, view, book, new(atomic.Int64))
	return newPlan(rec, ranges, map[int]tree{}, now)
}

// newPlan returns a plan that has added up nothing but trees.
func newPlan(rec *records, ranges *rangeSet, trees map[int]tree, now time.Time) *Plan {
	p := &Plan{records: rec, rangeSet: ranges, totals: totals{ranges, rec, trees}, moment: moment{&rec.rules, now}}
	p.stages = classify(&p.totals, now)
	p.audits = audits{ranges: ranges, records: rec, stages: p.stages}
	return p
}

// With returns the plan for the same instant by another view. The book must not change meanwhile.
func (p *Plan) With(view *View) *Plan { return New(p.rules, view, p.book, p.Now()) }

// Next returns the plan for another instant, by this view and by the book; changed lists
// the book's cursors that have changed. It equals what New returns, at a cost in proportion
// to the changes, unless all cursors were read again or other ranges are swept. It takes
// over p's sums: of p, only stages and shards may be used afterwards.
func (p *Plan) Next(view *View, changed []cursor.ID, now time.Time) *Plan {
	read, ok := p.holdsFor(p.view, view)
	if !ok {
		return New(p.rules, view, p.book, now)
	}
	rec := newRecords(p.rules, view, p.book, p.lookups)
	sums := totals{p.rangeSet, rec, p.totals.trees}
	due := audits{p.rangeSet, rec, p.stages, p.audits.due} // by the stages so far
	for _, id := range slices.Concat(changed, read) {
		if due.change(id) {
			continue
		}
		if r, g, i, ok := p.find(id); ok {
			sums.change(g, i)
			due.changeRange(r)
		}
	}
	next := newPlan(rec, p.rangeSet, p.totals.trees, now)
	if next.stages.areSealedAs(p.stages) { // else an audit may have more to read
		next.audits.due = due.due
	}
	return next
}

// Now returns the instant that the plan is for, in the store's time.
func (p *Plan) Now() time.Time { return p.moment.now }

// SameRanges reports whether this plan and the one before it have the same ranges.
func (p *Plan) SameRanges(last *Plan) bool { return p.rangeSet == last.rangeSet }

// HasAll reports whether all ranges past a last shard that another plan knows are ranges
// of this one, too.
func (p *Plan) HasAll(of *Plan) bool {
	return !slices.ContainsFunc(of.extra, func(r shardquery.Range) bool { return !p.Has(r) })
}

// Range returns what a range needs.
func (p *Plan) Range(r shardquery.Range) Need {
	c := p.Cursor(r)
	n := p.moment.need(&c, p.Stage(r.Generation))
	if n.Unread && !p.hasRecord(c.ID) { // in a sealed generation, until the pass over it has covered the namespace
		n.Fresh, n.Inventory = true, false
	}
	return n
}

// IsBehindDue reports whether a range whose reading is at a cursor is to be read from its
// start, too.
func (p *Plan) IsBehindDue(r shardquery.Range, c cursor.Cursor) bool {
	return p.moment.isAsked(&c) || p.moment.isBehindDue(&c, p.Stage(r.Generation))
}

// SealedSoon reports whether entries behind the cursor of a range wait for its
// generation to be sealed, and not for the next rewind.
func (p *Plan) SealedSoon(number int) bool {
	s := p.Stage(number)
	return s.IsSealed() || s.State != "" && (s.State != generation.Filling || p.rules.skipsRewinds(number))
}

// EmptySince returns when the last read of a sealed generation may begin: one slack after
// its last entity was disposed of. Empty is false if anything is left in a range, or if no
// range of it is swept, as under another layout.
func (p *Plan) EmptySince(number int, sealed time.Time) (ready time.Time, empty bool) {
	total, ok := p.totals.of(number)
	if !ok {
		return sealed, false
	}
	_, slack := p.view.Record.Bounds()
	return total.emptySince(sealed, slack)
}

// Unread reports whether a range of the generation still needs a read from its start that
// begins at the given instant or later, or a namespace still needs a pass.
func (p *Plan) Unread(number int, since time.Time) bool {
	total, ok := p.totals.of(number)
	return ok && (total.done.Before(since) || p.Stage(number).IsSealed() && !p.isCovered(number, since))
}

// isCovered reports whether a pass that began at an instant or later has covered every
// namespace that any deployment sweeps.
func (p *Plan) isCovered(number int, since time.Time) bool {
	seal, ok := p.SealOf(number)
	return ok && !slices.ContainsFunc(p.swept, func(ns string) bool { return !seal.Covers(ns, since) })
}
