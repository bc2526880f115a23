package visit

import (
	"cmp"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

// countBelow counts for a dry run what lies below an entity.
func (s *settler) countBelow(t step.Turn, op *store.Op) error {
	n, is, err := s.writer.Survey(t.Ctx, op.Entry)
	switch {
	case err != nil && t.Ctx.Err() != nil:
		return background.ErrStopped
	case err != nil:
		return s.failing.pauseOrFail(t, s.task.c.Cfg.Now(), err)
	case is != dispose.BelowUnknown:
		s.keepAbove(op.Entry, is)
		op.Outcome = store.Kept
	default:
		s.task.c.Tally.Counts.Descendants.Add(n)
	}
	return nil
}

// inPlace is how many pages of a descent are done before its entity waits aside: one, and looks again.
const inPlace = 3

// clearBelow deletes what lies below an entity. If that takes long, the entity waits aside meanwhile.
func (s *settler) clearBelow(t step.Turn, rd *reading, q store.Query, op *store.Op) error {
	switch {
	case !s.task.c.Cfg.Apply:
		return s.countBelow(t, op)
	case op.IsCarry(): // it is about to be due
		return s.deferBelow(t, rd, op, nil, nil)
	}
	d := &dispose.Descent{}
	for range inPlace {
		switch is, err := s.descend(t, q, op, d); {
		case err != nil:
			if err := s.writer.Fatal(t, err); err != nil {
				return err
			}
			return s.deferBelow(t, rd, op, d, err)
		case is == dispose.BelowNothing:
			return nil
		case is == dispose.BelowNotDue: // what has become of it, its next try finds out
			return s.deferBelow(t, rd, op, d, nil)
		case is != dispose.BelowUnknown:
			s.keepAbove(op.Entry, is)
			op.Outcome = store.Kept
			return nil
		}
	}
	return s.deferBelow(t, rd, op, d, nil)
}

// descend does the next page of a descent, and counts what it has deleted. Of another expiry the next try finds out.
func (s *settler) descend(t step.Turn, q store.Query, op *store.Op, d *dispose.Descent) (dispose.Below, error) {
	before := d.Deleted
	is, err := s.writer.Descend(t, dispose.Above{Query: q, Op: op, IsDue: func(v store.Value) bool {
		return v.Equal(op.Entry.Value) || s.decide.IsDue(op) // as it was compared, or is now
	}}, d)
	s.account.descended(op.Entry, d.Deleted-before)
	return is, err
}

// keepAbove keeps an entity for what lies below it, and counts it.
func (s *settler) keepAbove(e store.Entry, why dispose.Below) {
	s.kept.Refuse(e, s.hold, s.task.need.Inventory)
	count, text := &s.task.c.Tally.Counts.Refused, "an entity is kept: its target does not allow what lies below it"
	if why == dispose.BelowOwned {
		count, text = &s.task.c.Tally.Counts.Waiting, "an entity is kept until what is another target's own below it is gone"
	}
	count.Add(1)
	s.task.c.Log.WarnFew(text, "range", s.hold.Key(), "namespace", s.task.r.Namespace, "key", e.Key,
		"expiry", e.Position().Value.String())
}

// deferBelow lets an entity wait aside while what lies below it is deleted.
func (s *settler) deferBelow(t step.Turn, rd *reading, op *store.Op, d *dispose.Descent, err error) error {
	before := len(s.deferred.list)
	if err := s.deferOp(t, rd, op, err); err != nil || len(s.deferred.list) == before {
		return err
	}
	w := s.deferred.list[before]
	if w.descent = d; err == nil {
		w.tries, w.retry = 0, s.task.c.Cfg.Now().Add(descendAgain)
	}
	return nil
}

// goOnBelow does the next page below an entity that waits aside. The entity itself is next if nothing lies
// there, or if it was no longer due.
func (s *settler) goOnBelow(t step.Turn, q store.Query, w *deferred) (is dispose.Below, err error) {
	switch {
	case !s.writer.Descends():
		return dispose.BelowNothing, nil
	case w.op.IsCarry(), w.notDue: // it may be due by now
		return dispose.BelowNotDue, nil
	}
	w.descent = cmp.Or(w.descent, &dispose.Descent{})
	deleted := w.descent.Deleted
	switch is, err = s.descend(t, q, &w.op, w.descent); {
	case err != nil:
	case is == dispose.BelowUnknown:
		w.refusals, w.retry = 0, s.task.c.Cfg.Now().Add(descendAgain)
		if d := w.descent; d.Deleted > deleted || d.Seen > w.seen { // it is further than it ever was
			w.tries, w.seen = 0, max(w.seen, d.Seen)
		}
	case is == dispose.BelowNothing, is == dispose.BelowNotDue:
		w.descent, w.notDue = nil, is == dispose.BelowNotDue // a later try looks again
	default:
		s.keepAbove(w.op.Entry, is)
		s.clear(w)
	}
	return is, err
}
