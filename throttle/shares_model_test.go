package throttle

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

const (
	modelLease = 30 * time.Second
	modelTrust = 15 * time.Second
)

var modelStart = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

// A world is a store with one lease record per range, and processes that see it
// only through snapshots, each on a clock of its own.
type world struct {
	now     time.Time
	records map[string]Lease
	owners  int
	procs   []*proc
	broken  func(*Shares)
}

type proc struct {
	shares *Shares
	name   string
	ahead  time.Duration // its clock, against the world's
	claims map[string]int64
	share  Share // as it set it last, for each claim
	frozen time.Time
	loads  []load
	writes []write
}

type load struct {
	began, read, ended time.Time // by the world's clock
	got                []Lease
}

type write struct {
	at      time.Time
	name    string
	token   int64
	release bool
}

func (w *world) join(ahead time.Duration) *proc {
	w.owners++
	p := &proc{name: fmt.Sprint("p", w.owners), ahead: ahead, claims: map[string]int64{}}
	p.shares = NewShares(p.name, 1000, modelLease, modelTrust)
	if w.broken != nil {
		w.broken(p.shares)
	}
	w.procs = append(w.procs, p)
	return p
}

func (w *world) snapshot() []Lease {
	all := make([]Lease, 0, len(w.records))
	for _, l := range w.records {
		all = append(all, l)
	}
	return all
}

func (p *proc) clock(t time.Time) time.Time { return t.Add(p.ahead) }

func (p *proc) set(w *world) { p.share = p.shares.Share(p.clock(w.now)) }

func (p *proc) observe(w *world, l load) {
	p.shares.Observe(p.clock(l.began), p.clock(w.now), l.got)
	p.set(w)
}

func (p *proc) claim(w *world, name string) {
	l := w.records[name]
	l = Lease{Range: name, Owner: p.name, Token: l.Token + 1}
	w.records[name] = l
	p.claims[name] = l.Token
	p.shares.Claimed(name, l.Token)
	p.set(w)
}

func (p *proc) leave(w *world, name string) {
	delete(p.claims, name)
	p.shares.Leaving(p.clock(w.now), name)
	p.set(w)
}

// commit carries out a renewal or a release, if the lease is still as it was.
func (w *world) commit(p *proc, o write) {
	l := w.records[o.name]
	if l.Owner != p.name || l.Token != o.token {
		return
	}
	l.Renewals++
	if o.release {
		l.Owner = ""
	}
	w.records[o.name] = l
}

// inUse returns what all claims may use now, by what each process set last: a
// frozen process may be woken at any instant and has only that.
func (w *world) inUse() float64 {
	sum := 0.0
	for _, p := range w.procs {
		if p.clock(w.now).Before(p.share.Until) {
			sum += p.share.PerSecond * float64(len(p.claims))
		}
	}
	return sum
}

// run lets processes come, go, freeze and die at random, and returns the first
// excess over the total, and the mean that was in use.
func (w *world) run(seed uint64, steps int) (mean float64, excess string) {
	rng := rand.New(rand.NewPCG(seed, 7))
	span := func(most time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(most))) }
	renewed := map[string]time.Time{} // when each record was claimed or renewed last
	slow := time.Duration(1+rng.IntN(8)) * time.Second
	busy := 1 + rng.IntN(30) // how quickly ranges change hands
	var sum, time0 float64
	for step := range steps {
		dt := span(2 * time.Second)
		sum += w.inUse() * dt.Seconds()
		time0 += dt.Seconds()
		w.now = w.now.Add(dt)
		if len(w.procs) == 0 || len(w.procs) < 5 && rng.IntN(100) == 0 {
			w.join(span(time.Hour) - 30*time.Minute)
		}
		for i := 0; i < len(w.procs); i++ {
			p := w.procs[i]
			writes := p.writes[:0]
			for _, o := range p.writes { // even of a frozen process: they were sent
				if o.at.After(w.now) {
					writes = append(writes, o)
					continue
				}
				w.commit(p, o)
				renewed[o.name] = w.now
			}
			p.writes = writes
			for j := range p.loads {
				if l := &p.loads[j]; l.got == nil && !l.read.After(w.now) {
					l.got = w.snapshot()
				}
			}
			if p.frozen.After(w.now) {
				continue
			}
			loads := p.loads[:0]
			for _, l := range p.loads {
				if l.got != nil && !l.ended.After(w.now) {
					p.observe(w, l)
				} else {
					loads = append(loads, l)
				}
			}
			p.loads = loads
			p.set(w)
			if len(p.loads) < 2 && rng.IntN(3) == 0 {
				read := w.now.Add(span(slow))
				p.loads = append(p.loads, load{began: w.now, read: read, ended: read.Add(span(slow))})
			}
			name := fmt.Sprint("r", rng.IntN(6))
			l, mine := w.records[name], p.claims[name] > 0
			free := l.Owner == "" || w.now.Sub(renewed[name]) > modelLease
			switch dice := rng.IntN(100); {
			case !mine && free && !p.shares.began.IsZero() && dice < 40:
				p.claim(w, name)
				renewed[name] = w.now
			case mine && dice < busy:
				o := write{at: w.now.Add(span(slow)), name: name, token: p.claims[name], release: true}
				p.leave(w, name)
				p.writes = append(p.writes, o)
			case mine && dice < 60:
				p.writes = append(p.writes, write{at: w.now.Add(span(slow)), name: name, token: p.claims[name]})
			case dice == 98:
				p.frozen = w.now.Add(span(90 * time.Second))
			case dice == 99 && rng.IntN(5) == 0:
				w.procs = append(w.procs[:i], w.procs[i+1:]...) // dead: it writes nothing more
				i--
			}
			if got := w.inUse(); got > 1000+1e-6 {
				return 0, fmt.Sprintf("seed %d step %d: %.1f of 1000 in use", seed, step, got)
			}
		}
	}
	return sum / time0, ""
}

