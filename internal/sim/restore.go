package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// restoreRate is how often a database is restored from an export.
const restoreRate = 0.1

// What a restore brings back.
const (
	entitiesOnly = "the entities"
	recordsOnly  = "the records"
	everything   = "entities and records"
)

// An export is what the store held at an instant, and what the oracle knew of it.
type export struct {
	rows    map[place]map[string]row
	facts   map[place]map[string]fact
	records map[store.RecordSort]map[string]store.Record
	dropped map[string][]gap
	leases  map[string]leaseFact
	beats   map[string]beatFact
}

// A restored is what a restore of the records has left of one target.
type restored struct {
	at     time.Time
	newest int // generation that its record lists then
}

// An attendance knows which processes there are, and keeps new ones out while a database is restored.
type attendance struct {
	closed bool
	inside map[*handle]bool
	ghosts atomic.Int64 // calls that take effect after their callers gave up, under way
}

// A restoration is what is drawn of one restore.
type restoration struct {
	what    string
	exact   bool // what is newer than the export goes; else it stays, as with an import
	stopped bool // all processes were stopped before
}

// draws the restoration. One process has an embedded store open, and a copy of its
// directory has all in it. What a total promises, and a pace, it promises to who stops
// all processes before.
func (w *world) drawRestoration(d dice) restoration {
	r := restoration{what: pick(d.on("what"), entitiesOnly, recordsOnly, everything),
		exact: d.on("exact").yes(0.5), stopped: d.on("stopped").yes(0.6)}
	if w.plan.mode == embedded {
		return restoration{everything, true, true}
	}
	r.stopped = r.stopped || r.what != entitiesOnly && w.plan.paced()
	return r
}

// restores reports whether a database is restored in this life.
func (w *world) restores() bool {
	return w.plan.isPlain() && w.plan.takesPart("restore", w.dice.on("restorer").on("takes part"), restoreRate)
}

// startRestorer lets somebody restore the database, as an operator does by
// docs/operations.md, while writers go on.
func (w *world) startRestorer() {
	d := w.dice.on("restorer")
	if !w.restores() {
		return
	}
	w.act(func() {
		if !w.sleep(d.on("export").between(w.plan.busy/10, w.plan.busy*6/10)) {
			return
		}
		for !w.isReady() {
			if !w.sleep(5 * time.Second) {
				return
			}
		}
		e := w.export()
		if w.sleep(d.on("later").between(5*time.Second, w.plan.busy*4/10)) {
			w.restoreFrom(d, e)
		}
	})
}

// isReady reports whether all targets have a record, and nobody is about to write a new one.
func (w *world) isReady() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.plan.targets {
		name := w.plan.name(i)
		if _, ok := w.targets[name]; !ok || w.isLost(name) || time.Now().Before(w.creating[name]) {
			return false
		}
	}
	return true
}

// export copies the store.
func (w *world) export() *export {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &export{rows: map[place]map[string]row{}, facts: map[place]map[string]fact{},
		records: map[store.RecordSort]map[string]store.Record{}, dropped: map[string][]gap{},
		leases: maps.Clone(w.oracle.leases), beats: maps.Clone(w.oracle.beats)}
	for at, rows := range w.db.rows {
		e.rows[at], e.facts[at] = map[string]row{}, map[string]fact{}
		for key, r := range rows {
			e.rows[at][key], e.facts[at][key] = *r, *w.oracle.truth[at][key]
		}
	}
	for sort, records := range w.db.records {
		e.records[sort] = maps.Clone(records)
	}
	for kind, gaps := range w.db.dropped {
		e.dropped[kind] = slices.Clone(gaps)
	}
	w.note("operator", "exports", "", "", nil)
	w.count("exports")
	return e
}

// restoreFrom restores the database, and does what is to be done then.
func (w *world) restoreFrom(d dice, e *export) {
	r := w.drawRestoration(d)
	if r.stopped {
		defer w.admit()
		if !w.stopAll() {
			return
		}
	}
	for !w.isReady() {
		if !w.sleep(time.Second) {
			return
		}
	}
	w.bringBack(e, r)
	w.afterRestore(d, r)
}

