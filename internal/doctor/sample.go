package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// examples is how many ids one finding names.
	examples = 3
	// A sample has sampleFirst entities from the beginning of a kind, and sampleLater from each of
	// up to sampleSplits places in it.
	sampleFirst, sampleLater, sampleSplits = 40, 10, 3
	// mostSought is how many samples are looked for in the index.
	mostSought = 8
)

// A sampled is one entity of a sample.
type sampled struct {
	store.Row
	namespace string
	id        string
}

func (s sampled) String() string {
	if s.namespace != "" {
		return fmt.Sprintf("%s in namespace %s", s.id, s.namespace)
	}
	return s.id
}

// checkSample reads a few entities of a target, and says if they show that no sweep can see them.
func (x *exam) checkSample(ctx context.Context, t sweep.Target) error {
	namespaces, err := x.namespacesOf(ctx, t)
	if err != nil {
		return err
	}
	read, all := x.firstOf(t, namespaces, "namespaces")
	list, first, err := x.sample(ctx, t, read)
	switch {
	case errors.Is(err, store.ErrMissingIndex):
		x.findMissingIndex(t, err)
		return nil
	case err != nil:
		return err
	case len(list) == 0 && !all: // those that were not read may hold some
		return nil
	case len(list) == 0:
		return x.findEmpty(ctx, t, namespaces)
	}
	x.judgeIDs(t, first)
	if err := x.judgeDescendants(ctx, t, list); err != nil {
		return err
	}
	bearing := slices.DeleteFunc(slices.Clone(list), func(s sampled) bool { return s.Expiry.Type == store.Missing })
	switch {
	case len(bearing) == 0 && !all: // entities elsewhere may have the property
		return nil
	case len(bearing) == 0:
		return x.judgeMissing(ctx, t, namespaces, list)
	}
	right := slices.DeleteFunc(slices.Clone(bearing), func(s sampled) bool { return s.Expiry.Type != t.Type })
	if len(right)*2 < len(bearing) {
		wrong := slices.DeleteFunc(bearing, func(s sampled) bool { return s.Expiry.Type == t.Type })
		var evidence []string
		for _, s := range wrong[:min(len(wrong), examples)] {
			evidence = append(evidence, fmt.Sprintf("%s has %s = %s", s, t.Property, oneLine(s.Expiry.String())))
		}
		x.find(Finding{ID: "property-type", Target: t.Name, Evidence: evidence,
			What: fmt.Sprintf("%s holds %s in %d of %d sampled entities, and the layout %s wants %s.", t.Property,
				typeNames(wrong), len(wrong), len(right)+len(wrong), t.Layout, typeName(t.Type)),
			Mend: "set layout and property in the targets file to what the entities have, or adopt them: docs/adopting.md"})
	}
	return x.judgeIndexed(ctx, t, right)
}

// namespacesOf returns the namespaces of a target that are sampled.
func (x *exam) namespacesOf(ctx context.Context, t sweep.Target) ([]string, error) {
	switch {
	case len(t.Namespaces) == 0:
		return []string{""}, nil
	case !slices.Contains(t.Namespaces, "*"):
		return t.Namespaces, nil
	}
	n, ok := x.Sweep.Store.(store.Namespacer)
	if !ok {
		return []string{""}, nil
	}
	return n.Namespaces(ctx)
}

// firstOf returns the namespaces that are read, and whether these are all. If not, it says so.
func (x *exam) firstOf(t sweep.Target, namespaces []string, what string) (read []string, all bool) {
	if len(namespaces) <= mostNamespaces {
		return namespaces, true
	}
	x.skip("sample", t.Name, fmt.Sprintf("only the first %d of %d %s were read", mostNamespaces, len(namespaces), what))
	return namespaces[:mostNamespaces], false
}

