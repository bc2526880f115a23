package throttle

import (
	"flag"
	"fmt"
	"maps"
	"testing"
	"time"
)

// A duel is two processes on one store, taken from step to step.
type duel struct {
	now     time.Time
	records map[string]Heartbeat
	marks   int
	procs   [2]duelist
	broken  func(*Shares)
}

// A duelist is one of them, with a write and a read on their way at the most.
type duelist struct {
	name   string
	shares *Shares
	share  Share
	told   time.Time
	wrote  time.Time   // when the write was sent that was not answered yet; zero if none was
	asked  time.Time   // likewise of a read
	got    []Heartbeat // what the read will show
	stored time.Time
}

func newDuel(broken func(*Shares)) *duel {
	d := &duel{now: modelStart, records: map[string]Heartbeat{}, broken: broken}
	for i := range d.procs {
		p := &d.procs[i]
		p.name = fmt.Sprint("p", i+1)
		p.shares = NewShares(p.name, modelLease, modelTrust)
		p.shares.SetTotal(Limit{PerSecond: modelTotal})
		p.set(d)
	}
	return d
}

func (p *duelist) set(d *duel) { p.share = p.shares.Share(d.now) }

func (d *duel) inUse() (sum float64) {
	for _, p := range d.procs {
		if d.now.Before(p.share.Until) {
			sum += p.share.PerSecond
		}
	}
	return sum
}

func (d *duel) clone() *duel {
	c := *d
	c.records = maps.Clone(d.records)
	for i := range c.procs {
		s := *d.procs[i].shares
		s.others = maps.Clone(s.others)
		c.procs[i].shares = &s
	}
	return &c
}

// key tells duels apart by everything that decides what can follow.
func (d *duel) key() string {
	since := func(t time.Time) time.Duration { return t.Sub(modelStart) }
	b := fmt.Append(nil, since(d.now), d.records)
	for _, p := range d.procs {
		s := p.shares
		b = fmt.Append(b, p.share.PerSecond, since(p.share.Until), since(p.told), since(p.wrote), since(p.asked), since(p.stored),
			p.got, since(s.sent), s.live, s.own, s.others)
	}
	return string(b)
}

// steps lists what may happen next.
func (d *duel) steps() map[string]func(*duel) {
	list := map[string]func(*duel){"half a lease passes": func(c *duel) { c.now = c.now.Add(modelLease / 2) },
		"a moment passes": func(c *duel) { c.now = c.now.Add(time.Second) }}
	for i, p := range d.procs {
		on := func(what string, do func(c *duel, p *duelist)) {
			list[p.name+" "+what] = func(c *duel) { do(c, &c.procs[i]) }
		}
		if p.wrote.IsZero() {
			on("writes", func(c *duel, p *duelist) {
				c.marks++
				c.records[p.name] = Heartbeat{Owner: p.name, Epoch: 1, Mark: fmt.Sprint(c.marks), Lease: modelLease, Read: p.told}
				p.wrote = c.now
			})
		} else {
			on("hears", func(c *duel, p *duelist) {
				p.shares.Renewed(p.wrote, c.now)
				p.wrote = time.Time{}
				p.set(c)
			})
		}
		if p.asked.IsZero() {
			on("reads", func(c *duel, p *duelist) {
				p.asked, p.stored, p.got = c.now, c.now, nil
				for _, name := range []string{"p1", "p2"} {
					if h, ok := c.records[name]; ok {
						p.got = append(p.got, h)
					}
				}
			})
		} else {
			on("sees", func(c *duel, p *duelist) {
				p.shares.Observe(p.asked, c.now, p.stored, p.got)
				if c.broken != nil {
					c.broken(p.shares)
				}
				p.told, p.asked = p.asked, time.Time{}
				p.set(c)
			})
		}
		if _, ok := d.records[p.name]; ok && p.wrote.IsZero() {
			on("leaves", func(c *duel, p *duelist) {
				p.shares.Ended()
				p.set(c)
				delete(c.records, p.name)
			})
		}
	}
	return list
}

// explore tries every sequence of steps up to a depth and returns one that exceeds the
// total, or nil. What was tried from a duel before, as deep, is not tried again.
func (d *duel) explore(depth int, tried map[string]int) []string {
	if d.inUse() > modelTotal+1e-6 {
		return []string{fmt.Sprintf("%.0f in use", d.inUse())}
	}
	key := d.key()
	if before, ok := tried[key]; depth == 0 || ok && before >= depth {
		return nil
	}
	tried[key] = depth
	for name, step := range d.steps() {
		c := d.clone()
		step(c)
		if found := c.explore(depth-1, tried); found != nil {
			return append([]string{name}, found...)
		}
	}
	return nil
}

var depth = flag.Int("depth", 7, "how many steps of two processes to try in every order")

// Every order of so many steps of two processes. They are enough to find what is wrong
// without one of the rules.
func TestSharesInEveryOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the model has no goroutines, and takes a minute under the race detector")
	}
	steps := *depth
	tried := map[string]int{}
	if trace := newDuel(nil).explore(steps, tried); trace != nil {
		t.Fatalf("%q", trace)
	}
	t.Logf("%d worlds", len(tried))
	broken := func(s *Shares) { s.own.joined = !s.own.sent.IsZero() }
	if trace := newDuel(broken).explore(9, map[string]int{}); trace == nil {
		t.Error("a joiner that does not wait: nothing wrong was found")
	} else {
		t.Logf("a joiner that does not wait: %q", trace)
	}
}
