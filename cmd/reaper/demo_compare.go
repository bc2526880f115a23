package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/baseline"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A demoComparison is what two collectors did with the same entities, in two
// fresh stores whose background compaction was held back.
type demoComparison struct {
	Entities int           `json:"entities"`
	Plain    demoCollector `json:"plain"`
	Reaper   demoCollector `json:"reaper"`
}

// A demoCollector is what one of them did. A tenth is a tenth of its pages, in order.
type demoCollector struct {
	Pages   int       `json:"pages"`
	Deleted int       `json:"deleted"`
	Seconds float64   `json:"seconds"`
	Stepped []int64   `json:"points_stepped_over_per_page"` // mean of each tenth
	Latency []float64 `json:"page_latency_ms"`              // median of each tenth
}

// compare lets a plain collector and the reaper delete the same entities.
func (d *demo) compare(ctx context.Context, dir string) (c demoComparison, err error) {
	c.Entities = min(d.n, demoCompared)
	d.say("Comparing with a plain ORDER BY expires LIMIT %d collector on %s of them, one worker each,\n"+
		"background compaction held back in both stores …\n",
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
	defer (&database{db, db.Close}).closeInto(&err)
	writer := d.asTarget
	if plain {
		writer = d.asPlain
	}
	if err := d.fill(ctx, db, n, writer); err != nil {
		return c, err
	}
	var pages baseline.Pages
	began := d.clock()
	if plain {
		c.Deleted, err = baseline.Plain(ctx, db, d.plainTarget(), d.clock, n, &pages)
	} else {
		cfg := d.config(baseline.Watched{Local: db, Now: d.clock, Pages: &pages}, 1, nil)
		cfg.Targets[0].Breaker = breaker.Rules{} // the plain collector has none, either
		res := sweep.Run(ctx, cfg)
		c.Deleted = int(res.Targets[0].Deleted)
		err = demoFailure(ctx, res)
	}
	c.Seconds = d.clock().Sub(began).Seconds()
	if err == nil {
		_, err = verifyDemo(db.Dump(ctx, d.target.Target, ""), n)
	}
	c.Pages = pages.Count()
	c.Stepped, c.Latency = pages.Tenths()
	return c, err
}

func printComparison(w io.Writer, c demoComparison) {
	const columns = "  %-42s%16s%14s\n"
	row := func(name string, value func(demoCollector) string) {
		fmt.Fprintf(w, columns, name, value(c.Plain), value(c.Reaper))
	}
	fmt.Fprintf(w, "\n"+columns, "", "plain collector", "reaper")
	row("pages", func(c demoCollector) string { return fmt.Sprint(c.Pages) })
	row("points stepped over per page, first tenth", func(c demoCollector) string { return grouped(c.Stepped[0]) })
	row("                               last tenth", func(c demoCollector) string {
		return grouped(c.Stepped[len(c.Stepped)-1])
	})
	row("page latency, first tenth", func(c demoCollector) string { return fmt.Sprintf("%.2f ms", c.Latency[0]) })
	row("              last tenth", func(c demoCollector) string {
		return fmt.Sprintf("%.2f ms", c.Latency[len(c.Latency)-1])
	})
	row("deletes/s", func(c demoCollector) string { return grouped(int64(float64(c.Deleted) / c.Seconds)) })
	most := slices.Max(append(slices.Clone(c.Plain.Stepped), c.Reaper.Stepped...))
	fmt.Fprintf(w, "\npoints stepped over per page, tenth by tenth (full height: %s)\n", grouped(most))
	fmt.Fprintf(w, "  plain   %s\n  reaper  %s\n", bars(c.Plain.Stepped, most), bars(c.Reaper.Stepped, most))
	fmt.Fprint(w, `
A point is what a delete leaves in the index until compaction: its tombstone, and the
row under it. The plain collector steps over all its earlier deletes again on every
page; the reaper resumes where its last page ended.
`)
}

// bars draws values as a line of bars, or of digits if the terminal may lack bars.
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
