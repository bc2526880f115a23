package modelstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

// A Kin is a descendant of an entity: what lies below it, whether or not it exists.
type Kin struct {
	// Path are the kinds and names from the entity down: "notes/a/tags/b" is of the kind tags, below notes/a.
	Path string
	// Property is the property that it carries, if it is of a target; else empty.
	Property string

	revision int
}

// kind returns the kind of a descendant.
func (k Kin) kind() string {
	parts := strings.Split(k.Path, "/")
	return parts[len(parts)-2]
}

// An above is an entity by which its descendants are kept.
type above struct{ kind, namespace, key string }

// kinOrder compares paths so that each is before those below it, as an index of keys does: by their
// segments.
func kinOrder(a, b Kin) int {
	for i := range min(len(a.Path), len(b.Path)) {
		switch x, y := a.Path[i], b.Path[i]; {
		case x == y:
		case x == '/':
			return -1
		case y == '/':
			return 1
		default:
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a.Path), len(b.Path))
}

// PutBelow writes descendants of an entity, which need not exist.
func (s *Store) PutBelow(kind, namespace, key string, list ...Kin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putBelow(above{kind, namespace, key}, list...)
	s.writes++
}

func (s *Store) putBelow(at above, list ...Kin) {
	if s.kin == nil {
		s.kin = map[above][]Kin{}
	}
	for _, k := range list {
		s.written++
		k.revision = s.written
		if n := len(s.kin[at]); n == 0 || kinOrder(s.kin[at][n-1], k) < 0 { // the usual case of many
			s.kin[at] = append(s.kin[at], k)
			continue
		}
		i, found := slices.BinarySearchFunc(s.kin[at], k, kinOrder)
		if found {
			s.kin[at][i] = k
		} else {
			s.kin[at] = slices.Insert(s.kin[at], i, k)
		}
	}
}

// RemoveBelow removes descendants of an entity, as its application would.
func (s *Store) RemoveBelow(kind, namespace, key string, paths ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeBelow(above{kind, namespace, key}, paths)
}

func (s *Store) removeBelow(at above, paths []string) {
	for _, path := range paths {
		list := s.kin[at]
		i, found := slices.BinarySearchFunc(list, Kin{Path: path}, kinOrder)
		switch {
		case !found:
			continue
		case i < len(list)/2: // of many, most go from the front: move what is before
			copy(list[1:i+1], list[:i])
			s.kin[at] = list[1:]
		default:
			s.kin[at] = slices.Delete(list, i, i+1)
		}
		s.writes++
	}
	if len(s.kin[at]) == 0 {
		delete(s.kin, at)
	}
}

// Below lists the paths of an entity's descendants.
func (s *Store) Below(kind, namespace, key string) (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kin[above{kind, namespace, key}] {
		paths = append(paths, k.Path)
	}
	return paths
}

// Descendants implements store.Descender.
func (s *Store) Descendants(ctx context.Context, q store.DescendantQuery, page *store.Descendants) error {
	*page = store.Descendants{List: page.List[:0]}
	c := Call{Method: "Descendants", Namespace: q.Namespace, Query: store.Query{Target: q.Target, Limit: q.Limit},
		Below: q}
	return s.do(ctx, c, func() error {
		all := s.kin[above{q.Target.Kind, q.Namespace, q.Key}]
		from := 0
		if q.After != "" {
			i, found := slices.BinarySearchFunc(all, Kin{Path: strings.TrimPrefix(q.After, q.Key+"/")}, kinOrder)
			if from = i; found {
				from++
			}
		}
		rest := all[from:]
		*page = store.Descendants{List: page.List[:0], More: len(rest) > q.Limit}
		rest = rest[:min(q.Limit, len(rest))]
		for _, k := range rest {
			d := store.Descendant{Key: q.Key + "/" + k.Path, Above: k.isAboveOrIs(rest[len(rest)-1])}
			if store.IsRecordKind(k.kind()) {
				d.Owner = store.OwnerReaper
			}
			owns := func(t store.Target) bool { return t.Kind == k.kind() && t.Property == k.Property }
			if i := slices.IndexFunc(q.Owners, owns); i >= 0 {
				d.Owner = q.Owners[i].Name
			}
			if d.Owner == "" && slices.ContainsFunc(q.Owners, func(t store.Target) bool { return t.Kind == k.kind() }) {
				d.Premise = strconv.Itoa(k.revision)
			}
			page.List = append(page.List, d)
		}
		store.Bill(ctx, store.Operations{Reads: int64(max(1, len(rest)))})
		return nil
	})
}

func (k Kin) isAboveOrIs(other Kin) bool {
	return other == k || strings.HasPrefix(other.Path, k.Path+"/")
}

// premisesHold reports whether descendants are what they were when they were listed, as far as that matters.
func (s *Store) premisesHold(at above, list []store.Descendant) bool {
	for _, d := range list {
		i, found := slices.BinarySearchFunc(s.kin[at], Kin{Path: strings.TrimPrefix(d.Key, at.key+"/")}, kinOrder)
		if found && d.Premise != "" && d.Premise != strconv.Itoa(s.kin[at][i].revision) {
			return false
		}
	}
	return true
}

// isPath reports whether a text is the path of a Kin: what is not is below no entity.
func isPath(path string) bool {
	parts := strings.Split(path, "/")
	return len(parts)%2 == 0 && !slices.Contains(parts, "")
}

// DeleteBelow implements store.Descender.
func (s *Store) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (o store.Outcome, err error) {
	if len(list) >= store.MaxPage {
		return store.Unknown, fmt.Errorf("%w: %d descendants", store.ErrTooLarge, len(list))
	}
	paths := make([]string, 0, len(list))
	for _, d := range list {
		path, isBelow := strings.CutPrefix(d.Key, e.Key+"/")
		if !isBelow || !isPath(path) {
			return store.Unknown, fmt.Errorf("%w: %q is not the key of anything below %s", store.ErrInvalid, d.Key, e.Key)
		}
		if !d.Stays {
			paths = append(paths, path)
		}
	}
	c := Call{Method: "DeleteBelow", Namespace: q.Namespace, Query: q, Ops: []store.Op{{Entry: e}}, Paths: paths}
	at, keys := place{q.Target.Kind, q.Namespace}, belowKeys(e.Key, paths)
	about := func() ([]store.Copy, error) {
		if now, ok := s.rows[at][e.Key]; !ok || !isDue(now.Expiry) {
			return nil, nil
		}
		return s.keptWhole(at.kind, at.namespace, keys)
	}
	err = s.doKept(ctx, c, q.Archive, about, func(k kept) error {
		now, ok := s.rows[at][e.Key]
		store.Bill(ctx, store.Operations{Reads: 1})
		switch {
		case !ok:
			o = store.Gone
		case !isDue(now.Expiry):
			o = store.Kept
		case ctx.Err() != nil:
			return ctx.Err()
		case !s.hasAll(k, at.kind, at.namespace, keys):
			return errNotKept
		case !s.premisesHold(above{at.kind, at.namespace, e.Key}, list):
			return fmt.Errorf("%w: a descendant has changed since it was listed", store.ErrContention)
		default:
			o = store.Deleted
			s.removeBelow(above{at.kind, at.namespace, e.Key}, paths)
			store.Bill(ctx, store.Operations{Deletes: int64(len(paths))})
		}
		return nil
	})
	if err != nil {
		o = store.Unknown
	}
	return o, err
}
