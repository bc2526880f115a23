package view

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// RecordTimeout bounds one read of records, and RecordPatience all tries
	// together: an address where nobody answers is an error within 30 s.
	RecordTimeout  = 10 * time.Second
	RecordPatience = 20 * time.Second
	// OneTry is the patience of a read that is tried again later.
	OneTry = time.Nanosecond
)

// A Config says whose records a viewer reads, and how.
type Config struct {
	Store   RecordStore
	Target  store.Target
	Rules   plan.Rules
	Breaker bool // the target has a breaker
	Apply   bool // without it the viewer writes nothing
	Clock   *storeclock.Clock
	Log     *journal.Journal
	Story   *chronicle.Chronicle // nil without a history
}

// A RecordStore reads and writes Reaper's own records, and counts failures in the metrics.
type RecordStore struct {
	store.Store
	failed func(error)
}

// NewRecordStore returns the record store of a target.
func NewRecordStore(s store.Store, m *metrics.Metrics, target string) RecordStore {
	return RecordStore{s, func(err error) {
		if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, context.Canceled) {
			m.Error(target, metrics.OpRecord, err)
		}
	}}
}

// Load implements [store.Store].
func (s RecordStore) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	got, err := s.Store.Load(ctx, q)
	s.failed(err)
	return got, err
}

// Save implements [store.Store].
func (s RecordStore) Save(ctx context.Context, r store.Record, prev string) error {
	err := s.Store.Save(ctx, r, prev)
	s.failed(err)
	return err
}

// A source reads what the store has of a target. It keeps nothing, and sets the clock by
// each response.
type source struct{ Config }

// ReadRecord reads the target record, if there is one, and the store's time.
func (s *source) ReadRecord(ctx context.Context) (rec generation.Record, sent time.Time, missing bool, err error) {
	var at time.Time
	err = Patiently(ctx, func(ctx context.Context) (err error) {
		sent = s.Clock.Local()
		rec, at, err = generation.Load(ctx, s.Store, s.Target.Name)
		return err
	})
	if missing = errors.Is(err, generation.ErrMissing); err != nil && !missing {
		return rec, sent, false, err
	}
	if !at.IsZero() {
		err = s.Clock.Observe(at, sent)
	} else {
		err = nil
	}
	return rec, sent, missing, err
}

// reloadRecord reads the target record once, to replace one that is known.
func (s *source) reloadRecord(
	ctx context.Context, known generation.Record,
) (rec generation.Record, sent time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, RecordTimeout)
	defer cancel()
	sent = s.Clock.Local()
	rec, at, err := generation.Load(ctx, s.Store, s.Target.Name)
	if errors.Is(err, generation.ErrMissing) && !s.Apply {
		rec, err = known, nil // in a dry run the first record exists only in memory
	}
	if err != nil {
		return rec, sent, err
	}
	if err := s.Clock.Observe(at, sent); err != nil {
		return rec, sent, err
	}
	if !s.Apply {
		if plan.ListsNone(s.Rules, rec) {
			rec.Generations = known.Generations // those that this process has found
		}
		rec, _ = plan.Desired(s.Rules, rec, nil, s.Clock.Now()) // as a sweep with --apply would write it
	}
	return rec, sent, nil
}

// LoadSeal reads the seal of a generation, now.
func (s *source) LoadSeal(ctx context.Context, number int, patience time.Duration) (cursor.Seal, error) {
	return cursor.LoadSeal(ctx, pages{s, patience}, s.Target.Name, number)
}

// cursors returns what reads cursor records.
func (s *source) cursors(patience time.Duration) cursor.Reader {
	return cursor.Reader{Store: pages{s, patience}, Target: s.Target.Name, Now: s.Clock.Local}
}

// ListNamespaces lists all namespaces of the store.
func (s *source) ListNamespaces(ctx context.Context) (names []string, err error) {
	n, ok := s.Store.Store.(store.Namespacer)
	if !ok {
		return []string{""}, nil
	}
	err = Patiently(ctx, func(ctx context.Context) (err error) {
		names, err = n.Namespaces(ctx)
		return err
	})
	return names, err
}

// Patiently repeats a call that reads records, or a few entries.
func Patiently(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, RecordPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, RecordTimeout)
		defer cancel()
		return call(ctx)
	})
}

// Pages reads records page by page. Each page has its own timeout and its own
// tries, so that a read of many pages has no limit on its total time. A page that took too
// long gets three times as long in its next try: an emulator with 70,000 records needs
// seconds for each.
type pages struct {
	s        *source
	patience time.Duration
}

// Load implements [store.Loader].
func (p pages) Load(ctx context.Context, q store.RecordQuery) (page store.Records, err error) {
	var sent time.Time
	timeout := RecordTimeout
	err = store.Retry(ctx, p.patience, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		sent = p.s.Clock.Local()
		if page, err = p.s.Store.Load(ctx, q); ctx.Err() != nil {
			timeout = 3 * RecordTimeout
		}
		return err
	})
	if err != nil {
		return page, err
	}
	return page, p.s.Clock.Observe(page.Now, sent)
}
