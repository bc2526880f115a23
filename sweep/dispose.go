package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// writeTimeout bounds one write. The services end a transaction after 270 s,
	// or 60 s without a request.
	writeTimeout = 30 * time.Second
	// pressedFor is how long a step stays away from a store under pressure.
	pressedFor = 20 * time.Millisecond
	// waitInPlace is the longest wait for which a step keeps its worker: reading its
	// page again would take longer.
	waitInPlace = 20 * time.Millisecond
	// heldFor is how soon a step of a held range checks the hold again.
	heldFor = time.Second
)

// A pause is the error of a step that has to wait. It is not a failure: waiting takes no
// worker and no page, so the step ends, and a later one continues.
type pause struct {
	wait time.Duration
	why  throttle.Reason
}

func (p *pause) Error() string { return fmt.Sprintf("wait %v for %q", p.wait, p.why) }

// A writer disposes of entities: it is the one place that deletes and carries go
// through, whatever kind of work found them.
type writer struct {
	c     *collector
	claim *cursor.Claim   // only the holder of the range may write in it; nil in a dry run
	pacer *throttle.Pacer // of the range
	carry *carrier        // stamps what is not deleted; nil if nothing is carried
	// lateFrom is the instant before which what is found expired unseen, for the breaker.
	lateFrom time.Time
	lack     lack // what it could not delete by the breaker's budget
	settles  bool // what is to be carried may be deleted instead, by what it holds in the transaction
}

// write makes one call that disposes of the ops. First it takes their tokens. Then,
// as late as possible, it checks everything that may have changed since they were
// granted: the machine may have slept in between. Tokens that were granted under old
// orders, or while the target is held, are discarded.
func (w *writer) write(t turn, ops []store.Op, call func(context.Context) error) error {
	if w.claim == nil { // a dry run
		if err := w.takeOwn(t, ops); err != nil {
			return err
		}
		return w.bounded(t.work, ops, call)
	}
	if err := w.c.budget.ensure(t.ctx, w, ops); err != nil { // before it costs tokens
		return err
	}
	w.c.pacing.follow(w.c.viewer.View())
	granted := w.c.pacing.orders()
	if err := w.take(t, ops); err != nil {
		return err
	}
	if why := w.c.heldBy(); why != "" {
		return &pause{heldFor, why}
	}
	w.c.pacing.follow(w.c.viewer.View())
	if !w.c.pacing.grantHolds(granted) {
		return &pause{0, throttle.ReasonTotal}
	}
	if w.carry != nil {
		if err := w.carry.stamp(ops); err != nil {
			return err
		}
	}
	leased, cancel, err := w.claim.Writing(t.work)
	if err != nil {
		return err
	}
	defer cancel()
	keys, err := w.c.budget.take(w, ops)
	if err != nil {
		return err
	}
	err = w.bounded(leased, ops, call)
	w.c.budget.settle(keys, ops, store.MayHaveHappened(err))
	return err
}

// bounded makes the call within the time that one write may take.
func (w *writer) bounded(ctx context.Context, ops []store.Op, call func(context.Context) error) error {
	timeout := writeTimeout
	if w.carry != nil {
		if w.claim == nil {
			if err := w.carry.stamp(ops); err != nil {
				return err
			}
		}
		timeout = min(timeout, w.c.slack()) // a stamp that is older must be made again
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// take takes the tokens of the ops: of the range's own pace, and of the pace of
// the ranges that something is carried into.
func (w *writer) take(t turn, ops []store.Op) error {
	if s, ok := w.c.cfg.Store.(store.Pressured); ok && s.Pressed() {
		if !w.pacer.Status().Unlimited { // without a rate there is nothing to halve; waiting is enough
			w.pacer.PushBack(throttle.ReasonCompaction)
		}
		return &pause{pressedFor, throttle.ReasonCompaction}
	}
	if w.carry != nil {
		if err := w.carry.take(ops); err != nil {
			return err
		}
	}
	return w.takeOwn(t, ops)
}

// takeOwn takes the tokens of the range's own pace.
func (w *writer) takeOwn(t turn, ops []store.Op) error {
	wait, why := w.pacer.Take(len(ops))
	if wait > 0 && wait <= waitInPlace {
		if err := throttle.Sleep(t.ctx, wait); err != nil {
			return errStopped
		}
		w.c.tally.waited(why, wait)
		wait, why = w.pacer.Take(len(ops))
	}
	if wait > 0 {
		return &pause{wait, why}
	}
	return nil
}

// dispose makes one call of the store's Dispose, and returns how long it took.
func (w *writer) dispose(t turn, q store.Query, ops []store.Op, fromStart bool) error {
	return w.write(t, ops, func(ctx context.Context) error {
		t.scratch.ahead.begin(t.ctx, w.c.cfg.Now)
		b := store.Batch{Query: q, Ops: ops, DryRun: !w.c.cfg.Apply}
		began := w.c.cfg.Now()
		err := w.c.cfg.Store.Dispose(ctx, &b)
		took := w.c.cfg.Now().Sub(began)
		if !fromStart {
			t.scratch.longest = max(t.scratch.longest, took)
		}
		w.c.cfg.Metrics.Commit(w.c.target.Name, took)
		w.c.tally.steppedOver(b.SteppedOver, fromStart)
		return err
	})
}

// settle disposes of one entity in a transaction of its own. Judge decides, by the expiry
// that the entity has in that transaction.
func (w *writer) settle(t turn, q store.Query, op *store.Op,
	judge func(store.Value) store.Verdict) (outcome store.Outcome, err error) {
	one := []store.Op{*op} // the new key is discarded if the expiry changed
	w.settles = true
	defer func() { w.settles = false }()
	err = w.write(t, one, func(ctx context.Context) (err error) {
		began := w.c.cfg.Now()
		outcome, err = w.c.cfg.Store.Settle(ctx, q, op.Entry, judge)
		one[0].Outcome = outcome
		t.scratch.longest = max(t.scratch.longest, w.c.cfg.Now().Sub(began))
		return err
	})
	if err != nil {
		outcome = store.Unknown
	}
	return outcome, err
}

func isCarry(op *store.Op) bool { return op.To.Type != store.Missing }

// expiresOf returns when the op's entity expires, by what the scan saw.
func expiresOf(r shardquery.Range, op *store.Op) (time.Time, bool) {
	at, err := r.Expires(op.Entry.Value)
	return at, err == nil
}

// isShrunk reports whether a query failed because it asked for too much. The next query
// asks for less, or has more time.
func isShrunk(err error) bool { return errors.Is(err, shardquery.ErrShrunk) }
