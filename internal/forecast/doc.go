// Package forecast reckons what a target will do from its settings and its workload: how long a
// backlog takes, what a month costs, and how many shards and generations it takes.
//
// The invariant is that it is pure arithmetic: it reads no clock and no store, and the same
// numbers give the same forecast to a command, to the doctor and to a page. No price is guessed:
// if one is missing, the money of what needs it is not known. docs/plan.md has the formulas.
//
// Limits: entities are written evenly over the day and spread evenly over the shards, the store
// keeps up with the pace, and processes are as many as it takes. All numbers are expectations.
// [Workload.Check] says which inputs it accepts; for those no result is NaN or infinite.
package forecast
