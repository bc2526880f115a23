package main

// All times are in seconds, all rates in entities a second.

// What Google publishes, read on 26 November 2026; docs/scale.md links the pages. Prices are
// in prices.go.
const (
	// bound is what a cold key range may be asked for: "Best practices", ramping up
	// traffic. A collection whose indexed values rise steadily never takes more:
	// the same page, hotspots, and "Best practices", index exemptions.
	bound = 500.0
	// growth and growthTime are the rest of the rule 500/50/5: half as much again every
	// five minutes.
	growth     = 1.5
	growthTime = 300.0
	// versions is for how long the service keeps all versions of an entity without
	// point-in-time recovery: the Admin API of 30 October 2025. Compaction cannot remove a
	// tombstone before.
	versions = 3600.0
	// queryDeadline ends a query: docs/decisions.md, "the services end it after a minute".
	queryDeadline = 60.0
	// ownTTL is within which time the service's own policy "typically" deletes: "Manage
	// data retention with TTL policies".
	ownTTL = 86400.0
)

// What was measured here.
const (
	// step is what a page takes for each tombstone that it steps over. The embedded store
	// took 53.5 ms for a page behind 198,000: docs/plots/page-latency.svg, the plain
	// collector. The service reads over a network, and may be slower: docs/scale.md shows
	// ten times as much, too.
	step = 0.27e-6
	// embeddedPage is what a page without tombstones takes on the embedded store, by the
	// same plot.
	embeddedPage = 0.3e-3
	// embeddedWork is the time of a page with its deletes and without tombstones on the
	// embedded store, with compaction held back: 500 of 293,983/s, docs/benchmarks.md.
	embeddedWork = 500.0 / 293983
	// cpu is what a process needs for an entity: 0.2 of a core at 6,059/s with lookups, in
	// "One, two and four processes on one emulator" of docs/benchmarks.md. It is rounded
	// there: 0.15 to 0.25.
	cpu = 0.2 / 6059
	// baseMemory and rangeMemory are what a process needs, by "Many ranges" of
	// docs/benchmarks.md: 71 MiB with 10,000 ranges and 255 MiB with 100,000.
	rangeMemory = (255.0 - 71) / 90000
	baseMemory  = 71 - 10000*rangeMemory
	// busyLinear is how much of four times the rate of one process four of them reached in
	// "Scale-out" of bench, on two cores that others kept busy: a lower bound.
	busyLinear = 0.68
)

// What nobody outside knows. Each is an assumption.
const (
	// queryTime and commitTime are the middle of what bench/scaleout_test.go assumes of the
	// service: 5 to 30 ms and 20 to 60 ms.
	queryTime  = 0.0175
	commitTime = 0.040
	// compactEvery is from one compaction of a range to the next. Of Bigtable Google says
	// "up to a week" ("Deletes"); for Firestore nothing is published.
	compactEvery = 6 * 3600.0
	// splitAfter is for how long a tablet must have more than the bound of a cold one before
	// it splits, and mergeAfter for how long two neighbours must be idle before they merge.
	splitAfter = 60.0
	mergeAfter = 3600.0
	// coolAfter is for how long a tablet must be idle before its bound is that of a cold
	// one. The program's own pace assumes the same: docs/pace.md.
	coolAfter = 1800.0
	// linear is how much of N times the rate of one process N of them reach, if nothing but
	// the store bounds them. "Scale-out" in bench aims at it, and the design promises it.
	linear = 0.9
	// pull is which part of its bound a tablet must be asked for, so that the bound grows.
	pull = 0.5
)

// What this program does: docs/pace.md, docs/costs.md and docs/reference.md.
const (
	pageSize    = 500.0
	halfBurst   = 250.0 // a range that waits for its pace goes on with half a burst
	workers     = 16.0
	tick        = 300.0
	paceStart   = 500.0
	paceMax     = 5000.0
	saveEvery   = 10.0
	recordEvery = 5.0
	beatEvery   = 10.0
	pushEvery   = 10.0 // at most one halving in so many seconds
	month       = 30 * 86400.0
	// byLookup is the time of a page with the guard `lookup`: a query, a lookup in the
	// transaction, and its commit. ClaimTime is that of one write of a record.
	byLookup  = 2*queryTime + commitTime
	claimTime = queryTime + commitTime
)
