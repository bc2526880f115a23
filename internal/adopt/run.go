package adopt

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

// A run is one call of Run or Follow.
type run struct {
	job     *job
	view    *targetView
	planner *planner
	pacer   *throttle.Pacer
	meter   *store.Meter
	began   time.Time // on this process's clock

	// What it has once it goes by a record:
	reading *reading
	tally   *tally
	share   *share
	pager   *pager
}

func newRun(cfg Config) (*run, error) {
	p, err := newPlanner(cfg)
	if err != nil {
		return nil, err
	}
	r := &run{job: p.job, view: p.view, planner: p, meter: new(store.Meter), began: p.job.now()}
	r.pacer = throttle.Open(r.job.now, cfg.Rate, throttle.State{}, store.MaxPage)
	return r, nil
}

// Run adopts, verifies or undoes one target. It returns what it did also with an error.
func Run(ctx context.Context, cfg Config) (Result, error) {
	r, err := newRun(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	ctx = store.WithMeter(ctx, r.meter)
	rec, began, err := r.planner.prepare(ctx)
	complete := false
	if err == nil || errors.Is(err, switches.ErrHeld) {
		r.begin(rec)
	}
	if err == nil {
		if began && r.job.cfg.Order == Stamp {
			r.tally.now = rec.Round().Began // splitting the keys may have taken long since
		}
		if complete, err = r.work(ctx); err == nil && complete && r.job.applies() && r.job.cfg.Order == Undo {
			err = r.end(ctx)
			complete = err == nil // also if it was stopped
		}
	}
	return r.ended(ctx, complete, err)
}

// ended returns the result. A run that was stopped, or is held, has not failed.
func (r *run) ended(ctx context.Context, complete bool, err error) (Result, error) {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) || errors.Is(err, switches.ErrHeld) {
		err = nil
	}
	return r.result(complete && err == nil), err
}

// end removes the records of an adoption that was undone, unless keys are left.
func (r *run) end(ctx context.Context) error {
	parts, _, err := loadParts(ctx, r.job.store, r.reading.record)
	if err != nil {
		return err
	}
	kept := int64(0)
	for _, p := range parts {
		kept += p.kept
	}
	if kept > 0 {
		return store.WithHint(fmt.Errorf("undo target %s: keys that could not be removed are left: %d",
			r.job.cfg.Target.Name, kept), "run the command again; sweeps compare these keys with the rule meanwhile")
	}
	return forget(ctx, r.job.store, r.reading.record)
}

// begin has the run go by a record.
func (r *run) begin(rec Record) {
	now := r.view.StoreNow()
	r.reading = &reading{r.job, rec}
	r.share = newShare(r.reading, r.pacer)
	r.tally = newTally(r.job, now)
	w := &writer{r.job, r.view, r.tally, &permit{r.job, r.view, r.reading, r.share}}
	r.pager = &pager{r.job, r.view, r.reading, r.tally, w, judge{target: r.job.cfg.Target.Name, rule: r.job.cfg.Rule,
		rounds: rec.Rounds, maxAge: r.job.cfg.Target.MaxAge, horizon: now.Add(-r.job.cfg.Target.Retention)}}
	r.job.cfg.Progress.Parts.Store(int64(len(rec.Parts)))
}

// work has workers read the parts until all are done, and reports whether they are.
func (r *run) work(ctx context.Context) (complete bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group errgroup.Group
	var mu sync.Mutex
	var errs []error
	reader := &reader{r.job, r.reading, r.pager}
	next := (&countedParts{reading: r.reading}).next
	if r.job.applies() {
		next = newRecordedParts(r.reading).next
	}
	for range max(1, min(r.job.cfg.Sweep.Workers, len(r.reading.record.Parts))) {
		background.Go(&group, func() error {
			for ctx.Err() == nil {
				p, ok, err := next(ctx)
				if err == nil && !ok {
					return nil
				}
				if err == nil {
					err = p.use(ctx, r.share, reader.part)
				}
				if err == nil || errors.Is(err, errLost) {
					continue
				}
				mu.Lock()
				if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
					errs = append(errs, err) // all parts may fail by the same
				}
				mu.Unlock()
				if errors.Is(err, errStop) || errors.Is(err, switches.ErrHeld) {
					cancel(err) // it holds for all parts
				}
				return nil
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // a panic
		return false, err
	}
	stopped := context.Cause(ctx)
	if len(errs) == 0 && stopped == nil {
		return true, nil
	}
	errs = slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, switches.ErrHeld) || ctx.Err() != nil && errors.Is(err, context.Canceled)
	})
	return false, errors.Join(errs...)
}
