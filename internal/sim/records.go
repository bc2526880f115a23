package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A targetFact is what a target record says, read field by field.
type targetFact struct {
	generations map[int]generationFact
	newest      int
	nursery     int
	staleness   time.Duration
	slack       time.Duration
	paused      bool
	checked     time.Time // when the last look around began
	namespaces  map[string]bool
}

type generationFact struct {
	shards           int
	closed           time.Time // the mark
	staleness, slack time.Duration
}

func number(f store.Fields, name string) int {
	n, _ := f[name].(int64)
	return int(n)
}

func millis(f store.Fields, name string) time.Duration {
	return time.Duration(number(f, name)) * time.Millisecond
}

func text(f store.Fields, name string) string {
	s, _ := f[name].(string)
	return s
}

func instant(f store.Fields, name string) time.Time {
	t, _ := time.Parse(store.TimeLayout, text(f, name))
	return t
}

func readTarget(f store.Fields) targetFact {
	r := targetFact{generations: map[int]generationFact{}, nursery: number(f, "nursery_shards"),
		staleness: millis(f, "staleness_ms"), slack: millis(f, "slack_ms")}
	r.paused, _ = f["paused"].(bool)
	r.checked = instant(f, "checked")
	names, _ := f["namespaces"].([]store.Fields)
	r.namespaces = make(map[string]bool, len(names))
	for _, n := range names {
		r.namespaces[text(n, "name")] = true
	}
	list, _ := f["generations"].([]store.Fields)
	for _, g := range list {
		n := number(g, "number")
		r.generations[n] = generationFact{number(g, "shards"), instant(g, "closed"),
			millis(g, "staleness_ms"), millis(g, "slack_ms")}
		r.newest = max(r.newest, n)
	}
	return r
}

// asks notes that a look around is asked for: the mark of the last one was taken back.
func (o *oracle) asks(target string, was, is targetFact) {
	if is.checked.IsZero() && !was.checked.IsZero() {
		o.asked[target] = time.Now()
	}
}

// savedTarget is told of each change of a target record.
func (o *oracle) savedTarget(by string, old, new store.Record, kind string) {
	was, is := readTarget(old.Fields), readTarget(new.Fields)
	if new.Fields == nil {
		o.w.violate("L4", "%s removed the target record", by)
		return
	}
	o.asks(new.Key, was, is)
	for n := range was.generations {
		if _, ok := is.generations[n]; !ok {
			o.retiredAt[fmt.Sprint(new.Key, n)] = time.Now()
			if text(new.Fields, "property") == halfway {
				o.leaves(kind, n)
			}
			o.retired(by, kind, n, o.areSwept(new.Key, was.namespaces))
		}
	}
	for n, g := range is.generations {
		before, known := was.generations[n]
		switch {
		case !known && n <= was.newest && !o.unlisted(old, new, n) && !o.w.isUndone(new.Key, n, g):
			o.w.violate("L4", "%s brought generation %d back", by, n)
		case !known:
			o.listed(fmt.Sprint(new.Key, n), g, was.newest)
		case !before.closed.IsZero() && g.closed.IsZero():
			o.w.violate("L4", "%s opened generation %d again", by, n)
		case g.shards != before.shards && !o.w.isUndone(new.Key, n, g):
			o.w.violate("L4", "%s gave generation %d other shards", by, n)
		case !g.closed.IsZero() && before.closed.IsZero():
			o.closed[fmt.Sprint(new.Key, n)] = time.Now()
			o.w.count("closed")
			if time.Since(g.closed) > 10*time.Second {
				o.w.count("closed late")
			}
		}
	}
	o.unfound(old, new, kind, is)
	o.w.unpaused(new.Key, was, is)
	if is.newest < was.newest {
		o.w.violate("L4", "%s took the newest generation, %d, away", by, was.newest)
	}
	o.w.targets[new.Key] = is
	o.turns(old, new)
}

// unlisted reports whether a generation that is listed below the newest was found in use
// by a probe, and has not retired since the record was made.
func (o *oracle) unlisted(old, new store.Record, number int) bool {
	retired, ok := o.retiredAt[fmt.Sprint(new.Key, number)]
	return text(old.Fields, "probe") != text(new.Fields, "probe") &&
		(!ok || retired.Before(instant(new.Fields, "created")))
}

