package main

// The loads that docs/scale.md asks about.
var (
	// kind is one kind with 10^10 entities. 200,000 a second come to be due, so that they
	// live for 50,000 s. It has as many shards as its writes and deletes need:
	// docs/layouts.md, the write limit.
	kind = load{"one kind", 200_000, 1e10 / 200_000, 1, 800}
	// defaultKind is the same with the default number of shards.
	defaultKind = load{"one kind", 200_000, 1e10 / 200_000, 1, 16}
	// tenants are 10,000 namespaces that together bring 1,000 entities a second, which live
	// for a week, each in one shard.
	tenants = load{"10,000 tenants", 1000, 7 * 86400, 10_000, 1}
	// defaultTenants are the same with the default number of shards.
	defaultTenants = load{"10,000 tenants", 1000, 7 * 86400, 10_000, 16}
	// ranges are 100,000 ranges that writers may write to: half of them are those of the
	// newest generation, half the nursery's.
	ranges = load{"100,000 ranges", 2500, 7 * 86400, 3125, 16}
)

// daemon returns the program with its defaults.
func daemon(processes int, l load) ours {
	return ours{processes: processes, paceMax: paceMax, slower: 1, idle: l.ranges()}
}

// looking returns the program on an index that is looked at range by range.
func (p ours) looking() ours {
	p.tablets = true
	return p
}

// byQuery returns the program with the guard `query`.
func (p ours) byQuery() ours {
	p.query = true
	return p
}

// A trial is one collector on one load.
type trial struct {
	name string
	load load
	run  func() outcome
	outcome
}

const (
	day     = 86400.0
	half    = day / 2
	quarter = day / 4
)

// A study is all that the page shows.
type study struct {
	kind, processes, shards, tenants, ranges []*trial
	moves                                    []*move
}

func newStudy() *study {
	ours := func(name string, l load, p ours, seconds float64) *trial {
		return &trial{name: name, load: l, run: func() outcome { return p.run(l, seconds) }}
	}
	naively := func(name string, l load, workers float64) *trial {
		return &trial{name: name, load: l, run: func() outcome { return service(workers, 1).run(l, day) }}
	}
	own := func(l load) *trial {
		return &trial{name: "built-in-like", load: l, run: func() outcome { return builtIn(l, day) }}
	}
	s := &study{
		kind: []*trial{
			naively("naive, 1 worker", kind, 1), naively("naive, 16 workers", kind, 16), own(kind),
			ours("reaper, 16 shards, 6 processes", defaultKind, daemon(6, defaultKind).looking(), half),
			ours("reaper, 800 shards, 6 processes", kind, daemon(6, kind).looking(), half),
			ours("the same with `guard: query`", kind, daemon(6, kind).looking().byQuery(), half),
		},
		tenants: []*trial{
			naively("naive, 16 workers", tenants, 16), own(tenants),
			ours("reaper, 1 shard, 1 process", tenants, daemon(1, tenants), quarter),
			ours("the same with `guard: query`", tenants, daemon(1, tenants).byQuery(), quarter),
			ours("reaper, 16 shards, 1 process", defaultTenants, daemon(1, defaultTenants), quarter),
			ours("reaper, 16 shards, 8 processes", defaultTenants, daemon(8, defaultTenants), quarter),
		},
		ranges: []*trial{
			naively("naive, 16 workers", ranges, 16), own(ranges),
			ours("reaper, 1 process", ranges, daemon(1, ranges), quarter),
			ours("reaper, 2 processes", ranges, daemon(2, ranges), quarter),
			ours("reaper, 4 processes", ranges, daemon(4, ranges), quarter),
			ours("the same with `guard: query`", ranges, daemon(4, ranges).byQuery(), quarter),
		},
	}
	for _, n := range []int{1, 2, 4, 5, 6, 8} {
		s.processes = append(s.processes, ours("", kind, daemon(n, kind).looking(), quarter))
		s.processes[len(s.processes)-1].name = number(float64(n))
	}
	for _, c := range []struct {
		shards int
		most   float64
	}{{400, paceMax}, {400, bound}, {800, paceMax}, {800, bound}, {1600, paceMax}} {
		l := kind
		l.shards = c.shards
		p := daemon(6, l).looking()
		p.paceMax = c.most
		s.shards = append(s.shards, ours(number(float64(c.shards))+", "+number(c.most), l, p, quarter))
	}
	for _, minutes := range []float64{0, 60, 75, 90, 120} {
		s.moves = append(s.moves, &move{minutes: minutes})
	}
	return s
}
