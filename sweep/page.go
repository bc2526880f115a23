package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A pageReader reads a span of an index page by page, one query a call.
type pageReader interface {
	Next(ctx context.Context, page *store.Page, most int) (more bool, err error)
	Query() store.Query       // that read the last page
	Position() store.Position // everything before was read
	Seek(store.Position)      // goes back there
}

// A reading is one read of a span within a visit, over many steps: from a range's
// cursor, from its start, or of a span that should be empty.
type reading struct {
	reader    pageReader
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
	lack    lack // what it could not delete by the breaker's budget
}

// A sampling says how far a dry run reads.
type sampling struct {
	counted   bool // it has counted what follows the first page
	uncounted bool // it cannot count that, and reads it
}

// page reads one page of at most the given number of entries, decides about each, disposes
// of those that are due, and moves on over the entries that are disposed of. After an error
// the rest of the page is read again.
func (v *visit) page(t turn, rd *reading, most int) error {
	more, err := v.read(t, rd, most)
	if err != nil {
		return v.readFailed(t, rd, err)
	}
	return v.work(t, rd, more)
}

// read reads one page, or takes the one that was read ahead, and counts it.
func (v *visit) read(t turn, rd *reading, most int) (more bool, err error) {
	s, c := t.scratch, v.c
	more, read, took, err := s.ahead.take(&s.page)
	if !read {
		began := c.cfg.Now()
		more, err = rd.reader.Next(t.ctx, &s.page, most)
		took = c.cfg.Now().Sub(began)
	}
	if !rd.fromStart { // reads from the start are in the slow lane anyway
		s.longest = max(s.longest, took)
	}
	if err != nil {
		return false, err
	}
	rd.failing = failing{}
	c.cfg.Metrics.Query(c.target.Name, took)
	c.tally.counts.Scanned.Add(int64(len(s.page.Entries)))
	c.cfg.Progress.Scanned.Add(int64(len(s.page.Entries)))
	c.tally.counts.Pages.Add(1)
	c.tally.steppedOver(s.page.SteppedOver, rd.fromStart)
	if v.pacer != nil && !rd.fromStart {
		judgePage(v.pacer, &s.page, took)
	}
	return more, nil
}

