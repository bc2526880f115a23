package visit

import (
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/pace"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/spend"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/throttle"
)

// A reading is one read of a span within a visit, over many steps: from a range's
// cursor, from its start, or of a span that should be empty.
type reading struct {
	reader    index.Reader
	fromStart bool // it may meet any number of tombstones, so its failures say nothing about the pace
	done      bool
	pastDue   bool // all due entities were disposed of: the rest is carried
	stuck     bool // an entity of it waits aside: what is reached is not saved
	sampling
	failing failing
	window  time.Duration // the next claim begins with it; the reader itself may be reading ahead
	// reached is a position before which everything is disposed of, or waits aside.
	reached store.Position
	save    func(c *cursor.Cursor, to store.Position)
	unsure  unsure
	lack    spend.Shortfall // what it could not delete by the breaker's budget
}

// A sampling says how far a dry run reads.
type sampling struct {
	counted   bool // it has counted what follows the first page
	uncounted bool // it cannot count that, and reads it
}

// page reads one page of at most the given number of entries, decides about each, disposes
// of those that are due, and moves on over the entries that are disposed of. After an error
// the rest of the page is read again.
func (v *visit) page(t step.Turn, rd *reading, most int) error {
	more, err := v.read(t, rd, most)
	if err != nil {
		return v.readFailed(t, rd, err)
	}
	return v.work(t, rd, more)
}

// read reads one page, or takes the one that was read ahead, and counts it.
func (v *visit) read(t step.Turn, rd *reading, most int) (more bool, err error) {
	s, c := t.Scratch, v.c
	more, read, took, err := s.Ahead.Take(&s.Page)
	if !read {
		began := c.Cfg.Now()
		more, err = rd.reader.Next(t.Ctx, &s.Page, most)
		took = c.Cfg.Now().Sub(began)
	}
	if !rd.fromStart { // reads from the start are in the slow lane anyway
		s.Longest = max(s.Longest, took)
	}
	if err != nil {
		return false, err
	}
	rd.failing = failing{}
	c.Cfg.Metrics.Query(c.Target.Name, took)
	c.Tally.Counts.Scanned.Add(int64(len(s.Page.Entries)))
	c.Cfg.Progress.Scanned.Add(int64(len(s.Page.Entries)))
	c.Tally.Counts.Pages.Add(1)
	c.Tally.SteppedOver(s.Page.SteppedOver, rd.fromStart)
	if v.pacer != nil && !rd.fromStart {
		pace.JudgePage(v.pacer, &s.Page, took)
	}
	return more, nil
}

// work disposes of the page at hand. More says that pages follow.
func (v *visit) work(t step.Turn, rd *reading, more bool) error {
	s := t.Scratch
	if r, ok := rd.reader.(*shardquery.Reader); ok {
		rd.window = r.NextWindow()
	}
	v.checkSuspects(t, rd)
	if err := v.compare(t); err != nil {
		s.Ahead.Drop()
		rd.reader.Seek(rd.reached)
		return v.readFailed(t, rd, err)
	}
	v.collect(s, rd)
	if s.Ahead.Reader = nil; more && v.readsAhead(t, rd) {
		s.Ahead.Reader, s.Ahead.Most = rd.reader, v.c.Target.Page
	}
	err := v.disposeOps(t, rd, rd.reader.Query())
	reach := len(s.Page.Entries)
	if i := s.FirstOpen(); i < len(s.Ops) {
		reach = s.Entry[i]
	}
	if i := s.FirstOpen(); i < len(s.Ops) && s.Ops[i].IsCarry() && v.c.Index.Decide(s.Ops[i].Entry.Value, v.horizon) == index.Early {
		rd.pastDue = true // entries come in the order in which they expire
	}
	v.account(s, rd)
	rd.unsure.add(s)
	v.recognize(s, rd, reach, more)
	if reach > 0 {
		v.advance(rd, s.Page.Entries[reach-1].Position())
	} else if len(s.Page.Entries) == 0 && more {
		v.advance(rd, rd.reader.Position()) // the window had only tombstones
	}
	if err != nil || reach < len(s.Page.Entries) {
		s.Ahead.Drop()
		rd.reader.Seek(rd.reached)
	} else if !more {
		if rd.done = true; rd != v.readings[0] && !rd.stuck && !v.auditing &&
			!v.start.need.Stage.IsSealed() {
			v.update(func(c *cursor.Cursor) { rd.save(c, rd.reached) })
		}
	} else if v.samples(s, rd) {
		return v.countRest(t, rd)
	}
	return err
}

