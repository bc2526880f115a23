package spend

import (
	"context"
	"errors"
	"fmt"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/view"
)

// saveTries is how often a change of the budget is tried against changes of others.
const saveTries = 8

// change changes the budget record by compare-and-set. Again says that an earlier try may have
// been stored; of an error after that [store.MayHaveHappened] is true.
func (s *Spender) change(
	ctx context.Context, change func(b breaker.Budget, again bool) breaker.Budget,
) (err error) {
	again := false
	defer func() {
		if again {
			err = store.InDoubt(err)
		}
	}()
	for range saveTries {
		b, err := s.read(ctx)
		if err != nil {
			return err
		}
		b = change(b, again)
		rec := b.Encode()
		err = store.Retry(ctx, view.RecordPatience, func() error {
			ctx, cancel := context.WithTimeout(ctx, view.RecordTimeout)
			defer cancel()
			return s.Viewer.Store.Save(ctx, rec, b.Revision)
		})
		again = again || store.MayHaveHappened(err)
		s.mu.Lock()
		if s.own.loaded = err == nil; err == nil {
			b.Revision = rec.Revision
			s.own.deletedBy(b.Began)
			s.budget = b
		}
		s.mu.Unlock()
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("others have changed the target's budget %d times meanwhile: %w", saveTries, store.ErrConflict)
}

// read returns the budget as it is known, or reads it.
func (s *Spender) read(ctx context.Context) (breaker.Budget, error) {
	s.mu.Lock()
	b, loaded := s.budget, s.own.loaded
	s.mu.Unlock()
	if loaded {
		return b, nil
	}
	b, err := Load(ctx, s.Viewer.Store, s.Plan.Target)
	if err == nil {
		s.mu.Lock()
		if !s.own.read {
			s.own.first, s.own.read = history.Budgeted{Began: b.Began, Deleted: b.Spent.Ever}, true
		}
		s.budget, s.own.loaded = b, true
		s.mu.Unlock()
	}
	return b, err
}

// reread reads the budget, though it may be known.
func (s *Spender) reread(ctx context.Context) (breaker.Budget, error) {
	s.mu.Lock()
	s.own.loaded = false
	s.mu.Unlock()
	return s.read(ctx)
}

// Load reads the budget of a target. It is empty if the store has no such record yet.
func Load(ctx context.Context, from store.Loader, target string) (b breaker.Budget, err error) {
	err = store.Retry(ctx, view.RecordPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, view.RecordTimeout)
		defer cancel()
		got, err := from.Load(ctx, breaker.Query(target))
		if err != nil {
			return fmt.Errorf("load the budget record of %s: %w", target, err)
		}
		if b = (breaker.Budget{Target: target}); len(got.List) > 0 {
			b, err = breaker.Decode(got.List[0])
		}
		return err
	})
	return b, err
}
