package sim

import (
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An overlap is a rolling deployment of another targets file: some sweepers begin with the
// old one, others with the new one, and those that run already go on with what they began
// with. The plan's own target is what all have in the end. The other file comes before it, or
// it is deployed in between and taken back.
//
// Each process is held to its own file as it began: S1 and S4 by its own retention. L1 begins
// once the last one with the other file has gone, with the plan's retention. A cursor stands
// for all of them, so what it may have passed is reckoned by the shorter retention (L2).
type overlap struct {
	what  string        // changes: retention, shards, namespaces, layout, property
	from  time.Duration // the rollout begins
	each  time.Duration // so long after one sweeper the next one has the new file
	until time.Duration // it is rolled back from then on; zero if the plan's file is the new one
}

// overlapping is in how many lives two targets files overlap.
const overlapping = 0.08

// halfway is a property that half of the entities have as well as the plan's, with the same key:
// such as one to which writers have not moved all yet. What changes one changes the other.
const halfway = "expires_at"

// isHidden reports whether the index of a property does not show an entity.
func isHidden(property, key string) bool { return property == halfway && hash(key)%2 == 0 }

func (p *plan) drawOverlap(d dice) {
	if p.lists != nil || p.restamps || !p.takesPart("overlap", d.on("overlaps"), overlapping) {
		return
	}
	d = d.on("overlap")
	kinds := []string{"retention", "retention"}
	if p.target.Shards > 0 {
		kinds = append(kinds, "shards")
	}
	if p.target.Generations {
		kinds = append(kinds, "layout", "layout", "layout")
	}
	if p.target.Generations && p.mode != embedded { // the model store drops a span of a kind, of all properties
		kinds = append(kinds, "property")
	}
	if len(p.namespaces) > 1 {
		kinds = append(kinds, "namespaces", "namespaces")
	}
	o := &overlap{what: pick(d.on("what"), kinds...), from: d.on("from").between(20*time.Second, p.busy/2),
		each: d.on("each").between(0, 90*time.Second)}
	if o.what == "property" || d.on("back").yes(0.5) {
		o.until = d.on("until").between(o.from, p.busy)
	}
	p.overlap = o
}

// isOther reports whether a sweeper that begins now has the other file.
func (o *overlap) isOther(number int, now time.Duration) bool {
	at := o.from + time.Duration(number)*o.each
	if o.until == 0 {
		return now < at
	}
	return now >= at && now < o.until+time.Duration(number)*o.each
}

// other returns the target as the other file has it.
func (o *overlap) other(t sweep.Target) sweep.Target {
	switch o.what {
	case "retention":
		t.Retention = otherRetention(t.Retention)
	case "shards":
		t.Shards = t.Shards%4 + 2
	case "namespaces":
		t.Namespaces = []string{""}
	case "layout":
		t.Layout, t.Generations = "sharded", false
	case "property":
		t.Property = halfway
	}
	return t
}

func otherRetention(is time.Duration) time.Duration {
	if is == 0 {
		return 3 * time.Minute
	}
	return is / 3
}

// shortest returns the shortest retention that any process has.
func (p *plan) shortest() time.Duration {
	if p.overlap != nil && p.overlap.what == "retention" {
		return min(p.target.Retention, otherRetention(p.target.Retention))
	}
	return p.target.Retention
}

// rollOut gives a process the targets file that its place has as it begins.
func (w *world) rollOut(h *handle, targets []sweep.Target) {
	h.file = w.plan.target
	o := w.plan.overlap
	if o == nil || h.calm || h.rush != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	number := 0 // operators are the first to have the new file
	if strings.HasPrefix(h.name, "sweeper ") {
		number = int(h.name[len("sweeper ")] - '0')
	}
	if w.calm || !o.isOther(number, time.Since(w.began)) {
		w.count("began with the file of all in the end")
		return
	}
	for i := range targets {
		targets[i] = o.other(targets[i])
	}
	h.file = o.other(h.file)
	w.count("began with another " + o.what)
}

// isKept reports whether a process with a longer retention than another one's keeps an entity
// for longer, which the other one's cursor has passed already: it goes with a later rewind.
func (o *oracle) isKept(h *handle, f *fact, read time.Time) bool {
	longer := h.file.Retention > o.w.plan.shortest()
	return longer && !f.inOrder && f.expires.Add(h.file.Retention).After(read)
}

// cannotSee reports whether a record is of a process to which an entity is hidden: what that has
// passed or found there is nothing to hold it to.
func cannotSee(r store.Record, key string) bool { return isHidden(text(r.Fields, "property"), key) }

// leaves takes in that a process retires a generation which is empty in the index of another
// property. What it holds in the plan's alone is a stray from then on, until the audit finds it.
func (o *oracle) leaves(kind string, generation int) {
	for at, facts := range o.truth {
		for key, f := range facts {
			if at.kind == kind && f.wellFormed && f.key.generation == generation && isHidden(halfway, key) {
				f.withinBounds = false
				o.w.count("left by another property")
			}
		}
	}
}

// countsForItself reports whether a process has counted what is due, found no more than may go, and cannot
// write that down: the target record is of the other targets file, or has been until a moment ago. Such a
// process goes by what it has counted itself; who sweeps as the record says counts again.
func (o *oracle) countsForItself(h *handle, target string) bool {
	r := o.w.db.records[store.TargetRecord][target]
	recent := time.Since(o.budget(target).turned) <= pausedWithin
	if o.w.plan.overlap == nil || !recent && !isOfOther(r.Fields, h.file) ||
		!h.ground.of(target).passes(o.w.plan.target.Breaker.Floor) {
		return false
	}
	o.w.count("goes by its own count")
	return true
}

// isOfOther reports whether a target record is of a targets file with another layout or property.
func isOfOther(record store.Fields, file sweep.Target) bool {
	return text(record, "layout") != string(file.Layout) || text(record, "property") != file.Property
}

// turns notes that a target record becomes one of another targets file.
func (o *oracle) turns(old, new store.Record) {
	same := text(old.Fields, "layout") == text(new.Fields, "layout") &&
		text(old.Fields, "property") == text(new.Fields, "property")
	if old.Fields != nil && !same {
		o.budget(new.Key).turned = time.Now()
	}
}
