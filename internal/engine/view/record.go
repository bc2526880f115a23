package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A targetRecord reads the target record into the view, and writes it by compare-and-set.
type targetRecord struct {
	source     *source
	namespaces *namespaces
	current    *current
	wanted     *wanted
	changes    changeLog
}

// Begin returns the first record of a target that has none. The record lists the
// generations that are in use already: perhaps the table was swept under another name, or
// the target's record was lost. It reads the namespaces into next.
func (t *targetRecord) Begin(ctx context.Context, next *plan.View) (generation.Record, error) {
	s := t.source
	if !s.Rules.Generations {
		return plan.First(s.Rules, s.Clock.Now()), nil
	}
	used, floor, err := t.inUse(ctx, next)
	if err != nil {
		return generation.Record{}, err
	}
	// The record's instant is taken after all reads: by then the old record was gone.
	return plan.FirstAdopting(s.Rules, used, floor, s.Clock.Now())
}

// inUse returns the generations that are in use, and the last one that was dropped. It reads the
// namespaces into next.
func (t *targetRecord) inUse(
	ctx context.Context, next *plan.View,
) (used []generation.Generation, floor int, err error) {
	s := t.source
	if err := t.namespaces.LoadNamespaces(ctx, next); err != nil {
		return nil, 0, err
	}
	if used, err = s.InUse(ctx, next.Namespaces, nil); err != nil {
		return nil, 0, err
	}
	floor, err = s.LastDropped(ctx)
	return withCursors(used, s.Rules.Policy.Shards, next), floor, err
}

// EnsureRecord reads the target record, creates it if the target has none, and saves it
// if configuration or time require a change. The cursors of next were read before, so a
// record that is older than one of them is an old copy that somebody has put back. With
// skipLifecycle no generation changes its state.
func (t *targetRecord) EnsureRecord(ctx context.Context, next *plan.View, skipLifecycle bool) error {
	s := t.source
	for began := s.Clock.Local(); ; {
		rec, sent, missing, err := s.ReadRecord(ctx)
		if err != nil {
			return err
		}
		if err := plan.CheckLineage(rec, missing, s.Target.Name, next.Cursors); err != nil {
			return err
		}
		listed, err := t.listed(ctx, next, rec, missing)
		if err != nil {
			return err
		}
		at := s.Clock.Now()
		want, steps, err := t.desired(ctx, next, listed, missing, skipLifecycle, at)
		if err != nil {
			return err
		}
		if missing { // the search for generations in use took a while
			at = want.Created
		}
		next.Record, next.RecordSent = rec, sent
		if !missing && rec.EqualContent(want) {
			return nil
		}
		if !s.Apply {
			next.Record = want // as it would be
			t.changes.logTarget(ctx, rec, want, next.Cursors)
			t.changes.LogChanges(ctx, rec, want, nil)
			return nil
		}
		if err := s.Clock.Check(); err != nil { // marks by a wrong clock would count too early
			return err
		}
		sent = s.Clock.Local()
		saved, err := t.save(ctx, want, at)
		if errors.Is(err, store.ErrConflict) {
			continue // another worker was first: read what it wrote
		}
		if store.Transient(err) && s.Clock.Local().Sub(began) < RecordPatience && throttle.Sleep(ctx, time.Second) == nil {
			continue // read the record to see whether the write took effect
		}
		if err == nil {
			next.Record, next.RecordSent = saved, sent
			s.Story.Changed(rec, saved, next.Cursors)
			t.changes.logTarget(ctx, rec, saved, next.Cursors)
			t.changes.LogChanges(ctx, rec, saved, steps)
		}
		return err
	}
}

// listed returns the target record with the generations listed that are in use, if it lists none
// though the layout has some.
func (t *targetRecord) listed(
	ctx context.Context, next *plan.View, rec generation.Record, missing bool,
) (generation.Record, error) {
	s := t.source
	if missing || !plan.ListsNone(s.Rules, rec) {
		return rec, nil
	}
	used, floor, err := t.inUse(ctx, next)
	if err != nil {
		return rec, err
	}
	return rec.Adopt(used, floor, s.Rules.Policy, s.Clock.Now())
}

