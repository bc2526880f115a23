package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

// NoDescendants is why the cases of descendants are not for a store, or for a caller that cannot plant any.
const NoDescendants = "the store lists no descendants"

// A Planter is a [store.Descender] that also writes descendants, as an application does: the contract has no
// way to make them. Only its tests make a store one.
type Planter interface {
	store.Descender

	// Plant writes entities below the one with the key, which need not exist, and returns the canonical text
	// of each key.
	Plant(ctx context.Context, t store.Target, namespace, key string, list []Plant) (keys []string, err error)
}

// A Plant is an entity to write below another one.
type Plant struct {
	Path       []Step            // from the entity above down to this one; what is between need not exist
	Properties map[string]string // an empty text stands for null
}

// A Step is the kind of an entity on a path, and its name or, if that is empty, its number.
type Step struct {
	Kind, Name string
	Number     int64
}

// plant returns what lies at a path of kinds and names.
func plant(path ...string) Plant {
	var p Plant
	for pair := range slices.Chunk(path, 2) {
		p.Path = append(p.Path, Step{Kind: pair[0], Name: pair[1]})
	}
	return p
}

// with adds a property.
func (p Plant) with(property, value string) Plant {
	p.Properties = map[string]string{property: value}
	return p
}

// isAbove reports whether q lies below p.
func (p Plant) isAbove(q Plant) bool {
	return len(p.Path) < len(q.Path) && slices.Equal(p.Path, q.Path[:len(p.Path)])
}

func descends(c Caps) string {
	if !c.Descender {
		return NoDescendants
	}
	return ""
}

var descendCases = []testCase{
	{name: "DescendantsAreComplete", needs: descends, run: descendantsComplete},
	{name: "DescendantsGoOnAnywhere", needs: descends, run: descendantsGoOn},
	{name: "DescendantsAreOfOneEntity", needs: descends, run: descendantsOfOne},
	{name: "DescendantsSayWhatIsAbove", needs: descends, run: descendantsAbove},
	{name: "DescendantsOfNothing", needs: descends, run: descendantsOfNothing},
	{name: "DescendantsHaveOwners", needs: descends, run: descendantsOwners},
	{name: "DescendantsAreBilled", needs: descends, run: descendantsBilled},
	{name: "DeleteBelowTakesTheList", needs: descends, run: deleteBelowTakes},
	{name: "DeleteBelowKeepsWhatIsNotDue", needs: descends, run: deleteBelowKeeps},
	{name: "DeleteBelowFindsGone", needs: descends, run: deleteBelowGone},
	{name: "DeleteBelowSeesThePresent", needs: descends, run: deleteBelowSees},
	{name: "DeleteBelowRepeatedIsSuccess", needs: descends, run: deleteBelowRepeated},
	{name: "DeleteBelowIsAllOrNothing", needs: descends, run: deleteBelowAllOrNothing},
	{name: "DeleteBelowStopsWithItsContext", needs: descends, run: deleteBelowStops},
	{name: "DeleteBelowLeavesWhatGotAnOwner", needs: descends, run: deleteBelowOwned},
	{name: "DeleteBelowLeavesWhatStays", needs: descends, run: deleteBelowStays},
	{name: "DeleteBelowMeetsAWriter", needs: descends, run: deleteBelowMeetsWriter},
}

func (w *world) planter() Planter { return w.store.(Planter) }

// plant writes below an entity.
func (w *world) plant(key string, list ...Plant) (keys []string) {
	w.Helper()
	w.retry("plant", func() (err error) {
		keys, err = w.planter().Plant(w.ctx, w.target, w.ns, key, list)
		return err
	})
	return keys
}

// keyOf returns the key of an entity, which need not exist.
func (w *world) keyOf(e store.Entity) string {
	w.Helper()
	key, err := w.store.(store.Keyer).Key(w.target, w.ns, e)
	if err != nil {
		w.Fatalf("the key of %+v: %v", e, err)
	}
	return key
}

func (w *world) belowQuery(key string, limit int) store.DescendantQuery {
	return store.DescendantQuery{Target: w.target, Namespace: w.ns, Key: key, Limit: limit}
}

