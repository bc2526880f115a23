// Package bench measures the collector against a bare loop and the naive collector, all in
// one run, and writes docs/benchmarks.md. It is a module of its own, so that the program
// does not depend on what draws the plots. `make bench` runs it, and `go test .` here runs
// all of it once with little data.
//
// The invariant is that every figure comes from the run at hand, and that what is compared
// ran in turns. Limits: no test fails on a time.
package bench
