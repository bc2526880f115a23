package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// startOperator lets somebody advance, reshard, pause, pace, configure and set clocks.
func (w *world) startOperator() {
	if !w.plan.has("operator") || w.dice.on("operator").yes(0.4) {
		return
	}
	d := w.dice.on("operator")
	c := w.newClock(d)
	w.act(func() {
		for n := int64(0); ; n++ {
			d := d.at(n)
			if !w.sleep(d.on("pause").between(10*time.Second, 3*time.Minute)) {
				return
			}
			w.operate(d, c)
		}
	})
}

func (w *world) operate(d dice, c *clock) {
	name := w.plan.name(d.on("target").below(w.plan.targets))
	switch d.on("what").below(9) {
	case 0, 1:
		shards := pick(d.on("shards"), 0, 1, 2, 3, 4, 6)
		if w.plan.target.Generations {
			w.advance(d, c, name, shards)
		}
	case 2:
		w.pauseFor(d, c, name, d.on("pause lasts").between(time.Second, 2*time.Minute))
	case 3:
		if w.plan.has("pace") {
			w.setPace(d, c, name)
		}
	case 4:
		// Bounds that shrink matter most while writers still go by the larger ones.
		for i := 0; i < 30 && d.on("wait").yes(0.7) && !w.closing() && w.sleep(10*time.Second); i++ {
			continue
		}
		w.configure(d)
	case 5:
		if w.plan.has("audit") {
			w.restore(d, c)
		}
	case 6, 7, 8:
		if d.on("bounds").yes(0.4) {
			w.configure(d.on("more"))
		}
		if w.plan.has("jump") {
			w.setClock(d)
		}
	}
}

// setClock turns somebody's wall clock. Where machines go to sleep it is not set back: no
// clock would be left that tells how long the machine slept.
func (w *world) setClock(d dice) {
	by := d.on("jump").between(-40*time.Second, 40*time.Second)
	if w.plan.suspends {
		by = by.Abs()
	}
	i := d.on("clock").below(len(w.clocks))
	w.clocks[i].set(by)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("operator", "sets", fmt.Sprintf("clock %d by %v", i, by), "", nil)
}

