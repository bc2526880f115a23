package dispose

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// looksAtOnce is how many entities are looked below at the same time.
	looksAtOnce = 16
	// lookHolds is for how long it counts that nothing was found below an entity. What is written there
	// meanwhile stays.
	lookHolds = time.Second
)

// A Descent deletes what lies below one due entity, page by page, and remembers no more than a place. It
// first surveys all of it: if that is too much, or something is another target's own, nothing is
// deleted. Then it goes round after round until one meets nothing. Of a page it leaves what something
// behind the page may lie below: a later round deletes that.
type Descent struct {
	Deleted  int64
	surveyed bool
	Seen     int64  // what the survey has met
	after    string // how far the survey, or the round, has come
	met      bool   // the round has met something

	// What was listed on earlier pages of the round, has something behind the place, and may get an owner.
	above []store.Descendant
}

// A Below says what there is to be done below an entity.
type Below uint8

// What there may be to be done.
const (
	BelowUnknown Below = iota // the descent goes on
	BelowNothing              // nothing lies there
	BelowNotDue               // the entity is gone, no longer due, or due by another expiry
	BelowOwned                // something there is another target's own, which goes by its own expiry
	BelowTooMany              // there is more than the target allows
)

// An Above is the entity above what is deleted.
type Above struct {
	Query     store.Query
	*store.Op                        // the budget is asked for the expiry that it held last
	IsDue     func(store.Value) bool // by that expiry, if it still has it in the deleting transaction
}

// Descends reports whether what lies below entities matters for their delete.
func (w *Writer) Descends() bool { return w.c.Target.Descendants.Mode != site.KeepDescendants }

// Look returns the indexes of those ops that have something below, if that matters. It does not look again
// below what it has just looked at. A carry moves nothing below it; but one that is about to be due may
// be deleted instead.
func (w *Writer) Look(ctx context.Context, ops []store.Op) (have []int, err error) {
	if !w.Descends() {
		return nil, nil
	}
	now := w.c.Cfg.Now()
	for key, at := range w.looked {
		if now.Sub(at) >= lookHolds {
			delete(w.looked, key)
		}
	}
	// As a carry is judged when it is stamped: by the time of then, however long ago the sweep began.
	soon := w.c.Clock.Now().Add(2*WriteTimeout - w.c.Target.Retention)
	var mu sync.Mutex
	var none []string
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(looksAtOnce)
	for i := range ops {
		stays := ops[i].IsCarry() && w.c.Index.Decide(ops[i].Entry.Value, soon) != index.Due
		if _, known := w.looked[ops[i].Entry.Key]; known || stays {
			continue
		}
		background.Go(group, func() error {
			var page store.Descendants
			if err := w.list(inGroup, ops[i].Entry, "", 1, &page); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if len(page.List) > 0 {
				have = append(have, i)
			} else {
				none = append(none, ops[i].Entry.Key)
			}
			return nil
		})
	}
	err = group.Wait()
	w.foundNothing(now, none...)
	slices.Sort(have)
	return have, err
}

// foundNothing notes that nothing lay below entities at an instant.
func (w *Writer) foundNothing(at time.Time, keys ...string) {
	if w.looked == nil {
		w.looked = map[string]time.Time{}
	}
	for _, key := range keys {
		w.looked[key] = at
	}
}

