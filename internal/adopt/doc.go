// Package adopt brings entities under expiry that were written without an expiry key. A
// rule says when each of them expires; workers read the whole kind in parts, and stamp what
// has no key.
//
// The invariant (M1) is that adoption changes one property of an entity, and only while
// rule and entity still agree: a stamp is a conditional update, which never overwrites a
// key, never creates a deleted entity again, and leaves everything else as it is. A crash
// repeats work, which finds its own keys; a worker that lost its part can do no harm.
//
// Adoption goes in rounds, each of which reads all keys. The records of a round say how far
// each part was read, so that any number of processes share it, now or later.
//
// Limits: a round reads every entity, because no index contains those that lack a
// property. What old writers create behind a worker is found by the next round.
// docs/records.md describes the records.
package adopt
