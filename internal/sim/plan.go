package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// The kinds of store, as far as a sweep can tell them apart.
const (
	lookup   = "datastore, guard lookup" // a delete compares the expiry
	query    = "datastore, guard query"  // likewise, all or nothing
	native   = "firestore native"        // a delete compares the version of the whole entity
	embedded = "embedded"                // one process at a time; drops retired generations
)

// What can go wrong with a call. Each has a rate of its own in each seed.
var faults = []string{
	"refuse",     // an error; nothing happened
	"pushback",   // a quota
	"contention", // of a transaction
	"locked",     // entities and records that nobody can write for a while
	"toolarge",   // too many writes at once
	"fail",       // an error that no patience helps against
	"lost",       // it took effect, and the reply is an error
	"late",       // the caller gives up, then it takes effect
	"stall",      // nothing for longer than anyone waits
	"slow",       // request or reply take seconds
	"partial",    // some writes of a batch take effect, for the others there is an error
}

// What else can happen, or takes part. Shrinking leaves out one after the other.
var features = slices.Concat(faults, []string{
	"outage",                            // minutes in which nearly every call is refused
	"stale",                             // scans show the index as it was some seconds ago
	"kill", "stop", "freeze", "suspend", // of sweepers
	"skew", "jump", // of clocks
	"sweeper 2", "sweeper 3", "dry", "audit", "operator", "pace",
	"follower", "lazy", "nursery", "straggler", "breaker", "wrongshard", "junk", // writers
	"extend", "meddle", "remove", "limits", "drag", "refused", "deploy",
}, some)

// Some of the lives have these, which all may be made to have.
var some = []string{"partly", "rush", "lose", "trips", "restamp", "lists", "drift", "overlap", "restore", "edit",
	"descend", "archive"}

// IsFeature reports whether there is something of that name that a life may have.
func IsFeature(name string) bool { return slices.Contains(features, name) }

// IsOfSome reports whether only some lives have a feature, and all may be made to have it.
func IsOfSome(name string) bool { return slices.Contains(some, name) }

// A plan is what one seed makes of everything that can be chosen.
type plan struct {
	seed          uint64
	dice          dice
	with, without []string

	mode       string
	target     sweep.Target
	targets    int
	namespaces []string
	partly     bool          // the first sweeper sweeps only the default one
	joins      time.Duration // when the others begin, which sweep all of them
	lists      *lists        // of namespaces, by deployment; nil if all have the same

	sweepers int
	workers  int
	interval time.Duration // between two sweeps of a sweeper
	serve    bool          // sweepers are daemons
	tick     time.Duration // of their schedules
	busy     time.Duration // how long writers and faults go on
	ids      int           // entities have so few names
	ttl      time.Duration // most of them are shorter
	writing  time.Duration // between two writes of a writer, about

	rates    map[string]float64
	outages  []span
	lag      time.Duration // scans are no older than this
	hasty    bool          // sweeps follow each other within seconds, and are stopped soon
	suspends bool          // machines go to sleep, and their monotonic clocks with them
	drifts   bool          // sweepers' clocks run too slow or too fast
	overlap  *overlap      // of two targets files; may be nil
	rush     bool          // a rush follows
	night    bool          // the audit at the end is left to the sweeps of days to come
	descends bool          // entities have descendants
	archives string        // what is kept of entities before they are deleted: keysAlone, wholeOnes or nothing
	restamps bool          // somebody restamps many entities at once, of a target with a breaker
}

type span struct{ from, to time.Duration } // since the beginning

func (p *plan) has(feature string) bool { return !slices.Contains(p.without, feature) }

// takesPart draws whether a feature is in the life: so often, or if all lives are to have it.
func (p *plan) takesPart(feature string, d dice, often float64) bool {
	return p.has(feature) && (slices.Contains(p.with, feature) || d.yes(often))
}

// newPlan draws the plan of a life.
func newPlan(o Options) *plan {
	root := dice(mix(o.Seed ^ 0x5eed))
	d := root.on("plan")
	p := &plan{seed: o.Seed, dice: root, with: o.With, without: o.Without, rates: map[string]float64{}}
	p.mode = pick(d.on("mode"), lookup, lookup, query, query, native, native, embedded)
	p.namespaces = pick(d.on("namespaces"), []string{""}, []string{""}, []string{""}, []string{""}, []string{"", "eu"})
	if slices.Contains(p.with, "partly") {
		p.namespaces = []string{"", "eu"}
	}
	p.targets = pick(d.on("targets"), 1, 1, 1, 1, 1, 1, 1, 1, 1, 2)
	p.sweepers = pick(d.on("sweepers"), 1, 2, 2, 3)
	for p.sweepers > 1 && !p.has(fmt.Sprint("sweeper ", p.sweepers)) {
		p.sweepers--
	}
	p.restamps = p.has("trips") && p.takesPart("restamp", d.on("restamps"), restampRate)
	if p.restamps && p.has("sweeper 2") { // of which one may have reserved what the other deletes
		p.sweepers = max(2, p.sweepers)
	}
	if p.mode == embedded {
		p.sweepers = 1
	}
	p.workers = pick(d.on("workers"), 1, 2, 4)
	if p.targets > 1 {
		p.workers = 1 // targets would compete for workers at one instant
	}
	p.interval = d.on("interval").between(25*time.Second, 2*time.Minute)
	p.serve = d.on("serve").yes(0.5)
	p.tick = time.Duration(pick(d.on("tick"), 1, 2, 5, 10, 20, 60)) * time.Second
	p.busy = d.on("busy").between(4*time.Minute, 12*time.Minute)
	if d.on("long").yes(0.06) { // what takes many generations, or a whole period of anything
		p.busy = d.on("busy").between(15*time.Minute, 40*time.Minute)
	}
	if p.serve && p.tick < 5*time.Second { // each tick asks each range
		p.busy = min(p.busy, 8*time.Minute)
	}
	p.ids = 10 + d.on("ids").below(30)
	p.ttl = d.on("ttl").between(100*time.Second, 6*time.Minute)
	p.writing = d.on("writing").between(6*time.Second, 24*time.Second)
	p.night = d.on("night").yes(0.2)
	p.drawLists(d)
	p.drawTarget(d)
	p.drawEvents(d)
	return p
}

