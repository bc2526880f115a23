package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// A restamper gives many entities at once another expiry: now, soon, or in the past. While what
// comes of that waits for its approval, or goes by it, it restamps the same entities again, which
// are due in other hours then, and so count by other keys; some it extends or removes meanwhile.
type restamper struct {
	wr    *writer
	at    place
	names []string
}

// restampRate is in which part of the lives somebody restamps.
const restampRate = 0.1

// startRestamper lets somebody restamp, if the plan says so.
func (w *world) startRestamper() {
	d := w.dice.on("restamper")
	if !w.plan.restamps {
		return
	}
	name := w.plan.name(0)
	wr := &writer{w: w, kind: "restamper", target: name, dice: d, clock: &clock{began: w.began}}
	wr.handle = &handle{w: w, name: "restamper", dice: d.on("handle"), clock: wr.clock, died: make(chan struct{})}
	wr.follower = &generation.Follower{Store: wr.handle, Target: name, Shards: 3, Now: wr.clock.now}
	r := &restamper{wr: wr, at: place{w.plan.kind(name), pick(d.on("namespace"), w.plan.namespaces...)}}
	many := 20 + d.on("many").below(140)
	if w.plan.paced() {
		many = 10 + many/10
	}
	for i := range many {
		r.names = append(r.names, fmt.Sprintf("m%03d", i))
	}
	w.act(r.run)
}

func (r *restamper) run() {
	w := r.wr.w
	for n := range int64(4) {
		d := r.wr.dice.at(n)
		if !w.sleep(d.on("pause").between(30*time.Second, pick(d.on("long"), 90*time.Second, 4*time.Minute))) {
			return
		}
		approved := r.approvals()
		if !r.restamp(d.on("first"), 1) {
			return
		}
		if !r.await(d.on("wait"), func() bool { return r.isHeld() || r.approvals() > approved }) {
			continue
		}
		if d.on("about to be").yes(0.3) && !r.again(d.on("before")) {
			return
		}
		if !r.await(d.on("approval"), func() bool { return r.approvals() > approved }) {
			continue
		}
		for i := range int64(pick(d.on("times"), 1, 2, 2)) {
			if !r.again(d.on("again").at(i)) {
				return
			}
		}
	}
}

// again restamps a moment later, after some of the entities were removed or extended.
func (r *restamper) again(d dice) bool {
	w := r.wr.w
	long := pick(d.on("how long"), 10*time.Second, 40*time.Second, 2*time.Minute)
	if !w.sleep(d.on("after").between(time.Second, long)) {
		return false
	}
	for i, name := range r.names {
		switch change := d.on("meanwhile").at(int64(i)).float(); {
		case change < 0.1:
			w.mu.Lock()
			old := *w.rowOrNone(r.at, keyOf(name))
			w.mu.Unlock()
			if old.key != "" {
				w.remove(r.at, r.wr.kind, old)
			}
		case change < 0.2:
			r.write(name, time.Now().Add(d.on("extended").at(int64(i)).between(time.Minute, 10*time.Minute)))
		}
	}
	w.mu.Lock()
	w.count("restamped again")
	w.mu.Unlock()
	return r.restamp(d, pick(d.on("part"), 1, 1, 0.5))
}

// restamp gives a part of the entities an expiry by which they are due about now, or were long ago.
func (r *restamper) restamp(d dice, part float64) bool {
	w, t := r.wr.w, r.wr.w.plan.target
	if w.ctx.Err() != nil {
		return false
	}
	if t.Generations && d.on("follows").yes(0.5) {
		_ = r.wr.follower.Refresh(w.chance(w.ctx, d)) // else it stamps the nursery
		if w.ctx.Err() != nil {
			return false
		}
	} else {
		r.wr.follower = &generation.Follower{Store: r.wr.handle, Target: r.wr.target, Shards: 3, Now: r.wr.clock.now}
	}
	back := pick(d.on("back"), 0, d.on("by").between(0, time.Minute), d.on("by").between(0, 10*time.Minute))
	spread := pick(d.on("spread"), 0, 20*time.Second, t.Breaker.Window)
	trickles := d.on("trickles").yes(0.3) // all of it into one hour, but a little at a time
	pause := t.Breaker.Window / time.Duration(len(r.names)+1)
	first := time.Now().Add(-t.Retention - back)
	for i, name := range r.names {
		if !d.on("which").at(int64(i)).yes(part) {
			continue
		}
		if trickles {
			if i%8 == 0 && !w.sleep(8*pause) {
				return false
			}
			r.write(name, time.Now().Add(-t.Retention))
			continue
		}
		r.write(name, first.Add(-d.on("within").at(int64(i)).between(0, spread)))
	}
	w.mu.Lock()
	w.count("restamped")
	if trickles {
		w.count("restamped little by little")
	}
	w.mu.Unlock()
	return true
}

func (r *restamper) write(name string, expires time.Time) {
	expires = expires.UTC().Truncate(time.Millisecond)
	e := row{key: keyOf(name), data: fmt.Sprint("restamped ", expires.UnixMilli()), shard: r.wr.shardValue(name)}
	e.expiry = r.wr.stamp(name, expires)
	_ = r.wr.w.commit(r.wr.kind, r.at, e, true)
}

// await waits for something for a few minutes, and reports whether it has come.
func (r *restamper) await(d dice, come func() bool) bool {
	for i := range int64(60) {
		if come() {
			return true
		}
		if !r.wr.w.sleep(d.at(i).between(2*time.Second, 6*time.Second)) {
			return false
		}
	}
	return false
}

func (r *restamper) isHeld() bool {
	r.wr.w.mu.Lock()
	defer r.wr.w.mu.Unlock()
	return !r.wr.w.oracle.budget(r.wr.target).open.IsZero()
}

func (r *restamper) approvals() int {
	r.wr.w.mu.Lock()
	defer r.wr.w.mu.Unlock()
	return len(r.wr.w.oracle.budget(r.wr.target).approvals)
}

// daze stops a process for a while that has just reserved a part of an approval: the others come to
// the rest of the event meanwhile, and find less of the approval than that. The caller holds mu.
func (h *handle) daze(old, new store.Record) {
	w := h.w
	if !w.plan.restamps || !w.plan.has("freeze") || h.calm || w.calm || h.dead {
		return
	}
	was, more := readTallies(old.Fields), false
	for key, t := range readTallies(new.Fields) {
		more = more || strings.HasPrefix(key, "A") && t.granted > was[key].granted
	}
	d := h.dice.at(int64(time.Since(w.began))).on("daze")
	if !more || !d.yes(0.3) {
		return
	}
	h.freeze(d.on("lasts").between(time.Second, pick(d.on("most"), w.plan.target.Lease, 4*time.Minute)))
	w.count("dazed")
	w.note(h.name, "freeze", "", "", nil)
}
