package spend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// histogramWithin bounds the counts for the histogram of a trip, which is for people.
	histogramWithin = 10 * time.Second
	// mostSamples is how many entities of an event are named.
	mostSamples = 5
)

// A tripper trips the breaker of one target.
type tripper struct {
	scope    cursor.Scope // of the target
	viewer   *view.Viewer
	clock    *storeclock.Clock
	log      *journal.Journal
	story    *chronicle.Chronicle // nil without a history
	ledger   *ledger
	describe describer
}

// trip writes a trip to the target record, and its details for people to the budget.
// If another process was first, its trip stays. If an event was approved since this one was
// counted, it may be the same.
func (p *tripper) trip(ctx context.Context, t breaker.Trip, approvals []breaker.Approval) error {
	t.ID, t.At = newID(t), p.clock.Now()
	isFirst := false
	err := p.viewer.ChangeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is
		if !is.Trip.IsOpen() && sameApprovals(is.Approvals, approvals) { // an approval is for what the record names
			next = is.Holding(p.scope.Kind, p.scope.Property).Tripped(t)
		}
		isFirst = next.Trip.ID == t.ID
		return next, !next.EqualContent(is), nil
	})
	if err != nil { // it may be written although the answer was lost: no other process would report it
		if p.viewer.ReloadRecord(ctx) != nil || p.viewer.View().Record.Trip.ID != t.ID {
			return err
		}
		isFirst = true
	}
	if !isFirst {
		return nil
	}
	p.log.ErrorContext(ctx, "breaker tripped: deletes suspended until the event is approved", "trip", t.ID,
		"rule", string(t.Rule), "due", t.Due, "limit", t.Limit, "all", t.All, "deleted", t.Gone)
	p.story.Tell(history.KindTrip, history.Change{What: "trip " + t.ID,
		After: fmt.Sprintf("%s; %d were deleted before", t.Summary(), t.Gone)})
	detail := p.describe.Describe(ctx, t)
	_, err = p.ledger.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		b.Trip = detail
		return b
	})
	return err
}

func sameApprovals(a, b []breaker.Approval) bool {
	return len(a) == len(b) && (len(a) == 0 || a[len(a)-1].ID == b[len(b)-1].ID)
}

// newID names a trip by its instant and its process, so that two of the same instant differ.
func newID(t breaker.Trip) string {
	return t.At.UTC().Format("20060102t150405") + "-" + string(t.Rule) + "-" + store.NewRevision("")[2:8]
}

// A describer finds out what people want to know of a trip.
type describer struct {
	rules  breaker.Rules
	index  *index.Index
	extent *extent
}

func newDescriber(cfg Config, c *counter) describer {
	return describer{rules: cfg.Rules, index: cfg.Index, extent: c.bounds.extent}
}

// Describe returns what people want to know of a trip. A store that is too slow to count may still name a few.
func (d describer) Describe(ctx context.Context, t breaker.Trip) breaker.Detail {
	samples := d.samples(ctx, t)
	return breaker.Detail{ID: t.ID, Histogram: d.Histogram(ctx, t), Samples: samples}
}

// samples names some entities of an event. Its errors only shorten the list.
func (d describer) samples(ctx context.Context, t breaker.Trip) (ids []string) {
	keyer, ok := d.index.Store.(store.Keyer)
	if !ok {
		return nil
	}
	for r := range d.extent.plan().All() {
		from := t.Hour
		if from.IsZero() {
			from = d.index.Floor(t.Through)
		}
		err := d.index.Entries(ctx, r, store.Position{Value: r.At(from).Value}, t.Through, t.Through, mostSamples,
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

// Histogram counts how much of an event expires when, in each generation. Its errors only shorten
// the list.
func (d describer) Histogram(ctx context.Context, t breaker.Trip) (bars []breaker.Bar) {
	ctx, cancel := context.WithTimeout(ctx, histogramWithin)
	defer cancel()
	edges := t.Edges(d.rules.Window, d.index.Floor(t.Through))
	for i, from := range edges[:len(edges)-1] {
		spans := map[int][]index.Span{}
		for r := range d.extent.plan().All() {
			spans[r.Generation] = index.AppendSpan(spans[r.Generation], r, from, edges[i+1])
		}
		for _, number := range slices.Sorted(maps.Keys(spans)) {
			n, err := d.index.Count(ctx, spans[number], 0)
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
