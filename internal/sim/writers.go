package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// A writer is an application that writes entities.
type writer struct {
	w        *world
	kind     string
	number   int
	target   string
	dice     dice
	clock    *clock
	handle   *handle // of its follower
	follower *generation.Follower
	edge     bool // its next write is to be as late as can be
}

// A deposit is an old copy of an entity, as in a backup.
type deposit struct {
	at place
	r  row
}

func (w *world) startWriters() {
	kinds := []string{"follower", "follower", "lazy", "nursery", "straggler", "breaker", "wrongshard", "junk", "deploy"}
	for i := range w.plan.targets {
		shared := map[string]*writer{} // most stamp by the copy of another one
		for n, kind := range kinds {
			d := w.dice.on("writer").at(int64(n)).on(w.plan.name(i))
			if !w.plan.has(kind) || d.on("takes part").yes(0.35) {
				continue
			}
			wr := &writer{w: w, kind: kind, number: i*100 + n, target: w.plan.name(i), dice: d, clock: w.newClock(d)}
			w.act(wr.run)
			owner := "some"
			if kind == "lazy" {
				owner = kind
			}
			if first := shared[owner]; first != nil {
				wr.handle, wr.follower = first.handle, first.follower
				continue
			}
			shared[owner] = wr
			wr.handle = &handle{w: w, name: fmt.Sprintf("%s %d", kind, n), dice: d.on("handle"), clock: wr.clock,
				died: make(chan struct{})}
			wr.follower = &generation.Follower{Store: wr.handle, Target: wr.target, Shards: 3, Now: wr.clock.now}
			if kind != "lazy" && w.plan.target.Generations {
				w.act(func() { wr.follower.Run(w.chance(w.ctx, wr.dice)) })
			}
		}
	}
}

// newClock returns a clock, that is mostly right.
func (w *world) newClock(d dice) *clock {
	c := &clock{began: w.began}
	if w.plan.has("skew") && d.on("skewed").yes(0.5) {
		c.set(d.on("skew").between(-9*time.Second, 9*time.Second))
	}
	if w.plan.has("skew") && d.on("wrong").yes(0.08) {
		c.set(d.on("by").between(-3*time.Minute, 3*time.Minute))
	}
	return c
}

func (wr *writer) run() {
	w := wr.w
	for step := int64(0); ; step++ {
		d := wr.dice.at(step)
		if !w.sleep(d.on("pause").between(w.plan.writing/2, w.plan.writing*3/2)) {
			return
		}
		if wr.kind == "lazy" {
			wr.doze(d)
		}
		if wr.kind != "deploy" {
			wr.write(d)
		} else if w.plan.target.Breaker.On && d.on("everything").yes(0.03) {
			wr.deploy(d)
		}
	}
}

// doze lets the copy of a writer that reads the record itself grow old, by either clock.
func (wr *writer) doze(d dice) {
	w := wr.w
	w.mu.Lock()
	opens := time.Until(w.announced[wr.target])
	w.mu.Unlock()
	switch {
	case opens > 0: // its copy is the last one without the new generation
		w.sleep(opens - d.on("ahead").between(0, 2*time.Second))
		wr.readLate(d, true)
	case d.on("refresh").yes(0.6):
		if d.on("edge").yes(0.6) {
			wr.readLate(d, d.on("slow").yes(0.5))
			return
		}
		_ = wr.follower.Refresh(w.chance(w.ctx, d)) // stamping goes on without
	case d.on("nap").yes(0.3):
		nap := d.on("nap lasts").between(0, 2*time.Minute)
		if w.plan.has("suspend") {
			wr.clock.slept(nap)
		}
		w.sleep(nap)
	}
}

// readLate reads the record, the answer to which may travel for as long as anybody waits
// for it, and sleeps until it must stamp by that, or a little longer.
func (wr *writer) readLate(d dice, slow bool) {
	w, sent, bound := wr.w, time.Now(), wr.handle.heard().staleness
	if slow && bound > 0 {
		wr.handle.replies = d.on("reply").between(0, bound/2-50*time.Millisecond)
	}
	_ = wr.follower.Refresh(w.chance(w.ctx, d))
	wr.handle.replies, wr.edge = 0, true
	bound = wr.handle.heard().staleness
	since := pick(d.on("since"), sent, time.Now())
	w.sleep(time.Until(since.Add(d.on("late").between(bound*9/10, bound*21/20))))
}

