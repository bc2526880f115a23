package sim

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A rush is a time without faults in which one daemon works, and some ranges keep it busy:
// with a backlog, with entities that others hold or the store refuses, and with reads from
// the start that time out. Meanwhile entities fall due in ranges at rest: L5 says by when
// each must be gone. Chores have their times, too.
type rush struct {
	w     *world
	tick  time.Duration
	pace  float64 // of each range; 0 is unlimited
	lasts time.Duration
	drag  time.Duration // what a scan takes for each ten minutes behind a cursor
	cut   sweep.Target  // how the daemon is configured
	work  int           // workers

	// Guarded by the world's lock.
	on      bool
	held    map[string]bool      // entities that somebody holds
	refused map[string]bool      // entities that the store refuses
	denied  map[string]time.Time // when it first did
	named   map[string]bool      // those that the daemon has named
	busy    map[string]bool      // keys of cursors whose ranges are not at rest
	foreign map[string]bool      // keys of cursors that the rival wrote first
}

// A spot is a range that entities are written to.
type spot struct {
	namespace         string
	generation, shard int
	value             store.Value
}

func (s spot) key(target string) string {
	switch {
	case s.value.Type != store.Missing:
		return cursorKey(target, 0, s.value.Text, s.namespace)
	}
	return cursorKey(target, s.generation, fmt.Sprintf("%04d", s.shard), s.namespace)
}

// callTakes is the most that a call takes while nothing goes wrong, and pageTakes what a
// page of a range does that is not claimed yet: a scan, a claim, and a write.
const (
	callTakes = 20 * time.Millisecond
	pageTakes = 3 * callTakes
)

// clockLags is how far the daemon's clock is behind at most. It loses an eighth until it reads the store's
// time again with the target record, which it does every 5 s, but not when it has just written that record.
const clockLags = 10 * time.Second / 8

// queryTakes is when a query of a read from the start is given up at the latest.
const queryTakes = 5*time.Second + callTakes

func newRush(w *world) *rush {
	d := w.dice.on("rush")
	r := &rush{w: w, held: map[string]bool{}, refused: map[string]bool{}, busy: map[string]bool{},
		denied: map[string]time.Time{}, named: map[string]bool{}, foreign: map[string]bool{}}
	r.tick = time.Duration(pick(d.on("tick"), 1, 1, 2, 5)) * time.Second
	r.pace = pick(d.on("pace"), 0, 0, 4.03, 10.07)
	r.lasts = d.on("lasts").between(40*time.Second, 100*time.Second)
	if w.plan.has("drag") && d.on("drags").yes(0.6) {
		r.drag = d.on("drag").between(100*time.Millisecond, 3*time.Second)
	}
	r.work = pick(d.on("workers"), 2, 2, 4)
	r.cut = w.plan.target
	r.cut.Pace, r.cut.Total = throttle.Limits{Unlimited: true}, throttle.Limit{}
	if r.pace > 0 {
		r.cut.Pace = throttle.Limits{Start: r.pace, Max: r.pace}
	}
	r.cut.Limits, r.cut.Breaker = breaker.Limits{}, breaker.Rules{}
	if d.on("rewinds").yes(0.6) {
		r.cut.Rewind = 110 * time.Second
	}
	return r
}

// run lets a daemon work, fills some ranges, and lets entities fall due in the others.
func (r *rush) run() {
	w, d := r.w, r.w.dice.on("rush")
	ctx, end := context.WithCancel(context.Background())
	h := &handle{w: w, name: "daemon", dice: d.on("handle"), clock: &clock{began: w.began}, died: make(chan struct{}),
		calm: true, rush: r}
	serving, served := time.Now(), make(chan struct{})
	go func() {
		defer close(served)
		w.sweep(ctx, h, fmt.Sprintf("rush-%d", time.Since(w.began)), d, w.serve(h, r.tick, true, 0), func(c *sweep.Config) {
			c.Workers, c.Yes = r.work, true
			for i := range c.Targets {
				name, kind := c.Targets[i].Name, c.Targets[i].Kind
				bounds := c.Targets[i].Policy
				c.Targets[i] = r.cut
				c.Targets[i].Descendants = w.plan.descendants(r.cut)
				c.Targets[i].Name, c.Targets[i].Kind, c.Targets[i].Policy = name, kind, bounds
			}
		})
	}()
	for i := range w.plan.targets {
		r.inhabit(w.plan.name(i))
	}
	time.Sleep(w.plan.target.Lease + 30*time.Second)
	if w.plan.mode != embedded && d.on("rival").yes(0.5) {
		r.rival(d.on("rival"))
	}
	r.set(true)
	began := time.Now()
	var writers []func(dice)
	for i := range w.plan.targets {
		name := w.plan.name(i)
		quiet := r.fill(d.on(name), name)
		if len(quiet) > 0 {
			writers = append(writers, func(d dice) { r.drop(d, name, quiet) })
		}
	}
	for n := int64(0); time.Since(began) < r.lasts && w.goesOn(); n++ {
		d := d.on("drop").at(n)
		most := 3 * time.Second
		if n < 10 { // the first ones fall due while the backlogs do
			most = 300 * time.Millisecond
		}
		time.Sleep(d.on("pause").between(200*time.Millisecond, most))
		for _, write := range writers {
			write(d)
		}
	}
	time.Sleep(30 * time.Second)
	r.checkChores(serving)
	r.checkRefused()
	r.set(false)
	end()
	<-served
	w.ghosts.Wait()
}

