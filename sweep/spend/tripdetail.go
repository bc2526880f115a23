package spend

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
)

const (
	// histogramWithin bounds the counts for the histogram of a trip, which is for people.
	histogramWithin = 10 * time.Second
	// mostSamples is how many entities of an event are named.
	mostSamples = 5
)

// CountLeft counts what is left of the event of a trip. It writes nothing.
func (j *Judge) CountLeft(ctx context.Context, trip breaker.Trip) (int64, error) {
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
		n, err = j.countDue(ctx, b, earlierOf(trip.Through, j.s.Rules.Horizon(now)), 0)
	}
	return n.Due + n.Coming, err
}

// countTrip counts what is late, however long that takes; if it has to read, as much as tells whether
// that is too much.
func (j *Judge) countTrip(
	ctx context.Context, b breaker.Budget, trip breaker.Trip, now time.Time,
) (n breaker.Count, err error) {
	for limit := max(trip.Limit, b.Enough(j.s.Rules, now, breaker.Late())); ; {
		n, err = patientCount(limit, j.late != nil,
			func(upTo int64) (breaker.Count, error) { return j.count(ctx, b, breaker.Late(), now, upTo) })
		if !errors.Is(err, errLateRead) {
			return n, err
		}
	}
}

// Describe returns what people want to know of a trip.
func (j *Judge) Describe(ctx context.Context, t breaker.Trip) breaker.Detail {
	return breaker.Detail{ID: t.ID, Histogram: j.Histogram(ctx, t), Samples: j.samples(ctx, t)}
}

// samples names some entities of an event. People can do without them.
func (j *Judge) samples(ctx context.Context, t breaker.Trip) (ids []string) {
	keyer, ok := j.s.Index.Store.(store.Keyer)
	if !ok {
		return nil
	}
	for r := range j.plan().All() {
		from := t.Hour
		if from.IsZero() {
			from = j.s.Index.Floor(t.Through)
		}
		err := j.s.Index.Entries(ctx, r, store.Position{Value: r.At(from).Value}, t.Through, t.Through, mostSamples,
			func(e store.Entry, is index.Judgement) bool {
				if id, err := keyer.ID(e.Key); err == nil && is == index.Due {
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

// Histogram counts how much of an event expires when, in each generation. People can do without it.
func (j *Judge) Histogram(ctx context.Context, t breaker.Trip) (bars []breaker.Bar) {
	ctx, cancel := context.WithTimeout(ctx, histogramWithin)
	defer cancel()
	edges := j.edges(t)
	for i, from := range edges[:len(edges)-1] {
		spans := map[int][]index.Span{}
		for r := range j.plan().All() {
			spans[r.Generation] = index.AppendSpan(spans[r.Generation], r, from, edges[i+1])
		}
		for _, number := range slices.Sorted(maps.Keys(spans)) {
			n, err := j.s.Index.Count(ctx, spans[number], 0)
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
func (j *Judge) edges(t breaker.Trip) (list []time.Time) {
	if t.Rule == breaker.Burst {
		for i := range 7 {
			list = append(list, t.Hour.Add(time.Duration(i)*j.s.Rules.Window/6))
		}
		return list
	}
	const day = 24 * time.Hour
	list = append(list, j.s.Index.Floor(t.Through))
	for _, before := range []time.Duration{365 * day, 30 * day, 7 * day, day, time.Hour} {
		if at := t.Through.Add(-before); at.After(list[0]) {
			list = append(list, at)
		}
	}
	return append(list, t.Through.Add(time.Millisecond))
}
