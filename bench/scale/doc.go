// Command scale runs three collectors on a model of the service, and writes what comes of
// it into docs/scale.md and docs/plots: `go run ./scale` in bench.
//
// The model knows tablets, which are spans of an index and split under load; a bound of
// the writes that each of them takes; tombstones, until compaction removes them; and pages,
// which take longer the more tombstones they step over. The collectors are a naive one,
// one that is like the service's own as far as anybody outside knows, and this program.
//
// The invariants are that the model is deterministic (it knows neither a clock nor chance)
// and that each constant names its source, or says that it is an assumption. Limits: all
// entities come evenly, and everything that the page lists under "What the model leaves
// out" is missing here.
package main
