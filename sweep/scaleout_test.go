package sweep_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A crew is some one-shot processes that sweep one target at the same time.
type crew struct {
	processes, ranges, workers, page int
	each                             int           // entities in a range
	apart                            time.Duration // from the start of one to the start of the next
}

// A share is what one process of a crew did.
type share struct{ deleted, scanned, pages int64 }

// A dated store knows when its process deleted something last.
type dated struct {
	store.Store
	mu   sync.Mutex
	last time.Time
}

func (d *dated) Dispose(ctx context.Context, b *store.Batch) error {
	err := d.Store.Dispose(ctx, b)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = time.Now()
	return err
}

// slowly gives the store the latencies of the service: a query takes 5 to 30 ms, and a commit
// 20 to 60 ms.
func slowly(s *modelstore.Store) {
	s.Before = func(ctx context.Context, c modelstore.Call) error {
		least, most := 5*time.Millisecond, 30*time.Millisecond
		if c.Method == "Dispose" || c.Method == "Save" || c.Method == "Settle" {
			least, most = 20*time.Millisecond, 60*time.Millisecond
		}
		return throttle.Sleep(ctx, least+rand.N(most-least))
	}
}

// sweeps fills the store, has the crew sweep it, and returns how many entities a second all of
// them deleted, until the last one, and what each did.
func (c crew) sweeps(t *testing.T, w *world) (rate float64, each []share) {
	t.Helper()
	w.target.Shards, w.target.Page = c.ranges, c.page
	w.target.Layout, w.target.Generations = "sharded", false
	for shard := range c.ranges { // each range has a record: what is unread is read in the slow lane
		w.dueIn(0, shard, fmt.Sprintf("first-%d", shard), time.Now())
	}
	if res := w.sweep(); !res.Complete || res.Deleted != int64(c.ranges) {
		t.Fatalf("%+v", res)
	}
	time.Sleep(10 * time.Minute) // nobody remembers the sweep before
	for i := range c.each * c.ranges {
		w.dueIn(0, i%c.ranges, fmt.Sprintf("e-%06d", i), time.Now().Add(-time.Minute+time.Duration(i)*time.Microsecond))
	}
	slowly(w.s)
	began := time.Now()
	stores := make([]dated, c.processes)
	each = make([]share, c.processes)
	var all sync.WaitGroup
	for i := range c.processes {
		all.Go(func() {
			time.Sleep(time.Duration(i) * c.apart)
			cfg := w.config()
			stores[i].Store = w.s
			cfg.Store, cfg.Workers = &stores[i], c.workers
			res := sweep.Run(t.Context(), cfg).Targets[0]
			if res.Error != "" || !res.Complete {
				t.Errorf("process %d: %+v", i, res)
			}
			each[i] = share{res.Deleted, res.Scanned, res.Pages}
		})
	}
	all.Wait()
	var last time.Time
	var sum share
	for i := range each {
		if stores[i].last.After(last) {
			last = stores[i].last
		}
		sum.deleted += each[i].deleted
		sum.scanned += each[i].scanned
		sum.pages += each[i].pages
	}
	if n := len(w.left()); n > 0 || sum.deleted != int64(c.each*c.ranges) {
		t.Errorf("%d are left, %d were deleted", n, sum.deleted)
	}
	w.checkLeases()
	took := last.Sub(began)
	rate = float64(sum.deleted) / took.Seconds()
	t.Logf("%+v: %.0f/s in %v, scanned/deleted %.2f %v", c, rate, took.Round(time.Millisecond), float64(sum.scanned)/float64(sum.deleted), each)
	return rate, each
}

// onceOfThree wants one of three runs in which nothing is wrong: who is first at which range is chance, and so is each latency.
func onceOfThree(t *testing.T, run func(t *testing.T, w *world) (wrong []string)) {
	t.Helper()
	var wrong []string
	for range 3 {
		in(t, func(t *testing.T, w *world) { wrong = run(t, w) })
		if len(wrong) == 0 || t.Failed() {
			return
		}
		t.Log(wrong)
	}
	t.Error(wrong)
}