// drawEvents draws what happens to the target that is drawn.
func (p *plan) drawEvents(d dice) {
	rush := 0.12
	if len(p.namespaces)*p.targets*p.target.Shards > 4 { // many ranges make a life dear, and show little more
		rush, p.busy = 0.06, max(4*time.Minute, p.busy/2)
	}
	p.rush = p.lists == nil && p.takesPart("rush", d.on("rush"), rush)
	if p.partly && d.on("joins").yes(0.5) { // they come to generations that were sealed without them
		p.joins = d.on("joins at").between(p.busy/4, p.busy*3/4)
	}
	p.drawFaults(d)
	// A total is shared by clocks that run equally fast: the program says so.
	p.drawDrift(d)
	p.drawOverlap(d)
	p.drawDescend(d)
	p.drawArchive(d)
	if p.overlap != nil && p.overlap.what == "retention" { // a rush writes what has expired already
		p.rush = false
	}
	p.suspends = p.has("suspend") && !p.drifts && p.target.Total.PerSecond == 0 && d.on("suspends").yes(0.5)
	if p.paced() && d.on("hasty").yes(0.5) {
		p.hasty, p.busy = true, min(p.busy, 8*time.Minute)
	}
}

// isPlain reports whether the life has none of the events that each loosen what the others hold:
// overlapping targets files, different lists of namespaces, restamps, clocks that drift, and descendants.
func (p *plan) isPlain() bool {
	return p.overlap == nil && p.lists == nil && !p.restamps && !p.drifts && !p.descends
}

// paced reports whether the configuration limits the pace.
func (p *plan) paced() bool { return !p.target.Pace.Unlimited || p.target.Total.PerSecond > 0 }

func (p *plan) drawTarget(d dice) {
	seconds := func(what string, list ...int) time.Duration {
		return time.Duration(pick(d.on(what), list...)) * time.Second
	}
	t := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text,
			Guard: store.GuardLookup},
		Layout: "generation", Generations: true,
		Shards:       pick(d.on("shards"), 1, 1, 1, 2, 2, 2, 3, 5),
		Namespaces:   p.namespaces,
		Retention:    seconds("retention", 0, 0, 0, 90, 600),
		MaxAge:       30 * 24 * time.Hour,
		Rewind:       seconds("rewind", 110, 240, 600, 1800),
		Overlap:      seconds("overlap", 10, 10, 30),
		Page:         pick(d.on("page"), 3, 3, 4, 5, 7),
		Lease:        seconds("lease", 10, 15, 30) + 173*time.Millisecond, // no two timers are to meet
		MaxClockSkew: 10 * time.Second,
		Pace:         throttle.Limits{Unlimited: true},
		Policy: generation.Policy{
			Every: seconds("every", 100, 120, 180, 300), Ramp: seconds("ramp", 0, 5, 20, 30, 60),
			Staleness: seconds("staleness", 15, 30, 60, 60), Slack: seconds("slack", 15, 30, 60, 90),
			Settle: pick(d.on("settle"), 0, 0, 0, 1, 2), Keep: pick(d.on("keep"), 1, 1, 1, 2, 3),
		},
	}
	switch pick(d.on("layout"), 0, 0, 0, 0, 0, 0, 1, 2, 3) {
	case 1:
		t.Layout, t.Generations = "sharded", false
	case 2:
		t.Layout, t.Generations, t.Shards = "timestamp", false, 0
		t.Property, t.Type = "expires", store.Instant
	case 3:
		t.Layout, t.Generations, t.Shards = "sharded-timestamp", false, 0
		t.Property, t.Type, t.ShardProperty = "expires", store.Instant, "shard"
		t.ShardValues = []store.Value{store.IntegerValue(7), store.IntegerValue(-1), store.IntegerValue(12)}
	}
	if p.mode == query {
		t.Guard, t.SingleValued = store.GuardQuery, true
	}
	if t.Type == store.Instant && p.mode == query {
		p.mode, t.Guard, t.SingleValued = lookup, store.GuardLookup, false // as the program demands
	}
	if len(p.namespaces) > 1 && d.on("star").yes(0.3) {
		t.Namespaces = []string{"*"}
	}
	p.partly = len(p.namespaces) > 1 && p.lists == nil && p.takesPart("partly", d.on("partly"), 0.5)
	if p.has("pace") && d.on("pace").yes(0.25) {
		start := pick(d.on("start"), 0.0313, 0.2137, 0.5171, 1.0191, 2.0371)
		t.Pace = throttle.Limits{Start: start, Max: start * pick(d.on("max"), 1, 1, 1.5, 4)}
	}
	if p.has("pace") && d.on("total").yes(0.12) {
		t.Total = throttle.Limit{PerSecond: pick(d.on("most"), 0.5231, 1.0373, 3.0119, 17.3341)}
	}
	p.drawBrakes(d, &t)
	p.target = t
}

