// Package sweep collects what has expired. It ties generation, shardquery, cursor
// and throttle together and knows no database: those are behind package store.
//
// Four ideas have a place each. A view (view.go) is an immutable snapshot of the
// records; one refresher replaces it. A book (book.go) is what this process
// remembers of each range and chore; the scheduler's goroutine alone writes it. A
// plan (package plan) says what each needs next, and is a pure function of both. A
// step (range.go, visit.go, chores.go) is one bounded piece of work: a few pages of
// one range, or one chore. At most Config.Workers steps run at a time, over all
// targets, and waiting takes neither a worker nor a page: so no range waits for
// another one.
//
// The invariants are those that users rely on. Nothing is deleted unless its
// expiry is at or before the horizon when the delete commits: the store's condition
// decides that. All deletes and carries go through one place (writer.write), which
// checks pace, pause, gate, limits and lease as late as possible. A cursor is never
// past an entry that was not disposed of, wherever the process dies.
// Without Apply nothing is written at all.
//
// Limits: memory is bounded by two pages for each busy worker (the present one and the one
// that is read ahead), and by up to 16 entities of each range that wait for another try.
package sweep