// write makes one write, of whatever kind.
func (wr *writer) write(d dice) {
	w := wr.w
	at := place{w.plan.kind(wr.target), pick(d.on("namespace"), w.plan.namespaces...)}
	name := fmt.Sprintf("e%02d", d.on("name").below(w.plan.ids))
	w.mu.Lock()
	old := *w.rowOrNone(at, keyOf(name))
	w.mu.Unlock()
	r := row{key: keyOf(name), data: fmt.Sprintf("%s %d", wr.kind, d.below(1e9)), shard: wr.shardValue(name)}
	if old.key != "" && w.plan.has("remove") && d.on("remove").yes(0.12) {
		w.remove(at, wr.kind, old)
		return
	}
	if old.key != "" && (!w.plan.has("extend") || d.on("leave").yes(0.2)) {
		return
	}
	if wr.kind == "junk" {
		r.expiry, r.element = wr.junk(d)
		_ = w.commit(wr.kind, at, r, false) // what is refused is not there
		return
	}
	if d.on("never").yes(0.04) {
		_ = w.commit(wr.kind, at, r, true) // it is in no index
		return
	}
	if wr.kind == "breaker" && wr.putBack(d) {
		return
	}
	wr.writeStamped(d, at, name, r)
}

// writeStamped writes an entity with the expiry that it is to have, at once or late.
func (wr *writer) writeStamped(d dice, at place, name string, r row) {
	w := wr.w
	expires := wr.clock.now().Round(0).Add(wr.ttl(d)).UTC()
	if d.on("round").yes(0.3) {
		expires = expires.Truncate(10 * time.Second) // so that some expire at one instant
	}
	r.expiry = wr.stamp(name, expires)
	delay, withinBounds := wr.delay(d)
	later := func() {
		if err := w.commit(wr.kind, at, r, withinBounds); err != nil { // it is late, and its generation has retired
			k, err := generation.Stamper{Shards: max(1, w.plan.target.Shards)}.Name(name, expires)
			if err == nil {
				r.expiry = store.TextValue(k.String())
				_ = w.commit(wr.kind, at, r, true)
			}
		}
	}
	if delay == 0 {
		later()
		return
	}
	w.ghosts.Go(func() { time.Sleep(delay); later() })
}

// delay draws how long after its stamp a write commits, and says whether that is
// within the bounds that writers are to keep to.
func (wr *writer) delay(d dice) (delay time.Duration, withinBounds bool) {
	if !wr.edge && !d.on("slow").yes(0.4) {
		return 0, true
	}
	slack := wr.handle.heard().slack
	if slack == 0 {
		slack = 30 * time.Second
	}
	wr.edge = false
	if wr.kind == "breaker" {
		return d.on("delay").between(slack, 8*slack), false
	}
	return slack - d.on("delay").between(time.Millisecond, pick(d.on("edge"), slack/2, time.Second)), true
}

// ttl draws how long an entity lives.
func (wr *writer) ttl(d dice) time.Duration {
	p := wr.w.plan
	switch kind := d.on("kind of ttl").float(); {
	case wr.kind == "straggler" && kind < 0.3:
		return -d.on("ttl").between(0, wr.w.plan.target.Overlap)
	case wr.kind == "straggler" && kind < 0.7:
		return -d.on("ttl").between(0, 4*time.Minute)
	case kind < 0.1:
		return d.on("ttl").between(0, 20*time.Second)
	case kind < 0.7:
		return d.on("ttl").between(0, p.ttl)
	case kind < 0.97:
		return d.on("ttl").between(0, 4*p.ttl)
	}
	return d.on("ttl").between(0, 40*time.Hour)
}

// stamp returns the expiry of an entity.
func (wr *writer) stamp(name string, expires time.Time) store.Value {
	t := wr.w.plan.target
	if t.Type == store.Instant {
		return store.InstantValue(expires)
	}
	s := wr.follower.Stamper(name)
	if wr.kind == "nursery" || !t.Generations {
		s = generation.Stamper{Shards: max(1, t.Shards)}
	}
	if wr.kind == "wrongshard" {
		s.Shards = s.Shards*2 + 1
	}
	k, err := s.Name(name, expires)
	if err != nil {
		panic(err)
	}
	return store.TextValue(k.String())
}

// unlistedShard is where only writers with a wrong number of shards write.
var unlistedShard = store.IntegerValue(99)

