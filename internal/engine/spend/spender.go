package spend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// reserveWithin is how long a step keeps its worker and its page until a slice is reserved:
// to read the page again would cost more. A count takes longer, so the step ends.
const reserveWithin = 500 * time.Millisecond

// A Spender spends the budget of one target, for this process. It reserves slices of it ahead
// of the deletes, in a goroutine of its own: a step whose deletes are not covered ends, and
// waits without a worker. It is safe for concurrent use. A nil Spender allows everything.
type Spender struct {
	rules     breaker.Rules
	isOnce    func() bool
	ledger    *ledger
	allowance *allowance
	swept     *swept
	queue     *countQueue
	reserver  *reserver
	judge     *judge
}

// New returns a spender that has read nothing yet; nil if there is neither a breaker nor a
// limit.
func New(cfg Config) *Spender {
	if !cfg.Rules.On && !cfg.Hourly {
		return nil
	}
	l, c, q := newLedger(cfg), newCounter(cfg), newCountQueue(cfg.Now)
	a := newAllowance(cfg, l)
	t := &tripper{scope: cfg.Plan.Scope, viewer: cfg.Viewer, clock: cfg.Clock, log: cfg.Log, story: cfg.Story, ledger: l,
		describe: newDescriber(cfg, c)}
	u := &unsweptCheck{rules: cfg.Rules, scope: cfg.Plan.Scope, viewer: cfg.Viewer, ledger: l, counter: c, tripper: t,
		parts: &approvedParts{rules: cfg.Rules, allowance: a, now: cfg.Now}}
	r := &reserver{rules: cfg.Rules, viewer: cfg.Viewer, log: cfg.Log, ledger: l, allowance: a, unswept: u, queue: q,
		lives: &livesWatch{target: cfg.Plan.Target, log: cfg.Log, metrics: cfg.Metrics},
		last:  &lastTry{now: cfg.Now, failure: journal.Failure{Task: "spend the target's budget"}}}
	j := &judge{rules: cfg.Rules, viewer: cfg.Viewer, log: cfg.Log, ledger: l, allowance: a, counter: c, tripper: t,
		queue: q, missed: map[breaker.Key]bool{}}
	return &Spender{rules: cfg.Rules, isOnce: cfg.IsOnce, ledger: l, allowance: a, swept: c.bounds.swept, queue: q,
		reserver: r, judge: j}
}

// Run reserves and counts what is wanted until ctx is done, and then gives back what is left.
func (s *Spender) Run(ctx, work context.Context) {
	var judging sync.WaitGroup
	judging.Go(func() { s.judge.run(ctx) })
	defer judging.Wait()
	s.reserver.run(ctx, work)
}

// LateFrom returns the instant before which what a range holds is late; the zero time without a
// budget.
func (s *Spender) LateFrom(r shardquery.Range, from store.Position) time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.swept.lateFrom(r, from)
}

// NoteSwept keeps up to where this process has found nothing due in a range.
func (s *Spender) NoteSwept(r shardquery.Range, upTo time.Time) {
	if s != nil {
		s.swept.note(r, upTo)
	}
}

// Covered returns how many of the ops, from the first on, this process may delete by what it
// has reserved; all of them if the first is not covered, so that they are asked for.
func (s *Spender) Covered(w *Asker, ops []store.Op) int {
	if s == nil {
		return len(ops)
	}
	return s.allowance.covered(w, ops)
}

// Ensure asks for the right to delete the ops, if this process's slices do not have it. It
// waits a moment for it, and then returns a pause.
func (s *Spender) Ensure(ctx context.Context, w *Asker, ops []store.Op) error {
	if s == nil {
		return nil
	}
	d, round, err := s.allowance.request(w, ops)
	if err == nil {
		return nil
	}
	timer := time.NewTimer(reserveWithin)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return background.ErrStopped
	case <-timer.C:
	case <-round:
	}
	if err := s.hopeless(d.keys); err != nil {
		return err
	}
	return s.allowance.requestAgain(w, d)
}

// hopeless returns an error if one sweep cannot delete an op because its hour cannot be counted.
// A daemon keeps trying.
func (s *Spender) hopeless(keys Keys) error {
	if !s.isOnce() {
		return nil
	}
	err := s.reserver.last.lasting()
	if !isUncounted(err) { // else what is due in an unswept target could not be counted
		err = nil
	}
	for _, k := range keys {
		if err == nil && k != nil && s.allowance.left(*k) == 0 {
			err = s.queue.givenUp(*k)
		}
	}
	if err == nil {
		return nil
	}
	return store.WithHint(fmt.Errorf("%w: %s", errUncounted, err.Error()),
		"the next sweep counts again; breaker: off deletes without a count")
}

var errUncounted = errors.New("the breaker cannot count what comes to be due, and no more than its floor goes without")

// Reason returns what a step waits for if the budget does not cover it: without a breaker, for its limits.
func (s *Spender) Reason() throttle.Reason { return reasonOf(s.rules) }

// RetryAfter returns how long a visit is to wait before it reads again what it could not delete;
// 0 if it has, or may have, the right by now.
func (s *Spender) RetryAfter(w *Asker) time.Duration {
	if s == nil || w.Shortfall.first == nil || s.hopeless(Keys{w.Shortfall.first}) != nil {
		return 0
	}
	return s.allowance.retryAfter(w)
}

// Take takes the right to delete the ops out of this process's slices. If they do not have
// it, it asks for more, and returns a pause.
func (s *Spender) Take(w *Asker, ops []store.Op) (Keys, error) {
	if s == nil {
		return nil, nil
	}
	return s.allowance.take(w, ops)
}

// Settle notes what became of a batch. What may have been deleted is not given back.
func (s *Spender) Settle(keys Keys, ops []store.Op, unsure bool) {
	if s == nil {
		return
	}
	var deleted, doubtful int64
	for i, k := range keys {
		switch {
		case k == nil, k.Below:
		case ops[i].Outcome == store.Deleted:
			deleted++
		case ops[i].Outcome == store.Unknown && unsure:
			doubtful++
		}
	}
	s.ledger.own.add(deleted, 0, doubtful) // before they can be reported
	s.allowance.settle(keys, ops, unsure)
}

// IsAtLimit reports whether the limits allow nothing more for now.
func (s *Spender) IsAtLimit() bool { return s != nil && s.allowance.isAtLimit() }

// LimitEnds returns when the limits allow more.
func (s *Spender) LimitEnds() time.Time { return s.allowance.limitEnds() }

// UsedUp says which of the limits allows no more.
func (s *Spender) UsedUp() string {
	return s.ledger.known().UsedUp(s.rules.Limits, s.judge.counter.now())
}

// Lasting returns the error of the last try, if the budget could not be read or written for so
// long that people should know.
func (s *Spender) Lasting() error {
	if s == nil {
		return nil
	}
	if err := s.reserver.last.lasting(); !isUncounted(err) {
		return err
	}
	return nil
}

// Failing returns the error of the last try, if it failed.
func (s *Spender) Failing() error {
	if s == nil {
		return nil
	}
	return s.reserver.last.err()
}

// Account returns from which budget this process deletes, and what may be missing in it.
func (s *Spender) Account() history.Budgeted {
	if s == nil {
		return history.Budgeted{}
	}
	return s.ledger.own.sum()
}

// FirstRead returns the budget as it was before this process reported anything.
func (s *Spender) FirstRead() (first history.Budgeted, read bool) {
	if s == nil {
		return first, false
	}
	return s.ledger.firstRead()
}
