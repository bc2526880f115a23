package breaker

import "time"

// What lies below entities is deleted before them, and counts with them: until an event is counted, its
// entities and their descendants share one floor. A count sees entities alone. So once it is known how many
// descendants go with each, the floor is that many times smaller, in entities; the share of all entities that
// may go in an hour needs no such change. What a count has let pass takes its descendants along, and so does
// what was approved: only the limits bound those.

// Descendants returns the key of what lies below the entities of a key.
func (k Key) Descendants() Key {
	k.Below = true
	return k
}

// Entities returns the key of the entities of which this is, or has, the descendants.
func (k Key) Entities() Key {
	k.Below = false
	return k
}

// floorUsed returns how much of its floor was granted under a key, descendants included.
func (b Budget) floorUsed(r Rules, now time.Time, k Key) int64 {
	return b.tally(r, now, k).Granted + b.tally(r, now, k.Descendants()).Granted
}

// floor returns how many entities of a key may always go: by what is known of their descendants, so
// many that with these they are no more than the floor.
func (b Budget) floor(r Rules, now time.Time, k Key) int64 {
	below := b.tally(r, now, k.Descendants()).Done
	if below == 0 {
		return r.Floor
	}
	entities := max(1, b.tally(r, now, k).Done)
	return int64(float64(r.Floor) * float64(entities) / float64(entities+below))
}
