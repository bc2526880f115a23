package inspect

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// BehindEvery is for how long a count of what lies behind the cursors is taken for the present
// one: it reads each range from its start.
const BehindEvery = 10 * time.Minute

// countTakes is for how much longer the count of a daemon is taken for the present one: it counts again
// after BehindEvery, and that takes a while.
const countTakes = 2 * time.Minute

// A WouldTrip is the event for which a daemon foresees that the breaker trips at the next read from the
// start.
type WouldTrip struct {
	Rule  breaker.Rule `json:"rule"`
	Due   int64        `json:"due"`
	Limit int64        `json:"limit"`
}

// A BehindCount is how much is due and lies behind the cursors, as part of a status: written
// late, or refused by the store. A read from the start deletes it.
type BehindCount struct {
	Behind        *int64     `json:"behind"`          // nil if it was not counted
	BehindAtLeast bool       `json:"behind_at_least"` // there are more than Behind: counting stopped there
	BehindSince   *time.Time `json:"behind_since"`    // when the oldest of them became due
	BehindGoneBy  *time.Time `json:"behind_gone_by"`  // the first sweep after that deletes the last; nil if not known
	BehindCounted *time.Time `json:"behind_counted"`  // when it was counted
}

// countedBy returns what a daemon of the target has counted last, if that is recent; else a count of nothing.
func countedBy(s *sweep.Snapshot) (b BehindCount, would *WouldTrip) {
	var last cursor.Behind
	for _, h := range s.Heartbeats() {
		if h.Behind.Counted.After(last.Counted) {
			last = h.Behind
		}
	}
	b.BehindCounted = timePtr(last.Counted)
	if !b.isRecent(s.Now().Add(-countTakes)) {
		return BehindCount{}, nil
	}
	if last.Late > 0 {
		would = &WouldTrip{Rule: breaker.LateOnes, Due: last.Late, Limit: last.Limit}
	}
	b.Behind, b.BehindAtLeast = &last.N, last.More
	b.BehindSince, b.BehindGoneBy = timePtr(last.Since), timePtr(last.GoneBy)
	return b, would
}

// isRecent reports whether it need not be counted again.
func (b BehindCount) isRecent(now time.Time) bool {
	return b.BehindCounted != nil && now.Sub(*b.BehindCounted) < BehindEvery
}

// A behindCounter counts what is due and lies behind the cursors.
type behindCounter struct {
	*sweep.Snapshot
	all bool // also in ranges at rest

	mu        sync.Mutex
	sum       int64
	atLeast   bool
	since     earliest  // when the oldest became due
	by        time.Time // the latest instant of any range
	isUnknown bool      // of some range nobody knows when it goes
	unread    map[shardquery.Range]error
}