// sample reads a few entities of each namespace; first are those at the beginning of
// one of them, in the order of their keys.
func (x *exam) sample(ctx context.Context, t sweep.Target, namespaces []string) (list, first []sampled, err error) {
	a, ok := x.Sweep.Store.(store.Adopter)
	keyer, tells := x.Sweep.Store.(store.Keyer)
	if !ok || !tells {
		return nil, nil, errors.New("this store cannot list entities")
	}
	read := func(q store.WalkQuery) (got []sampled, err error) {
		var rows store.Rows
		if err := a.Walk(ctx, q, &rows); err != nil {
			return nil, err
		}
		for _, r := range rows.List {
			id, err := keyer.ID(r.Key)
			if err != nil {
				return nil, err
			}
			got = append(got, sampled{r, q.Namespace, id})
		}
		return got, nil
	}
	for _, ns := range namespaces {
		q := store.WalkQuery{Target: t.Target, Namespace: ns, Source: t.ShardProperty, Limit: sampleFirst}
		got, err := read(q)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, got...)
		if len(first) > 0 || len(got) == 0 {
			continue
		}
		first = got
		splits, err := a.Splits(ctx, t.Target, ns, sampleSplits)
		if err != nil {
			return nil, nil, err
		}
		q.Limit = sampleLater
		for _, q.After = range splits {
			more, err := read(q)
			if err != nil {
				return nil, nil, err
			}
			list = append(list, more...)
		}
	}
	return list, first, nil
}

// judgeMissing notes that no sampled entity has the property, if the index has none either.
func (x *exam) judgeMissing(ctx context.Context, t sweep.Target, namespaces []string, list []sampled) error {
	counter, ok := x.Sweep.Store.(store.Counter)
	for _, ns := range namespaces {
		if !ok {
			break
		}
		if n, err := counter.Count(ctx, t.Target, ns, store.Span{}, 1); err != nil || n > 0 {
			return err // most of them never expire, which is their right
		}
	}
	f := Finding{ID: "property-missing", Target: t.Name,
		What: fmt.Sprintf("No entity of %s has the property %s.", t.Kind, t.Property),
		Mend: "correct property in the targets file, have writers stamp it, or adopt the entities: docs/adopting.md"}
	for _, s := range list[:min(len(list), examples)] {
		f.Evidence = append(f.Evidence, s.String()+" does not have it")
	}
	if names := x.properties(ctx, t, list[0].namespace); len(names) > 0 {
		line := "properties of the first entity: " + quoted(names[:min(len(names), mostNames)])
		if near := nearest(t.Property, names); near != "" {
			line += "; " + near + " is nearly the same"
		}
		f.Evidence = append(f.Evidence, line)
	}
	x.find(f)
	return nil
}

// properties returns the names of the properties of the first entity, if the store can show it.
func (x *exam) properties(ctx context.Context, t sweep.Target, namespace string) []string {
	d, ok := x.Sweep.Store.(store.Dumper)
	if !ok {
		return nil
	}
	for e, err := range d.Dump(ctx, t.Target, namespace) {
		var data map[string]json.RawMessage
		if err != nil || json.Unmarshal(e.Data, &data) != nil {
			return nil
		}
		return sortedKeys(data)
	}
	return nil
}

// judgeIndexed looks in the index for a few sampled entities.
func (x *exam) judgeIndexed(ctx context.Context, t sweep.Target, list []sampled) error {
	sought, unseen := 0, []string(nil)
	for _, s := range store.Evenly(list, mostSought) {
		if t.ShardProperty != "" && s.Source.Type == store.Missing {
			continue // it is outside all ranges, which another check counts
		}
		sought++
		seen, err := x.isIndexed(ctx, t, s)
		if errors.Is(err, store.ErrMissingIndex) {
			x.findMissingIndex(t, err)
			return nil
		}
		if err != nil {
			return err
		}
		if !seen {
			unseen = append(unseen, fmt.Sprintf("%s has %s = %s", s, t.Property, s.Expiry))
		}
	}
	if len(unseen) > 0 {
		x.find(Finding{ID: "property-unindexed", Target: t.Name, Evidence: unseen[:min(len(unseen), examples)],
			What: fmt.Sprintf("%d of %d sampled entities have no entry in the index of %s: no sweep ever sees them.",
				len(unseen), sought, t.Property),
			Mend: "index the property (Datastore mode: do not exclude it when writing; native mode: reaper indexes), " +
				"and write the entities again"})
	}
	return nil
}

