package view

import (
	"errors"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
)

var began = time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)

func recordAt(revision string) generation.Record {
	return generation.Record{Target: "sessions", Revision: revision}
}

// The answer to a read replaces neither a record nor cursors that were written, or read, later.
func TestLateAnswersUndoNothing(t *testing.T) {
	id := cursor.ID{Target: "sessions", Generation: 1, Shard: "0000"}
	table := func(revision string) cursor.Table {
		return cursor.NewTable(cursor.Cursor{ID: id, Revision: revision})
	}
	var c current
	c.Use(&plan.View{Record: recordAt("2-a"), RecordSent: began, Cursors: table("2-a"), CursorsSent: began})
	before := c.View()
	c.takeSaved(recordAt("3-b"), began.Add(2*time.Second), func() time.Time { return began.Add(3 * time.Second) })
	if before.Record.Revision != "2-a" || c.View().Record.Revision != "3-b" {
		t.Errorf("the view was changed, not replaced: %v, %v", before.Record.Revision, c.View().Record.Revision)
	}
	for _, late := range []plan.View{
		{Record: recordAt("2-a"), RecordSent: began.Add(5 * time.Second)}, // an old copy
		{Record: recordAt("3-b"), RecordSent: began.Add(time.Second)},     // read before the write was sent
	} {
		c.takeRecord(&late)
		if v := c.View(); v.Record.Revision != "3-b" || !v.RecordSent.Equal(began.Add(2*time.Second)) {
			t.Errorf("%v of %v replaced the saved record by %v of %v", late.Record.Revision, late.RecordSent, v.Record.Revision, v.RecordSent)
		}
	}
	c.takeAll(&plan.View{Record: recordAt("4-c"), RecordSent: began.Add(6 * time.Second),
		Cursors: table("1-z"), CursorsSent: began.Add(-time.Second)})
	got, _ := c.View().Cursors.At(id)
	if got.Revision != "2-a" || c.View().Record.Revision != "4-c" {
		t.Errorf("cursors that were read earlier replaced later ones: %v, %v", got.Revision, c.View().Record.Revision)
	}
}

// A record that is older than the present one is a copy that somebody has put back, unless it was
// read while a chore wrote.
func TestOldCopiesAreRefused(t *testing.T) {
	var c current
	c.Use(&plan.View{Record: recordAt("2-a"), RecordSent: began})
	c.takeSaved(recordAt("3-b"), began.Add(time.Second), func() time.Time { return began.Add(2 * time.Second) })
	for sent, want := range map[time.Duration]error{time.Second: nil, 2 * time.Second: nil, 3 * time.Second: plan.ErrOldCopy} {
		if err := c.checkAge(&plan.View{Record: recordAt("2-a"), RecordSent: began.Add(sent)}, "sessions"); !errors.Is(err, want) {
			t.Errorf("sent after %v: %v, not %v", sent, err, want)
		}
	}
}

// The store has no record of a range that a dry run has found, so no read of records removes it.
func TestRangesOfDryRunsStay(t *testing.T) {
	var c current
	c.Use(&plan.View{})
	id := cursor.ID{Target: "sessions", Generation: 1, Shard: "0007"}
	c.AddDryRunRange(cursor.Cursor{ID: id})
	c.takeSome(&plan.View{}, cursor.Changes{Gone: []cursor.ID{id}})
	if !c.View().Cursors.Has(id) {
		t.Error("a read by keys removed it")
	}
	c.takeAll(&plan.View{Cursors: c.withFound(cursor.Table{}), CursorsSent: began})
	if !c.View().Cursors.Has(id) {
		t.Error("a read of all cursors removed it")
	}
}

// A record that was wanted is not read again and again, but is wanted again if its read failed.
func TestWantedCursors(t *testing.T) {
	w := newWanted()
	if due := w.someDue(began); due != noRead {
		t.Errorf("nothing is wanted, and due in %v", due)
	}
	id := cursor.ID{Target: "sessions", Generation: 1, Shard: "0000"}
	w.WantCursor(id)
	w.WantCursor(id)
	if ids := w.next(); len(ids) != 1 || w.someDue(began) > 0 {
		t.Errorf("%v are wanted, and due in %v", ids, w.someDue(began))
	}
	w.beginSome(w.next())
	w.endSome(began)
	if ids := w.next(); len(ids) != 0 {
		t.Errorf("%v are still wanted", ids)
	}
	w.wantSome([]cursor.ID{id})
	if due := w.someDue(began.Add(ReadAtMost / 4)); due != ReadAtMost*3/4 {
		t.Errorf("the next read is due in %v", due)
	}
}
