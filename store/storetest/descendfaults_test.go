package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// A model is a store whose entities, and what is below them, are those of a model.
type model struct {
	full
	model *modelstore.Store
}

func (m model) Put(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
	return m.model.Put(ctx, t, ns, es)
}

func (m model) Key(t store.Target, ns string, e store.Entity) (string, error) {
	return m.model.Key(t, ns, e)
}

func (m model) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	return m.model.Scan(ctx, q, p)
}

func (m model) Dispose(ctx context.Context, b *store.Batch) error { return m.model.Dispose(ctx, b) }

func (m model) Descendants(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
	return m.model.Descendants(ctx, q, p)
}

func (m model) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (store.Outcome, error) {
	return m.model.DeleteBelow(ctx, q, e, list, isDue)
}

func (m model) Plant(_ context.Context, t store.Target, ns, key string, list []Plant) (keys []string, err error) {
	for _, p := range list {
		var path []string
		for _, s := range p.Path {
			path = append(path, s.Kind, cmp.Or(s.Name, fmt.Sprintf("#%d.", s.Number)))
		}
		kin := modelstore.Kin{Path: strings.Join(path, "/")}
		for name, text := range p.Properties {
			if text != "" {
				kin.Property = name
			}
		}
		m.model.PutBelow(t.Kind, ns, key, kin)
		keys = append(keys, key+"/"+kin.Path)
	}
	return keys, nil
}

func (b *broken) Descendants(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
	if b.descendants != nil {
		return b.descendants(ctx, q, p)
	}
	return b.full.Descendants(ctx, q, p)
}

func (b *broken) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (store.Outcome, error) {
	if b.deleteBelow != nil {
		return b.deleteBelow(ctx, q, e, list, isDue)
	}
	return b.full.DeleteBelow(ctx, q, e, list, isDue)
}

// onDescendants breaks what a query of descendants has read.
func onDescendants(change func(q store.DescendantQuery, p *store.Descendants)) func(*broken) {
	return func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			err := b.full.Descendants(ctx, q, p)
			change(q, p)
			return err
		}
	}
}

// onEachDescendant breaks one descendant after the other.
func onEachDescendant(change func(q store.DescendantQuery, d *store.Descendant, last string)) func(*broken) {
	return onDescendants(func(q store.DescendantQuery, p *store.Descendants) {
		for i := range p.List {
			change(q, &p.List[i], p.List[len(p.List)-1].Key)
		}
	})
}

// onDescendantQuery breaks what a query asks for, given all keys below the entity.
func onDescendantQuery(change func(q *store.DescendantQuery, all []string)) func(*broken) {
	return func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			change(&q, b.allBelow(q.Target, q.Namespace, q.Key))
			return b.full.Descendants(ctx, q, p)
		}
	}
}

func (b *broken) model() *modelstore.Store { return b.full.(model).model }

func (b *broken) allBelow(t store.Target, ns, key string) (keys []string) {
	for _, path := range b.model().Below(t.Kind, ns, key) {
		keys = append(keys, key+"/"+path)
	}
	return keys
}

// alsoBelow adds what is below another entity, if what is below this one is asked for.
func alsoBelow(namespace, key, otherNamespace, other string) func(*broken) {
	return func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			err := b.full.Descendants(ctx, q, p)
			if q.Key == key && q.Namespace == namespace {
				for _, k := range b.allBelow(q.Target, otherNamespace, other) {
					p.List = append(p.List, store.Descendant{Key: k})
				}
			}
			return err
		}
	}
}

// A deletion is a call of DeleteBelow that a fault changes.
type deletion struct {
	*broken
	ctx   context.Context
	query store.Query
	entry store.Entry
	list  []store.Descendant
	isDue func(store.Value) bool
}

func (d *deletion) do() (store.Outcome, error) {
	return d.full.DeleteBelow(d.ctx, d.query, d.entry, d.list, d.isDue)
}

// remove deletes below an entity, whatever it is.
func (d *deletion) remove(key string, keys ...string) {
	var paths []string
	for _, k := range keys {
		paths = append(paths, strings.TrimPrefix(k, key+"/"))
	}
	d.model().RemoveBelow(d.query.Target.Kind, d.query.Namespace, key, paths...)
}

func (d *deletion) allBelow() []string {
	return d.broken.allBelow(d.query.Target, d.query.Namespace, d.entry.Key)
}

func onDeleteBelow(do func(d *deletion) (store.Outcome, error)) func(*broken) {
	return func(b *broken) {
		b.deleteBelow = func(
			ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
		) (store.Outcome, error) {
			return do(&deletion{b, ctx, q, e, list, isDue})
		}
	}
}