// judgeDescendants notes that documents have subcollections, which sweeps leave as orphans. In Datastore mode
// queries still find what has lost its ancestor.
func (x *exam) judgeDescendants(ctx context.Context, t sweep.Target, list []sampled) error {
	d, ok := x.Sweep.Store.(store.Descender)
	if !ok || t.Descendants.Mode != sweep.KeepDescendants || x.Mode == facts.DatastoreMode {
		return nil
	}
	var evidence []string
	sought := store.Evenly(list, mostSought)
	for _, s := range sought {
		var page store.Descendants
		q := store.DescendantQuery{Target: t.Target, Namespace: s.namespace, Key: s.Key, Limit: 1}
		if err := d.Descendants(ctx, q, &page); err != nil {
			return err
		}
		if len(page.List) > 0 {
			evidence = append(evidence, "for example "+oneLine(page.List[0].Key))
		}
	}
	if len(evidence) > 0 {
		x.find(Finding{ID: "descendants-left", Target: t.Name, Evidence: evidence[:1],
			What: fmt.Sprintf("%d of %d sampled documents have subcollections, which stay as orphans when they are deleted.",
				len(evidence), len(sought)),
			Mend: "write descendants: {mode: delete} in the targets file, or refuse: docs/descendants.md"})
	}
	return nil
}

// mostPages bounds how many entries with one value are searched for one entity.
const mostPages = 4

// isIndexed reports whether the index shows an entity at its value; also if too many entities
// have that value to see all.
func (x *exam) isIndexed(ctx context.Context, t sweep.Target, s sampled) (bool, error) {
	q := store.Query{Target: t.Target, Namespace: s.namespace, Shard: s.Source, Lo: s.Expiry, Hi: s.Expiry,
		Limit: store.MaxPage}
	if t.ShardProperty == "" {
		q.Shard = store.Value{}
	}
	var page store.Page
	for range mostPages {
		if err := x.Sweep.Store.Scan(ctx, q, &page); err != nil {
			return false, err
		}
		for _, e := range page.Entries {
			if e.Key == s.Key {
				return true, nil
			}
			q.After = e.Position()
		}
		if q.Next = page.Next; !page.More {
			return x.hasChanged(ctx, t, s)
		}
	}
	return true, nil
}

// hasChanged reports whether an entity that the index does not show has another value by now.
func (x *exam) hasChanged(ctx context.Context, t sweep.Target, s sampled) (bool, error) {
	a, ok := x.Sweep.Store.(store.Adopter)
	if !ok {
		return true, nil
	}
	var rows store.Rows
	q := store.WalkQuery{Target: t.Target, Namespace: s.namespace, Source: t.ShardProperty, Limit: 1}
	if err := a.Look(ctx, q, []string{s.Key}, &rows); err != nil {
		return false, err
	}
	return len(rows.List) == 0 || !rows.List[0].Agrees(s.Row), nil
}

func (x *exam) findMissingIndex(t sweep.Target, err error) {
	x.find(Finding{ID: "index-missing", Target: t.Name, What: "The store has no index for the queries of this target.",
		Evidence: []string{oneLine(err.Error())},
		Mend:     "reaper indexes --target " + t.Name + " prints the definition; deploy it and wait until it is built"})
}

// fewIDs is the least number of ids that show a pattern.
const fewIDs = 20

// judgeIDs notes that ids are counted: neighbours in the order of keys. All writes then go to
// one place.
func (x *exam) judgeIDs(t sweep.Target, first []sampled) {
	var numbers []int64
	for _, s := range first {
		n, err := strconv.ParseInt(s.id, 10, 64)
		if err != nil || len(numbers) > 0 && n <= numbers[len(numbers)-1] {
			return
		}
		numbers = append(numbers, n)
	}
	if len(numbers) < fewIDs {
		return
	}
	// Of random ids hardly any two are this near.
	span := numbers[len(numbers)-1] - numbers[0]
	if span > 100*int64(len(numbers)) {
		return
	}
	x.find(Finding{ID: "ids-monotonic", Target: t.Name,
		What: fmt.Sprintf("The ids of %s seem to be counted: at a high rate all writes go to one place.", t.Kind),
		Evidence: []string{fmt.Sprintf("the first %d ids lie between %d and %d",
			len(numbers), numbers[0], numbers[len(numbers)-1])},
		Mend: "let the store assign ids, or begin each id with a hash"})
}

func typeName(t store.Type) string {
	switch t {
	case store.Text:
		return "a text"
	case store.Instant:
		return "a timestamp"
	case store.List:
		return "a list"
	case store.Missing, store.Other:
	}
	return "another type"
}

// typeNames names the types in a sample.
func typeNames(list []sampled) string {
	var names string
	seen := map[store.Type]bool{}
	for _, s := range list {
		if !seen[s.Expiry.Type] {
			seen[s.Expiry.Type] = true
			if names != "" {
				names += " or "
			}
			names += typeName(s.Expiry.Type)
		}
	}
	return names
}
