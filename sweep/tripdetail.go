package sweep

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// histogramWithin bounds the counts for the histogram of a trip, which is for people.
	histogramWithin = 10 * time.Second
	// mostSamples is how many entities of an event are named.
	mostSamples = 5
)

// CountTrip counts what is left of the event of a trip. It writes nothing.
func CountTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (int64, error) {
	j, err := openJudge(ctx, cfg, t)
	if err != nil {
		return 0, err
	}
	b, err := j.s.read(ctx) // it says which approvals are spent
	if err != nil {
		return 0, err
	}
	var n breaker.Count
	switch now := j.s.now(); trip.Rule {
	case breaker.Burst:
		n, err = j.count(ctx, b, breaker.Key{Hour: trip.Hour}, now, 0)
	case breaker.LateOnes: // cursors have not moved since
		n, err = j.countTrip(ctx, b, trip, now)
	default: // what came to be due since is no part of it
		n, err = j.countDue(ctx, b, earlierOf(trip.Through, j.s.rules.Horizon(now)), 0)
	}
	return n.Due + n.Coming, err
}

// countTrip counts what is late, however long that takes; if it has to read, as much as tells whether
// that is too much.
func (j *judge) countTrip(
	ctx context.Context, b breaker.Budget, trip breaker.Trip, now time.Time,
) (n breaker.Count, err error) {
	for limit := max(trip.Limit, b.Enough(j.s.rules, now, breaker.Late())); ; {
		n, err = patientCount(limit, j.late != nil,
			func(upTo int64) (breaker.Count, error) { return j.count(ctx, b, breaker.Late(), now, upTo) })
		if !errors.Is(err, errLateRead) {
			return n, err
		}
	}
}

// DescribeTrip finds out what people want to know of a trip, if the process that tripped was
// killed before it could write that down. It describes what is left, and writes nothing.
func DescribeTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (breaker.Detail, error) {
	j, err := openJudge(ctx, cfg, t)
	if err != nil {
		return breaker.Detail{}, err
	}
	return j.describe(ctx, trip), nil
}

// openJudge returns a judge that only looks.
func openJudge(ctx context.Context, cfg Config, t Target) (*judge, error) {
	cfg = cfg.withDefaults()
	cfg.Apply = false
	c := newCollector(&cfg, &t)
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	return newJudge(&spender{c: c, rules: BreakerRules(t)}), nil
}

// describe returns what people want to know of a trip.
func (j *judge) describe(ctx context.Context, t breaker.Trip) breaker.Detail {
	return breaker.Detail{ID: t.ID, Histogram: j.histogram(ctx, t), Samples: j.samples(ctx, t)}
}

// samples names some entities of an event. People can do without them.
func (j *judge) samples(ctx context.Context, t breaker.Trip) (ids []string) {
	keyer, ok := j.s.c.cfg.Store.(store.Keyer)
	if !ok {
		return nil
	}
	for r := range j.plan().All() {
		from := t.Hour
		if from.IsZero() {
			from = j.s.c.floor(t.Through)
		}
		err := j.s.c.entries(ctx, r, store.Position{Value: r.At(from).Value}, t.Through, t.Through, mostSamples,
			func(e store.Entry, is judgement) bool {
				if id, err := keyer.ID(e.Key); err == nil && is == due {
					ids = append(ids, id)
				}
				return len(ids) < mostSamples
			})
		if err != nil || len(ids) >= mostSamples {
			break
		}
	}
	return ids
}

// histogram counts how much of an event expires when, in each generation. People can do without it.
func (j *judge) histogram(ctx context.Context, t breaker.Trip) (bars []breaker.Bar) {
	ctx, cancel := context.WithTimeout(ctx, histogramWithin)
	defer cancel()
	edges := j.edges(t)
	for i, from := range edges[:len(edges)-1] {
		spans := map[int][]placedSpan{}
		for r := range j.plan().All() {
			spans[r.Generation] = appendSpan(spans[r.Generation], r, from, edges[i+1])
		}
		for _, number := range slices.Sorted(maps.Keys(spans)) {
			n, err := j.countSpans(ctx, spans[number], 0)
			if err != nil {
				return bars
			}
			if n > 0 {
				bars = append(bars, breaker.Bar{From: from, To: edges[i+1], Generation: number, N: n})
			}
		}
	}
	return bars
}

// edges returns where the bars of a histogram begin and end: sixths of an hour, or lengths of
// time before the trip.
func (j *judge) edges(t breaker.Trip) (list []time.Time) {
	if t.Rule == breaker.Burst {
		for i := range 7 {
			list = append(list, t.Hour.Add(time.Duration(i)*j.s.rules.Window/6))
		}
		return list
	}
	const day = 24 * time.Hour
	list = append(list, j.s.c.floor(t.Through))
	for _, before := range []time.Duration{365 * day, 30 * day, 7 * day, day, time.Hour} {
		if at := t.Through.Add(-before); at.After(list[0]) {
			list = append(list, at)
		}
	}
	return append(list, t.Through.Add(time.Millisecond))
}
