package spend

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// An extent is all that is counted of a target: its ranges in every namespace that any
// deployment sweeps. Deployments share the hours of the target, so each counts what the others delete.
type extent struct {
	rules  plan.Rules
	viewer *view.Viewer
	clock  *storeclock.Clock

	mu         sync.Mutex
	namespaces []string // at the last count; nil before it
}

// plan returns the plan of now, which lists the ranges to be counted.
func (e *extent) plan() *plan.Plan {
	v := e.view()
	return plan.New(e.rules, &v, plan.Book{}, e.clock.Now())
}

// view returns the present view with the namespaces that any deployment sweeps.
func (e *extent) view() plan.View {
	v := *e.viewer.View()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.namespaces != nil {
		v.Namespaces = e.namespaces
	}
	return v
}

// find finds the namespaces that any deployment sweeps.
func (e *extent) find(ctx context.Context) error {
	list, err := e.viewer.AllNamespaces(ctx, e.plan())
	if err != nil {
		return fmt.Errorf("list the namespaces: %w", err)
	}
	e.mu.Lock()
	e.namespaces = list
	e.mu.Unlock()
	return nil
}

// retired lists the keys of generations that have retired: whatever the audit deletes there is
// late.
func (e *extent) retired(p *plan.Plan) (list []index.Span) {
	v := e.view()
	if !e.rules.Form.HasGenerations() {
		return nil
	}
	for _, ns := range v.Namespaces {
		for _, s := range p.AuditSpans(ns) {
			isLive := slices.ContainsFunc(v.Record.Generations, func(g generation.Generation) bool { return s.Has(g.Number) })
			if !isLive {
				list = append(list, index.Span{Namespace: ns, Span: store.Span{From: store.Point{Value: store.TextValue(s.From)},
					To: store.Point{Value: store.TextValue(s.To)}}})
			}
		}
	}
	return list
}

// Swept says up to where each range was swept: what expires before that is late.
type swept struct {
	rules  breaker.Rules
	viewer *view.Viewer

	mu   sync.Mutex
	upTo map[shardquery.Range]time.Time // to where this process has found nothing due
}

// note keeps up to where this process has found nothing due in a range. The range's record
// may say less: it is not written for that alone.
func (s *swept) note(r shardquery.Range, upTo time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upTo[r] = upTo
}

// lateFrom returns the instant before which what a range holds is late: it was due before the range
// was last swept, or before its generation opened.
func (s *swept) lateFrom(r shardquery.Range, from store.Position) (at time.Time) {
	at, _ = r.Passed(from.Value)
	s.mu.Lock()
	at = laterOf(at, s.upTo[r])
	s.mu.Unlock()
	for _, g := range s.viewer.View().Record.Generations {
		if g.Number == r.Generation {
			at = laterOf(at, s.rules.Horizon(g.Opened)) // what was not due then may have been carried here
		}
	}
	return at
}

// Bounds say where in the index to find what counts under a key and was not approved before.
type bounds struct {
	rules  breaker.Rules
	index  *index.Index
	extent *extent
	swept  *swept
}

// due lists the spans of everything that is due at a horizon.
func (d *bounds) due(b breaker.Budget, horizon time.Time) (spans []index.Span) {
	for r := range d.extent.plan().All() {
		from := laterOf(d.index.Floor(horizon), d.notApproved(b, breaker.Late(), r))
		spans = index.AppendSpan(spans, r, from, horizon.Add(r.Resolution()))
	}
	return spans
}

// hour lists the spans of an hour: of the part that is due, and of the part that is still to come.
func (d *bounds) hour(b breaker.Budget, k breaker.Key, horizon time.Time) (due, coming []index.Span) {
	p := d.extent.plan()
	for r := range p.All() {
		to, split, stock := d.rules.End(k), horizon.Add(r.Resolution()), p.Cursor(r).Stock
		if !stock.Emptied.IsZero() || !stock.Next.IsZero() && !stock.Next.Before(to) {
			continue // and nobody writes to it any more
		}
		from := laterOf(k.Hour, d.notApproved(b, k, r))
		due = index.AppendSpan(due, r, from, earlierOf(split, to))
		coming = index.AppendSpan(coming, r, laterOf(from, split), to)
	}
	return due, coming
}

// late lists the spans of everything that is late.
func (d *bounds) late(b breaker.Budget, horizon time.Time) []index.Span {
	return d.within(b, breaker.Late(), breaker.Part{Through: horizon}, horizon)
}

// within lists the spans of what is due under a key where a part of an approval lies.
func (d *bounds) within(b breaker.Budget, k breaker.Key, part breaker.Part, horizon time.Time) (spans []index.Span) {
	if !k.IsLate() {
		due, _ := d.hour(b, k, earlierOf(horizon, part.Through))
		return due
	}
	p := d.extent.plan()
	for r := range p.All() {
		from, to := d.lateIn(b, p, r, horizon)
		spans = index.AppendSpan(spans, r, laterOf(from, part.From), earlierOf(to, part.Through.Add(r.Resolution())))
	}
	if part.From.IsZero() { // what has retired has no order of time
		spans = append(spans, d.extent.retired(p)...)
	}
	return spans
}

// lateIn returns from which instant on, and before which one, the late entities of a range expire,
// without those that were approved before.
func (d *bounds) lateIn(b breaker.Budget, p *plan.Plan, r shardquery.Range, horizon time.Time) (from, to time.Time) {
	cur := p.Cursor(r)
	to = laterOf(d.swept.lateFrom(r, cur.Position), cur.Stock.Next) // a full read has found nothing before that
	if !to.Before(horizon) || !cur.Stock.Emptied.IsZero() {
		to = horizon.Add(r.Resolution())
	}
	return laterOf(d.index.Floor(horizon), d.notApproved(b, breaker.Late(), r)), to
}

// lateParts lists the parts that may hold late entities, and from which instant on these are not
// approved.
func (d *bounds) lateParts(b breaker.Budget) iter.Seq2[latePart, time.Time] {
	return func(yield func(latePart, time.Time) bool) {
		p := d.extent.plan()
		for r := range p.All() {
			if !yield(latePart{r: r}, d.notApproved(b, breaker.Late(), r)) {
				return
			}
		}
		for _, s := range d.extent.retired(p) {
			if !yield(latePart{leftover: s}, time.Time{}) {
				return
			}
		}
	}
}

// A latePart is a range or, without one, keys of generations that have retired.
type latePart struct {
	r        shardquery.Range
	leftover index.Span
}

// notApproved returns the instant from which on no approval covers what a range holds of a key.
func (d *bounds) notApproved(b breaker.Budget, k breaker.Key, r shardquery.Range) time.Time {
	approved := d.extent.viewer.View().Record.Approvals
	at := b.CoveredThrough(d.rules, approved, d.extent.clock.Now(), k, r.Generation)
	if at.IsZero() {
		return at
	}
	return at.Add(r.Resolution())
}

func laterOf(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

func earlierOf(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }
