package metrics

import (
	"container/heap"
	"container/list"
	"maps"
	"slices"
	"sync"
	"time"
)

// A Watchdog finds the ranges of one target that have due entities and make no progress.
// It reads no clock, and is safe for concurrent use.
//
// It keeps the ranges that have something due, and no others; a call costs time in
// proportion to the logarithm of their number, and Stuck to what it returns.
//
// Time between two calls counts as at most a third of the patience, so that a
// clock that jumps, or a process that slept, does not make every range look
// stuck at once. So it has to be asked more often than that, as scrapes do.
type Watchdog struct {
	Patience time.Duration // how long a range may make no progress

	mu     sync.Mutex
	last   time.Time
	passed time.Duration // the time since the first call, without the gaps that do not count
	ranges map[string]*watched
	oldest dueFirst  // all of them
	moving list.List // those that are not held: the one without progress for longest is first
}

// A watched is a range that has due entities.
type watched struct {
	name  string
	due   time.Time     // of its oldest entity
	since time.Duration // of Watchdog.passed, when it made progress last
	place int           // in Watchdog.oldest
	turn  *list.Element // in Watchdog.moving; nil if it is held
}

// A Look is what a step has found in a range.
type Look struct {
	OldestDue time.Time // when its oldest entity became due; zero if nothing is due
	Disposed  int64     // entities disposed of since the last look
	Held      bool      // paused, gated, another worker's, or a dry run: no progress is right
}

// Saw records what was found in a range. Do not call it for a range that failed: what was
// last known of it stays.
func (w *Watchdog) Saw(now time.Time, name string, l Look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passLocked(now)
	if l.OldestDue.IsZero() {
		w.forgetLocked(name)
		return
	}
	r := w.ranges[name]
	if r == nil {
		r = w.addLocked(name, l.OldestDue)
	}
	progress := l.Disposed > 0 || l.OldestDue.After(r.due)
	r.due = l.OldestDue
	heap.Fix(&w.oldest, r.place)
	switch {
	case l.Held:
		w.holdLocked(r)
	case r.turn == nil:
		r.since, r.turn = w.passed, w.moving.PushBack(r)
	case progress:
		r.since = w.passed
		w.moving.MoveToBack(r.turn)
	}
}

// Names returns the ranges that have due entities, in order.
func (w *Watchdog) Names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.ranges))
}

// Forget forgets ranges that no longer exist, or in which nothing is due.
func (w *Watchdog) Forget(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		w.forgetLocked(name)
	}
}

// Stuck returns the ranges that have had due entities and no progress for the
// patience, in order.
func (w *Watchdog) Stuck(now time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passLocked(now)
	var stuck []string
	for e := w.moving.Front(); e != nil; e = e.Next() {
		r, _ := e.Value.(*watched)
		if w.passed-r.since < w.Patience {
			break
		}
		stuck = append(stuck, r.name)
	}
	slices.Sort(stuck)
	return stuck
}

// DueSince returns when the oldest entity of a range became due; zero if it is not known to hold any.
func (w *Watchdog) DueSince(name string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.ranges[name]; r != nil {
		return r.due
	}
	return time.Time{}
}

// OldestDue returns when the oldest entity of all ranges became due, including
// ranges that were not seen for a while; zero if nothing is due.
func (w *Watchdog) OldestDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.oldest) == 0 {
		return time.Time{}
	}
	return w.oldest[0].due
}

func (w *Watchdog) addLocked(name string, due time.Time) *watched {
	if w.ranges == nil {
		w.ranges = map[string]*watched{}
	}
	r := &watched{name: name, due: due}
	w.ranges[name] = r
	heap.Push(&w.oldest, r)
	return r
}

func (w *Watchdog) forgetLocked(name string) {
	r := w.ranges[name]
	if r == nil {
		return
	}
	w.holdLocked(r)
	heap.Remove(&w.oldest, r.place)
	delete(w.ranges, name)
}

// holdLocked stops counting time for a range.
func (w *Watchdog) holdLocked(r *watched) {
	if r.turn != nil {
		w.moving.Remove(r.turn)
		r.turn = nil
	}
}

func (w *Watchdog) passLocked(now time.Time) {
	if !w.last.IsZero() {
		w.passed += min(max(0, now.Sub(w.last)), w.Patience/3+1) // three thirds are the whole
	}
	w.last = now
}

// dueFirst is a heap of ranges: the one whose oldest entity became due first is at
// the top.
type dueFirst []*watched

func (q dueFirst) Len() int           { return len(q) }
func (q dueFirst) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q dueFirst) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *dueFirst) Push(x any) {
	if r, ok := x.(*watched); ok {
		r.place = len(*q)
		*q = append(*q, r)
	}
}

// Pop implements heap.Interface.
func (q *dueFirst) Pop() any {
	n := len(*q) - 1
	r := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	return r
}
