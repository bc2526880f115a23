package visit

import (
	"errors"
	"slices"

	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A settler disposes of entities one by one: of those that changed since the scan, or are contended. An
// entity that it cannot settle waits for another try, while its range is read on.
type settler struct {
	task     *task
	hold     *dispose.Hold
	decide   *dispose.Decider
	writer   *dispose.Writer
	kept     *dispose.Kept
	account  *account
	readings *readings
	deferred deferrals
	failing  failing // of writes
}

// settleChanged handles the entities that had changed since the scan: those that
// are not due any more are disposed of, the others are settled one by one.
func (s *settler) settleChanged(t step.Turn, rd *reading, q store.Query) error {
	for i := range t.Scratch.Ops {
		op := &t.Scratch.Ops[i]
		if op.Outcome != store.Changed {
			continue
		}
		if s.account.isMistyped(op) {
			// It had been that all along: a projection shows one element of a list,
			// a blob as a text, and a timestamp as an integer.
			s.account.keepMistyped(op)
			continue
		}
		if op.Known {
			if j, do := s.decide.Verdict(op.Entry.Key, op.Now); do == store.Keep {
				s.task.c.Tally.Counts.Conflicts.Add(1)
				s.account.keep(op, j)
				continue
			}
		}
		if err := s.settle(t, rd, q, op); err != nil {
			return err
		}
		s.task.c.Tally.Counts.Conflicts.Add(1)
	}
	return nil
}

// settleContended settles an entity that is contended even in a batch of its own. If there
// are no tokens, the entity waits for another try: the next page would meet it again.
func (s *settler) settleContended(t step.Turn, rd *reading, q store.Query, op *store.Op) error {
	err := s.settle(t, rd, q, op)
	if later := (*throttle.Pause)(nil); errors.As(err, &later) {
		return s.deferOp(t, rd, op, store.ErrContention)
	}
	return err
}

// settle disposes of one entity in a transaction of its own, by the expiry that it
// has then. If that is contended, the entity waits for another try.
func (s *settler) settle(t step.Turn, rd *reading, q store.Query, op *store.Op) error {
	if !s.task.c.Cfg.Apply {
		op.Outcome = store.Kept // it changes: a later sweep will see it
		return nil
	}
	have, err := s.writer.Look(t.Ctx, []store.Op{*op})
	if len(have) > 0 {
		return s.deferBelow(t, rd, op, &dispose.Descent{}, nil)
	}
	var outcome store.Outcome
	var j index.Judgement
	if err == nil {
		outcome, j, err = s.try(t, q, op, !s.writer.Descends() || !op.IsCarry())
	}
	if err == nil && outcome == store.Kept && j == index.Due {
		return s.deferBelow(t, rd, op, nil, nil)
	}
	if err == nil {
		s.settled(op, outcome, j, false)
		return nil
	}
	if err := s.writer.Fatal(t, err); err != nil {
		return err
	}
	if errors.Is(err, store.ErrContention) || store.MayBeOfOneEntity(err) || store.MayHaveHappened(err) {
		return s.deferOp(t, rd, op, err)
	}
	return s.failing.pauseOrFail(t, s.task.c.Cfg.Now(), err)
}

// try disposes of one entity by what it holds in the transaction. If it may not delete it, because something
// may lie below it, an entity that is due is kept for now.
func (s *settler) try(
	t step.Turn, q store.Query, op *store.Op, mayDelete bool,
) (outcome store.Outcome, j index.Judgement, err error) {
	outcome, err = s.writer.Settle(t, q, op, func(value store.Value) (do store.Verdict) {
		if j, do = s.decide.Verdict(op.Entry.Key, value); do == store.Delete && !mayDelete {
			do = store.Keep
		}
		return do
	})
	return outcome, j, err
}

// settled notes what became of an entity that was settled. Unsure says that an
// earlier try may have deleted it.
func (s *settler) settled(op *store.Op, outcome store.Outcome, j index.Judgement, unsure bool) {
	op.Outcome = outcome
	switch {
	case outcome == store.Kept:
		s.account.keep(op, j)
	case outcome == store.Gone && unsure:
		op.Outcome = store.Deleted
	}
}

// deferOp lets the entity of an op wait for another try. If too many wait already, the range has to wait for
// one of them.
func (s *settler) deferOp(t step.Turn, rd *reading, op *store.Op, err error) error {
	if !s.task.c.Cfg.Apply { // nothing is written, so nothing is tried again
		op.Outcome = store.Kept
		return nil
	}
	now := s.task.c.Cfg.Now()
	if len(s.deferred.list) >= mostDeferred {
		return &throttle.Pause{Wait: max(step.RetryEvery/50, s.deferred.next().Sub(now)), Why: throttle.ReasonPushBack}
	}
	w := &deferred{
		rds: []*reading{rd}, since: now, unsure: store.MayHaveHappened(err) || t.Scratch.IsDoubted(op),
		// If it is not due by what it holds now, the next try looks again.
		op: store.Op{Entry: op.Entry, To: op.To, Now: op.Now, Known: op.Known && s.decide.IsDue(op)},
	}
	w.failed(now, err)
	s.deferred.list = append(s.deferred.list, w)
	s.writer.Size.EndParts()
	rd.stuck = true
	op.Outcome = store.Kept // for now, so that the reading continues past it
	s.task.c.Log.DebugContext(t.Ctx, "entity left for another try", "range", s.hold.Key(), "key", op.Entry.Key,
		"error", err)
	return nil
}

// retryDue tries once more each entity whose retry is due.
func (s *settler) retryDue(t step.Turn) error {
	for _, w := range slices.Clone(s.deferred.list) {
		if s.task.c.Cfg.Now().Before(w.retry) {
			continue
		}
		if err := s.retry(t, w); err != nil {
			return err
		}
		if t.Over() {
			break
		}
	}
	return nil
}

func (s *settler) retry(t step.Turn, w *deferred) error {
	op := w.op
	q := store.Query{Target: s.task.c.Target.Target, Namespace: s.task.r.Namespace, Shard: s.task.r.Value}
	var outcome store.Outcome
	var j index.Judgement
	is, err := s.goOnBelow(t, q, w)
	if err == nil && is != dispose.BelowNothing && is != dispose.BelowNotDue {
		return nil
	}
	if err == nil {
		outcome, j, err = s.try(t, q, &op, is == dispose.BelowNothing)
	}
	if err != nil {
		if err := s.writer.Fatal(t, err); err != nil {
			return err
		}
		if w.failed(s.task.c.Cfg.Now(), err); s.isRefused(w) {
			s.refuse(w)
		}
		return nil
	}
	if outcome == store.Kept && j == index.Due {
		s.keptForNow(w, &op)
		return nil
	}
	s.settled(&op, outcome, j, w.unsure)
	switch op.Outcome {
	case store.Deleted:
		s.account.deleted(1, 0)
		s.account.countMoved(1, 0)
		s.account.delayed(op.Entry)
	case store.Carried:
		s.account.deleted(0, 1)
		s.account.countMoved(0, 1)
	case store.Unknown, store.Gone, store.Changed, store.Kept:
	}
	s.clear(w)
	return nil
}

// keptForNow prepares the next try of an entity that is due, and was kept: what lies below it comes first, or the
// budget by what it holds. If it is stamped again and again, it is contended.
func (s *settler) keptForNow(w *deferred, op *store.Op) {
	now, again := s.task.c.Cfg.Now(), w.op.Known && (w.notDue || !op.Now.Equal(w.op.Now))
	w.op.Now, w.op.Known, w.op.To, w.notDue, w.descent = op.Now, true, store.Value{}, false, nil
	if w.retry = now.Add(descendAgain); again {
		w.failed(now, store.ErrContention)
	}
}

// isRefused reports whether the store refuses the entity for good: it did so several
// times while it took other writes, or there is no other write to compare with.
func (s *settler) isRefused(w *deferred) bool {
	if w.lasting == nil || w.refusals < lastingTries {
		return false
	}
	since := w.since
	if len(s.deferred.list) == 1 && s.readings.allRead() { // the visit will make no other write
		if !errors.Is(w.lasting, store.ErrFailed) {
			return true
		}
		since = since.Add(-lastingSince)
	}
	return s.task.c.Tally.SucceededSince(since)
}

// refuse keeps an entity that the store refuses, counts it, and names it.
func (s *settler) refuse(w *deferred) {
	s.task.c.Tally.Counts.Refused.Add(1)
	s.kept.Refuse(w.op.Entry, s.hold, s.task.need.Inventory)
	s.task.c.Log.WarnFew("the store refuses an entity: it is kept", "range", s.hold.Key(), "namespace", s.task.r.Namespace,
		"key", w.op.Entry.Key, "expiry", w.op.Entry.Position().Value.String(), "error", w.lasting)
	s.clear(w)
}

// clear removes an entity that is disposed of from those that wait. Once a reading
// has none left, its progress is saved.
func (s *settler) clear(w *deferred) {
	s.deferred.list = slices.DeleteFunc(s.deferred.list, func(b *deferred) bool { return w == b })
	for _, rd := range w.rds {
		if !slices.ContainsFunc(s.deferred.list, func(b *deferred) bool { return slices.Contains(b.rds, rd) }) {
			rd.stuck = false
			rd.checkpoint(s.hold)
		}
	}
}
