package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// D1: with descendants, a parent goes after its children. A process deletes an entity only after it has
// looked below it and found nothing, and a descendant only while the entity above is due, after what it has
// seen below that descendant, and never what has an owner, or lies below a descendant that has one. It deletes
// none of them if it could see before that one has an owner.

// descending is in how many lives entities have descendants.
const descending = 0.1

// drawDescend decides whether entities have descendants. The embedded store has none.
func (p *plan) drawDescend(d dice) {
	p.descends = p.mode != embedded && p.overlap == nil && p.takesPart("descend", d.on("descends"), descending)
}

// descendants says what becomes of what lies below the entities of a target.
func (p *plan) descendants(t sweep.Target) sweep.Descendants {
	if !p.descends {
		return sweep.Descendants{}
	}
	return sweep.Descendants{Mode: sweep.DeleteDescendants, Max: 1000, Owners: []store.Target{t.Target}}
}

// A kin is a descendant of an entity, which need not exist.
type kin struct {
	born  time.Time // written last
	since time.Time // it exists
	owned bool
}

// A stem is an entity by which its descendants are kept.
type stem struct {
	at  place
	key string
}

// lookedFor bounds how old a look may be when the delete that relies on it is sent, but for the time that its process
// is frozen: as long as the calls between them travel, and a moment.
const lookedFor = 2 * time.Minute

// startParents begins to write descendants, and to remove some.
func (w *world) startParents() {
	if !w.plan.descends {
		return
	}
	d := w.dice.on("parents")
	w.act(func() {
		for n := int64(0); w.sleep(d.at(n).on("pause").between(w.plan.writing/8, w.plan.writing)); n++ {
			d := d.at(n)
			at := place{w.plan.kind(w.plan.name(d.on("target").below(w.plan.targets))),
				pick(d.on("namespace"), w.plan.namespaces...)}
			w.bear(d, stem{at, keyOf(fmt.Sprintf("e%02d", d.on("name").below(w.plan.ids)))})
		}
	})
}

// bear writes some descendants of an entity, or removes some.
func (w *world) bear(d dice, s stem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.on("remove").yes(0.1) {
		paths := slices.Sorted(maps.Keys(w.kin[s]))
		for i, path := range paths {
			if d.on("which").at(int64(i)).yes(0.5) {
				delete(w.kin[s], path)
			}
		}
		return
	}
	if w.kin[s] == nil {
		w.kin[s] = map[string]kin{}
	}
	for i := range 1 + d.on("many").below(pick(d.on("most"), 3, 12)) {
		path := fmt.Sprintf("a%d", d.on("a").at(int64(i)).below(3))
		for _, level := range []string{"b", "c"} {
			if d.on(level).at(int64(i)).yes(0.5) {
				path += fmt.Sprintf("/%s%d", level, d.on("of "+level).at(int64(i)).below(3))
			}
		}
		now := w.moment()
		is := kin{born: now, since: now, owned: d.on("owned").at(int64(i)).yes(0.03)}
		if was, exists := w.kin[s][path]; exists {
			is.since = was.since
		}
		w.kin[s][path] = is
	}
	if f := w.oracle.truth[s.at][s.key]; f != nil && w.waits(s) {
		f.refused = true // a read from the start finds it once that has gone
	}
	w.note("parent", "bears", s.key, fmt.Sprint(" ", len(w.kin[s])), nil)
	w.count("descendants written")
}

// moment returns when something is done below entities: after all that was done before, even at the same instant.
func (w *world) moment() time.Time {
	now := time.Now()
	if !now.After(w.last) {
		now = w.last.Add(time.Nanosecond)
	}
	w.last = now
	return now
}

