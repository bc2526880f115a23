// Package bench measures the collector beside a bare loop and the naive collector, all in
// one run, and writes docs/benchmarks.md. It is a module of its own, since what draws the
// plots is no concern of the program's: `make bench` runs it, and `go test .` here runs
// all of it once with little.
//
// The invariant is that every figure comes from the run at hand, and that what is compared
// ran in turns. Limits: no test fails on a time.
package bench
