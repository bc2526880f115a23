package spend

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
)

// mostJudged bounds the hours that a dry run judges.
const mostJudged = 24

// An Observer counts and judges as the breaker of a target does, and writes nothing.
type Observer struct {
	describer
	scope   cursor.Scope // of the target
	viewer  *view.Viewer
	clock   *storeclock.Clock
	ledger  *ledger
	counter *counter
}

// Observe returns an observer that has read nothing yet.
func Observe(cfg Config) *Observer {
	c := newCounter(cfg)
	return &Observer{scope: cfg.Plan.Scope, viewer: cfg.Viewer, clock: cfg.Clock, ledger: newLedger(cfg), counter: c,
		describer: newDescriber(cfg, c)}
}

// CountLeft counts what is left of the event of a trip.
func (o *Observer) CountLeft(ctx context.Context, trip breaker.Trip) (int64, error) {
	b, err := o.ledger.read(ctx) // it says which approvals are spent
	if err != nil {
		return 0, err
	}
	var n breaker.Count
	switch now := o.clock.Now(); trip.Rule {
	case breaker.Burst:
		n, err = o.counter.count(ctx, b, breaker.Key{Hour: trip.Hour}, now, 0)
	case breaker.LateOnes: // cursors have not moved since
		n, err = o.countTrip(ctx, b, trip, now)
	default: // what came to be due since is no part of it
		n, err = o.counter.countDue(ctx, b, earlierOf(trip.Through, o.rules.Horizon(now)), 0)
	}
	return n.Due + n.Coming, err
}

// countTrip counts what is late, however long that takes. If it has to read, it stops as soon as
// that is known to be too much.
func (o *Observer) countTrip(
	ctx context.Context, b breaker.Budget, trip breaker.Trip, now time.Time,
) (n breaker.Count, err error) {
	for limit := max(trip.Limit, b.Enough(o.rules, now, breaker.Late())); ; {
		n, err = patientCount(limit, o.counter.late.isReading(),
			func(upTo int64) (breaker.Count, error) { return o.counter.count(ctx, b, breaker.Late(), now, upTo) })
		if !errors.Is(err, errLateRead) {
			return n, err
		}
	}
}

// Forecast returns the trip that a sweep with --apply would make; nil if it would make none. Oldest
// is when the first of what is due has expired; zero if nothing is.
func (o *Observer) Forecast(ctx context.Context, oldest time.Time) (*breaker.Trip, error) {
	b, err := o.ledger.read(ctx)
	if err != nil {
		return nil, err
	}
	now, rec := o.clock.Now(), o.viewer.View().Record
	if o.isUnswept(rec) {
		n, err := patientCount(o.rules.Floor, false, func(upTo int64) (breaker.Count, error) {
			return o.counter.countDue(ctx, b, o.rules.Horizon(now), upTo)
		})
		if err != nil {
			return nil, err
		}
		return breaker.JudgeUnswept(o.rules, now, n), nil
	}
	if b.Began.IsZero() { // a sweep would begin to learn
		b.Began = now
	}
	keys := []breaker.Key{breaker.Late()}
	if !oldest.IsZero() {
		first, last := o.rules.HourOf(oldest), o.rules.HourOf(o.rules.Horizon(now))
		hours, err := o.crowded(ctx, o.counter.bounds.extent.plan(), first.Hour, o.rules.End(last), mostJudged)
		if err != nil {
			return nil, err
		}
		keys = append(keys, hours...)
	}
	for _, k := range keys {
		var trip *breaker.Trip
		if b, trip, err = o.judge(ctx, b, k, now); err != nil || trip != nil {
			return trip, err
		}
	}
	return nil, nil
}

// judge counts what is left under a key, and returns the trip that it would make, if any.
func (o *Observer) judge(
	ctx context.Context, b breaker.Budget, k breaker.Key, now time.Time,
) (breaker.Budget, *breaker.Trip, error) {
	n, all, err := o.counter.measure(ctx, b, k, o.viewer.View().Record.Approvals, now)
	if err != nil {
		return b, nil, err
	}
	if all >= 0 {
		b = b.CountedAll(now, all)
	}
	_, trip := b.Judge(o.rules, now, k, n)
	return b, trip, nil
}

// ForecastLate returns the trip that the next reads from the start would make, if so many entities lie behind
// the cursors; nil if none. It counts only if that may be too many.
func (o *Observer) ForecastLate(ctx context.Context, behind int64) (*breaker.Trip, error) {
	if rec := o.viewer.View().Record; !o.rules.On || behind == 0 || rec.Trip.IsOpen() || o.isUnswept(rec) {
		return nil, nil
	}
	b, err := o.ledger.read(ctx)
	now := o.clock.Now()
	if _, trip := b.Judge(o.rules, now, breaker.Late(), breaker.Count{Due: behind}); err != nil || trip == nil {
		return nil, err
	}
	_, trip, err := o.judge(ctx, b, breaker.Late(), now)
	return trip, err
}

// crowded lists hours that hold more than the floor, the latest first. It halves the time between two
// instants, and leaves out each part that holds less.
func (o *Observer) crowded(
	ctx context.Context, p *plan.Plan, from, to time.Time, most int,
) (list []breaker.Key, err error) {
	var spans []index.Span
	for r := range p.All() {
		spans = index.AppendSpan(spans, r, from, to)
	}
	n, err := o.counter.bounds.index.Count(ctx, spans, o.rules.Floor+1)
	if err != nil || n <= o.rules.Floor {
		return nil, err
	}
	half := o.rules.HourOf(from.Add(to.Sub(from) / 2)).Hour
	if !half.After(from) {
		return []breaker.Key{{Hour: from}}, nil
	}
	list, err = o.crowded(ctx, p, half, to, most)
	if err == nil && len(list) < most {
		var older []breaker.Key
		older, err = o.crowded(ctx, p, from, half, most-len(list))
		list = append(list, older...)
	}
	return list, err
}

// isUnswept reports whether a sweep with --apply would find the target to be unswept. The
// record does not say what this configuration changes.
func (o *Observer) isUnswept(r generation.Record) bool {
	return r.Revision == "" || r.IsUnswept(o.rules.Retention) || !isSweptAs(r, o.scope) ||
		!r.Shortest.Known && r.Retention.Known && o.rules.Retention < r.Retention.Length
}