// work disposes of the page at hand. More says that pages follow.
func (v *visit) work(t turn, rd *reading, more bool) error {
	s := t.scratch
	if r, ok := rd.reader.(*shardquery.Reader); ok {
		rd.window = r.NextWindow()
	}
	v.checkSuspects(t, rd)
	if err := v.compare(t); err != nil {
		s.ahead.drop()
		rd.reader.Seek(rd.reached)
		return v.readFailed(t, rd, err)
	}
	v.collect(s, rd)
	if s.ahead.reader = nil; more && v.readsAhead(t, rd) {
		s.ahead.reader, s.ahead.most = rd.reader, v.c.target.Page
	}
	err := v.disposeOps(t, rd, rd.reader.Query())
	reach := len(s.page.Entries)
	if i := s.firstOpen(); i < len(s.ops) {
		reach = s.entry[i]
	}
	if i := s.firstOpen(); i < len(s.ops) && isCarry(&s.ops[i]) && v.c.decide(s.ops[i].Entry.Value, v.horizon) == early {
		rd.pastDue = true // entries come in the order in which they expire
	}
	v.account(s, rd)
	rd.unsure.add(s)
	v.recognize(s, rd, reach, more)
	if reach > 0 {
		v.advance(rd, s.page.Entries[reach-1].Position())
	} else if len(s.page.Entries) == 0 && more {
		v.advance(rd, rd.reader.Position()) // the window had only tombstones
	}
	if err != nil || reach < len(s.page.Entries) {
		s.ahead.drop()
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
func (v *visit) collect(s *scratch, rd *reading) {
	s.ops, s.entry, s.doubted, s.judged = s.ops[:0], s.entry[:0], s.doubted[:0], s.judged[:0]
	for i := range s.page.Entries {
		e := s.page.Entries[i]
		s.judged = append(s.judged, v.c.judge(e.Value, v.horizon))
		j := s.judged[i].judgement
		switch {
		case v.kept.has(e), v.waitsAside(rd, e.Key): // it was tried in this visit
			continue
		case v.kept.compared.Kept[e.Key]:
			continue
		case j == due:
			s.ops = append(s.ops, store.Op{Entry: e, Premise: v.kept.compared.Premises[e.Key]})
		case v.carry != nil && (j == early || j == suspect):
			s.ops = append(s.ops, store.Op{Entry: e, To: e.Value}) // stamped when it is written
		default: // kept; if the index is behind, the entity comes again in its time
			continue
		}
		s.entry = append(s.entry, i)
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
func (v *visit) disposeOps(t turn, rd *reading, q store.Query) error {
	s := t.scratch
	for tries := 0; ; {
		n, err := v.batchSize(s)
		if err != nil {
			return err
		}
		batch := s.pick(n)
		if batch == nil {
			return nil
		}
		if part := v.c.budget.covered(&v.writer, batch); part < len(batch) && v.claim != nil {
			batch = s.pick(part)
		}
		q.Target.Guard = v.c.guards.next(v.start.cursor.Key(), batch)
		err = v.dispose(t, q, batch, rd.fromStart)
		if err == nil {
			tries = 0
			v.c.guards.wentWell(v.start.cursor.Key(), q.Target.Guard)
			v.size.wentWell(len(batch), v.c.target.Page)
			v.failing = failing{}
		} else if err = v.absorb(t, rd, q, batch, err, tries); err == nil {
			tries++
		}
		s.putBack(batch)
		s.resolveDoubts()
		if err == nil {
			err = v.settleChanged(t, rd, q)
		}
		if err != nil {
			return err
		}
		if (v.size.part > 0 || v.c.guards.most() < v.c.target.Page) && t.over() {
			return &pause{} // the next step continues with the parts
		}
	}
}

// batchSize returns how many ops the next call may have.
func (v *visit) batchSize(s *scratch) (n int, err error) {
	n = min(v.size.next(v.c.target.Page), v.c.guards.most())
	if v.carry == nil || v.claim == nil {
		return n, nil
	}
	open := s.pick(n)
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
func (v *visit) absorb(t turn, rd *reading, q store.Query, batch []store.Op, err error, tries int) error {
	if err := v.fatal(t, err); err != nil {
		return err
	}
	contended, single := errors.Is(err, store.ErrContention), len(batch) == 1
	if v.size.part == 0 && tries == 0 { // retries and parts of a batch are no new push-back
		v.slowDown(err)
	}
	switch {
	case contended && v.c.guards.retries(v.start.cursor.Key(), q.Target.Guard, batch):
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
		if t.scratch.doubt(); tries+1 < unsureTries {
			return nil
		}
	}
	return v.failing.pauseOrFail(t, v.c.cfg.Now(), err)
}

// fatal returns the error if it ends the step: a pause, a lost lease, the end of
// the process, or an error against which retries do not help. Otherwise it returns nil.
func (v *visit) fatal(t turn, err error) error {
	var later *pause
	switch {
	case errors.As(err, &later), errors.Is(err, errStopped):
		return err
	case v.claim != nil && v.claim.Err() != nil:
		return v.claim.Err()
	case t.work.Err() != nil:
		return errStopped
	}
	v.c.cfg.Metrics.Error(v.c.target.Name, metrics.OpCommit, err)
	if store.Transient(err) || store.MayBeOfOneEntity(err) {
		v.c.log.failed("delete", v.start.cursor.Key(), err)
		return nil
	}
	return err
}

// slowDown lowers the pace after an error that is push-back.
func (v *visit) slowDown(err error) {
	if v.pacer != nil && store.Transient(err) && v.pacer.PushBack(throttle.ReasonPushBack) {
		v.update(func(c *cursor.Cursor) { v.c.pacing.save(c, v.pacer) })
	}
}

// settleContended settles an entity that is contended even in a batch of its own. If there
// are no tokens, it puts the entity aside: the next page would meet it again.
func (v *visit) settleContended(t turn, rd *reading, q store.Query, op *store.Op) error {
	err := v.settle(t, rd, q, op)
	if later := (*pause)(nil); errors.As(err, &later) {
		return v.deferEntity(t, rd, op, store.ErrContention)
	}
	return err
}

// settleChanged handles the entities that had changed since the scan: those that
// are not due any more are disposed of, the others are settled one by one.
func (v *visit) settleChanged(t turn, rd *reading, q store.Query) error {
	for i := range t.scratch.ops {
		op := &t.scratch.ops[i]
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
				v.c.tally.counts.Conflicts.Add(1)
				v.keep(op, j)
				continue
			}
		}
		if err := v.settle(t, rd, q, op); err != nil {
			return err
		}
		v.c.tally.counts.Conflicts.Add(1)
	}
	return nil
}

// judge decides about an expiry that was read in the entity itself. The expiry may lie in
// another range by now; if no sweep reads its generation, the entity is kept.
func (v *visit) judge(key string, value store.Value) (judgement, store.Verdict) {
	j := v.c.decide(value, v.horizon)
	if j == due && v.kept.compared.Active {
		return early, store.Keep // it changed, and was not compared: the next read from the start meets it
	}
	if !v.c.rules.Form.HasGenerations() {
		if j == due {
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
	if j == due && (mine || k.Generation == v.r.Generation || v.c.lives(k.Generation)) {
		return j, store.Delete
	}
	if mine && (j == early || j == suspect) {
		if to, err := v.carry.key(key, k.Expires); err == nil {
			return j, store.CarryTo(store.TextValue(to.String()))
		}
	}
	if j == due {
		j = early
	}
	return j, store.Keep
}

// keep disposes of an op by keeping its entity, and counts why.
func (v *visit) keep(op *store.Op, j judgement) {
	op.Outcome = store.Kept
	switch j {
	case malformed:
		v.c.tally.counts.Malformed.Add(1)
		v.giveExample(KeptMalformed, op.Entry)
	case suspect:
		v.c.tally.counts.Suspect.Add(1)
	case never, early, due: // not this visit's any more
	}
}

// settle disposes of one entity in a transaction of its own, by the expiry that it
// has then. One try, and if that is contended the entity waits aside.
func (v *visit) settle(t turn, rd *reading, q store.Query, op *store.Op) error {
	if !v.c.cfg.Apply {
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
	return v.failing.pauseOrFail(t, v.c.cfg.Now(), err)
}

func (v *visit) trySettle(t turn, q store.Query, op *store.Op) (outcome store.Outcome, j judgement, err error) {
	outcome, err = v.writer.settle(t, q, op, func(value store.Value) (do store.Verdict) {
		j, do = v.judge(op.Entry.Key, value)
		return do
	})
	return outcome, j, err
}

// settled notes what became of an entity that was settled. Unsure says that an
// earlier try may have deleted it.
func (v *visit) settled(op *store.Op, outcome store.Outcome, j judgement, unsure bool) {
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
func (v *visit) readFailed(t turn, rd *reading, err error) error {
	if t.ctx.Err() != nil {
		return errStopped
	}
	v.c.cfg.Metrics.Error(v.c.target.Name, metrics.OpScan, err)
	if !rd.fromStart {
		v.slowDown(err)
	}
	if isShrunk(err) {
		return &pause{}
	}
	if !store.Transient(err) {
		return err
	}
	v.c.log.failed("read", v.start.cursor.Key(), err)
	return rd.failing.pauseOrFail(t, v.c.cfg.Now(), err)
}

// patience is how long a failing call is repeated before its range counts as failed.
const patience = 2 * time.Minute

// A failing is a call that fails repeatedly with transient errors.
type failing struct {
	since time.Time
	tries int
	until time.Time // when the call may be repeated
}

// pauseOrFail returns the pause after which the call is to be repeated, longer each
// time, up to five seconds; once patience is over it returns the error.
func (f *failing) pauseOrFail(t turn, now time.Time, err error) error {
	if f.since.IsZero() {
		f.since = now
	}
	if now.Sub(f.since) > patience {
		return err
	}
	most := min(5*time.Second, 100*time.Millisecond<<min(f.tries, 6))
	wait := most/2 + time.Duration(store.Chance(t.ctx)*float64(most/2))
	f.tries++
	f.until = now.Add(wait)
	return &pause{wait, throttle.ReasonPushBack}
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
