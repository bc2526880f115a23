package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// A recordStore reads and writes Reaper's own records, and counts failures in the metrics.
type recordStore struct {
	store.Store
	failed func(error)
}

func NewRecordStore(s store.Store, m *metrics.Metrics, target string) recordStore {
	return recordStore{s, func(err error) {
		if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, context.Canceled) {
			m.Error(target, metrics.OpRecord, err)
		}
	}}
}

// Load implements [store.Store].
func (s recordStore) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	got, err := s.Store.Load(ctx, q)
	s.failed(err)
	return got, err
}

// Save implements [store.Store].
func (s recordStore) Save(ctx context.Context, r store.Record, prev string) error {
	err := s.Store.Save(ctx, r, prev)
	s.failed(err)
	return err
}

// EnsureRecord reads the target record, creates it if the target has none, and saves it
// if configuration or time require a change. The cursors of next were read before, so a
// record that is older than one of them is an old copy that somebody has put back. With
// skipLifecycle no generation changes its state.
func (v *Viewer) EnsureRecord(ctx context.Context, next *plan.View, skipLifecycle bool) error {
	for began := v.Clock.Local(); ; {
		rec, sent, missing, err := v.ReadRecord(ctx)
		if err != nil {
			return err
		}
		if err := plan.CheckLineage(rec, missing, v.Target.Name, next.Cursors); err != nil {
			return err
		}
		at := v.Clock.Now()
		want, steps, err := v.desired(ctx, next, rec, missing, skipLifecycle, at)
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
		if !v.Apply {
			next.Record = want // as it would be
			v.tellChanged(ctx, rec, want, next.Cursors)
			v.Tell(ctx, rec, want, nil)
			return nil
		}
		if err := v.Clock.Check(); err != nil { // marks by a wrong clock would count too early
			return err
		}
		sent = v.Clock.Local()
		saved, err := v.save(ctx, want, at)
		if errors.Is(err, store.ErrConflict) {
			continue // another worker was first: see what it wrote
		}
		if store.Transient(err) && v.Clock.Local().Sub(began) < RecordPatience && throttle.Sleep(ctx, time.Second) == nil {
			continue // read the record to see whether the write took effect
		}
		if err == nil {
			next.Record, next.RecordSent = saved, sent
			v.Story.Changed(rec, saved, next.Cursors)
			v.tellChanged(ctx, rec, saved, next.Cursors)
			v.Tell(ctx, rec, saved, steps)
		}
		return err
	}
}

// save writes the target record once. Its marks were made at an instant in the store's
// time. If the process was frozen since then it must not write them: a generation would
// count as closed before anybody could read the mark. The call has a short timeout: a new
// record that takes effect late could replace a later one that was removed meanwhile.
func (v *Viewer) save(ctx context.Context, rec generation.Record, at time.Time) (generation.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, RecordTimeout) // before the check: it covers a freeze after it
	defer cancel()
	if late := v.Clock.Since(at); late > RecordTimeout {
		return rec, fmt.Errorf("the process stood still for %v before it wrote the target record: %w", late,
			store.ErrConflict)
	}
	return generation.Save(ctx, v.Store, rec)
}

// ReadRecord reads the target record, if there is one, and the store's time.
func (v *Viewer) ReadRecord(ctx context.Context) (rec generation.Record, sent time.Time, missing bool, err error) {
	var at time.Time
	err = Patiently(ctx, func(ctx context.Context) (err error) {
		sent = v.Clock.Local()
		rec, at, err = generation.Load(ctx, v.Store, v.Target.Name)
		return err
	})
	if missing = errors.Is(err, generation.ErrMissing); err != nil && !missing {
		return rec, sent, false, err
	}
	if !at.IsZero() {
		err = v.Clock.Observe(at, sent)
	} else {
		err = nil
	}
	return rec, sent, missing, err
}

// desired returns the target record as it should be, and what is new in it.
func (v *Viewer) desired(
	ctx context.Context, next *plan.View, rec generation.Record, missing, skipLifecycle bool, at time.Time,
) (want generation.Record, steps []generation.Step, err error) {
	switch {
	case missing:
		if want, err = v.Begin(ctx, next); !skipLifecycle {
			want = v.sweptAs(rec, want)
		}
		return want, nil, err
	case skipLifecycle:
		return plan.Configured(v.Rules, rec, at).Holding(v.Target.Kind, v.Target.Property), nil, nil
	}
	want, steps = plan.Desired(v.Rules, rec, nil, at)
	return v.sweptAs(rec, want), steps, nil
}

// SaveRecord writes the target record by compare-and-set, and puts it into the view. Its
// marks were made at an instant in the store's time. If another process was first it fails
// with store.ErrConflict.
func (v *Viewer) SaveRecord(ctx context.Context, rec generation.Record, at time.Time) error {
	if err := v.Clock.Check(); err != nil {
		return err
	}
	was, sent := v.View(), v.Clock.Local()
	saved, err := v.save(ctx, rec, at)
	if err != nil {
		return err
	}
	v.Story.Changed(was.Record, saved, was.Cursors)
	v.publish(func(next *plan.View) {
		v.state.recordSaved = v.Clock.Local()
		takeRecord(next, &plan.View{Record: saved, RecordSent: sent})
	})
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
func (v *Viewer) ChangeRecord(ctx context.Context, change RecordChange) (err error) {
	for range recordTries {
		now := v.Clock.Now()
		next, changed, err := change(v.View().Record, now)
		if err != nil || !changed {
			return err
		}
		if err = v.SaveRecord(ctx, next, now); !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := v.ReloadRecord(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("others have changed the target record %d times meanwhile: %w", recordTries, store.ErrConflict)
}

// Tell logs the changes of the target record.
func (v *Viewer) Tell(ctx context.Context, was, is generation.Record, steps []generation.Step) {
	if was.Target == "" {
		v.tellBegin(ctx, is)
	}
	if !v.Apply {
		return
	}
	for _, s := range steps {
		v.Log.InfoContext(ctx, "generation is "+string(s.State), "generation", s.Generation)
	}
	if n := len(is.Generations); n > 0 && was.Target != "" && (was.Staleness != is.Staleness || was.Slack != is.Slack) {
		v.Log.InfoContext(ctx, "the bounds for writers changed; for generations that are open already the larger ones count",
			"staleness_seconds", is.Staleness.Seconds(), "slack_seconds", is.Slack.Seconds(),
			"before_staleness_seconds", was.Staleness.Seconds(), "before_slack_seconds", was.Slack.Seconds())
	}
	if n := len(is.Generations); n > 0 && v.Rules.Generations {
		v.compare(is.Generations[n-1])
	}
}

// compare warns if the newest generation differs from the configuration.
func (v *Viewer) compare(newest generation.Generation) {
	if newest.Shards != v.Rules.Policy.Shards {
		v.Log.Warn("the configured shards are for the next generation", "shards", v.Rules.Policy.Shards,
			"generation", newest.Number, "generation_shards", newest.Shards)
	}
	if newest.Ramp != v.Rules.Policy.Ramp && newest.Number != generation.First {
		v.Log.Warn("the configured ramp is for the next generation", "ramp_seconds",
			v.Rules.Policy.Ramp.Seconds(), "generation", newest.Number, "generation_ramp_seconds", newest.Ramp.Seconds())
	}
}
