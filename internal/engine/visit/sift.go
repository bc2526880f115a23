package visit

import (
	"context"

	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

// mostSuspectsRead is how many suspects of one visit are read to make sure: they are few,
// unless somebody has restored old data.
const mostSuspectsRead = store.MaxPage

// A sieve finds out, before a page is disposed of, which due entities must be kept, and which that look
// suspect are malformed.
type sieve struct {
	task         *task
	hold         *dispose.Hold
	decide       *dispose.Decider
	kept         *dispose.Kept
	account      *account
	deferred     *deferrals
	suspectsRead int // how many that look suspect were read to make sure
}

// compare finds out which due entries of the page must be kept, and counts them. Within a
// visit they count like entities that the store refuses: they keep their generation from
// retiring.
func (s *sieve) compare(t step.Turn) error {
	c := s.task.c
	// Whether it is active also holds for entities of earlier pages that wait for another try.
	s.decide.Compared = site.Comparison{Active: s.decide.Compared.Active}
	if c.Target.Compare == nil {
		return nil
	}
	var entries []store.Entry
	for _, e := range t.Scratch.Page.Entries {
		if s.decide.Decide(e.Value) == index.Due && !s.kept.Has(e) {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 && len(s.deferred.list) == 0 && s.decide.Carry == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Ctx, dispose.WriteTimeout)
	defer cancel()
	compared, err := c.Target.Compare(ctx, s.task.r.Namespace, entries)
	if err != nil {
		return err
	}
	s.decide.Compared = compared
	for _, e := range entries {
		if compared.Kept[e.Key] {
			s.kept.Refuse(e, s.hold, s.task.need.Inventory)
		}
	}
	c.Tally.Counts.Mismatch.Add(int64(len(compared.Kept)))
	return nil
}

// checkSuspects reads the entities of a page that look suspect, if the store's index may
// show something else than they hold: an element of a list as a plain value, a blob as a
// text, a number as a timestamp. Those are malformed. Nobody else reads a suspect, since
// it is not deleted. It is no failure if they cannot be read: then they count as suspect.
func (s *sieve) checkSuspects(t step.Turn, rd *reading) {
	c := s.task.c
	if _, hides := c.Cfg.Store.(store.Guarder); !hides || c.Target.SingleValued || s.decide.Carry != nil {
		return // a carry checks them itself
	}
	var ops []store.Op
	for _, e := range t.Scratch.Page.Entries {
		if s.suspectsRead+len(ops) < mostSuspectsRead && s.decide.Decide(e.Value) == index.Suspect && !s.kept.Has(e) {
			ops = append(ops, store.Op{Entry: e})
		}
	}
	for most := c.Guards.Most(); len(ops) > 0; {
		batch := ops[:min(most, len(ops))]
		ops = ops[len(batch):]
		s.suspectsRead += len(batch)
		b := store.Batch{Query: rd.reader.Query(), Ops: batch, DryRun: true}
		b.Query.Target.Guard = store.GuardLookup
		ctx, cancel := context.WithTimeout(t.Ctx, dispose.WriteTimeout)
		err := c.Cfg.Store.Dispose(ctx, &b)
		cancel()
		if err != nil {
			c.Log.DebugContext(t.Ctx, "cannot read entities that look suspect", "range", s.hold.Key(), "error", err)
			return
		}
		for i := range batch {
			if op := &batch[i]; s.account.isMistyped(op) {
				s.account.keepMistyped(op)
			}
		}
	}
}
