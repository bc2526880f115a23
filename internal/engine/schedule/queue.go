package schedule

import (
	"container/heap"
	"slices"
	"sync/atomic"
	"time"
)

// A queue is a heap of items. Each item knows its index in the heap, so that it can be
// removed without a search.
type queue struct {
	items  []*item
	number int
	before func(a, b *item) bool
}

// has reports whether an item is in the queue.
func (q *queue) has(it *item) bool { return it.places[q.number] > 0 }

// remove takes an item out of the queue, and reports whether it was in it.
func (q *queue) remove(it *item) bool {
	if !q.has(it) {
		return false
	}
	heap.Remove(q, it.places[q.number]-1)
	return true
}

// put adds an item, or moves one that is in the queue already to its present place.
func (q *queue) put(it *item) {
	if q.has(it) {
		heap.Fix(q, it.places[q.number]-1)
	} else {
		heap.Push(q, it)
	}
}

// pop removes and returns the first item.
func (q *queue) pop() *item {
	it, _ := heap.Pop(q).(*item)
	return it
}

// of lists the items of one owner.
func (q *queue) of(o owner) (list []*item) {
	for _, it := range q.items {
		if it.owner == o {
			list = append(list, it)
		}
	}
	return list
}

// slowFirst orders by how long an item has been waiting for the slow lane.
func slowFirst(a, b *item) bool {
	if !a.wanted.Equal(b.wanted) {
		return a.wanted.Before(b.wanted)
	}
	return a.isBefore(b)
}

// readyFirst orders by how long an item has been ready.
func readyFirst(a, b *item) bool {
	if !a.since.Equal(b.since) {
		return a.since.Before(b.since)
	}
	return a.isBefore(b)
}

func wakesFirst(a, b *item) bool {
	if !a.out.Wake.Equal(b.out.Wake) {
		return a.out.Wake.Before(b.out.Wake)
	}
	return a.isBefore(b)
}

// lagsMost orders by the instant up to which an item is swept, the earliest first.
func lagsMost(a, b *item) bool { return a.reached.Before(b.reached) }

func (q *queue) Len() int           { return len(q.items) }
func (q *queue) Less(i, j int) bool { return q.before(q.items[i], q.items[j]) }

func (q *queue) Swap(i, j int) {
	q.items[i], q.items[j] = q.items[j], q.items[i]
	q.items[i].places[q.number], q.items[j].places[q.number] = i+1, j+1
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	if it, ok := x.(*item); ok {
		q.items = append(q.items, it)
		it.places[q.number] = len(q.items)
	}
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	n := len(q.items) - 1
	it := q.items[n]
	q.items[n] = nil
	q.items = q.items[:n]
	it.places[q.number] = 0
	return it
}

// mostOpen is how many visits may wait for the slow lane. Each of them has a claim and
// readers, 12 to 50 kB; and when a generation has been sealed, all its ranges want to be read
// from the start at once. The others wait without a claim.
const mostOpen = 256

// Lanes have the items that wait, for a worker or for their wake.
type lanes struct {
	fast     queue
	slow     queue // open visits, and chores that make none
	unopened queue // ranges and audits that wait for the slow lane, and are not claimed
	sleeping queue
	crowd    atomic.Int64 // ready items; steps read it
}

func newLanes() *lanes {
	return &lanes{
		fast:     queue{number: fastQueue, before: readyFirst},
		slow:     queue{number: slowQueue, before: slowFirst},
		unopened: queue{number: unopenedQueue, before: slowFirst},
		sleeping: queue{number: sleepingQueue, before: wakesFirst},
	}
}

// add puts a ready item into the queue of its lane.
func (l *lanes) add(it *item, now time.Time) {
	if it.slow {
		if it.wanted.IsZero() {
			it.wanted = now
		}
		if it.isUnopened() {
			l.unopened.put(it)
		} else {
			l.slow.put(it)
		}
	}
	if !it.slow || it.either {
		l.fast.put(it)
	}
	l.crowd.Add(1)
}

// next removes and returns the ready item that runs next; nil if none may run.
func (l *lanes) next(slowMayRun bool) *item {
	slow := l.nextSlow()
	slowMayRun = slowMayRun && slow != nil
	var it *item
	switch {
	case l.fast.Len() == 0 && !slowMayRun:
		return nil
	case l.fast.Len() == 0, slowMayRun && !l.fast.items[0].since.Before(slow.items[0].wanted):
		it = slow.pop()
		l.fast.remove(it)
		it.wanted = time.Time{}
	default:
		it = l.fast.pop()
		l.slow.remove(it)
		l.unopened.remove(it)
		it.slow = false
	}
	l.crowd.Add(-1)
	return it
}

// nextSlow returns the queue whose first item is the next of the slow lane; nil if both are
// empty. While enough visits are open, these come first.
func (l *lanes) nextSlow() *queue {
	switch {
	case l.slow.Len() == 0 && l.unopened.Len() == 0:
		return nil
	case l.unopened.Len() == 0, l.slow.Len() >= mostOpen,
		l.slow.Len() > 0 && slowFirst(l.slow.items[0], l.unopened.items[0]):
		return &l.slow
	}
	return &l.unopened
}

// remove takes an item out of whatever queue it is in.
func (l *lanes) remove(it *item) {
	fast, slow, unopened := l.fast.remove(it), l.slow.remove(it), l.unopened.remove(it)
	if fast || slow || unopened {
		l.crowd.Add(-1)
	}
	l.sleeping.remove(it)
}

// queued lists the items of an owner that neither run nor rest.
func (l *lanes) queued(o owner) []*item {
	list := slices.Concat(l.slow.of(o), l.unopened.of(o), l.sleeping.of(o))
	for _, it := range l.fast.of(o) {
		if !l.slow.has(it) && !l.unopened.has(it) {
			list = append(list, it)
		}
	}
	return inOrder(list)
}
