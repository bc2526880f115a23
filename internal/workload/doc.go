// Package workload reads what a person says of a workload and of prices: the flags of `reaper plan`,
// such as 20000/s, 1h:80%,30d:20%, 2KiB, 500M and reads=0.03,deletes=0.01.
//
// The invariant is that what it accepts is meant: a rate has its unit, shares add up to 100 %, and a
// name or number that makes no sense is an error that says what to write instead. No input panics.
package workload
