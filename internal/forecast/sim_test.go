package forecast

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/throttle"
)

// A simulation of a target, event by event: writers that follow generations along the ramp, ranges with
// the program's own token buckets, ticks, pages, claims and carries. It shares no formula with the
// package, so that the two may disagree.

// An item is an entity in a range.
type item struct {
	due    float64 // seconds
	carry  int
	behind bool // of the backlog, which says nothing about delays
}

// items is a heap of entities by when they are due.
type items []item

func (h items) Len() int           { return len(h) }
func (h items) Less(i, j int) bool { return h[i].due < h[j].due }
func (h items) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *items) Push(x any)        { *h = append(*h, x.(item)) }
func (h *items) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A simRange is one range with its bucket.
type simRange struct {
	items
	pace  *throttle.Pace
	kept  throttle.State
	busy  bool
	first int  // entities of the page that was read before the claim, and waits for its tokens
	full  bool // and there may be more
	since float64
	until float64 // sweep: what is due later waits for the next tick
}

// due counts what is due, up to most.
func (r *simRange) due(at float64, most int) (n int) {
	var count func(i int)
	count = func(i int) {
		if i < len(r.items) && r.items[i].due <= at && n < most {
			n++
			count(2*i + 1)
			count(2*i + 2)
		}
	}
	count(0)
	return min(n, most)
}

// An event is the next step of a range, or a tick.
type event struct {
	at float64
	r  *simRange // nil for a tick
}

type events []event

