package spend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/shardquery"
)

// An uncounted is the error of a count.
type uncounted struct{ error }

func (u uncounted) Unwrap() error { return u.error }

// isUncounted reports whether an error is that of a count.
func isUncounted(err error) bool { return errors.As(err, new(uncounted)) }

// A counter counts, for the breaker, what the index holds. It writes nothing.
type counter struct {
	rules  breaker.Rules
	bounds *bounds
	late   *lateReader
	log    *journal.Journal
}

// newCounter returns a counter of what the target holds, with all that it counts by.
func newCounter(cfg Config) *counter {
	e := &extent{rules: cfg.Plan, viewer: cfg.Viewer, clock: cfg.Clock}
	s := &swept{rules: cfg.Rules, viewer: cfg.Viewer, upTo: map[shardquery.Range]time.Time{}}
	b := &bounds{rules: cfg.Rules, index: cfg.Index, extent: e, swept: s}
	l := &lateReader{rules: cfg.Rules, bounds: b, now: cfg.Now}
	return &counter{rules: cfg.Rules, bounds: b, late: l, log: cfg.Log}
}

// now returns the store's time.
func (c *counter) now() time.Time { return c.bounds.extent.clock.Now() }

// measure counts what is left under a key and, as far as that is needed to judge it, all
// entities. All is less than 0 if they were not counted.
func (c *counter) measure(
	ctx context.Context, b breaker.Budget, k breaker.Key, approvals []breaker.Approval, now time.Time,
) (n breaker.Count, all int64, err error) {
	all = -1
	approved, parts := b.Approvals(c.rules, approvals, now, k)
	if approved.Reserved, err = c.reserved(ctx, b, k, parts, now); err != nil {
		return n, all, err
	}
	for limit := b.Enough(c.rules, now, k) + approved.Reserved; ; {
		tooLong := n.More || k.IsLate() && c.late.isReading()
		n, err = patientCount(limit, tooLong, func(upTo int64) (breaker.Count, error) {
			return c.count(ctx, b, k, now, upTo)
		})
		if err != nil {
			return n, all, err
		}
		n.Reserved, n.Held, n.Gone = approved.Reserved, approved.Held, approved.Gone
		if upTo := b.AllNeeded(c.rules, now, k, n); upTo > 0 {
			switch counted, err := c.countAll(ctx, upTo); {
			case err != nil && !b.KnowsAll():
				return n, all, fmt.Errorf("all entities: %w", err)
			case err != nil:
				c.log.Failed("count all entities for the breaker", "", err)
			default:
				all, b = counted, b.CountedAll(now, counted)
			}
		}
		next := b.Enough(c.rules, now, k) + approved.Reserved
		if !n.More || next <= limit { // else what was counted is no longer enough to trip
			return n, all, nil
		}
		limit = next
	}
}

// reserved returns how much of what is due under a key can be what was reserved: where that lies, there
// may be less. It is nothing of what is late if that takes too long to count.
func (c *counter) reserved(
	ctx context.Context, b breaker.Budget, k breaker.Key, parts []breaker.Part, now time.Time,
) (n int64, err error) {
	there := func(p breaker.Part, upTo int64) (int64, error) {
		if !k.IsLate() && !p.Through.Before(c.rules.End(k)) {
			return upTo, nil // all of the hour
		}
		n, err := c.bounds.index.Count(ctx, c.bounds.within(b, k, p, c.rules.Horizon(now)), upTo)
		return min(n, upTo), err
	}
	n, err = breaker.Reserved(parts, there)
	if err != nil && k.IsLate() && isUnanswered(ctx, err) {
		return 0, nil
	}
	return n, err
}

// patientCount counts all of something. If that takes too long, or is known to, it counts only up
// to a number that shows whether there is more than a limit.
func patientCount(
	limit int64, tooLong bool, count func(upTo int64) (breaker.Count, error),
) (n breaker.Count, err error) {
	if !tooLong {
		if n, err = count(0); err == nil || errors.Is(err, context.Canceled) {
			return n, err
		}
	}
	enough := 2*limit + 1
	if n, err = count(enough); n.Due+n.Coming >= enough {
		n.More = true
	}
	return n, err
}

// count counts what is left under a key, without what was approved before.
func (c *counter) count(
	ctx context.Context, b breaker.Budget, k breaker.Key, now time.Time, upTo int64,
) (n breaker.Count, err error) {
	horizon := c.rules.Horizon(now)
	if k.IsLate() {
		n.Due, err = c.late.count(ctx, c.bounds.late(b, horizon), b, now, upTo)
		return n, err
	}
	due, coming := c.bounds.hour(b, k, horizon)
	if n.Due, err = c.bounds.index.Count(ctx, due, upTo); err == nil {
		n.Coming, err = c.bounds.index.Count(ctx, coming, upTo)
	}
	return n, err
}

// countDue counts all that is due at a horizon, without what was approved before.
func (c *counter) countDue(
	ctx context.Context, b breaker.Budget, horizon time.Time, upTo int64,
) (n breaker.Count, err error) {
	n.Due, err = c.bounds.index.Count(ctx, c.bounds.due(b, horizon), upTo)
	return n, err
}

// eventWith counts the event that what was counted under a key belongs to: what is late is one event
// with all that is due.
func (c *counter) eventWith(
	ctx context.Context, b breaker.Budget, k breaker.Key, n breaker.Count, now time.Time,
) (event breaker.Count, err error) {
	left := n.Due + n.Coming
	event = breaker.Count{Due: max(0, left-n.Reserved), More: n.More}
	if !k.IsLate() || left <= c.rules.Floor {
		return event, nil
	}
	whole, err := patientCount(left, c.late.isReading(), func(upTo int64) (breaker.Count, error) {
		return c.countDue(ctx, b, c.rules.Horizon(now), upTo)
	})
	switch {
	case err == nil:
		event = whole
		event.Due = max(0, event.Due-n.Reserved)
	case !c.late.isReading() || ctx.Err() != nil:
		return event, err
	default: // what is late can be judged without
		event.More = true
	}
	return event, nil
}

// countAll counts what carries the property, up to a bound: in one query for each namespace
// or, if that takes too long, range by range.
func (c *counter) countAll(ctx context.Context, upTo int64) (sum int64, err error) {
	for _, ns := range c.bounds.extent.view().Namespaces {
		n, err := c.bounds.index.Count(ctx, []index.Span{{Namespace: ns}}, upTo-sum)
		if err != nil {
			return c.countRanges(ctx, upTo)
		}
		if sum += n; sum >= upTo {
			break
		}
	}
	return sum, nil
}

func (c *counter) countRanges(ctx context.Context, upTo int64) (sum int64, err error) {
	x := c.bounds.index
	for r := range c.bounds.extent.plan().All() {
		from := x.Floor(c.now())
		n, err := x.Count(ctx, index.AppendSpan(nil, r, from, shardquery.LastInstant), upTo-sum)
		if err != nil {
			return 0, err
		}
		if sum += n; sum >= upTo {
			break
		}
	}
	return sum, nil
}
