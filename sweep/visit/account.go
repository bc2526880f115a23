package visit

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
)

// A pageSum is what became of the ops of a page.
type pageSum struct {
	expired, gone, carried int64
	behind                 int64     // due, but the next sweep leaves it
	oldest                 time.Time // when the first of those became due that are left; zero if none is
}

// sum adds up what became of the ops of a page, and measures how long what was
// deleted had been due.
func (v *visit) sum(s *step.Scratch, rd *reading) (n pageSum) {
	c, now := v.c, v.c.Clock.Now()
	s.Delays = s.Delays[:0]
	for i := range s.Ops {
		op := &s.Ops[i]
		if op.IsCarry() && op.Outcome != store.Deleted || v.kept.isMistyped(op.Entry) {
			if op.Outcome == store.Carried {
				n.carried++
			}
			continue
		}
		seen := s.Judged[s.Entry[i]]
		ok, dueAt := seen.IsExpiry(), seen.Expires.Add(c.Target.Retention)
		if !step.IsOpen(op) {
			later := !c.Cfg.Apply && v.isLater(rd, op.Entry.Position().Value)
			expired, behind := v.countOnce(op, later)
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

// account tells counts, metrics and the watchdog what became of the ops of a page.
func (v *visit) account(s *step.Scratch, rd *reading) {
	c, n := v.c, v.sum(s, rd)
	c.Tally.Counts.Expired.Add(n.expired)
	c.Cfg.Progress.Expired.Add(n.expired)
	v.countMoved(n.gone, n.carried)
	c.Tally.FoundBehind(v.r, n.behind)
	if !c.Cfg.Apply { // what was found first stays the oldest: nothing is deleted
		v.noteOldest(s)
		if v.start.oldest.IsZero() && !n.oldest.IsZero() {
			v.start.oldest = n.oldest
			v.sawDue(n.oldest, 0)
		}
		return
	}
	c.Cfg.Metrics.Delay(c.Target.Name, s.Delays...)
	v.deleted(n.gone, n.carried)
	if n.gone+n.carried > 0 {
		lease := v.hold.Cursor().Lease
		c.Log.Debug("page", "range", v.hold.Key(), "owner", lease.Owner, "token", lease.Token,
			"entries", len(s.Page.Entries), "due", n.expired, "deleted", n.gone, "carried", n.carried)
	}
	if n.gone > 0 || !n.oldest.IsZero() {
		if at, ok := v.lastDue(s); n.oldest.IsZero() && ok {
			n.oldest = at // the next entity is no older than the last one that was deleted
		}
		v.sawDue(n.oldest, n.gone)
	}
}

// countMoved counts carries; those of an audit, and its deletes, are strays.
func (v *visit) countMoved(gone, carried int64) {
	if v.auditing {
		v.c.Tally.Counts.Strays.Add(gone + carried)
	} else {
		v.c.Tally.Counts.Carried.Add(carried)
	}
}

// deleted counts the deletes and carries that the store has acknowledged.
func (v *visit) deleted(gone, carried int64) {
	if gone+carried == 0 {
		return
	}
	c := v.c
	v.disposed = true
	c.Tally.Counts.Deleted.Add(gone)
	c.Cfg.Progress.Deleted.Add(gone)
	c.Tally.Succeeded(c.Cfg.Now())
	v.hold.Update(func(cur *cursor.Cursor) {
		cur.Deleted += gone
		c.Pacing.Save(cur, v.hold.Pacer)
	})
}

// lastDue returns when the last op of the page became due.
func (v *visit) lastDue(s *step.Scratch) (time.Time, bool) {
	if len(s.Ops) == 0 {
		return time.Time{}, false
	}
	at, ok := expiresOf(v.r, &s.Ops[len(s.Ops)-1])
	return at.Add(v.c.Target.Retention), ok
}

// recognize counts the kept entities among the entries that the page has passed. It also
// counts as deleted what is absent of a batch whose outcome was not known.
func (v *visit) recognize(s *step.Scratch, rd *reading, passed int, more bool) {
	c := &v.c.Tally.Counts
	for i := range s.Page.Entries[:passed] {
		switch s.Judged[i].Judgement {
		case index.Malformed:
			if !v.auditing { // there the count of what lies outside has it
				c.Malformed.Add(1)
				v.giveExample(site.KeptMalformed, s.Page.Entries[i])
			}
		case index.Suspect:
			if v.decide.Carry == nil && !v.kept.isMistyped(s.Page.Entries[i]) { // those count as malformed
				c.Suspect.Add(1)
				v.giveExample(site.KeptSuspect, s.Page.Entries[i])
			}
		case index.Never, index.Early, index.Due:
		}
	}
	if rd.unsure.tried == 0 || !v.c.Cfg.Apply {
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
		v.deleted(gone, 0)
		rd.unsure = unsure{}
	}
}

// An unsure is a batch whose outcome is not known. When its part of the range is read
// again, the entities that are absent count as deleted.
type unsure struct {
	upTo  store.Position
	tried int // entities in it
	found int // of these, how many were met again
}

// add notes the ops of a page that were tried without learning their outcome.
func (u *unsure) add(s *step.Scratch) {
	known := u.upTo
	for i := range s.Doubted {
		op := &s.Ops[i]
		if !s.Doubted[i] || op.Outcome != store.Unknown || op.IsCarry() {
			continue
		}
		at := op.Entry.Position()
		if known.IsZero() || at.Value.Compare(known.Value) > 0 { // otherwise it is counted already
			u.tried++
			u.upTo = at
		}
	}
}

// SawDue tells the watchdog when the oldest entity left in the range became due, as far
// as that is known.
func (v *visit) sawDue(oldest time.Time, deleted int64) {
	if v.auditing {
		return
	}
	SawDue(v.c, v.hold.Key(), oldest, deleted)
}

func SawDue(c *site.Site, key string, oldest time.Time, deleted int64) {
	c.Target.Watchdog.Saw(c.Cfg.Now(), key, metrics.Look{OldestDue: oldest, Disposed: deleted, Held: !c.Cfg.Apply ||
		c.HeldBy() != ""})
}

// A keptSet remembers entries of entities that a visit has met and keeps, so that it neither
// tries them again nor counts them as left to be carried. An entity that gets another expiry
// has another entry, which is tried. Beyond a thousand the set forgets: any more keep their
// generation alive, as suspects do.
type keptSet struct {
	refused      map[store.Position]bool
	mistyped     map[string]bool // by key: an entity may have several entries, and counts once
	suspectsRead int             // how many that look suspect were read to make sure
}

const mostKept = 1000

// add remembers an entry. Refused says that the store refuses its entity; otherwise the
// entity's value is of another type than the entry.
func (k *keptSet) add(e store.Entry, refused bool) {
	if k.refused == nil {
		k.refused, k.mistyped = map[store.Position]bool{}, map[string]bool{}
	}
	if len(k.refused) < mostKept {
		k.refused[e.Position()] = refused
		if !refused {
			k.mistyped[e.Key] = true
		}
	}
}

func (k *keptSet) has(e store.Entry) bool {
	_, ok := k.refused[e.Position()]
	return ok
}

func (k *keptSet) isRefused(e store.Entry) bool { return k.refused[e.Position()] }

func (k *keptSet) anyRefused() bool {
	for _, refused := range k.refused {
		if refused {
			return true
		}
	}
	return false
}

func (k *keptSet) isMistyped(e store.Entry) bool { return k.has(e) && !k.isRefused(e) }

// expiresOf returns when the op's entity expires, by what the scan saw.
func expiresOf(r shardquery.Range, op *store.Op) (time.Time, bool) {
	at, err := r.Expires(op.Entry.Value)
	return at, err == nil
}