// bringBack puts what was exported in the place of what is there.
func (w *world) bringBack(e *export, r restoration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("operator", "restores", r.what, fmt.Sprintf(" exact %v, stopped %v", r.exact, r.stopped), nil)
	w.count("restored " + r.what)
	if r.what != recordsOnly {
		w.restoreEntities(e, r)
	}
	if r.what != entitiesOnly {
		w.restoreRecords(e, r)
	}
}

// stopAll stops all processes, and waits until they have ended and nothing that they sent is
// under way.
func (w *world) stopAll() bool {
	for {
		w.mu.Lock()
		w.attendance.closed = true
		for h := range w.attendance.inside {
			h.kill()
		}
		n := len(w.attendance.inside) + int(w.attendance.ghosts.Load())
		w.mu.Unlock()
		if n == 0 {
			return true
		}
		if !w.sleep(137 * time.Millisecond) {
			return false
		}
	}
}

// admit lets processes begin again.
func (w *world) admit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attendance.closed = false
}

// enter waits until processes may begin, and notes one. It reports whether that has begun.
func (w *world) enter(ctx context.Context, h *handle) bool {
	for {
		w.mu.Lock()
		closed := w.attendance.closed
		if !closed {
			w.attendance.inside[h] = true
		}
		w.mu.Unlock()
		if !closed {
			return true
		}
		select {
		case <-time.After(time.Second + h.dice.on("waits").between(0, time.Second)):
		case <-ctx.Done():
			return false
		}
	}
}

// leave notes that a process has ended.
func (w *world) leave(h *handle) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.attendance.inside, h)
}

// restoreEntities brings back the entities. What comes back behind the cursors is a stray,
// unless the cursors go back, too, and no process remembers the newer ones. The caller
// holds mu.
func (w *world) restoreEntities(e *export, r restoration) {
	now, together := time.Now(), r == restoration{everything, true, true}
	if together {
		now = now.Add(-w.plan.lag - time.Millisecond) // a copy of all has its index with it: no scan is as old
		w.db.dropped = map[string][]gap{}
		for kind, gaps := range e.dropped {
			w.db.dropped[kind] = slices.Clone(gaps)
		}
	}
	for at, rows := range w.db.rows {
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			if _, ok := e.rows[at][key]; !ok && r.exact {
				w.db.remove(at, key, now)
				w.oracle.removed(at, key)
			}
		}
	}
	for at, rows := range e.rows {
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			old, is := rows[key], w.rowOrNone(at, key)
			same := is.key != "" && is.expiry == old.expiry &&
				is.element == old.element && is.data == old.data && is.shard == old.shard
			if w.db.put(at, old, now) != nil {
				continue // its generation is gone for good
			}
			switch f := e.facts[at][key]; {
			case together:
				w.oracle.truth[at][key] = &f
			case !same:
				w.oracle.wrote(at, old, false)
				w.oracle.truth[at][key].restored = true
				w.count("came back")
			}
		}
	}
}

// restoreRecords brings back the records. The caller holds mu.
func (w *world) restoreRecords(e *export, r restoration) {
	for sort, records := range w.db.records {
		for key := range maps.Clone(records) {
			if _, ok := e.records[sort][key]; !ok && r.exact {
				delete(records, key)
				if sort == store.CursorRecord {
					delete(w.oracle.leases, key)
				}
				if sort == store.WorkerRecord {
					delete(w.oracle.beats, key)
				}
			}
		}
	}
	for sort, records := range e.records {
		if w.db.records[sort] == nil {
			w.db.records[sort] = map[string]store.Record{}
		}
		maps.Copy(w.db.records[sort], records)
	}
	maps.Copy(w.oracle.leases, e.leases)
	maps.Copy(w.oracle.beats, e.beats)
	w.oracle.resumed = map[string]int{}
	for h := range w.attendance.inside { // its own heartbeat and its claims are not what it believes
		h.amnesty, h.robbed = time.Now().Add(w.plan.target.Lease), true
	}
	for i := range w.plan.targets {
		w.targetWentBack(w.plan.name(i))
	}
}

