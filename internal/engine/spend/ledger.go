package spend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/store"
)

// saveTries is how often a change of the budget is retried when other processes interfere.
const saveTries = 8

// A ledger reads and writes the budget record of one target. It is safe for concurrent use.
type ledger struct {
	store  recordStore
	target string
	own    *ownDeletes

	mu        sync.Mutex
	budget    breaker.Budget // as this process read or wrote it last
	isCurrent bool           // the store has it like that, as far as is known
	first     history.Budgeted
	wasRead   bool // first holds the budget as it was before this process reported anything
}

type recordStore interface {
	store.Loader
	Save(ctx context.Context, rec store.Record, was string) error
}

func newLedger(cfg Config) *ledger {
	return &ledger{store: cfg.Viewer.Store, target: cfg.Plan.Target, own: new(ownDeletes)}
}

// change changes the budget record by compare-and-set. If again is set, an earlier try may have
// been stored, as is the case of an error if mayStand is true.
func (l *ledger) change(
	ctx context.Context, change func(b breaker.Budget, again bool) breaker.Budget,
) (mayStand bool, err error) {
	again := false
	for range saveTries {
		b, err := l.read(ctx)
		if err != nil {
			return again, err
		}
		b = change(b, again)
		rec := b.Encode()
		err = store.Retry(ctx, view.RecordPatience, func() error {
			ctx, cancel := context.WithTimeout(ctx, view.RecordTimeout)
			defer cancel()
			return l.store.Save(ctx, rec, b.Revision)
		})
		again = again || store.MayHaveHappened(err)
		l.mu.Lock()
		if l.isCurrent = err == nil; err == nil {
			b.Revision = rec.Revision
			l.own.deletedBy(b.Began)
			l.budget = b
		}
		l.mu.Unlock()
		if !errors.Is(err, store.ErrConflict) {
			return again, err
		}
	}
	return again, fmt.Errorf("others have changed the target's budget %d times meanwhile: %w", saveTries,
		store.ErrConflict)
}

// known returns the budget as this process read or wrote it last.
func (l *ledger) known() breaker.Budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.budget
}

// read returns the known budget if it is current, and reads it otherwise.
func (l *ledger) read(ctx context.Context) (breaker.Budget, error) {
	l.mu.Lock()
	b, isCurrent := l.budget, l.isCurrent
	l.mu.Unlock()
	if isCurrent {
		return b, nil
	}
	b, err := Load(ctx, l.store, l.target)
	if err == nil {
		l.mu.Lock()
		if !l.wasRead {
			l.first, l.wasRead = history.Budgeted{Began: b.Began, Deleted: b.Spent.Ever}, true
		}
		l.budget, l.isCurrent = b, true
		l.mu.Unlock()
	}
	return b, err
}

// reread reads the budget even if it is known.
func (l *ledger) reread(ctx context.Context) (breaker.Budget, error) {
	l.mu.Lock()
	l.isCurrent = false
	l.mu.Unlock()
	return l.read(ctx)
}

// noteUncounted writes into the record why a count failed; an empty text means that none did.
// It is for people only, so its errors are ignored.
func (l *ledger) noteUncounted(ctx context.Context, text string) {
	if b, err := l.read(ctx); err == nil && b.Uncounted != text {
		_, _ = l.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
			b.Uncounted = text
			return b
		})
	}
}

// firstRead returns the budget as it was before this process reported anything.
func (l *ledger) firstRead() (first history.Budgeted, wasRead bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.wasRead
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

// An ownDeletes counts the deletes of this process, for the history. Its lock is a leaf: the
// history asks for the account while it holds a lock of its own.
type ownDeletes struct {
	mu      sync.Mutex
	account history.Budgeted
}

// add adds deletes, deletes that were reported to the budget, and deletes in doubt after a lost reply.
func (o *ownDeletes) add(deleted, reported, doubtful int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.account.Deleted += deleted
	o.account.Unreported += deleted - reported
	o.account.Doubtful += doubtful
}

// deletedBy notes from which budget this process deletes. If somebody has removed the previous
// one, either of the two may have what was deleted so far.
func (o *ownDeletes) deletedBy(began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.account.Began; !was.IsZero() && !was.Equal(began) {
		o.account.Doubtful += o.account.Deleted
	}
	o.account.Began = began
}

// sum returns from which budget this process deletes, and what may be missing in it.
func (o *ownDeletes) sum() history.Budgeted {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.account
}