// restore puts back old copies of entities, some of which lie in generations that have
// retired, and lets an audit look for them, as an operator does after a backup.
func (w *world) restore(d dice, c *clock) {
	if w.plan.has("breaker") {
		w.mu.Lock()
		backup := slices.Clone(w.deposit[:min(len(w.deposit), 20)])
		w.mu.Unlock()
		w.putAllBack(backup)
		w.hold(d.on("hold"), backup)
	}
	h := &handle{w: w, name: "audit", dice: d.on("handle"), clock: c, died: make(chan struct{})}
	w.sweep(w.ctx, h, fmt.Sprintf("audit-%d", time.Since(w.began)), d, sweep.Audit, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count("audits by hand")
}

// A heldKey names an entity that somebody holds in a transaction until some instant.
type heldKey struct {
	at  place
	key string
}

// hold has somebody hold some of the entities that were put back for longer than one
// audit takes.
func (w *world) hold(d dice, backup []deposit) {
	if !w.plan.has("locked") || d.on("none").yes(0.5) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	until := time.Now().Add(d.on("until").between(time.Minute, 4*time.Minute))
	for i, old := range backup {
		if d.on("which").at(int64(i)).yes(0.3) {
			w.held[heldKey{old.at, old.r.key}] = until
		}
	}
}

func change(f func(*generation.Record)) func(context.Context, sweep.Config, sweep.Target) error {
	return func(ctx context.Context, c sweep.Config, t sweep.Target) error {
		_, err := control.Change(ctx, c, t, f)
		return err
	}
}

// advance opens a generation by hand. A writer that waits for it may read the record at
// the last moment. Without a ramp, a sweep right after it closes the generation before.
func (w *world) advance(d dice, c *clock, name string, shards int) {
	if d.on("announced").yes(0.6) {
		in := d.on("in").between(10*time.Second, time.Minute)
		w.mu.Lock()
		w.announced[name] = time.Now().Add(in)
		w.mu.Unlock()
		w.sleep(in)
	}
	w.try(d, c, name, "advance", func(ctx context.Context, c sweep.Config, t sweep.Target) error {
		_, err := control.Advance(ctx, c, t, shards, d.on("force").yes(0.2))
		return err
	})
	if d = d.on("by hand"); d.yes(0.6) {
		h := &handle{w: w, name: "by hand", dice: d.on("handle"), clock: c, died: make(chan struct{})}
		w.sweep(w.ctx, h, fmt.Sprintf("hand-%d", time.Since(w.began)), d, sweep.Run, nil)
	}
}

// pauseFor pauses the target, and resumes it.
func (w *world) pauseFor(d dice, c *clock, name string, long time.Duration) {
	if w.command(w.ctx, d, c, name, "pause", change(func(r *generation.Record) { r.Paused = true })) == nil {
		w.mu.Lock()
		if r, ok := w.db.records[store.TargetRecord][name]; ok && readTarget(r.Fields).paused { // else it was lost
			w.pace.paused[name] = time.Now()
		}
		w.mu.Unlock()
	}
	w.sleep(long)
	w.mu.Lock()
	delete(w.pace.paused, name)
	w.mu.Unlock()
	w.try(d.on("again"), c, name, "resume", change(func(r *generation.Record) { r.Paused = false }))
}

// setPace sets what the target may have, and tells the oracle before: from then on the
// larger of old and new counts, until all know. Where the command failed, nobody knows
// what counts, and windows are not looked at.
func (w *world) setPace(d dice, c *clock, name string) {
	most, total := generation.Rate{Set: true, PerSecond: pick(d.on("max"), 0.5297, 2.0173)}, generation.Rate{}
	if d.on("unlimited").yes(0.5) {
		most = generation.Rate{Set: true, Unlimited: true}
	}
	if !w.plan.suspends && !w.plan.drifts && d.on("total").yes(0.3) {
		total = generation.Rate{Set: true, PerSecond: pick(d.on("per second"), 0.5333, 2.0557)}
	}
	rate := func(r generation.Rate, configured float64) float64 {
		switch {
		case !r.Set:
			return configured
		case r.Unlimited:
			return math.Inf(1)
		}
		return r.PerSecond
	}
	configured := math.Inf(1)
	if t := w.plan.target.Total.PerSecond; t > 0 {
		configured = t
	}
	lost := -1 // how often the record had been lost when the command began
	tell := func(most, total float64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if lost < 0 || lost == w.pace.lost[name] { // else the answer may tell of a record that is gone
			lost = w.pace.lost[name]
			w.pace.set(name, most, total)
		}
	}
	tell(math.Inf(1), math.Inf(1))
	err := w.command(w.ctx, d, c, name, "pace", change(func(r *generation.Record) {
		r.PaceMax, r.PaceTotal = most, total
	}))
	if err == nil {
		tell(rate(most, math.Inf(1)), rate(total, configured))
	}
}

// closing reports whether a generation was closed just now.
func (w *world) closing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.oracle.closed {
		if time.Since(at) < 20*time.Second {
			return true
		}
	}
	return false
}

// configure gives processes that begin from now on other bounds for writers, or
// another shard count or page.
func (w *world) configure(d dice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &w.policy
	switch d.on("configure").below(5) {
	case 0, 3, 4:
		t.Policy.Staleness = time.Duration(pick(d.on("staleness"), 15, 30, 60, 60)) * time.Second
		t.Policy.Slack = time.Duration(pick(d.on("slack"), 15, 15, 30, 60, 90)) * time.Second
	case 1:
		if t.Shards > 0 {
			t.Shards = pick(d.on("shards"), 1, 2, 3, 4)
		}
	case 2:
		t.Policy.Every = time.Duration(pick(d.on("every"), 100, 160, 400)) * time.Second
	}
	w.note("operator", "configures", "", "", nil)
}

// A doing is what a command does to a target.
type doing func(context.Context, sweep.Config, sweep.Target) error

// try runs a command that may fail.
func (w *world) try(d dice, c *clock, target, what string, do doing) {
	_ = w.command(w.ctx, d, c, target, what, do)
}

// command runs a command of the program, in a process of its own.
func (w *world) command(ctx context.Context, d dice, clock *clock, target, what string, do doing) error {
	h := &handle{w: w, name: "operator", dice: d.on(what), clock: clock, died: make(chan struct{})}
	var failed error
	w.sweep(ctx, h, "operator", d, func(ctx context.Context, c sweep.Config) sweep.Result {
		for _, t := range c.Targets {
			if t.Name == target {
				failed = do(ctx, c, t)
			}
		}
		return sweep.Result{}
	}, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("operator", what, target, "", failed)
	w.count(what)
	return failed
}