func newWorld(broken func(*Shares)) *world {
	return &world{now: modelStart, records: map[string]Lease{}, broken: broken}
}

// The sum of all shares never exceeds the total, whatever happens to snapshots
// and processes.
func TestSharesNeverExceedTheTotal(t *testing.T) {
	var mean float64
	seeds := 2500
	if testing.Short() {
		seeds = 200
	}
	for seed := range uint64(seeds) {
		got, excess := newWorld(nil).run(seed, 1000)
		if excess != "" {
			t.Fatal(excess)
		}
		mean += got / float64(seeds)
	}
	t.Logf("on the mean %.0f of 1000 in use", mean)
	if mean < 100 { // else nothing was put to the test
		t.Errorf("on the mean only %.1f of 1000 in use", mean)
	}
}

// Each of the rules is needed: the model finds what goes wrong without it.
func TestTheModelCatchesWrongShares(t *testing.T) {
	for name, broken := range map[string]func(*Shares){
		"a joiner that does not wait":                func(s *Shares) { s.matures = 0 },
		"a joiner that waits too little":             func(s *Shares) { s.matures = modelTrust / 2 },
		"a leaver whose part is free at once":        func(s *Shares) { s.lingers = 0 },
		"a leaver that keeps its part for too long":  func(s *Shares) { s.keeps = 2 * modelTrust },
		"snapshots that are good for ever":           func(s *Shares) { s.valid = time.Hour },
		"leases that its owner takes to last longer": func(s *Shares) { s.lease = 2 * modelLease },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(1000) {
				// One process is wrong, or all are.
				for _, only := range []bool{false, true} {
					w := newWorld(nil)
					w.broken = func(s *Shares) {
						if !only || w.owners%2 == 0 {
							broken(s)
						}
					}
					if _, excess := w.run(seed, 1000); excess != "" {
						return
					}
				}
			}
			t.Error("1000 runs found nothing wrong")
		})
	}
}

func (w *world) clone() *world {
	c := *w
	c.records, c.procs = maps.Clone(w.records), nil
	for _, p := range w.procs {
		q, s := *p, *p.shares
		q.claims, q.loads, q.shares = maps.Clone(p.claims), append([]load(nil), p.loads...), &s
		s.claims, s.records = maps.Clone(p.shares.claims), map[string]*record{}
		for name, r := range p.shares.records {
			copied := *r
			s.records[name] = &copied
		}
		c.procs = append(c.procs, &q)
	}
	return &c
}

// key tells worlds apart, by everything that decides what can follow.
func (w *world) key() string {
	b := fmt.Append(nil, w.now.Sub(modelStart), w.records)
	for _, p := range w.procs {
		b = fmt.Append(b, p.claims, p.share.PerSecond, p.share.Until.Sub(modelStart), p.shares.began.Sub(modelStart))
		for _, l := range p.loads {
			b = fmt.Append(b, l.began.Sub(modelStart), len(l.got))
			for _, name := range []string{"r1", "r2"} {
				for _, g := range l.got {
					if g.Range == name {
						b = fmt.Append(b, g)
					}
				}
			}
		}
		for _, name := range []string{"r1", "r2"} {
			if r := p.shares.records[name]; r != nil {
				b = fmt.Append(b, r.Lease)
				for _, at := range []time.Time{r.since, r.renewed, r.seen, r.moved, r.busy, r.theirs, r.usable} {
					b = strconv.AppendInt(append(b, ' '), int64(at.Sub(modelStart)), 36)
				}
			}
		}
	}
	return string(b)
}

