package throttle

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	modelLease = 30 * time.Second
	modelTrust = 15 * time.Second
	modelTotal = 1000
)

var modelStart = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

// Bugs are mistakes that a process may make.
type bugs struct {
	joinsAtOnce   bool // it has a share as soon as its heartbeat is there
	joinsTooEarly bool // it takes an instant before its insert for one after it
	tellsTooSoon  bool // its heartbeat tells of a read that it has not taken in yet
	tellsAnswer   bool // its heartbeat tells when a read was answered
	keepsLapsed   bool // it does not join again after a renewal that came too late
	leaseFromAck  bool // it counts its lease from the answer
	leavesLate    bool // it leaves, and uses its share until it hears so
	buriesEarly   bool // it takes the others for dead after half a lease
	buriesByOld   bool // it takes the others for dead by a read that was sent before
}

// A world is a store with one record per process, and processes that see it only
// through reads, each on a clock of its own.
type world struct {
	now     time.Time
	rng     *rand.Rand
	slow    time.Duration // what a call takes, at the most
	calm    bool          // nothing hangs or gets lost
	records map[string]beatRecord
	marks   int
	names   int
	procs   []*proc
	flights []*flight // of writes, also of processes that are gone
	bugs    bugs
	wrong   func(number int) bool // which processes make the mistakes
	peak    float64
	joins   int
}

// A beatRecord is a heartbeat in the store.
type beatRecord struct {
	Heartbeat
	process *proc
}

// A proc is one process.
type proc struct {
	w      *world
	shares *Shares
	name   string
	bugs   bugs
	ahead  time.Duration // its clock, against the world's
	frozen time.Time

	share  Share // as it was set last
	epoch  int64
	mark   string // of its record, as far as it knows
	live   bool
	unsure bool // a write may or may not have happened
	wants  bool
	leaves bool // it sends nothing but its removal any more
	sent   time.Time
	told   time.Time // what its next heartbeat tells, in the store's time
	news   bool
	last   time.Time // when it sent its last read
	again  time.Time // when it may write again
	write  *flight
	reads  []*look
	seen   map[string]time.Time // when a mark was seen first, of another process under its name
	met    map[string]time.Time // likewise, of anybody
}

// A flight is a write on its way.
type flight struct {
	by                   *proc
	rec                  beatRecord
	prev                 string
	remove, done, failed bool
	lost                 bool // no answer ever comes
	sent, commits, acks  time.Time
}

// A look is a read on its way.
type look struct {
	sent, reads, answers, stored, told time.Time
	got                                []Heartbeat
	mine                               *beatRecord
	done                               bool
}

func (w *world) upTo(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most) + 1))
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// join adds a process, under a new name or under that of one before.
func (w *world) join(name string) *proc {
	w.names++
	if name == "" {
		name = fmt.Sprint("p", w.names)
	}
	p := &proc{w: w, name: name, wants: true, ahead: w.upTo(time.Hour) - 30*time.Minute, seen: map[string]time.Time{}, met: map[string]time.Time{}}
	if w.wrong != nil && w.wrong(w.names) {
		p.bugs = w.bugs
	}
	p.shares = NewShares(p.name, modelLease, modelTrust)
	p.shares.SetTotal(Limit{PerSecond: modelTotal})
	p.set()
	w.procs = append(w.procs, p)
	return p
}

func (p *proc) clock(t time.Time) time.Time { return t.Add(p.ahead) }

func (p *proc) set() { p.share = p.shares.Share(p.clock(p.w.now)) }

// inUse returns what all processes may use now, by what each set last: a frozen
// process may be woken at any instant and has only that.
func (w *world) inUse() (sum float64) {
	for _, p := range w.procs {
		if p.clock(w.now).Before(p.share.Until) {
			sum += p.share.PerSecond
		}
	}
	return sum
}

// commit lets a write take effect, by compare-and-set.
func (w *world) commit(f *flight) {
	f.done = true
	if w.records[f.rec.Owner].Mark != f.prev {
		f.failed = true
		return
	}
	if f.remove {
		delete(w.records, f.rec.Owner)
		return
	}
	w.records[f.rec.Owner] = f.rec
}

