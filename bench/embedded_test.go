package bench_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/plot/plotter"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/baseline"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// A template is an embedded store that was filled once and is then copied, so
// that all contestants have the same files.
type template struct{ dir string }

func newTemplate(tb testing.TB, hold bool, f filling) template {
	tb.Helper()
	dir := tb.TempDir()
	db := openIn(tb, dir, hold)
	f.into(tb, db)
	closed(tb, db)
	return template{dir}
}

// copied returns the directory of a copy, and what removes it.
func (t template) copied(tb testing.TB) (dir string, remove func()) {
	tb.Helper()
	dir, err := os.MkdirTemp(tb.TempDir(), "copy-")
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(t.dir))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Fatal(err)
		}
	}
}

func (t template) open(tb testing.TB, hold bool) (db *embedded.DB, done func()) {
	tb.Helper()
	dir, remove := t.copied(tb)
	db = openIn(tb, dir, hold)
	runtime.GC()
	return db, func() {
		closed(tb, db)
		remove()
	}
}

// generational is how the sweep's own targets are stamped, and timestamps has
// the order of plain timestamps.
func generational(n int) filling {
	return filling{Stamper: generation.Stamper{Generation: 1, Shards: shards}, n: n}
}

func timestamps(n int) filling { return filling{Stamper: generation.Stamper{Shards: 1}, n: n} }

// durably ends some work with what makes it durable: the last records of a sweep
// are synced, and so must be what the others did.
func durably(s store.Store, work func(context.Context) (int, error)) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		n, err := work(ctx)
		if db, ok := s.(*embedded.DB); ok && err == nil {
			err = db.Flush()
		}
		return n, err
	}
}

// lookUp returns the batches that empty a generation.
func lookUp(tb testing.TB, s store.Store) (batches []*store.Batch) {
	tb.Helper()
	for shard := range shards {
		r := shardquery.Range{Generation: 1, Shard: shard}
		hi, _ := r.UpTo(time.Now())
		q := store.Query{Target: target().Target, Lo: r.Lo(time.Time{}), Hi: hi, Limit: 500}
		for more := true; more; {
			var page store.Page
			if err := s.Scan(tb.Context(), q, &page); err != nil {
				tb.Fatal(err)
			}
			b := &store.Batch{Query: q}
			for _, e := range page.Entries {
				b.Ops = append(b.Ops, store.Op{Entry: e})
				q.After = e.Position()
			}
			if more = page.More; len(b.Ops) > 0 {
				batches = append(batches, b)
			}
		}
	}
	return batches
}

func disposeOf(ctx context.Context, s store.Store, batches []*store.Batch) (deleted int, err error) {
	var group errgroup.Group
	group.SetLimit(workers)
	for _, b := range batches {
		deleted += len(b.Ops)
		group.Go(func() error { return s.Dispose(ctx, b) })
	}
	return deleted, group.Wait()
}

func embeddedRates(tb testing.TB, r *report) {
	for _, hold := range []bool{false, true} {
		what := "compaction on"
		if hold {
			what = "compaction held back"
		}
		r.section("Embedded store, "+what, "All with the same pages, check and durability; the plain collector asks for the 500 oldest by plain timestamps, again and again, and its rate is that of its first pages only: it gets slower.")
		ranges, plain := newTemplate(tb, hold, generational(r.entities)), newTemplate(tb, hold, timestamps(r.entities))
		list := []*contestant[*embedded.DB]{
			{what: "sweep", ready: func(db *embedded.DB) func(context.Context) (int, error) {
				return durably(db, func(ctx context.Context) (int, error) { return sweeps(ctx, config(db, workers)) })
			}},
			{what: "bare loop, same scan, check and concurrency", ready: func(db *embedded.DB) func(context.Context) (int, error) {
				return durably(db, func(ctx context.Context) (int, error) { return bareLoop(ctx, db, 1) })
			}},
			{what: "deletes of known keys, same check and concurrency", ready: func(db *embedded.DB) func(context.Context) (int, error) {
				batches := lookUp(tb, db)
				return durably(db, func(ctx context.Context) (int, error) { return disposeOf(ctx, db, batches) })
			}},
			{what: fmt.Sprintf("plain-timestamp collector, its first %d pages at most", r.plainPages), some: true,
				ready: func(db *embedded.DB) func(context.Context) (int, error) {
					return durably(db, func(ctx context.Context) (int, error) {
						return baseline.Plain(ctx, db, target().Target, time.Now, r.plainPages, new(baseline.Pages))
					})
				}},
		}
		race(tb, r.rounds, r.entities/2, false, list, func(c *contestant[*embedded.DB]) (*embedded.DB, func()) {
			if c.some {
				return plain.open(tb, hold)
			}
			return ranges.open(tb, hold)
		})
		results(r, list, "at least 0.95", "at least 0.85", "reported")
		for _, c := range list[1:3] {
			what, _, _ := strings.Cut(c.what, ",")
			r.ratio("entities a second of CPU time: sweep / "+what, ratios(list[0].cheap, c.cheap), "reported")
		}
	}
	idle(tb, r)
}