// says reports an outcome in place of another one.
func says(from, to store.Outcome) func(*broken) {
	return onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		o, err := d.do()
		if o == from && err == nil {
			o = to
		}
		return o, err
	})
}

// doesNotAsk deletes below what is not due.
var doesNotAsk = onDeleteBelow(func(d *deletion) (store.Outcome, error) {
	asked := d.isDue
	d.isDue = func(v store.Value) bool { asked(v); return true }
	return d.do()
})

// asksOnce goes by what it was told in its first call.
func asksOnce(b *broken) {
	var told *bool
	b.deleteBelow = func(
		ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
	) (store.Outcome, error) {
		return b.full.DeleteBelow(ctx, q, e, list, func(v store.Value) bool {
			if now := isDue(v); told == nil {
				told = &now
			}
			return *told
		})
	}
}

// inParts deletes as much of the list as it can.
var inParts = onDeleteBelow(func(d *deletion) (o store.Outcome, err error) {
	for i := range d.list {
		one := *d
		one.list = d.list[i : i+1]
		if o, err = one.do(); err != nil {
			return o, err
		}
	}
	return o, nil
})

var descendFaults = slices.Concat([]fault{
	{"DescendantsAreComplete", "lists what is right below alone", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		p.List = slices.DeleteFunc(p.List, func(d store.Descendant) bool { return strings.Count(d.Key, "/") > 2 })
	})},
	{"DescendantsAreComplete", "leaves out what is below nothing", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		p.List = slices.DeleteFunc(p.List, func(d store.Descendant) bool { return strings.Contains(d.Key, "/absent/") })
	})},
	{"DescendantsAreComplete", "lists one twice", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		p.List = append(p.List, p.List[0])
	})},
	{"DescendantsAreComplete", "lists what is below first", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		slices.Reverse(p.List)
	})},
	{"DescendantsAreComplete", "takes a page for the end", onDescendants(func(q store.DescendantQuery, p *store.Descendants) {
		p.List = p.List[:min(10, len(p.List))]
	})},
	{"DescendantsGoOnAnywhere", "never says that there is more", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		p.More = false
	})},
	{"DescendantsGoOnAnywhere", "begins with the one to go on behind", onDescendantQuery(func(q *store.DescendantQuery, all []string) {
		if i := slices.Index(all, q.After); i > 0 && q.Limit == store.MaxPage {
			q.After = all[i-1]
		}
	})},
	{"DescendantsGoOnAnywhere", "leaves out what is below the one to go on behind", onDescendants(func(q store.DescendantQuery, p *store.Descendants) {
		p.List = slices.DeleteFunc(p.List, func(d store.Descendant) bool { return strings.HasPrefix(d.Key, q.After+"/") })
	})},
	{"DescendantsGoOnAnywhere", "begins again if that one is gone", onDescendantQuery(func(q *store.DescendantQuery, all []string) {
		if !slices.Contains(all, q.After) {
			q.After = ""
		}
	})},
	{"DescendantsAreOfOneEntity", "goes by how a name begins", alsoBelow("", `"p"`, "", `"p2"`)},
	{"DescendantsAreOfOneEntity", "takes a number for a name", alsoBelow("", "7", "", `"7"`)},
	{"DescendantsAreOfOneEntity", "takes texts of other planes for the same", alsoBelow("", `"`+"\U0001F600"+`"`, "", `"`+"\uFFFD"+`"`)},
	{"DescendantsAreOfOneEntity", "looks into all namespaces", alsoBelow("", "7", "one", "7")},
	{"DescendantsAreOfOneEntity", "deletes by how a name begins", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		for _, other := range []string{`"p2"`, `"p!"`, `"p~"`} {
			d.remove(other, d.broken.allBelow(d.query.Target, d.query.Namespace, other)...)
		}
		return d.do()
	})},
	{"DescendantsSayWhatIsAbove", "goes by how a name begins", onEachDescendant(func(_ store.DescendantQuery, d *store.Descendant, last string) {
		d.Above = strings.HasPrefix(last, d.Key)
	})},
	{"DescendantsSayWhatIsAbove", "does not count the last", onEachDescendant(func(_ store.DescendantQuery, d *store.Descendant, last string) {
		d.Above = d.Above && d.Key != last
	})},
	{"DescendantsSayWhatIsAbove", "takes what has anything below it", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		for i := range p.List {
			p.List[i].Above = p.List[i].Above || i+1 < len(p.List) && strings.HasPrefix(p.List[i+1].Key, p.List[i].Key+"/")
		}
	})},
	{"DescendantsOfNothing", "asks for the entity first", func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			err := b.full.Descendants(ctx, q, p)
			if _, ok := b.model().Entities(q.Target.Kind, q.Namespace)[q.Key]; !ok {
				*p = store.Descendants{}
			}
			return err
		}
	}},
	{"DescendantsOfNothing", "leaves what the page held", onDescendants(func(_ store.DescendantQuery, p *store.Descendants) {
		if len(p.List) == 0 {
			p.List = p.List[:1]
		}
	})},
	{"DescendantsOfNothing", "lists the entity itself", onDescendants(func(q store.DescendantQuery, p *store.Descendants) {
		p.List = append(p.List, store.Descendant{Key: q.Key})
	})},
}, ownerFaults, deleteBelowFaults)

