// Package site is what all work on one target shares: its records, clock, pace, budget, log and
// tally. It derives from them why nothing may be deleted, and publishes them as metrics.
//
// The fields of a Site are set before the first step and do not change; what they point to is
// safe for concurrent use. A record that cannot be read holds the target: nothing is deleted
// by old information.
package site
