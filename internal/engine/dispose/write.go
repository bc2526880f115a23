package dispose

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// WriteTimeout bounds one write. The services end a transaction after 270 s,
	// or 60 s without a request.
	WriteTimeout = 30 * time.Second
	// pressedFor is how long a step stays away from a store under pressure.
	pressedFor = 20 * time.Millisecond
	// waitInPlace is the longest wait for which a step keeps its worker: reading its
	// page again would take longer.
	waitInPlace = 20 * time.Millisecond
	// looksAtShare is how often a step that waits for a share looks whether it has been renewed.
	looksAtShare = 60
	// HeldFor is how soon a step checks again whether its target is held.
	HeldFor = time.Second
)

// A Writer makes the calls that dispose of entities, whatever kind of work found them. All deletes
// and carries go through its method write.
type Writer struct {
	Asker spend.Asker
	Size  BatchSize
	c     *site.Site
	hold  *Hold
	carry *Carrier // stamps what is not deleted; nil if nothing is carried

	looked    map[string]time.Time // when nothing was found below entities, by their keys
	granted   pace.Orders          // by which the tokens of the write at hand were granted
	slowSince time.Time            // from when on the archive has taken too long; zero if it does not
}

// NewWriter returns the writer of a range. What was due before lateFrom is late, for the breaker.
func NewWriter(c *site.Site, hold *Hold, carry *Carrier, lateFrom time.Time) Writer {
	return Writer{c: c, hold: hold, carry: carry, Asker: spend.Asker{LateFrom: lateFrom}}
}

// awaitShare waits until the range's share of the total, if it has lapsed, is renewed, but for no longer than a share
// is valid. Where reads of heartbeats take long there are gaps between two shares: a page that is read across one would
// be read for nothing, each time.
func (w *Writer) awaitShare(t step.Turn) error {
	if w.hold.Pacer == nil || !w.hold.Pacer.Lapsed() {
		return nil
	}
	leave := w.c.Pacing.Awaiting.Take(max(1, w.c.Cfg.Workers/2)) // all ranges lack it: other targets need workers
	if leave == nil {
		return nil
	}
	defer leave()
	wait := w.c.Pacing.Trust() / looksAtShare
	for range looksAtShare {
		if !w.hold.Pacer.Lapsed() {
			break
		}
		if err := throttle.Sleep(t.Ctx, wait); err != nil {
			return background.ErrStopped
		}
		w.c.Tally.Waited(throttle.ReasonTotal, wait)
	}
	return nil
}

// Pick picks the ops of the next call: as many as it may have, as a full bucket holds, as the ranges that they are
// carried into can take, and as the budget covers. It returns none if all have an outcome.
func (w *Writer) Pick(t step.Turn) ([]store.Op, error) {
	s := t.Scratch
	if s.Pick(1) == nil {
		return nil, nil
	}
	if err := w.awaitShare(t); err != nil {
		return nil, err
	}
	most := min(w.Size.Next(w.c.Target.Page), w.c.Guards.Most())
	if w.hold.Pacer != nil { // the page may be from before it had a share: all ranges together would owe a page each
		most = w.hold.Pacer.Burst(most)
	}
	batch := s.Pick(most)
	if w.hold.claim == nil || batch == nil {
		return batch, nil
	}
	if w.carry != nil {
		n, err := w.carry.Ready(batch)
		if err != nil {
			return nil, err
		}
		if batch = s.Pick(n); batch == nil {
			return nil, nil
		}
	}
	if n := w.c.Budget.Covered(&w.Asker, batch); n < len(batch) {
		batch = s.Pick(n)
	}
	return batch, nil
}