// send sends a heartbeat. An epoch begins, is renewed, or ends.
func (p *proc) send(lease time.Duration, remove bool) {
	w := p.w
	w.marks++
	f := &flight{by: p, prev: p.mark, remove: remove, sent: w.now, lost: !w.calm && w.chance(4)}
	f.rec = beatRecord{process: p, Heartbeat: Heartbeat{Owner: p.name, Epoch: p.epoch, Mark: fmt.Sprint(w.marks), Lease: lease, Read: p.told}}
	f.commits = w.now.Add(w.upTo(w.slow))
	if !w.calm && w.chance(3) { // it hangs somewhere, perhaps until nobody waits any more
		f.commits = f.commits.Add(w.upTo(2 * modelLease))
	}
	f.acks = f.commits.Add(w.upTo(w.slow))
	p.news, p.write = false, f
	w.flights = append(w.flights, f)
}

// answered takes in what became of a write, or that nobody knows.
func (p *proc) answered() {
	w, f := p.w, p.write
	late := w.now.Sub(f.sent) >= modelLease/3
	known := f.done && !f.lost && !f.acks.After(w.now)
	if !known && !late {
		return
	}
	p.write = nil
	switch {
	case !known, f.failed:
		p.unsure, p.again = true, w.now.Add(500*time.Millisecond)
		return
	case f.remove:
		p.mark = ""
		return
	}
	p.mark = f.rec.Mark
	if f.rec.Lease == 0 {
		if p.bugs.leavesLate {
			p.shares.Ended()
		}
		return
	}
	if p.live && w.now.Sub(p.sent) >= modelLease && !p.bugs.keepsLapsed {
		return // too late: it lapses
	}
	if !p.live {
		w.joins++
	}
	p.live, p.sent = true, f.sent
	sent, acked := p.clock(f.sent), p.clock(w.now)
	if p.bugs.keepsLapsed && !p.shares.own.sent.IsZero() {
		p.shares.own.sent = acked
	}
	if p.bugs.leaseFromAck {
		sent = acked
	}
	p.shares.Renewed(sent, acked)
}

// pulse does what a process does with its heartbeat, in that order.
func (p *proc) pulse() {
	w := p.w
	if p.write != nil {
		p.answered()
	}
	if p.live && w.now.Sub(p.sent) >= modelLease && !p.bugs.keepsLapsed && !p.bugs.leaseFromAck {
		p.live = false
		p.shares.Ended()
	}
	if p.write != nil || p.unsure || w.now.Before(p.again) {
		return
	}
	due := w.now.Sub(p.sent) >= modelLease/3
	switch {
	case p.leaves && p.mark != "":
		p.end()
		p.send(0, true)
	case p.leaves:
	case p.live && p.wants && (due || p.news):
		p.send(modelLease, false)
	case p.live && !p.wants && due:
		p.end()
		p.send(0, false)
	case !p.live && p.wants:
		p.epoch++
		p.send(modelLease, false)
	}
}

func (p *proc) end() {
	p.live = false
	if !p.bugs.leavesLate {
		p.shares.Ended()
	}
}

// look takes in what was read.
func (p *proc) look() {
	w := p.w
	for _, l := range p.reads {
		if !l.done || l.answers.After(w.now) {
			continue
		}
		p.found(l)
		sent, all := p.clock(l.sent), l.got
		if p.bugs.buriesByOld {
			sent = p.clock(w.now)
		}
		if p.bugs.buriesEarly {
			for i := range all {
				all[i].Lease /= 2
			}
			p.shares.lease /= 2
		}
		news := p.shares.Observe(sent, p.clock(w.now), l.stored, all)
		if p.bugs.buriesEarly {
			p.shares.lease *= 2
		}
		p.news = p.news || news
		if l.told.After(p.told) {
			p.told = l.told
		}
		if p.bugs.joinsAtOnce && !p.shares.own.sent.IsZero() {
			p.shares.own.joined = true
		}
		if p.bugs.joinsTooEarly {
			p.shares.own.known = l.stored.Add(-modelLease / 4)
		}
	}
	p.reads = slices.DeleteFunc(p.reads, func(l *look) bool { return l.done && !l.answers.After(w.now) })
	if len(p.reads) < 2 && w.now.Sub(p.last) >= w.upTo(modelTrust/3) {
		reads := w.now.Add(w.upTo(w.slow))
		l := &look{sent: w.now, reads: reads, answers: reads.Add(w.upTo(w.slow)), told: w.now.Add(-w.upTo(w.slow / 2))}
		if !w.calm && w.chance(15) {
			l.answers = l.answers.Add(w.upTo(modelTrust))
		}
		l.stored = l.sent.Add(w.upTo(l.answers.Sub(l.sent)))
		if p.bugs.tellsAnswer {
			l.told = l.answers
		}
		if p.bugs.tellsTooSoon {
			p.told = l.told
		}
		p.reads, p.last = append(p.reads, l), w.now
	}
}

