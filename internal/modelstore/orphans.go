package modelstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

// A name is an entity of a target, or one below it, in the order of a lineage. Only the model's own
// kind of place has a lineage: there is nothing above the entities of a target.
type name struct {
	top string // the key of the entity of the target
	kin Kin    // zero for that entity itself
}

func (n name) key() string {
	if n.kin.Path == "" {
		return n.top
	}
	return n.top + "/" + n.kin.Path
}

// nameOrder compares names as an index of keys does.
func nameOrder(a, b name) int {
	return cmp.Or(strings.Compare(a.top, b.top), cmp.Compare(min(1, len(a.kin.Path)), min(1, len(b.kin.Path))),
		kinOrder(a.kin, b.kin))
}

// nameOf returns the name that a key stands for.
func nameOf(key string) name {
	end := strings.IndexByte(key, '/')
	if strings.HasPrefix(key, `"`) {
		for end = 1; end < len(key) && key[end] != '"'; end++ {
			if key[end] == '\\' {
				end++
			}
		}
		end++
	}
	if end < 0 || end >= len(key) {
		return name{top: key}
	}
	return name{key[:end], Kin{Path: key[end+1:]}}
}

// names returns the lineage of a target, in order.
func (s *Store) names(t store.Target, namespace string) (all []name) {
	rows := s.rows[place{t.Kind, namespace}]
	tops := slices.Collect(maps.Keys(rows))
	for above := range s.kin {
		if above.kind == t.Kind && above.namespace == namespace {
			tops = append(tops, above.key)
		}
	}
	slices.Sort(tops)
	for _, top := range slices.Compact(tops) {
		if _, exists := rows[top]; exists {
			all = append(all, name{top: top})
		}
		for _, k := range s.kin[above{t.Kind, namespace, top}] { // which are in order
			all = append(all, name{top, k})
		}
	}
	return all
}

// relative returns a name as a lineage shows it.
func (n name) relative(q store.LineageQuery) store.Relative {
	r := store.Relative{Key: n.key(), Kind: q.Target.Kind, Root: n.top, Own: true}
	if n.kin.Path == "" {
		return r
	}
	r.Kind, r.Of, r.Own = n.kin.kind(), n.top, n.kin.kind() == q.Target.Kind
	parts := strings.Split(n.kin.Path, "/")
	for i := 0; i+2 < len(parts); i += 2 {
		if parts[i] == q.Target.Kind {
			r.Of = n.top + "/" + strings.Join(parts[:i+2], "/")
		}
	}
	r.Unsure = slices.ContainsFunc(q.Owners, func(t store.Target) bool { return t.Kind == r.Kind && !r.Own })
	if store.IsRecordKind(r.Kind) {
		r.Owner, r.Unsure = store.OwnerReaper, false
	}
	return r
}

// IsScattered implements store.Orphaner.
func (s *Store) IsScattered(context.Context, store.Target, string) (bool, error) { return false, nil }

// Roots implements store.Orphaner.
func (s *Store) Roots(_ context.Context, q store.LineageQuery, most int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var roots []string
	for _, n := range s.names(q.Target, q.Namespace) {
		if (q.After == "" || n.top > nameOf(q.After).top) && (q.Until == "" || n.top < nameOf(q.Until).top) {
			roots = append(roots, n.top)
		}
	}
	return store.Evenly(slices.Compact(roots), most), nil
}

// Lineage implements store.Orphaner. It bills a read for each name, as the native store does.
func (s *Store) Lineage(ctx context.Context, q store.LineageQuery, page *store.Lineage) error {
	*page = store.Lineage{List: page.List[:0], Billed: true}
	c := Call{Method: "Lineage", Namespace: q.Namespace, Query: store.Query{Target: q.Target, Limit: q.Limit}}
	return s.do(ctx, c, func() error {
		for _, n := range s.names(q.Target, q.Namespace) {
			switch key := n.key(); {
			case q.After != "" && (nameOrder(n, nameOf(q.After)) <= 0 || q.Behind && store.IsBelow(key, q.After)):
			case q.Until != "" && nameOrder(n, nameOf(q.Until)) > 0 && !store.IsBelow(key, q.Until):
			case len(page.List) == q.Limit:
				page.More = true
			default:
				page.List = append(page.List, n.relative(q))
			}
		}
		store.Bill(ctx, store.Operations{Reads: int64(max(1, len(page.List)))})
		return nil
	})
}

// Claim implements store.Orphaner.
func (s *Store) Claim(ctx context.Context, q store.LineageQuery, list []store.Relative) error {
	return s.do(ctx, Call{Method: "Claim", Namespace: q.Namespace}, func() error {
		s.claim(q, list)
		store.Bill(ctx, store.Operations{Reads: int64(len(list))})
		return nil
	})
}

func (s *Store) claim(q store.LineageQuery, list []store.Relative) (claimed bool) {
	for i := range list {
		list[i].Unsure = false
		n := nameOf(list[i].Key)
		kin := s.kin[above{q.Target.Kind, q.Namespace, n.top}]
		at, found := slices.BinarySearchFunc(kin, n.kin, kinOrder)
		for _, t := range q.Owners {
			if found && t.Kind == kin[at].kind() && t.Property == kin[at].Property {
				list[i].Owner, claimed = t.Name, true
			}
		}
	}
	return claimed
}

// exists reports whether an entity exists that others may be below.
func (s *Store) exists(q store.LineageQuery, key string) bool {
	n := nameOf(key)
	if n.kin.Path == "" {
		_, ok := s.rows[place{q.Target.Kind, q.Namespace}][n.top]
		return ok
	}
	_, ok := slices.BinarySearchFunc(s.kin[above{q.Target.Kind, q.Namespace, n.top}], n.kin, kinOrder)
	return ok
}

// DeleteOrphans implements store.Orphaner.
func (s *Store) DeleteOrphans(
	ctx context.Context, q store.LineageQuery, parent string, list []store.Relative,
) (o store.Outcome, err error) {
	if len(list) >= store.MaxPage {
		return store.Unknown, fmt.Errorf("%w: %d orphans", store.ErrTooLarge, len(list))
	}
	var paths []string
	for _, r := range list {
		paths = append(paths, r.Key)
	}
	c := Call{Method: "DeleteOrphans", Namespace: q.Namespace, Query: store.Query{Target: q.Target}, Paths: paths}
	about := func() ([]store.Copy, error) {
		if s.exists(q, parent) || s.claim(q, list) {
			return nil, nil
		}
		return s.keptWhole(q.Target.Kind, q.Namespace, paths)
	}
	err = s.doKept(ctx, c, q.Archive, about, func(k kept) error {
		store.Bill(ctx, store.Operations{Reads: 1})
		switch {
		case s.exists(q, parent):
			o = store.Kept
		case s.claim(q, list):
			o = store.Changed
		case !s.hasAll(k, q.Target.Kind, q.Namespace, paths):
			return errNotKept
		default:
			o = store.Deleted
			for _, r := range list {
				n := nameOf(r.Key)
				s.removeBelow(above{q.Target.Kind, q.Namespace, n.top}, []string{n.kin.Path})
			}
			store.Bill(ctx, store.Operations{Deletes: int64(len(list))})
		}
		return nil
	})
	if err != nil {
		o = store.Unknown
	}
	return o, err
}
