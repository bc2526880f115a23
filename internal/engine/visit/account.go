package visit

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

// An account counts what becomes of the entities of a visit, and tells the watchdog.
type account struct {
	task   *task
	hold   *dispose.Hold
	decide *dispose.Decider
	kept   *dispose.Kept
	dry    dryRun
	oldest time.Time // when what a dry run found first became due
}

// A pageSum is what became of the ops of a page.
type pageSum struct {
	expired, gone, carried int64
	behind                 int64     // due, but the next sweep leaves it
	oldest                 time.Time // when the oldest entity that is left became due; zero if none is left
}

// sum adds up what became of the ops of a page, and measures how long what was
// deleted had been due.
func (a *account) sum(s *step.Scratch, rd *reading) (n pageSum) {
	c, now := a.task.c, a.task.c.Clock.Now()
	s.Delays = s.Delays[:0]
	for i := range s.Ops {
		op := &s.Ops[i]
		if op.IsCarry() && op.Outcome != store.Deleted || a.kept.IsMistyped(op.Entry) {
			if op.Outcome == store.Carried {
				n.carried++
			}
			continue
		}
		seen := s.Judged[s.Entry[i]]
		ok, dueAt := seen.IsExpiry(), seen.Expires.Add(c.Target.Retention)
		if !step.IsOpen(op) {
			later := !c.Cfg.Apply && a.dry.isLater(rd, op.Entry.Position().Value)
			expired, behind := a.dry.countOnce(op, later)
			n.expired, n.behind = n.expired+expired, n.behind+behind
		}
		if op.Outcome == store.Deleted {
			n.gone++
			s.Delays = append(s.Delays, now.Sub(dueAt))
		}
		if ok && (step.IsOpen(op) || !c.Cfg.Apply) && (n.oldest.IsZero() || dueAt.Before(n.oldest)) {
			n.oldest = dueAt
		}
	}
	return n
}

// addPage tells counts, metrics and the watchdog what became of the ops of a page.
func (a *account) addPage(s *step.Scratch, rd *reading) {
	c, n := a.task.c, a.sum(s, rd)
	c.Tally.Counts.Expired.Add(n.expired)
	c.Cfg.Progress.Expired.Add(n.expired)
	a.countMoved(n.gone, n.carried)
	c.Tally.FoundBehind(a.task.r, n.behind)
	if !c.Cfg.Apply { // what was found first stays the oldest: nothing is deleted
		a.dry.noteOldest(s)
		if a.oldest.IsZero() && !n.oldest.IsZero() {
			a.oldest = n.oldest
			a.sawDue(n.oldest, 0)
		}
		return
	}
	a.addDelays(s.Delays...)
	a.deleted(n.gone, n.carried)
	if n.gone+n.carried > 0 {
		lease := a.hold.Cursor().Lease
		c.Log.Debug("page", "range", a.hold.Key(), "owner", lease.Owner, "token", lease.Token,
			"entries", len(s.Page.Entries), "due", n.expired, "deleted", n.gone, "carried", n.carried)
	}
	if n.gone > 0 || !n.oldest.IsZero() {
		if at, ok := a.lastDue(s); n.oldest.IsZero() && ok {
			n.oldest = at // the next entity is no older than the last one that was deleted
		}
		a.sawDue(n.oldest, n.gone)
	}
}

// addDelays tells how long deletes came after their entities were due.
func (a *account) addDelays(delays ...time.Duration) {
	c := a.task.c
	c.Cfg.Metrics.Delay(c.Target.Name, delays...)
	c.Tally.Counts.Delays.Add(delays...)
}

// delayed tells how long an entity that waited aside was due when it was deleted.
func (a *account) delayed(e store.Entry) {
	if at, err := a.task.r.Expires(e.Position().Value); err == nil {
		a.addDelays(a.task.c.Clock.Now().Sub(at.Add(a.task.c.Target.Retention)))
	}
}

// countMoved counts carries; those of an audit, and its deletes, are strays.
func (a *account) countMoved(gone, carried int64) {
	if a.task.auditing {
		a.task.c.Tally.Counts.Strays.Add(gone + carried)
	} else {
		a.task.c.Tally.Counts.Carried.Add(carried)
	}
}

