// Package visit works on one range, from the probe to the release of its claim, and on the
// audit of one namespace.
//
// It deletes and carries by package dispose alone. A cursor is never past an entry that was not
// disposed of, wherever the process dies, and never past the horizon less the overlap. While an
// entity waits for another try, its range is read on, and the saved cursor stays before it.
package visit