// collect decides about each entry of the page, and lists the ops.
func (v *visit) collect(s *step.Scratch, rd *reading) {
	s.Ops, s.Entry, s.Doubted, s.Judged = s.Ops[:0], s.Entry[:0], s.Doubted[:0], s.Judged[:0]
	for i := range s.Page.Entries {
		e := s.Page.Entries[i]
		s.Judged = append(s.Judged, v.c.Index.Judge(e.Value, v.horizon))
		j := s.Judged[i].Judgement
		switch {
		case v.kept.has(e), v.waitsAside(rd, e.Key): // it was tried in this visit
			continue
		case v.kept.compared.Kept[e.Key]:
			continue
		case j == index.Due:
			s.Ops = append(s.Ops, store.Op{Entry: e, Premise: v.kept.compared.Premises[e.Key]})
		case v.carry != nil && (j == index.Early || j == index.Suspect):
			s.Ops = append(s.Ops, store.Op{Entry: e, To: e.Value}) // stamped when it is written
		default: // kept; if the index is behind, the entity comes again in its time
			continue
		}
		s.Entry = append(s.Entry, i)
	}
}

// advance moves a reading on, and the record with it if nothing waits aside.
func (v *visit) advance(rd *reading, to store.Position) {
	rd.reached = to
	v.checkpoint(rd)
}

// checkpoint saves the position of a reading, unless an entity of it waits aside.
func (v *visit) checkpoint(rd *reading) {
	if !rd.stuck && !rd.reached.IsZero() {
		v.update(func(c *cursor.Cursor) { rd.save(c, rd.reached) })
	}
}

// disposeOps disposes of the ops of the page, batch by batch.
func (v *visit) disposeOps(t step.Turn, rd *reading, q store.Query) error {
	s := t.Scratch
	for tries := 0; ; {
		n, err := v.batchSize(s)
		if err != nil {
			return err
		}
		batch := s.Pick(n)
		if batch == nil {
			return nil
		}
		if part := v.c.Budget.Covered(&v.Asker, batch); part < len(batch) && v.claim != nil {
			batch = s.Pick(part)
		}
		q.Target.Guard = v.c.Guards.Next(v.start.cursor.Key(), batch)
		err = v.dispose(t, q, batch, rd.fromStart)
		if err == nil {
			tries = 0
			v.c.Guards.WentWell(v.start.cursor.Key(), q.Target.Guard)
			v.size.wentWell(len(batch), v.c.Target.Page)
			v.failing = failing{}
		} else if err = v.absorb(t, rd, q, batch, err, tries); err == nil {
			tries++
		}
		s.PutBack(batch)
		s.ResolveDoubts()
		if err == nil {
			err = v.settleChanged(t, rd, q)
		}
		if err != nil {
			return err
		}
		if (v.size.part > 0 || v.c.Guards.Most() < v.c.Target.Page) && t.Over() {
			return &throttle.Pause{} // the next step continues with the parts
		}
	}
}

// batchSize returns how many ops the next call may have.
func (v *visit) batchSize(s *step.Scratch) (n int, err error) {
	n = min(v.size.next(v.c.Target.Page), v.c.Guards.Most())
	if v.carry == nil || v.claim == nil {
		return n, nil
	}
	open := s.Pick(n)
	if open == nil {
		return n, nil
	}
	return v.carry.ready(open)
}

// unsureTries is how often a batch is tried whose outcome is not known.
const unsureTries = 3

// absorb handles the error of a batch. It returns nil if the step continues with the rest
// of the batch. If the batch was contended, too large, too slow, or had an entity that the
// store refuses, the rest is tried in smaller batches, so that one such entity blocks
// only itself.
func (v *visit) absorb(t step.Turn, rd *reading, q store.Query, batch []store.Op, err error, tries int) error {
	if err := v.fatal(t, err); err != nil {
		return err
	}
	contended, single := errors.Is(err, store.ErrContention), len(batch) == 1
	if v.size.part == 0 && tries == 0 { // retries and parts of a batch are no new push-back
		v.slowDown(err)
	}
	switch {
	case contended && v.c.Guards.Retries(v.start.cursor.Key(), q.Target.Guard, batch):
		return nil
	case contended && single:
		return v.settleContended(t, rd, q, &batch[0])
	case store.MayBeOfOneEntity(err) && single:
		return v.deferEntity(t, rd, &batch[0], err)
	case contended, store.MayBeOfOneEntity(err):
		v.size.halve(len(batch), !contended)
		return nil
	case store.TookTooLong(err) && !single:
		v.size.halve(len(batch), true)
	}
	if store.MayHaveHappened(err) {
		if t.Scratch.Doubt(); tries+1 < unsureTries {
			return nil
		}
	}
	return v.failing.pauseOrFail(t, v.c.Cfg.Now(), err)
}

