package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// chance makes what is left to chance depend on the seed and the instant alone.
func (w *world) chance(ctx context.Context, d dice) context.Context {
	return store.WithChance(ctx, func() float64 { return d.on("chance").at(int64(time.Since(w.began))).float() })
}

func (w *world) startSweepers() {
	for i := range w.plan.sweepers {
		d := w.dice.on("sweeper").at(int64(i))
		s := &sweeper{w: w, number: i, dice: d, clock: w.newClock(d)}
		w.clocks = append(w.clocks, s.clock)
		w.act(s.run)
	}
}

// nowhere is shared by all: what is measured is of no interest here.
var nowhere = metrics.Discard()

// A sweeper is a process that sweeps, again and again. Where it dies, another takes
// its place.
type sweeper struct {
	w      *world
	number int
	dice   dice
	clock  *clock
	life   int // processes so far
}

func (s *sweeper) run() {
	w := s.w
	if s.number > 0 && w.plan.joins > 0 && !w.sleep(w.plan.joins) {
		return
	}
	for n := int64(0); ; n++ {
		d := s.dice.at(n)
		pause := d.on("pause").between(w.plan.interval/2, w.plan.interval*3/2)
		switch {
		case w.plan.hasty:
			pause = d.on("pause").between(0, 4*time.Second)
		case w.plan.serve && n > 0:
			pause = d.on("restart").between(0, pick(d.on("soon"), 3*time.Second, 3*time.Second, w.plan.interval))
		}
		if !w.sleep(pause) {
			return
		}
		s.life++
		s.live(d)
	}
}

// live lets one process live: it sweeps once, or for as long as it is let.
func (s *sweeper) live(d dice) {
	w := s.w
	h := &handle{w: w, name: fmt.Sprintf("sweeper %d.%d", s.number, s.life), dice: s.dice.on("handle").at(int64(s.life)), clock: s.clock,
		died: make(chan struct{}), end: w.drawEnding(d)}
	h.dry = w.plan.has("dry") && d.on("dry").yes(0.04)
	ctx, do := w.ctx, sweep.Run
	if w.plan.has("audit") && d.on("audit").yes(0.04) {
		do = sweep.Audit
	} else if w.plan.serve {
		h.end.after *= 10
		h.next = func(n int) ending {
			e := w.drawEnding(d.on("again").at(int64(n)))
			e.after *= 10
			return e
		}
		most := 6 * time.Minute
		if w.plan.mode == embedded { // commands wait until it has closed the store
			most = 2 * time.Minute
		}
		let, cancel := context.WithTimeout(w.ctx, d.on("let").between(10*time.Second, most))
		defer cancel()
		ctx, do = let, w.serve(h, w.plan.tick, d.on("first").yes(0.7), d.on("tick").between(0, w.plan.tick))
	}
	w.sweep(ctx, h, fmt.Sprintf("p%d-%d", s.number, s.life), d, do, nil)
}

// serve returns what a daemon does. Ticks of different processes do not meet.
func (w *world) serve(h *handle, tick time.Duration, first bool, offset time.Duration) func(context.Context, sweep.Config) sweep.Result {
	return func(ctx context.Context, c sweep.Config) sweep.Result {
		for i := range c.Targets {
			c.Targets[i].Next = func(at time.Time) time.Time {
				return at.Add(-offset).Truncate(tick).Add(tick + offset)
			}
		}
		daemon := sweep.NewDaemon(c, first)
		daemon.Run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, st := range daemon.States() {
			w.note(h.name, "served", st.Target, fmt.Sprintf("%d deleted, held %q", st.Deleted, st.Held), nil)
			if !st.Swept.IsZero() {
				w.count("daemons that swept all")
			}
		}
		w.count("daemons")
		return sweep.Result{}
	}
}

// An alarm looks for bugs of the program in what it logs.
type alarm struct {
	w   *world
	who string
}

// Enabled implements slog.Handler.
func (alarm) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (a alarm) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "refuses an entity") {
		a.refused(r) // of many, the debug log alone names some
	}
	if r.Level < slog.LevelWarn {
		return nil
	}
	r.Attrs(func(attr slog.Attr) bool {
		if text := attr.Value.String(); strings.Contains(text, "internal error") {
			a.w.mu.Lock()
			defer a.w.mu.Unlock()
			a.w.violate("panic", "%s: %s: %s", a.who, r.Message, text)
		}
		return true
	})
	return nil
}

// leastRefusals is how often the store must have refused an entity before a process may
// keep it as refused.
const leastRefusals = 3

// A refusal is an entity that the store has refused to a process.
type refusal struct{ who, namespace, key string }

