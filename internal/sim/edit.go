package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// editRate is how often somebody removes or edits records by hand.
const editRate = 0.1

// An edit is what somebody does to one record in the console, which leaves its revision as
// it is. It returns what to do later to mend it, if it must be mended, and whether it was done.
// The caller holds the world's lock.
type edit struct {
	what string
	sort store.RecordSort
	do   func(w *world, d dice, key string, r store.Record) (mend func(), done bool)
}

// edits are the mistakes that people make.
var edits = []edit{
	{"removes a seal", store.SealRecord, removed},
	{"removes a budget", store.BudgetRecord, removed},
	{"removes a heartbeat", store.WorkerRecord, removed},
	{"removes a record of the history", store.SweepRecord, removed},
	{"empties a position", store.CursorRecord, emptyPosition},
	{"moves a position back", store.CursorRecord, movePosition(-1)},
	{"moves a position forward", store.CursorRecord, movePosition(1)},
	{"moves a read from the start out of its range", store.CursorRecord, misplaceRewind},
	{"sets the mark of a read from the start", store.CursorRecord, setMark("rewind_done")},
	{"removes when survivors expire", store.CursorRecord, setMark("next_expires")},
	{"lowers a token", store.CursorRecord, lowerToken},
	{"pauses", store.TargetRecord, pauseByHand},
	{"changes the shards of a generation", store.TargetRecord, changeShards},
	{"removes a generation from the list", store.TargetRecord, removeGeneration},
	{"makes a target record unreadable", store.TargetRecord, garble},
	{"makes a cursor unreadable", store.CursorRecord, garble},
	{"makes a seal unreadable", store.SealRecord, garble},
	{"makes a budget unreadable", store.BudgetRecord, garble},
	{"makes a heartbeat unreadable", store.WorkerRecord, garble},
}

// edited reports whether somebody edits records in this life.
func (w *world) edited() bool {
	return w.plan.isPlain() && !w.restores() && w.plan.takesPart("edit", w.dice.on("editor").on("takes part"), editRate)
}

// startEditor lets somebody remove or edit records while all others go on. What makes a record
// unreadable is mended a while later.
func (w *world) startEditor() {
	d := w.dice.on("editor")
	if !w.edited() {
		return
	}
	w.act(func() {
		for n := range int64(6) {
			d := d.at(n)
			if !w.sleep(d.on("pause").between(10*time.Second, w.plan.busy/4)) {
				return
			}
			if mend := w.edit(d); mend != nil {
				w.sleep(d.on("mend").between(time.Second, 2*time.Minute))
				w.mend(mend)
			}
		}
	})
}

// mend makes an unreadable record readable again.
func (w *world) mend(how func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	how()
}

// edit does to some record what somebody does by mistake.
func (w *world) edit(d dice) (mend func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for tries := range int64(4) { // there may be no record of the sort
		d := d.on("edit").at(tries)
		e := pick(d.on("what"), edits...)
		keys := slices.Sorted(maps.Keys(w.db.records[e.sort]))
		if len(keys) == 0 {
			continue
		}
		key := pick(d.on("key"), keys...)
		if e.sort == store.TargetRecord && time.Now().Before(w.creating[key]) {
			continue
		}
		r := w.db.records[e.sort][key]
		r.Fields = maps.Clone(r.Fields)
		if mend, done := e.do(w, d, key, r); done {
			w.note("operator", "edits", key, e.what, nil)
			w.count("edit: " + e.what)
			return mend
		}
	}
	return nil
}

func removed(w *world, _ dice, key string, r store.Record) (func(), bool) {
	delete(w.db.records[r.Sort], key)
	if r.Sort == store.WorkerRecord {
		delete(w.oracle.beats, key)
		w.pardon(r)
	}
	return nil, true
}

// pardon is told that somebody removes a heartbeat or makes it unreadable, which an embedded store's process
// takes for that of one before it: its own process holds what it has claimed until it notices.
func (w *world) pardon(r store.Record) {
	for h := range w.attendance.inside {
		if h.holder == text(r.Fields, "owner") {
			h.amnesty = time.Now().Add(w.plan.target.Lease)
		}
	}
}

// set puts an edited record in the place of another one.
func (w *world) set(key string, r store.Record) { w.db.records[r.Sort][key] = r }

func isAudit(r store.Record) bool { return text(r.Fields, "shard") == auditShard }

func emptyPosition(w *world, _ dice, key string, r store.Record) (func(), bool) {
	r.Fields["position"], r.Fields["position_key"] = "", ""
	w.set(key, r)
	return nil, true
}

// misplaceRewind lets a read from the start that is under way go on outside its range: it begins again.
func misplaceRewind(w *world, d dice, key string, r store.Record) (func(), bool) {
	if text(r.Fields, "rewind_position") == "" || isAudit(r) || w.plan.target.Type != store.Text {
		return nil, false
	}
	r.Fields["rewind_position"], r.Fields["rewind_position_key"] = pick(d.on("to"), "~", "00000000.", "!"), ""
	w.set(key, r)
	return nil, true
}