// choreTakes is more than a look around takes, with all that is due before it.
const choreTakes = 20 * time.Second

// checkChores holds L5 for the chore that is due most often: who has been serving for a
// period has looked around, whatever his ranges were busy with.
func (r *rush) checkChores(serving time.Time) {
	w, late := r.w, r.cut.Rewind+choreTakes
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(serving) < late {
		return
	}
	for i := range w.plan.targets {
		rec, known := w.record(w.plan.name(i))
		asked := w.oracle.asked[w.plan.name(i)] // the mark of the last look is taken back then
		if age := min(time.Since(rec.checked), time.Since(asked)); known && age > late {
			w.violate("L5", "nobody has looked around in %s for %v; that is due every %v", w.plan.name(i), age, r.cut.Rewind)
		}
		w.count("chores in time")
	}
}

// rival lets another process sweep, which claims ranges that the daemon had before: what
// the daemon knows of them is old then.
func (r *rush) rival(d dice) {
	w := r.w
	for i := range w.plan.targets {
		for n, s := range r.spots(w.plan.name(i)) {
			r.put(w.plan.name(i), s, fmt.Sprintf("v%d-%d", i, n), time.Now())
		}
	}
	w.mu.Lock()
	before := maps.Clone(w.db.records[store.CursorRecord])
	w.mu.Unlock()
	h := &handle{w: w, name: "rival", dice: d, clock: &clock{began: w.began}, died: make(chan struct{}), calm: true}
	w.sweep(context.Background(), h, fmt.Sprintf("rival-%d", time.Since(w.began)), d, sweep.Run, func(c *sweep.Config) {
		c.Yes = true
		w.relax(c.Targets, false)
	})
	w.mu.Lock()
	for key := range w.db.records[store.CursorRecord] {
		if _, ok := before[key]; !ok {
			r.foreign[key] = true
		}
	}
	w.mu.Unlock()
	time.Sleep(w.plan.target.Lease/6 + time.Second) // so often the daemon looks who holds what
}

// namedWithin is how soon an entity that the store refuses counts as refused: three tries.
// The second and the third wait for the slow lane, in which reads from the start may drag.
func (r *rush) namedWithin() time.Duration {
	within := time.Minute
	for i := range r.w.plan.targets {
		within += 2 * time.Duration(len(r.spots(r.w.plan.name(i)))) * min(r.drag, queryTakes)
	}
	return within
}

// checkRefused holds that what the store refuses is named, and does not stay a secret of
// its range.
func (r *rush) checkRefused() {
	within := r.namedWithin()
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for key, at := range r.denied {
		if time.Since(at) > within && !r.named[key] {
			r.w.violate("L5", "the store has refused %s for %v, and the daemon does not say so", key, time.Since(at))
		}
		r.w.count("refused for good")
	}
}

func (r *rush) set(on bool) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.on = on
	r.w.note("world", "rush", strconv.FormatBool(on), "", nil)
}

// goesOn reports whether no rule was broken yet.
func (w *world) goesOn() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running()
}

// spots lists the ranges that a writer within the bounds may write to.
func (r *rush) spots(target string) (list []spot) {
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ns := range w.plan.namespaces {
		if w.plan.target.Type == store.Instant {
			values := w.plan.target.ShardValues
			if len(values) == 0 {
				values = []store.Value{{}}
			}
			for _, v := range values {
				list = append(list, spot{namespace: ns, value: v})
			}
			continue
		}
		rec, _ := w.record(target)
		for shard := range max(1, rec.nursery) {
			list = append(list, spot{namespace: ns, shard: shard})
		}
		for shard := range rec.generations[rec.newest].shards {
			list = append(list, spot{namespace: ns, generation: rec.newest, shard: shard})
		}
	}
	return list
}

// inhabit gives each namespace an entity that stays: a daemon that sweeps them all comes
// to know of a new one only seconds later, and its ranges are not at rest before.
func (r *rush) inhabit(target string) {
	known := map[string]bool{}
	for _, s := range r.spots(target) {
		if !known[s.namespace] {
			known[s.namespace] = r.put(target, s, "stays", time.Now().Add(1000*time.Hour))
		}
	}
}

