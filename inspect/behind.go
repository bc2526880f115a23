package inspect

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// A BehindCount is how much is due and lies behind the cursors, as part of a status: written
// late, or refused by the store. A read from the start deletes it.
type BehindCount struct {
	Behind        *int64     `json:"behind"`          // nil if it was not counted
	BehindAtLeast bool       `json:"behind_at_least"` // there are more than Behind: counting stopped there
	BehindGoneBy  *time.Time `json:"behind_gone_by"`  // the first sweep after that deletes the last; nil if not known
}

// readBehind is how many entries behind the cursor of a range are read, so that those that
// are malformed do not count. If there are more, all are counted.
const readBehind = 100

// A behindCounter counts what is due and lies behind the cursors.
type behindCounter struct {
	*sweep.Snapshot
	store store.Store
	now   func() time.Time

	mu        sync.Mutex
	sum       int64
	atLeast   bool
	by        time.Time // the latest instant of any range
	isUnknown bool      // of some range nobody knows when it goes
	unread    map[shardquery.Range]error
}

// run counts in all ranges, some at a time. It notes those for which time did not suffice.
func (b *behindCounter) run(ctx context.Context, atOnce int, ranges []shardquery.Range) {
	b.unread = map[shardquery.Range]error{}
	upTo := int64(max(rangeUpTo, backlogUpTo/max(1, len(ranges))))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, r := range ranges {
		c := b.Plan.Cursor(r)
		if c.Position.IsZero() || !c.Stock.Emptied.IsZero() {
			continue // nothing is behind it, or nothing well-formed is left
		}
		group.Go(func() error {
			n, err := b.count(ctx, r, c, upTo)
			b.mu.Lock()
			defer b.mu.Unlock()
			if err != nil {
				b.unread[r] = err
				return nil
			}
			b.add(r, c, n, n >= upTo)
			return nil
		})
	}
	_ = group.Wait() // what failed is noted
}

// add takes in what was counted in a range.
func (b *behindCounter) add(r shardquery.Range, c cursor.Cursor, n int64, atLeast bool) {
	if n == 0 {
		return
	}
	b.sum, b.atLeast = b.sum+n, b.atLeast || atLeast
	// Where in the range they lie is not known: the read under way may have passed them.
	read, after := nextReading(b.Snapshot, r, c, b.Plan.Range(r), true)
	if read == sealingRead && after.IsZero() {
		b.isUnknown = true
	}
	b.by = laterOf(b.by, laterOf(after, b.Now()))
}

// count counts what is due in a range behind its cursor. If the range rests, nothing due
// is expected anywhere in it.
func (b *behindCounter) count(ctx context.Context, r shardquery.Range, c cursor.Cursor, upTo int64) (int64, error) {
	horizon := b.Horizon()
	floor, end := horizon.Add(-b.Target.MaxAge), horizon.Add(r.Resolution())
	rests := !b.Plan.Range(r).Read
	if at, err := r.Expires(c.Position.Value); err == nil && !rests && at.Before(end) {
		end = at
	}
	reader := &shardquery.Reader{Store: b.store, Target: b.Target.Target, Range: r, From: r.At(floor), Floor: floor,
		Until: end, Now: b.now}
	var page store.Page
	var due, seen int64
	for more := true; more; {
		var err error
		if more, err = reader.Next(ctx, &page, readBehind+1); err != nil {
			return 0, err
		}
		for _, e := range page.Entries {
			if b.Judge(e.Value) == sweep.Due && (rests || isBehind(e, c)) {
				due++
			}
		}
		if seen += int64(len(page.Entries)); seen > readBehind {
			if n, ok, err := b.CountExpired(ctx, r, floor, end, upTo); ok || err != nil {
				return n, err
			}
		}
	}
	return due, nil
}

// tellBehind fills in what was counted behind the cursors.
func (st *TargetStatus) tellBehind(b *behindCounter, ranges int) {
	if n := len(b.unread); n > 0 {
		st.Unread = append(st.Unread, fmt.Sprintf("what lies behind the cursors in %d of %d ranges: %v",
			n, ranges, anyOf(b.unread)))
		return
	}
	st.Behind, st.BehindAtLeast = &b.sum, b.atLeast
	if !b.isUnknown {
		st.BehindGoneBy = timePtr(b.by)
	}
}

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