// meddle lets somebody extend an entity within its generation right before it is deleted, write below it, and hold it
// in a transaction for some seconds.
func (h *handle) meddle(d dice, at place, ops []store.Op) {
	w := h.w
	if h.dry || !w.plan.descends || !w.plan.has("meddle") || !d.yes(0.05) {
		return
	}
	w.mu.Lock()
	old, calm := *w.rowOrNone(at, ops[d.on("which").below(len(ops))].Entry.Key), w.calm
	w.mu.Unlock()
	expires := time.Now().UTC().Add(d.on("by").between(time.Second, 10*time.Minute))
	r := row{key: old.key, data: "meddled", shard: old.shard, expiry: store.InstantValue(expires)}
	if w.plan.target.Type == store.Text {
		was, _ := expirykey.Parse(old.expiry.Text) // of a malformed one, it is the first
		if k, err := expirykey.New(was.Generation, was.Shard, expires); err == nil {
			r.expiry = store.TextValue(k.String())
		}
	}
	if old.key != "" && !calm && w.commit("meddler", at, r, false) == nil { // its generation may have retired
		w.bear(d, stem{at, old.key})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.held[heldKey{at, old.key}] = time.Now().Add(d.on("holds").between(0, 20*time.Second))
	}
}

// order sorts paths so that each is before those below it.
func order(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) }

// Descendants implements store.Descender.
func (h *handle) Descendants(ctx context.Context, q store.DescendantQuery, page *store.Descendants) error {
	s := stem{place{q.Target.Kind, q.Namespace}, q.Key}
	var list []store.Descendant
	var more bool
	err := h.do(ctx, call{method: "Descendants", key: q.Namespace + " " + q.Key + " " + q.After}, func(fate) error {
		for _, path := range slices.SortedFunc(maps.Keys(h.w.kin[s]), order) {
			if q.After != "" && order(path, q.After) <= 0 {
				continue
			}
			if more = len(list) == q.Limit; more {
				break
			}
			d := store.Descendant{Key: path}
			if d.Premise = "no owner"; h.w.kin[s][path].owned {
				d.Owner, d.Premise = q.Target.Name, ""
			}
			list = append(list, d)
		}
		for i := range list {
			last := list[len(list)-1].Key
			list[i].Above = list[i].Key == last || strings.HasPrefix(last, list[i].Key+"/")
		}
		h.sees(s, q.After == "", len(list) == 0)
		return nil
	})
	if err == nil {
		page.List, page.More = list, more
	}
	h.noteRefusal(q.Namespace, q.Key, err)
	return err
}

// sees notes that a process has listed what lies below an entity.
func (h *handle) sees(s stem, fromStart, nothing bool) {
	if h.looks == nil {
		h.looks = map[stem]look{}
	}
	is := h.looks[s]
	if is.at = h.w.moment(); is.first.IsZero() {
		is.first = is.at
	}
	if fromStart {
		is.began = is.at
		if nothing {
			is.empty, is.stood = is.at, h.stoodSoFar()
		}
	}
	h.looks[s] = is
}

// A look is what a process knows of what lies below an entity.
type look struct {
	first time.Time     // of the first one
	at    time.Time     // of the last one
	began time.Time     // of the last one that was from the start
	empty time.Time     // of the last one that has found nothing at all
	stood time.Duration // how long the process had been frozen by then
}

// DeleteBelow implements store.Descender. It reads the entity at one instant and commits at a later one.
func (h *handle) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (o store.Outcome, err error) {
	defer func() { h.noteRefusal(q.Namespace, e.Key, err) }()
	s := stem{place{q.Target.Kind, q.Namespace}, e.Key}
	q.Lo = e.Position().Value
	var stays []store.Descendant
	list = slices.DeleteFunc(slices.Clone(list), func(d store.Descendant) bool {
		if d.Stays {
			stays = append(stays, d)
		}
		return d.Stays
	})
	known := h.lookOf(s) // it may take effect after its caller has given up, and looked again
	h.sends(ctx, q, make([]store.Op, len(list)))
	var seen row
	read := call{method: "Get", key: q.Namespace + " " + e.Key}
	if err := h.do(ctx, read, func(fate) error { seen = *h.w.rowOrNone(s.at, e.Key); return nil }); err != nil {
		return store.Unknown, err
	}
	if seen.key == "" {
		return store.Gone, nil
	}
	if !isDue(seen.expiry) {
		return store.Kept, nil
	}
	born := h.w.birthsOf(s, list)
	if q.Archive != nil {
		if err := q.Archive.Keep(ctx, copiesBelow(s, list, born)); err != nil {
			return store.Unknown, err
		}
	}
	c := call{method: "DeleteBelow", key: fmt.Sprintf("%s %s %d", q.Namespace, e.Key, len(list)), write: true}
	err = h.do(ctx, c, func(fate) error {
		if err := h.rush.denies(e.Key); err != nil {
			return err
		}
		if h.w.rowOrNone(s.at, e.Key).version != seen.version || h.w.locked(s.at, e.Key) {
			return store.ErrContention
		}
		if q.Archive != nil && !slices.EqualFunc(born, h.w.birthsLocked(s, list), time.Time.Equal) {
			return store.ErrContention
		}
		for _, d := range slices.Concat(list, stays) {
			if h.w.kin[s][d.Key].owned { // not when it was listed
				return store.ErrContention
			}
		}
		h.w.oracle.prunes(h, s, known, list)
		for _, d := range list {
			delete(h.w.kin[s], d.Key)
		}
		return nil
	})
	if err != nil {
		return store.Unknown, err
	}
	return store.Deleted, nil
}

