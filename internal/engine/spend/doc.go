// Package spend spends the budget of one target's breaker and limits, for one process.
//
// Nothing is deleted that was not reserved before, by compare-and-set of the budget record.
// One goroutine reserves slices ahead of need, and another one counts and judges hours, so no
// step waits for a COUNT. What may have been given back is not used again, and what may have
// been deleted is not given back.
package spend
