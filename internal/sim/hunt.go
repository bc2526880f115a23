package sim

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Hunt runs seeds, one after the other on each core, each in a bubble of its own.
type Hunt struct {
	First   uint64          // seed
	Count   int             // seeds at the most; 0 is any number
	For     time.Duration   // no seed begins later; 0 is any time
	Workers int             // seeds at the same time; 0 is one for each core
	Stop    bool            // at the first violation
	Done    <-chan struct{} // closed: no further seed begins; may be nil
	With    []string        // see [Options]
	Without []string
	Skip    []uint64                      // seeds that are left out
	Bound   time.Duration                 // how long one may take; zero is [Endless]
	Hung    func(seed uint64)             // is told of one that takes longer; see [Options]
	Begin   func(worker int, seed uint64) // is told of each run as it begins, by all workers at once; may be nil
	Each    func(Report)                  // is told of each run, by one goroutine at a time; may be nil
	Found   func(Report)                  // likewise, of each violation
}

// A Bag is what a hunt brought home.
type Bag struct {
	Seeds, Steps, Violations int
	Tried                    int // seeds that ran or were skipped: the first so many
	Took                     time.Duration
	Counts                   map[string]int
}

// add takes in a run.
func (b *Bag) add(r Report) {
	b.Seeds++
	b.Tried++
	b.Steps += r.Steps
	for what, n := range r.Counts {
		b.Counts[what] += n
	}
	if r.Violation != nil {
		b.Violations++
	}
}

// Run hunts.
func (h Hunt) Run(t *testing.T) Bag {
	began := time.Now()
	workers := h.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	bag := Bag{Counts: map[string]int{}}
	var next, stopped atomic.Int64
	var mu sync.Mutex
	enough := func() bool {
		select {
		case <-h.Done:
			return true
		default:
			return stopped.Load() > 0 || h.For > 0 && time.Since(began) >= h.For
		}
	}
	work := func(worker int) {
		for !enough() {
			n := next.Add(1)
			if h.Count > 0 && n > int64(h.Count) {
				return
			}
			seed := h.First + uint64(n-1)
			if slices.Contains(h.Skip, seed) {
				mu.Lock()
				bag.Tried++
				mu.Unlock()
				continue
			}
			if h.Begin != nil {
				h.Begin(worker, seed)
			}
			r := Run(t, Options{Seed: seed, With: h.With, Without: h.Without, Hung: h.Hung, Bound: h.Bound})
			mu.Lock()
			bag.add(r)
			if h.Each != nil {
				h.Each(r)
			}
			if r.Violation != nil {
				if h.Found != nil {
					h.Found(r)
				}
				if h.Stop {
					stopped.Store(1)
				}
			}
			mu.Unlock()
		}
	}
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() { work(worker) })
	}
	all.Wait()
	bag.Took = time.Since(began)
	return bag
}
