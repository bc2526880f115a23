package sweep

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

func newRecordStore(cfg *Config, target string) recordStore {
	return recordStore{cfg.Store, func(err error) {
		if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, context.Canceled) {
			cfg.Metrics.Error(target, metrics.OpRecord, err)
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

// ensureRecord reads the target record, creates it if the target has none, and saves it
// if configuration or time require a change. The cursors of next were read before, so a
// record that is older than one of them is an old copy that somebody has put back. With
// skipLifecycle no generation changes its state.
func (v *viewer) ensureRecord(ctx context.Context, next *plan.View, skipLifecycle bool) error {
	for began := v.clock.now(); ; {
		rec, sent, missing, err := v.readRecord(ctx)
		if err != nil {
			return err
		}
		if err := plan.CheckLineage(rec, missing, v.target.Name, next.Cursors); err != nil {
			return err
		}
		at := v.clock.Now()
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
		if !v.apply {
			next.Record = want // as it would be
			v.tellChanged(ctx, rec, want, next.Cursors)
			v.tell(ctx, rec, want, nil)
			return nil
		}
		if err := v.clock.check(); err != nil { // marks by a wrong clock would count too early
			return err
		}
		sent = v.clock.now()
		saved, err := v.save(ctx, want, at)
		if errors.Is(err, store.ErrConflict) {
			continue // another worker was first: see what it wrote
		}
		if store.Transient(err) && v.clock.now().Sub(began) < recordPatience && throttle.Sleep(ctx, time.Second) == nil {
			continue // read the record to see whether the write took effect
		}
		if err == nil {
			next.Record, next.RecordSent = saved, sent
			v.log.story.Changed(rec, saved, next.Cursors)
			v.tellChanged(ctx, rec, saved, next.Cursors)
			v.tell(ctx, rec, saved, steps)
		}
		return err
	}
}

// save writes the target record once. Its marks were made at an instant in the store's
// time. If the process was frozen since then it must not write them: a generation would
// count as closed before anybody could read the mark. The call has a short timeout: a new
// record that takes effect late could replace a later one that was removed meanwhile.
func (v *viewer) save(ctx context.Context, rec generation.Record, at time.Time) (generation.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout) // before the check: it covers a freeze after it
	defer cancel()
	if late := v.clock.since(at); late > recordTimeout {
		return rec, fmt.Errorf("the process stood still for %v before it wrote the target record: %w", late,
			store.ErrConflict)
	}
	return generation.Save(ctx, v.store, rec)
}

// readRecord reads the target record, if there is one, and the store's time.
func (v *viewer) readRecord(ctx context.Context) (rec generation.Record, sent time.Time, missing bool, err error) {
	var at time.Time
	err = patiently(ctx, func(ctx context.Context) (err error) {
		sent = v.clock.now()
		rec, at, err = generation.Load(ctx, v.store, v.target.Name)
		return err
	})
	if missing = errors.Is(err, generation.ErrMissing); err != nil && !missing {
		return rec, sent, false, err
	}
	if !at.IsZero() {
		err = v.clock.observe(at, sent)
	} else {
		err = nil
	}
	return rec, sent, missing, err
}

// desired returns the target record as it should be, and what is new in it.
func (v *viewer) desired(
	ctx context.Context, next *plan.View, rec generation.Record, missing, skipLifecycle bool, at time.Time,
) (want generation.Record, steps []generation.Step, err error) {
	switch {
	case missing:
		if want, err = v.begin(ctx, next); !skipLifecycle {
			want = v.sweptAs(rec, want)
		}
		return want, nil, err
	case skipLifecycle:
		return plan.Configured(v.rules, rec, at).Holding(v.target.Kind, v.target.Property), nil, nil
	}
	want, steps = plan.Desired(v.rules, rec, nil, at)
	return v.sweptAs(rec, want), steps, nil
}

// saveRecord writes the target record by compare-and-set, and puts it into the view. Its
// marks were made at an instant in the store's time. If another process was first it fails
// with store.ErrConflict.
func (v *viewer) saveRecord(ctx context.Context, rec generation.Record, at time.Time) error {
	if err := v.clock.check(); err != nil {
		return err
	}
	was, sent := v.View(), v.clock.now()
	saved, err := v.save(ctx, rec, at)
	if err != nil {
		return err
	}
	v.log.story.Changed(was.Record, saved, was.Cursors)
	v.publish(func(next *plan.View) {
		v.state.recordSaved = v.clock.now()
		takeRecord(next, &plan.View{Record: saved, RecordSent: sent})
	})
	return nil
}

// A recordChange returns the target record that should follow the present one, at an
// instant in the store's time.
type recordChange func(is generation.Record, now time.Time) (next generation.Record, changed bool, err error)

// recordTries is how often a chore that took long tries to write what it found.
const recordTries = 4

// changeRecord writes what change makes of the target record, if it changes anything. If
// another writer was faster, it calls change again with that writer's record. Without such
// retries a chore that reads for long would always lose to other chores of its process.
func (v *viewer) changeRecord(ctx context.Context, change recordChange) (err error) {
	for range recordTries {
		now := v.clock.Now()
		next, changed, err := change(v.View().Record, now)
		if err != nil || !changed {
			return err
		}
		if err = v.saveRecord(ctx, next, now); !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := v.reloadRecord(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("others have changed the target record %d times meanwhile: %w", recordTries, store.ErrConflict)
}

// tell logs the changes of the target record.
func (v *viewer) tell(ctx context.Context, was, is generation.Record, steps []generation.Step) {
	if was.Target == "" {
		v.tellBegin(ctx, is)
	}
	if !v.apply {
		return
	}
	for _, s := range steps {
		v.log.InfoContext(ctx, "generation is "+string(s.State), "generation", s.Generation)
	}
	if n := len(is.Generations); n > 0 && was.Target != "" && (was.Staleness != is.Staleness || was.Slack != is.Slack) {
		v.log.InfoContext(ctx, "the bounds for writers changed; for generations that are open already the larger ones count",
			"staleness_seconds", is.Staleness.Seconds(), "slack_seconds", is.Slack.Seconds(),
			"before_staleness_seconds", was.Staleness.Seconds(), "before_slack_seconds", was.Slack.Seconds())
	}
	if n := len(is.Generations); n > 0 && v.target.Generations {
		v.compare(is.Generations[n-1])
	}
}

// compare warns if the newest generation differs from the configuration.
func (v *viewer) compare(newest generation.Generation) {
	if newest.Shards != v.target.Shards {
		v.log.Warn("the configured shards are for the next generation", "shards", v.target.Shards,
			"generation", newest.Number, "generation_shards", newest.Shards)
	}
	if newest.Ramp != v.target.Policy.Ramp && newest.Number != generation.First {
		v.log.Warn("the configured ramp is for the next generation", "ramp_seconds",
			v.target.Policy.Ramp.Seconds(), "generation", newest.Number, "generation_ramp_seconds", newest.Ramp.Seconds())
	}
}
