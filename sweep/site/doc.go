// Package site is what all work on one target shares: its records, clock, pace, budget, log and
// tally, and what is told of them.
//
// The fields of a Site are set before the first step and do not change; what they point to is
// safe for concurrent use.
package site
