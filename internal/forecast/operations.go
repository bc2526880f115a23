package forecast

import "math"

// A Way is a way to delete what has expired.
type Way string

// The ways.
const (
	ByNative  Way = "native"  // Reaper, native mode: on condition of the update time
	ByLookup  Way = "lookup"  // Reaper, Datastore mode, guard: lookup
	ByQuery   Way = "query"   // Reaper, Datastore mode, guard: query
	ByStore   Way = "own"     // Reaper, on the embedded store: nothing is billed
	ByTTL     Way = "ttl"     // the service's own TTL policy
	ByNaively Way = "naively" // query for what has expired, delete it, from the start each time
)

// Operations are what a store bills.
type Operations struct {
	Reads   float64 `json:"reads"`
	Writes  float64 `json:"writes"`
	Deletes float64 `json:"deletes"`
}

func (o Operations) plus(p Operations) Operations {
	return Operations{o.Reads + p.Reads, o.Writes + p.Writes, o.Deletes + p.Deletes}
}

// times returns the operations of so many.
func (o Operations) times(n float64) Operations {
	return Operations{o.Reads * n, o.Writes * n, o.Deletes * n}
}

// Ways returns the ways that there are with a store, that of the settings first.
func (s Settings) Ways() []Way {
	switch {
	case s.Mode == Embedded:
		return []Way{ByStore}
	case s.Mode == Native:
		return []Way{ByNative, ByTTL, ByNaively}
	case s.Mode == Cloud:
		return []Way{ByNative, ByLookup, ByQuery, ByTTL, ByNaively}
	case s.Guard == ByQuery:
		return []Way{ByQuery, ByLookup, ByTTL, ByNaively}
	}
	return []Way{ByLookup, ByQuery, ByTTL, ByNaively}
}

// MonthOf returns the operations of 30 days in the long run, with as many deletes as writes.
func (s Settings) MonthOf(w Workload, way Way) Operations {
	return s.SpanOf(w, way, month, w.Writes*month)
}

// SpanOf returns the operations of some seconds in which so many entities are deleted, evenly.
func (s Settings) SpanOf(w Workload, way Way, seconds, deletes float64) Operations {
	ticks := seconds / s.Tick.Seconds()
	switch way {
	case ByTTL:
		return Operations{Deletes: deletes}
	case ByNaively:
		return Operations{Deletes: deletes, Reads: s.naiveReads(ticks, deletes)}
	}
	l := s.loadOf(w, deletes/seconds)
	o := s.pagesOf(way, l.pages*ticks, l.idle*ticks, deletes)
	o = o.plus(s.carried(w, deletes))
	o = o.plus(s.claims(l, ticks, seconds))
	if s.Job {
		o = o.plus(s.jobs(l, ticks))
	} else {
		o = o.plus(s.daemon(l, seconds, deletes))
	}
	return o.plus(s.counts(w, seconds, deletes))
}

// BacklogOf returns the operations that it takes to delete a backlog at once.
func (s Settings) BacklogOf(w Workload, way Way) Operations {
	switch way {
	case ByTTL:
		return Operations{Deletes: w.Backlog}
	case ByNaively:
		return Operations{Deletes: w.Backlog, Reads: s.naiveReads(0, w.Backlog)}
	}
	rate := 0.0
	if c := s.Pace.CurveOf(s.ranges()); !math.IsInf(c.most, 1) {
		rate = c.most / s.ranges()
	}
	o := s.pagesOf(way, math.Ceil(w.Backlog/s.pageOf(rate)), 0, w.Backlog)
	busy := s.DrainOf(w).Seconds
	if busy != nil {
		saves := s.ranges() * *busy / saveEvery
		o = o.plus(Operations{Reads: saves, Writes: saves})
	}
	return o
}

// Intervals of the program, in seconds.
const (
	saveEvery     = 10  // the cursor of a range that works
	recordEvery   = 5   // serve reads the target record
	beatEvery     = 10  // a heartbeat while something is claimed: a third of a lease
	idleBeatEvery = 300 // and while nothing is
	hour          = 3600
	day           = 24 * hour
	month         = 30 * day // what all costs are reckoned for
	// perCount is how many index entries a COUNT counts for a read.
	perCount = 1000
)