// fill gives some ranges much to do, and returns the others.
func (r *rush) fill(d dice, target string) (quiet []spot) {
	list := r.spots(target)
	if len(list) < 2 {
		return nil
	}
	busy := 1 + d.on("busy").below(len(list)/2)
	first := d.on("first").below(len(list))
	due := time.Now().Add(d.on("due").between(2*time.Second, 8*time.Second))
	for i := range list {
		s := list[(first+i)%len(list)]
		if i >= busy {
			quiet = append(quiet, s)
			continue
		}
		r.w.mu.Lock()
		r.busy[s.key(target)] = true
		r.w.mu.Unlock()
		d := d.on("fill").at(int64(i))
		switch what := d.on("what").below(6); {
		case what < 4:
			r.write(target, s, "f", (100+d.on("many").below(300))*pick(d.on("more"), 1, 1, 1, 5), due)
		case what == 4 && r.w.plan.has("locked"):
			r.mark(r.held, r.write(target, s, "h", 1+d.on("many").below(12), due))
		case what == 5 && r.w.plan.has("refused"):
			r.mark(r.refused, r.write(target, s, "r", 1+d.on("many").below(3), due))
		}
	}
	return quiet
}

func (r *rush) mark(in map[string]bool, keys []string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for _, k := range keys {
		in[k] = true
	}
}

// write writes so many entities, which fall due from an instant on, and returns their keys.
func (r *rush) write(target string, s spot, prefix string, n int, due time.Time) (keys []string) {
	for i := range n {
		name := fmt.Sprintf("%s%s%d-%d-%s-%d", prefix, s.namespace, s.generation, s.shard, s.value.Text, i)
		if r.put(target, s, name, due.Add(time.Duration(i)*time.Millisecond)) {
			keys = append(keys, keyOf(name))
		}
	}
	return keys
}

// put writes an entity that falls due at an instant, if its generation is still the newest.
func (r *rush) put(target string, s spot, name string, due time.Time) bool {
	w := r.w
	w.mu.Lock()
	rec, _ := w.record(target)
	closed := s.generation > 0 && (s.generation != rec.newest || !rec.generations[s.generation].closed.IsZero())
	w.mu.Unlock()
	if closed {
		return false
	}
	expires := due.Add(-w.plan.target.Retention)
	e := row{key: keyOf(name), data: "rush", shard: s.value,
		expiry: store.InstantValue(expires.UTC().Truncate(time.Microsecond))}
	if w.plan.target.Type == store.Text {
		k, err := expirykey.New(s.generation, s.shard, expires)
		if err != nil {
			panic(err)
		}
		e.expiry = store.TextValue(k.String())
	}
	return w.commit("rush", place{w.plan.kind(target), s.namespace}, e, true) == nil
}

