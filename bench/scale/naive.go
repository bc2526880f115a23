package main

import "math"

// A naive collector asks for the oldest that are due, deletes them, and asks again, from the
// beginning each time: WHERE expires <= now ORDER BY expires LIMIT 500. It checks nothing.
type naive struct {
	workers float64 // each has a page of its own: somebody deals them out, or all get the same
	page    float64 // the time of a query that steps over nothing
	work    float64 // the time of deleting one page, in seconds
	step    float64 // the time of a tombstone
	compact float64 // from one compaction to the next; 0 means never
	most    float64 // deletes a second that one range takes; 0 means any number
}

// service returns a naive collector of the service. By bare timestamps all rows due lie in one
// place, which takes the bound of one stream.
func service(workers, slower float64) naive {
	return naive{workers, queryTime, commitTime, step * slower, compactEvery, bound}
}

// A space is the index of one namespace.
type space struct {
	graves  *tombstones
	deleted float64
}

// due returns what is due and not deleted, if as much comes each second.
func (s *space) due(now, rate float64) float64 { return rate*now - s.deleted }

// A round is one run of a naive collector: one worker's part of the namespaces.
type round struct {
	naive
	load
	mine []space
	each float64 // what comes to be due in one namespace each second
	end  float64
	outcome
}

// run lets the collector work. With one namespace all workers are on it; with many, each
// worker goes through its part of them, and begins again at the next tick.
func (n naive) run(l load, seconds float64) outcome {
	r := &round{naive: n, load: l, each: l.rate / float64(l.namespaces), end: seconds}
	r.outcome = outcome{who: "naive", seconds: seconds}
	hands := 1.0
	if l.namespaces > 1 {
		hands, r.workers = n.workers, 1
	}
	r.mine = n.spaces(int(math.Ceil(float64(l.namespaces) / hands)))
	for now, next := 0.0, 0.0; now < seconds; {
		r.look(now)
		for i := range r.mine {
			now = r.visit(&r.mine[i], now)
		}
		if l.namespaces > 1 { // a round through many namespaces begins at a tick
			next += tick
			now = max(now, next)
		}
	}
	r.bill, r.half = r.bill.times(hands), r.half.times(hands)
	if l.namespaces == 1 { // the writers meet in one place, too
		r.refused = max(0, l.rate-bound) * seconds
	}
	return r.outcome
}

func (n naive) spaces(count int) []space {
	list := make([]space, count)
	for i := range list {
		every := n.compact
		if every == 0 {
			every = math.Inf(1)
		}
		list[i].graves = newTombstones(every, every*float64(i+1)/float64(count))
	}
	return list
}

// visit deletes what is due in one namespace, until a page is not full. It returns when.
func (r *round) visit(s *space, now float64) float64 {
	for {
		most := pageSize * r.workers
		took := r.naive.page + r.step*s.graves.at(now)
		r.bill.reads++
		if took > queryDeadline { // nothing comes back, and nothing is deleted
			return now + queryDeadline
		}
		got := min(s.due(now, r.each), most)
		r.mark(now)
		if now > r.end/2 {
			r.waits.add(now-(s.deleted+got)/r.each, now-s.deleted/r.each, got)
		}
		if got > 0 {
			took += r.work
		}
		if r.most > 0 { // what is above the bound waits
			took = max(took, got/r.most)
		}
		now += took
		s.deleted += got
		s.graves.add(now, got)
		r.bill.deletes += got
		if got < most || now >= r.end {
			return now
		}
		if r.namespaces == 1 {
			r.look(now)
		}
	}
}

// look takes a sample if one is due.
func (r *round) look(now float64) {
	if len(r.samples) > 0 && now < r.last().at+sampleEvery {
		return
	}
	all, oldest, longest := 0.0, 0.0, 0.0
	for i := range r.mine {
		all += r.mine[i].due(now, r.each)
		oldest = max(oldest, now-r.mine[i].deleted/r.each)
		longest = max(longest, r.naive.page+r.step*r.mine[i].graves.at(now))
	}
	share := float64(r.namespaces) / float64(len(r.mine))
	r.samples = append(r.samples, sample{now, all * share, oldest, min(longest, queryDeadline)})
}
