package inspect

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// A reading is the kind of read that finds what lies behind the cursor of a range.
type reading uint8

const (
	rewindRead  reading = iota // the next read of the range from its start, once in each rewind
	nowReading                 // a read from the start that is under way
	missedRead                 // the read after that: the one under way has passed the place
	sealedRead                 // the read from the start that follows the sealing, by the next sweep
	sealingRead                // the same, once the generation is sealed
	refusedRead                // the next read from the start, which tries again what the store refused
	auditRead                  // the audit: no read of the range itself comes
)

// nextReading returns which read finds what lies at a position behind the cursor of a
// range, and the instant after which the first sweep does it; the zero time if the next
// sweep does. The instant of a sealing is a forecast.
func nextReading(
	s *sweep.Snapshot, r shardquery.Range, c cursor.Cursor, need plan.Need, passed bool,
) (reading, time.Time) {
	next := s.Plan.NextRewind(c)
	if need.Behind {
		next = time.Time{}
	}
	sealed := need.Stage.IsSealed()
	switch {
	case !c.Rewind.Began.IsZero() && !passed:
		return nowReading, time.Time{}
	case !c.Rewind.Began.IsZero():
		c.Rewind.Done = c.Rewind.Began // as it will be
		if !sealed && s.Plan.SealedSoon(r.Generation) {
			return sealingRead, sealingOf(s, r.Generation)
		}
		return missedRead, s.Plan.NextRewind(c)
	case c.Stock.Refused:
		return refusedRead, next
	case sealed && c.Rewind.Done.Before(need.Stage.Since):
		return sealedRead, time.Time{}
	case sealed && !c.Stock.Suspects:
		audit := s.Plan.AuditCursor(r.Namespace)
		if !audit.Rewind.Began.IsZero() || audit.Rewind.Done.IsZero() {
			return auditRead, time.Time{}
		}
		return auditRead, s.Plan.NextAudit(audit)
	case !sealed && s.Plan.SealedSoon(r.Generation):
		return sealingRead, sealingOf(s, r.Generation)
	}
	return rewindRead, next
}

// sealingOf forecasts when a generation that writers may still write to will be sealed; the
// zero time if that is not known.
func sealingOf(s *sweep.Snapshot, number int) time.Time {
	record, policy := s.View.Record, s.Target.Rules().Policy
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
	if at := moved.Add(staleness + slack); at.After(s.Now()) {
		return at
	}
	return time.Time{} // no worker has done it in time
}
