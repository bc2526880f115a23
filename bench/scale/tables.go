package main

import (
	"fmt"
	"math"
)

// tables returns what docs/scale.md shows between its marks, by the name of the mark.
func (s *study) tables() map[string]string {
	return map[string]string{
		"kind": collectors(s.kind), "tenants": collectors(s.tenants), "ranges": collectors(s.ranges),
		"processes": few("processes", s.processes), "shards": few("shards, `pace.max`", s.shards),
		"ramp": ramps(s.moves), "demand": demands(), "ladders": ladders(), "sensitivity": sensitivity(),
	}
}

func collectors(list []*trial) string {
	var rows [][]string
	for _, t := range list {
		q, m := t.waits.quantiles(0.5, 0.99), t.monthly()
		page, oldest := t.worst()
		longest := duration(page)
		if page == 0 {
			longest = "no pages"
		}
		rows = append(rows, []string{t.name, duration(q[0]), duration(q[1]), number(t.last().backlog), duration(oldest),
			longest, percent(t.lost(t.load)), number(m.deletes / month),
			fmt.Sprintf("%s / %s / %s", number(m.reads), number(m.writes), number(m.deletes)), money(m.dollars())})
	}
	return table([]string{"collector", "delay p50", "delay p99", "backlog at the end", "oldest that was due",
		"longest query", "writes refused", "deletes a second", "reads / writes / deletes a month", "a month"}, rows)
}

// few shows a little of what comes of the program alone.
func few(what string, list []*trial) string {
	var rows [][]string
	for _, t := range list {
		q, m := t.waits.quantiles(0.5, 0.99), t.monthly()
		rows = append(rows, []string{t.name, number(m.deletes / month), duration(q[0]), duration(q[1]),
			number(t.last().backlog), percent(t.lost(t.load)), number(t.pushed)})
	}
	return table([]string{what, "deletes a second", "delay p50", "delay p99", "backlog after 6 h", "writes refused",
		"deletes refused, in all"}, rows)
}

func ramps(list []*move) string {
	var rows [][]string
	for _, m := range list {
		rows = append(rows, []string{fmt.Sprintf("%.0f min", m.minutes), number(m.refused), percent(m.worst),
			fmt.Sprintf("%.0f min", m.until), number(float64(m.tablets))})
	}
	return table([]string{"`ramp`", "writes refused, in all", "of all writes, at worst", "refused until",
		"tablets at the end"}, rows)
}

// demands compares what each load asks for.
func demands() string {
	loads := []demand{demandOf(kind), demandOf(tenants), demandOf(defaultTenants), demandOf(ranges)}
	row := func(what, formula string, value func(demand) string) []string {
		cells := []string{what, formula}
		for _, d := range loads {
			cells = append(cells, value(d))
		}
		return cells
	}
	count := func(f func(demand) float64) func(demand) string {
		return func(d demand) string { return number(f(d)) }
	}
	seconds := func(f func(demand) float64) func(demand) string {
		return func(d demand) string { return duration(f(d)) }
	}
	priced := func(f func(demand) float64, price float64) func(demand) string {
		return func(d demand) string { return number(f(d)) + ", " + money(f(d)*price) }
	}
	return table([]string{"what", "formula", "one kind, 800 shards", "10,000 tenants, 1 shard",
		"10,000 tenants, 16 shards", "100,000 ranges"}, [][]string{
		row("entities a second", "w", count(func(d demand) float64 { return d.rate })),
		row("ranges of a generation", "R = namespaces x shards",
			count(func(d demand) float64 { return float64(d.ranges()) })),
		row("ranges that the writes need", "2 w / 500", count(demand.shardsNeeded)),
		row("`ramp` that writers need", "5 min x ln(w / 500) / ln 1.5",
			func(d demand) string { return fmt.Sprintf("%.1f min", d.rampNeeded()) }),
		row("ranges with work at a tick", "A = min(R, w t)", count(func(d demand) float64 { return d.working })),
		row("pages of a tick", "A, or A (1.5 + (w t / A - 500) / 250)", count(demand.pagesPerTick)),
		row("one process asks all ranges, nothing due", "2 R x 17.5 ms / 16", seconds(demand.lookTime)),
		row("one process does the work of a tick",
			"((2 R - A) 17.5 ms + pages x 75 ms + 2 A x 57.5 ms) / 16", seconds(demand.tickTime)),
		row("**processes**", "that / (t x 0.9); 1 if it is within t",
			count(func(d demand) float64 { return d.processes(linear) })),
		row("the same, if each further one brings less", "that / (t x 0.68)",
			count(func(d demand) float64 { return d.processes(busyLinear) })),
		row("cores for all", "w x 33 us", func(d demand) string { return three(d.cores()) }),
		row("empty queries a month", "(2 R - A) x 8,640", priced(demand.idleQueries, readPrice)),
		row("claims a month: reads, and writes", "2 A x 8,640", priced(demand.claims, readPrice+writePrice)),
		row("writes of cursor records a second", "2 A / t", count(demand.recordWrites)),
		row("reads of heartbeats a month", "N x N x 518,400", priced(demand.beats, readPrice)),
		row("records read at start, and once a day", "R x (2 + life / 24 h)", priced(demand.records, readPrice)),
		row("how long that takes", "records / 500 x 17.5 ms", seconds(demand.startTime)),
		row("memory of a process", "51 MiB + records x 2.1 KiB", func(d demand) string { return three(d.memory()) + " MiB" }),
		row("tombstones hold up one read of a range from its start", "w / R x 7 h x 0.27 us", seconds(demand.rereadTime)),
	})
}