// Processes that begin together divide the ranges: each reads and deletes its share, and none
// reads much in vain.
func TestProcessesDivideTheWork(t *testing.T) {
	var alone float64
	in(t, func(t *testing.T, w *world) {
		alone, _ = crew{processes: 1, ranges: 64, workers: 2, page: 20, each: 500}.sweeps(t, w)
	})
	onceOfThree(t, func(t *testing.T, w *world) (wrong []string) {
		const n = 8
		rate, each := crew{processes: n, ranges: 64, workers: 2, page: 20, each: 500}.sweeps(t, w)
		var scanned int64
		for i, s := range each {
			scanned += s.scanned
			if mean := int64(32000 / n); s.deleted < mean/2 || s.deleted > mean*3/2 {
				wrong = append(wrong, fmt.Sprintf("process %d deleted %d of 32000", i, s.deleted))
			}
		}
		if scanned > 32000*6/5 {
			wrong = append(wrong, fmt.Sprintf("%d entries were read", scanned))
		}
		if rate < 0.65*n*alone { // with half more than its share a process takes half as long again
			wrong = append(wrong, fmt.Sprintf("%d processes delete %.0f/s, one %.0f/s", n, rate, alone))
		}
		return wrong
	})
}

// A process gets its part of ranges that another one holds all of, if there is much to do.
func TestLateProcessGetsItsPart(t *testing.T) {
	onceOfThree(t, func(t *testing.T, w *world) (wrong []string) {
		_, each := crew{processes: 2, ranges: 24, workers: 2, page: 20, each: 2000, apart: 5 * time.Second}.sweeps(t, w)
		if late := each[1]; late.deleted < 12000 || late.scanned > late.deleted+1000 {
			wrong = append(wrong, fmt.Sprintf("of 48000 the late process deleted %d, and read %d", late.deleted, late.scanned))
		}
		return wrong
	})
}

// Processes that begin one after the other all get a part, though the first holds all ranges when
// the others come: none ends with nothing to do while there is a backlog.
func TestEachLateProcessGetsItsPart(t *testing.T) {
	onceOfThree(t, func(t *testing.T, w *world) (wrong []string) {
		_, each := crew{processes: 4, ranges: 64, workers: 2, page: 20, each: 1000, apart: 5 * time.Second}.sweeps(t, w)
		for i, s := range each {
			if s.deleted < 64000/4/3 {
				wrong = append(wrong, fmt.Sprintf("process %d deleted %d of 64000", i, s.deleted))
			}
		}
		return wrong
	})
}

// A daemon next to one with a backlog looks at its ranges at rest as if it were alone: by one query
// each, at once, and without a read of their records.
func TestIdleTickBesideABusyProcess(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards, w.target.Page = 32, 20
		w.target.Layout, w.target.Generations = "sharded", false
		w.target.Pace = throttle.Limits{Start: 1, Max: 1}
		var cursors atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.CursorRecord {
				cursors.Add(1)
			}
			return nil
		}
		w.serve(w.config())
		time.Sleep(2 * time.Minute)
		w.serve(w.config())
		time.Sleep(2 * time.Minute)
		for i := range 5000 {
			w.dueIn(0, 0, fmt.Sprintf("e-%04d", i), time.Now().Add(-time.Second+time.Duration(i)*time.Microsecond))
		}
		time.Sleep(2 * time.Minute)
		before := cursors.Load()
		time.Sleep(10 * time.Minute)
		if n := cursors.Load() - before; n > 300 { // the daemon without ranges looks for released ones every 2.5 s
			t.Errorf("in 600 ticks cursor records were read %d times", n)
		}
		w.dueIn(0, 7, "late", time.Now().Add(3*time.Second))
		time.Sleep(6 * time.Second) // its pace is one a second
		if slices.Contains(w.left(), "late") {
			t.Error("two seconds after the next tick, what is due in a range at rest is still there")
		}
	})
}