// drawBrakes draws limits and a breaker.
func (p *plan) drawBrakes(d dice, t *sweep.Target) {
	if p.has("limits") && d.on("limits").yes(0.1) {
		t.Limits.PerHour = int64(1 + d.on("deletes").below(12))
	}
	if p.has("limits") && d.on("per day").yes(0.05) {
		t.Limits.PerDay = int64(1 + d.on("deletes a day").below(30))
	}
	if p.restamps || p.takesPart("trips", d.on("trips"), 0.3) {
		window := pick(d.on("window"), 30, 60, 300)
		t.Breaker = breaker.Rules{On: true, Floor: pick(d.on("floor"), int64(1), 3, 8, 20), Fraction: 0.25,
			Window: time.Duration(window) * time.Second, Learn: time.Minute}
	}
}

func (p *plan) drawFaults(d dice) {
	often := pick(d.on("often"), 0, 0.5, 1, 1, 2) // some seeds are calm, some are mad
	for _, f := range faults {
		if rate := pick(d.on("rate of "+f), 0, 0, 0.005, 0.02, 0.06); p.has(f) {
			p.rates[f] = rate * often
		}
		if f == "partial" || f == "toolarge" { // few calls have several writes
			p.rates[f] *= 5
		}
	}
	if p.has("outage") && d.on("outage").yes(0.3) {
		for i := range 1 + d.on("outages").below(2) {
			from := d.on("begins").at(int64(i)).between(0, p.busy)
			p.outages = append(p.outages, span{from, from + d.on("lasts").at(int64(i)).between(10*time.Second, 2*time.Minute)})
		}
	}
	// Where an index is only eventually consistent, the design asks for settle.
	settles := p.target.Policy.Settle > 0 || !p.target.Generations
	if p.has("stale") && settles && p.mode != embedded && d.on("stale").yes(0.5) {
		p.lag = d.on("lag").between(time.Second, 8*time.Second)
	}
}

// String says what was drawn.
func (p *plan) String() string {
	t := p.target
	s := fmt.Sprintf("%s; layout %s; %d targets, namespaces %q, %d shards, page %d; ",
		p.mode, t.Layout, p.targets, t.Namespaces, t.Shards, t.Page)
	s += fmt.Sprintf("%d sweepers of %d workers every %v, serve %v, tick %v; lease %v, overlap %v, rewind %v, ",
		p.sweepers, p.workers, p.interval.Round(time.Second), p.serve, p.tick, t.Lease, t.Overlap, t.Rewind)
	s += fmt.Sprintf("retention %v; %+v; pace %+v, total %+v, limits %+v; ",
		t.Retention, t.Policy, t.Pace, t.Total, t.Limits)
	s += fmt.Sprintf("%d ids, ttl %v, a write every %v; busy for %v",
		p.ids, p.ttl.Round(time.Second), p.writing.Round(time.Second), p.busy.Round(time.Second))
	var rates []string
	for _, f := range faults {
		if p.rates[f] > 0 {
			rates = append(rates, fmt.Sprintf("%s %.3g", f, p.rates[f]))
		}
	}
	s += "; faults: " + strings.Join(rates, ", ")
	for _, o := range p.outages {
		s += fmt.Sprintf("; outage from %v to %v", o.from.Round(time.Second), o.to.Round(time.Second))
	}
	if p.rush {
		s += "; a rush"
	}
	if p.partly {
		s += fmt.Sprintf("; the first sweeper sweeps only one namespace, the others begin after %v",
			p.joins.Round(time.Second))
	}
	if p.lists != nil {
		s += fmt.Sprintf("; deployments list %q, from %v on %q", p.lists.first, p.lists.changes.Round(time.Second),
			p.lists.then)
	}
	if p.restamps {
		s += "; somebody restamps"
	}
	if o := p.overlap; o != nil {
		s += fmt.Sprintf("; another %s overlaps from %v, one sweeper each %v, until %v", o.what,
			o.from.Round(time.Second), o.each.Round(time.Second), o.until.Round(time.Second))
	}
	if p.drifts {
		s += "; clocks that drift"
	}
	if p.lag > 0 {
		s += fmt.Sprintf("; scans up to %v old", p.lag.Round(time.Millisecond))
	}
	return s
}