// shardValue returns the value of the shard property.
func (wr *writer) shardValue(name string) store.Value {
	values := wr.w.plan.target.ShardValues
	if len(values) == 0 {
		return store.Value{}
	}
	if wr.kind == "wrongshard" && hash(name)%5 == 0 {
		return unlistedShard
	}
	return values[hash(name)%len(values)]
}

// junk returns a value that is not an expiry, or an implausible expiry.
func (wr *writer) junk(d dice) (v store.Value, element string) {
	t, w := wr.w.plan.target, wr.w
	old := w.began.AddDate(-3-d.on("years").below(900), 0, 0)
	if t.Type == store.Instant {
		return pick(d.on("junk"), store.InstantValue(old), store.TextValue("tomorrow"), store.IntegerValue(7),
			store.Value{}), ""
	}
	n := d.on("generation").below(4)
	shard := d.on("shard").below(t.Shards + 1)
	past := func(n int, at time.Time) store.Value {
		k, err := expirykey.New(n, shard, at)
		if err != nil {
			panic(err)
		}
		return store.TextValue(k.String())
	}
	switch d.on("junk").below(9) {
	case 8: // between those of a sweep
		return store.TextValue(past(n, time.Now().Add(d.on("due").between(-time.Hour, 10*time.Minute))).Text + "x"), ""
	case 0, 1:
		return past(n, old), ""
	case 2:
		return store.TextValue(fmt.Sprintf("%08d.%04d.nonsense", n, shard)), ""
	case 3:
		return store.TextValue(fmt.Sprintf("%08d.%04d.19991301T000000.000Z", n, shard)), ""
	case 4:
		if t.SingleValued {
			return store.Value{}, ""
		}
		return store.Value{Type: store.List, Text: fmt.Sprintf("[%q]", past(n, w.began).Text)}, past(n, w.began).Text
	case 5:
		return past(90_000_001, w.began), ""
	case 6:
		return store.IntegerValue(12), ""
	}
	return store.TextValue("~"), ""
}

// putBack writes an old copy of an entity, as who restores a backup does.
func (wr *writer) putBack(d dice) bool {
	w := wr.w
	w.mu.Lock()
	n := len(w.deposit)
	var old deposit
	if n > 0 {
		old = w.deposit[d.on("which").below(n)]
	}
	w.mu.Unlock()
	if n == 0 || d.on("put back").yes(0.5) {
		return false
	}
	_ = w.commit("breaker", old.at, old.r, false) // what is refused stays away
	if d.on("all").yes(0.1) {                     // a backup is restored
		w.mu.Lock()
		backup := slices.Clone(w.deposit[:min(n, 20)])
		w.mu.Unlock()
		w.putAllBack(backup)
	}
	return true
}

// putAllBack writes old copies of entities.
func (w *world) putAllBack(backup []deposit) {
	for _, old := range backup {
		_ = w.commit("breaker", old.at, old.r, false) // what is refused stays away
	}
}

// commit writes an entity.
func (w *world) commit(kind string, at place, r row, withinBounds bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.db.put(at, r, time.Now())
	w.note(kind, "Put", at.namespace+" "+r.key+" "+show(r.expiry), "", err)
	if err != nil && withinBounds {
		w.violate("L4", "a writer within the bounds is refused: %v", err)
	}
	if err == nil {
		w.oracle.wrote(at, r, withinBounds)
		w.count("put by " + kind)
		if len(w.deposit) < 200 {
			w.deposit = append(w.deposit, deposit{at, r})
		}
	}
	return err
}

func (w *world) remove(at place, kind string, r row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.db.remove(at, r.key, time.Now())
	w.oracle.removed(at, r.key)
	w.note(kind, "Remove", at.namespace+" "+r.key, "", nil)
}

// backlog writes what was due long before the first sweep, where the pace is to be seen.
func (w *world) backlog() {
	if !w.plan.paced() {
		return
	}
	wr := &writer{w: w, kind: "nursery", target: w.plan.name(0), follower: new(generation.Follower)}
	for i := range 30 + w.dice.on("backlog").below(90) {
		name := fmt.Sprintf("b%03d", i)
		expires := w.began.Add(-time.Hour)
		r := row{key: keyOf(name), expiry: wr.stamp(name, expires), shard: wr.shardValue(name)}
		_ = w.commit("backlog", place{w.plan.kind(wr.target), ""}, r, true)
	}
}