// desired returns the target record as it should be, and the steps of generations that lead there.
func (t *targetRecord) desired(
	ctx context.Context, next *plan.View, rec generation.Record, missing, skipLifecycle bool, at time.Time,
) (want generation.Record, steps []generation.Step, err error) {
	switch s := t.source; {
	case missing:
		if want, err = t.Begin(ctx, next); !skipLifecycle {
			want = s.sweptAs(rec, want)
		}
		return want, nil, err
	case skipLifecycle:
		return plan.Configured(s.Rules, rec, at).Holding(s.Target.Kind, s.Target.Property), nil, nil
	default:
		want, steps = plan.Desired(s.Rules, rec, nil, at)
		return s.sweptAs(rec, want), steps, nil
	}
}

// sweptAs notes in the target record what the target is swept as from now on. If that is
// another kind, property or layout than before, the next look around the ranges is due at once: a
// misspelt name must not go unnoticed until the next day.
func (c *Config) sweptAs(was, want generation.Record) generation.Record {
	want = want.Holding(c.Target.Kind, c.Target.Property).SweptAs(c.Rules.Scope.Layout, c.Rules.Retention)
	if c.Breaker {
		want = want.OnGround(was)
	} else {
		want.NewGround = false // somebody who switches the breaker off has decided, too
	}
	return want
}

// save writes the target record once. Its marks were made at an instant in the store's
// time. If the process was frozen since then it must not write them: a generation would
// count as closed before anybody could read the mark. The call has a short timeout: a new
// record that takes effect late could replace a later one that was removed meanwhile.
func (t *targetRecord) save(ctx context.Context, rec generation.Record, at time.Time) (generation.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, RecordTimeout) // before the check: it covers a freeze after it
	defer cancel()
	if late := t.source.Clock.Since(at); late > RecordTimeout {
		return rec, fmt.Errorf("the process stood still for %v before it wrote the target record: %w", late,
			store.ErrConflict)
	}
	return generation.Save(ctx, t.source.Store, rec)
}

// SaveRecord writes the target record by compare-and-set, and puts it into the view. Its
// marks were made at an instant in the store's time. If another process was first it fails
// with store.ErrConflict.
func (t *targetRecord) SaveRecord(ctx context.Context, rec generation.Record, at time.Time) error {
	clock := t.source.Clock
	if err := clock.Check(); err != nil {
		return err
	}
	was, sent := t.current.View(), clock.Local()
	saved, err := t.save(ctx, rec, at)
	if err != nil {
		return err
	}
	t.source.Story.Changed(was.Record, saved, was.Cursors)
	t.current.takeSaved(saved, sent, clock.Local)
	return nil
}

// A RecordChange returns the target record that should follow the present one, at an
// instant in the store's time.
type RecordChange func(is generation.Record, now time.Time) (next generation.Record, changed bool, err error)

// recordTries is how often a chore that took long tries to write what it found.
const recordTries = 4

// ChangeRecord writes what change makes of the target record, if it changes anything. If
// another writer was faster, it calls change again with that writer's record. Without such
// retries a chore that reads for long would always lose to other chores of its process.
func (t *targetRecord) ChangeRecord(ctx context.Context, change RecordChange) (err error) {
	for range recordTries {
		now := t.source.Clock.Now()
		next, changed, err := change(t.current.View().Record, now)
		if err != nil || !changed {
			return err
		}
		if err = t.SaveRecord(ctx, next, now); !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := t.ReloadRecord(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("others have changed the target record %d times meanwhile: %w", recordTries, store.ErrConflict)
}

// ReloadRecord reads the target record, now.
func (t *targetRecord) ReloadRecord(ctx context.Context) error {
	next := *t.current.View()
	if err := Patiently(ctx, func(ctx context.Context) error { return t.load(ctx, &next) }); err != nil {
		return err
	}
	t.current.takeRecord(&next)
	return nil
}

// load reads the target record once.
func (t *targetRecord) load(ctx context.Context, next *plan.View) error {
	t.wanted.setRecord(false)
	rec, sent, err := t.source.reloadRecord(ctx, next.Record)
	if err == nil {
		next.Record, next.RecordSent = rec, sent
	}
	return err
}
