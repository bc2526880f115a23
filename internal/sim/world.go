package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/sweep"
)

// A world is one run: a store, those who use it, and an oracle. It lives in a synctest
// bubble, where hours pass at once.
type world struct {
	plan  *plan
	dice  dice
	began time.Time

	ctx     context.Context // done when the writers and the faults stop
	stop    context.CancelFunc
	actors  sync.WaitGroup
	ghosts  sync.WaitGroup // what takes effect after its caller gave up
	door    chan struct{}  // full while a process has the store open, if only one may
	clocks  []*clock
	deposit []deposit // old copies that somebody may put back
	held    map[heldKey]time.Time

	mu        sync.Mutex
	db        *db
	oracle    *oracle
	kin       map[stem]map[string]kin // what lies below entities
	last      time.Time               // when something was done there
	safe      map[safeCopy]bool       // what archives have
	rush      *rush                   // nil without a rush
	pace      *pace
	targets   map[string]targetFact     // as the store has them
	former    map[string][]formerRecord // that were lost
	restored  map[string]restored       // whose records went back
	refusals  map[refusal]int
	creating  map[string]time.Time // until when a new target record may take effect that was sent
	announced map[string]time.Time // when the operator opens a generation, by target
	policy    sweep.Target         // what processes are configured with, from now on
	calm      bool                 // faults have stopped
	steps     int
	counts    map[string]int
	hash      uint64
	events    []event
	tracing   bool
	violation *Violation

	attendance attendance
	timers     sync.Pool // of calls that wait; no goroutine of another bubble may use them
}

// A Violation is a rule that was broken.
type Violation struct {
	Rule, Text string
	At         time.Duration // since the beginning
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s at %v: %s", v.Rule, v.At.Round(time.Millisecond), v.Text)
}

// Options say what to run.
type Options struct {
	Seed    uint64
	With    []string      // features that only some lives have, and this one must
	Without []string      // features that are left out
	Until   time.Duration // writers and faults stop then; zero is as the seed says
	Trace   bool          // keep the history
	// Hung is told of a run that does not end, and must not return; nil ends the process in a panic.
	Hung  func(seed uint64)
	Bound time.Duration // how long it may take; zero is [Endless]
}

// A Report is what came of a run.
type Report struct {
	Options   Options
	Plan      string
	Steps     int // calls that came to the store
	Hash      uint64
	Counts    map[string]int
	Violation *Violation // nil if no rule was broken
	Events    []string   // the history, if it was kept
}

// Endless is how long one seed may take, which takes a tenth of a second: a loop in
// which no virtual time passes is nothing that a bubble would end by itself. A machine
// that sleeps meanwhile does not count: its monotonic clock stands still.
const Endless = 5 * time.Minute

// Run runs one seed. It does not fail the test: what went wrong is in the report.
func Run(t *testing.T, o Options) (r Report) {
	stuck := time.AfterFunc(cmp.Or(o.Bound, Endless), func() {
		if o.Hung == nil {
			panic(fmt.Sprintf("seed %d does not end: go run ./internal/sim/prove -seed %[1]d", o.Seed))
		}
		o.Hung(o.Seed)
	})
	defer stuck.Stop()
	defer func() {
		if p := recover(); p != nil { // such as a deadlock of all goroutines
			r.Options = o
			r.Violation = &Violation{"panic", fmt.Sprintf("%v\n%s", p, debug.Stack()), 0}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(o)
		w.live()
		r = w.report(o)
	})
	return r
}

