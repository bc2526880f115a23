// Package step is the contract between the schedule and what it runs: what a step gets, and
// what it returns when it ends.
//
// A step never sleeps. One that has to wait ends, and says for how long and why.
package step
