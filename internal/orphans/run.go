package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// partsPerWorker is how many parts there are for each worker: parts differ in size.
const partsPerWorker = 2

// mostParts bounds how many keys are sampled.
const mostParts = 128

// A Result is what became of a run.
type Result struct {
	Target          string  `json:"target"`
	Apply           bool    `json:"apply"`
	Complete        bool    `json:"complete"`
	Everywhere      bool    `json:"everywhere"` // whole namespaces were read
	DurationSeconds float64 `json:"duration_seconds"`
	Counts
	Kinds      []Kind           `json:"kinds"`
	Written    *Written         `json:"written"` // nil if the store does not tell, or there are no orphans
	Samples    []Sample         `json:"samples"`
	Max        *int64           `json:"max"` // nil if the run is unlimited
	StoppedAt  *Place           `json:"stopped_at"`
	Operations store.Operations `json:"operations"`
	Warnings   []string         `json:"warnings"`
	Held       string           `json:"held"`
	// Tripped tells that the run ended because the breaker holds the target.
	Tripped bool `json:"-"`
}

// A run is one call of Run.
type run struct {
	job      *job
	switches *switches.Switches
	tally    *tally
	story    *story
	deleter  *deleter // nil in a run that deletes nothing
	meter    *store.Meter
	began    time.Time
	whole    bool // a whole namespace is read
	parts    []*part
}

// Run looks for the orphans of a target and, if the sweep's configuration says Apply, deletes them. It
// returns what it found and did also with an error.
func Run(ctx context.Context, cfg Config) (Result, error) {
	j, err := newJob(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	now := j.Sweep.Now()
	r := &run{job: j, switches: j.newSwitches(), tally: newTally(j.Progress, now), meter: new(store.Meter), began: now}
	r.story = &story{job: j, switches: r.switches, tally: r.tally}
	if j.Sweep.Apply {
		r.deleter = &deleter{job: j, switches: r.switches, tally: r.tally, story: r.story, left: j.Max, size: newBatchSize(),
			pacer: throttle.Open(j.Sweep.Now, j.Rate, throttle.State{}, mostBelow)}
	}
	ctx = store.WithMeter(ctx, r.meter)
	if err = r.split(ctx); err == nil {
		err = r.work(ctx)
	}
	complete := err == nil && !slices.ContainsFunc(r.parts, func(p *part) bool { return !p.done })
	r.story.end(ctx, complete)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) || errors.Is(err, switches.ErrHeld) {
		err = nil // a run that was stopped, or is held, has not failed
	}
	if n := r.tally.counts.Refused; complete && n > 0 {
		err = fmt.Errorf("target %s: %w: %d", j.Target.Name, ErrPartial, n)
	}
	return r.result(complete), err
}

// split divides the names of all namespaces into parts, in order.
func (r *run) split(ctx context.Context) error {
	j := r.job
	namespaces, err := j.namespaces(ctx)
	if err != nil {
		return err
	}
	most := min(partsPerWorker*max(1, j.Sweep.Workers), mostParts)/max(1, len(namespaces)) - 1
	for _, ns := range namespaces {
		whole := j.Everywhere
		if !whole {
			err := store.Retry(ctx, patience, func() (err error) {
				whole, err = j.store.IsScattered(ctx, j.Target.Target, ns)
				return err
			})
			if err != nil {
				return err
			}
		}
		r.whole = r.whole || whole
		q := j.query(ns, whole)
		if ns == j.From.Namespace {
			if err := j.begin(ctx, &q); err != nil {
				return err
			}
		}
		var roots []string
		if most > 0 {
			err := store.Retry(ctx, patience, func() (err error) {
				roots, err = j.store.Roots(ctx, q, most)
				return err
			})
			if err != nil {
				return err
			}
		}
		after := q.After
		for _, root := range append(roots, "") {
			r.parts = append(r.parts, &part{namespace: ns, whole: whole, after: after, until: root})
			after = root
		}
	}
	j.Progress.Parts.Store(int64(len(r.parts)))
	return nil
}

// begin has a query go on behind the place, unless that is no place to go on from.
func (j *job) begin(ctx context.Context, q *store.LineageQuery) error {
	if j.From.Key == "" {
		return nil
	}
	q.After, q.Behind = j.From.Key, true
	first := *q
	first.Limit = 1
	var page store.Lineage
	err := store.Retry(ctx, patience, func() error { return j.store.Lineage(ctx, first, &page) })
	if err == nil && len(page.List) > 0 {
		err = checkPlace(q.After, page.List[0])
	}
	return err
}

// work has workers read the parts, in order, until all are done or cannot be read.
func (r *run) work(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group errgroup.Group
	var mu sync.Mutex
	var errs []error
	next := 0
	take := func() *part {
		mu.Lock()
		defer mu.Unlock()
		if next == len(r.parts) {
			return nil
		}
		next++
		return r.parts[next-1]
	}
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err) // all parts may fail by the same
		}
		if errors.Is(err, switches.ErrHeld) || errors.Is(err, ErrMax) {
			cancel(err) // it holds for all parts
		}
	}
	for range max(1, min(r.job.Sweep.Workers, len(r.parts))) {
		background.Go(&group, func() error {
			for p := take(); p != nil && ctx.Err() == nil; p = take() {
				if err := newScan(r.job, p, r.tally, r.deleter).run(ctx); err != nil {
					fail(err)
				} else {
					r.job.Progress.PartsDone.Add(1)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // a panic
		return err
	}
	stopped := context.Cause(ctx) // the caller's, or what holds for all parts
	errs = slices.DeleteFunc(errs, func(err error) bool {
		return stopped != nil && (errors.Is(err, context.Canceled) || errors.Is(err, switches.ErrHeld))
	})
	if len(errs) == 0 {
		return stopped
	}
	return errors.Join(errs...)
}

// result returns what the run found and did so far.
func (r *run) result(complete bool) Result {
	j := r.job
	res := Result{Target: j.Target.Name, Apply: j.Sweep.Apply, Complete: complete, Everywhere: r.whole,
		DurationSeconds: j.Sweep.Now().Sub(r.began).Seconds(), Operations: r.meter.Operations(), Kinds: []Kind{},
		Warnings: []string{}}
	if !j.Unlimited {
		res.Max = &j.Max
	}
	r.tally.into(&res)
	if !complete {
		res.StoppedAt = r.stoppedAt()
		if res.Held = r.switches.Noted(); res.Held != "" {
			res.Tripped = r.switches.Tripped()
		}
	}
	if r.tally.nested && !r.whole {
		res.Warnings = append(res.Warnings, "entities of the target lie below others of it: what is below missing ones "+
			"among them is found only with --everywhere")
	}
	if !res.Apply && res.Max != nil && res.Orphans > j.Max {
		res.Warnings = append(res.Warnings, fmt.Sprintf("with --apply a run stops after %d: raise --max once you know why "+
			"there are so many", j.Max))
	}
	return res
}

// stoppedAt returns the place up to which everything was read, in the order of all parts, or nil.
func (r *run) stoppedAt() *Place {
	for i, p := range r.parts {
		switch {
		case p.done:
			continue
		case p.clear != "":
			return &Place{p.namespace, p.clear}
		case i > 0 && r.parts[i-1].namespace == p.namespace:
			return &Place{p.namespace, r.parts[i-1].until}
		case p.after != "":
			return &Place{p.namespace, p.after}
		case i > 0:
			return &Place{Namespace: p.namespace} // all of the namespaces before it was read
		}
		return nil
	}
	return nil
}
