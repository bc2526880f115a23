package sweep

import (
	"context"
	"errors"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

// A recordStore is the store as the reaper's own records are read and written: the metrics
// count what fails.
type recordStore struct {
	store.Store
	failed func(error)
}

func newRecordStore(cfg *Config, target string) recordStore {
	return recordStore{cfg.Store, func(err error) {
		if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, context.Canceled) {
			cfg.Metrics.Error(target, metrics.OpRecord, code(err))
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
