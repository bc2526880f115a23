package dispose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A keeping gives the archive what one call of the store is about to delete, and tells it afterwards what of
// that is gone. A nil keeping keeps nothing.
type keeping struct {
	site    *site.Site
	writer  *Writer
	space   string // the namespace
	release func() // of the memory; nil if it needs none
	ended   []func(fate func(key string) store.Outcome)
	waited  time.Duration
	err     error
}

// keeps returns what keeps the ops of the next call: the keys of them now, whole entities as soon as the call
// shows them. The query is that of the call. If the entity may have been written again since it was scanned,
// even a key waits until the call shows it.
func (w *Writer) keeps(ctx context.Context, q *store.Query, ops []store.Op, isOlder bool) (*keeping, error) {
	archive := w.c.Cfg.Archive
	if archive == nil || w.hold.claim == nil { // a dry run keeps nothing
		return nil, nil
	}
	k := &keeping{site: w.c, writer: w, space: w.hold.Before.ID.Namespace}
	_, shows := w.c.Cfg.Store.(store.Archiver)
	if archive.IsWhole() || isOlder && shows {
		began := w.c.Cfg.Now()
		release, err := archive.Reserve(ctx, store.CopyBytes)
		if err != nil {
			return nil, err
		}
		k.release, k.waited, q.Archive = release, w.c.Cfg.Now().Sub(began), k
		return k, nil
	}
	list := make([]store.Copy, 0, len(ops))
	for i := range ops {
		if e := ops[i].Entry; !ops[i].IsCarry() {
			list = append(list, store.Copy{Key: e.Key, Expiry: ops[i].Held(), Updated: e.Written})
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	return k, k.Keep(ctx, list)
}

// Keep implements [store.Archive]. It may have taken long: what holds the target by now, or another pace that somebody
// has ordered, holds these, too.
func (k *keeping) Keep(ctx context.Context, list []store.Copy) error {
	if !k.site.Cfg.Archive.IsWhole() {
		list = slices.Clone(list)
		for i := range list {
			list[i].Data = nil
		}
	}
	began := k.site.Cfg.Now()
	ended, err := k.site.Cfg.Archive.Keep(ctx, k.site.Story.ID(began), k.space, list)
	k.waited += k.site.Cfg.Now().Sub(began)
	k.site.Pacing.Follow(k.site.Viewer.View())
	switch why := k.site.HeldBy(); {
	case err != nil:
		k.err = k.writer.archiveFailed(ctx, len(list), err)
	case why != "" && why != throttle.ReasonLimit: // these are within the limits: that was granted
		k.err = &throttle.Pause{Wait: HeldFor, Why: why}
	case k.site.Pacing.Orders() != k.writer.granted:
		k.err = &throttle.Pause{Why: k.writer.hold.Pacer.Status().Reason}
	}
	if err == nil {
		k.writer.slowSince = time.Time{}
		for _, c := range list {
			k.site.Tally.Counts.ArchivedBytes.Add(int64(len(c.Key) + len(c.Data)))
		}
	}
	if ended != nil {
		k.ended = append(k.ended, ended)
	}
	return k.err
}

// slowFor is how long an archive may take too long, for fewer and fewer entities, before the range counts as failed.
const slowFor = 2 * time.Minute

// archiveFailed returns the pause after which entities that were not kept are tried again. If the archive took all the
// time that a write has, it is tried with half as many, and in the end that is the error.
func (w *Writer) archiveFailed(ctx context.Context, n int, err error) error {
	pause := &throttle.Pause{Wait: HeldFor, Why: throttle.ReasonArchive}
	if errors.Is(ctx.Err(), context.Canceled) {
		return pause // somebody stops the write
	}
	w.c.Log.Failed("write the archive", "", err)
	if ctx.Err() == nil {
		return pause
	}
	w.Size.Halve(n, true)
	now := w.c.Cfg.Now()
	if w.slowSince.IsZero() {
		w.slowSince = now
	}
	if now.Sub(w.slowSince) > slowFor {
		// Not as the deadline that it wraps: that would be tried once more.
		return fmt.Errorf("the archive is too slow: %d entities take longer than a write may: %s", n, err.Error())
	}
	return pause
}

// end tells the archive what is gone after the call, and returns the error of the call: if nothing could be
// kept, that is why.
func (k *keeping) end(ops []store.Op, err error) error {
	if k == nil {
		return err
	}
	if k.release != nil {
		k.release()
	}
	fates := map[string]store.Outcome{}
	for i := range ops {
		o := ops[i].Outcome
		if o == store.Unknown && !store.MayHaveHappened(err) {
			o = store.Kept
		}
		fates[ops[i].Entry.Key] = o
		if o == store.Deleted {
			k.site.Tally.Counts.Archived.Add(1)
		}
	}
	for _, ended := range k.ended {
		ended(func(key string) store.Outcome { return fates[key] })
	}
	switch {
	case err == nil && store.Known(ops) == 0: // it would be asked for ever
		return fmt.Errorf("%w: the store disposed of nothing", store.ErrFailed)
	case err != nil && k.err != nil:
		return k.err
	}
	return err
}

// wait returns how much of the time that the call took was spent on the archive.
func (k *keeping) wait() time.Duration {
	if k == nil {
		return 0
	}
	return k.waited
}
