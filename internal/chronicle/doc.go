// Package chronicle writes the history of one target while a process works on it: its runs,
// the changes that it makes, and what became of the runs of processes that died.
//
// The invariants are those of package history, and two of its own. No caller waits for a
// write: callers note what happened, and a goroutine writes it, except at the beginning and
// at the end of a process. And nothing is told twice: a change is told by the process whose
// compare-and-set settled it, a run by its own process, and the end of a run that was lost by
// the process that removes the heartbeat of the dead one.
//
// What a killed process did in its last 30 s may be missing, which its record says. Records
// that the store does not take wait, a hundred at most; after that the oldest are dropped,
// and counted as missed.
package chronicle