// descendants reads all pages of q, and shows each to use, which may be nil.
func (w *world) descendants(q store.DescendantQuery, use func(store.Descendants)) (all []store.Descendant) {
	w.Helper()
	page := store.Descendants{List: []store.Descendant{{Key: "left over"}}, More: true}
	for pages := 0; ; pages++ {
		w.retry("descendants", func() error { return w.planter().Descendants(w.ctx, q, &page) })
		switch {
		case len(page.List) > q.Limit || pages > 2000:
			w.Fatalf("page %d has %d descendants; the limit is %d", pages, len(page.List), q.Limit)
		case len(page.List) == 0 && page.More:
			w.Fatalf("page %d is empty and has more after it", pages)
		}
		if use != nil {
			use(page)
		}
		all = append(all, page.List...)
		if !page.More {
			return all
		}
		q.After = page.List[len(page.List)-1].Key
	}
}

// below lists the keys of what lies below an entity.
func (w *world) below(key string) []string {
	w.Helper()
	return belowKeys(w.descendants(w.belowQuery(key, store.MaxPage), nil))
}

func belowKeys(list []store.Descendant) []string {
	out := []string{}
	for _, d := range list {
		out = append(out, d.Key)
	}
	return out
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// listOf returns descendants with the keys, for DeleteBelow.
func listOf(keys ...string) (list []store.Descendant) {
	for _, key := range keys {
		list = append(list, store.Descendant{Key: key})
	}
	return list
}

// deleteBelow deletes below an entity, and returns the outcome and what isDue was shown.
func (w *world) deleteBelow(e store.Entry, isDue bool, keys ...string) (o string, seen []store.Value) {
	w.Helper()
	w.retry("delete below", func() error {
		seen = nil
		done, err := w.planter().DeleteBelow(w.ctx, w.all(), e, listOf(keys...), func(v store.Value) bool {
			seen = append(seen, v)
			return isDue
		})
		o = outcome(done)
		return err
	})
	return o, seen
}

// deletesList deletes a list below an entity that is due. Contention is no reason to try again: so it must be if an
// owner has come.
func (w *world) deletesList(e store.Entry, list []store.Descendant) (o store.Outcome, err error) {
	w.Helper()
	w.retry("delete below", func() error {
		o, err = w.planter().DeleteBelow(w.ctx, w.all(), e, list, func(store.Value) bool { return true })
		if errors.Is(err, store.ErrContention) {
			return nil
		}
		return err
	})
	return o, err
}

// kinNames are names of entities and of what is below them. Many begin alike, and some are where orders differ:
// by bytes, by UTF-16 units, by the text of a key.
var kinNames = []string{"p", "p!", "p 1", "p2", "p~", "P", "!", "~", "#1", "7", "%", "ü", "\uFFFD", "\U0001F600"}

// family is what lies below one entity, at several depths, some of it below what does not exist.
func family() (list []Plant) {
	for _, name := range kinNames {
		list = append(list, plant("notes", name), plant("notes", name, "tags", "t"))
	}
	seven := Plant{Path: []Step{{Kind: "notes", Number: 7}}}
	list = append(list, seven, Plant{Path: append(slices.Clone(seven.Path), Step{Kind: "tags", Name: "t"})})
	deep := []string{}
	for range 6 {
		deep = append(deep, "parts", "p")
		list = append(list, plant(deep...))
	}
	return append(list, plant("notes!", "n"), plant("notes2", "n"), plant("absent", "a", "tags", "t"),
		plant("a b", "a", "b", "b", "c", "c", "c", "d"))
}

// descendantsComplete: each descendant appears once, after those above it.
func descendantsComplete(w *world) {
	w.row(1)
	e, list := w.find(1)[0], family()
	want := w.plant(e.Key, list...)
	got := w.below(e.Key)
	w.same("the descendants", sorted(got), sorted(want))
	for i, a := range list {
		for j, b := range list {
			if a.isAbove(b) && slices.Index(got, want[i]) > slices.Index(got, want[j]) {
				w.Errorf("%s comes before %s, which is above it", want[j], want[i])
			}
		}
	}
}

// descendantsGoOn: a query goes on behind any descendant, also behind one that is gone.
func descendantsGoOn(w *world) {
	w.row(1)
	e := w.find(1)[0]
	w.plant(e.Key, family()...)
	whole := w.below(e.Key)
	for _, limit := range []int{3, len(whole)} {
		got := belowKeys(w.descendants(w.belowQuery(e.Key, limit), nil))
		w.same(fmt.Sprintf("pages of %d", limit), got, whole)
	}
	for i, after := range whole {
		q := w.belowQuery(e.Key, store.MaxPage)
		q.After = after
		w.same("what comes behind "+after, belowKeys(w.descendants(q, nil)), whole[i+1:])
	}
	for i := 0; i < len(whole); i += 9 {
		w.deleteBelow(e, true, whole[i])
		q := w.belowQuery(e.Key, store.MaxPage)
		q.After = whole[i]
		w.same("what comes behind what was "+whole[i], belowKeys(w.descendants(q, nil)), whole[i+1:])
	}
}

// descendantsOfOne: what lies below entities whose names begin alike, or elsewhere, is not of the entity.
func descendantsOfOne(w *world) {
	entities := []store.Entity{numbered(7, key(100)), numbered(70, key(101))}
	for i, name := range kinNames {
		entities = append(entities, named(name, key(i)))
	}
	w.put(entities...)
	want := map[string][]string{}
	for i, e := range entities {
		at := w.keyOf(e)
		want[at] = w.plant(at, plant("notes", fmt.Sprint("n", i)), plant("notes", "p", "tags", fmt.Sprint("t", i)))
	}
	for _, ns := range w.caps.Namespaces {
		other := *w
		other.ns = ns
		other.plant(other.keyOf(entities[0]), plant("notes", "of another namespace"))
	}
	for _, e := range entities {
		w.same("what is below "+w.keyOf(e), sorted(w.below(w.keyOf(e))), sorted(want[w.keyOf(e)]))
	}
	for i := 0; i < len(entities); i += 3 {
		at := w.keyOf(entities[i])
		if o, _ := w.deleteBelow(store.Entry{Key: at}, true, want[at]...); o != outcome(store.Deleted) {
			w.Errorf("deleting below %s: %s", at, o)
		}
		want[at] = []string{}
	}
	for _, e := range entities {
		w.same("what is left below "+w.keyOf(e), sorted(w.below(w.keyOf(e))), sorted(want[w.keyOf(e)]))
	}
}

// descendantsAbove: a descendant is above if the last one of its page lies below it, or is it.
func descendantsAbove(w *world) {
	w.row(1)
	e, list := w.find(1)[0], family()
	planted := map[string]Plant{}
	for i, at := range w.plant(e.Key, list...) {
		planted[at] = list[i]
	}
	for _, limit := range []int{1, 2, 3, 5, 8, 13, 21, len(list)} {
		w.descendants(w.belowQuery(e.Key, limit), func(page store.Descendants) {
			for i, d := range page.List {
				last := page.List[len(page.List)-1].Key
				want := i == len(page.List)-1 || planted[d.Key].isAbove(planted[last])
				if d.Above != want {
					w.Errorf("%s, of a page that ends with %s, is said to be above: %v", d.Key, last, d.Above)
				}
			}
		})
	}
}

// descendantsOfNothing: an entity that does not exist may have descendants, and one that exists may have none.
func descendantsOfNothing(w *world) {
	w.row(1)
	w.same("what is below an entity without descendants", w.below(w.find(1)[0].Key), []string{})
	absent := w.keyOf(named("absent", store.Value{}))
	w.same("what is below nothing", w.below(absent), []string{})
	want := w.plant(absent, plant("notes", "a"), plant("notes", "b", "tags", "c"))
	w.same("what is below an entity that does not exist", sorted(w.below(absent)), sorted(want))
}

// descendantsOwners: a descendant has an owner if it is of a target's kind and carries its property.
func descendantsOwners(w *world) {
	w.row(1)
	e := w.find(1)[0]
	list := []Plant{
		plant("devices", "a").with("expires", "x"),
		plant("devices", "b").with("expires", ""), // null
		plant("devices", "c").with("other", "x"),
		plant("devices", "d").with("until", "x"),
		plant("devices", "e"),
		plant("others", "f").with("expires", "x"),
		plant("notes", "g", "devices", "h").with("expires", "x"),
		plant("devices", "p", "notes", "q").with("expires", "x"),
		plant("tokens", "i").with("with space", "x"),
		plant("tokens", "j").with("expires", "x"),
		plant(string(store.CursorRecord), "k").with("target", "x"),
		plant("notes", "l", string(store.AdoptRecord), "m"),
		plant("ReaperLog", "n"),
		{Path: []Step{{Kind: "devices", Number: 4}}, Properties: map[string]string{"expires": "x"}},
		plant("devices", "4"),
	}
	own := store.OwnerReaper
	wanted := []string{"devices", "", "", "until", "", "", "devices", "", "tokens", "", own, own, "", "devices", ""}
	owners := []store.Target{
		{Name: "devices", Kind: "devices", Group: true, Property: "expires"},
		{Name: "until", Kind: "devices", Group: true, Property: "until"},
		{Name: "tokens", Kind: "tokens", Group: true, Property: "with space"},
	}
	want := map[string]string{}
	for i, at := range w.plant(e.Key, list...) {
		want[at] = wanted[i]
	}
	for _, limit := range []int{1, 4, store.MaxPage} {
		q := w.belowQuery(e.Key, limit)
		q.Owners = owners
		w.ownersAre(q, want)
	}
	for at, owner := range want {
		if owner != store.OwnerReaper {
			want[at] = ""
		}
	}
	w.ownersAre(w.belowQuery(e.Key, store.MaxPage), want)
}

func (w *world) ownersAre(q store.DescendantQuery, want map[string]string) {
	w.Helper()
	got := w.descendants(q, nil)
	if len(got) != len(want) {
		w.Errorf("%d descendants, not %d", len(got), len(want))
	}
	for _, d := range got {
		if d.Owner != want[d.Key] {
			w.Errorf("pages of %d: %s has the owner %q, not %q", q.Limit, d.Key, d.Owner, want[d.Key])
		}
	}
}

func descendantsBilled(w *world) {
	w.row(2)
	e := w.find(2)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "b"), plant("devices", "c").with("expires", "x"))
	read := w.spent(func(m *world) { m.below(e.Key) })
	want := int64(1)
	if w.caps.BillsEntries {
		want = 3
	}
	if read != (store.Operations{Reads: want}) {
		w.Errorf("a query of 3 descendants billed %+v", read)
	}
	if o := w.spent(func(m *world) { m.below(m.find(2)[1].Key) }); o.Reads < 2 {
		w.Errorf("a scan and a query of nothing billed %+v", o)
	}
	if o := w.spent(func(m *world) { m.deleteBelow(e, false, planted...) }); o != (store.Operations{Reads: 1}) {
		w.Errorf("keeping 3 descendants billed %+v", o)
	}
	if o := w.spent(func(m *world) { m.deleteBelow(e, true, planted...) }); o != (store.Operations{Reads: 1, Deletes: 3}) {
		w.Errorf("deleting 3 descendants billed %+v", o)
	}
}