// explore tries every sequence of steps up to a depth and returns one that
// exceeds the total, or nil. What was tried from a world
// before, as deep, is not tried again.
func (w *world) explore(depth int, tried map[string]int) (trace []string) {
	if w.inUse() > 1000+1e-6 {
		return []string{fmt.Sprintf("%.0f in use", w.inUse())}
	}
	key := w.key()
	if before, ok := tried[key]; depth == 0 || ok && before >= depth {
		return nil
	}
	tried[key] = depth
	try := func(name string, step func(*world)) bool {
		if trace != nil {
			return false
		}
		c := w.clone()
		step(c)
		if found := c.explore(depth-1, tried); found != nil {
			trace = append([]string{name}, found...)
		}
		return trace != nil
	}
	try("half a trust passes", func(c *world) { c.now = c.now.Add(modelTrust / 2) })
	for i, p := range w.procs {
		if len(p.loads) > 0 {
			try(p.name+" sees", func(c *world) {
				q := c.procs[i]
				l := q.loads[0]
				q.loads = nil
				q.observe(c, l)
			})
		} else {
			try(p.name+" reads", func(c *world) {
				c.procs[i].loads = []load{{began: c.now, got: c.snapshot()}}
			})
		}
		if !p.shares.began.IsZero() {
			try(p.name+" sets", func(c *world) { c.procs[i].set(c) })
		}
		for _, name := range []string{"r1", "r2"} {
			l := w.records[name]
			switch {
			case l.Owner == p.name:
				try(p.name+" leaves "+name, func(c *world) {
					o := write{name: name, token: c.records[name].Token, release: true}
					c.procs[i].leave(c, name)
					c.commit(c.procs[i], o)
				})
			case l.Owner == "" && !p.shares.began.IsZero():
				try(p.name+" claims "+name, func(c *world) { c.procs[i].claim(c, name) })
			}
		}
	}
	return trace
}

// duel returns a world of two processes on one store, both with a first look,
// and one of them with a share.
func duel(broken func(*Shares)) *world {
	w := newWorld(broken)
	for range 2 {
		p := w.join(0)
		p.observe(w, load{began: w.now, got: []Lease{}})
	}
	w.procs[0].claim(w, "r1")
	w.now = w.now.Add(time.Second)
	w.procs[0].observe(w, load{began: w.now, got: w.snapshot()})
	return w
}

var depth = flag.Int("depth", 8, "how many steps to try in every order; 9 take half a minute")

// Every order of so many steps of two processes. Nine are enough to find what is
// wrong without one of the rules.
func TestSharesInEveryOrder(t *testing.T) {
	steps := *depth
	if testing.Short() {
		steps = 6
	}
	tried := map[string]int{}
	if trace := duel(nil).explore(steps, tried); trace != nil {
		t.Fatalf("%q", trace)
	}
	t.Logf("%d worlds", len(tried))
	for name, broken := range map[string]func(*Shares){
		"a joiner that does not wait":         func(s *Shares) { s.matures = 0 },
		"snapshots that are good for ever":    func(s *Shares) { s.valid = time.Hour },
		"a leaver whose part is free at once": func(s *Shares) { s.lingers = 0 },
	} {
		if trace := duel(broken).explore(9, map[string]int{}); trace == nil {
			t.Errorf("%s: nothing wrong was found", name)
		} else {
			t.Logf("%s: %q", name, trace)
		}
	}
}

// In calm weather the total is used, not merely never exceeded: by one process at
// once, and by three that go from range to range after the first trust.
func TestSharesUseTheTotal(t *testing.T) {
	for _, c := range []struct {
		procs, life int // of a lease, in seconds
		least       float64
	}{{1, 20, 0.999}, {3, 20, 0.5}, {3, 120, 0.85}} {
		w := newWorld(nil)
		procs := c.procs
		for i := range procs {
			p := w.join(time.Duration(i) * time.Hour)
			p.observe(w, load{began: w.now, got: w.snapshot()})
		}
		var used, of float64
		for second := range 600 {
			w.now = w.now.Add(time.Second)
			for i, p := range w.procs {
				for slot := range 4 { // each worker spends one life on one of its five ranges, then takes the next
					turn, into := (second+5*slot)/c.life, (second+5*slot)%c.life
					name := fmt.Sprintf("r%d.%d.%d", i, slot, turn%5)
					if l := w.records[name]; into == 0 || p.claims[name] == 0 {
						if old := fmt.Sprintf("r%d.%d.%d", i, slot, (turn+4)%5); p.claims[old] > 0 {
							o := write{name: old, token: p.claims[old], release: true}
							p.leave(w, old)
							w.commit(p, o)
						}
						p.claim(w, name)
					} else if into%10 == 0 {
						w.commit(p, write{name: name, token: l.Token})
					}
				}
				if second%5 == i {
					p.observe(w, load{began: w.now, got: w.snapshot()})
				}
				p.set(w)
			}
			if w.inUse() > 1000+1e-6 {
				t.Fatalf("second %d: %.0f in use", second, w.inUse())
			}
			if second == 10 && procs == 1 && w.inUse() < 999 {
				t.Errorf("a process alone has %.0f after 10 s", w.inUse())
			}
			if second >= 60 {
				used += w.inUse()
				of += 1000
			}
		}
		t.Logf("%d processes with leases of %d s use %.3f", procs, c.life, used/of)
		if used/of < c.least {
			t.Errorf("%d processes with leases of %d s use %.2f of the total", procs, c.life, used/of)
		}
	}
}
