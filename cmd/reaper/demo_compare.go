package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

// A demoComparison is what two collectors did with the same entities, in two
// fresh stores whose background compaction was held back.
type demoComparison struct {
	Entities int           `json:"entities"`
	Plain    demoCollector `json:"plain"`
	Reaper   demoCollector `json:"reaper"`
}

// A demoCollector is what one of them did. Tenths are of its pages, in order.
type demoCollector struct {
	Pages       int       `json:"pages"`
	Deleted     int       `json:"deleted"`
	Seconds     float64   `json:"seconds"`
	Stepped     []int64   `json:"points_stepped_over_per_page"` // mean of each tenth
	Latency     []float64 `json:"page_latency_ms"`              // median of each tenth
	pageSamples []pageSample
}

// A pageSample is one query.
type pageSample struct {
	took    time.Duration
	stepped int64
}

// compare lets a plain collector and the reaper delete the same entities.
func (d *demo) compare(ctx context.Context, dir string) (c demoComparison, err error) {
	c.Entities = min(d.n, demoCompared)
	d.app.say("Comparing with a plain ORDER BY expires LIMIT %d collector on %s of them, one worker each,\nbackground compaction held back in both stores …\n",
		store.MaxPage, grouped(int64(c.Entities)))
	if c.Plain, err = d.collect(ctx, filepath.Join(dir, "plain"), c.Entities, true); err != nil {
		return c, err
	}
	c.Reaper, err = d.collect(ctx, filepath.Join(dir, "reaper"), c.Entities, false)
	return c, err
}

// collect fills a store of its own and lets one of the collectors empty it.
func (d *demo) collect(ctx context.Context, dir string, n int, plain bool) (c demoCollector, err error) {
	db, err := d.open(dir, true)
	if err != nil {
		return c, err
	}
	defer func() {
		cerr := db.Close()
		if err == nil {
			err = cerr
		}
	}()
	stamp := d.stampSharded
	if plain {
		stamp = d.stampPlain
	}
	if err := d.fill(ctx, db, n, stamp); err != nil {
		return c, err
	}
	began := d.app.now()
	if plain {
		err = d.plain(ctx, db, &c)
	} else {
		w := &watched{DB: db, now: d.app.now, c: &c}
		res := sweep.Run(ctx, d.config(w, 1, nil))
		c.Deleted = int(res.Targets[0].Deleted)
		err = demoFailure(ctx, res)
	}
	c.Seconds = d.app.now().Sub(began).Seconds()
	if err == nil {
		_, err = verifyDemo(db.Dump(ctx, d.target.Target, ""), n)
	}
	c.sum()
	return c, err
}

// plain is the collector that everybody writes first: ask for the oldest, delete
// them, ask again.
func (d *demo) plain(ctx context.Context, db *embedded.DB, c *demoCollector) error {
	r := shardquery.Range{}
	hi, _ := r.UpTo(d.app.now())
	q := store.Query{Target: d.target.Target, Lo: r.Lo(), Hi: hi, Limit: store.MaxPage}
	var page store.Page
	var ops []store.Op
	for ctx.Err() == nil {
		began := d.app.now()
		if err := db.Scan(ctx, q, &page); err != nil {
			return err
		}
		if len(page.Entries) == 0 {
			return nil
		}
		c.pageSamples = append(c.pageSamples, pageSample{d.app.now().Sub(began), page.SteppedOver})
		ops = ops[:0]
		for _, e := range page.Entries {
			ops = append(ops, store.Op{Entry: e})
		}
		if err := db.Dispose(ctx, &store.Batch{Query: q, Ops: ops}); err != nil {
			return err
		}
		c.Deleted += len(ops)
	}
	return ctx.Err()
}

// A watched store measures each page of a sweep that has entries.
type watched struct {
	*embedded.DB
	now func() time.Time
	mu  sync.Mutex
	c   *demoCollector
}

func (w *watched) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	began := w.now()
	err := w.DB.Scan(ctx, q, page)
	took := w.now().Sub(began)
	if err == nil && len(page.Entries) > 0 && q.Limit > 1 { // a look-up of one entry is no page
		w.mu.Lock()
		defer w.mu.Unlock()
		w.c.pageSamples = append(w.c.pageSamples, pageSample{took, page.SteppedOver})
	}
	return err
}

// sum turns the samples into tenths.
func (c *demoCollector) sum() {
	c.Pages = len(c.pageSamples)
	c.Stepped, c.Latency = make([]int64, 0, 10), make([]float64, 0, 10)
	for i := range 10 {
		part := c.pageSamples[i*c.Pages/10 : (i+1)*c.Pages/10]
		if len(part) == 0 {
			continue
		}
		var stepped int64
		times := make([]time.Duration, 0, len(part))
		for _, s := range part {
			stepped += s.stepped
			times = append(times, s.took)
		}
		slices.Sort(times)
		c.Stepped = append(c.Stepped, stepped/int64(len(part)))
		c.Latency = append(c.Latency, float64(times[len(times)/2].Microseconds())/1000)
	}
}

func (a *app) printComparison(c demoComparison) {
	const columns = "  %-42s%16s%14s\n"
	row := func(name string, value func(demoCollector) string) {
		fmt.Fprintf(a.stdout, columns, name, value(c.Plain), value(c.Reaper))
	}
	fmt.Fprintf(a.stdout, "\n"+columns, "", "plain collector", "reaper")
	row("pages", func(c demoCollector) string { return fmt.Sprint(c.Pages) })
	row("points stepped over per page, first tenth", func(c demoCollector) string { return grouped(c.Stepped[0]) })
	row("                               last tenth", func(c demoCollector) string { return grouped(c.Stepped[len(c.Stepped)-1]) })
	row("page latency, first tenth", func(c demoCollector) string { return fmt.Sprintf("%.2f ms", c.Latency[0]) })
	row("              last tenth", func(c demoCollector) string { return fmt.Sprintf("%.2f ms", c.Latency[len(c.Latency)-1]) })
	row("deletes/s", func(c demoCollector) string { return grouped(int64(float64(c.Deleted) / c.Seconds)) })
	most := slices.Max(append(slices.Clone(c.Plain.Stepped), c.Reaper.Stepped...))
	fmt.Fprintf(a.stdout, "\npoints stepped over per page, tenth by tenth (full height: %s)\n", grouped(most))
	fmt.Fprintf(a.stdout, "  plain   %s\n  reaper  %s\n", bars(c.Plain.Stepped, most), bars(c.Reaper.Stepped, most))
	fmt.Fprint(a.stdout, `
A point is what a delete leaves in the index until compaction: its tombstone, and the
row under it. The plain collector begins every page on top of all that it deleted
before; the reaper goes on from where its last page ended.
`)
}

// bars draws values as a line of bars, or of digits where the terminal may not
// have them.
func bars(values []int64, most int64) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	if !strings.Contains(strings.ToUpper(os.Getenv("LC_ALL")+os.Getenv("LC_CTYPE")+os.Getenv("LANG")), "UTF") {
		levels = []rune("_123456789")
	}
	var b strings.Builder
	for _, v := range values {
		i := 0
		if most > 0 {
			i = int(v * int64(len(levels)-1) / most)
		}
		b.WriteRune(levels[i])
		b.WriteRune(' ')
	}
	return b.String()
}
