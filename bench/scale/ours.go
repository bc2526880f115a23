package main

import "math"

// ours is this program: a range for each namespace and shard, a cursor and a bucket for each
// range, ticks, and N processes of some workers. Each page begins at the cursor.
type ours struct {
	processes int
	paceMax   float64
	slower    float64 // times the measured time of a tombstone
	query     bool    // the guard: `query` instead of `lookup`
	idle      int     // ranges that writers may write to and that hold nothing: the nursery
	tablets   bool    // whether the index is looked at, range by range
}

// A span is one range: what was deleted in it, and its bucket.
type span struct {
	deleted float64
	tokens  float64
	rate    float64
	used    float64 // when it deleted last
	pushed  float64 // when the store pushed back last
	asked   float64 // deletes of the second at hand
	working bool    // it is in the queue
	claimed bool
}

// A shift is one run of ours.
type shift struct {
	ours
	load
	spans  []span
	queue  []int // ready ranges, longest first
	kept   []int // those that stay in it
	each   float64
	grown  float64 // by how much a bucket's rate grows in a second
	budget float64 // seconds of workers that are left of the second at hand
	index  *index
	outcome
}

// capacity returns the seconds of workers in a second of N processes.
func (p ours) capacity() float64 {
	n := float64(p.processes)
	if n > 1 {
		n *= linear
	}
	return n * workers
}

// run lets the processes work, second by second.
func (p ours) run(l load, seconds float64) outcome {
	s := &shift{ours: p, load: l, spans: make([]span, l.ranges()), each: l.rate / float64(l.ranges()), grown: growing(1)}
	s.outcome = outcome{who: "reaper", seconds: seconds}
	for i := range s.spans {
		s.spans[i] = span{rate: paceStart, pushed: -pushEvery}
	}
	if p.tablets { // of each shard the oldest end, where deletes are, and the newest
		s.index = settled(2*l.ranges(), 2)
		for i := range s.spans {
			s.index.load[2*i+1] = s.each
		}
	}
	for now := 0.0; now < seconds; now++ {
		s.mark(now)
		if math.Mod(now, tick) == 0 {
			s.ready(now)
		}
		s.work(now)
		s.settle(now)
		if math.Mod(now, sampleEvery) == 0 {
			s.look(now)
		}
	}
	s.standing(seconds)
	return s.outcome
}

// ready queues each range at rest, as a tick does. Its bucket is empty.
func (s *shift) ready(now float64) {
	for i := range s.spans {
		sp := &s.spans[i]
		if sp.working {
			continue
		}
		sp.working, sp.tokens = true, 0
		if now-sp.used >= coolAfter {
			sp.rate = paceStart
		}
		s.queue = append(s.queue, i)
	}
}

// work serves the queue for a second. A worker that is in debt pays it in the next one.
func (s *shift) work(now float64) {
	s.budget = min(s.budget, 0) + s.capacity()
	s.kept = s.kept[:0]
	for at, i := range s.queue {
		if s.budget <= 0 { // the others have been ready for longer, from now on
			s.queue = append(s.queue[at:], s.kept...)
			return
		}
		if !s.visit(&s.spans[i], now) {
			s.kept = append(s.kept, i)
		}
	}
	s.queue, s.kept = s.kept, s.queue
}

// visit gives a range its turn of a second. It reports whether the range is at rest again.
func (s *shift) visit(sp *span, now float64) bool {
	due := s.each*now - sp.deleted
	if !sp.claimed { // the first page finds whether there is anything at all
		idle := float64(s.idle) / float64(len(s.spans)) // these have their turn in between
		s.budget -= queryTime * idle
		s.bill.reads += idle
		if due < 1 {
			s.budget -= queryTime
			s.bill.reads++
			sp.working = false
			return true
		}
		s.claim(sp)
	}
	burst := min(sp.rate, pageSize)
	sp.tokens = min(sp.tokens, burst) + sp.rate
	if due > sp.tokens { // it waits for its bucket, which grows
		sp.rate = min(s.paceMax, sp.rate*s.grown)
	}
	s.page(sp, min(due, sp.tokens, burst/2/byLookup), burst/2, now)
	if s.each*now-sp.deleted-sp.asked >= 1 {
		return false
	}
	s.claim(sp) // gives it back
	sp.working = false
	return true
}

