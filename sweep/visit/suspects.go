package visit

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/dispose"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/step"
)

// mostSuspectsRead is how many suspects of one visit are read to make sure: they are few,
// unless somebody has restored old data.
const mostSuspectsRead = store.MaxPage

// checkSuspects reads the entities of a page that look suspect, if the store's index may
// show something else than they hold: an element of a list as a plain value, a blob as a
// text, a number as a timestamp. Those are malformed. Nobody else reads a suspect, since
// it is not deleted. It is no failure if they cannot be read: then they count as suspect.
func (v *visit) checkSuspects(t step.Turn, rd *reading) {
	c := v.c
	if _, hides := c.Cfg.Store.(store.Guarder); !hides || c.Target.SingleValued || v.decide.Carry != nil {
		return // a carry checks them itself
	}
	var ops []store.Op
	for _, e := range t.Scratch.Page.Entries {
		if v.kept.suspectsRead+len(ops) < mostSuspectsRead && v.decide.Decide(e.Value) == index.Suspect && !v.kept.has(e) {
			ops = append(ops, store.Op{Entry: e})
		}
	}
	for most := c.Guards.Most(); len(ops) > 0; {
		batch := ops[:min(most, len(ops))]
		ops = ops[len(batch):]
		v.kept.suspectsRead += len(batch)
		b := store.Batch{Query: rd.reader.Query(), Ops: batch, DryRun: true}
		b.Query.Target.Guard = store.GuardLookup
		ctx, cancel := context.WithTimeout(t.Ctx, dispose.WriteTimeout)
		err := c.Cfg.Store.Dispose(ctx, &b)
		cancel()
		if err != nil {
			c.Log.DebugContext(t.Ctx, "cannot read entities that look suspect", "range", v.hold.Key(), "error", err)
			return
		}
		for i := range batch {
			if op := &batch[i]; v.isMistyped(op) {
				v.keepMistyped(op)
			}
		}
	}
}

// keepMistyped keeps an entity that is malformed, and counts it once, even if the index
// shows it at several places.
func (v *visit) keepMistyped(op *store.Op) {
	if v.kept.mistyped[op.Entry.Key] {
		op.Outcome = store.Kept
	} else {
		v.keep(op, index.Malformed)
	}
	v.kept.add(op.Entry, false)
}

// isMistyped reports whether an entity holds another type of value than its index entry
// shows: it had that all along.
func (v *visit) isMistyped(op *store.Op) bool {
	return op.Outcome == store.Changed && op.Known && op.Now.Type != store.Missing && op.Now.Type != v.c.Target.Type
}