// deleteBelowTakes: all of the list is deleted, and nothing else.
func deleteBelowTakes(w *world) {
	put := w.row(2)
	e := w.find(2)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "a", "tags", "b"), plant("notes", "a2"),
		plant("notes", "c"), plant("notes", "c", "tags", "d"))
	o, seen := w.deleteBelow(e, true, planted[0], planted[2], planted[4])
	if o != outcome(store.Deleted) || len(seen) == 0 || seen[len(seen)-1] != put[0].Expiry {
		w.Errorf("deleting three says %s and showed %v", o, seen)
	}
	w.same("what is left", sorted(w.below(e.Key)), sorted([]string{planted[1], planted[3]}))
	if o, _ := w.deleteBelow(e, true); o != outcome(store.Deleted) {
		w.Errorf("deleting none says %s", o)
	}
	if o, _ := w.deleteBelow(store.Entry{Key: e.Key}, true, planted[1], planted[3]); o != outcome(store.Deleted) {
		w.Errorf("deleting by the key alone says %s", o)
	}
	w.same("what is left at the end", w.below(e.Key), []string{})
	w.shows("afterwards", texts(put...)...)
}

func deleteBelowKeeps(w *world) {
	put := w.row(1)
	e := w.find(1)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "b"))
	o, seen := w.deleteBelow(e, false, planted...)
	if o != outcome(store.Kept) || len(seen) == 0 {
		w.Errorf("deleting below what is not due says %s and showed %v", o, seen)
	}
	w.same("what is left", sorted(w.below(e.Key)), sorted(planted))
	w.shows("afterwards", texts(put...)...)
}