// idle counts the calls of a sweep that has nothing to do.
func idle(tb testing.TB, r *report) {
	tb.Helper()
	db := open(tb, false)
	defer closed(tb, db)
	generational(min(10_000, r.entities)).into(tb, db)
	c := &counted{Local: db, calls: map[string]int{}}
	for range 2 {
		clear(c.calls)
		if _, err := sweeps(tb.Context(), config(c, workers)); err != nil {
			tb.Fatal(err)
		}
	}
	r.add("an idle sweep of 32 ranges", fmt.Sprintf("%d queries, %d record loads, %d writes", c.calls["scan"], c.calls["load"], c.calls["write"]), "32, 2, 0")
}

// A counted store counts calls.
type counted struct {
	baseline.Local
	mu    sync.Mutex
	calls map[string]int
}

func (c *counted) count(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[method]++
}

func (c *counted) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	c.count("scan")
	return c.Local.Scan(ctx, q, p)
}

func (c *counted) Dispose(ctx context.Context, b *store.Batch) error {
	c.count("write")
	return c.Local.Dispose(ctx, b)
}

func (c *counted) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	c.count("load")
	return c.Local.Load(ctx, q)
}

func (c *counted) Save(ctx context.Context, r store.Record, prev string) error {
	c.count("write")
	return c.Local.Save(ctx, r, prev)
}

// latencies follows the pages of a sweep and of the plain collector while what
// they delete piles up.
func latencies(tb testing.TB, r *report) {
	r.section("Pages against deletes made, compaction held back",
		"One worker, so that pages do not wait for each other. A tombstone is two points: the delete, and what it deleted.")
	const sweeping, plainly = 0, 1
	names := [2]string{"sweep", "plain-timestamp collector"}
	templates := [2]template{newTemplate(tb, true, generational(r.entities)), newTemplate(tb, true, timestamps(r.entities))}
	var growth [2][]float64
	var last [2]int64
	var curves [2][]baseline.Point
	for range min(3, r.rounds) {
		for i, t := range templates {
			var pages baseline.Pages
			var err error
			db, done := t.open(tb, true)
			if i == sweeping {
				_, err = sweeps(tb.Context(), config(baseline.Watched{Local: db, Now: time.Now, Pages: &pages}, 1))
			} else {
				_, err = baseline.Plain(tb.Context(), db, target().Target, time.Now, r.plainPages, &pages)
			}
			if err != nil {
				tb.Fatal(err)
			}
			done()
			stepped, latency := pages.Tenths()
			growth[i] = append(growth[i], latency[len(latency)-1]/math.Max(latency[0], 0.001))
			last[i] = stepped[len(stepped)-1]
			curves[i] = pages.Curve(50)
		}
	}
	r.ratio("**page latency, last tenth / first tenth, sweep**", growth[sweeping], "at most 1.5")
	r.ratio(fmt.Sprintf("the same, plain collector, its first %d pages at most", r.plainPages), growth[plainly], "reported")
	r.add("tombstones stepped over per page in the last tenth, sweep / plain collector", fmt.Sprintf("%d / %d", last[sweeping]/2, last[plainly]/2), "does not grow")
	latency := chart{file: "page-latency", title: "Latency of a page of 500, compaction held back", x: "deletes made", y: "median latency in ms", logY: true}
	steps := chart{file: "tombstones", title: "Tombstones stepped over per page, compaction held back", x: "deletes made", y: "tombstones per page"}
	for i, curve := range curves {
		var took, stepped plotter.XYs
		for _, p := range curve {
			took = append(took, plotter.XY{X: float64(p.Before), Y: math.Max(p.Latency.Seconds()*1000, 0.001)})
			stepped = append(stepped, plotter.XY{X: float64(p.Before), Y: float64(p.Stepped) / 2})
		}
		latency.lines = append(latency.lines, line{names[i], took})
		steps.lines = append(steps.lines, line{names[i], stepped})
	}
	r.chart(latency)
	r.chart(steps)
}
