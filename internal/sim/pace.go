package sim

import (
	"math"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/pacecheck"
	"github.com/reaper-ttl/reaper/store"
)

// A pace holds P2: it writes down what every worker was granted, and which limits were
// in force, and looks at each window of time in the end. Nobody writes what is paused.
type pace struct {
	w       *world
	commits map[string][]pacecheck.Commit  // by target
	ranges  map[string][]pacecheck.Segment // limits of each range, by target
	totals  map[string][]pacecheck.Segment // by target
	paused  map[string]time.Time           // since when, by target
	lost    map[string]int                 // how often the record with the limits was lost, by target
}

func newPace(w *world) *pace {
	p := &pace{w: w, commits: map[string][]pacecheck.Commit{}, ranges: map[string][]pacecheck.Segment{},
		totals: map[string][]pacecheck.Segment{}, paused: map[string]time.Time{},
		lost: map[string]int{}}
	t := w.plan.target
	most, total := math.Inf(1), math.Inf(1)
	if !t.Pace.Unlimited {
		most = t.Pace.Max
	}
	if t.Total.PerSecond > 0 {
		total = t.Total.PerSecond
	}
	most *= w.fastest()
	for i := range w.plan.targets {
		name := w.plan.name(i)
		p.totals[name] = []pacecheck.Segment{{From: w.began, PerSecond: total}}
		p.ranges[name] = []pacecheck.Segment{{From: w.began, PerSecond: most}}
		if !t.Pace.Unlimited {
			p.ranges[name] = w.hurriedRamp(pacecheck.Ramp(w.began, t.Pace.Start, t.Pace.Max, 200*time.Hour))
		}
	}
	return p
}

// pausedWithin is how long after a pause took effect somebody may still write: the record
// by which he does is at most 15 s old, by whichever of his clocks says more.
const pausedWithin = 20 * time.Second

// takesEffect is how long it may take until every worker knows of a change.
const takesEffect = 30 * time.Second

// set notes that an operator has set other limits: until everybody knows the larger
// ones count.
func (p *pace) set(target string, most, total float64) {
	now := time.Now()
	most, total = most*p.w.fastest(), total*p.w.fastest()
	for list, rate := range map[*map[string][]pacecheck.Segment]float64{&p.ranges: most, &p.totals: total} {
		segments := (*list)[target]
		n := len(segments)
		for n > 0 && segments[n-1].From.After(now) { // of a ramp that was to go on, or of a change that nobody knows yet
			n--
		}
		before := segments[n-1].PerSecond
		for _, s := range segments[n:] {
			before = max(before, s.PerSecond)
		}
		(*list)[target] = append(segments[:n:n], pacecheck.Segment{From: now, PerSecond: max(before, rate)},
			pacecheck.Segment{From: now.Add(takesEffect), PerSecond: rate})
	}
}

// forget notes that what operators had set is lost.
func (p *pace) forget(target string) {
	p.lost[target]++
	p.set(target, math.Inf(1), math.Inf(1))
}

// grant notes that a worker is about to write.
func (p *pace) grant(h *handle, t store.Target, q store.Query, n int) {
	at := rangeKey(t, q)
	if p.w.oracle.leases[at].owner != h.holder {
		at = auditShard
	}
	if since, ok := p.paused[t.Name]; ok && time.Since(since) > pausedWithin {
		p.w.violate("P2", "%s writes %d entities of %s, which has been paused for %v", h.name, n, t.Name, time.Since(since))
	}
	p.commits[t.Name] = append(p.commits[t.Name], pacecheck.Commit{Range: at, At: time.Now(), Count: n})
}

// check looks for windows with too much.
func (p *pace) check() {
	for i := range p.w.plan.targets {
		name := p.w.plan.name(i)
		plan := p.w.plan
		trace := pacecheck.Trace{Page: plan.target.Page, Commits: p.commits[name], Ranges: map[string][]pacecheck.Segment{}}
		for _, c := range p.commits[name] {
			if !strings.HasSuffix(c.Range, auditShard) {
				trace.Ranges[c.Range] = p.ranges[name]
			}
		}
		// Each bucket holds one entity at least. Where a total is shared by many claims,
		// that is more than its own bucket would hold: one in each range, and in each audit.
		claims := len(trace.Ranges) + len(plan.namespaces)
		total := pacecheck.Trace{Page: plan.target.Page + claims, Commits: p.commits[name], Total: p.totals[name]}
		for _, e := range append(pacecheck.Check(trace), pacecheck.Check(total)...) {
			p.w.violate("P2", "%s: %v", name, e)
		}
	}
}
