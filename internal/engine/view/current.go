package view

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/store"
)

// A current holds the view that all others use. It alone replaces it, by a copy that has what
// was read or written since.
type current struct {
	view atomic.Pointer[plan.View]

	mu    sync.Mutex
	saved time.Time       // when a chore's write of the target record was answered last
	found []cursor.Cursor // of ranges that a dry run has found, and that have no record
}

// View returns what was read last.
func (c *current) View() *plan.View { return c.view.Load() }

// Use makes a view that was read elsewhere the present one.
func (c *current) Use(is *plan.View) { c.view.Store(is) }

// publish replaces the view by a copy that change has changed.
func (c *current) publish(change func(next *plan.View)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := *c.View()
	change(&next)
	c.view.Store(&next)
}

// takeAll takes in all cursors and seals that were read, and the target record that was read
// with them.
func (c *current) takeAll(read *plan.View) {
	c.publish(func(next *plan.View) { mergeAll(next, read) })
}

// takeRefreshed takes in what was read, with the names of the namespaces.
func (c *current) takeRefreshed(read *plan.View) {
	c.publish(func(next *plan.View) {
		mergeAll(next, read)
		next.Namespaces = read.Namespaces
	})
}

// takeRecord takes in a target record that was read.
func (c *current) takeRecord(read *plan.View) {
	c.publish(func(next *plan.View) { mergeRecord(next, read) })
}

// takeSaved takes in a target record that a chore has saved. The answer has just arrived.
func (c *current) takeSaved(rec generation.Record, sent time.Time, local func() time.Time) {
	c.publish(func(next *plan.View) {
		c.saved = local()
		mergeRecord(next, &plan.View{Record: rec, RecordSent: sent})
	})
}

// takeSome takes in some cursors that were read by their keys, and a target record.
func (c *current) takeSome(read *plan.View, ch cursor.Changes) {
	c.publish(func(next *plan.View) {
		mergeRecord(next, read)
		ch.Gone = slices.DeleteFunc(ch.Gone, func(id cursor.ID) bool {
			return slices.ContainsFunc(c.found, func(f cursor.Cursor) bool { return f.ID == id })
		})
		next.Cursors = next.Cursors.With(ch)
	})
}

// mergeAll puts what was read into a view. The target record and the cursors replace
// only older ones: the answer to an earlier read must not undo what a chore has written
// meanwhile.
func mergeAll(next, read *plan.View) {
	mergeRecord(next, read)
	if read.CursorsSent.After(next.CursorsSent) {
		next.Cursors = read.Cursors.Newer(next.Cursors, read.CursorsSent)
		next.Seals = newerSeals(next.Seals, read.Seals)
		next.CursorsSent = read.CursorsSent
	}
}

// mergeRecord puts the target record that was read into a view, if it is newer.
func mergeRecord(next, read *plan.View) {
	older := store.RevisionCount(read.Record.Revision) < store.RevisionCount(next.Record.Revision)
	if !older && !read.RecordSent.Before(next.RecordSent) {
		next.Record, next.RecordSent = read.Record, read.RecordSent
	}
}

// newerSeals returns the seals that were read, but the known one if that is newer.
func newerSeals(known, read map[int]cursor.Seal) map[int]cursor.Seal {
	all := maps.Clone(read)
	for number, seal := range known {
		if is, ok := read[number]; ok && store.RevisionCount(seal.Revision) > store.RevisionCount(is.Revision) {
			all[number] = seal
		}
	}
	return all
}

// checkAge refuses a target record that is older than the present one: somebody has put
// an old copy back. A record that was read while a chore wrote is not such a copy.
func (c *current) checkAge(read *plan.View, target string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.View()
	if store.RevisionCount(read.Record.Revision) >= store.RevisionCount(now.Record.Revision) ||
		!read.RecordSent.After(c.saved) {
		return nil
	}
	return plan.OldCopy(read.Record, target, "but had "+now.Record.Revision)
}

// TakeSeal puts the seal of a generation into the view.
func (c *current) TakeSeal(seal cursor.Seal) {
	c.changeSeals(func(all map[int]cursor.Seal) { all[seal.Generation] = seal })
}

// DropSeal takes the seal of a generation out of the view.
func (c *current) DropSeal(number int) {
	c.changeSeals(func(all map[int]cursor.Seal) { delete(all, number) })
}

func (c *current) changeSeals(change func(map[int]cursor.Seal)) {
	c.publish(func(next *plan.View) {
		all := maps.Clone(next.Seals)
		if all == nil {
			all = map[int]cursor.Seal{}
		}
		change(all)
		next.Seals = all
	})
}

// AddDryRunRange adds a range that a dry run has found, and that has no record.
func (c *current) AddDryRunRange(found cursor.Cursor) {
	c.publish(func(next *plan.View) {
		c.found = append(c.found, found)
		next.Cursors = next.Cursors.With(cursor.Changes{Read: []cursor.Cursor{found}})
	})
}

// withFound adds the ranges that a dry run has found to the cursors that were read.
func (c *current) withFound(table cursor.Table) cursor.Table {
	c.mu.Lock()
	defer c.mu.Unlock()
	return table.With(cursor.Changes{Read: slices.DeleteFunc(slices.Clone(c.found), func(f cursor.Cursor) bool {
		_, isThere := table.At(f.ID)
		return isThere
	})})
}