// targetWentBack is told that the record of a target is an older one. What operators and the
// breaker had set since is lost with the other. The caller holds mu.
func (w *world) targetWentBack(name string) {
	was, fields := w.targets[name], w.db.records[store.TargetRecord][name].Fields
	is := readTarget(fields)
	w.former[name] = append(w.former[name], formerRecord{was, time.Now()})
	w.targets[name] = is
	w.restored[name] = restored{time.Now(), is.newest}
	for n := range was.generations {
		if n > is.newest {
			delete(w.oracle.closed, fmt.Sprint(name, n))
		}
	}
	for n, g := range is.generations {
		key := fmt.Sprint(name, n)
		delete(w.oracle.retiredAt, key)
		if _, known := w.oracle.closed[key]; g.closed.IsZero() {
			delete(w.oracle.closed, key)
		} else if !known {
			w.oracle.closed[key] = time.Now()
		}
	}
	w.pace.forget(name)
	if !is.paused {
		delete(w.pace.paused, name)
	}
	w.oracle.seesApprovals(w.db.records[store.TargetRecord][name])
	w.oracle.budget(name).open = time.Time{}
	if trip, _ := fields["trip"].([]store.Fields); len(trip) > 0 {
		w.oracle.budget(name).open = time.Now()
	}
}

// isUnforeseen reports whether an entity was written soon after the records went back under a process that goes
// on by what it knew: it may carry a generation that is open again.
func (o *oracle) isUnforeseen(h *handle, target string, f *fact) bool {
	r, t := o.w.restored[target], o.w.plan.target
	return h.robbed && f.committed.After(r.at) && f.committed.Sub(r.at) <= t.Policy.Staleness+t.Lease
}

// afterRestore does what operators are told to do after a restore: if the records went back, they
// remove the target record, so that the next process looks for the generations in use. Of
// what went back together they may leave it.
func (w *world) afterRestore(d dice, r restoration) {
	if r.what == entitiesOnly {
		w.admit()
		h := &handle{w: w, name: "from the start", dice: d.on("from the start"),
			clock: &clock{began: w.began}, died: make(chan struct{})}
		w.sweep(w.ctx, h, fmt.Sprintf("start-%d", time.Since(w.began)), d, sweep.Run,
			func(c *sweep.Config) { c.FromStart = true })
		return
	}
	if r == (restoration{everything, true, true}) && d.on("leaves it").yes(0.4) {
		return
	}
	if !r.stopped { // if the faults stop before, it is done then
		w.sleep(d.on("removes it").between(0, time.Minute))
	}
	for i := range w.plan.targets {
		w.forget(w.plan.name(i), "the target record")
	}
}

// forget removes a target record, once nobody is about to write a new one.
func (w *world) forget(name, how string) {
	for {
		w.mu.Lock()
		if !time.Now().Before(w.creating[name]) {
			break
		}
		w.mu.Unlock()
		time.Sleep(time.Second)
	}
	defer w.mu.Unlock()
	if _, ok := w.db.records[store.TargetRecord][name]; ok {
		w.removeTarget(name)
		w.note("operator", "removes", name, how, nil)
	}
}

// sweepRestored does without faults what operators are told to do after the entities alone were
// restored. What was due is gone then.
func (w *world) sweepRestored() {
	if !w.restores() {
		return
	}
	due := time.Now()
	w.healthy("a sweep from the start", func(ctx context.Context, c sweep.Config) sweep.Result {
		c.FromStart = true
		return sweep.Run(ctx, c)
	}, 0)
	w.healthy("an audit after a restore", sweep.Audit, 0)
	w.healthy("a sweep after a restore", sweep.Run, 0)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.places() {
		for key, f := range w.oracle.truth[at] {
			if f.restored && w.oracle.level(at, f) != stays && !f.expires.Add(w.plan.target.Retention).After(due) {
				w.violate("L1", "after a restore, a sweep from the start and an audit %s@%s is still there: %v, due %v before",
					key, at.namespace, f.expiry, due.Sub(f.expires.Add(w.plan.target.Retention)))
			}
		}
	}
}

// isAhead reports whether a generation is ahead of those that a record lists which went back: sweeps
// come to it once it is opened again, or found in the index. The caller holds mu.
func (w *world) isAhead(target string, f *fact) (ahead, was bool) {
	r, ok := w.restored[target]
	const commits = 20 * time.Second
	until := r.at.Add(w.stalenessOf(target) + w.slackOf(target) + commits)
	was = ok && f.key.generation > r.newest && f.committed.Before(until)
	return was && f.key.generation > w.targets[target].newest, was
}
