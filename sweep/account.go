package sweep

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A pageSum is what became of the ops of a page.
type pageSum struct {
	expired, gone, carried int64
	behind                 int64     // due, but the next sweep leaves it
	oldest                 time.Time // when the first of those became due that are left; zero if none is
}

// sum adds up what became of the ops of a page, and measures how long what was
// deleted had been due.
func (v *visit) sum(s *scratch, rd *reading) (n pageSum) {
	c, now := v.c, v.c.clock.Now()
	s.delays = s.delays[:0]
	for i := range s.ops {
		op := &s.ops[i]
		if isCarry(op) && op.Outcome != store.Deleted || v.kept.isMistyped(op.Entry) {
			if op.Outcome == store.Carried {
				n.carried++
			}
			continue
		}
		seen := s.judged[s.entry[i]]
		ok, dueAt := seen.isExpiry(), seen.expires.Add(c.target.Retention)
		if !isOpen(op) {
			later := !c.cfg.Apply && v.isLater(rd, op.Entry.Position().Value)
			expired, behind := v.countOnce(op, later)
			n.expired, n.behind = n.expired+expired, n.behind+behind
		}
		if op.Outcome == store.Deleted {
			n.gone++
			s.delays = append(s.delays, now.Sub(dueAt))
		}
		if ok && (isOpen(op) || !c.cfg.Apply) && (n.oldest.IsZero() || dueAt.Before(n.oldest)) {
			n.oldest = dueAt
		}
	}
	return n
}

// account tells counts, metrics and the watchdog what became of the ops of a page.
func (v *visit) account(s *scratch, rd *reading) {
	c, n := v.c, v.sum(s, rd)
	c.tally.counts.Expired.Add(n.expired)
	c.cfg.Progress.Expired.Add(n.expired)
	v.countMoved(n.gone, n.carried)
	c.tally.foundBehind(v.r, n.behind)
	if !c.cfg.Apply { // what was found first stays the oldest: nothing is deleted
		v.noteOldest(s)
		if v.start.oldest.IsZero() && !n.oldest.IsZero() {
			v.start.oldest = n.oldest
			v.sawDue(n.oldest, 0)
		}
		return
	}
	c.cfg.Metrics.Delay(c.target.Name, s.delays...)
	v.deleted(n.gone, n.carried)
	if n.gone+n.carried > 0 {
		lease := v.claim.Cursor().Lease
		c.log.Debug("page", "range", v.start.cursor.Key(), "owner", lease.Owner, "token", lease.Token,
			"entries", len(s.page.Entries), "due", n.expired, "deleted", n.gone, "carried", n.carried)
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
		v.c.tally.counts.Strays.Add(gone + carried)
	} else {
		v.c.tally.counts.Carried.Add(carried)
	}
}

// deleted counts the deletes and carries that the store has acknowledged.
func (v *visit) deleted(gone, carried int64) {
	if gone+carried == 0 {
		return
	}
	c := v.c
	v.disposed = true
	c.tally.counts.Deleted.Add(gone)
	c.cfg.Progress.Deleted.Add(gone)
	c.tally.succeeded(c.cfg.Now())
	v.update(func(cur *cursor.Cursor) {
		cur.Deleted += gone
		c.pacing.save(cur, v.pacer)
	})
}

// lastDue returns when the last op of the page became due.
func (v *visit) lastDue(s *scratch) (time.Time, bool) {
	if len(s.ops) == 0 {
		return time.Time{}, false
	}
	at, ok := expiresOf(v.r, &s.ops[len(s.ops)-1])
	return at.Add(v.c.target.Retention), ok
}

// recognize counts the kept entities among the entries that the page has passed. It also
// counts as deleted what is absent of a batch whose outcome was not known.
func (v *visit) recognize(s *scratch, rd *reading, passed int, more bool) {
	c := &v.c.tally.counts
	for i := range s.page.Entries[:passed] {
		switch s.judged[i].judgement {
		case malformed:
			if !v.auditing { // there the count of what lies outside has it
				c.Malformed.Add(1)
				v.giveExample(KeptMalformed, s.page.Entries[i])
			}
		case suspect:
			if v.carry == nil && !v.kept.isMistyped(s.page.Entries[i]) { // those count as malformed
				c.Suspect.Add(1)
				v.giveExample(KeptSuspect, s.page.Entries[i])
			}
		case never, early, due:
		}
	}
	if rd.unsure.tried == 0 || !v.c.cfg.Apply {
		return
	}
	over := !more && passed == len(s.page.Entries)
	for i := range s.ops {
		switch at := s.page.Entries[s.entry[i]].Position(); {
		case s.entry[i] >= passed:
		case at.Value.Compare(rd.unsure.upTo.Value) > 0:
			over = true
		case !isCarry(&s.ops[i]):
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
func (u *unsure) add(s *scratch) {
	known := u.upTo
	for i := range s.doubted {
		op := &s.ops[i]
		if !s.doubted[i] || op.Outcome != store.Unknown || isCarry(op) {
			continue
		}
		at := op.Entry.Position()
		if known.IsZero() || at.Value.Compare(known.Value) > 0 { // otherwise it is counted already
			u.tried++
			u.upTo = at
		}
	}
}

// sawDue tells the watchdog when the oldest entity left in the range became due, as far
// as that is known.
func (v *visit) sawDue(oldest time.Time, deleted int64) {
	if v.auditing {
		return
	}
	v.c.sawDue(v.start.cursor.Key(), oldest, deleted)
}

func (c *collector) sawDue(key string, oldest time.Time, deleted int64) {
	c.target.Watchdog.Saw(c.cfg.Now(), key, metrics.Look{OldestDue: oldest, Disposed: deleted, Held: !c.cfg.Apply ||
		c.heldBy() != ""})
}

// A keptSet remembers entries of entities that a visit has met and keeps, so that it neither
// tries them again nor counts them as left to be carried. An entity that gets another expiry
// has another entry, which is tried. Beyond a thousand the set forgets: any more keep their
// generation alive, as suspects do.
type keptSet struct {
	refused      map[store.Position]bool
	mistyped     map[string]bool // by key: an entity may have several entries, and counts once
	suspectsRead int             // how many that look suspect were read to make sure
	compared     Comparison      // of the page at hand; whether it is active holds for the visit
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

// slowAfter is how long one call may take before its range belongs to the slow lane.
const slowAfter = time.Second

// outcome returns the outcome of a step that ends with this pause.
func (p *pause) outcome(now time.Time) outcome {
	if p.wait <= 0 {
		return outcome{state: ready}
	}
	why := p.why
	if why == "" {
		why = throttle.ReasonPushBack
	}
	return outcome{state: waiting, wake: now.Add(p.wait), why: why}
}
