package sim

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// What is due must be gone after one sweep, after the next rewind or seal, after a full
// round of the audit, or never goes.
const (
	afterSweep = iota + 1
	afterRewind
	afterAudit
	stays
)

// oneSweep is the name of the first sweep without faults.
const oneSweep = "one sweep"

// level says when an entity that is due must be gone, once faults have stopped.
func (o *oracle) level(at place, f *fact) int {
	t := o.w.plan.target
	ahead, was := o.w.isAhead(o.w.plan.named(at.kind), f)
	switch {
	case ahead:
		return stays
	case !f.wellFormed, o.suspect(f), t.Type == store.Text && o.w.outside(f.key.generation):
		return stays
	case o.w.isUnlisted(f):
		return stays
	case !f.withinBounds, f.leftBehind, was, o.isSkipped(at, f):
		return afterAudit
	case !f.inOrder, f.beyond, f.refused:
		return afterRewind // shards past the last one are looked for at each rewind
	}
	return afterSweep
}

// isUnlisted reports whether an entity lies in a shard that no targets file lists: no sweep reads it.
func (w *world) isUnlisted(f *fact) bool {
	return w.plan.target.ShardProperty != "" && f.shard == unlistedShard
}

// resume takes back what operators have ordered.
func (w *world) resume() {
	healthy := &clock{began: w.began}
	for i := range w.plan.targets {
		w.mu.Lock()
		w.pace.set(w.plan.name(i), math.Inf(1), math.Inf(1))
		w.mu.Unlock()
		d := w.dice.on("resume").at(int64(i))
		reset := change(func(r *generation.Record) {
			r.Trip, r.NewGround = breaker.Trip{}, false
			r.Paused, r.PaceMax, r.PaceTotal = false, generation.Rate{}, generation.Rate{}
		})
		err := w.command(context.Background(), d, healthy, w.plan.name(i), "resume", reset)
		if err != nil {
			w.mu.Lock()
			w.violate("L1", "without faults a command fails: %v", err)
			w.mu.Unlock()
		}
	}
}

// checkLiveness runs sweeps without faults, and holds L1.
func (w *world) checkLiveness() {
	w.healthy(oneSweep, sweep.Run, afterSweep)
	t := w.plan.target
	began := time.Now()
	if t.Generations {
		// A sweep opens the next generation, the next one closes this, and the next one
		// reads it, unless it has to settle.
		p := w.targetsOf()[0].Policy
		for range 4 + p.Settle {
			time.Sleep(max(p.Every, 5*time.Minute))
			w.healthy("a sweep between", sweep.Run, 0)
		}
	}
	time.Sleep(max(time.Second, time.Until(began.Add(t.Rewind))))
	// A process with a shorter retention may have left a cursor that is hardly past the horizon. The clock could
	// be late, and the read from the start waits until it is not, for 20 s at most.
	w.healthy("a sweep that waits for the clock", sweep.Run, 0)
	time.Sleep(21 * time.Second)
	w.healthy("a rewind", sweep.Run, afterRewind)
	if w.plan.night {
		time.Sleep(25 * time.Hour)
	} else {
		w.healthy("an audit", sweep.Audit, 0)
	}
	w.healthy("a round of the audit", sweep.Run, afterAudit)
	time.Sleep(4*w.plan.ttl + t.Retention + time.Minute)
	w.healthy("a sweep at the end", sweep.Run, afterSweep)
}

// slowest returns the lowest pace at which one sweep completes, however far behind it is. The
// carriers of a generation share a quarter of it evenly, at worst, and each needs a token before
// the next generation opens, with other buckets. A writer with a wrong shard count makes twice as
// many ranges, and one more.
func slowest(t *sweep.Target) float64 {
	carriers := 2*t.Shards + 1
	return 2 * 4 * float64(carriers) / t.Policy.Every.Seconds() // twice that: a token also waits for its step
}

// relax takes the pace away from the sweeps after the first one: reads from the start
// that are slow are saved after five minutes, and go on with the next sweep.
func (w *world) relax(targets []sweep.Target, first bool) {
	for i := range targets {
		if t := &targets[i]; !first || t.Generations && t.Pace.Start < slowest(t) {
			t.Pace, t.Total = throttle.Limits{Unlimited: true}, throttle.Limit{}
		}
		targets[i].Breaker = breaker.Rules{} // what has tripped it is there for good
		targets[i].Limits = breaker.Limits{}
	}
}

// healthy sweeps by a process to which nothing happens. What was due when it began
// must be gone then, up to a level.
func (w *world) healthy(what string, do func(context.Context, sweep.Config) sweep.Result, level int) {
	if !w.running() {
		return
	}
	due := time.Now()
	for _, list := range w.deployments() {
		w.healthyOf(what, do, list)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.oracle.compare(what, due, level)
}

// healthyOf sweeps the namespaces of one deployment, or those of the plan.
func (w *world) healthyOf(what string, do func(context.Context, sweep.Config) sweep.Result, list []string) {
	d := w.dice.on("healthy").at(int64(time.Since(w.began)))
	h := &handle{w: w, name: "healthy", dice: d, clock: &clock{began: w.began}, died: make(chan struct{}), calm: true}
	res := w.sweep(context.Background(), h, fmt.Sprintf("healthy-%d", time.Since(w.began)), d, do, func(c *sweep.Config) {
		c.Yes = true
		w.relax(c.Targets, what == oneSweep)
		for i := range c.Targets {
			if h.lists = list; list != nil {
				c.Targets[i].Namespaces = list
			}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range res.Targets {
		if t.Error != "" || !t.Complete {
			w.violate("L1", "%s, without faults, of %s: complete %v, %d ranges incomplete: %s",
				what, t.Name, t.Complete, t.Incomplete, t.Error)
		}
	}
}

// compare holds that what is due is gone, and that all else is as it was written.
func (o *oracle) compare(what string, due time.Time, level int) {
	for _, at := range o.w.places() {
		for key, f := range o.truth[at] {
			is := o.w.rowOrNone(at, key)
			switch {
			case is.key == "":
				o.w.violate("S1", "%s@%s is not there, and nobody deleted it: %v", key, at.namespace, f.expiry)
			case is.expiry != f.expiry || is.data != f.data || is.shard != f.shard:
				o.w.violate("S2", "%s@%s is %v %q, and should be %v %q", key, at.namespace, is.expiry, is.data, f.expiry, f.data)
			case o.w.nobodyLists(at.namespace), o.w.waits(stem{at, key}):
			case o.level(at, f) <= level && !f.expires.Add(o.w.plan.target.Retention).After(due):
				o.w.violate("L1", "after %s %s@%s is still there: %v, due %v before, committed %v before, in order %v, "+
					"by a writer within the bounds %v", what, key, at.namespace, f.expiry,
					due.Sub(f.expires.Add(o.w.plan.target.Retention)), due.Sub(f.committed), f.inOrder, f.withinBounds)
			}
		}
		for key := range o.w.db.rows[at] {
			if o.truth[at][key] == nil {
				o.w.violate("S1", "%s@%s is there, and should be gone", key, at.namespace)
			}
		}
	}
}
