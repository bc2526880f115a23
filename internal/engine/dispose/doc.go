// Package dispose is the one place that deletes and carries.
//
// A worker that holds a range (Hold) decides what becomes of an entity by its expiry (Decider), and
// writes (Writer). Before each write, as late as possible, the writer checks pace, pause, gate,
// limits and lease. What is not due is never deleted: it is kept, or carried to the key that a
// Carrier gives it. Without a claim, in a dry run, nothing is written.
package dispose