var ownerFaults = []fault{
	{"DescendantsHaveOwners", "goes by the kind alone", onEachDescendant(func(q store.DescendantQuery, d *store.Descendant, _ string) {
		parts := strings.Split(d.Key, "/")
		for _, t := range q.Owners {
			if d.Owner == "" && t.Kind == parts[len(parts)-2] {
				d.Owner = t.Name
			}
		}
	})},
	{"DescendantsHaveOwners", "goes by the property alone", onEachDescendant(func(q store.DescendantQuery, d *store.Descendant, _ string) {
		if len(q.Owners) > 0 && strings.HasSuffix(d.Key, "/others/f") {
			d.Owner = q.Owners[0].Name
		}
	})},
	{"DescendantsHaveOwners", "knows one owner alone", onDescendantQuery(func(q *store.DescendantQuery, _ []string) {
		q.Owners = q.Owners[:min(1, len(q.Owners))]
	})},
	{"DescendantsHaveOwners", "looks right below the entity alone", onEachDescendant(func(_ store.DescendantQuery, d *store.Descendant, _ string) {
		if strings.Count(d.Key, "/") > 2 {
			d.Owner = ""
		}
	})},
	{"DescendantsHaveOwners", "gives a descendant its parent's owner", onEachDescendant(func(_ store.DescendantQuery, d *store.Descendant, _ string) {
		if strings.HasSuffix(d.Key, "/devices/p/notes/q") {
			d.Owner = "devices"
		}
	})},
	{"DescendantsHaveOwners", "does not know the reaper's own", onEachDescendant(func(_ store.DescendantQuery, d *store.Descendant, _ string) {
		if d.Owner == store.OwnerReaper {
			d.Owner = ""
		}
	})},
	{"DescendantsHaveOwners", "takes others' kinds for the reaper's", onEachDescendant(func(_ store.DescendantQuery, d *store.Descendant, _ string) {
		if strings.Contains(d.Key, "/Reaper") {
			d.Owner = store.OwnerReaper
		}
	})},
	{"DescendantsAreBilled", "bills no reads", func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			return b.full.Descendants(store.WithMeter(ctx, new(store.Meter)), q, p)
		}
	}},
	{"DescendantsAreBilled", "bills nothing for nothing", func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			if len(b.allBelow(q.Target, q.Namespace, q.Key)) == 0 {
				ctx = store.WithMeter(ctx, new(store.Meter))
			}
			return b.full.Descendants(ctx, q, p)
		}
	}},
	{"DescendantsAreBilled", "bills no deletes", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		store.Bill(d.ctx, store.Operations{Reads: 1})
		d.ctx = store.WithMeter(d.ctx, new(store.Meter))
		return d.do()
	})},
	{"DescendantsAreBilled", "bills what it kept", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		o, err := d.do()
		if o == store.Kept {
			store.Bill(d.ctx, store.Operations{Deletes: 1})
		}
		return o, err
	})},
}