// lookOf returns what the process knows of what lies below an entity.
func (h *handle) lookOf(s stem) look {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.looks[s]
}

// prunes holds D1 as descendants of an entity are deleted, by what was known when the call was sent.
func (o *oracle) prunes(h *handle, s stem, known look, list []store.Descendant) {
	f := o.truth[s.at][s.key]
	if h.dry {
		o.w.violate("dry", "%s deletes below %s in a dry run", h.name, s.key)
	}
	if f == nil || !f.wellFormed || f.expires.Add(h.file.Retention).After(time.Now()) {
		o.w.violate("D1", "%s deletes %d descendants of %s, which is not due", h.name, len(list), s.key)
	}
	gone := map[string]bool{}
	for _, d := range list {
		gone[d.Key] = true
	}
	for path, k := range o.w.kin[s] {
		if gone[path] && k.owned {
			o.w.violate("D1", "%s deletes %s below %s, which is another target's own", h.name, path, s.key)
		}
		for i := range path {
			above, exists := o.w.kin[s][path[:i]]
			if gone[path] && exists && above.owned && !gone[path[:i]] && !above.since.After(known.began) {
				o.w.violate("D1", "%s deletes %s below %s, though %s is another target's own", h.name, path, s.key, path[:i])
			}
			if path[i] == '/' && gone[path[:i]] && !gone[path] && !k.born.After(known.at) {
				o.w.violate("D1", "%s deletes %s below %s before %s", h.name, path[:i], s.key, path)
			}
		}
	}
	o.surveyed(h, s, known)
	o.archivedBelow(h, s, list)
	o.w.count("descendants deleted")
}

// surveyed holds D1 for what a process could see before it deleted any: it lists all first.
func (o *oracle) surveyed(h *handle, s stem, known look) {
	for path, k := range o.w.kin[s] {
		if k.owned && k.born.Before(known.first) {
			o.w.violate("D1", "%s deletes below %s, though it could see that %s is another target's own", h.name, s.key, path)
		}
	}
}

// parts holds D1 as an entity is deleted, by a call that was sent so long ago.
func (o *oracle) parts(h *handle, s stem, sent time.Duration) {
	if !o.w.plan.descends {
		return
	}
	empty := h.looks[s].empty
	frozen := h.stoodSoFar() - h.looks[s].stood // meanwhile; what was under way is sent afterwards
	if time.Since(empty)-sent-frozen > lookedFor {
		o.w.violate("D1", "%s deletes %s without a look below it", h.name, s.key)
	}
	for path, k := range o.w.kin[s] {
		if !k.born.After(empty) {
			o.w.violate("D1", "%s deletes %s before %s", h.name, s.key, path)
		}
		o.w.count("born after the last look")
		delete(o.w.kin[s], path) // an orphan, as the docs say
	}
}

// waits reports whether an entity may stay for what lies below it.
func (w *world) waits(s stem) bool {
	for _, k := range w.kin[s] {
		if k.owned {
			return true
		}
	}
	return false
}