// naiveReads returns the reads of a collector that queries for pages of 500 and deletes them unseen.
func (s Settings) naiveReads(ticks, deletes float64) float64 {
	ticks *= float64(s.Namespaces) // each is asked by itself
	if s.Mode == Native {
		return deletes + ticks
	}
	return math.Ceil(deletes/500) + ticks
}

// A load is what ranges have to do at a tick.
type load struct {
	idle    float64 // ranges that are asked, and have nothing due
	working float64 // ranges that have something due
	pages   float64
	open    float64 // ranges that writers may write to
	sealed  float64 // ranges that they may not
	busy    float64 // the share of the time in which the busiest ranges work
	work    float64 // how many ranges work on average
}

// loadOf returns what ranges have to do while so many entities come to be due each second.
func (s Settings) loadOf(w Workload, perSecond float64) load {
	n, every := s.ranges(), s.Layout.Every.Seconds()
	l := load{open: n}
	if every > 0 { // the newest generation, the nursery and, while writers move, the one before
		l.open = n * (2 + s.Layout.Ramp.Seconds()/every)
		l.sealed = n * min(float64(s.Layout.Keep), math.Floor(s.Longest(w).Seconds()/every))
	}
	l.idle = l.open
	for _, st := range s.streamsOf(w, perSecond) {
		mean := st.perRange * s.Tick.Seconds()
		working := -math.Expm1(-mean) * n // at least one, by Poisson
		l.working += st.weight * working
		if st.open {
			l.idle -= st.weight * working
		}
		l.pages += st.weight * working
		rate := s.rateOf(st)
		if more := mean - s.firstPage(rate); more > 0 {
			l.pages += st.weight * n * (more/s.pageOf(rate) + 0.5) // the last one is half full
		}
		busy := s.busy(st)
		l.busy, l.work = max(l.busy, busy), l.work+st.weight*n*busy
	}
	return l
}

// pagesOf returns the operations of the pages themselves.
func (s Settings) pagesOf(way Way, pages, idle, deletes float64) Operations {
	o := Operations{Deletes: deletes, Reads: pages + idle}
	switch way {
	case ByNative: // a query bills its documents, and an empty one a read
		o.Reads = deletes + idle
	case ByLookup:
		o.Reads += deletes
	case ByQuery:
		o.Reads += pages
	case ByStore, ByTTL, ByNaively:
	}
	return o
}

// carried returns what carries cost: each reads the entity, and writes it.
func (s Settings) carried(w Workload, deletes float64) Operations {
	carries := s.GenerationsOf(w).Carries
	return Operations{Reads: carries * deletes, Writes: carries * deletes}
}

// claims returns what it costs to claim ranges, to save their cursors while they work, and to release them.
func (s Settings) claims(l load, ticks, seconds float64) Operations {
	claimed := 2 * l.working * ticks
	if l.busy >= 1 { // they are never released
		claimed = 2 * l.working
	}
	saves := l.work * seconds / saveEvery
	return Operations{Reads: claimed + saves, Writes: claimed + saves}
}

// jobs returns what a sweep costs in addition at each tick: all records, and its history.
func (s Settings) jobs(l load, ticks float64) Operations {
	return Operations{Reads: l.open + l.sealed + 3, Writes: 1}.times(ticks)
}

// daemon returns what serve costs in addition: the target record, heartbeats and history.
func (s Settings) daemon(l load, seconds, deletes float64) Operations {
	o := Operations{Reads: seconds/recordEvery + l.busy*seconds/recordEvery,
		Writes: seconds * (l.busy/beatEvery + (1-l.busy)/idleBeatEvery)}
	hours := min(deletes, seconds/hour) // in which something was deleted
	return o.plus(Operations{Reads: 2, Writes: 2}.times(hours))
}

// counts returns what the breaker costs: it counts each of its windows if more than floor is due in it,
// and what there is in all once a day.
func (s Settings) counts(w Workload, seconds, deletes float64) Operations {
	window := s.Breaker.Window.Seconds()
	if !s.Breaker.On || window <= 0 {
		return Operations{}
	}
	each := deletes / seconds * window
	if each <= float64(s.Breaker.Floor) {
		return Operations{}
	}
	n := seconds / window
	all := min(s.StorageOf(w).Entities, 1.5*each/max(s.Breaker.Fraction, 1e-6))
	slices := min(seconds, deletes/max(float64(s.Breaker.Floor)/10, each/6))
	return Operations{Reads: n*max(s.ranges(), each/perCount) + seconds/day*all/perCount + slices, Writes: slices}
}
