package inspect

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
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
			b.add(r, n, n >= upTo)
			return nil
		})
	}
	_ = group.Wait() // what failed is noted
}

// add takes in what was counted in a range.
func (b *behindCounter) add(r shardquery.Range, n int64, atLeast bool) {
	if n == 0 {
		return
	}
	b.sum, b.atLeast = b.sum+n, b.atLeast || atLeast
	by, known := b.Plan.BehindGone([]shardquery.Range{r})
	b.isUnknown = b.isUnknown || !known
	b.by = laterOf(b.by, by)
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

// fillBehind fills in what was counted behind the cursors.
func (st *TargetStatus) fillBehind(b *behindCounter, ranges int) {
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