func (h events) Len() int           { return len(h) }
func (h events) Less(i, j int) bool { return h[i].at < h[j].at }
func (h events) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)        { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A sim is a target at work.
type sim struct {
	Settings
	Workload
	rnd    *rand.Rand
	queue  events
	gens   [][]*simRange // by number; nil once it is empty and old
	writer float64       // up to when entities were written
	warm   bool          // ranges have ramped before
	from   float64       // what is deleted before is not counted

	now      float64
	ops      Operations
	delays   []float64
	deleted  int
	carries  int
	backlog  int
	drained  float64
	newestAt []float64
}

func at(seconds float64) time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func (s *sim) limits() throttle.Limits { return throttle.Limits{Start: s.Pace.Start, Max: s.Pace.Max} }

// open opens the next generation.
func (s *sim) open() {
	var list []*simRange
	for range s.Shards * s.Namespaces {
		r := &simRange{}
		if s.warm && len(s.gens) == 0 {
			r.kept = throttle.State{Rate: s.Pace.Max, Used: at(s.now)}
		}
		list = append(list, r)
	}
	s.gens, s.newestAt = append(s.gens, list), append(s.newestAt, s.now)
}

// place chooses the generation of an entity that is written now, as writers do.
func (s *sim) place(when float64) int {
	newest := len(s.gens) - 1
	if newest == 0 || s.Layout.Ramp == 0 {
		return newest
	}
	x := (when - s.newestAt[newest]) / s.Layout.Ramp.Seconds()
	if x >= 1 || s.rnd.Float64() < math.Pow(1.5, 12*(x-1)) {
		return newest
	}
	return newest - 1
}

// write writes what is written up to an instant.
func (s *sim) write(to float64) {
	for s.Writes > 0 && s.writer < to {
		s.writer += s.rnd.ExpFloat64() / s.Writes
		x, life := s.rnd.Float64(), s.Lives[len(s.Lives)-1].For
		for _, l := range s.Lives {
			if x -= l.Share; x < 0 {
				life = l.For
				break
			}
		}
		s.put(s.place(s.writer), item{due: s.writer + (life + s.Retention).Seconds()})
	}
}

func (s *sim) put(generation int, e item) {
	list := s.gens[generation]
	heap.Push(&list[s.rnd.IntN(len(list))].items, e)
}

// counting reports whether operations count already.
func (s *sim) counting() bool { return s.now >= s.from }

func (s *sim) bill(o Operations) {
	if s.counting() {
		s.ops = s.ops.plus(o)
	}
}

// tick opens generations, carries out of old ones, and asks the ranges at rest.
func (s *sim) tick() {
	every := s.Layout.Every.Seconds()
	for every > 0 && s.now-s.newestAt[len(s.gens)-1] >= every {
		s.open()
	}
	if every > 0 {
		s.drain()
	}
	working := 0
	for g, list := range s.gens {
		open := every == 0 || g == len(s.gens)-1 ||
			g == len(s.gens)-2 && s.now-s.newestAt[len(s.gens)-1] < s.Layout.Ramp.Seconds()
		for _, r := range list {
			switch {
			case r.busy:
			case len(r.items) > 0 && r.items[0].due <= s.now:
				r.busy, r.since, working = true, s.now, working+1
				r.until = math.Inf(1)
				if s.Job {
					r.until = s.now
				}
				r.pace = throttle.NewPace(at(s.now), s.limits(), r.kept, s.Page)
				most := r.pace.Burst(at(s.now), s.Page)
				r.first = r.due(s.now, most)
				r.full = r.first == most
				s.bill(Operations{Reads: 2, Writes: 2})
				heap.Push(&s.queue, event{s.now, r})
			case open:
				s.bill(Operations{Reads: 1})
			}
		}
	}
	if every > 0 { // the nursery
		s.bill(Operations{Reads: float64(s.Shards * s.Namespaces)})
	}
	heap.Push(&s.queue, event{at: s.now + s.Tick.Seconds()})
}

// drain carries everything out of generations that are too old.
func (s *sim) drain() {
	newest := len(s.gens) - 1
	if s.now-s.newestAt[newest] < s.Layout.Ramp.Seconds() {
		return
	}
	for g := 0; g+s.Layout.Keep < newest; g++ {
		for _, r := range s.gens[g] {
			var left items
			for _, e := range r.items {
				if e.due <= s.now {
					left = append(left, e)
					continue
				}
				e.carry++
				s.bill(Operations{Reads: 1, Writes: 1})
				s.put(newest, e)
			}
			r.items = left
			heap.Init(&r.items)
		}
	}
}

// step reads a page of a range, or waits for its tokens.
func (s *sim) step(r *simRange, way Way, wants int) {
	now := at(s.now)
	horizon := min(s.now, r.until)
	if s.Pace.Total > 0 {
		share := s.Pace.Total / float64(max(1, wants))
		r.pace.SetTotal(now, throttle.Share{PerSecond: share, Burst: share, Until: now.Add(time.Hour)})
	}
	if r.first == 0 && r.due(horizon, 1) == 0 {
		s.rest(r)
		return
	}
	n, wait := r.pace.Ready(now, s.Page)
	if r.first > 0 {
		n, wait = r.first, r.pace.Take(now, r.first)
	}
	if wait > 0 {
		heap.Push(&s.queue, event{s.now + wait.Seconds(), r})
		return
	}
	took := 0
	for took < n && len(r.items) > 0 && r.items[0].due <= horizon {
		s.delete(heap.Pop(&r.items).(item))
		took++
	}
	if r.first == 0 {
		r.pace.Take(now, took)
	}
	isLast := took < n || r.first > 0 && !r.full
	r.first = 0
	o := Operations{Deletes: float64(took), Reads: 1}
	switch way {
	case ByNative:
		o.Reads = float64(took)
	case ByLookup:
		o.Reads += float64(took)
	case ByQuery:
		o.Reads++
	}
	s.bill(o)
	if isLast {
		s.rest(r) // there was no more
		return
	}
	heap.Push(&s.queue, event{s.now, r})
}

func (s *sim) rest(r *simRange) {
	r.busy, r.kept = false, r.pace.State(at(s.now))
	saves := (s.now - r.since) / saveEvery
	s.bill(Operations{Reads: saves, Writes: saves})
}

func (s *sim) delete(e item) {
	if e.behind {
		if s.backlog--; s.backlog == 0 {
			s.drained = s.now
		}
		return
	}
	if s.counting() {
		s.deleted++
		s.carries += e.carry
		s.delays = append(s.delays, s.now-e.due)
	}
}

// run lives through some seconds.
func (s *sim) run(way Way, until float64, done func() bool) {
	s.open()
	for range s.backlog {
		s.put(0, item{due: -1 - s.rnd.Float64(), behind: true})
	}
	heap.Push(&s.queue, event{at: 0})
	for len(s.queue) > 0 && !done() {
		e := heap.Pop(&s.queue).(event)
		if e.at > until {
			return
		}
		s.now = e.at
		s.write(s.now)
		if e.r == nil {
			s.tick()
			continue
		}
		s.step(e.r, way, s.working())
	}
}

func (s *sim) working() (n int) {
	for _, list := range s.gens {
		for _, r := range list {
			if r.busy {
				n++
			}
		}
	}
	return n
}

func within(t *testing.T, what string, got, want, share, slack float64) {
	t.Helper()
	if math.Abs(got-want) > share*math.Abs(want)+slack {
		t.Errorf("%s: simulated %.6g, forecast %.6g", what, got, want)
	} else {
		t.Logf("%s: simulated %.6g, forecast %.6g", what, got, want)
	}
}

// randomSettings returns settings and a workload that a simulation lives through in moments.
func randomSettings(seed uint64) (Settings, Workload) {
	rnd := rand.New(rand.NewPCG(seed, 36))
	pick := func(list ...float64) float64 { return list[rnd.IntN(len(list))] }
	s := Settings{Mode: Datastore, Namespaces: int(pick(1, 1, 3)), Shards: int(pick(1, 2, 4)), Page: int(pick(50, 100, 500)),
		Tick: time.Duration(pick(60, 300, 600)) * time.Second, Guard: ByLookup, Job: rnd.IntN(3) == 0,
		Pace: Pace{Start: pick(2, 5, 10), Max: pick(20, 40)}}
	if rnd.IntN(3) == 0 {
		s.Pace.Total = s.Pace.Max * s.ranges() * 0.6
	}
	if rnd.IntN(4) == 0 {
		s.Mode = Native
	}
	w := Workload{Writes: s.ranges() * pick(0.3, 1, 3)}
	short := time.Duration(pick(600, 1800)) * time.Second
	long := time.Duration(pick(3, 5, 9)) * time.Hour
	w.Lives = []Life{{short, 0.75}, {long, 0.25}}
	if rnd.IntN(3) > 0 {
		s.Layout = Layout{Every: time.Duration(pick(1, 2)) * time.Hour, Ramp: 20 * time.Minute, Keep: int(pick(1, 2, 3))}
	}
	return s, w
}

// The simulation and the formulas agree within 10 % for a dozen random workloads.
func TestSimulationAgrees(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s, w := randomSettings(seed)
			t.Logf("%+v %+v", s, w)
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			simulateMonth(t, s, w, seed)
			simulateDrain(t, s, w, seed)
		})
	}
}