// drop writes an entity to a range at rest, perhaps a little late, and sees that it goes.
func (r *rush) drop(d dice, target string, quiet []spot) {
	w, s := r.w, pick(d.on("spot"), quiet...)
	in := d.on("in").between(-w.plan.target.Overlap*4/5, 15*time.Second)
	name := fmt.Sprintf("q%s%d", w.plan.kind(target)[:1], time.Since(w.began))
	if !r.put(target, s, name, time.Now().Add(in)) {
		return
	}
	w.afterwards(func() {
		if in > 0 {
			time.Sleep(in)
		}
		w.mu.Lock()
		at := place{w.plan.kind(target), s.namespace}
		f := w.oracle.truth[at][keyOf(name)]
		bound, rests := r.bound(target, s.key(target)), w.rests(s.key(target))
		w.mu.Unlock()
		if f == nil || !rests {
			return
		}
		time.Sleep(bound)
		if r.pace > 0 { // others may have come before it meanwhile, and had their tokens first
			w.mu.Lock()
			bound = r.bound(target, s.key(target))
			w.mu.Unlock()
			time.Sleep(bound)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.oracle.truth[at][keyOf(name)] == f && r.on && !w.oracle.isSkipped(at, f) {
			w.violate("L5", "%s@%s in %s, a range at rest, has been due for %v and is still there: %v, committed %v ago",
				keyOf(name), s.namespace, s.key(target), bound, f.expiry, time.Since(f.committed))
		}
		w.count("gone in time")
	})
}

// rests reports whether a range is at rest: it was read before, and nobody holds it. The
// caller holds the world's lock.
func (w *world) rests(key string) bool {
	rec, ok := w.db.records[store.CursorRecord][key]
	return ok && text(rec.Fields, "owner") == "" && text(rec.Fields, "position") != ""
}

// bound is L5: a tick, what the clock lags, and a page for each range. Half of the workers may be at
// what is slow. The caller holds the world's lock.
func (r *rush) bound(target, key string) time.Duration {
	ranges := 0
	for i := range r.w.plan.targets {
		rec, _ := r.w.record(r.w.plan.name(i))
		n := max(1, rec.nursery, len(r.w.plan.target.ShardValues))
		for _, g := range rec.generations {
			n += g.shards
		}
		ranges += n * len(r.w.plan.namespaces)
	}
	bound := r.tick + clockLags + pageTakes*time.Duration(ranges)/time.Duration(r.work/2)
	fields := r.w.db.records[store.CursorRecord][key].Fields
	rewind := instant(fields, "rewind_done").Add(r.cut.Rewind * 4 / 5)
	if time.Until(rewind) < bound || text(fields, "rewind_began") != "" {
		bound += queryTakes // a query of its own read from the start may be under way
	}
	// A daemon that knows no record of a range reads it from its start by its own reckoning, and does that once in the
	// lane of the quick: it takes such a range for a new one, in which nothing drags.
	bound += queryTakes * time.Duration(len(r.foreign)) / time.Duration(r.work/2)
	if r.pace > 0 { // its own bucket, half of which may be set aside for carries
		rate := r.pace / 2
		if kept, _ := fields["rate"].(float64); kept > 0 {
			rate = min(rate, kept)
		}
		bound += time.Duration(float64(3+r.dueIn(target, key)) * float64(time.Second) / rate)
	}
	return bound
}

// dueIn counts what is due in a range, or soon. The caller holds the world's lock.
func (r *rush) dueIn(target, key string) (n int) {
	t := &r.w.plan.target
	for at, facts := range r.w.oracle.truth {
		for _, f := range facts {
			soon := time.Until(f.expires.Add(t.Retention)) < 10*time.Second
			if at.kind == r.w.plan.kind(target) && f.wellFormed && soon && f.liesIn(r.w, target, at) == key {
				n++
			}
		}
	}
	return n
}

// liesIn returns the key of the cursor record of the range that an entity lies in.
func (f *fact) liesIn(w *world, target string, at place) string {
	if f.cursor == "" {
		s := spot{namespace: at.namespace, generation: f.key.generation, shard: f.key.shard}
		if w.plan.target.ShardProperty != "" {
			s.value = f.shard
		}
		f.cursor = s.key(target)
	}
	return f.cursor
}

// denies returns the error with which the store answers a write of an entity, if it does.
// The caller holds the world's lock.
func (r *rush) denies(key string) error {
	switch {
	case r == nil || !r.on:
	case r.held[key]:
		return fmt.Errorf("%s is locked: %w", key, store.ErrContention)
	case r.refused[key]:
		if r.denied[key].IsZero() {
			r.denied[key] = time.Now()
		}
		for _, facts := range r.w.oracle.truth {
			if f := facts[key]; f != nil {
				f.refused = true
			}
		}
		return fmt.Errorf("%s cannot be written: %w", key, store.ErrInvalid)
	}
	return nil
}

// drags returns how long a scan takes because of where it begins: behind the range's
// cursor lie tombstones.
func (r *rush) drags(q store.Query) time.Duration {
	if r == nil || r.drag == 0 || q.Target.Type == store.Text && len(q.Lo.Text) < 14 {
		return 0
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	rec, ok := r.w.db.records[store.CursorRecord][rangeKey(q.Target, q)]
	if !r.on || !ok {
		return 0
	}
	instantOf := func(v store.Value) time.Time {
		if v.Type == store.Instant {
			return v.Time
		}
		if e, ok := parsePlace(v.Text); ok {
			return e.expires
		}
		if len(v.Text) < 14 || v.Text < q.Lo.Text {
			return time.Time{}
		}
		// Malformed: nothing well-formed that lies before it expires on a later day.
		at, err := time.Parse("20060102", v.Text[14:min(len(v.Text), 22)])
		if err != nil {
			return r.w.began
		}
		return at
	}
	from := r.w.began.Add(-time.Hour)
	for _, v := range []store.Value{q.Lo, q.After.Value} {
		if at := instantOf(v); at.After(from) {
			from = at
		}
	}
	var cursor time.Time
	if r.w.plan.target.Type == store.Instant {
		cursor = instant(rec.Fields, "position")
	} else {
		cursor = instantOf(store.TextValue(text(rec.Fields, "position")))
	}
	to := cursor.Add(-time.Minute)
	if at := instantOf(q.Hi); at.Before(to) && !at.IsZero() {
		to = at
	}
	if !to.After(from) {
		return 0
	}
	r.w.count("dragged")
	return time.Duration(float64(r.drag) * to.Sub(from).Minutes() / 10)
}
