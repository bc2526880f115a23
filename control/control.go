// Package control changes what operators may change about a target: it opens the
// next generation by hand, and sets the switches of the target record.
//
// The invariant is that each change is decided by the present record and saved by one
// compare-and-set: no change of another operator or of a sweep gets lost, and a
// change that is no longer needed, or no longer allowed, is not made. Workers
// see it at their next read of the record, within five seconds. The record keeps
// who set a switch, when and why.
//
// Limits: a call changes one record. It first brings the record up to date with the
// configuration, as a sweep does, and fails where a sweep would fail. It touches no
// entity and no cursor.
package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// ErrNoSuccession is why [Advance] refuses a target.
var ErrNoSuccession = errors.New("only the layout generation has successive generations")

// Advance opens the next generation of a target by hand, with the given number of shards
// or, with 0, the configured one. While writers are still moving to the newest
// generation it fails with [generation.ErrRamping], unless it is forced. It fails with
// [ErrNoSuccession] if the configured layout has no generations, even if the record lists
// some: a process with that layout has not looked for those in use.
func Advance(
	ctx context.Context, cfg sweep.Config, t sweep.Target, shards int, force bool,
) (generation.Record, error) {
	if !t.Generations {
		return generation.Record{}, fmt.Errorf("target %s has the layout %s: %w", t.Name, t.Layout, ErrNoSuccession)
	}
	policy := t.Rules().Policy
	if shards > 0 {
		policy.Shards = shards
	}
	for {
		rec, now, err := sweep.EnsureRecord(ctx, cfg, t)
		if err != nil {
			return generation.Record{}, err
		}
		next, err := rec.Advance(policy, now, force)
		if err != nil {
			return rec, err
		}
		saved, err := generation.Save(ctx, cfg.Store, next)
		if errors.Is(err, store.ErrConflict) {
			continue // somebody else changed the record: this change may not be needed any more
		}
		if err == nil {
			g := saved.Generations[len(saved.Generations)-1]
			c := history.Change{What: "advance", Generation: g.Number, After: fmt.Sprintf("%d shards", g.Shards)}
			if n := len(rec.Generations); n > 0 {
				c.Before = fmt.Sprintf("%d shards", rec.Generations[n-1].Shards)
			}
			tell(ctx, cfg, t, now, history.KindAction, c)
			for _, event := range history.GenerationChanges(rec, saved, func(int) int64 { return 0 }) {
				tell(ctx, cfg, t, now, history.KindGeneration, event)
			}
		}
		return saved, err
	}
}

// Change changes the target record by compare-and-set, and returns the changed record. It
// writes nothing if the change makes no difference. If another process changes the record
// meanwhile, it reads the record and applies the change again. A target without a record
// gets one. The change must leave the generations alone: see [generation.SaveWithin].
func Change(
	ctx context.Context, cfg sweep.Config, t sweep.Target, change func(*generation.Record),
) (generation.Record, error) {
	_, rec, _, err := alter(ctx, cfg, t, func(r *generation.Record, _ time.Time) { change(r) })
	return rec, err
}

// alter is Change for changes that need the store's time. It also returns that time, and the
// record as it was before.
func alter(
	ctx context.Context, cfg sweep.Config, t sweep.Target, change func(*generation.Record, time.Time),
) (was, rec generation.Record, now time.Time, err error) {
	for {
		was, now, err = sweep.EnsureRecord(ctx, cfg, t)
		if err != nil {
			return was, generation.Record{}, now, err
		}
		next := was
		if change(&next, now.UTC().Truncate(time.Microsecond)); next.EqualContent(was) {
			return was, next, now, nil
		}
		next, err = generation.SaveWithin(ctx, cfg.Store, next, patience)
		if !errors.Is(err, store.ErrConflict) {
			return was, next, now, err
		}
	}
}

// tell writes what an operator has changed to the history of the target. The change is made
// by then, so a write that fails is only logged.
func tell(ctx context.Context, cfg sweep.Config, t sweep.Target, at time.Time, kind history.Kind, c history.Change) {
	if err := sweep.RecordHistory(ctx, cfg, t, at, kind, c); err != nil {
		cfg.Log.WarnContext(ctx, "cannot write the history", "target", t.Name, "what", c.What, "error", err)
	}
}
