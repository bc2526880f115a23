package sweep_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
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

// Processes that begin together divide the ranges: each reads and deletes its share, and none
// reads much in vain.
func TestProcessesDivideTheWork(t *testing.T) {
	var alone float64
	for _, n := range []int{1, 8} {
		in(t, func(t *testing.T, w *world) {
			rate, each := crew{processes: n, ranges: 64, workers: 2, page: 20, each: 500}.sweeps(t, w)
			if n == 1 {
				alone = rate
				return
			}
			var scanned int64
			for i, s := range each {
				scanned += s.scanned
				if mean := int64(32000 / n); s.deleted < mean/2 || s.deleted > mean*3/2 {
					t.Errorf("process %d deleted %d of 32000", i, s.deleted)
				}
			}
			if scanned > 32000*6/5 {
				t.Errorf("%d entries were read", scanned)
			}
			if rate < 0.8*float64(n)*alone {
				t.Errorf("%d processes delete %.0f/s, one %.0f/s", n, rate, alone)
			}
		})
	}
}

// A process gets its part of ranges that another one holds all of, if there is much to do.
func TestLateProcessGetsItsPart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		_, each := crew{processes: 2, ranges: 24, workers: 2, page: 20, each: 2000, apart: 5 * time.Second}.sweeps(t, w)
		if late := each[1]; late.deleted < 12000 || late.scanned > late.deleted+1000 {
			t.Errorf("of 48000 the late process deleted %d, and read %d", late.deleted, late.scanned)
		}
	})
}
