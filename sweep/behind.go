package sweep

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// behindKind is a chore that no plan asks for: it counts what is due behind the cursors, for
// the metrics of a daemon.
const behindKind plan.Kind = "behind"

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

// IsBehind reports whether an entry lies behind the cursor. An entry at the cursor's own
// value counts as behind if the cursor has passed some keys there: only the store knows the
// order of keys.
func IsBehind(e store.Entry, c cursor.Cursor) bool {
	at := e.Position().Value.Compare(c.Position.Value)
	return at < 0 || at == 0 && c.Position.Key != ""
}

// CountBehind counts what is due in a range behind its cursor. If the range rests, nothing
// due is expected anywhere in it. It stops at upTo.
func (s *Snapshot) CountBehind(ctx context.Context, r shardquery.Range, upTo int64) (int64, error) {
	return s.c.countBehind(ctx, s.Plan, r, upTo)
}

func (c *collector) countBehind(ctx context.Context, p *plan.Plan, r shardquery.Range, upTo int64) (int64, error) {
	cur := p.Cursor(r)
	if cur.Position.IsZero() || !cur.Stock.Emptied.IsZero() {
		return 0, nil // nothing is behind it, or nothing well-formed is left
	}
	horizon := c.horizon()
	floor, end := c.floor(horizon), horizon.Add(r.Resolution())
	rests := !p.Range(r).Read
	if at, err := r.Expires(cur.Position.Value); err == nil && !rests && at.Before(end) {
		end = at
	}
	reader := &shardquery.Reader{Store: c.cfg.Store, Target: c.target.Target, Range: r, From: r.At(floor), Floor: floor,
		Until: end, Now: c.cfg.Now}
	var page store.Page
	var due, seen int64
	for more := true; more; {
		var err error
		if more, err = reader.Next(ctx, &page, readBehind+1); err != nil {
			return 0, err
		}
		for _, e := range page.Entries {
			if c.decide(e.Value, horizon) == Due && (rests || IsBehind(e, cur)) {
				due++
			}
		}
		if seen += int64(len(page.Entries)); seen > readBehind {
			if n, ok, err := c.countExpired(ctx, r, floor, end, upTo); ok || err != nil {
				return n, err
			}
		}
	}
	return due, nil
}

// behindEvery returns how long it is from one count of what is behind the cursors to the next.
func (c *collector) behindEvery() time.Duration { return max(leastBehind, c.rules.Rewind/behindParts) }

// countAllBehind counts what is due behind the cursors of all ranges that writers may write
// to, for people. If that fails, the number from before remains.
func (c *collector) countAllBehind(ctx context.Context, p *plan.Plan) {
	p, err := c.withSaved(ctx, p)
	if err != nil {
		c.failedBehind(ctx, err)
		return
	}
	var list []shardquery.Range
	for r := range p.All() {
		if p.Range(r).Read { // else it is sealed and was read to its end since
			list = append(list, r)
		}
	}
	upTo := int64(max(behindRangeUpTo, behindUpTo/max(1, len(list))))
	var sum atomic.Int64
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(countersAtOnce)
	for _, r := range list {
		Go(group, func() error {
			within, cancel := context.WithTimeout(inGroup, countTimeout)
			defer cancel()
			n, err := c.countBehind(within, p, r, upTo)
			sum.Add(n)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		c.failedBehind(ctx, err)
		return
	}
	c.cfg.Metrics.Behind(c.target.Name, sum.Load())
}

func (c *collector) failedBehind(ctx context.Context, err error) {
	if ctx.Err() == nil {
		c.log.failed("count what is due behind the cursors", "", err)
	}
}

// withSaved returns a plan with the records that other processes have saved of ranges in
// which this one has found nothing: it needs none of them for a sweep, and may lack them for as
// long as it serves.
func (c *collector) withSaved(ctx context.Context, p *plan.Plan) (*plan.Plan, error) {
	var ids []cursor.ID
	for r := range p.All() {
		if p.Range(r).Unread {
			ids = append(ids, p.ID(r))
		}
	}
	for some := range slices.Chunk(ids, store.MaxRecords) {
		if err := c.viewer.readSome(ctx, some, recordPatience); err != nil {
			return nil, err
		}
	}
	return p.With(c.viewer.View()), nil
}
