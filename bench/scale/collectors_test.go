package main

import (
	"math"
	"reflect"
	"testing"
)

// On the embedded store, with compaction held back, the naive collector of 400 pages took
// 21.06 times as long for a page of its last tenth as for one of its first, and a sweep was
// 17.62 times as fast: docs/benchmarks.md. The model's cost of a tombstone comes from the plot
// of the first of these; it is linear, the store is a little more than that. So the margins
// are a quarter and a tenth.
func TestNaiveAgreesWithTheBenchmark(t *testing.T) {
	n := naive{workers: 1, page: embeddedPage, work: embeddedWork - embeddedPage, step: step}
	r := &round{naive: n, load: load{namespaces: 1}, each: 1e12, mine: n.spaces(1)}
	var pages, works []float64
	for now := 1.0; len(pages) < 400; {
		graves := r.mine[0].graves.at(now)
		pages = append(pages, n.page+n.step*graves)
		r.end = now // one page
		next := r.visit(&r.mine[0], now)
		works = append(works, next-now)
		now = next
	}
	near(t, "a page of the last tenth / of the first", sum(pages[360:])/sum(pages[:40]), 21.06, 0.25)
	near(t, "a sweep / the naive collector", sum(works)/400/embeddedWork, 17.62, 0.1)
	near(t, "tombstones of a page of the last tenth", (sum(pages[360:])/40-n.page)/step, 189750, 0.01)
}

// Without compaction and bound a naive collector that always has work slows down like a root:
// p D + s D^2 / (2 x 500) = 500 T, with the time p of a page, and s of a tombstone.
func TestNaiveSlowsDownLikeARoot(t *testing.T) {
	n := naive{workers: 1, page: queryTime, work: commitTime, step: 1e-6}
	o := n.run(load{rate: 1e6, namespaces: 1}, day)
	p, s := (queryTime+commitTime)/pageSize, 1e-6/pageSize
	want := (-p + math.Sqrt(p*p+2*s*day)) / s
	near(t, "deleted in a day", o.bill.deletes, want, 0.01)
}

// A query that reaches its deadline returns nothing, and nothing is deleted any more.
func TestNaiveStopsAtTheDeadline(t *testing.T) {
	n := naive{workers: 1, page: queryTime, work: commitTime, step: 1e-3}
	o := n.run(load{rate: 1e6, namespaces: 1}, day)
	near(t, "tombstones at which it stops", o.bill.deletes, queryDeadline/1e-3, 0.02)
}

func TestBuiltInBacklog(t *testing.T) {
	o := builtIn(load{rate: 100}, 2*day)
	near(t, "backlog", o.last().backlog, 100*day/2, 1e-9)
	q := o.waits.quantiles(0.5, 0.99)
	near(t, "p50", q[0], 12*3600, 0.001)
	near(t, "p99", q[1], 0.99*day, 0.001)
}

// With few entities a range a tick, entities wait evenly from tick to tick, and what is billed
// follows the formulas of docs/costs.md: a page, two reads and two writes to claim and release,
// and a query for each idle range, at each tick.
func TestOursByHand(t *testing.T) {
	l := load{rate: 10, namespaces: 100, shards: 1}
	o := daemon(1, l).run(l, day)
	q, m := o.waits.quantiles(0.5, 0.99), o.monthly()
	near(t, "p50", q[0], 150, 0.02)
	near(t, "p99", q[1], 297, 0.02)
	deletes, visits := 10*month, 100*month/tick
	near(t, "deletes", m.deletes, deletes, 0.01)
	near(t, "writes", m.writes, 2*visits+visits/saveEvery+month/beatEvery, 0.01)
	near(t, "reads", m.reads, deletes+visits+visits+2*visits+visits/saveEvery+
		2*month/recordEvery+countReads(l)*month, 0.01)
}

// A backlog that only the pace bounds goes along the curve of docs/pace.md: 500 a second at
// first, 5,000 x 3,333 / 5,000 at last, since a range has one worker at a time.
func TestOursDrainsByItsPace(t *testing.T) {
	l := load{rate: 1e6, namespaces: 1, shards: 1}
	o := daemon(1, l).run(l, tick+1200) // the first tick finds nothing
	near(t, "deleted in 20 min", o.bill.deletes, 500*300/math.Log(1.5)*(math.Pow(1.5, 4)-1), 0.01)
	most := halfBurst / byLookup
	o = daemon(1, l).run(l, tick+7200)
	ramp := 300 * math.Log(most/500) / math.Log(1.5)
	near(t, "deleted in two hours", o.bill.deletes, (most-500)*300/math.Log(1.5)+(7200-ramp)*most, 0.01)
}

// One process does what its workers can: 16 x 250 entities in 75 ms, less claims and cursors.
func TestOursIsBoundByItsWorkers(t *testing.T) {
	l := load{rate: 1e6, namespaces: 1, shards: 400}
	o := daemon(1, l).run(l, tick+3600)
	near(t, "deletes a second", o.bill.deletes/3600, workers*halfBurst/byLookup, 0.1)
	two := daemon(2, l).run(l, tick+3600)
	near(t, "two processes", two.bill.deletes, 2*linear*o.bill.deletes, 0.01)
}

// What the index refuses is counted once, and comes again: nothing is lost.
func TestRefusedDeletesComeAgain(t *testing.T) {
	l := load{rate: 1200, namespaces: 1, shards: 1} // more than the index takes in one stream
	o := daemon(1, l).looking().run(l, day)
	if o.pushed == 0 || o.bill.deletes > 500*day {
		t.Errorf("%v pushed back, %v deleted", o.pushed, o.bill.deletes)
	}
	near(t, "deleted and left", o.bill.deletes+o.last().backlog, 1200*o.last().at, 0.01)
}

func TestModelIsDeterministic(t *testing.T) {
	l := load{rate: 5000, namespaces: 3, shards: 7, life: day}
	for name, run := range map[string]func() outcome{
		"naive":  func() outcome { return service(4, 1).run(l, 7200) },
		"reaper": func() outcome { return daemon(2, l).looking().run(l, 7200) },
	} {
		if a, b := run(), run(); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs differ", name)
		}
	}
	if a, b := moveTo(kind, 60), moveTo(kind, 60); !reflect.DeepEqual(a, b) {
		t.Error("two ramps differ")
	}
}
