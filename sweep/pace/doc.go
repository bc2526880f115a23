// Package pace says how fast one target may be worked on, by this process: the limits of each
// range, its share of the target's total, and the gate.
//
// A share is valid for as long as the other processes' heartbeats are known to be recent.
// Tokens that were granted under old orders, or while the target is held, are void.
package pace