// fatal returns the error if it ends the step: a pause, a lost lease, the end of
// the process, or an error against which retries do not help. Otherwise it returns nil.
func (v *visit) fatal(t step.Turn, err error) error {
	var later *throttle.Pause
	switch {
	case errors.As(err, &later), errors.Is(err, background.ErrStopped):
		return err
	case v.claim != nil && v.claim.Err() != nil:
		return v.claim.Err()
	case t.Work.Err() != nil:
		return background.ErrStopped
	}
	v.c.Cfg.Metrics.Error(v.c.Target.Name, metrics.OpCommit, err)
	if store.Transient(err) || store.MayBeOfOneEntity(err) {
		v.c.Log.Failed("delete", v.start.cursor.Key(), err)
		return nil
	}
	return err
}

// slowDown lowers the pace after an error that is push-back.
func (v *visit) slowDown(err error) {
	if v.pacer != nil && store.Transient(err) && v.pacer.PushBack(throttle.ReasonPushBack) {
		v.update(func(c *cursor.Cursor) { v.c.Pacing.Save(c, v.pacer) })
	}
}

// settleContended settles an entity that is contended even in a batch of its own. If there
// are no tokens, it puts the entity aside: the next page would meet it again.
func (v *visit) settleContended(t step.Turn, rd *reading, q store.Query, op *store.Op) error {
	err := v.settle(t, rd, q, op)
	if later := (*throttle.Pause)(nil); errors.As(err, &later) {
		return v.deferEntity(t, rd, op, store.ErrContention)
	}
	return err
}

// settleChanged handles the entities that had changed since the scan: those that
// are not due any more are disposed of, the others are settled one by one.
func (v *visit) settleChanged(t step.Turn, rd *reading, q store.Query) error {
	for i := range t.Scratch.Ops {
		op := &t.Scratch.Ops[i]
		if op.Outcome != store.Changed {
			continue
		}
		if v.isMistyped(op) {
			// It had been that all along: a projection shows one element of a list,
			// a blob as a text, and a timestamp as an integer.
			v.keepMistyped(op)
			continue
		}
		if op.Known {
			if j, do := v.judge(op.Entry.Key, op.Now); do == store.Keep {
				v.c.Tally.Counts.Conflicts.Add(1)
				v.keep(op, j)
				continue
			}
		}
		if err := v.settle(t, rd, q, op); err != nil {
			return err
		}
		v.c.Tally.Counts.Conflicts.Add(1)
	}
	return nil
}

// judge decides about an expiry that was read in the entity itself. The expiry may lie in
// another range by now; if no sweep reads its generation, the entity is kept.
func (v *visit) judge(key string, value store.Value) (index.Judgement, store.Verdict) {
	j := v.c.Index.Decide(value, v.horizon)
	if j == index.Due && v.kept.compared.Active {
		return index.Early, store.Keep // it changed, and was not compared: the next read from the start meets it
	}
	if !v.c.Rules.Form.HasGenerations() {
		if j == index.Due {
			return j, store.Delete
		}
		return j, store.Keep
	}
	k, err := expirykey.Parse(value.Text)
	if value.Type != store.Text || err != nil {
		return j, store.Keep // never, or malformed
	}
	mine := v.carry != nil && v.carry.isSource(k.Generation)
	// What lies in the visit's own range is deleted though the record no longer lists its generation,
	// as what a page shows of it: else the cursor would pass it.
	if j == index.Due && (mine || k.Generation == v.r.Generation || v.c.Lives(k.Generation)) {
		return j, store.Delete
	}
	if mine && (j == index.Early || j == index.Suspect) {
		if to, err := v.carry.key(key, k.Expires); err == nil {
			return j, store.CarryTo(store.TextValue(to.String()))
		}
	}
	if j == index.Due {
		j = index.Early
	}
	return j, store.Keep
}

// keep disposes of an op by keeping its entity, and counts why.
func (v *visit) keep(op *store.Op, j index.Judgement) {
	op.Outcome = store.Kept
	switch j {
	case index.Malformed:
		v.c.Tally.Counts.Malformed.Add(1)
		v.giveExample(site.KeptMalformed, op.Entry)
	case index.Suspect:
		v.c.Tally.Counts.Suspect.Add(1)
	case index.Never, index.Early, index.Due: // not this visit's any more
	}
}

