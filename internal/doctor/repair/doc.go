// Package repair mends the few faults that a program can mend safely, once a person asks for
// it. It is what `reaper doctor --repair` does.
//
// The invariants are that a repair changes nothing unless it is told to apply; that it then
// changes exactly what it says without; that each change is one compare-and-set on what was
// examined, so that a process at work is never overruled; and that what has healed meanwhile
// is left alone. It never touches an entity. Killed at any instant, it leaves a state from
// which sweeps go on, and which the same repair completes.
//
// Limits: it trusts the instants that processes have written in the store's time. What
// a person edits by hand without a new revision may be overwritten if that happens within
// the instant between the last look at a record and its write.
package repair
