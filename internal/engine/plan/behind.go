package plan

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A Reading is the kind of read that finds what lies behind the cursor of a range.
type Reading uint8

// The kinds.
const (
	RewindRead  Reading = iota // the next read of the range from its start, once in each rewind
	NowReading                 // a read from the start that is under way
	MissedRead                 // the read after that: the one under way has passed it
	SealedRead                 // the read from the start that follows the sealing, by the next sweep
	SealingRead                // the same, once the generation is sealed
	RefusedRead                // the next read from the start, which tries again what the store refused
	AuditRead                  // the audit: no read of the range itself comes
)

// NextReading returns which read finds an expiry value behind the cursor of a range, and the
// instant after which the first sweep does it; the zero time if the next sweep does. The zero
// value may be anywhere in the range, so that a read under way may have passed it. The instant
// of a sealing is a forecast.
func (p *Plan) NextReading(r shardquery.Range, v store.Value) (Reading, time.Time) {
	missed := func(at store.Position) bool { return v == (store.Value{}) || v.Compare(at.Value) <= 0 }
	c, need := p.Cursor(r), p.Range(r)
	// One that began too early begins again.
	underWay := !c.Rewind.Began.IsZero() && !c.Rewind.Began.Before(need.Since) && need.FromStart() && !need.SuspectsOnly
	switch {
	case underWay && !missed(c.Rewind.Position):
		return NowReading, time.Time{}
	case underWay:
		c.Rewind.Done = c.Rewind.Began // as it will be
	}
	sealed := need.Stage.IsSealed()
	next := p.rules.NextRewind(c)
	if need.Behind && !underWay {
		next = time.Time{}
	}
	switch {
	case c.Stock.Refused && !underWay:
		return RefusedRead, next
	case sealed && c.Rewind.Done.Before(need.Stage.Since):
		return SealedRead, time.Time{}
	case sealed && !rereads(c, need.Stage):
		_, covers := beforeSurvivors(r, p.Cursor(r), need.Stage)
		return AuditRead, p.nextAudit(r.Namespace, covers, missed)
	case !sealed && p.SealedSoon(r.Generation):
		return SealingRead, forecastSealing(p.view.Record, p.rules.Policy, r.Generation, p.Now())
	case underWay:
		return MissedRead, next
	}
	return RewindRead, next
}

// nextAudit returns when the audit begins that finds what it has not missed; the zero time if
// that is under way, or if the next sweep begins it. Covers says that its range is in its spans.
func (p *Plan) nextAudit(namespace string, covers bool, missed func(store.Position) bool) time.Time {
	c := p.AuditCursor(namespace)
	underWay := !c.Rewind.Began.IsZero()
	switch {
	case underWay && (!covers || missed(c.Position)):
		c.Rewind.Done = c.Rewind.Began // as it will be
	case !underWay && p.Now().Before(NextAudit(c)):
	case !covers: // it may begin before it covers the range
		c.Rewind.Done = p.Now()
	default:
		return time.Time{}
	}
	return NextAudit(c)
}

// BehindGone returns when the last of what lies behind the cursors of these ranges is gone:
// after the first sweep from then on. Known is false if a generation must be sealed first, and
// nobody can tell when.
func (p *Plan) BehindGone(ranges []shardquery.Range) (by time.Time, known bool) {
	known = true
	for _, r := range ranges {
		read, after := p.NextReading(r, store.Value{})
		if read == SealingRead && after.IsZero() {
			known = false
		}
		if after.Before(p.Now()) {
			after = p.Now()
		}
		if by.Before(after) {
			by = after
		}
	}
	return by, known
}

// forecastSealing returns when a generation that writers may still write to will be sealed; the
// zero time if that is not known.
func forecastSealing(record generation.Record, policy generation.Policy, number int, now time.Time) time.Time {
	i := slices.IndexFunc(record.Generations, func(g generation.Generation) bool { return g.Number == number })
	if i < 0 {
		return time.Time{}
	}
	if at := record.SealedAt(i, policy.Settle); !at.IsZero() {
		return at
	}
	// Writers must have moved to the generation after the last one that has to be as far.
	next := number + policy.Settle + 1
	newest := record.Generations[len(record.Generations)-1]
	var moved time.Time
	for _, g := range record.Generations {
		if g.Number == next {
			moved = g.Opened.Add(g.Ramp)
		}
	}
	if moved.IsZero() {
		if policy.Every <= 0 || next < newest.Number {
			return time.Time{}
		}
		moved = newest.Opened.Add(time.Duration(next-newest.Number)*policy.Every + policy.Ramp)
	}
	staleness, slack := record.Bounds()
	if at := moved.Add(staleness + slack); at.After(now) {
		return at
	}
	return time.Time{} // it is overdue: no worker has opened the generation in time
}
