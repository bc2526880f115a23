package visit

import (
	"errors"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A pager reads the pages of a range, and disposes of what is due in them.
type pager struct {
	task     *task
	hold     *dispose.Hold
	decide   *dispose.Decider
	writer   *dispose.Writer
	kept     *dispose.Kept
	account  *account
	sieve    *sieve
	settler  *settler
	readings *readings
}

// page reads one page of at most the given number of entries, decides about each, disposes
// of those that are due, and moves on over the entries that are disposed of. After an error
// the rest of the page is read again.
func (p *pager) page(t step.Turn, rd *reading, most int) error {
	more, err := p.read(t, rd, most)
	if err != nil {
		return p.readFailed(t, rd, err)
	}
	return p.work(t, rd, more)
}

// read reads one page, or takes the one that was read ahead, and counts it.
func (p *pager) read(t step.Turn, rd *reading, most int) (more bool, err error) {
	s, c := t.Scratch, p.task.c
	more, read, took, err := s.Ahead.Take(&s.Page)
	if !read {
		if rd.fromStart {
			c.Cfg.Progress.FromStart.Add(1)
			defer c.Cfg.Progress.FromStart.Add(-1)
		}
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
	if p.hold.Pacer != nil && !rd.fromStart {
		pace.JudgePage(p.hold.Pacer, &s.Page, took)
	}
	return more, nil
}

// work disposes of the page at hand. More says that pages follow.
func (p *pager) work(t step.Turn, rd *reading, more bool) error {
	s := t.Scratch
	if r, ok := rd.reader.(*shardquery.Reader); ok {
		rd.window = r.NextWindow()
	}
	p.sieve.checkSuspects(t, rd)
	if err := p.sieve.compare(t); err != nil {
		s.Ahead.Drop()
		rd.back()
		return p.readFailed(t, rd, err)
	}
	p.collect(s, rd)
	if s.Ahead.Reader = nil; more && p.readsAhead(t, rd) {
		s.Ahead.Reader, s.Ahead.Most = rd.reader, p.task.c.Target.Page
	}
	err := p.disposeOps(t, rd, rd.reader.Query())
	reach := len(s.Page.Entries)
	if i := s.FirstOpen(); i < len(s.Ops) {
		reach = s.Entry[i]
	}
	if i := s.FirstOpen(); i < len(s.Ops) && s.Ops[i].IsCarry() && p.decide.Decide(s.Ops[i].Entry.Value) == index.Early {
		rd.pastDue = true // entries come in the order in which they expire
	}
	p.account.addPage(s, rd)
	rd.unsure.add(s)
	p.account.recognize(s, rd, reach, more)
	if reach > 0 {
		p.advance(rd, s.Page.Entries[reach-1].Position())
	} else if len(s.Page.Entries) == 0 && more {
		p.advance(rd, rd.reader.Position()) // the window had only tombstones
	}
	if err != nil || reach < len(s.Page.Entries) {
		s.Ahead.Drop()
		rd.back()
	} else if !more {
		if rd.done = true; rd != p.readings.main() && !rd.stuck && !p.task.auditing &&
			!p.task.need.Stage.IsSealed() {
			p.hold.Update(func(c *cursor.Cursor) { rd.save(c, rd.reached) })
		}
	} else if p.account.dry.samples(s, rd) {
		return p.account.dry.countRest(t, rd)
	}
	return err
}

// collect decides about each entry of the page, and lists the ops.
func (p *pager) collect(s *step.Scratch, rd *reading) {
	s.Ops, s.Entry, s.Doubted, s.Judged = s.Ops[:0], s.Entry[:0], s.Doubted[:0], s.Judged[:0]
	for i := range s.Page.Entries {
		e := s.Page.Entries[i]
		s.Judged = append(s.Judged, p.task.c.Index.Judge(e.Value, p.decide.Horizon))
		j := s.Judged[i].Judgement
		switch {
		case p.kept.Has(e), p.settler.deferred.has(rd, e.Key): // it was tried in this visit
			continue
		case p.decide.Compared.Kept[e.Key]:
			continue
		case j == index.Due:
			s.Ops = append(s.Ops, store.Op{Entry: e, Premise: p.decide.Compared.Premises[e.Key]})
		case p.decide.Carry != nil && (j == index.Early || j == index.Suspect):
			s.Ops = append(s.Ops, store.Op{Entry: e, To: e.Value}) // stamped when it is written
		default: // kept; if the index is behind, the entity comes again in its time
			continue
		}
		s.Entry = append(s.Entry, i)
	}
}

// advance moves a reading on, and the record with it if no entity waits for another try.
func (p *pager) advance(rd *reading, to store.Position) {
	rd.reached = to
	rd.checkpoint(p.hold)
}

// disposeOps disposes of the ops of the page, batch by batch.
func (p *pager) disposeOps(t step.Turn, rd *reading, q store.Query) error {
	s := t.Scratch
	for tries := 0; ; {
		batch, err := p.writer.Pick(t)
		if batch == nil || err != nil {
			return err
		}
		have, err := p.writer.Look(t.Ctx, batch)
		if err != nil {
			return p.readFailed(t, rd, err)
		}
		for _, i := range have {
			if err = p.settler.clearBelow(t, rd, q, &batch[i]); err != nil {
				break
			}
		}
		if s.PutBack(batch); err != nil {
			return err
		}
		if len(have) > 0 && p.task.c.Cfg.Apply { // the batch lacks those of which that takes longer
			continue
		}
		q.Target.Guard = p.task.c.Guards.Next(p.hold.Key(), batch)
		err = p.writer.Dispose(t, q, batch, rd.fromStart)
		if err == nil {
			tries = 0
			p.task.c.Guards.WentWell(p.hold.Key(), q.Target.Guard)
			if n := store.Known(batch); n < len(batch) {
				p.writer.Size.TookPart(n)
			} else {
				p.writer.Size.WentWell(n, p.task.c.Target.Page)
			}
			p.settler.failing = failing{}
		} else if err = p.absorb(t, rd, q, batch, err, tries); err == nil {
			tries++
		}
		s.PutBack(batch)
		s.ResolveDoubts()
		if err == nil {
			err = p.settler.settleChanged(t, rd, q)
		}
		if err != nil {
			return err
		}
		if (p.writer.Size.InParts() || p.task.c.Guards.Most() < p.task.c.Target.Page) && t.Over() {
			return &throttle.Pause{} // the next step continues with the parts
		}
	}
}

// unsureTries is how often a batch is tried whose outcome is not known.
const unsureTries = 3

// absorb handles the error of a batch. It returns nil if the step continues with the rest
// of the batch. If the batch was contended, too large, too slow, or had an entity that the store refuses,
// the rest is tried in smaller batches, so that one such entity blocks only itself.
func (p *pager) absorb(t step.Turn, rd *reading, q store.Query, batch []store.Op, err error, tries int) error {
	if err := p.writer.Fatal(t, err); err != nil {
		return err
	}
	contended, single, unsure := errors.Is(err, store.ErrContention), len(batch) == 1, store.MayHaveHappened(err)
	if unsure {
		t.Scratch.Doubt()
	}
	if !p.writer.Size.InParts() && tries == 0 { // retries and parts of a batch are no new push-back
		p.hold.SlowDown(err)
	}
	switch {
	case contended && p.task.c.Guards.Retries(p.hold.Key(), q.Target.Guard, batch):
		return nil
	case contended && single:
		return p.settler.settleContended(t, rd, q, &batch[0])
	case store.MayBeOfOneEntity(err) && single:
		return p.settler.deferOp(t, rd, &batch[0], err)
	case contended, store.MayBeOfOneEntity(err):
		p.writer.Size.Halve(len(batch), !contended)
		return nil
	case store.TookTooLong(err) && !single:
		p.writer.Size.Halve(len(batch), true)
	}
	if unsure && tries+1 < unsureTries {
		return nil
	}
	return p.settler.failing.pauseOrFail(t, p.task.c.Cfg.Now(), err)
}

// readFailed handles the error of a query. A later step repeats the query, or asks for
// less.
func (p *pager) readFailed(t step.Turn, rd *reading, err error) error {
	if t.Ctx.Err() != nil {
		return background.ErrStopped
	}
	p.task.c.Cfg.Metrics.Error(p.task.c.Target.Name, metrics.OpScan, err)
	if !rd.fromStart {
		p.hold.SlowDown(err)
	}
	if isShrunk(err) {
		return &throttle.Pause{}
	}
	if !store.Transient(err) {
		return err
	}
	p.task.c.Log.Failed("read", p.hold.Key(), err)
	return rd.failing.pauseOrFail(t, p.task.c.Cfg.Now(), err)
}

// readsAhead reports whether the next page is read while this one is written: pace and lane let it, and it is wanted.
func (p *pager) readsAhead(t step.Turn, rd *reading) bool {
	return (p.hold.Pacer == nil || p.hold.Pacer.Status().Unlimited) && !t.Over() && (t.Slow || !rd.fromStart) &&
		!p.account.dry.samples(t.Scratch, rd)
}
