package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/store"
)

const (
	// CleanWithin is how long cleaning up may take. A killed process may have left locks
	// that the service keeps for a minute, and at most for four and a half.
	CleanWithin = 5 * time.Minute
	// MostForeign is how many keys of entities of others a report names.
	MostForeign = 5

	cleaners  = 8                // settle at the same time
	patience  = 30 * time.Second // for one call, with all its repetitions
	lastText  = "\U0010ffff"
	mostTurns = 10 // over one kind, in each of which something must go
)

// A cleaner removes what a run has written.
type cleaner struct {
	db      Database // a fence's
	scratch scratch
	spaces  []string

	mu      sync.Mutex
	deleted int64
	records int64
	foreign []string
}

// all removes everything of the run, and says whether its kinds are empty.
func (c *cleaner) all(ctx context.Context, now func() time.Time) (done Cleaned) {
	began := now()
	ctx, cancel := context.WithTimeout(ctx, CleanWithin)
	defer cancel()
	var spots, sorted []spot
	for _, space := range c.spaces {
		for _, kind := range c.scratch.kinds() {
			spots = append(spots, spot{kind, space})
		}
	}
	var errs []error
	for _, target := range c.scratch.targets() {
		if err := c.checkTarget(ctx, target); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, sort := range sorts {
			sorted = append(sorted, spot{string(sort), target})
		}
	}
	err := errors.Join(append(errs, c.spots(ctx, spots, sorted))...)
	if err == nil && len(c.foreign) == 0 {
		err = c.confirm(ctx, spots)
	}
	if err == nil { // else the next run tries again
		err = c.sweepRecords(ctx, store.WorkerRecord, journal, []string{c.scratch.journalKey()})
	}
	done = Cleaned{ID: c.scratch.id, Entities: c.deleted, Records: c.records, Foreign: c.foreign,
		Empty: err == nil && len(c.foreign) == 0, Duration: now().Sub(began).Seconds()}
	if done.Foreign == nil {
		done.Foreign = []string{}
	}
	if err != nil {
		done.Error = err.Error()
	}
	return done
}

// checkTarget returns an error if the records of a target are not the run's: they have its name only.
func (c *cleaner) checkTarget(ctx context.Context, target string) error {
	got, err := loadOne(ctx, c.db, store.TargetRecord, target)
	if err != nil {
		return fmt.Errorf("look whose records those of %s are: %w", target, err)
	}
	return c.scratch.whoseTarget(got)
}

// spots removes what is in some places, all of them, whatever fails.
func (c *cleaner) spots(ctx context.Context, entities, records []spot) error {
	var errs []error
	for _, s := range entities {
		errs = append(errs, c.entities(ctx, s))
	}
	for _, s := range records {
		errs = append(errs, c.sweepRecords(ctx, store.RecordSort(s.what), s.where, nil))
	}
	return errors.Join(errs...)
}

// confirm looks whether the kinds are empty.
func (c *cleaner) confirm(ctx context.Context, spots []spot) error {
	for _, s := range spots {
		var holds bool
		err := store.Retry(ctx, patience, func() (err error) {
			holds, err = c.db.Holds(ctx, c.scratch.storeTarget(s.what), s.where)
			return err
		})
		if err != nil {
			return fmt.Errorf("look whether %s is empty: %w", s.what, err)
		}
		if holds {
			return fmt.Errorf("%w: %s still holds an entity after all that were found are deleted", store.ErrFailed, s.what)
		}
	}
	return nil
}

// entities deletes those of one kind that carry the mark of the run.
func (c *cleaner) entities(ctx context.Context, s spot) error {
	t := c.scratch.storeTarget(s.what)
	for turn := range mostTurns {
		own, others, err := c.find(ctx, t, s.where)
		if err != nil {
			return err
		}
		if len(own) == 0 {
			c.foreign = first(slices.Compact(slices.Sorted(slices.Values(append(c.foreign, others...)))), MostForeign)
			return nil
		}
		before := c.deleted
		if turn == 0 { // a store that drops a batch says that all is deleted
			if err := c.disposeOf(ctx, t, s.where, own); err != nil {
				return err
			}
		}
		if err := c.settle(ctx, t, s.where, own); err != nil {
			return err
		}
		if c.deleted == before {
			return fmt.Errorf("%w: %d entities of %s cannot be deleted", store.ErrFailed, len(own), s.what)
		}
	}
	return fmt.Errorf("%w: more and more entities of %s appear", store.ErrFailed, s.what)
}