// unfound takes in the last probe for generations that only a lost record listed. It does not go to
// namespaces that nobody sweeps: what lies there in other generations is left to the audit.
func (o *oracle) unfound(old, new store.Record, kind string, is targetFact) {
	if text(old.Fields, "probe") == "" || text(new.Fields, "probe") != "" {
		return
	}
	swept := o.areSwept(new.Key, is.namespaces)
	for at, facts := range o.truth {
		if at.kind != kind || swept[at.namespace] || swept["*"] {
			continue
		}
		for _, f := range facts {
			n := f.key.generation
			if _, known := is.generations[n]; known || n == 0 || !f.wellFormed || !f.withinBounds {
				continue
			}
			f.leftBehind = true
			o.w.count("probed without its namespace")
		}
	}
}

// listed is told of a generation that is new in a record: open, or found in use.
func (o *oracle) listed(key string, g generationFact, newest int) {
	delete(o.retiredAt, key) // what a lost record has retired is live again
	delete(o.closed, key)
	if g.closed.IsZero() {
		o.w.count("opened")
		return
	}
	o.closed[key], o.adoptedAt[key] = time.Now(), time.Now()
	o.w.count("adopted")
	if newest > 0 {
		o.w.count("adopted later")
	}
}

// A leaseFact is who holds a range, by the last write of its record.
type leaseFact struct {
	target string
	owner  string
	epoch  int
	token  int
}

// savedCursor is told of each change of a cursor record. It holds L2 and L3.
func (o *oracle) savedCursor(h *handle, old, new store.Record) {
	key := new.Key
	was := o.leases[key]
	if new.Fields == nil {
		if was.owner != "" && was.owner != h.holder && !o.lapsed(h, was) {
			o.w.violate("L3", "%s removed the record of %s, which %s holds", h.name, key, was.owner)
		}
		delete(o.leases, key)
		return
	}
	was.target = new.Target // also where there was no record
	is := leaseFact{new.Target, text(new.Fields, "owner"), number(new.Fields, "epoch"), number(new.Fields, "token")}
	if isForged(was, old) && was.owner != h.holder { // others go by the heartbeat of whom the record names
		o.overtaken[key] = was
		was.owner, was.epoch = "", is.epoch
	}
	o.lease(h, key, was, is)
	o.leases[key] = is
	moved := text(old.Fields, "position") != text(new.Fields, "position") ||
		text(old.Fields, "position_key") != text(new.Fields, "position_key")
	if millis(new.Fields, "rewind_window_ms") > 0 && text(new.Fields, "rewind_position") == "" {
		o.w.violate("P1", "%s saves the window of a read from the start of %s, and not its place", h.name, key)
	}
	if moved {
		o.comesBack(new)
	}
	switch {
	case text(new.Fields, "shard") == auditShard:
		o.audited(h, old, new)
	case moved || text(old.Fields, "rewind_done") != text(new.Fields, "rewind_done"):
		o.beginsAgain(h, old, new)
		o.passed(h, new, markBefore(old, new))
	}
}

// beginsAgain holds P1: a cursor among what this life writes never comes to lie before all of that again.
func (o *oracle) beginsAgain(h *handle, old, new store.Record) {
	was, known := parsePlace(text(old.Fields, "position"))
	is, ok := parsePlace(text(new.Fields, "position")) // else it is that of another opening or property
	first := o.w.began.Add(-2 * time.Hour)
	if !known || !ok || o.w.edited() || o.w.restores() || text(old.Fields, "opened") != text(new.Fields, "opened") ||
		was.expires.Before(first) || was.expires.After(time.Now().Add(-time.Minute)) {
		return
	}
	if is.expires.Before(first) {
		o.w.violate("P1", "%s took the cursor of %s back from %s to %s", h.name, new.Key, text(old.Fields, "position"),
			text(new.Fields, "position"))
	}
}

// parsePlace returns the expiry that a position has come to, at a malformed text too.
func parsePlace(s string) (expiry, bool) { return parse(s[:min(len(s), 34)]) }

// void reports whether a lease is that of a process which cannot be any more, since
// the store can be open in one only.
func (o *oracle) void(h *handle, was leaseFact) bool {
	return o.w.plan.mode == embedded && was.owner != h.holder
}

// lapsed reports whether the epoch is over by which somebody holds a range: its heartbeat
// tells so, or was not renewed for a lease.
func (o *oracle) lapsed(h *handle, was leaseFact) bool {
	return o.void(h, was) || !o.holdsForOthers(was)
}

// beatOf returns the heartbeat by which somebody holds a range.
func (o *oracle) beatOf(l leaseFact) beatFact {
	for key, b := range o.beats {
		if b.holder == l.owner && o.w.db.records[store.WorkerRecord][key].Target == l.target {
			return b
		}
	}
	return beatFact{}
}