func deleteBelowGone(w *world) {
	w.row(1)
	e := w.find(1)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "b"))
	w.dispose(e)
	o, seen := w.deleteBelow(e, true, planted...)
	if o != outcome(store.Gone) || len(seen) != 0 {
		w.Errorf("deleting below what is gone says %s and showed %v", o, seen)
	}
	w.same("what is left", sorted(w.below(e.Key)), sorted(planted))
}

// deleteBelowSees: the expiry that counts is the one that the entity has by then, whatever a scan saw.
func deleteBelowSees(w *world) {
	put := w.row(1)
	e := w.find(1)[0]
	planted := w.plant(e.Key, plant("notes", "a"))
	for _, now := range []store.Value{key(4000), {}, {Type: store.Other, Text: "7"}} {
		put[0].Expiry = now
		w.put(put[0])
		if o, seen := w.deleteBelow(e, false, planted...); o != outcome(store.Kept) || len(seen) == 0 ||
			seen[len(seen)-1] != now {
			w.Errorf("deleting below what has now %v says %s and showed %v", now, o, seen)
		}
	}
	w.same("what is left", w.below(e.Key), planted)
}

// deleteBelowRepeated: what is gone already counts as deleted, with what is deleted now.
func deleteBelowRepeated(w *world) {
	w.row(1)
	e := w.find(1)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "b"), plant("notes", "c"))
	for i, keys := range [][]string{planted[:2], planted[:2], planted} {
		if o, _ := w.deleteBelow(e, true, keys...); o != outcome(store.Deleted) {
			w.Errorf("call %d says %s", i, o)
		}
	}
	w.same("what is left", w.below(e.Key), []string{})
}