// find reads all entities of a kind: the keys of those that carry the mark, and of some others.
func (c *cleaner) find(ctx context.Context, t store.Target, namespace string) (
	own map[string]bool, others []string, err error,
) {
	own = map[string]bool{}
	q := store.WalkQuery{Target: t, Namespace: namespace, Source: markProperty, Limit: store.MaxPage}
	for {
		var rows store.Rows
		err = store.Retry(ctx, patience, func() error { return c.db.Walk(ctx, q, &rows) })
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", t.Kind, err)
		}
		for _, r := range rows.List {
			switch {
			case r.Source.Type == store.Text && r.Source.Text == c.scratch.id:
				own[r.Key] = true
			case len(others) < MostForeign:
				others = append(others, r.Key)
			}
			q.After = r.Key
		}
		if q.Next = rows.Next; !rows.More || len(rows.List) == 0 && rows.Next == nil {
			return own, others, nil
		}
	}
}

// disposeOf deletes, in batches, those of the run's entities that have a text for an expiry,
// and removes their keys from the set.
func (c *cleaner) disposeOf(ctx context.Context, t store.Target, namespace string, own map[string]bool) error {
	q := store.Query{Target: t, Namespace: namespace, Lo: store.TextValue(""), Hi: store.TextValue(lastText),
		Limit: store.MaxPage}
	for {
		var page store.Page
		if err := store.Retry(ctx, patience, func() error { return c.db.Scan(ctx, q, &page) }); err != nil {
			return fmt.Errorf("scan %s: %w", t.Kind, err)
		}
		b := &store.Batch{Query: q}
		seen := map[string]bool{}
		for _, e := range page.Entries {
			if own[e.Key] && !seen[e.Key] {
				seen[e.Key] = true
				b.Ops = append(b.Ops, store.Op{Entry: e,
					Premise: store.Premise{Property: markProperty, Value: store.TextValue(c.scratch.id)}})
			}
			q.After = e.Position()
		}
		if len(b.Ops) > 0 {
			err := store.Retry(ctx, patience, func() error { return c.db.Dispose(ctx, b) })
			for _, op := range b.Ops { // also after an error: some may be gone
				if op.Outcome == store.Deleted || op.Outcome == store.Gone {
					delete(own, op.Entry.Key)
					c.deleted++
				}
			}
			if err != nil && !store.MayBeOfOneEntity(err) { // else one by one
				return fmt.Errorf("delete %d of %s: %w", len(b.Ops), t.Kind, err)
			}
		}
		if q.Next = page.Next; !page.More || len(page.Entries) == 0 && page.Next == nil {
			return nil
		}
	}
}

// settle deletes entities one by one, whatever their expiry is. What a reading shows to be
// another's by now was replaced meanwhile, and is met by the next one.
func (c *cleaner) settle(ctx context.Context, t store.Target, namespace string, own map[string]bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cleaners)
	q := store.Query{Target: t, Namespace: namespace}
	for key := range own {
		group.Go(func() error {
			var o store.Outcome
			err := store.Retry(ctx, CleanWithin, func() (err error) {
				o, err = c.db.Settle(ctx, q, store.Entry{Key: key}, func(store.Value) store.Verdict { return store.Delete })
				return err
			})
			if err != nil {
				return fmt.Errorf("delete %s of %s: %w", key, t.Kind, err)
			}
			if o == store.Deleted || o == store.Gone {
				c.mu.Lock()
				c.deleted++
				c.mu.Unlock()
			}
			return nil
		})
	}
	return group.Wait()
}

// sweepRecords removes the records of a target, or those with the given keys.
func (c *cleaner) sweepRecords(ctx context.Context, sort store.RecordSort, target string, keys []string) error {
	q := store.RecordQuery{Sort: sort, Target: target, Keys: keys}
	var list []store.Record
	err := store.Retry(ctx, patience, func() error {
		list = nil
		return store.LoadAll(ctx, c.db, q, func(page store.Records) error {
			list = append(list, page.List...)
			return nil
		})
	})
	for _, r := range list {
		if err != nil {
			break
		}
		prev := r.Revision
		r.Fields = nil
		err = store.Retry(ctx, CleanWithin, func() error { return c.db.Save(ctx, r, prev) })
		c.records++
	}
	if err != nil {
		return fmt.Errorf("remove %s of %s: %w", sort, target, err)
	}
	return nil
}