// simulateMonth compares what goes on in the long run.
func simulateMonth(t *testing.T, s Settings, w Workload, seed uint64) {
	const hours = 16
	life := &sim{Settings: s, Workload: w, rnd: rand.New(rand.NewPCG(seed, 1)), warm: true, from: 40 * 3600}
	until := life.from + hours*3600
	way := s.Ways()[0]
	life.run(way, until, func() bool { return false })
	delay := s.DelayOf(w)
	slices.Sort(life.delays)
	quantile := func(q float64) float64 { return life.delays[int(q*float64(len(life.delays)-1))] }
	if delay.Behind {
		t.Fatal("the workload is too much")
	}
	within(t, "delay p50", quantile(0.5), delay.P50, 0.1, 0)
	within(t, "delay p99", quantile(0.99), delay.P99, 0.1, 0)
	within(t, "carries per entity", float64(life.carries)/float64(life.deleted), s.GenerationsOf(w).Carries, 0.1, 0.005)
	deletes := float64(life.deleted)
	l := s.loadOf(w, deletes/(hours*3600))
	want := s.pagesOf(way, l.pages*hours*3600/s.Tick.Seconds(), l.idle*hours*3600/s.Tick.Seconds(), deletes)
	want = want.plus(s.carried(w, deletes)).plus(s.claims(l, hours*3600/s.Tick.Seconds(), hours*3600))
	within(t, "deletes", deletes, w.Writes*hours*3600, 0.1, 0)
	within(t, "reads", life.ops.Reads, want.Reads, 0.1, 0)
	within(t, "writes", life.ops.Writes, want.Writes, 0.1, 0)
}

// simulateDrain compares how long a backlog takes from a cold start.
func simulateDrain(t *testing.T, s Settings, w Workload, seed uint64) {
	s.Layout.Every, s.Job = 0, false
	w.Writes /= 2
	w.Lives = []Life{{time.Second, 1}} // so that as much comes to be due as is written, at once
	w.Backlog = math.Round(s.ranges() * (10_000 + 1000*float64(seed)))
	life := &sim{Settings: s, Workload: w, rnd: rand.New(rand.NewPCG(seed, 2)), backlog: int(w.Backlog)}
	life.run(s.Ways()[0], 1e7, func() bool { return life.drained > 0 })
	d := s.DrainOf(w)
	if d.Seconds == nil {
		t.Fatal("it never ends")
	}
	within(t, "time to drain", life.drained, *d.Seconds, 0.1, 0)
}