func (w *Writer) list(ctx context.Context, e store.Entry, after string, most int, page *store.Descendants) error {
	s, ok := w.c.Cfg.Store.(store.Descender)
	if !ok {
		return store.ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
	defer cancel()
	return s.Descendants(ctx, store.DescendantQuery{Target: w.c.Target.Target, Namespace: w.hold.Before.ID.Namespace,
		Key: e.Key, After: after, Limit: most, Owners: w.c.Target.Descendants.Owners}, page)
}

// Descend does the next page of a descent: it surveys it, or deletes what it can of it.
func (w *Writer) Descend(t step.Turn, above Above, d *Descent) (Below, error) {
	var page store.Descendants
	began, most := w.c.Cfg.Now(), min(w.Size.Next(w.c.Target.Page), store.MaxPage-1-len(d.above))
	if d.surveyed && w.hold.Pacer != nil { // what is read and cannot be deleted would be read again
		n, wait, why := w.hold.Pacer.Ready(most)
		if wait > 0 {
			return BelowUnknown, &throttle.Pause{Wait: wait, Why: why}
		}
		most = min(n+1, most)
	}
	err := w.list(t.Ctx, above.Entry, d.after, most, &page)
	if err != nil {
		return BelowUnknown, err
	}
	if is := w.judge(page, d); is != BelowUnknown {
		return is, nil
	}
	if !d.surveyed && !d.survey(page) {
		return BelowUnknown, nil
	}
	if len(page.List) > 0 {
		d.met = true
		is, whole, err := w.deletePage(t, above, d, page)
		if errors.Is(err, store.ErrContention) && len(d.above) > 0 {
			d.after, d.above = "", nil // what is above the place may have changed: a new round lists it again
		}
		if err != nil || is != BelowUnknown || !whole {
			return is, err
		}
	}
	if d.moveOn(page); page.More || d.met {
		d.met = d.met && page.More // else another round begins
		return BelowUnknown, nil
	}
	w.foundNothing(began, above.Entry.Key)
	return BelowNothing, nil
}

// moveOn goes on behind a page; behind the last one from the start.
func (d *Descent) moveOn(page store.Descendants) {
	if d.after = ""; !page.More {
		d.above = nil
		return
	}
	d.after = page.List[len(page.List)-1].Key
	d.above = slices.DeleteFunc(d.above, func(b store.Descendant) bool { return !store.IsBelow(d.after, b.Key) })
	for _, b := range page.List {
		if b.Above && b.Premise != "" {
			d.above = append(d.above, b)
		}
	}
}

// staying returns what stays of what was listed, is above some of what is to be deleted, and may get an owner.
func staying(d *Descent, page, doomed []store.Descendant) (list []store.Descendant) {
	for _, b := range slices.Concat(d.above, page) {
		isAbove := func(one store.Descendant) bool { return store.IsBelow(one.Key, b.Key) }
		isDoomed := func(one store.Descendant) bool { return one.Key == b.Key }
		if b.Premise != "" && slices.ContainsFunc(doomed, isAbove) && !slices.ContainsFunc(doomed, isDoomed) {
			b.Stays = true
			list = append(list, b)
		}
	}
	return list
}

// Survey counts what lies below an entity, as far as that matters: a dry run deletes nothing.
func (w *Writer) Survey(ctx context.Context, e store.Entry) (n int64, is Below, err error) {
	var d Descent
	for !d.surveyed {
		var page store.Descendants
		if err := w.list(ctx, e, d.after, store.MaxPage-1, &page); err != nil {
			return d.Seen, BelowUnknown, err
		}
		if is = w.judge(page, &d); is != BelowUnknown {
			return d.Seen, is, nil
		}
		d.survey(page)
	}
	return d.Seen, BelowUnknown, nil
}

// judge counts a page of the survey, and says whether what lies below an entity keeps it.
func (w *Writer) judge(page store.Descendants, d *Descent) Below {
	if slices.ContainsFunc(page.List, func(b store.Descendant) bool { return b.Owner != "" }) {
		return BelowOwned
	}
	if d.surveyed {
		return BelowUnknown
	}
	if d.Seen += int64(len(page.List)); d.Seen > w.c.Target.Descendants.Max || d.Seen > 0 && w.Refuses() {
		return BelowTooMany
	}
	return BelowUnknown
}

// Refuses reports whether any entity is kept that has something below it.
func (w *Writer) Refuses() bool { return w.c.Target.Descendants.Mode == site.RefuseDescendants }

// survey notes what the survey has met, and reports whether the page is all that there is: then it is
// not read a second time.
func (d *Descent) survey(page store.Descendants) (isOnly bool) {
	isOnly = !page.More && d.after == ""
	d.surveyed = !page.More
	d.moveOn(page)
	return isOnly
}

// deletePage deletes what it can of a page, from its end on: as much as the pace allows. Whole says that
// nothing is left of it but what may have something below it behind the page.
func (w *Writer) deletePage(
	t step.Turn, above Above, d *Descent, page store.Descendants,
) (is Below, whole bool, err error) {
	list := page.List
	if page.More {
		list = slices.DeleteFunc(slices.Clone(list), func(b store.Descendant) bool { return b.Above })
	}
	n := len(list)
	if w.hold.Pacer != nil && n > 0 {
		most, wait, why := w.hold.Pacer.Ready(n)
		if wait > 0 {
			return BelowUnknown, false, &throttle.Pause{Wait: wait, Why: why}
		}
		n = min(n, most)
	}
	whole = n == len(list)
	if n == 0 {
		return BelowUnknown, whole, nil
	}
	list = list[len(list)-n:]
	switch outcome, err := w.deleteBelow(t, above, list, staying(d, page.List, list)); {
	case err != nil:
		return BelowUnknown, false, err
	case outcome != store.Deleted:
		return BelowNotDue, false, nil
	}
	d.Deleted += int64(n)
	return BelowUnknown, whole, nil
}

// deleteBelow deletes descendants of an entity while that is due, as deletes of the range, and while what stays above
// them is as it was listed.
func (w *Writer) deleteBelow(
	t step.Turn, above Above, list, stays []store.Descendant,
) (outcome store.Outcome, err error) {
	s, ok := w.c.Cfg.Store.(store.Descender)
	if !ok || w.hold.claim == nil { // a dry run surveys
		return store.Unknown, store.ErrUnsupported
	}
	asked := above.Held() // by another expiry, the entity may be of another event: then nothing below it is deleted
	isDue := func(v store.Value) bool { return v.Equal(asked) && above.IsDue(v) }
	ops := make([]store.Op, len(list))     // for the budget they are like the entity itself
	journal := make([]store.Op, len(list)) // for the archive they have no expiry of their own
	for i := range ops {
		ops[i].Entry = store.Entry{Key: list[i].Key, Value: asked, At: above.Entry.At}
		journal[i].Entry = store.Entry{Key: list[i].Key}
	}
	w.Asker.Below = true
	defer func() { w.Asker.Below = false }()
	err = w.write(t, ops, func(ctx context.Context) (err error) {
		began, q := w.c.Cfg.Now(), above.Query
		kept, err := w.keeps(ctx, &q, journal, false)
		if err == nil {
			outcome, err = s.DeleteBelow(ctx, q, above.Entry, slices.Concat(stays, list), isDue)
		}
		for i := range ops {
			ops[i].Outcome = outcome
		}
		err = kept.end(ops, err)
		took := w.c.Cfg.Now().Sub(began) - kept.wait()
		t.Scratch.Longest = max(t.Scratch.Longest, took)
		w.c.Cfg.Metrics.Commit(w.c.Target.Name, took)
		return err
	})
	if err != nil {
		outcome = store.Unknown
	}
	if store.TookTooLong(err) { // for an archive it reads whole entities
		w.Size.Halve(len(list), true)
	}
	return outcome, err
}
