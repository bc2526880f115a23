package orphans

import (
	"slices"

	"github.com/reaper-ttl/reaper/store"
)

// A standing says what an entity is to the target.
type standing uint8

const (
	outside  standing = iota // below no entity of the target
	living                   // of the target, or below one of it that exists
	orphaned                 // below one that does not exist
	owned                    // likewise, but it stays: see the package's invariant
)

// A bough is an entity by which all that is below it is judged, until a deeper one.
type bough struct {
	key string
	is  standing // living: it exists; orphaned: it does not; owned: it stays, with all below it
	has bool     // an orphan whose nearest bough it is was placed
}

// A tree follows a lineage, name by name, and knows the boughs above the last one, outermost first.
type tree struct{ boughs []bough }

// place returns what an entity is, given that all names before it were placed, too. For an orphan it also
// returns the entity that is missing, and whether this is the first orphan below that one: names below an
// entity follow each other, so that its bough is there until the last one.
func (t *tree) place(r store.Relative) (is standing, missing string, first bool) {
	t.leave(r.Key)
	if r.Of != "" && !t.knows(r.Of) { // it would have come first
		t.boughs = append(t.boughs, bough{key: r.Of, is: orphaned})
	}
	var last bough
	n := len(t.boughs)
	if n > 0 {
		last = t.boughs[n-1]
	}
	switch {
	case r.Own:
		t.boughs = append(t.boughs, bough{key: r.Key, is: living})
		if last.is == orphaned || last.is == owned {
			return owned, "", false
		}
		return living, "", false
	case last.is == orphaned && r.Owner != "":
		t.boughs = append(t.boughs, bough{key: r.Key, is: owned})
		return owned, "", false
	case last.is == orphaned:
		t.boughs[n-1].has = true
		return orphaned, last.key, !last.has
	}
	return last.is, "", false
}

// leave forgets the boughs that a key is not below.
func (t *tree) leave(key string) {
	for n := len(t.boughs); n > 0 && !store.IsBelow(key, t.boughs[n-1].key); n-- {
		t.boughs = t.boughs[:n-1]
	}
}

func (t *tree) knows(key string) bool {
	return slices.ContainsFunc(t.boughs, func(b bough) bool { return b.key == key })
}

// learn notes that an entity came into being that was missing.
func (t *tree) learn(key string) {
	for i := range t.boughs {
		if t.boughs[i].key == key {
			t.boughs[i].is = living
		}
	}
}

// skippable returns the entity that exists and that the last name is below, or is.
func (t *tree) skippable() (key string, ok bool) {
	n := len(t.boughs)
	if n == 0 || t.boughs[n-1].is != living {
		return "", false
	}
	return t.boughs[n-1].key, true
}

// copy returns a tree that goes its own way from here.
func (t *tree) copy() *tree { return &tree{slices.Clone(t.boughs)} }

// An orphan is one that is to be deleted, and the missing entity that it is below.
type orphan struct {
	store.Relative

	of string
}

// A queue brings orphans into an order in which each comes behind all that lies below it.
type queue struct {
	open  []orphan // above the last name, outermost first: more may lie below them
	ready []orphan
}

// reach notes that the lineage has come to a name: what it is not below is ready.
func (q *queue) reach(key string) {
	for n := len(q.open); n > 0 && !store.IsBelow(key, q.open[n-1].Key); n-- {
		q.ready, q.open = append(q.ready, q.open[n-1]), q.open[:n-1]
	}
}

// add adds the orphan that the lineage has come to.
func (q *queue) add(o orphan) { q.open = append(q.open, o) }

// close makes all orphans ready: nothing follows below any of them.
func (q *queue) close() {
	for n := len(q.open); n > 0; n-- {
		q.ready, q.open = append(q.ready, q.open[n-1]), q.open[:n-1]
	}
}

// batch returns the first orphans that are ready and below one missing entity, at most so many.
func (q *queue) batch(most int) (missing string, list []store.Relative) {
	for _, o := range q.ready {
		if len(list) == most || len(list) > 0 && o.of != missing {
			break
		}
		missing, list = o.of, append(list, o.Relative)
	}
	return missing, list
}

// done removes the first so many that are ready.
func (q *queue) done(n int) { q.ready = slices.Delete(q.ready, 0, n) }

// drop removes all orphans below one entity, because it exists.
func (q *queue) drop(of string) {
	is := func(o orphan) bool { return o.of == of }
	q.open, q.ready = slices.DeleteFunc(q.open, is), slices.DeleteFunc(q.ready, is)
}

// nextLimit returns how many names the next page is to have, if each costs a read: few while most of a
// page was below entities that exist, which a query can skip only at its end.
func nextLimit(limit, read, wasted int) int {
	switch {
	case 4*wasted > 3*read:
		return max(1, limit/2)
	case 2*wasted < read:
		return min(store.MaxPage, 2*limit)
	}
	return limit
}
