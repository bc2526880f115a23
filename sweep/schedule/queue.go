package schedule

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
)

// The queues that an item may be in.
const (
	fastQueue = iota
	slowQueue
	unopenedQueue
	sleepingQueue
	laggingQueue
	queues
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

// of lists the items of a book.
func (q *queue) of(b *book) (list []*item) {
	for _, it := range q.items {
		if it.book == b {
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

// isBefore is the tie-break of all queues: it always puts the same two items into the
// same order.
func (it *item) isBefore(other *item) bool {
	return cmp.Or(it.order-other.order, strings.Compare(it.book.c.Target.Name, other.book.c.Target.Name),
		strings.Compare(it.name, other.name)) < 0
}

// inOrder sorts items by isBefore.
func inOrder(list []*item) []*item {
	slices.SortFunc(list, func(a, b *item) int {
		if a.isBefore(b) {
			return -1
		}
		return 1
	})
	return list
}

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