// deleted counts the deletes and carries that the store has acknowledged.
func (a *account) deleted(gone, carried int64) {
	if gone+carried == 0 {
		return
	}
	c := a.task.c
	a.hold.WasNotEmpty()
	c.Tally.Counts.Deleted.Add(gone)
	c.Cfg.Progress.Deleted.Add(gone)
	c.Tally.Succeeded(c.Cfg.Now())
	a.hold.Update(func(cur *cursor.Cursor) {
		cur.Deleted += gone
		c.Pacing.Save(cur, a.hold.Pacer)
	})
}

// descended counts what lay below an entity and was deleted: the range makes progress.
func (a *account) descended(e store.Entry, n int64) {
	if n == 0 {
		return
	}
	c := a.task.c
	a.hold.WasNotEmpty()
	c.Tally.Counts.Descendants.Add(n)
	c.Tally.Succeeded(c.Cfg.Now())
	if at, err := a.task.r.Expires(e.Position().Value); err == nil {
		a.sawDue(at.Add(c.Target.Retention), n)
	}
}

// lastDue returns when the last op of the page became due.
func (a *account) lastDue(s *step.Scratch) (time.Time, bool) {
	if len(s.Ops) == 0 {
		return time.Time{}, false
	}
	at, err := a.task.r.Expires(s.Ops[len(s.Ops)-1].Entry.Value)
	return at.Add(a.task.c.Target.Retention), err == nil
}

// recognize counts the kept entities among the entries that the page has passed. It also
// counts as deleted the absent entities of a batch whose outcome was not known.
func (a *account) recognize(s *step.Scratch, rd *reading, passed int, more bool) {
	c := &a.task.c.Tally.Counts
	for i := range s.Page.Entries[:passed] {
		switch s.Judged[i].Judgement {
		case index.Malformed:
			if !a.task.auditing { // an audit finds them in no range, which has a count of its own
				c.Malformed.Add(1)
				a.dry.giveExample(site.KeptMalformed, s.Page.Entries[i])
			}
		case index.Suspect:
			if a.decide.Carry == nil && !a.kept.IsMistyped(s.Page.Entries[i]) { // those count as malformed
				c.Suspect.Add(1)
				a.dry.giveExample(site.KeptSuspect, s.Page.Entries[i])
			}
		case index.Never, index.Early, index.Due:
		}
	}
	if rd.unsure.tried == 0 || !a.task.c.Cfg.Apply {
		return
	}
	over := !more && passed == len(s.Page.Entries)
	for i := range s.Ops {
		switch at := s.Page.Entries[s.Entry[i]].Position(); {
		case s.Entry[i] >= passed:
		case at.Value.Compare(rd.unsure.upTo.Value) > 0:
			over = true
		case !s.Ops[i].IsCarry():
			rd.unsure.found++
			over = over || at == rd.unsure.upTo
		}
	}
	if over {
		gone := int64(max(0, rd.unsure.tried-rd.unsure.found))
		c.Expired.Add(gone)
		a.deleted(gone, 0)
		rd.unsure = unsure{}
	}
}

// keep disposes of an op by keeping its entity, and counts why.
func (a *account) keep(op *store.Op, j index.Judgement) {
	op.Outcome = store.Kept
	switch j {
	case index.Malformed:
		a.task.c.Tally.Counts.Malformed.Add(1)
		a.dry.giveExample(site.KeptMalformed, op.Entry)
	case index.Suspect:
		a.task.c.Tally.Counts.Suspect.Add(1)
	case index.Never, index.Early, index.Due: // not this visit's any more
	}
}

// keepMistyped keeps an entity that is malformed, and counts it once, even if the index
// shows it at several places.
func (a *account) keepMistyped(op *store.Op) {
	if a.kept.HasMistyped(op.Entry.Key) {
		op.Outcome = store.Kept
	} else {
		a.keep(op, index.Malformed)
	}
	a.kept.Add(op.Entry, false)
}

// isMistyped reports whether an entity holds another type of value than its index entry
// shows: it had that all along.
func (a *account) isMistyped(op *store.Op) bool {
	return op.Outcome == store.Changed && op.Known && op.Now.Type != store.Missing && op.Now.Type != a.task.c.Target.Type
}

// sawDue tells the watchdog what is due in the range; nothing during an audit.
func (a *account) sawDue(oldest time.Time, deleted int64) {
	if !a.task.auditing {
		a.task.c.SawDue(a.hold.Key(), oldest, deleted)
	}
}