// lease holds L3 as a cursor record changes: only who holds a range writes its record.
func (o *oracle) lease(h *handle, key string, was, is leaseFact) {
	switch {
	case is.token < was.token:
		o.w.violate("L3", "%s: %s took the token of %s back from %d to %d", key, h.name, was.owner, was.token, is.token)
	case is == was && is.owner != h.holder:
		o.w.count("moved idle")
		if was.owner != "" {
			o.w.violate("L3", "%s: %s moved the cursor that %s holds", key, h.name, was.owner)
		}
	case is.owner != "" && is.owner != h.holder:
		o.w.violate("L3", "%s: %s wrote the lease of %s", key, h.name, is.owner)
	case was.owner == "" && is.owner == "":
		o.w.violate("L3", "%s: %s changed the token of a range that nobody holds", key, h.name)
	default:
		o.ownLease(h, key, was, is)
	}
}

// ownLease holds L3 as a process claims a range, renews its lease, or gives it back.
func (o *oracle) ownLease(h *handle, key string, was, is leaseFact) {
	switch {
	case was.owner == h.holder && is.token == was.token: // renewed, or released
		if is.owner == "" {
			o.w.count("released")
		}
	case is.owner == "" && is.token == was.token && o.lapsed(h, was): // with the cursor of an idle range
		o.w.count("moved idle")
	case is.owner == "":
		o.w.violate("L3", "%s: %s gave back what %s holds", key, h.name, was.owner)
	case is.token == was.token:
		o.w.violate("L3", "%s: %s claimed with the token of %s", key, h.name, was.owner)
	case was.owner != "" && !o.void(h, was):
		o.w.count("taken over")
		o.overtakes(key, was)
		if b := o.beatOf(was); was.owner != h.holder && !o.lapsed(h, was) {
			o.w.violate("L3", "%s: %s took over from %s in epoch %d, whose last heartbeat was %v ago; the lease is %v",
				key, h.name, was.owner, was.epoch, time.Since(b.at), b.lease)
		}
	}
}

// passed holds L2: what a cursor has passed is gone, or is kept. Behind it may stand what
// was written there, until a read from the start that began later is done.
func (o *oracle) passed(h *handle, r store.Record, done time.Time) {
	t := o.w.plan.target
	p := store.Position{Value: store.TextValue(text(r.Fields, "position")), Key: text(r.Fields, "position_key")}
	if t.Type == store.Instant {
		p.Value = store.InstantValue(instant(r.Fields, "position"))
	}
	ns, generation, shard := text(r.Fields, "namespace"), number(r.Fields, "generation"), text(r.Fields, "shard")
	read := instant(r.Fields, "rewind_done") // when that began
	at := place{text(r.Fields, "kind"), ns}
	for key, f := range o.truth[at] {
		ahead := f.inOrder && f.withinBounds && !o.isSkipped(at, f) ||
			read.After(done) && f.committed.Add(o.w.plan.lag).Before(read)
		switch {
		case !f.wellFormed || !ahead || o.isKept(h, f, read) || o.suspect(f) || f.refused || cannotSee(r, key):
		case t.Type == store.Text && (f.key.generation != generation || fmt.Sprintf("%04d", f.key.shard) != shard):
		case t.ShardProperty != "" && f.shard.Text != shard:
		case !before(f.expiry, key, p):
		case o.isUnforeseen(h, r.Target, f): // the next read from the start finds it
			f.inOrder = false
			o.w.count("missed after a restore")
		default:
			o.w.violate("L2", "%s moved the cursor of %s to %q %s, past %s@%s: %v, committed %v ago", h.name, r.Key,
				text(r.Fields, "position"), p.Key, key, ns, f.expiry, time.Since(f.committed))
		}
	}
}

// audited holds L2 of the audit: what it has passed, on ground that had retired when its
// round began, is gone, if it was there then.
func (o *oracle) audited(h *handle, old, new store.Record) {
	t, target := o.w.plan.target, new.Target
	began, upTo := instant(new.Fields, "rewind_began"), text(new.Fields, "position")
	if done := instant(new.Fields, "rewind_done"); done.After(instant(old.Fields, "rewind_done")) {
		began, upTo = done, "~"
	}
	at := place{o.w.plan.kind(target), text(new.Fields, "namespace")}
	for key, f := range o.truth[at] {
		left, retired := o.retiredAt[fmt.Sprint(target, f.key.generation)]
		if t.Type == store.Text && f.wellFormed && retired && !cannotSee(new, key) && f.key.generation > 0 &&
			!f.refused && left.Before(began) && f.committed.Add(o.w.plan.lag).Before(began) && f.expiry.Text < upTo {
			o.w.violate("L2", "%s moved the audit to %q, past %s@%s: %s, committed %v ago",
				h.name, upTo, key, at.namespace, f.expiry.Text, time.Since(f.committed))
		}
	}
}

