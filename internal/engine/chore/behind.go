package chore

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// BehindKind is a chore that no plan asks for: it counts what is due behind the cursors, for
// the metrics of a daemon.
const BehindKind plan.Kind = "behind"

const (
	// behindParts is how often in each rewind a daemon counts what is due behind the cursors.
	// A read from the start finds it once in that time, and a person should know well before.
	behindParts = 24
	// leastBehind is the shortest time from one count to the next.
	leastBehind = 10 * time.Minute
	// readBehind is how many entries behind the cursor of a range are read, so that those that
	// are malformed do not count. If there are more, all are counted.
	readBehind = 100
	// Counting stops at about behindUpTo entities over all ranges, but not before
	// behindRangeUpTo in any one: a COUNT costs a read for each thousand.
	behindUpTo      = 1_000_000
	behindRangeUpTo = 1_000
)

// CountBehind counts what is due behind the cursor of a range, up to about upTo.
func CountBehind(ctx context.Context, c *site.Site, p *plan.Plan, r shardquery.Range, upTo int64) (int64, error) {
	cur := p.Cursor(r)
	if cur.Position.IsZero() || !cur.Stock.Emptied.IsZero() {
		return 0, nil // nothing is behind it, or nothing well-formed is left
	}
	horizon := c.Horizon()
	floor, end := c.Index.Floor(horizon), horizon.Add(r.Resolution())
	rests := !p.Range(r).Read
	if at, err := r.Expires(cur.Position.Value); err == nil && !rests && at.Before(end) {
		end = at
	}
	reader := &shardquery.Reader{Store: c.Cfg.Store, Target: c.Target.Target, Range: r, From: r.At(floor), Floor: floor,
		Until: end, Now: c.Cfg.Now}
	var page store.Page
	var due, seen int64
	for more := true; more; {
		var err error
		if more, err = reader.Next(ctx, &page, readBehind+1); err != nil {
			return 0, err
		}
		for _, e := range page.Entries {
			if c.Index.Decide(e.Value, horizon) == index.Due && (rests || index.IsBehind(e, cur)) {
				due++
			}
		}
		if seen += int64(len(page.Entries)); seen > readBehind {
			if n, ok, err := CountExpired(ctx, c, r, floor, end, upTo); ok || err != nil {
				return n, err
			}
		}
	}
	return due, nil
}

// BehindEvery returns the time between two counts of what is due behind the cursors.
func BehindEvery(c *site.Site) time.Duration { return max(leastBehind, c.Rules.Rewind/behindParts) }

// countAllBehind counts what is due behind the cursors of all ranges that writers may write
// to, for people. If that fails, the number from before remains.
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
	upTo := int64(max(behindRangeUpTo, behindUpTo/max(1, len(list))))
	var sum atomic.Int64
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(index.CountersAtOnce)
	for _, r := range list {
		background.Go(group, func() error {
			within, cancel := context.WithTimeout(inGroup, index.CountTimeout)
			defer cancel()
			n, err := CountBehind(within, c, p, r, upTo)
			sum.Add(n)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		failedBehind(ctx, c, err)
		return
	}
	c.Cfg.Metrics.Behind(c.Target.Name, sum.Load())
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
