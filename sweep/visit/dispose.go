package visit

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/spend"
	"github.com/reaper-ttl/reaper/sweep/step"
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

// A writer disposes of entities: it is the one place that deletes and carries go
// through, whatever kind of work found them.
type writer struct {
	c     *site.Site
	claim *cursor.Claim   // only the holder of the range may write in it; nil in a dry run
	pacer *throttle.Pacer // of the range
	carry *carrier        // stamps what is not deleted; nil if nothing is carried
	spend.Asker
}

// write makes one call that disposes of the ops. First it takes their tokens. Then,
// as late as possible, it checks everything that may have changed since they were
// granted: the machine may have slept in between. Tokens that were granted under old
// orders, or while the target is held, are discarded.
func (w *writer) write(t step.Turn, ops []store.Op, call func(context.Context) error) error {
	if w.claim == nil { // a dry run
		if err := w.takeOwn(t, ops); err != nil {
			return err
		}
		return w.bounded(t.Work, ops, call)
	}
	if err := w.c.Budget.Ensure(t.Ctx, &w.Asker, ops); err != nil { // before it costs tokens
		return err
	}
	w.c.Pacing.Follow(w.c.Viewer.View())
	granted := w.c.Pacing.Orders()
	if err := w.take(t, ops); err != nil {
		return err
	}
	if why := w.c.HeldBy(); why != "" {
		return &throttle.Pause{Wait: heldFor, Why: why}
	}
	w.c.Pacing.Follow(w.c.Viewer.View())
	if !w.c.Pacing.GrantHolds(granted) {
		return &throttle.Pause{Wait: 0, Why: throttle.ReasonTotal}
	}
	if w.carry != nil {
		if err := w.carry.stamp(ops); err != nil {
			return err
		}
	}
	leased, cancel, err := w.claim.Writing(t.Work)
	if err != nil {
		return err
	}
	defer cancel()
	keys, err := w.c.Budget.Take(&w.Asker, ops)
	if err != nil {
		return err
	}
	err = w.bounded(leased, ops, call)
	w.c.Budget.Settle(keys, ops, store.MayHaveHappened(err))
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
		timeout = min(timeout, w.c.Slack()) // a stamp that is older must be made again
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// take takes the tokens of the ops: of the range's own pace, and of the pace of
// the ranges that something is carried into.
func (w *writer) take(t step.Turn, ops []store.Op) error {
	if s, ok := w.c.Cfg.Store.(store.Pressured); ok && s.Pressed() {
		if !w.pacer.Status().Unlimited { // without a rate there is nothing to halve; waiting is enough
			w.pacer.PushBack(throttle.ReasonCompaction)
		}
		return &throttle.Pause{Wait: pressedFor, Why: throttle.ReasonCompaction}
	}
	if w.carry != nil {
		if err := w.carry.take(ops); err != nil {
			return err
		}
	}
	return w.takeOwn(t, ops)
}

// takeOwn takes the tokens of the range's own pace.
func (w *writer) takeOwn(t step.Turn, ops []store.Op) error {
	wait, why := w.pacer.Take(len(ops))
	if wait > 0 && wait <= waitInPlace {
		if err := throttle.Sleep(t.Ctx, wait); err != nil {
			return background.ErrStopped
		}
		w.c.Tally.Waited(why, wait)
		wait, why = w.pacer.Take(len(ops))
	}
	if wait > 0 {
		return &throttle.Pause{Wait: wait, Why: why}
	}
	return nil
}

// dispose makes one call of the store's Dispose, and returns how long it took.
func (w *writer) dispose(t step.Turn, q store.Query, ops []store.Op, fromStart bool) error {
	return w.write(t, ops, func(ctx context.Context) error {
		t.Scratch.Ahead.Begin(t.Ctx, w.c.Cfg.Now)
		b := store.Batch{Query: q, Ops: ops, DryRun: !w.c.Cfg.Apply}
		began := w.c.Cfg.Now()
		err := w.c.Cfg.Store.Dispose(ctx, &b)
		took := w.c.Cfg.Now().Sub(began)
		if !fromStart {
			t.Scratch.Longest = max(t.Scratch.Longest, took)
		}
		w.c.Cfg.Metrics.Commit(w.c.Target.Name, took)
		w.c.Tally.SteppedOver(b.SteppedOver, fromStart)
		return err
	})
}

// settle disposes of one entity in a transaction of its own. Judge decides, by the expiry
// that the entity has in that transaction.
func (w *writer) settle(t step.Turn, q store.Query, op *store.Op,
	judge func(store.Value) store.Verdict) (outcome store.Outcome, err error) {
	one := []store.Op{*op} // the new key is discarded if the expiry changed
	w.Settles = true
	defer func() { w.Settles = false }()
	err = w.write(t, one, func(ctx context.Context) (err error) {
		began := w.c.Cfg.Now()
		outcome, err = w.c.Cfg.Store.Settle(ctx, q, op.Entry, judge)
		one[0].Outcome = outcome
		t.Scratch.Longest = max(t.Scratch.Longest, w.c.Cfg.Now().Sub(began))
		return err
	})
	if err != nil {
		outcome = store.Unknown
	}
	return outcome, err
}

// expiresOf returns when the op's entity expires, by what the scan saw.
func expiresOf(r shardquery.Range, op *store.Op) (time.Time, bool) {
	at, err := r.Expires(op.Entry.Value)
	return at, err == nil
}

// isShrunk reports whether a query failed because it asked for too much. The next query
// asks for less, or has more time.
func isShrunk(err error) bool { return errors.Is(err, shardquery.ErrShrunk) }
