package spend

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// mostJudged bounds the hours that a dry run judges.
const mostJudged = 24

// Foresee returns the trip that a sweep with --apply would make; nil if it would make none. Oldest
// is when the first of what is due has expired; zero if nothing is. It writes nothing.
func (j *Judge) Foresee(ctx context.Context, oldest time.Time) (*breaker.Trip, error) {
	b, err := j.s.read(ctx)
	if err != nil {
		return nil, err
	}
	now, rec := j.s.now(), j.s.Viewer.View().Record
	if j.isUnswept(rec) {
		n, err := patientCount(j.s.Rules.Floor, false, func(upTo int64) (breaker.Count, error) {
			return j.countDue(ctx, b, j.s.Rules.Horizon(now), upTo)
		})
		if err != nil {
			return nil, err
		}
		return breaker.JudgeGround(j.s.Rules, now, n), nil
	}
	if b.Began.IsZero() { // a sweep would begin to learn
		b.Began = now
	}
	keys := []breaker.Key{breaker.Late()}
	if !oldest.IsZero() {
		first, last := j.s.Rules.HourOf(oldest), j.s.Rules.HourOf(j.s.Rules.Horizon(now))
		hours, err := j.crowded(ctx, j.plan(), first.Hour, j.s.Rules.End(last), mostJudged)
		if err != nil {
			return nil, err
		}
		keys = append(keys, hours...)
	}
	for _, k := range keys {
		n, all, err := j.measure(ctx, b, k, rec.Approvals, now)
		if err != nil {
			return nil, err
		}
		if all >= 0 {
			b = b.CountedAll(now, all)
		}
		if _, trip := b.Judge(j.s.Rules, now, k, n); trip != nil {
			return trip, nil
		}
	}
	return nil, nil
}

// crowded lists hours that hold more than the floor, the latest first. It halves the time between two
// instants, and leaves out each part that holds less.
func (j *Judge) crowded(
	ctx context.Context, p *plan.Plan, from, to time.Time, most int,
) (list []breaker.Key, err error) {
	var spans []index.Span
	for r := range p.All() {
		spans = index.AppendSpan(spans, r, from, to)
	}
	if n, err := j.s.Index.Count(ctx, spans, j.s.Rules.Floor+1); err != nil || n <= j.s.Rules.Floor {
		return nil, err
	}
	half := j.s.Rules.HourOf(from.Add(to.Sub(from) / 2)).Hour
	if !half.After(from) {
		return []breaker.Key{{Hour: from}}, nil
	}
	list, err = j.crowded(ctx, p, half, to, most)
	if err == nil && len(list) < most {
		var older []breaker.Key
		older, err = j.crowded(ctx, p, from, half, most-len(list))
		list = append(list, older...)
	}
	return list, err
}

// isUnswept reports whether a sweep with --apply would find the target to be unswept ground. The
// record does not say what this configuration changes.
func (j *Judge) isUnswept(r generation.Record) bool {
	return r.Revision == "" || r.IsUnswept(j.s.Rules.Retention) || !j.holdsGround(r) ||
		!r.Shortest.Known && r.Retention.Known && j.s.Rules.Retention < r.Retention.Length
}