// write makes one call that disposes of the ops. First it takes their tokens. Then,
// as late as possible, it checks everything that may have changed since they were
// granted: the machine may have slept in between. Tokens that were granted under old
// orders, or while the target is held, are discarded.
func (w *Writer) write(t step.Turn, ops []store.Op, call func(context.Context) error) error {
	if w.hold.claim == nil { // a dry run
		if err := w.takeOwn(t, ops); err != nil {
			return err
		}
		return w.bounded(t.Work, ops, call)
	}
	if err := w.c.Budget.Ensure(t.Ctx, &w.Asker, ops); err != nil { // before it costs tokens
		return err
	}
	w.c.Pacing.Follow(w.c.Viewer.View())
	w.granted = w.c.Pacing.Orders()
	if err := w.take(t, ops); err != nil {
		return err
	}
	if why := w.c.HeldBy(); why != "" {
		return &throttle.Pause{Wait: HeldFor, Why: why}
	}
	w.c.Pacing.Follow(w.c.Viewer.View())
	if !w.c.Pacing.GrantHolds(w.granted) {
		return &throttle.Pause{Wait: 0, Why: throttle.ReasonTotal}
	}
	if w.carry != nil {
		if err := w.carry.stamp(ops); err != nil {
			return err
		}
	}
	leased, cancel, err := w.hold.claim.Writing(t.Work)
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
func (w *Writer) bounded(ctx context.Context, ops []store.Op, call func(context.Context) error) error {
	timeout := WriteTimeout
	if w.carry != nil {
		if w.hold.claim == nil {
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
func (w *Writer) take(t step.Turn, ops []store.Op) error {
	if s, ok := w.c.Cfg.Store.(store.Pressured); ok && s.Pressed() {
		if !w.hold.Pacer.Status().Unlimited { // without a rate there is nothing to halve; waiting is enough
			w.hold.Pacer.PushBack(throttle.ReasonCompaction)
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
func (w *Writer) takeOwn(t step.Turn, ops []store.Op) error {
	if w.hold.Pacer.Burst(len(ops)) < len(ops) { // the bucket has shrunk since they were picked: the rest would be a debt
		return &throttle.Pause{Why: w.hold.Pacer.Status().Reason}
	}
	wait, why := w.hold.Pacer.Take(len(ops))
	if wait > 0 && wait <= waitInPlace {
		if err := throttle.Sleep(t.Ctx, wait); err != nil {
			return background.ErrStopped
		}
		w.c.Tally.Waited(why, wait)
		wait, why = w.hold.Pacer.Take(len(ops))
	}
	if wait > 0 {
		return &throttle.Pause{Wait: wait, Why: why}
	}
	return nil
}

// Dispose makes one call of the store's Dispose, and returns how long it took.
func (w *Writer) Dispose(t step.Turn, q store.Query, ops []store.Op, fromStart bool) error {
	return w.write(t, ops, func(ctx context.Context) error {
		t.Scratch.Ahead.Begin(t.Ctx, w.c.Cfg.Now)
		began := w.c.Cfg.Now()
		kept, err := w.keeps(ctx, &q, ops, false)
		b := store.Batch{Query: q, Ops: ops, DryRun: !w.c.Cfg.Apply}
		if err == nil {
			err = w.c.Cfg.Store.Dispose(ctx, &b)
		}
		err = kept.end(ops, err)
		took := w.c.Cfg.Now().Sub(began) - kept.wait()
		if !fromStart {
			t.Scratch.Longest = max(t.Scratch.Longest, took)
		}
		w.c.Cfg.Metrics.Commit(w.c.Target.Name, took)
		w.c.Tally.SteppedOver(b.SteppedOver, fromStart)
		return err
	})
}

// Settle disposes of one entity in a transaction of its own. Judge decides, by the expiry
// that the entity has in that transaction, and the op keeps that. By another expiry than the budget was asked for the
// entity may be of another event: then it is kept for now.
func (w *Writer) Settle(t step.Turn, q store.Query, op *store.Op,
	judge func(store.Value) store.Verdict) (outcome store.Outcome, err error) {
	asked := op.Held()
	decide := func(value store.Value) (do store.Verdict) {
		op.Now, op.Known = value, true
		if do = judge(value); do == store.Delete && !value.Equal(asked) {
			do = store.Keep
		}
		return do
	}
	one := []store.Op{*op} // the new key is discarded if the expiry changed
	w.Asker.Settles = true
	defer func() { w.Asker.Settles = false }()
	err = w.write(t, one, func(ctx context.Context) (err error) {
		began := w.c.Cfg.Now()
		kept, err := w.keeps(ctx, &q, one, true)
		if err == nil {
			outcome, err = w.c.Cfg.Store.Settle(ctx, q, op.Entry, decide)
		}
		one[0].Outcome = outcome
		err = kept.end(one, err)
		t.Scratch.Longest = max(t.Scratch.Longest, w.c.Cfg.Now().Sub(began)-kept.wait())
		return err
	})
	if err != nil {
		outcome = store.Unknown
	}
	return outcome, err
}

// Fatal returns the error if it ends the step: a pause, a lost lease, the end of
// the process, or an error against which retries do not help. Otherwise it returns nil.
func (w *Writer) Fatal(t step.Turn, err error) error {
	var later *throttle.Pause
	switch {
	case errors.As(err, &later), errors.Is(err, background.ErrStopped):
		return err
	case w.hold.claim != nil && w.hold.claim.Err() != nil:
		return w.hold.claim.Err()
	case t.Work.Err() != nil:
		return background.ErrStopped
	}
	w.c.Cfg.Metrics.Error(w.c.Target.Name, metrics.OpCommit, err)
	if store.Transient(err) || store.MayBeOfOneEntity(err) {
		w.c.Log.Failed("delete", w.hold.Key(), err)
		return nil
	}
	return err
}