// found settles what became of a write, and removes what is long dead.
func (p *proc) found(l *look) {
	w := p.w
	if p.unsure && l.sent.After(p.again.Add(-500*time.Millisecond)) && p.write == nil {
		switch {
		case l.mine == nil:
			p.mark, p.unsure = "", false
		case l.mine.process == p:
			p.mark, p.epoch, p.unsure = l.mine.Mark, max(p.epoch, l.mine.Epoch), false
		default: // of another process with this name, dead or alive
			at, ok := p.seen[l.mine.Mark]
			if !ok {
				p.seen[l.mine.Mark] = w.now
			} else if l.sent.Sub(at) >= modelLease {
				p.mark, p.epoch, p.unsure = l.mine.Mark, max(p.epoch, l.mine.Epoch), false
			}
		}
	}
	for _, h := range l.got { // what has stood still for a lease is removed
		at, ok := p.met[h.Mark]
		if !ok {
			p.met[h.Mark] = w.now
		} else if h.Lease > 0 && h.Owner != p.name && l.sent.Sub(at) >= modelLease && w.chance(30) {
			w.flights = append(w.flights, &flight{by: p, rec: beatRecord{Heartbeat: Heartbeat{Owner: h.Owner}}, prev: h.Mark,
				remove: true, lost: true, commits: w.now.Add(w.upTo(w.slow))})
		}
	}
}

// step lets everything happen that has come due.
func (w *world) step() {
	for _, f := range w.flights {
		if !f.done && !f.commits.After(w.now) {
			w.commit(f)
		}
	}
	w.flights = slices.DeleteFunc(w.flights, func(f *flight) bool { return f.done })
	for _, p := range w.procs {
		for _, l := range p.reads {
			if l.done || l.reads.After(w.now) {
				continue
			}
			l.done = true
			for name, r := range w.records {
				l.got = append(l.got, r.Heartbeat)
				if name == p.name {
					l.mine = &r
				}
			}
		}
		if p.frozen.After(w.now) {
			continue
		}
		p.pulse()
		p.look()
		p.set()
	}
}

// fate lets processes come, go, freeze, die and change their names.
func (w *world) fate() {
	if len(w.procs) == 0 || len(w.procs) < 5 && w.chance(2) {
		w.join("")
	}
	for i := 0; i < len(w.procs); i++ {
		p := w.procs[i]
		if p.frozen.After(w.now) {
			continue
		}
		switch dice := w.rng.IntN(1000); {
		case p.leaves && p.mark == "" && p.write == nil && !p.unsure: // removed: it ends, or starts again
			w.procs = slices.Delete(w.procs, i, i+1)
			i--
			if w.chance(50) {
				w.join([]string{p.name, ""}[w.rng.IntN(2)])
			}
		case dice < 6:
			p.frozen = w.now.Add(w.upTo(90 * time.Second))
		case dice < 10: // dead, and somebody takes its place, also under its name
			w.procs = slices.Delete(w.procs, i, i+1)
			i--
			if w.chance(50) {
				w.join([]string{p.name, ""}[w.rng.IntN(2)])
			}
		case dice < 14:
			p.leaves = true
		case dice < 30:
			p.wants = !p.wants
		}
	}
}

