package orphans

import (
	"context"
	"errors"
	"fmt"

	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A keeping gives the target's archive what one call is about to delete, and tells it afterwards what became
// of that.
type keeping struct {
	archive   sweep.Archive // nil keeps nothing
	namespace string
	switches  *switches.Switches
	release   func()
	ended     []func(fate func(key string) store.Outcome)
	held      bool // nothing was deleted, since something holds the target by now
	untried   bool // nothing was deleted: the archive failed, or the look after it
}

// errHeldMeanwhile is why a call deletes nothing of what the archive has kept.
var errHeldMeanwhile = errors.New("the target was held while the archive was written")

// begin keeps the keys of a list now, or has the call show whole entities.
func (k *keeping) begin(ctx context.Context, q *store.LineageQuery, list []store.Relative) (err error) {
	switch {
	case k.archive == nil || len(list) == 0:
		return nil
	case k.archive.IsWhole():
		k.release, err = k.archive.Reserve(ctx, store.CopyBytes)
		q.Archive = k
		return err
	}
	copies := make([]store.Copy, len(list))
	for i, r := range list {
		copies[i] = store.Copy{Key: r.Key, Updated: r.Written}
	}
	err = k.Keep(ctx, copies)
	k.untried = err != nil
	return err
}

// Keep implements [store.Archive]. It may have taken long: what holds the target by now holds these, too.
func (k *keeping) Keep(ctx context.Context, list []store.Copy) error {
	ended, err := k.archive.Keep(ctx, "", k.namespace, list)
	if err != nil {
		return err
	}
	k.ended = append(k.ended, ended)
	if err := k.switches.Fresh(ctx); err != nil {
		return err
	}
	if why := k.switches.Held(); why != "" {
		k.held = true
		return fmt.Errorf("%w: %s", errHeldMeanwhile, why)
	}
	return nil
}

// end tells what became of all that was kept: they go together.
func (k *keeping) end(outcome store.Outcome, err error) {
	if k.release != nil {
		k.release()
	}
	if outcome == store.Unknown && (k.untried || !store.MayHaveHappened(err)) {
		outcome = store.Kept
	}
	for _, ended := range k.ended {
		ended(func(string) store.Outcome { return outcome })
	}
}
