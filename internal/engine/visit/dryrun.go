package visit

import (
	"context"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A dryRun counts what a visit of a dry run meets, and what it does not read.
type dryRun struct {
	task     *task
	hold     *dispose.Hold
	decide   *dispose.Decider
	readings *readings
}

// giveExample names an entity that is kept, in a dry run.
func (d *dryRun) giveExample(kept string, e store.Entry) {
	keyer, ok := d.task.c.Cfg.Store.(store.Keyer)
	if d.task.c.Cfg.Apply || !ok {
		return
	}
	if id, err := keyer.ID(e.Key); err == nil {
		d.task.c.Tally.GiveExample(site.Example{Kept: kept, Namespace: d.task.r.Namespace, ID: id, Value: e.Value.String()})
	}
}

// countOnce returns how an entity that is due counts: as expired, or as behind if the next
// sweep leaves it. One that is met twice counts once: it has several shard values, or the
// audit reads its sealed generation, too, and then the sooner of both counts.
func (d *dryRun) countOnce(op *store.Op, isLater bool) (expired, behind int64) {
	c, again, wasLater := d.task.c, false, false
	switch {
	case c.Cfg.Apply:
		again = op.Outcome == store.Gone && c.Target.ShardProperty != ""
	case c.Until.IsZero(): // a daemon counts it again at each tick
	case c.Target.ShardProperty != "", d.task.auditing, d.task.need.Stage.IsSealed():
		wasLater, again = c.Tally.SeenEntity(d.task.r.Namespace, op.Entry.Key, isLater)
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

// isLater reports whether the next sweep leaves what is due at this value of a reading. A
// sweep that applies leaves nothing that it reads.
func (d *dryRun) isLater(rd *reading, at store.Value) bool {
	need := d.task.need
	switch {
	case d.task.c.Cfg.Apply || d.task.c.Cfg.FromStart || d.task.auditing:
		return false
	case rd == d.readings.main():
		return need.Rests
	}
	return need.Asked || at.Compare(d.passed()) < 0
}

// passed returns how far a read from the start has come that the next sweep continues.
func (d *dryRun) passed() store.Value {
	under := d.hold.Before.Rewind
	if under.Began.IsZero() || under.Began.Before(d.task.need.Stage.Since) {
		return store.Value{}
	}
	return under.Position.Value
}

// samples reports whether a dry run reads no further than the page at hand of a reading,
// and counts what follows.
func (d *dryRun) samples(s *step.Scratch, rd *reading) bool {
	c := d.task.c
	if c.Cfg.Apply || c.Cfg.Exact || d.task.auditing || rd.uncounted || len(s.Page.Entries) == 0 {
		return false
	}
	_, counts := c.Cfg.Store.(store.Counter)
	_, isRange := rd.reader.(*shardquery.Reader)
	return counts && isRange
}

// A part is a piece of what follows in a reading, and how it counts.
type part struct {
	to  store.Value // past its last entry
	add func(n int64)
	n   int64
}

// countRest counts what follows in a reading, instead of reading it. If that cannot
// be counted, it is read.
func (d *dryRun) countRest(t step.Turn, rd *reading) error {
	c := d.task.c
	c.Cfg.Progress.Counting.Add(1)
	defer c.Cfg.Progress.Counting.Add(-1)
	at, read := rd.reader.Position().Value, int64(0)
	for _, e := range t.Scratch.Page.Entries {
		if e.Position().Value == at { // the COUNT begins with this value
			read++
		}
	}
	parts, from := d.parts(rd), at
	for i := range parts {
		p := &parts[i]
		if p.to.Compare(from) <= 0 {
			continue
		}
		n, err := d.countBetween(t.Ctx, from, p.to)
		if err != nil && t.Ctx.Err() != nil {
			return background.ErrStopped
		}
		if err != nil {
			c.Log.WarnContext(t.Ctx, "cannot count what is due; reading it instead", "range", d.hold.Key(),
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
func (d *dryRun) parts(rd *reading) []part {
	c, r := d.task.c, d.task.r
	reader, _ := rd.reader.(*shardquery.Reader)
	_, hi := expirykey.Range(r.Generation, r.Shard)
	last := store.TextValue(hi)
	if reader.Until.Before(shardquery.LastInstant) {
		last = r.At(reader.Until.Add(r.Resolution())).Value
	}
	horizon := r.At(d.decide.Horizon.Add(r.Resolution())).Value
	if last.Compare(horizon) < 0 {
		horizon = last
	}
	carried := func(n int64) { c.Tally.Counts.Carried.Add(n) }
	suspects := carried
	if d.decide.Carry == nil {
		suspects = func(n int64) { c.Tally.Counts.Suspect.Add(n) }
	}
	behind := func(n int64) { c.Tally.FoundBehind(r, n) }
	due := behind
	if !d.isLater(rd, horizon) {
		due = func(n int64) {
			c.Tally.Counts.Expired.Add(n)
			c.Cfg.Progress.Expired.Add(n)
		}
	}
	passed := d.passed()
	if rd == d.readings.main() || horizon.Compare(passed) < 0 {
		passed = store.Value{} // it says nothing of this reading
	}
	return []part{{to: r.At(c.Index.Floor(d.decide.Horizon)).Value, add: suspects}, {to: passed, add: behind},
		{to: horizon, add: due}, {to: last, add: carried}}
}

// countBetween counts the entries of the range from one value on and before another.
func (d *dryRun) countBetween(ctx context.Context, from, to store.Value) (int64, error) {
	counter, ok := d.task.c.Cfg.Store.(store.Counter)
	if !ok {
		return 0, store.ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(ctx, index.CountTimeout)
	defer cancel()
	return counter.Count(ctx, d.task.c.Target.Target, d.task.r.Namespace, store.Span{
		From: store.Point{Shard: d.task.r.Value, Value: from}, To: store.Point{Shard: d.task.r.Value, Value: to}}, 0)
}

// noteOldest notes the earliest expiry of what is due on a page.
func (d *dryRun) noteOldest(s *step.Scratch) {
	if !d.task.c.Target.Breaker.On {
		return
	}
	d.task.c.Tally.Mu.Lock()
	defer d.task.c.Tally.Mu.Unlock()
	oldest := &d.task.c.Tally.Preview.Oldest
	for i := range s.Ops {
		at, err := d.task.c.Rules.Form.Expires(s.Ops[i].Entry.Value)
		if err == nil && !s.Ops[i].IsCarry() && (oldest.IsZero() || at.Before(*oldest)) {
			*oldest = at
		}
	}
}
