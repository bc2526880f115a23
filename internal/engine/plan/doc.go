// Package plan decides what each range and each chore of a target needs next,
// and when. It is a pure function of a [View] (what was read from the store), a
// [Book] (what this process remembers since), the [Rules] of the target and the
// store's time: no I/O, no lock, no clock.
//
// The invariant is that a plan is at most too careful. A view may be old: then a
// range is visited once more, or a chore is tried in vain, since claims and marks
// are compare-and-set and deletes are conditional. What must not be missed (a
// generation that is not empty, a range that was never read) is decided by what
// records say was done, never by what they do not say.
//
// Limits: a first plan takes time in proportion to the target's ranges, and the
// [Plan.Next] one in proportion to what has changed. What a range needs is worked out
// only when a caller asks. A plan holds a few bytes for each range, and no cursors.
package plan
