package chore

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// BehindKind is a chore that no plan asks for: it counts what is due behind the cursors, for
// the metrics of a daemon.
const BehindKind plan.Kind = "behind"

const (
	// behindEvery is how often a daemon counts what is due behind the cursors. A read from the start
	// finds it once in each rewind, and a person should know well before.
	behindEvery = 10 * time.Minute
	// BehindAgain is how soon it counts again if that may have changed much, and how long after its
	// start it counts first.
	BehindAgain = time.Minute
	// behindRanges is how many ranges are counted so often: of twice as many, each costs a read half
	// as often.
	behindRanges = 1_000
	// readBehind is how many entries behind the cursor of a range are read, so that those that
	// are malformed do not count. If there are more, all are counted.
	readBehind = 100
	// Counting stops at about behindUpTo entities over all ranges, but not before
	// behindRangeUpTo in any one: a COUNT costs a read for each thousand.
	behindUpTo      = 1_000_000
	behindRangeUpTo = 1_000
)

// CountBehind counts what is due behind the cursor of a range, up to about upTo. It also returns when the
// first of that became due.
func CountBehind(
	ctx context.Context, c *site.Site, p *plan.Plan, r shardquery.Range, upTo int64,
) (due int64, since time.Time, err error) {
	cur := p.Cursor(r)
	if cur.Position.IsZero() || !cur.Stock.Emptied.IsZero() {
		return 0, since, nil // nothing is behind it, or nothing well-formed is left
	}
	horizon := c.Horizon()
	floor, end := c.Index.Floor(horizon), horizon.Add(r.Resolution())
	rests := !p.Range(r).Read
	if at, ok := r.Passed(cur.Position.Value); ok && !rests && at.Before(end) {
		end = at
	}
	reader := &shardquery.Reader{Store: c.Cfg.Store, Target: c.Target.Target, Range: r, From: r.At(floor), Floor: floor,
		Until: end, Now: c.Cfg.Now}
	var page store.Page
	var seen int64
	for more := true; more; {
		if more, err = reader.Next(ctx, &page, readBehind+1); err != nil {
			return 0, since, err
		}
		for _, e := range page.Entries {
			if c.Index.Decide(e.Value, horizon) != index.Due || !rests && !index.IsBehind(e, cur) {
				continue
			}
			if at, err := r.Expires(e.Value); err == nil && due == 0 {
				since = at.Add(c.Target.Retention)
			}
			due++
		}
		if seen += int64(len(page.Entries)); seen > readBehind {
			if n, ok, err := CountExpired(ctx, c, r, floor, end, upTo); ok || err != nil {
				return n, since, err
			}
		}
	}
	return due, since, nil
}

// BehindEvery returns the time between two counts of what is due behind the cursors of a target
// with so many ranges.
func BehindEvery(ranges int) time.Duration {
	return behindEvery * time.Duration(max(1, ranges/behindRanges))
}

// countAllBehind counts what is due behind the cursors of all ranges that writers may write
// to, for people, and foresees whether the breaker would trip for it. If that fails, what was known
// before remains.
func countAllBehind(ctx context.Context, c *site.Site, p *plan.Plan) {
	p, err := withSaved(ctx, c, p)
	if err != nil {
		failedBehind(ctx, c, err)
		return
	}
	var list []shardquery.Range
	for r := range p.All() {
		if p.Range(r).Read { // otherwise it is sealed, and was read to its end since
			list = append(list, r)
		}
	}
	found, err := sumBehind(ctx, c, p, list)
	if err != nil {
		failedBehind(ctx, c, err)
		return
	}
	trip, err := spend.Observe(c.Spending()).ForecastLate(ctx, found.N)
	switch {
	case err != nil && ctx.Err() != nil:
		return
	case err != nil: // what was foreseen remains, as long as something lies there
		c.Log.DebugContext(ctx, "cannot foresee whether the breaker would trip", "error", err)
		last := c.Tally.Behind()
		found.Late, found.Limit = last.Late, last.Limit
	case trip != nil:
		found.Late, found.Limit = trip.Due+trip.Gone, trip.Limit
	}
	c.NoteBehind(found)
}

// sumBehind counts what is due behind the cursors of these ranges.
func sumBehind(
	ctx context.Context, c *site.Site, p *plan.Plan, list []shardquery.Range,
) (found cursor.Behind, err error) {
	upTo := int64(max(behindRangeUpTo, behindUpTo/max(1, len(list))))
	var mu sync.Mutex
	var lie []shardquery.Range // in which something does
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(index.CountersAtOnce)
	for _, r := range list {
		background.Go(group, func() error {
			within, cancel := context.WithTimeout(inGroup, index.CountTimeout)
			defer cancel()
			n, since, err := CountBehind(within, c, p, r, upTo)
			if err != nil || n == 0 {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			lie = append(lie, r)
			found.N, found.More = found.N+n, found.More || n >= upTo
			if !since.IsZero() && (found.Since.IsZero() || since.Before(found.Since)) {
				found.Since = since
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return cursor.Behind{}, err
	}
	if by, known := p.BehindGone(lie); known && found.N > 0 {
		found.GoneBy = by
	}
	found.Counted = c.Clock.Now()
	return found, nil
}

func failedBehind(ctx context.Context, c *site.Site, err error) {
	if ctx.Err() == nil {
		c.Log.Failed("count what is due behind the cursors", "", err)
	}
}

// withSaved returns a plan with the records that other processes have saved of ranges in
// which this one has found nothing: a sweep needs none of them, and a daemon may be without them
// for as long as it runs.
func withSaved(ctx context.Context, c *site.Site, p *plan.Plan) (*plan.Plan, error) {
	var ids []cursor.ID
	for r := range p.All() {
		if p.Range(r).Unread {
			ids = append(ids, c.Rules.ID(r))
		}
	}
	for some := range slices.Chunk(ids, store.MaxRecords) {
		if err := c.Viewer.ReadSome(ctx, some, view.RecordPatience); err != nil {
			return nil, err
		}
	}
	return p.With(c.Viewer.View()), nil
}

// CountExpired counts the entries of a range that expire from one instant on and before
// another. It stops at upTo; ok is false if the store cannot count.
func CountExpired(ctx context.Context, c *site.Site, r shardquery.Range, from, before time.Time, upTo int64,
) (n int64, ok bool, err error) {
	counter, ok := c.Cfg.Store.(store.Counter)
	if !ok {
		return 0, false, nil
	}
	n, err = counter.Count(ctx, c.Target.Target, r.Namespace, store.Span{
		From: store.Point{Shard: r.Value, Value: r.At(from).Value},
		To:   store.Point{Shard: r.Value, Value: r.At(before).Value}}, upTo)
	return n, true, err
}