var deleteBelowFaults = []fault{
	{"DeleteBelowTakesTheList", "deletes all that is below", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = listOf(d.allBelow()...)
		return d.do()
	})},
	{"DeleteBelowTakesTheList", "deletes what is below the list, too", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		for _, key := range d.allBelow() {
			if slices.ContainsFunc(d.list, func(l store.Descendant) bool { return strings.HasPrefix(key, l.Key+"/") }) {
				d.list = append(d.list, store.Descendant{Key: key})
			}
		}
		return d.do()
	})},
	{"DeleteBelowTakesTheList", "deletes nothing", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = nil
		return d.do()
	})},
	{"DeleteBelowTakesTheList", "deletes the entity, too", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		o, err := d.do()
		if o == store.Deleted && len(d.allBelow()) == 0 {
			d.model().Remove(d.query.Target.Kind, d.query.Namespace, d.entry.Key)
		}
		return o, err
	})},
	{"DeleteBelowTakesTheList", "shows what the scan saw", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		asked := d.isDue
		d.isDue = func(store.Value) bool { return asked(store.Value{}) }
		return d.do()
	})},
	{"DeleteBelowTakesTheList", "has nothing to do for an empty list", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		if len(d.list) == 0 {
			return store.Unknown, nil
		}
		return d.do()
	})},
	{"DeleteBelowKeepsWhatIsNotDue", "does not ask", doesNotAsk},
	{"DeleteBelowKeepsWhatIsNotDue", "says that it deleted", says(store.Kept, store.Deleted)},
	{"DeleteBelowFindsGone", "deletes below what does not exist", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		o, err := d.do()
		if o == store.Gone {
			d.remove(d.entry.Key, belowKeys(d.list)...)
		}
		return o, err
	})},
	{"DeleteBelowFindsGone", "says that it kept them", says(store.Gone, store.Kept)},
	{"DeleteBelowFindsGone", "asks about what does not exist", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		o, err := d.do()
		if o == store.Gone {
			d.isDue(store.Value{})
		}
		return o, err
	})},
	{"DeleteBelowSeesThePresent", "shows what the scan saw", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		asked := d.isDue
		d.isDue = func(store.Value) bool { return asked(d.entry.Value) }
		return d.do()
	})},
	{"DeleteBelowSeesThePresent", "deletes below what never expires", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		asked := d.isDue
		d.isDue = func(v store.Value) bool { return asked(v) || v.Type == store.Missing }
		return d.do()
	})},
	{"DeleteBelowRepeatedIsSuccess", "takes what is gone for a failure", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		for _, l := range d.list {
			if !slices.Contains(d.allBelow(), l.Key) {
				return store.Gone, nil
			}
		}
		return d.do()
	})},
	{"DeleteBelowRepeatedIsSuccess", "stops at what is gone", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		if !slices.Contains(d.allBelow(), d.list[0].Key) {
			d.list = nil
		}
		return d.do()
	})},
	{"DeleteBelowIsAllOrNothing", "deletes one by one", inParts},
	{"DeleteBelowIsAllOrNothing", "leaves out keys that are not below", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		all := d.allBelow()
		d.list = slices.DeleteFunc(slices.Clone(d.list), func(l store.Descendant) bool { return !slices.Contains(all, l.Key) })
		return d.do()
	})},
	{"DeleteBelowIsAllOrNothing", "takes fewer", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		if len(d.list) > 400 {
			return store.Unknown, store.ErrTooLarge
		}
		return d.do()
	})},
	{"DeleteBelowStopsWithItsContext", "does not look at it", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.ctx = context.WithoutCancel(d.ctx)
		return d.do()
	})},
	{"DeleteBelowStopsWithItsContext", "looks at it before it decides", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		if err := d.ctx.Err(); err != nil {
			return store.Unknown, err
		}
		ctx := d.ctx
		d.ctx = context.WithoutCancel(d.ctx)
		o, err := d.do()
		return o, cmp.Or(err, ctx.Err())
	})},
	{"DeleteBelowStopsWithItsContext", "queries whatever it says", func(b *broken) {
		b.descendants = func(ctx context.Context, q store.DescendantQuery, p *store.Descendants) error {
			return b.full.Descendants(context.WithoutCancel(ctx), q, p)
		}
	}},
	{"DeleteBelowLeavesWhatGotAnOwner", "deletes it, too", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = slices.Clone(d.list)
		for i := range d.list {
			d.list[i].Premise = ""
		}
		return d.do()
	})},
	{"DeleteBelowLeavesWhatGotAnOwner", "deletes the rest of the list", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = slices.DeleteFunc(slices.Clone(d.list), func(b store.Descendant) bool { return b.Premise != "" })
		return d.do()
	})},
	{"DeleteBelowLeavesWhatStays", "deletes it, too", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = slices.Clone(d.list)
		for i := range d.list {
			d.list[i].Stays = false
		}
		return d.do()
	})},
	{"DeleteBelowLeavesWhatStays", "leaves it out", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = slices.DeleteFunc(slices.Clone(d.list), func(b store.Descendant) bool { return b.Stays })
		return d.do()
	})},
	{"DeleteBelowMeetsAWriter", "asks once", asksOnce},
	{"DeleteBelowMeetsAWriter", "does not ask", doesNotAsk},
	{"DeleteBelowMeetsAWriter", "deletes nothing", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		d.list = nil
		return d.do()
	})},
}
