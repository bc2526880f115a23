package plan

import (
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// The records of a plan say what was done to each range: by the view, by what this process
// has written since, and by the passes over sealed generations.
type records struct {
	rules   Rules
	view    *View
	book    Book
	opened  map[int]time.Time // of the live generations
	count   int64             // in the revision of the target record
	lookups *atomic.Int64     // of cursors; another goroutine may show the plan at the same time
}

func newRecords(rules Rules, view *View, book Book, lookups *atomic.Int64) *records {
	rec := &records{rules: rules, view: view, book: book, lookups: lookups,
		opened: make(map[int]time.Time, len(view.Record.Generations)),
		count:  store.RevisionCount(view.Record.Revision)}
	for _, g := range view.Record.Generations {
		rec.opened[g.Number] = g.Opened
	}
	return rec
}

// Cursor returns the cursor of a range: that of its last claim here, or the view's.
func (rec *records) Cursor(r shardquery.Range) cursor.Cursor {
	opened, ok := rec.opened[r.Generation]
	if !ok {
		opened = rec.view.Record.Created
	}
	return rec.at(rec.rules.ID(r), opened)
}

// AuditCursor returns the cursor of a namespace's audit.
func (rec *records) AuditCursor(namespace string) cursor.Cursor {
	return rec.at(rec.rules.auditID(namespace), rec.view.Record.Created)
}

// at returns a cursor, and what the pass over its generation says of its range: a range
// without a record was empty when the pass began or later.
func (rec *records) at(id cursor.ID, opened time.Time) cursor.Cursor {
	var c cursor.Cursor
	rec.recorded(&c, id, opened)
	seal, ok := rec.SealOf(c.Generation)
	if !ok || rec.hasRecord(c.ID) || !seal.Covers(c.Namespace, time.Time{}) {
		return c
	}
	c.Stock.Emptied, c.Rewind.Done, c.Swept = seal.First, seal.Began, seal.Began.Add(-rec.rules.Retention)
	return c
}

// recorded sets a cursor by its last claim here, or by its record alone.
func (rec *records) recorded(c *cursor.Cursor, id cursor.ID, opened time.Time) {
	rec.lookups.Add(1)
	scope := rec.rules.Scope
	scope.Opened = opened
	if packed, own := rec.book.Own[id]; own {
		*c = packed.Cursor(id).In(scope, rec.rules.Form.Type())
	} else {
		*c = rec.view.Cursors.Get(id, scope, rec.rules.Form.Type())
	}
	if c.Seen.IsZero() {
		c.Seen = rec.view.CursorsSent
	}
	c.TargetRevision = rec.count
}

// hasRecord reports whether a range has a cursor record, or would have one without a dry run.
func (rec *records) hasRecord(id cursor.ID) bool {
	_, own := rec.book.Own[id]
	return own || rec.view.Cursors.Has(id)
}

// SealOf returns the view's seal of a live generation; ok is false if the generation has
// none, or if it is of an earlier generation with the same number.
func (rec *records) SealOf(number int) (seal cursor.Seal, ok bool) {
	seal, ok = rec.view.Seals[number]
	return seal, ok && seal.Is(number, rec.opened[number], rec.rules.Scope.Kind, rec.rules.Scope.Property)
}

// Lookups returns how many cursors this plan and the plans before it have looked up since
// the ranges were found. Tests check by it that work depends only on what has changed.
func (rec *records) Lookups() int { return int(rec.lookups.Load()) }