// refused takes in that a process keeps an entity because the store refused it again
// and again: three faults in a row look just so. It must say which.
func (a alarm) refused(r slog.Record) {
	var key, namespace string
	r.Attrs(func(attr slog.Attr) bool {
		switch attr.Key {
		case "key":
			key = attr.Value.String()
		case "namespace":
			namespace = attr.Value.String()
		}
		return true
	})
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if n := a.w.refusals[refusal{a.who, namespace, key}]; n < leastRefusals {
		a.w.violate("L1", "%s keeps %s@%s as refused, and the store has refused it %d times", a.who, key, namespace, n)
	}
	for at, facts := range a.w.oracle.truth {
		if f := facts[key]; f != nil && at.namespace == namespace {
			f.refused = true
		}
	}
	if a.w.rush != nil {
		a.w.rush.named[key] = true
	}
	a.w.count("refused")
}

// WithAttrs implements slog.Handler.
func (a alarm) WithAttrs([]slog.Attr) slog.Handler { return a }

// WithGroup implements slog.Handler.
func (a alarm) WithGroup(string) slog.Handler { return a }

// drawEnding draws what happens in the middle of a sweep.
func (w *world) drawEnding(d dice) ending {
	e := ending{after: 1 + d.on("after").below(pick(d.on("most"), 8, 40, 120))}
	if d.on("later").yes(0.5) {
		e.later = d.on("how much later").between(0, 30*time.Millisecond)
	}
	e.mark = d.on("mark").yes(0.15)
	lease := w.plan.target.Lease
	if how := pick(d.on("how"), "", "", "", "", "", "kill", "kill", "stop", "freeze", "suspend"); w.plan.has(how) {
		e.how = how
	}
	if w.plan.hasty && w.plan.has("stop") && d.on("hasty").yes(0.8) {
		e.how, e.after = "stop", 5+d.on("after").below(40)
	}
	e.lasts = d.on("lasts").between(0, 3*lease)
	if d.on("long").yes(0.2) {
		e.lasts = d.on("lasts").between(0, 6*time.Minute)
	}
	if e.how == "suspend" && !w.plan.suspends {
		e.how = "freeze"
	}
	return e
}

// sweep runs the real thing in a process of its own.
func (w *world) sweep(ctx context.Context, h *handle, owner string, d dice, do func(context.Context, sweep.Config) sweep.Result, change func(*sweep.Config)) sweep.Result {
	if ctx.Err() != nil {
		return sweep.Result{}
	}
	var s store.Store = h
	h.holder = owner
	if w.plan.mode == embedded {
		select {
		case w.door <- struct{}{}:
			defer func() { <-w.door }()
		case <-ctx.Done():
			return sweep.Result{}
		}
		opening := fmt.Sprintf("opening %d", time.Since(w.began))
		h.holder = opening + "/" + owner
		s = &exclusive{h, opening}
	}
	ctx, h.kill = context.WithCancel(w.chance(ctx, h.dice))
	defer h.kill()
	if !w.enter(ctx, h) {
		return sweep.Result{}
	}
	defer w.leave(h)
	c := sweep.Config{Store: s, Targets: w.targetsOf(), Apply: !h.dry, Workers: w.plan.workers, Owner: owner, Now: h.clock.now, Log: slog.New(alarm{w, h.name}), Metrics: nowhere,
		Progress: &sweep.Progress{Begin: h.begins}, Grace: pick(d.on("grace"), 7*time.Millisecond, time.Second, 8*time.Second)}
	if w.plan.partly && strings.HasPrefix(h.name, "sweeper 0.") {
		for i := range c.Targets {
			c.Targets[i].Namespaces = []string{""}
		}
	}
	if w.plan.lists != nil {
		h.lists = w.listOf(h.name, d)
		for i := range c.Targets {
			c.Targets[i].Namespaces = h.lists
		}
	}
	w.rollOut(h, c.Targets)
	if change != nil {
		change(&c)
	}
	w.openArchives(h, c.Targets)
	res := do(ctx, c)
	w.mu.Lock()
	defer w.mu.Unlock()
	h.closed = true
	w.count("sweeps")
	for _, t := range res.Targets {
		w.note(h.name, "swept", t.Name, fmt.Sprintf("complete %v, %d deleted, %d carried, retired %v", t.Complete, t.Deleted, t.Carried, t.Retired), t.Err)
		if strings.Contains(t.Error, "internal error") {
			w.violate("panic", "%s: %s", h.name, t.Error)
		}
		w.counts["strays"] += int(t.Strays)
		w.counts["conflicts"] += int(t.Conflicts)
		if t.Complete {
			w.count("complete sweeps")
		}
	}
	return res
}
