package sim

import (
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A formerRecord is a target record that was lost.
type formerRecord struct {
	targetFact
	lost time.Time
}

// startLoser lets somebody remove target records, now and then with the cursor records
// that nobody holds, while writers and sweepers go on. Half of them do so shortly before the
// faults stop: what a loss leaves undone must come right in the first sweep after that.
func (w *world) startLoser() {
	d := w.dice.on("loser")
	often := 0.3
	if o := w.plan.overlap; o != nil && o.what == "layout" { // of which one looks for no generations
		often = 1
	}
	if w.restores() || w.edited() || !w.plan.takesPart("lose", d.on("takes part"), often) {
		return
	}
	w.act(func() {
		late := d.on("late").yes(0.5)
		if late && !w.sleep(w.plan.busy-d.on("by").between(20*time.Second, 4*time.Minute)) {
			return
		}
		for n := range int64(3) {
			d := d.at(n)
			if (n > 0 || !late) && !w.sleep(d.on("pause").between(20*time.Second, w.plan.busy)) {
				return
			}
			w.lose(d, w.plan.name(d.on("target").below(w.plan.targets)))
		}
	})
}

// lose removes a target record, once in a life, and not while a new one is on its way. What
// operators had set there is lost with it. A process that is frozen while it sends a new
// record writes that long after, and if another new one was lost meanwhile, in its place:
// all sweeps then refuse it, as they do any old copy, and nothing more could be seen of
// this life.
func (w *world) lose(d dice, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.db.records[store.TargetRecord][name]; !ok || len(w.former[name]) > 0 ||
		time.Now().Before(w.creating[name]) {
		return
	}
	w.removeTarget(name)
	how := "the target record"
	if d.on("cursors").yes(0.5) {
		how += " and the cursors that nobody holds"
		for key, r := range w.db.records[store.CursorRecord] {
			if r.Target == name && text(r.Fields, "owner") == "" {
				delete(w.db.records[store.CursorRecord], key)
				delete(w.oracle.leases, key)
				delete(w.oracle.resumed, key)
			}
		}
	}
	w.note("operator", "removes", name, how, nil)
}

// removeTarget removes a target record. What operators had set there is lost with it. The caller
// holds mu.
func (w *world) removeTarget(name string) {
	delete(w.db.records[store.TargetRecord], name)
	w.former[name] = append(w.former[name], formerRecord{w.targets[name], time.Now()})
	delete(w.pace.paused, name)
	w.oracle.budget(name).open = time.Time{} // its trip is lost, too: what is due is counted afresh
	w.pace.forget(name)
	w.count("lost")
}

// isLost reports whether the target had a record, and has none now. The caller holds mu.
func (w *world) isLost(target string) bool {
	_, ok := w.db.records[store.TargetRecord][target]
	return !ok && len(w.former[target]) > 0
}

// commits is how long it takes between the loss of a record and the instant in the next one.
const commits = 20 * time.Second

// formerly returns the generation as a record had it that was lost not long ago: a
// writer that keeps to the bounds may still go by a copy of it. The caller holds mu.
func (w *world) formerly(target string, generation int) (g generationFact, ok bool) {
	for _, f := range w.former[target] {
		g, ok = f.generations[generation]
		bound := max(f.staleness, g.staleness) + max(f.slack, g.slack) + commits
		if ok && time.Since(f.lost) <= bound {
			return g, true
		}
	}
	return generationFact{}, false
}

// formerNursery returns how many shards the nursery had by such a record, or 0. The caller holds mu.
func (w *world) formerNursery(target string) (shards int) {
	for _, f := range w.former[target] {
		if time.Since(f.lost) <= f.staleness+f.slack+commits {
			shards = max(shards, f.nursery)
		}
	}
	return shards
}