// run counts in all ranges, some at a time, while it calls meanwhile. It notes those for which time did not
// suffice.
func (b *behindCounter) run(ctx context.Context, atOnce int, ranges []shardquery.Range, meanwhile func()) error {
	b.unread = map[shardquery.Range]error{}
	upTo := int64(max(rangeUpTo, backlogUpTo/max(1, len(ranges))))
	var group, other errgroup.Group
	background.Go(&other, func() error {
		meanwhile()
		return nil
	})
	group.SetLimit(atOnce)
	for _, r := range ranges {
		c := b.Plan.Cursor(r)
		if c.Position.IsZero() || !c.Stock.Emptied.IsZero() || !b.all && !b.Plan.Range(r).Read {
			continue // nothing is behind it, nothing well-formed is left, or it rests
		}
		background.Go(&group, func() error {
			since, err := b.firstBehind(ctx, r)
			n, atLeast := int64(0), false
			if err == nil && !since.IsZero() {
				var late error
				if n, late = b.CountBehind(ctx, r, upTo); late != nil {
					n, atLeast = 1, true // it is there, whatever the store takes to count it
				}
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if err != nil {
				b.unread[r] = err
				return nil
			}
			b.add(r, n, atLeast || n >= upTo, since)
			return nil
		})
	}
	err := group.Wait() // only a panic: what failed is noted
	return cmp.Or(err, other.Wait())
}

// firstBehind returns when the first due entry of a range became due, if it may lie behind the cursor; else
// the zero time.
func (b *behindCounter) firstBehind(ctx context.Context, r shardquery.Range) (time.Time, error) {
	since, err := b.FirstDue(ctx, r, store.Position{})
	if err != nil || since.IsZero() || !b.Plan.Range(r).Read {
		return since, err
	}
	at, ok := r.Passed(b.Plan.Cursor(r).Position.Value)
	if ok && since.Add(-b.Target.Retention).After(at) {
		return time.Time{}, nil // it lies in front
	}
	return since, nil
}

// add takes in what was counted in a range.
func (b *behindCounter) add(r shardquery.Range, n int64, atLeast bool, since time.Time) {
	if n == 0 {
		return
	}
	b.since.add(since)
	b.sum, b.atLeast = b.sum+n, b.atLeast || atLeast
	by, known := b.Plan.BehindGone([]shardquery.Range{r})
	b.isUnknown = b.isUnknown || !known
	b.by = laterOf(b.by, by)
}

// fillBehind fills in what was counted behind the cursors; if time did not suffice, what a daemon has
// counted lately.
func (st *TargetStatus) fillBehind(b *behindCounter, ranges int, daemons BehindCount) {
	st.BehindCount = daemons // an earlier one of its own may be long out of date
	n := len(b.unread)
	if daemons.Behind != nil && (n > 0 || b.atLeast && *daemons.Behind > b.sum) {
		return // it had more time
	}
	if n > 0 {
		st.Unread = append(st.Unread, fmt.Sprintf("what lies behind the cursors in %d of %d ranges: %v",
			n, ranges, anyOf(b.unread)))
		return
	}
	st.Behind, st.BehindAtLeast, st.BehindCounted = &b.sum, b.atLeast, timePtr(b.Now())
	st.BehindSince = timePtr(b.since.at)
	if !b.isUnknown {
		st.BehindGoneBy = timePtr(b.by)
	}
}

// addBehind adds what lies behind the cursors to what is due in front of them.
func (st *TargetStatus) addBehind() {
	if st.Behind == nil || *st.Behind == 0 {
		return
	}
	var oldest earliest
	for _, at := range []*time.Time{st.OldestDue, st.BehindSince} {
		if at != nil {
			oldest.add(*at)
		}
	}
	st.OldestDue = timePtr(oldest.at)
	n, ahead := *st.Behind, st.Backlog
	if st.AtLeast = st.AtLeast || st.BehindAtLeast || ahead == nil; ahead != nil {
		n += *ahead
	}
	switch {
	case st.AtLeast, st.BehindGoneBy == nil, *ahead > 0 && st.GoneAt == nil, st.Held != "":
		st.GoneAt = nil // no sweep deletes anything while the target is held
	case st.GoneAt == nil || st.GoneAt.Before(*st.BehindGoneBy):
		st.GoneAt = st.BehindGoneBy
	}
	st.Backlog = &n
}

// behindText says what lies behind the cursors, and when it goes.
func (st *TargetStatus) behindText(now time.Time) string {
	what := fmt.Sprintf("%d lie behind the cursors, written late or refused; ", *st.Behind)
	if *st.Behind == 1 {
		what = "1 lies behind the cursors, written late or refused; "
	}
	if st.BehindAtLeast {
		what = "at least " + what
	}
	if age := now.Sub(*st.BehindCounted); age > Within { // by a daemon, or by an earlier status
		what += "that was counted " + Age(age) + " ago; "
	}
	if st.BehindGoneBy == nil {
		return what + "the read from the start that follows the sealing of their generation finds them"
	}
	return what + "the read from the start after " + instantText(*st.BehindGoneBy) + " finds them"
}
