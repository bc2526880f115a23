package view

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// recordEvery is how often the target record is read: what an operator
	// changes takes effect within that time.
	recordEvery = 5 * time.Second
	// FreshFor is how old the target record may be when a write relies on it: older
	// ones mean that three reads have failed, or that the machine has slept.
	FreshFor = 3 * recordEvery
	// ReadAtMost is the least time between two reads of the same thing, however many
	// ask for it.
	ReadAtMost = 200 * time.Millisecond
	// noRead is how soon the refresher of cursors checks its work if nobody wakes it.
	noRead = recordEvery
)

// A wanted says which records somebody asks to be read soon, and when each read is due.
type wanted struct {
	wakeRecord, wakeCursors chan struct{} // end the waits of the refreshers

	mu       sync.Mutex
	record   bool
	all      bool               // all cursors
	some     map[cursor.ID]bool // cursors to be read by their keys
	someRead time.Time          // when such cursors were read last
}

func newWanted() *wanted {
	return &wanted{wakeRecord: make(chan struct{}, 1), wakeCursors: make(chan struct{}, 1), some: map[cursor.ID]bool{}}
}

// WantCursor asks for the cursor of a range to be read soon.
func (w *wanted) WantCursor(id cursor.ID) {
	w.wantSome([]cursor.ID{id})
	background.Wake(w.wakeCursors)
}

// WantCursors asks for all cursors to be read soon.
func (w *wanted) WantCursors() { w.setAll(true); background.Wake(w.wakeCursors) }

// WantRecord asks for the target record to be read soon.
func (w *wanted) WantRecord() { w.setRecord(true); background.Wake(w.wakeRecord) }

// setRecord notes whether the target record is to be read.
func (w *wanted) setRecord(to bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record = to
}

// setAll notes whether all cursors are to be read.
func (w *wanted) setAll(to bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = to
}

// wantSome notes that cursors are to be read by their keys.
func (w *wanted) wantSome(ids []cursor.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.some[id] = true
	}
}

// beginSome notes that cursors are being read.
func (w *wanted) beginSome(ids []cursor.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.some, id)
	}
}

// endSome notes that some cursors were read because they were wanted.
func (w *wanted) endSome(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.someRead = at
}

// next lists the cursors to be read by their keys, as many as one read may have.
func (w *wanted) next() []cursor.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := slices.SortedFunc(maps.Keys(w.some), func(a, b cursor.ID) int { return strings.Compare(a.Key(), b.Key()) })
	return ids[:min(len(ids), store.MaxRecords)]
}

// recordDue returns how long until the target record is to be read.
func (w *wanted) recordDue(now time.Time, v *plan.View) time.Duration {
	staleness, _ := v.Record.Bounds()
	w.mu.Lock()
	defer w.mu.Unlock()
	due := min(recordEvery, staleness/2)
	if w.record {
		due = min(due, ReadAtMost)
	}
	return due - storeclock.Age(now, v.RecordSent)
}

// allDue returns how long until all cursors are to be read.
func (w *wanted) allDue(now time.Time, v *plan.View) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.all {
		return noRead
	}
	return min(noRead, ReadAtMost-now.Sub(v.CursorsSent))
}

// someDue returns how long until cursors are to be read by their keys.
func (w *wanted) someDue(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.some) == 0 {
		return noRead
	}
	return ReadAtMost - now.Sub(w.someRead)
}