// deleteBelowAllOrNothing: a list that is too long, or has what is not below the entity, deletes nothing.
func deleteBelowAllOrNothing(w *world) {
	w.row(2)
	found := w.find(2)
	e := found[0]
	var list []Plant
	for i := range store.MaxPage {
		list = append(list, plant("notes", fmt.Sprintf("n-%03d", i)))
	}
	var planted []string
	for part := range slices.Chunk(list, store.MaxPage/2) {
		planted = append(planted, w.plant(e.Key, part...)...)
	}
	refuses := func(what string, want error, keys ...string) {
		list := listOf(keys...)
		o, err := w.planter().DeleteBelow(w.ctx, w.all(), e, list, func(store.Value) bool { return true })
		if w.is("a list with "+what, err, want); o != store.Unknown {
			w.Errorf("a list with %s: %s", what, outcome(o))
		}
	}
	refuses("too many", store.ErrTooLarge, planted...)
	kind := planted[3][:strings.LastIndexByte(planted[3], '/')]
	for what, bad := range map[string]string{"another entity": found[1].Key, "the entity itself": e.Key, "no key": "",
		"a kind": kind, "an unfinished path": planted[3] + "/tags"} {
		refuses(what, store.ErrInvalid, planted[0], planted[1], bad)
		refuses(what+" first", store.ErrInvalid, bad, planted[0])
	}
	w.same("what is left", sorted(w.below(e.Key)), sorted(planted))
	w.shows("afterwards", key(0).Text, key(1).Text)
	if o, _ := w.deleteBelow(e, true, planted[1:]...); o != outcome(store.Deleted) {
		w.Errorf("the longest list says %s", o)
	}
	w.same("what is left at the end", w.below(e.Key), planted[:1])
}

// deleteBelowStops: no write is started once the context is done, and the error is the context's.
func deleteBelowStops(w *world) {
	w.row(1)
	e := w.find(1)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "b"))
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	_, err := w.planter().DeleteBelow(ctx, w.all(), e, listOf(planted...), func(store.Value) bool {
		cancel()
		return true
	})
	w.is("a context that ends while it decides", err, context.Canceled)
	_, err = w.planter().DeleteBelow(ctx, w.all(), e, listOf(planted...), func(store.Value) bool { return true })
	w.is("a context that is done", err, context.Canceled)
	w.same("what is left", sorted(w.below(e.Key)), sorted(planted))
	page := store.Descendants{List: []store.Descendant{{Key: "left over"}}}
	err = w.planter().Descendants(ctx, w.belowQuery(e.Key, 5), &page)
	w.is("a query with it", err, context.Canceled)
	if len(page.List) > 0 {
		w.Errorf("a query that failed left %q", belowKeys(page.List))
	}
}

