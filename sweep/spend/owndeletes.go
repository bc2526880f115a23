package spend

import (
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/history"
)

// Own deletes are those of this process, for the account that the history keeps.
type ownDeletes struct {
	loaded bool             // the budget is as the store has it
	first  history.Budgeted // the budget as this process read it first, before it reported anything
	read   bool             // it was read

	// The history asks while it holds its own lock, and is told of failures under the lock of the
	// spender. So this lock is never held while another one is waited for.
	mu      sync.Mutex
	account history.Budgeted
}

// add notes deletes, reports of deletes, and deletes that a lost reply leaves in doubt.
func (o *ownDeletes) add(deleted, reported, doubtful int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.account.Deleted += deleted
	o.account.Unreported += deleted - reported
	o.account.Doubtful += doubtful
}

// deletedBy notes by which budget this process deletes. If somebody has removed the one before,
// nobody knows which of the two has what was deleted so far.
func (o *ownDeletes) deletedBy(began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.account.Began; !was.IsZero() && !was.Equal(began) {
		o.account.Doubtful += o.account.Deleted
	}
	o.account.Began = began
}

// Account returns by which budget this process deletes, and what that may not know.
func (s *Spender) Account() history.Budgeted {
	if s == nil {
		return history.Budgeted{}
	}
	s.own.mu.Lock()
	defer s.own.mu.Unlock()
	return s.own.account
}

// FirstRead returns the budget as it was before this process reported anything.
func (s *Spender) FirstRead() (first history.Budgeted, read bool) {
	if s == nil {
		return first, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.first, s.own.read
}