// noLifeLasts is longer than any life: a position so far ahead is discarded.
const noLifeLasts = 7 * 24 * time.Hour

// movePosition returns an edit that moves a position into the past or the future. What it passes
// over waits for the next read from the start, or for the audit.
func movePosition(sign int) func(*world, dice, string, store.Record) (func(), bool) {
	return func(w *world, d dice, key string, r store.Record) (func(), bool) {
		p := text(r.Fields, "position")
		if p == "" || isAudit(r) {
			return nil, false
		}
		by := d.on("by").between(time.Second, 10*time.Minute)
		switch reach := d.on("reach"); {
		case sign < 0:
			by = -by
		case reach.yes(0.3):
			by += 30 * 24 * time.Hour
		case reach.on("near").yes(0.5): // just beyond the horizon
			by = reach.on("by").between(time.Second, w.plan.target.Overlap+w.plan.target.Retention+time.Minute)
		}
		var v store.Value
		var to time.Time
		if w.plan.target.Type == store.Instant {
			to = instant(r.Fields, "position").Add(by)
			v = store.InstantValue(to)
			r.Fields["position"] = store.FormatTime(v.Time)
		} else {
			e, ok := parsePlace(p)
			if !ok {
				return nil, false
			}
			to = e.expires.Add(by)
			v = store.TextValue(p[:14] + to.Format("20060102T150405.000Z"))
			r.Fields["position"] = v.Text
		}
		far := time.Until(to) > noLifeLasts // a position of a month ago that is moved by a month is not far
		r.Fields["position_key"] = ""
		w.set(key, r)
		if sign > 0 {
			// One that lies far ahead is discarded: it hides nothing that is written later. In a
			// generation that drains it may be right; see comesBack.
			w.oracle.skips = append(w.oracle.skips,
				skip{kind: text(r.Fields, "kind"), cursor: key, upTo: v, all: far, far: far, at: time.Now()})
		}
		return nil, true
	}
}

// setMark returns an edit of a mark that says that a range needs no read.
func setMark(field string) func(*world, dice, string, store.Record) (func(), bool) {
	return func(w *world, _ dice, key string, r store.Record) (func(), bool) {
		if isAudit(r) {
			return nil, false
		}
		r.Fields[field] = ""
		if field == "rewind_done" {
			r.Fields[field] = store.FormatTime(time.Now())
		}
		w.set(key, r)
		w.oracle.skips = append(w.oracle.skips, skip{kind: text(r.Fields, "kind"), cursor: key, all: true, at: time.Now()})
		return nil, true
	}
}

func lowerToken(w *world, d dice, key string, r store.Record) (func(), bool) {
	if text(r.Fields, "owner") != "" || number(r.Fields, "token") < 2 {
		return nil, false
	}
	token := 1 + d.on("token").below(number(r.Fields, "token")-1)
	r.Fields["token"] = int64(token)
	w.set(key, r)
	l := w.oracle.leases[key]
	l.token = token
	w.oracle.leases[key] = l
	return nil, true
}

func pauseByHand(w *world, _ dice, key string, r store.Record) (func(), bool) {
	if readTarget(r.Fields).paused {
		return nil, false
	}
	r.Fields["paused"] = true
	w.setTarget(key, r)
	w.pace.paused[key] = time.Now()
	return func() {
		if r, ok := w.db.records[store.TargetRecord][key]; ok {
			r.Fields = maps.Clone(r.Fields)
			r.Fields["paused"] = false
			w.setTarget(key, r)
		}
		delete(w.pace.paused, key)
	}, true
}

// setTarget puts an edited target record in the place of another one. Others may still go by that.
func (w *world) setTarget(key string, r store.Record) {
	w.former[key] = append(w.former[key], formerRecord{w.targets[key], time.Now()})
	w.set(key, r)
	w.targets[key] = readTarget(r.Fields)
}

func changeShards(w *world, d dice, key string, r store.Record) (func(), bool) {
	list, _ := r.Fields["generations"].([]store.Fields)
	if len(list) == 0 {
		return nil, false
	}
	list = slices.Clone(list)
	i := d.on("which").below(len(list))
	was := number(list[i], "shards")
	is := max(1, was+pick(d.on("by"), -2, -1, 1, 2))
	list[i] = maps.Clone(list[i])
	list[i]["shards"] = int64(is)
	r.Fields["generations"] = list
	w.setTarget(key, r)
	for _, facts := range w.oracle.truth {
		for _, f := range facts {
			f.beyond = f.beyond || f.key.generation == number(list[i], "number") && f.key.shard >= is
		}
	}
	return nil, is != was
}

// removeGeneration removes a generation that is closed. What is in it becomes a stray.
func removeGeneration(w *world, d dice, key string, r store.Record) (func(), bool) {
	list, _ := r.Fields["generations"].([]store.Fields)
	if len(list) < 2 {
		return nil, false
	}
	i := d.on("which").below(len(list) - 1)
	n := number(list[i], "number")
	if text(list[i], "closed") == "" {
		return nil, false
	}
	r.Fields["generations"] = slices.Delete(slices.Clone(list), i, i+1)
	w.setTarget(key, r)
	w.oracle.skips = append(w.oracle.skips, skip{kind: w.plan.kind(key), generation: n, all: true, at: time.Now()})
	return nil, true
}