// run lets processes live at random, and returns the first excess over the total, and
// the mean that was in use.
func (w *world) run(seed uint64, steps int) (mean float64, excess string) {
	w.rng = rand.New(rand.NewPCG(seed, 7))
	w.slow = time.Duration(1+w.rng.IntN(40)) * 100 * time.Millisecond
	var sum, all float64
	for step := range steps {
		dt := w.upTo(2 * time.Second)
		sum += w.inUse() * dt.Seconds()
		all += dt.Seconds()
		w.now = w.now.Add(dt)
		w.fate()
		w.step()
		got := w.inUse()
		if w.peak = max(w.peak, got); got > modelTotal+1e-6 {
			return 0, fmt.Sprintf("seed %d step %d: %.1f of %d in use", seed, step, got, modelTotal)
		}
	}
	return sum / all, ""
}

func newWorld() *world { return &world{now: modelStart, records: map[string]beatRecord{}} }

var seeds = flag.Int("seeds", 2500, "how many lives of several processes to try")

// The sum of all shares never exceeds the total, whatever happens to heartbeats, reads
// and processes.
func TestSharesNeverExceedTheTotal(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 200)
	}
	var mean float64
	joins := 0
	for seed := range uint64(n) {
		w := newWorld()
		got, excess := w.run(seed, 400)
		if excess != "" {
			t.Fatal(excess)
		}
		mean += got / float64(n)
		joins += w.joins
	}
	t.Logf("%d lives: on the mean %.0f of %d in use, %d epochs", n, mean, modelTotal, joins)
	if mean < modelTotal/4 { // else nothing was put to the test
		t.Errorf("on the mean only %.1f of %d in use", mean, modelTotal)
	}
}

// Each of the rules is needed: the model finds what goes wrong without it.
func TestTheModelCatchesWrongShares(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the model has no goroutines, and takes minutes under the race detector")
	}
	for name, b := range map[string]bugs{
		"a joiner that does not wait":                  {joinsAtOnce: true},
		"a joiner that counts from before its insert":  {joinsTooEarly: true},
		"a heartbeat that tells of a read under way":   {tellsTooSoon: true},
		"a heartbeat that tells when a read ended":     {tellsAnswer: true},
		"a renewal after the lease":                    {keepsLapsed: true},
		"a lease from the answer":                      {leaseFromAck: true},
		"a leaver that goes on":                        {leavesLate: true},
		"others that are dead after half a lease":      {buriesEarly: true},
		"others that are dead by a read sent too soon": {buriesByOld: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(4000) {
				// One process is wrong, or all are.
				for _, only := range []bool{false, true} {
					w := newWorld()
					w.bugs = b
					w.wrong = func(number int) bool { return !only || number%2 == 0 }
					if _, excess := w.run(seed, 400); excess != "" {
						t.Log(excess)
						return
					}
				}
			}
			t.Error("4000 lives showed nothing wrong")
		})
	}
}

// In calm weather the total is used, not merely never exceeded: by one process at once,
// and by three evenly. One that joins has its part within 15 s.
func TestSharesUseTheTotal(t *testing.T) {
	for procs := 1; procs <= 4; procs++ {
		w := newWorld()
		w.rng, w.slow, w.calm = rand.New(rand.NewPCG(1, 7)), 100*time.Millisecond, true
		tick := func(d time.Duration) {
			for range d / (100 * time.Millisecond) {
				w.now = w.now.Add(100 * time.Millisecond)
				w.step()
				if got := w.inUse(); got > modelTotal+1e-6 {
					t.Fatalf("%.0f in use", got)
				}
			}
		}
		for i := range procs {
			p := w.join("")
			for waited := time.Duration(0); p.share.PerSecond == 0; waited += time.Second {
				tick(time.Second)
				if i == 0 && waited > 2*time.Second || waited > 15*time.Second {
					t.Fatalf("process %d of %d has no part after %v", i+1, procs, waited)
				}
			}
		}
		tick(time.Minute)
		for _, p := range w.procs {
			if want := modelTotal / float64(procs); p.share.PerSecond < want-1e-6 {
				t.Errorf("%d processes: one has %.0f, want %.0f", procs, p.share.PerSecond, want)
			}
		}
		if w.inUse() < modelTotal-1e-6 {
			t.Errorf("%d processes use %.0f", procs, w.inUse())
		}
		// One dies: the others have its part after a lease and a trust.
		if procs > 1 {
			w.procs = w.procs[1:]
			tick(modelLease + modelTrust)
			if w.inUse() < modelTotal-1e-6 {
				t.Errorf("after a death %d processes use %.0f", procs-1, w.inUse())
			}
		}
	}
}
