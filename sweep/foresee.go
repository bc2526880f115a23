package sweep

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
)

// mostHours bounds the hours that a dry run remembers, and mostJudged those that it counts.
const mostHours, mostJudged = 1000, 24

// A Foreseen is an event for which a sweep with --apply would trip the breaker.
type Foreseen struct {
	Rule      breaker.Rule  `json:"rule"`
	Hour      time.Time     `json:"hour"` // of a burst: when its window of expiry begins
	Due       int64         `json:"due"`
	Limit     int64         `json:"limit"`
	All       int64         `json:"all"`
	Histogram []breaker.Bar `json:"histogram"`
}

// foresees reports whether the sweep is a dry run of a target with a breaker that is closed.
func (c *collector) foresees() bool {
	return !c.cfg.Apply && c.target.Breaker.On && c.viewer.View() != nil && !c.viewer.View().Record.Trip.IsOpen()
}

// noteHours notes the hours of what is due on a page.
func (v *visit) noteHours(s *scratch) {
	if !v.c.target.Breaker.On {
		return
	}
	v.c.tally.mu.Lock()
	defer v.c.tally.mu.Unlock()
	p := &v.c.tally.preview
	for i := range s.ops {
		at, err := v.c.rules.Form.Expires(s.ops[i].Entry.Value)
		if hour := v.c.target.Breaker.HourOf(at).Hour; err == nil && !isCarry(&s.ops[i]) && len(p.hours) < mostHours {
			if p.hours == nil {
				p.hours = map[time.Time]bool{}
			}
			p.hours[hour] = true
		}
	}
}

// foresee judges what a dry run has found due, as a sweep with --apply would. It writes nothing,
// and knows of hours only what was read.
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
	return &Foreseen{Rule: trip.Rule, Hour: trip.Hour, Due: trip.Due + trip.Gone, Limit: trip.Limit, All: trip.All,
		Histogram: j.histogram(ctx, *trip)}
}

func (j *judge) foresee(ctx context.Context) (*breaker.Trip, error) {
	b, err := j.s.read(ctx)
	if err != nil {
		return nil, err
	}
	now := j.s.now()
	if j.isUnswept(j.s.c.viewer.View().Record) {
		n, err := patientCount(j.s.rules.Floor, false, func(upTo int64) (breaker.Count, error) {
			return j.countDue(ctx, b, j.s.rules.Horizon(now), upTo)
		})
		if err != nil {
			return nil, err
		}
		return breaker.JudgeGround(j.s.rules, now, n), nil
	}
	t := j.s.c.tally
	t.mu.Lock()
	hours := slices.SortedFunc(maps.Keys(t.preview.hours), func(a, b time.Time) int { return b.Compare(a) })
	t.mu.Unlock()
	keys := []breaker.Key{breaker.Late()}
	for _, hour := range hours[:min(len(hours), mostJudged)] {
		keys = append(keys, breaker.Key{Hour: hour})
	}
	for _, k := range keys {
		n, all, err := j.measure(ctx, b, k, now)
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

// isUnswept reports whether a sweep with --apply would find the target to be unswept ground. The
// record does not say what this configuration changes.
func (j *judge) isUnswept(r generation.Record) bool {
	t := j.s.c.target
	return r.Revision == "" || r.IsUnswept(t.Retention) || !j.holdsGround(r) ||
		!r.Shortest.Known && r.Retention.Known && t.Retention < r.Retention.Length
}