func (o *oracle) suspect(f *fact) bool {
	t := o.w.plan.target
	return f.expires.Before(time.Now().Add(-t.MaxAge - t.Retention))
}

// disposes holds L3 as a write of a sweep is sent: only who holds the range may.
func (o *oracle) disposes(h *handle, t store.Target, q store.Query) {
	if h.dry || h.robbed || time.Now().Before(h.amnesty) {
		return
	}
	key := rangeKey(t, q)
	for _, key := range []string{key, cursorKey(t.Name, 0, auditShard, q.Namespace)} {
		if l := o.leases[key]; l.owner == h.holder && o.holdsForItself(l) || o.isOvertaken(h, key) {
			return
		}
	}
	if l := o.leases[key]; l.owner == h.holder {
		b := o.beatOf(l)
		o.w.violate("L3", "%s writes in %s, which it holds by epoch %d; its heartbeat of epoch %d was renewed %v ago, "+
			"the lease is %v", h.name, key, l.epoch, b.epoch, time.Since(b.at), b.lease)
	}
	o.w.violate("L3", "%s writes in %s, which %q holds", h.name, key, o.leases[key].owner)
}

const auditShard = "audit"

// firstWindow is the window with which a read from the start begins.
const firstWindow = time.Minute

// scans checks a read from the start that resumes at the position in the record. It must
// begin with the window in the record, not with the first one again: over dense
// tombstones it would never end.
func (o *oracle) scans(h *handle, q store.Query) {
	t := &o.w.plan.target
	if t.Type != store.Text || h.dry || q.After.Value.Text == "" {
		return
	}
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	key := rangeKey(q.Target, q)
	r, ok := o.w.db.records[store.CursorRecord][key]
	mine := ok && text(r.Fields, "owner") == h.holder && o.resumed[key] != number(r.Fields, "token")
	if !mine {
		return
	}
	place, saved := text(r.Fields, "rewind_position"), millis(r.Fields, "rewind_window_ms")
	if place == "" || q.After.Value.Text != place || q.After.Key != text(r.Fields, "rewind_position_key") ||
		place >= text(r.Fields, "position") {
		return
	}
	if q.Limit > t.Page { // the breaker reads what it cannot count from an instant that may be the same
		return
	}
	o.resumed[key] = number(r.Fields, "token")
	from, _ := parsePlace(place)
	end, _ := parsePlace(q.Hi.Text)
	o.w.count("read on from the start")
	// A window may be shorter for other reasons, but hardly ever by just so much, unless the
	// read ends there: at the cursor, whose instant may be some whole minutes after the place.
	cursor, _ := parsePlace(text(r.Fields, "position"))
	cut := !end.expires.Before(cursor.expires.Add(-time.Millisecond))
	again := !cut && (end.expires.Sub(from.expires)-firstWindow).Abs() <= 2*time.Millisecond
	if again && saved >= 256*firstWindow { // else it may have been halved
		o.w.violate("P1", "%s reads on from %s with the first window again, and the last one was %v", h.name, place, saved)
	}
}

// rangeKey returns the key of the cursor record of the range that a query reads.
func rangeKey(t store.Target, q store.Query) string {
	switch {
	case t.Type == store.Text && len(q.Lo.Text) >= 13:
		n, _ := strconv.Atoi(q.Lo.Text[:8])
		return cursorKey(t.Name, n, q.Lo.Text[9:13], q.Namespace)
	case t.Type == store.Text:
		return "" // whole generations
	case t.ShardProperty != "":
		return cursorKey(t.Name, 0, q.Shard.Text, q.Namespace)
	}
	return cursorKey(t.Name, 0, "0000", q.Namespace)
}

func cursorKey(target string, generation int, shard, namespace string) string {
	digits := strconv.Itoa(generation)
	key := append(make([]byte, 0, 64), target...)
	key = append(key, '.')
	for range 8 - len(digits) {
		key = append(key, '0')
	}
	key = append(append(append(key, digits...), '.'), shard...)
	if namespace != "" {
		key = append(append(key, '@'), namespace...)
	}
	return string(key)
}
