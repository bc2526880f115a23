package sim

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/pacecheck"
)

// The slowest and the fastest clock of a machine, against the store's. The program assumes
// that clocks tick at the right speed. Where they do not it may be late, must not be early,
// and must stop once it can see that its clock is wrong.
const (
	slow = 0.9
	fast = 1.1
)

// drawDrift decides whether the sweepers' machines have clocks that run too slow or too fast.
// The embedded store's time is that of its process: there is nothing to differ from. A total
// is shared by clocks that run equally fast, and a machine that sleeps must not have its
// clock set back meanwhile: the program says both.
func (p *plan) drawDrift(d dice) {
	p.drifts = p.mode != embedded && p.target.Total.PerSecond == 0 && p.takesPart("drift", d.on("drifts"), drifting)
}

// drifting is in how many lives clocks drift.
const drifting = 0.08

// startDrift gives sweepers clocks that run too slow or too fast, wall clock and monotonic
// one alike. Most machines have somebody who sets the wall clock right from time to time:
// otherwise it is too far from the store's after 100 s, and nothing is deleted any more.
func (w *world) startDrift() {
	if !w.plan.drifts {
		return
	}
	for i, c := range w.clocks {
		d := w.dice.on("drift").at(int64(i))
		c.runs(pick(d.on("speed"), slow, slow, fast, fast, 1))
		if d.on("left alone").yes(0.15) {
			continue
		}
		most := pick(d.on("most"), time.Minute, 4*time.Minute)
		w.act(func() {
			for n := int64(0); w.sleep(d.on("pause").at(n).between(10*time.Second, most)); n++ {
				by := c.setRight(d.on("off").at(n).between(-500*time.Millisecond, 500*time.Millisecond))
				w.mu.Lock()
				w.note("operator", "sets", fmt.Sprintf("clock %d right, by %v", i, by), "", nil)
				w.count("drifting clock set right")
				if by.Abs() > w.plan.target.MaxClockSkew {
					w.count("drifting clock set right late")
				}
				w.mu.Unlock()
			}
		})
	}
}

// noticedWithin is how soon a process stops that finds its clock wrong: the record by which it
// writes is at most 15 s old, by a clock that may be slow.
const noticedWithin = 30 * time.Second

// hasRightClock holds, as a process is about to write, that its wall clock has not been wrong
// for some time by more than it tolerates, and as much again: an answer that travelled for as
// long as anybody waits for one shows no more.
func (o *oracle) hasRightClock(h *handle) {
	if off := h.clock.off(noticedWithin); off > 2*o.w.plan.target.MaxClockSkew+time.Second {
		o.w.violate("S1", "%s writes, and its clock has been wrong by %v or more for %v", h.name, off, noticedWithin)
	}
}

// A lease is counted by two clocks: its holder counts all of it, and so does who waits until it
// is over. Where both are right, the holder has given up first: it counts from before its
// heartbeat was sent, the other one from after the heartbeat was seen. A holder with a slow
// clock goes on for a ninth of a lease too long, and who has a fast one comes an eleventh too
// early. So two may write in one range, for a fifth of a lease at most. That is why cursors are
// fenced by their revision, and deletes conditional: neither is loosened here.

// hurried is the shortest time that somebody's clock may take for so long.
func (w *world) hurried(d time.Duration) time.Duration {
	if w.plan.drifts {
		return time.Duration(float64(d) / fast)
	}
	return d
}

// stretched is the longest time that somebody's clock may take for so long.
func (w *world) stretched(d time.Duration) time.Duration {
	if w.plan.drifts {
		return time.Duration(float64(d) / slow)
	}
	return d
}

// holdsForOthers reports whether others must leave alone what somebody has claimed.
func (o *oracle) holdsForOthers(l leaseFact) bool {
	b := o.beatOf(l)
	return b.holds(l.epoch, o.w.hurried(b.lease))
}

// holdsForItself reports whether somebody may go on writing where he has claimed.
func (o *oracle) holdsForItself(l leaseFact) bool {
	b := o.beatOf(l)
	return b.holds(l.epoch, o.w.stretched(b.lease))
}

// overtakes notes that a range is taken from somebody whose lease another one's clock has over.
func (o *oracle) overtakes(key string, was leaseFact) {
	if o.w.plan.drifts {
		o.overtaken[key] = was
	}
}

// isOvertaken reports whether a process has lost a range to another one, and cannot know that
// by its own clock.
func (o *oracle) isOvertaken(h *handle, key string) bool {
	l, ok := o.overtaken[key]
	if !ok || l.owner != h.holder || !o.holdsForItself(l) {
		return false
	}
	o.w.count("two holders")
	return true
}

// fastest is how much faster than the store's somebody's clock may run. P2 is held with paces
// that are higher by that, for buckets fill by the clock of who holds the range, and it ramps
// by that clock.
func (w *world) fastest() float64 {
	if w.plan.drifts {
		return fast
	}
	return 1
}

// hurriedRamp is a ramp by the fastest clock.
func (w *world) hurriedRamp(ramp []pacecheck.Segment) []pacecheck.Segment {
	for i := range ramp {
		ramp[i].From = w.began.Add(w.hurried(ramp[i].From.Sub(w.began)))
		ramp[i].PerSecond *= w.fastest()
	}
	return ramp
}