// deleteBelowOwned: what gets an expiry of its own after it was listed is not deleted by that list, nor is anything
// else of it. What is of no owner's kind, or has gone meanwhile, holds up nothing.
func deleteBelowOwned(w *world) {
	w.row(1)
	e := w.find(1)[0]
	device, other, note := plant("devices", "a"), plant("devices", "b"), plant("notes", "n", "devices", "c")
	all := w.plant(e.Key, device, other, note, plant("posts", "p"))
	q := w.belowQuery(e.Key, store.MaxPage)
	q.Owners = []store.Target{{Name: "until", Kind: "devices", Group: true, Property: "until"},
		{Name: "devices", Kind: "devices", Group: true, Property: "expires"}}
	for _, owned := range []Plant{device.with("expires", "x"), note.with("until", "x")} {
		list := w.descendants(q, nil)
		w.plant(e.Key, owned)
		if o, err := w.deletesList(e, list); !errors.Is(err, store.ErrContention) {
			w.Errorf("%v got an owner after it was listed: outcome %s, %v", owned.Path, outcome(o), err)
		}
		w.same("what is left then", sorted(w.below(e.Key)), sorted(all))
		owned.Properties = nil
		w.plant(e.Key, owned)
	}
	list := w.descendants(q, nil)
	w.plant(e.Key, plant("notes", "n").with("expires", "x"))
	w.deleteBelow(e, true, all[1])
	if o, err := w.deletesList(e, list); o != store.Deleted || err != nil {
		w.Errorf("with a new one of no owner's kind, and one that is gone: outcome %s, %v", outcome(o), err)
	}
}

// deleteBelowStays: what stays of a list is not deleted, and what lies below it only while it has got no owner.
func deleteBelowStays(w *world) {
	w.row(1)
	e := w.find(1)[0]
	device := plant("devices", "a")
	all := w.plant(e.Key, device, plant("devices", "a", "tags", "1"), plant("devices", "a", "tags", "2"))
	q := w.belowQuery(e.Key, store.MaxPage)
	q.Owners = []store.Target{{Name: "devices", Kind: "devices", Group: true, Property: "expires"}}
	deletes := func(tag int) (store.Outcome, error) {
		listed := w.descendants(q, nil)
		at := func(key string) int {
			return slices.IndexFunc(listed, func(d store.Descendant) bool { return d.Key == key })
		}
		if at(all[0]) < 0 || at(all[tag]) < 0 {
			return store.Gone, nil
		}
		list := []store.Descendant{listed[at(all[0])], listed[at(all[tag])]}
		list[0].Stays = true
		if tag == 2 {
			w.plant(e.Key, device.with("expires", "x"))
		}
		return w.deletesList(e, list)
	}
	if o, err := deletes(1); o != store.Deleted || err != nil {
		w.Errorf("below what stays: outcome %s, %v", outcome(o), err)
	}
	w.same("what is left", sorted(w.below(e.Key)), sorted([]string{all[0], all[2]}))
	if o, err := deletes(2); !errors.Is(err, store.ErrContention) {
		w.Errorf("below what got an owner after it was listed: outcome %s, %v", outcome(o), err)
	}
	w.same("what is left then", sorted(w.below(e.Key)), sorted([]string{all[0], all[2]}))
}

// deleteBelowMeetsWriter: an application extends the entity and then writes below it, while another process
// deletes what is below as long as the entity is due. What was written below a live entity must stay.
func deleteBelowMeetsWriter(w *world) {
	put := w.row(1)
	e := w.find(1)[0]
	due := put[0].Expiry
	note := plant("notes", "n")
	planted := w.plant(e.Key, note)
	stop, called, done := make(chan struct{}), make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		for {
			err := store.Retry(w.ctx, settleWithin, func() error {
				_, err := w.planter().DeleteBelow(w.ctx, w.all(), e, listOf(planted...),
					func(v store.Value) bool { return v.Text <= due.Text })
				return err
			})
			select {
			case called <- err:
			case <-stop:
				return
			}
		}
	}()
	defer func() {
		close(stop)
		<-done
	}()
	wholeCall := func() { // from its start to its end
		for range 2 {
			if err := <-called; err != nil && !errors.Is(err, context.Canceled) {
				w.Errorf("delete below: %v", err)
			}
		}
	}
	for i := range 4 {
		put[0].Expiry = key(1000 + i)
		w.put(put[0])
		w.plant(e.Key, note)
		wholeCall()
		w.same(fmt.Sprintf("round %d: what is below a live entity", i), w.below(e.Key), planted)
		put[0].Expiry = key(-i)
		w.put(put[0])
		wholeCall()
		w.same(fmt.Sprintf("round %d: what is below one that is due", i), w.below(e.Key), []string{})
	}
}