func newWorld(o Options) *world {
	p := newPlan(o)
	if o.Until > 0 {
		p.busy = min(p.busy, o.Until)
	}
	w := &world{plan: p, dice: p.dice, began: time.Now(), kin: map[stem]map[string]kin{}, safe: map[safeCopy]bool{}, db: newDB(p.mode, p.lag), targets: map[string]targetFact{},
		held: map[heldKey]time.Time{}, announced: map[string]time.Time{}, former: map[string][]formerRecord{},
		creating: map[string]time.Time{}, refusals: map[refusal]int{},
		counts: map[string]int{}, tracing: o.Trace, door: make(chan struct{}, 1), policy: p.target}
	w.restored, w.attendance.inside = map[string]restored{}, map[*handle]bool{}
	w.oracle = newOracle(w)
	w.pace = newPace(w)
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// live lets writers, sweepers and operators work until the time is up, and then sees
// whether everything comes right.
func (w *world) live() {
	defer func() {
		w.stop()
		w.actors.Wait()
		w.ghosts.Wait()
	}()
	w.backlog()
	w.startWriters()
	w.startParents()
	w.startSweepers()
	w.startDrift()
	w.startOperator()
	w.startApprover()
	w.startRestamper()
	w.startLoser()
	w.startRestorer()
	w.startEditor()
	select {
	case <-time.After(w.plan.busy):
	case <-w.ctx.Done(): // a rule was broken
	}
	w.stop()
	w.actors.Wait()
	w.ghosts.Wait()
	w.mu.Lock()
	w.calm = true
	w.note("world", "faults stop", "", "", nil)
	w.mu.Unlock()
	if w.running() {
		w.resume()
	}
	if w.running() {
		w.sweepRestored()
	}
	if w.running() && w.plan.rush {
		w.rush = newRush(w)
		w.rush.run()
	}
	if w.running() {
		w.checkLiveness()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pace.check()
}

func (w *world) report(o Options) Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := Report{Options: o, Plan: w.plan.String(), Steps: w.steps, Hash: w.hash, Counts: w.counts, Violation: w.violation}
	for _, e := range w.events {
		r.Events = append(r.Events, e.String())
	}
	return r
}

// running reports whether no rule was broken yet.
func (w *world) running() bool { return w.violation == nil }

// violate notes that a rule was broken. The first time counts. The caller holds mu.
func (w *world) violate(rule, format string, args ...any) {
	if w.violation != nil {
		return
	}
	w.violation = &Violation{rule, fmt.Sprintf(format, args...), time.Since(w.began)}
	w.note("oracle", rule, w.violation.Text, "", nil)
	w.stop()
}

// count counts that something interesting happened. The caller holds mu.
func (w *world) count(what string) { w.counts[what]++ }

// afterwards runs what outlives its caller.
func (w *world) afterwards(f func()) {
	w.attendance.ghosts.Add(1)
	w.ghosts.Go(func() {
		defer w.attendance.ghosts.Add(-1)
		f()
	})
}

// act runs an actor until the writers and the faults stop.
func (w *world) act(f func()) {
	w.actors.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.violate("panic", "%v\n%s", p, debug.Stack())
			}
		}()
		f()
	})
}

// sleep lets time pass and reports whether the world goes on.
func (w *world) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return w.ctx.Err() == nil
	case <-w.ctx.Done():
		return false
	}
}

var nobody = new(row)

// rowOrNone returns an entity, or an empty one. The caller holds mu.
func (w *world) rowOrNone(at place, key string) *row {
	if r := w.db.get(at, key); r != nil {
		return r
	}
	return nobody
}

// record returns what the store's target record says. The caller holds mu.
func (w *world) record(target string) (targetFact, bool) {
	r, ok := w.targets[target]
	return r, ok
}

func (w *world) slackOf(target string) time.Duration {
	if r, ok := w.targets[target]; ok && r.slack > 0 {
		return r.slack
	}
	return 10 * time.Minute
}

func (w *world) stalenessOf(target string) time.Duration {
	if r, ok := w.targets[target]; ok && r.staleness > 0 {
		return r.staleness
	}
	return time.Minute
}

// outside reports whether a generation is one that will never be.
func (w *world) outside(generation int) bool { return generation >= 90_000_000 }

// targetsOf returns the targets as a process that begins now is configured.
func (w *world) targetsOf() []sweep.Target {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []sweep.Target
	for i := range w.plan.targets {
		t := w.policy
		t.Name, t.Kind = w.plan.name(i), w.plan.kind(w.plan.name(i))
		t.Descendants = w.plan.descendants(t)
		list = append(list, t)
	}
	return list
}

// name returns the name of the i-th target.
func (p *plan) name(i int) string { return [...]string{"sessions", "tokens"}[i] }

// kind returns the kind of a target.
func (p *plan) kind(name string) string {
	return map[string]string{"sessions": "Session", "tokens": "Token"}[name]
}

// named returns the name of the target of a kind.
func (p *plan) named(kind string) string {
	if kind == "Token" {
		return "tokens"
	}
	return "sessions"
}

// An event is one line of the history.
type event struct {
	at                     time.Duration
	who, what, on, how, ok string
}

func (e event) String() string {
	return fmt.Sprintf("%12.6fs %-14s %-10s %s %s%s", e.at.Seconds(), e.who, e.what, e.on, e.how, e.ok)
}

// note adds to the history, and to its hash. The caller holds mu.
func (w *world) note(who, what, on, how string, err error) {
	at := time.Since(w.began)
	h := w.dice.at(int64(at)).on(who).on(what).on(on).on(how)
	if err != nil {
		h = h.on("failed")
	}
	w.hash += uint64(h) // what ends at one instant, as all sweeps do with the busy time, has no order
	if !w.tracing {
		return
	}
	e := event{at: at, who: who, what: what, on: on, how: how}
	if err != nil {
		e.ok = " -> " + err.Error()
	}
	w.events = append(w.events, e)
}

// places returns where the targets' entities are, in order.
func (w *world) places() []place {
	return slices.SortedFunc(maps.Keys(w.oracle.truth), func(a, b place) int {
		if a.kind != b.kind {
			return len(a.kind) - len(b.kind)
		}
		return len(a.namespace) - len(b.namespace)
	})
}