// garble makes a field of a record unreadable. A target whose own record nobody can read is left alone.
func garble(w *world, d dice, key string, r store.Record) (func(), bool) {
	fields := slices.DeleteFunc(slices.Sorted(maps.Keys(r.Fields)), func(f string) bool {
		return f == "revision" || f == "target" || r.Sort == store.BudgetRecord && f != "began"
	})
	field := pick(d.on("field"), append(fields, "schema", "schema")...)
	was, isThere := r.Fields[field]
	is := pick(d.on("garbage"), any("garbage"), any(int64(-7)), any(true))
	if field == "schema" {
		is = int64(99)
	}
	if !isThere || is == was {
		return nil, false
	}
	if r.Sort == store.WorkerRecord {
		w.pardon(r)
	}
	r.Fields[field] = is
	w.note("operator", "garbles", key, fmt.Sprintf(" %s: %v, was %v", field, is, was), nil)
	w.set(key, r)
	return func() {
		if r, ok := w.db.records[r.Sort][key]; ok && r.Fields[field] == is {
			r.Fields = maps.Clone(r.Fields)
			r.Fields[field] = was
			w.set(key, r)
			if field == "paused" && was == false { // an operator's pause meanwhile found the target paused, and changed nothing
				delete(w.pace.paused, key)
			}
		}
	}, true
}

// isForged reports whether somebody has written another holder into a cursor record than claimed the range.
func isForged(claimed leaseFact, r store.Record) bool {
	return claimed.owner != "" && r.Fields != nil && text(r.Fields, "owner") != claimed.owner
}

// markBefore returns the mark of the last read from the start as it was before a cursor record changed.
// A process that goes on with a copy puts back a mark that somebody has made unreadable: that is no new one.
func markBefore(old, new store.Record) time.Time {
	was := instant(old.Fields, "rewind_done")
	if is, ok := old.Fields["rewind_done"]; ok && is != "" && was.IsZero() {
		return instant(new.Fields, "rewind_done")
	}
	return was
}

// unpaused is told of each change of a target record. A process that has read it before somebody wrote a pause
// into it, which left its revision as it was, takes the pause back. The caller holds mu.
func (w *world) unpaused(target string, was, is targetFact) {
	if was.paused && !is.paused && w.edited() {
		delete(w.pace.paused, target)
	}
}

// isUndone reports whether a process that has read a target record before it was edited, which
// left its revision as it was, writes what stood there before. The caller holds mu.
func (w *world) isUndone(target string, number int, is generationFact) bool {
	return w.edited() && slices.ContainsFunc(w.former[target], func(f formerRecord) bool {
		g, ok := f.generations[number]
		return ok && g.shards == is.shards
	})
}

// A skip is what an edited record passes over: a read from the start, or the audit, finds it.
type skip struct {
	kind, cursor string // of one range; else a generation
	generation   int
	upTo         store.Value
	all          bool
	far          bool      // a position where no life comes, which nobody has left yet
	at           time.Time // all that was committed until then
}

// comesBack is told that a process has moved a cursor. In a generation that drains it may have taken a
// position far ahead for right, and what was committed meanwhile for what a read from the start finds.
func (o *oracle) comesBack(r store.Record) {
	for i, s := range o.skips {
		if s.far && strings.EqualFold(s.cursor, r.Key) {
			o.skips[i].far = false
			if o.w.drains(r.Target, number(r.Fields, "generation")) {
				o.skips[i].at = time.Now()
			}
		}
	}
}

// drains reports whether a generation is being carried to the newest one.
func (w *world) drains(target string, generation int) bool {
	list, _ := w.db.records[store.TargetRecord][target].Fields["generations"].([]store.Fields)
	return slices.ContainsFunc(list, func(g store.Fields) bool {
		return number(g, "number") == generation && text(g, "draining") != ""
	})
}

// isSkipped reports whether an entity lies where an edited record passes over it.
func (o *oracle) isSkipped(at place, f *fact) bool {
	if len(o.skips) == 0 {
		return false
	}
	target, shard := o.w.plan.named(at.kind), fmt.Sprintf("%04d", f.key.shard)
	if o.w.plan.target.ShardProperty != "" {
		shard = f.shard.Text
	}
	cursor := cursorKey(target, f.key.generation, shard, at.namespace)
	return slices.ContainsFunc(o.skips, func(s skip) bool {
		switch {
		case s.kind != at.kind:
			return false
		case s.cursor == "":
			return f.key.generation == s.generation
		}
		passes := s.all && !f.committed.After(s.at) || !s.all && f.expiry.Compare(s.upTo) <= 0
		return strings.EqualFold(s.cursor, cursor) && passes
	})
}
