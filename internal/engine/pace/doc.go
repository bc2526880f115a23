// Package pace limits how fast this process works on one target: by the limits of each range,
// by its share of the target's total, and by the gate.
//
// A share is valid as long as the heartbeats of the other processes were read recently enough.
// Tokens that were granted under old orders, or by a share that has lapsed, are void, and while
// the target is held none are granted. A gate whose last answer is old counts as closed.
package pace