// ladders says at which rate, and at how many ranges, something gives in: the lowest first.
func ladders() string {
	perProcess := workers * halfBurst / byLookup
	return table([]string{"at", "what gives in", "formula", "what to change"}, [][]string{
		{number(bound/2) + "/s", "`timestamp`: one range for writes and deletes", "500 / 2", "shards: another layout"},
		{number(16*bound/2) + "/s", "the 16 shards of the default", "16 x 500 / 2",
			"`shards`, from the next generation on; 2 w / 500 of them"},
		{number(perProcess) + "/s", "one process of 16 workers", "16 x 250 / 75 ms",
			"more `workers`, or more processes"},
		{number(2/cpu) + "/s", "two cores", "2 x 6,059 / 0.2", "more processes"},
		{number(bound*math.Pow(growth, 12)) + "/s", "a `ramp` of 60 min", "500 x 1.5^12",
			"`ramp`: 5 min x ln(w / 500) / ln 1.5, and some more"},
		{number(9999*bound/2) + "/s", "9,999 shards of a target", "9,999 x 500 / 2", "two targets, or namespaces"},
		{number(tick*workers/(byLookup+2*claimTime+queryTime)) + " ranges",
			"one process, if each range has a page of work at each tick", "300 s x 16 / (75 + 2 x 57.5 + 17.5 ms)",
			"fewer shards, longer ticks, more processes"},
		{number(bound*tick/2) + " ranges", "500 writes of cursor records a second, if each range has work at each tick",
			"500 x 300 s / 2", "longer ticks; the records' own keys ramp up by 500/50/5, too"},
		{number(tick*workers/(2*queryTime)) + " ranges", "one process, if nothing is due", "300 s x 16 / (2 x 17.5 ms)",
			"the layout `sharded`, which has no nursery next to it; longer ticks"},
		{number((1024-baseMemory)/rangeMemory) + " records", "a process of 1 GiB", "(1,024 - 51 MiB) / 2.1 KiB",
			"memory; fewer shards; longer `every`, so that fewer generations are sealed"},
	})
}

// sensitivity says what other constants would make of one kind.
func sensitivity() string {
	var rows [][]string
	for _, c := range []struct {
		what    string
		slower  float64
		compact float64
	}{
		{"as above: 0.27 us a tombstone, compaction every 6 h", 1, compactEvery},
		{"compaction every hour", 1, 3600}, {"compaction once a week", 1, 7 * day},
		{"2.7 us a tombstone", 10, compactEvery}, {"27 us a tombstone", 100, compactEvery},
	} {
		n := service(1, c.slower)
		n.compact = c.compact
		o := n.run(kind, day)
		page, _ := o.worst()
		visit := queryTime + kind.rate/float64(kind.ranges())*10*step*c.slower
		d := demandOf(kind)
		d.step, d.compact = step*c.slower, c.compact
		rows = append(rows, []string{c.what, duration(page), number(o.monthly().deletes / month), duration(visit),
			duration(d.rereadTime())})
	}
	return table([]string{"constants", "naive: longest query", "naive: deletes a second",
		"reaper: first query of a visit, at most", "reaper: tombstones of one range"}, rows)
}
