package sweep

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// mostJudged bounds the hours that a dry run judges.
const mostJudged = 24

// A Foreseen is an event for which a sweep with --apply would trip the breaker.
type Foreseen struct {
	Rule      breaker.Rule  `json:"rule"`
	Hour      *time.Time    `json:"hour"` // of a burst: when its window of expiry begins; else nil
	Due       int64         `json:"due"`
	Limit     int64         `json:"limit"`
	All       int64         `json:"all"`
	Histogram []breaker.Bar `json:"histogram"`
}

// foresees reports whether the sweep is a dry run of a target with a breaker that is closed.
func (c *collector) foresees() bool {
	return !c.cfg.Apply && c.target.Breaker.On && c.viewer.View() != nil && !c.viewer.View().Record.Trip.IsOpen()
}

// noteOldest notes when the first of what is due on a page has expired.
func (v *visit) noteOldest(s *scratch) {
	if !v.c.target.Breaker.On {
		return
	}
	v.c.tally.mu.Lock()
	defer v.c.tally.mu.Unlock()
	oldest := &v.c.tally.preview.oldest
	for i := range s.ops {
		at, err := v.c.rules.Form.Expires(s.ops[i].Entry.Value)
		if err == nil && !isCarry(&s.ops[i]) && (oldest.IsZero() || at.Before(*oldest)) {
			*oldest = at
		}
	}
}

// foresee judges what a dry run has found due, as a sweep with --apply would. It writes nothing.
func (c *collector) foresee(ctx context.Context) *Foreseen {
	j := newJudge(&spender{c: c, rules: BreakerRules(*c.target)})
	trip, err := j.foresee(ctx)
	if err != nil {
		c.log.DebugContext(ctx, "cannot foresee whether the breaker would trip", "error", err)
		return nil
	}
	if trip == nil {
		return nil
	}
	c.log.WarnContext(ctx, "with --apply the breaker would trip", "rule", string(trip.Rule), "due", trip.Due,
		"limit", trip.Limit)
	would := &Foreseen{Rule: trip.Rule, Due: trip.Due + trip.Gone, Limit: trip.Limit, All: trip.All,
		Histogram: j.histogram(ctx, *trip)}
	if !trip.Hour.IsZero() {
		would.Hour = &trip.Hour
	}
	return would
}

func (j *judge) foresee(ctx context.Context) (*breaker.Trip, error) {
	b, err := j.s.read(ctx)
	if err != nil {
		return nil, err
	}
	now, rec := j.s.now(), j.s.c.viewer.View().Record
	if j.isUnswept(rec) {
		n, err := patientCount(j.s.rules.Floor, false, func(upTo int64) (breaker.Count, error) {
			return j.countDue(ctx, b, j.s.rules.Horizon(now), upTo)
		})
		if err != nil {
			return nil, err
		}
		return breaker.JudgeGround(j.s.rules, now, n), nil
	}
	if b.Began.IsZero() { // a sweep would begin to learn
		b.Began = now
	}
	t := j.s.c.tally
	t.mu.Lock()
	oldest := t.preview.oldest
	t.mu.Unlock()
	keys := []breaker.Key{breaker.Late()}
	if !oldest.IsZero() {
		first, last := j.s.rules.HourOf(oldest), j.s.rules.HourOf(j.s.rules.Horizon(now))
		hours, err := j.crowded(ctx, j.plan(), first.Hour, j.s.rules.End(last), mostJudged)
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
		if _, trip := b.Judge(j.s.rules, now, k, n); trip != nil {
			return trip, nil
		}
	}
	return nil, nil
}

// crowded lists hours that hold more than the floor, the latest first. It halves the time between two
// instants, and leaves out each part that holds less.
func (j *judge) crowded(
	ctx context.Context, p *plan.Plan, from, to time.Time, most int,
) (list []breaker.Key, err error) {
	var spans []placedSpan
	for r := range p.All() {
		spans = appendSpan(spans, r, from, to)
	}
	if n, err := j.countSpans(ctx, spans, j.s.rules.Floor+1); err != nil || n <= j.s.rules.Floor {
		return nil, err
	}
	half := j.s.rules.HourOf(from.Add(to.Sub(from) / 2)).Hour
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
func (j *judge) isUnswept(r generation.Record) bool {
	t := j.s.c.target
	return r.Revision == "" || r.IsUnswept(t.Retention) || !j.holdsGround(r) ||
		!r.Shortest.Known && r.Retention.Known && t.Retention < r.Retention.Length
}
