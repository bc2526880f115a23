package sim

import (
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A beatFact is what the heartbeat of one process for one target says, by its last write.
type beatFact struct {
	holder     string
	epoch      int
	lease      time.Duration
	read       time.Time     // the process says that it counts who was there by then
	inserted   time.Time     // when the first write of the epoch took effect
	at         time.Time     // of the last one
	stoodStill time.Duration // for so long, at most, in this epoch: others may have taken it for dead
}

// holds reports whether a process holds by an epoch what it has claimed in it, by a clock for
// which a lease takes so long. A renewal that takes effect later than a lease after the one
// before is answered too late: its process has given up by then.
func (b beatFact) holds(epoch int, lease time.Duration) bool {
	return b.epoch == epoch && b.lease > 0 && time.Since(b.at) < lease && b.stoodStill < lease
}

// savedBeat is told of each change of a heartbeat. Only its own process writes it, no
// epoch comes back, and it tells neither of a read of heartbeats that has not been answered
// yet nor of less than before.
func (o *oracle) savedBeat(h *handle, old, new store.Record) {
	now, was := time.Now(), o.beats[new.Key]
	if new.Fields == nil {
		hour := o.w.hurried(time.Hour)
		stoodStill := was.lease > 0 && now.Sub(was.at) >= o.w.hurried(was.lease) || now.Sub(was.at) >= hour ||
			was.lease == 0 && now.Sub(instant(old.Fields, "renewed")) >= hour // one that holds nothing may be sent late
		if was.holder != h.holder && !stoodStill && o.w.plan.mode != embedded {
			o.w.violate("L3", "%s removed the heartbeat of %s, which was written %v ago", h.name, was.holder, now.Sub(was.at))
		}
		delete(o.beats, new.Key)
		return
	}
	is := beatFact{holder: text(new.Fields, "owner"), epoch: number(new.Fields, "epoch"),
		lease: millis(new.Fields, "lease_ms"), read: instant(new.Fields, "read"), inserted: now, at: now}
	switch {
	case is.holder != h.holder:
		o.w.violate("L3", "%s wrote the heartbeat of %s", h.name, is.holder)
	case old.Fields != nil && is.epoch < was.epoch:
		o.w.violate("L3", "%s went back from epoch %d to %d", h.name, was.epoch, is.epoch)
	case is.read.After(h.beatsRead[new.Target]):
		o.w.violate("P2", "%s tells that it counts everybody until %v, and has read the heartbeats as they were %v before",
			h.name, is.read, is.read.Sub(h.beatsRead[new.Target]))
	case old.Fields != nil && is.read.Before(was.read):
		o.w.violate("P2", "%s tells that it counts everybody until %v, and has told %v more before", h.name, is.read,
			was.read.Sub(is.read))
	}
	if old.Fields != nil && is.epoch == was.epoch && was.lease > 0 {
		is.inserted = was.inserted
		is.stoodStill = max(was.stoodStill, now.Sub(was.at))
	} else if is.lease > 0 {
		o.w.count("epochs")
	}
	if h.closed { // it has removed its heartbeat, and then the first write of that came late: nobody lives by it
		is.stoodStill = is.lease
	}
	o.beats[new.Key] = is
}

// heardBeats notes that a process has been told of the heartbeats as they were at an instant.
func (h *handle) heardBeats(target string, at time.Time) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.beatsRead == nil {
		h.beatsRead = map[string]time.Time{}
	}
	if at.After(h.beatsRead[target]) {
		h.beatsRead[target] = at
	}
}

// shares holds what a total rests on, as a process is about to write: its own heartbeat is
// not older than its lease, and all those that were there before its own have told that
// they count it.
func (o *oracle) shares(h *handle, t store.Target) {
	if o.w.plan.target.Total.PerSecond == 0 || len(o.w.pace.totals[t.Name]) > 1 || time.Now().Before(h.amnesty) {
		return // the plan has no total, or an operator has set another one
	}
	var mine *beatFact
	for key, b := range o.beats {
		if b.holder == h.holder && o.w.db.records[store.WorkerRecord][key].Target == t.Name {
			mine = &b
		}
	}
	switch {
	case mine == nil || mine.lease == 0:
		o.w.violate("P2", "%s uses a share of the total without a heartbeat that says so", h.name)
		return
	case time.Since(mine.at) >= mine.lease:
		o.w.violate("P2", "%s uses a share of the total %v after its last heartbeat; the lease is %v", h.name,
			time.Since(mine.at), mine.lease)
	}
	trust := min(15*time.Second, o.w.plan.target.Lease/2)
	if time.Since(mine.inserted) >= trust { // a share rests on a read that is no older
		return
	}
	for key, b := range o.beats {
		other := b.holder != h.holder && o.w.db.records[store.WorkerRecord][key].Target == t.Name
		alive := b.holds(b.epoch, b.lease)
		if other && alive && b.inserted.Before(mine.inserted) && !b.read.After(mine.inserted) && o.w.plan.mode != embedded {
			o.w.violate("P2", "%s, there since %v, uses a share of the total, and %s has told that it has read until %v",
				h.name, mine.inserted, b.holder, b.read)
		}
	}
}