// claim takes a range, or gives it back: a read and a write of its record.
func (s *shift) claim(sp *span) {
	sp.claimed = !sp.claimed
	s.budget -= claimTime
	s.bill.add(operations{reads: 1, writes: 1})
}

// page deletes n from the cursor on, in the pages of a second: one after the other, since a
// range has one worker at a time. The first page of a visit steps over what was deleted
// within the overlap of ten seconds: the saved cursor is no nearer to the horizon.
func (s *shift) page(sp *span, n, half, now float64) {
	pages := max(1, n/half)
	if n <= pageSize && s.each*now-sp.deleted <= n {
		pages = 1
	}
	saves := 1 / saveEvery // the cursor, once in ten seconds of work
	s.budget -= pages*byLookup + step*s.slower*min(sp.deleted, s.each*10) + claimTime*saves
	s.bill.add(operations{reads: pages + saves, writes: saves})
	if s.query {
		s.bill.reads += pages // the page's own query again, in the transaction
	} else {
		s.bill.reads += n
	}
	sp.tokens, sp.used, sp.asked = sp.tokens-n, now, n
	if s.index == nil {
		s.finish(sp, 1, now)
	}
}

// finish counts what the index took of the deletes of a second.
func (s *shift) finish(sp *span, served, now float64) {
	n := sp.asked * served
	if now > s.seconds/2 {
		s.waits.add(now-(sp.deleted+n)/s.each, now-sp.deleted/s.each, n)
	}
	s.bill.deletes += n
	s.pushed += sp.asked - n
	sp.deleted, sp.asked = sp.deleted+n, 0
}

// settle asks the index whether it took the deletes of the second. What it refused comes
// again, and the rate of that range halves.
func (s *shift) settle(now float64) {
	if s.index == nil {
		return
	}
	for i := range s.spans {
		s.index.load[2*i] = s.spans[i].asked
	}
	s.index.advance(1)
	for i := range s.spans {
		sp, served := &s.spans[i], s.index.served[2*i]
		s.refused += (1 - s.index.served[2*i+1]) * s.each
		if sp.asked > 0 {
			s.finish(sp, served, now)
		}
		if served == 1 || sp.used < now {
			continue
		}
		if now-sp.pushed >= pushEvery {
			sp.rate, sp.pushed = max(sp.rate/2, paceStart/16), now
		}
		if !sp.working {
			sp.working, sp.claimed = true, true
			s.queue = append(s.queue, i)
		}
	}
}

// look takes a sample.
func (s *shift) look(now float64) {
	all, oldest := 0.0, 0.0
	for i := range s.spans {
		all += s.each*now - s.spans[i].deleted
		oldest = max(oldest, now-s.spans[i].deleted/s.each)
	}
	page := queryTime + step*s.slower*s.each*10
	s.samples = append(s.samples, sample{now, all, oldest, page})
}

// standing adds what a daemon does in addition, by docs/costs.md: the target record, the
// heartbeats, of which each process reads all, and the breaker's counts.
func (s *shift) standing(seconds float64) {
	n := float64(s.processes)
	each := operations{reads: n/recordEvery + heartbeatReads(n) + countReads(s.load), writes: n / beatEvery}
	s.bill.add(each.times(seconds))
	s.half.add(each.times(seconds / 2))
}

// heartbeatReads returns how many heartbeats N processes read in a second: each reads all.
func heartbeatReads(n float64) float64 { return n * n / recordEvery }

// countReads returns what the breaker's counts read in a second: for each hour a read for
// 1,000 of what is due in it, at least one a range; for each day the same of six hours' due.
func countReads(l load) float64 {
	due := l.rate * 3600
	return max(float64(l.ranges()), due/1000)/3600 + min(l.rate*l.life, 6*due)/1000/86400
}
