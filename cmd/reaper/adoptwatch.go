package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// notAgain is longer than any adoption: no round begins only because of the time.
	notAgain = 100 * 365 * 24 * time.Hour
	// watchAgain is how long a watch waits after the store failed, and at most between two looks.
	watchAgain = time.Minute
)

// errFinished tells that the adoption that is watched was finished.
var errFinished = errors.New("the adoption is finished")

// A watcher keeps stamping what old writers create.
type watcher struct {
	*adoption
	every   time.Duration // from the begin of one round to the next
	given   bool          // --every was given
	rounds  bool          // there is no index to follow
	adopted bool          // a round has begun
}

// watchAdoption stamps what old writers create until it is stopped.
func watchAdoption(a *app, cmd *cobra.Command, args []string, f adoptFlags) (err error) {
	every, err := readPositive("--every", f.every)
	if err != nil {
		return err
	}
	if every < time.Minute {
		return wrongUsage("--every: %s is less than a minute; each round reads every entity", f.every)
	}
	if a.json {
		return wrongUsage("--watch cannot be combined with --json: that is exactly one document")
	}
	ad, err := beginAdopt(a, cmd, args, f)
	if err != nil {
		return err
	}
	defer ad.db.closeInto(&err)
	if !ad.Apply {
		return wrongUsage("--watch writes keys for as long as it runs: it needs --apply")
	}
	w := &watcher{adoption: ad, every: every, given: cmd.Flags().Changed("every")}
	ctx := cmd.Context()
	for ctx.Err() == nil {
		switch err := w.step(ctx); {
		case ctx.Err() != nil: // stopped, in good order
		case errors.Is(err, errFinished):
			w.log.InfoContext(ctx, "the watch ends: the adoption is finished", "target", w.cfg.Target.Name)
			return nil
		case err != nil && !store.Transient(err):
			return err
		case err != nil:
			w.log.WarnContext(ctx, "adoption interrupted; it goes on in a minute", "target", w.cfg.Target.Name, "error", err)
			_ = throttle.Sleep(ctx, watchAgain) // it fails once ctx is done
		}
	}
	return nil
}

// step makes a round if one is due, and else follows the index until the next one is, or waits.
func (w *watcher) step(ctx context.Context) error {
	if err := w.stillAdopted(ctx); err != nil {
		return err
	}
	every := notAgain
	if w.given || w.rounds {
		every = w.every
	}
	at, err := adopt.NextRound(ctx, w.cfg, every)
	if err != nil {
		return err
	}
	switch wait := time.Until(at); {
	case wait <= 0:
		return w.round(ctx)
	case w.rounds:
		return throttle.Sleep(ctx, min(wait, watchAgain))
	default:
		return w.follow(ctx, wait)
	}
}

// stillAdopted fails if the adoption was undone meanwhile, since a round would begin a new one, or
// finished.
func (w *watcher) stillAdopted(ctx context.Context) error {
	rec, _, exists, err := adopt.Load(ctx, w.cfg.Sweep.Store, w.cfg.Target.Name)
	switch {
	case err == nil && !exists && w.adopted:
		return unfitOrder(fmt.Errorf("%w: the adoption of target %s was undone", adopt.ErrNotAdopted, w.cfg.Target.Name))
	case err == nil && exists && w.adopted && rec.Phase == adopt.Finished:
		return errFinished
	}
	w.adopted = w.adopted || exists
	return err
}

// round reads all entities once.
func (w *watcher) round(ctx context.Context) error {
	if err := w.announceReading(ctx, "a round"); err != nil {
		return err
	}
	w.yes = true // the answer holds for later rounds, too
	res, err := w.run(ctx, adopt.Run)
	if err == nil && res.Held != "" && !res.Complete {
		w.log.InfoContext(ctx, "round suspended; it goes on in a minute", "target", w.cfg.Target.Name, "reason", res.Held)
		return throttle.Sleep(ctx, watchAgain)
	}
	if err := w.report(res, err); err != nil || ctx.Err() != nil {
		return err
	}
	w.rounds = false // the property may be indexed by now
	w.log.InfoContext(ctx, "round done", "target", w.cfg.Target.Name)
	return nil
}

// follow follows the index until a round is due.
func (w *watcher) follow(ctx context.Context, wait time.Duration) error {
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	res, err := adopt.Follow(within, w.cfg)
	if res.Scanned > 0 {
		w.log.InfoContext(ctx, "followed the index", "target", w.cfg.Target.Name, "read", res.Scanned, "keys", res.Stamped)
	}
	switch {
	case errors.Is(err, adopt.ErrCannotFollow):
		w.rounds = true
		w.log.InfoContext(ctx, "full rounds instead of an index", "target", w.cfg.Target.Name, "every", w.every.String(),
			"reason", err)
	case err != nil && !adopt.IsNewRound(err) && !errors.Is(err, adopt.ErrRoundNeeded): // else the next step joins it
		return cmp.Or(unfitOrder(err), err)
	}
	return nil
}
