// Package spend spends the budget of one target's breaker and limits, for one process.
//
// Nothing is deleted that was not reserved before, by compare-and-set of the budget record.
// Slices are reserved ahead of need, in a goroutine of its own, and hours are counted and
// judged in another one: no step waits for a COUNT. What may have been stored is not used
// again, and what may have been deleted is not given back.
package spend
