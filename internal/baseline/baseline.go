// Package baseline holds the collectors that a sweep is compared with, and measures
// collectors page by page: how long a query took, and how many deleted points it
// stepped over. The demo shows the measurements of one run, and this package's
// benchmark prints them for many.
//
// The invariant is that every figure comes from the present run. Limits: a
// sample of a few bytes is kept for each page.
package baseline

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// Pages collects a sample for each page. It is safe for concurrent use.
type Pages struct {
	mu      sync.Mutex
	samples []sample
}

type sample struct {
	entries int
	took    time.Duration
	stepped int64
}

func (p *Pages) add(entries int, took time.Duration, stepped int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples = append(p.samples, sample{entries, took, stepped})
}

// Count returns how many pages there were.
func (p *Pages) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.samples)
}

// A Point sums up some pages that followed each other.
type Point struct {
	Before  int           // entries in all the pages before
	Stepped int64         // mean of the points stepped over
	Latency time.Duration // median
}

// Curve sums the pages up in n points, in the order of time. Fewer pages than
// that give fewer points.
func (p *Pages) Curve(n int) []Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	curve := make([]Point, 0, n)
	before := 0
	for i := range n {
		part := p.samples[i*len(p.samples)/n : (i+1)*len(p.samples)/n]
		if len(part) == 0 {
			continue
		}
		point := Point{Before: before}
		times := make([]time.Duration, 0, len(part))
		for _, s := range part {
			before += s.entries
			point.Stepped += s.stepped
			times = append(times, s.took)
		}
		slices.Sort(times)
		point.Stepped /= int64(len(part))
		point.Latency = times[len(times)/2]
		curve = append(curve, point)
	}
	return curve
}

// Tenths returns the Curve for each tenth of the pages, with the latency in
// milliseconds.
func (p *Pages) Tenths() (stepped []int64, latency []float64) {
	stepped, latency = make([]int64, 0, 10), make([]float64, 0, 10)
	for _, point := range p.Curve(10) {
		stepped = append(stepped, point.Stepped)
		latency = append(latency, float64(point.Latency.Microseconds())/1000)
	}
	return stepped, latency
}

// A Local store counts the points that its queries step over.
type Local interface {
	store.Store
	store.Counter
	store.Exclusive
}

// Watched is a store whose pages are measured as they are scanned.
type Watched struct {
	Local
	Now   func() time.Time
	Pages *Pages
}

// Scan implements store.Store.
func (w Watched) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	began := w.Now()
	err := w.Local.Scan(ctx, q, page)
	took := w.Now().Sub(began)
	if err == nil && len(page.Entries) > 0 && q.Limit > 1 { // a look-up of one entry is no page
		w.Pages.add(len(page.Entries), took, page.SteppedOver)
	}
	return err
}

// Plain is the collector that everybody writes first: ask for the 500 oldest,
// delete them, ask again. It expects the target's keys in the order of time
// alone, in shard 0 of generation 0, and stops when nothing is left or after
// the given number of pages. It returns how many entities it deleted.
func Plain(ctx context.Context, s store.Store, t store.Target, now func() time.Time, most int, pages *Pages) (
	deleted int, err error) {
	all := shardquery.Range{}
	hi, _ := all.UpTo(now())
	q := store.Query{Target: t, Lo: all.Lo(time.Time{}), Hi: hi, Limit: store.MaxPage}
	var page store.Page
	var ops []store.Op
	for range most {
		began := now()
		if err := s.Scan(ctx, q, &page); err != nil {
			return deleted, err
		}
		if len(page.Entries) == 0 {
			break
		}
		pages.add(len(page.Entries), now().Sub(began), page.SteppedOver)
		ops = ops[:0]
		for _, e := range page.Entries {
			ops = append(ops, store.Op{Entry: e})
		}
		if err := s.Dispose(ctx, &store.Batch{Query: q, Ops: ops}); err != nil {
			return deleted, err
		}
		deleted += len(ops)
	}
	return deleted, nil
}

// Bare deletes what has expired in one range with the same scan, condition and
// durability as a sweep, and nothing else: no record, lease, pace or count.
func Bare(ctx context.Context, s store.Store, t store.Target, r shardquery.Range, until time.Time, page int) (
	deleted int, err error) {
	hi, _ := r.UpTo(until)
	q := store.Query{Target: t, Namespace: r.Namespace, Shard: r.Value, Lo: r.Lo(time.Time{}), Hi: hi, Limit: page}
	var got store.Page
	var ops []store.Op
	for more := true; more; {
		if err := s.Scan(ctx, q, &got); err != nil {
			return deleted, err
		}
		more = got.More
		ops = ops[:0]
		for _, e := range got.Entries {
			ops = append(ops, store.Op{Entry: e})
		}
		if len(ops) > 0 {
			if err := s.Dispose(ctx, &store.Batch{Query: q, Ops: ops}); err != nil {
				return deleted, err
			}
			q.After = got.Entries[len(got.Entries)-1].Position()
		}
		q.Next = got.Next
		deleted += len(ops)
	}
	return deleted, nil
}
