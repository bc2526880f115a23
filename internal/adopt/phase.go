package adopt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Dualize begins the phase dual, in which writers write both the property that the rule reads and
// the key. The adoption goes on.
func Dualize(ctx context.Context, cfg Config) (Result, error) {
	cfg.Order = beginDual
	r, err := newRun(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	for {
		rec, _, err := r.planner.load(ctx)
		if err != nil {
			return r.result(false), err
		}
		r.reading, r.tally = &reading{r.job, rec}, newTally(r.job, r.view.StoreNow())
		if rec.Phase == Dual || !cfg.Sweep.Apply {
			return r.result(true), nil
		}
		before := rec
		rec.Phase = Dual
		if rec, err = rec.save(ctx, r.job.store); err == nil {
			r.reading = &reading{r.job, rec}
			cfg.tell(ctx, r.view.StoreNow(), toldDual, before, rec)
			res := r.result(true)
			res.Apply = true
			return res, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return r.result(false), err
		}
	}
}

// ErrUnverified is wrapped by the error for an adoption that cannot be finished yet.
var ErrUnverified = errors.New("entities without a key, or with one that disagrees with the rule, are left")

// Left returns how many entities keep an adoption from being finished.
func (r Result) Left() int64 { return r.Counts[Unstamped] + r.Counts[Mismatch] }

// Finish verifies an adoption and, with Apply, marks its record as finished. It refuses while more
// entities are left than are accepted.
func Finish(ctx context.Context, cfg Config, accept int64) (Result, error) {
	cfg.Order = Verify
	var now time.Time // in the store's time, when the record was read
	load := func() (rec Record, exists bool, err error) {
		err = store.Retry(ctx, savePatience, func() error {
			rec, now, exists, err = Load(ctx, cfg.Sweep.Store, cfg.Target.Name)
			return err
		})
		return rec, exists, err
	}
	verified, _, err := load()
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	res, err := Run(ctx, cfg)
	if err != nil || !res.Complete {
		return res, err
	}
	if left := res.Left(); left > accept {
		return res, fmt.Errorf("finish the adoption of target %s: %w: %d, and %d are accepted", res.Target, ErrUnverified,
			left, accept)
	}
	if !cfg.Sweep.Apply {
		return res, nil
	}
	for {
		rec, exists, err := load()
		if err != nil {
			return res, err
		}
		if !exists || rec.Phase == Undoing || !rec.Began.Equal(verified.Began) {
			return res, fmt.Errorf("%w: the adoption of target %s was undone meanwhile", ErrPhase, cfg.Target.Name)
		}
		before := rec
		rec.Phase = Finished
		rec, err = rec.save(ctx, cfg.Sweep.Store)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil && before.Phase != Finished {
			cfg.tell(ctx, now, toldFinish, before, rec)
		}
		res.Apply, res.Phase = err == nil, rec.Phase
		return res, err
	}
}
