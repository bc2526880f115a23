// Package visit works on one range, from the probe to the release of its claim, and on the
// audit of one namespace.
//
// All deletes and carries go through one place (writer.write), which checks pace, pause, gate,
// limits and lease as late as possible. Nothing is deleted unless its expiry is at or before
// the horizon when the delete commits: the store's condition decides that. A cursor is never
// past an entry that was not disposed of, wherever the process dies.
package visit
