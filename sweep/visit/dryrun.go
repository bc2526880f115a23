package visit

import (
	"context"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
)

// giveExample names an entity that is kept. It is for dry runs.
func (v *visit) giveExample(kept string, e store.Entry) {
	keyer, ok := v.c.Cfg.Store.(store.Keyer)
	if v.c.Cfg.Apply || !ok {
		return
	}
	if id, err := keyer.ID(e.Key); err == nil {
		v.c.Tally.GiveExample(site.Example{Kept: kept, Namespace: v.r.Namespace, ID: id, Value: e.Value.String()})
	}
}

// countOnce returns how an entity that is due counts: as expired, or as behind if the next
// sweep leaves it. One that is met twice counts once: it has several shard values, or the
// audit reads its sealed generation, too, and then the sooner of both counts.
func (v *visit) countOnce(op *store.Op, isLater bool) (expired, behind int64) {
	c, again, wasLater := v.c, false, false
	switch {
	case c.Cfg.Apply:
		again = op.Outcome == store.Gone && c.Target.ShardProperty != ""
	case c.Until.IsZero(): // a daemon counts it again at each tick
	case c.Target.ShardProperty != "", v.auditing, v.start.need.Stage.IsSealed():
		wasLater, again = c.Tally.SeenEntity(v.r.Namespace, op.Entry.Key, isLater)
	}
	switch {
	case again && wasLater && !isLater:
		return 1, -1
	case again:
		return 0, 0
	case isLater:
		return 0, 1
	}
	return 1, 0
}

// isLater reports whether the next sweep leaves what is due at this place of a reading. A
// sweep that applies leaves nothing that it reads.
func (v *visit) isLater(rd *reading, at store.Value) bool {
	need := v.start.need
	switch {
	case v.c.Cfg.Apply || v.c.Cfg.FromStart || v.auditing:
		return false
	case rd == v.readings[0]:
		return need.Rests
	}
	return need.Asked || at.Compare(v.passed()) < 0
}

// passed returns the place that a read from the start, which the next sweep goes on with,
// has passed.
func (v *visit) passed() store.Value {
	under := v.hold.Before.Rewind
	if under.Began.IsZero() || under.Began.Before(v.start.need.Stage.Since) {
		return store.Value{}
	}
	return under.Position.Value
}

// samples reports whether a dry run reads no further than the page at hand of a reading,
// and counts what follows.
func (v *visit) samples(s *step.Scratch, rd *reading) bool {
	c := v.c
	if c.Cfg.Apply || c.Cfg.Exact || v.auditing || rd.uncounted || len(s.Page.Entries) == 0 {
		return false
	}
	_, counts := c.Cfg.Store.(store.Counter)
	_, isRange := rd.reader.(*shardquery.Reader)
	return counts && isRange
}

// A part is a piece of what follows in a reading, and how it counts.
type part struct {
	to  store.Value // behind its last entry
	add func(n int64)
	n   int64
}

// countRest counts what follows in a reading, in the place of reading it. If that cannot
// be counted, it is read.
func (v *visit) countRest(t step.Turn, rd *reading) error {
	c := v.c
	at, read := rd.reader.Position().Value, int64(0)
	for _, e := range t.Scratch.Page.Entries {
		if e.Position().Value == at { // the COUNT begins with this value
			read++
		}
	}
	parts, from := v.parts(rd), at
	for i := range parts {
		p := &parts[i]
		if p.to.Compare(from) <= 0 {
			continue
		}
		n, err := v.countBetween(t.Ctx, from, p.to)
		if err != nil && t.Ctx.Err() != nil {
			return background.ErrStopped
		}
		if err != nil {
			c.Log.WarnContext(t.Ctx, "cannot count what is due; reading it instead", "range", v.hold.Key(),
				"error", err)
			rd.uncounted = true
			return nil
		}
		p.n, from = max(0, n-read), p.to
		read = 0
	}
	for _, p := range parts { // only now: what cannot be counted to the end is read
		p.add(p.n)
	}
	rd.done, rd.counted = true, true
	c.Tally.Estimate()
	return nil
}

// parts lists, in order, how what a reading meets counts.
func (v *visit) parts(rd *reading) []part {
	c, r := v.c, v.r
	reader, _ := rd.reader.(*shardquery.Reader)
	_, hi := expirykey.Range(r.Generation, r.Shard)
	last := store.TextValue(hi)
	if reader.Until.Before(shardquery.LastInstant) {
		last = r.At(reader.Until.Add(r.Resolution())).Value
	}
	horizon := r.At(v.decide.Horizon.Add(r.Resolution())).Value
	if last.Compare(horizon) < 0 {
		horizon = last
	}
	carried := func(n int64) { c.Tally.Counts.Carried.Add(n) }
	suspects := carried
	if v.decide.Carry == nil {
		suspects = func(n int64) { c.Tally.Counts.Suspect.Add(n) }
	}
	behind := func(n int64) { c.Tally.FoundBehind(r, n) }
	due := behind
	if !v.isLater(rd, horizon) {
		due = func(n int64) {
			c.Tally.Counts.Expired.Add(n)
			c.Cfg.Progress.Expired.Add(n)
		}
	}
	passed := v.passed()
	if rd == v.readings[0] || horizon.Compare(passed) < 0 {
		passed = store.Value{} // it says nothing of this reading
	}
	return []part{{to: r.At(c.Index.Floor(v.decide.Horizon)).Value, add: suspects}, {to: passed, add: behind},
		{to: horizon, add: due}, {to: last, add: carried}}
}

// countBetween counts the entries of the range from one value on and before another.
func (v *visit) countBetween(ctx context.Context, from, to store.Value) (int64, error) {
	counter, ok := v.c.Cfg.Store.(store.Counter)
	if !ok {
		return 0, store.ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(ctx, index.CountTimeout)
	defer cancel()
	return counter.Count(ctx, v.c.Target.Target, v.r.Namespace, store.Span{
		From: store.Point{Shard: v.r.Value, Value: from}, To: store.Point{Shard: v.r.Value, Value: to}}, 0)
}

// noteOldest notes when the first of what is due on a page has expired.
func (v *visit) noteOldest(s *step.Scratch) {
	if !v.c.Target.Breaker.On {
		return
	}
	v.c.Tally.Mu.Lock()
	defer v.c.Tally.Mu.Unlock()
	oldest := &v.c.Tally.Preview.Oldest
	for i := range s.Ops {
		at, err := v.c.Rules.Form.Expires(s.Ops[i].Entry.Value)
		if err == nil && !s.Ops[i].IsCarry() && (oldest.IsZero() || at.Before(*oldest)) {
			*oldest = at
		}
	}
}
