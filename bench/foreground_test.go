package bench_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/plot/plotter"

	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

// perSecond is how many reads, and how many writes, the other client makes.
const perSecond = 500

// A watch is what another client saw during a sweep.
type watch struct {
	what    string
	target  sweep.Target
	idle    bool // there is no sweep
	waits   [2][]time.Duration
	deleted int64
	took    time.Duration
}

const reading, writing = 0, 1

// foregrounds has another client read and write in the process that sweeps: what
// is live, in the table that is swept.
func foregrounds(tb testing.TB, r *report) {
	r.section("Another client during a sweep", fmt.Sprintf("Embedded store, compaction on, the same process: %d reads of 10 live entries and %d writes of one a second, in the table that is swept, for %v or as long as the sweep lasts. "+
		"Calls begin at fixed instants, whether or not those before have come back, and each wait counts from there.", perSecond, perSecond, r.foreground))
	list := []*watch{
		{what: "no sweep", idle: true},
		{what: "sweep without a pace", target: target()},
		{what: fmt.Sprintf("sweep at %.0f/s in each of %d ranges", r.pace, shards), target: target(r.pace)},
	}
	t := newTemplate(tb, false, generational(r.entities))
	for range r.rounds {
		for _, w := range list {
			db, done := t.open(tb, false)
			w.round(tb, db, r.foreground)
			done()
		}
	}
	c := chart{file: "foreground", title: "Waits of another client's writes during a sweep", x: "percentile", y: "milliseconds", logY: true}
	for _, w := range list {
		what := w.what
		if !w.idle {
			what += fmt.Sprintf(" (%.0f deletes/s)", float64(w.deleted)/w.took.Seconds())
		}
		var points plotter.XYs
		for i, call := range []string{"reads", "writes"} {
			slices.Sort(w.waits[i])
			r.add(fmt.Sprintf("%s: %s, p50 / p99 / worst", what, call), fmt.Sprintf("%s / %s / %s ms", w.at(i, 0.5), w.at(i, 0.99), w.at(i, 1)), "reported")
		}
		for p := 1; p <= 100; p++ {
			points = append(points, plotter.XY{X: float64(p), Y: max(0.001, w.quantile(writing, float64(p)/100))})
		}
		c.lines = append(c.lines, line{w.what, points})
	}
	for i, call := range []string{"reads", "writes"} {
		var times []string
		for _, w := range list[1:] {
			times = append(times, fmt.Sprintf("%.1f", w.quantile(i, 0.99)/list[0].quantile(i, 0.99)))
		}
		r.add(fmt.Sprintf("**p99 of %s, times that without a sweep: without a pace / with it**", call), strings.Join(times, " / "), "reported")
	}
	r.chart(c)
}

// quantile returns a quantile of the sorted waits in milliseconds.
func (w *watch) quantile(call int, p float64) float64 {
	n := len(w.waits[call])
	return w.waits[call][min(n-1, int(p*float64(n)))].Seconds() * 1000
}

func (w *watch) at(call int, p float64) string { return fmt.Sprintf("%.2f", w.quantile(call, p)) }

// round sweeps, and watches reads and writes while that lasts.
func (w *watch) round(tb testing.TB, db *embedded.DB, most time.Duration) {
	tb.Helper()
	watching, enough := context.WithTimeout(tb.Context(), most)
	defer enough()
	var group errgroup.Group
	began := time.Now()
	if !w.idle {
		group.Go(func() error {
			defer enough() // what comes after the sweep is not watched
			res := sweep.Run(watching, configFor(db, w.target, workers))
			w.deleted += res.Targets[0].Deleted
			w.took += time.Since(began)
			return res.Targets[0].Err
		})
	}
	for i, call := range []func(context.Context, *embedded.DB, int) error{read, write} {
		group.Go(func() error {
			waits, err := steadily(watching, perSecond, func(n int) error { return call(tb.Context(), db, n) })
			w.waits[i] = append(w.waits[i], waits...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		tb.Fatalf("%s: %v", w.what, err)
	}
	if len(w.waits[reading]) == 0 || len(w.waits[writing]) == 0 {
		tb.Fatalf("%s: it was over before anybody came to read or write", w.what)
	}
}

// steadily makes calls at instants that are fixed beforehand, whether or not those
// before have come back, as independent users do. It returns their waits once all
// have.
func steadily(ctx context.Context, perSecond int, call func(n int) error) (waits []time.Duration, err error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	began := time.Now()
	var mu sync.Mutex
	var calls errgroup.Group
	for n := 0; ; n++ {
		due := began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			err = calls.Wait()
			return waits, err
		}
		calls.Go(func() error {
			err := call(n)
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, time.Since(due))
			return err
		})
	}
}

// written makes the names of written entities unlike any that were there.
var written atomic.Int64

func read(ctx context.Context, db *embedded.DB, n int) error {
	r := shardquery.Range{Generation: 1, Shard: n % shards}
	lo, _ := r.UpTo(time.Now().Add(time.Minute))
	hi, _ := r.UpTo(time.Now().Add(100 * time.Hour))
	var page store.Page
	err := db.Scan(ctx, store.Query{Target: target().Target, Lo: lo, Hi: hi, Limit: 10}, &page)
	if err == nil && len(page.Entries) == 0 {
		err = errors.New("nothing is live")
	}
	return err
}

func write(ctx context.Context, db *embedded.DB, _ int) error {
	name := fmt.Sprintf("new-%07d", written.Add(1))
	key, err := generational(0).Name(name, time.Now().Add(time.Hour))
	if err != nil {
		return err
	}
	return db.Put(ctx, target().Target, "", []store.Entity{{Name: name, Expiry: store.TextValue(key.String()), Data: []byte(`{"user":"u7"}`)}})
}