// settle disposes of one entity in a transaction of its own, by the expiry that it
// has then. One try, and if that is contended the entity waits aside.
func (v *visit) settle(t step.Turn, rd *reading, q store.Query, op *store.Op) error {
	if !v.c.Cfg.Apply {
		op.Outcome = store.Kept // it changes: a later sweep will see it
		return nil
	}
	outcome, j, err := v.trySettle(t, q, op)
	if err == nil {
		v.settled(op, outcome, j, false)
		return nil
	}
	if err := v.fatal(t, err); err != nil {
		return err
	}
	if errors.Is(err, store.ErrContention) || store.MayBeOfOneEntity(err) || store.MayHaveHappened(err) {
		return v.deferEntity(t, rd, op, err)
	}
	return v.failing.pauseOrFail(t, v.c.Cfg.Now(), err)
}

func (v *visit) trySettle(t step.Turn, q store.Query, op *store.Op) (outcome store.Outcome, j index.Judgement, err error) {
	outcome, err = v.writer.settle(t, q, op, func(value store.Value) (do store.Verdict) {
		j, do = v.judge(op.Entry.Key, value)
		return do
	})
	return outcome, j, err
}

// settled notes what became of an entity that was settled. Unsure says that an
// earlier try may have deleted it.
func (v *visit) settled(op *store.Op, outcome store.Outcome, j index.Judgement, unsure bool) {
	op.Outcome = outcome
	switch {
	case outcome == store.Kept:
		v.keep(op, j)
	case outcome == store.Gone && unsure:
		op.Outcome = store.Deleted
	}
}

// readFailed handles the error of a query. A later step repeats the query, or asks for
// less.
func (v *visit) readFailed(t step.Turn, rd *reading, err error) error {
	if t.Ctx.Err() != nil {
		return background.ErrStopped
	}
	v.c.Cfg.Metrics.Error(v.c.Target.Name, metrics.OpScan, err)
	if !rd.fromStart {
		v.slowDown(err)
	}
	if isShrunk(err) {
		return &throttle.Pause{}
	}
	if !store.Transient(err) {
		return err
	}
	v.c.Log.Failed("read", v.start.cursor.Key(), err)
	return rd.failing.pauseOrFail(t, v.c.Cfg.Now(), err)
}

// Patience is how long a failing call is repeated before its range counts as failed.
const Patience = 2 * time.Minute

// A failing is a call that fails repeatedly with transient errors.
type failing struct {
	since time.Time
	tries int
	until time.Time // when the call may be repeated
}

// pauseOrFail returns the pause after which the call is to be repeated, longer each
// time, up to five seconds; once patience is over it returns the error.
func (f *failing) pauseOrFail(t step.Turn, now time.Time, err error) error {
	if f.since.IsZero() {
		f.since = now
	}
	if now.Sub(f.since) > Patience {
		return err
	}
	most := min(5*time.Second, 100*time.Millisecond<<min(f.tries, 6))
	wait := most/2 + time.Duration(store.Chance(t.Ctx)*float64(most/2))
	f.tries++
	f.until = now.Add(wait)
	return &throttle.Pause{Wait: wait, Why: throttle.ReasonPushBack}
}

// A batchSize is how many entities one call may dispose of.
type batchSize struct {
	full   int // smaller than a page after calls that were too large or too slow; 0 before
	growth int // calls of that size that went well
	part   int // after a failed batch, until the rest of it is disposed of; 0 otherwise
}

const (
	// smallBatch is how far batches shrink because they are too slow.
	smallBatch = 50
	// patientBatches is how many full batches go well before the next is larger.
	patientBatches = 8
)

// next returns the size of the next batch.
func (b *batchSize) next(page int) int {
	if b.part > 0 {
		return min(b.part, b.whole(page))
	}
	return b.whole(page)
}

// whole returns the size of a batch if no part of a failed one is left.
func (b *batchSize) whole(page int) int {
	if b.full > 0 {
		return min(b.full, page)
	}
	return page
}

// halve makes the next batches half as large as the one that failed: for the rest of this
// page and, if the size was the cause, for later pages, too.
func (b *batchSize) halve(n int, size bool) {
	b.part = max(1, n/2)
	if size {
		b.full, b.growth = max(smallBatch, n/2), 0
	}
}

// wentWell lets batches grow again.
func (b *batchSize) wentWell(n, page int) {
	if b.part > 0 {
		if b.part *= 2; b.part >= b.whole(page) {
			b.part = 0
		}
		return
	}
	if b.full == 0 || n < b.full {
		return
	}
	if b.growth++; b.growth >= patientBatches {
		b.growth = 0
		if b.full += max(1, b.full/4); b.full >= page {
			b.full = 0
		}
	}
}
