package inspect

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/sweep"
)

// A BehindCount is how much is due and lies behind the cursors, as part of a status: written
// late, or refused by the store. A read from the start deletes it.
type BehindCount struct {
	Behind        *int64     `json:"behind"`          // nil if it was not counted
	BehindAtLeast bool       `json:"behind_at_least"` // there are more than Behind: counting stopped there
	BehindGoneBy  *time.Time `json:"behind_gone_by"`  // the first sweep after that deletes the last; nil if not known
}

// A behindCounter counts what is due and lies behind the cursors.
type behindCounter struct {
	*sweep.Snapshot

	mu        sync.Mutex
	sum       int64
	atLeast   bool
	by        time.Time // the latest instant of any range
	isUnknown bool      // of some range nobody knows when it goes
	unread    map[shardquery.Range]error
}

// run counts in all ranges, some at a time. It notes those for which time did not suffice.
func (b *behindCounter) run(ctx context.Context, atOnce int, ranges []shardquery.Range) error {
	b.unread = map[shardquery.Range]error{}
	upTo := int64(max(rangeUpTo, backlogUpTo/max(1, len(ranges))))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, r := range ranges {
		c := b.Plan.Cursor(r)
		if c.Position.IsZero() || !c.Stock.Emptied.IsZero() {
			continue // nothing is behind it, or nothing well-formed is left
		}
		background.Go(&group, func() error {
			n, err := b.CountBehind(ctx, r, upTo)
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
	return group.Wait() // only a panic: what failed is noted
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
