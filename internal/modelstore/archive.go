package modelstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

var _ store.Archiver = (*Store)(nil)

// A stamp is what the store knows of an entity in addition to what it holds.
type stamp struct {
	created, updated time.Time
	revision         int // of what it holds: no two writes have the same
}

// A document is what the Data of a copy holds: an entity of a target, or what lies below one.
type document struct {
	Kind     string
	Key      string        // of the entity of the target
	Entity   *store.Entity `json:",omitempty"`
	Path     string        `json:",omitempty"` // as a Kin has it
	Property string        `json:",omitempty"`
	Revision int
}

// key returns the key of the entity itself.
func (d document) key() string {
	if d.Entity != nil {
		return d.Key
	}
	return d.Key + "/" + d.Path
}

func (d document) copy(st stamp) store.Copy {
	d.Revision = st.revision
	data, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("an entity does not marshal: %v", err))
	}
	c := store.Copy{Key: d.key(), Data: data, Version: strconv.Itoa(d.Revision), Created: st.created, Updated: st.updated}
	if d.Entity != nil {
		c.Expiry = d.Entity.Expiry
	}
	return c
}

// copyOf returns a copy of what has a key, or one without Data if nothing has.
func (s *Store) copyOf(kind, namespace, key string) store.Copy {
	at, n := place{kind, namespace}, nameOf(key)
	if n.kin.Path == "" {
		if e, ok := s.rows[at][key]; ok {
			return document{Kind: kind, Key: key, Entity: &e}.copy(s.stamps[at][key])
		}
		return store.Copy{Key: key}
	}
	list := s.kin[above{kind, namespace, n.top}]
	if i, found := slices.BinarySearchFunc(list, n.kin, kinOrder); found {
		k := list[i]
		return document{Kind: kind, Key: n.top, Path: k.Path, Property: k.Property}.copy(stamp{revision: k.revision})
	}
	return store.Copy{Key: key}
}

// copiesOf returns copies of those of a list that exist.
func (s *Store) copiesOf(kind, namespace string, keys []string) (list []store.Copy) {
	for _, key := range keys {
		if c := s.copyOf(kind, namespace, key); c.Data != nil {
			list = append(list, c)
		}
	}
	return list
}

// copyBytes is about how many bytes of copies one call reads or writes.
func (s *Store) copyBytes() int { return cmp.Or(s.CopyBytes, store.CopyBytes) }

// A kept holds the versions of what an Archive was given, by key.
type kept map[string]string

// has reports whether an entity that is about to be deleted is what was kept. Without an Archive everything is.
func (s *Store) has(k kept, kind, namespace, key string) bool {
	if k == nil {
		return true
	}
	c := s.copyOf(kind, namespace, key)
	return c.Data == nil || k[key] == c.Version
}

// doKept is do for a call that deletes. If there is an Archive it first shows it the copies that about returns,
// under the lock. While the Archive keeps them nothing is locked.
func (s *Store) doKept(
	ctx context.Context, c Call, a store.Archive, about func() ([]store.Copy, error), f func(kept) error,
) error {
	if a == nil {
		return s.do(ctx, c, func() error { return f(nil) })
	}
	if err := s.begin(ctx, c); err != nil {
		return err
	}
	s.mu.Lock()
	list, err := about()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	k := kept{}
	for _, one := range list {
		k[one.Key] = one.Version
	}
	if len(list) > 0 {
		if err := a.Keep(ctx, list); err != nil {
			return fmt.Errorf("keep %d entities: %w", len(list), err)
		}
		store.Bill(ctx, store.Operations{Reads: int64(len(list))})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.finish(ctx, c, func() error { return f(k) })
}

// keptWhole returns copies of those of a list that exist, of which none may be left for another call.
func (s *Store) keptWhole(kind, namespace string, keys []string) ([]store.Copy, error) {
	list, size := s.copiesOf(kind, namespace, keys), 0
	for _, c := range list {
		size += len(c.Data)
	}
	if size > s.copyBytes() && len(list) > 1 {
		return nil, fmt.Errorf("%w: %d entities have %d bytes", store.ErrTooLarge, len(list), size)
	}
	return list, nil
}

// hasAll reports whether all that is left of a list is what was kept.
func (s *Store) hasAll(k kept, kind, namespace string, keys []string) bool {
	for _, key := range keys {
		if !s.has(k, kind, namespace, key) {
			return false
		}
	}
	return true
}

var errNotKept = fmt.Errorf("%w: it changed after a copy was kept", store.ErrContention)

// Archives implements store.Archiver.
func (s *Store) Archives(store.Target) error { return nil }

// Fetch implements store.Archiver. It knows the present alone.
func (s *Store) Fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) (list []store.Copy, err error) {
	if !at.IsZero() {
		return nil, fmt.Errorf("%w: the model store has no past", store.ErrUnsupported)
	}
	c := Call{Method: "Fetch", Namespace: namespace, Query: store.Query{Target: t}, Paths: keys}
	err = s.do(ctx, c, func() error {
		size := 0
		for _, key := range keys {
			one := s.copyOf(t.Kind, namespace, key)
			if size += len(one.Data); size > s.copyBytes() && len(list) > 0 {
				break
			}
			list = append(list, one)
		}
		store.Bill(ctx, store.Operations{Reads: int64(len(list))})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Insert implements store.Archiver.
func (s *Store) Insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) error {
	if len(list) > store.MaxPage {
		return fmt.Errorf("%w: %d insertions", store.ErrInvalid, len(list))
	}
	docs, keys := make([]document, len(list)), make([]string, 0, len(list))
	for i := range list {
		list[i].Outcome, list[i].Stripped = store.Unknown, ""
		one := list[i].Copy
		d := json.NewDecoder(bytes.NewReader(one.Data))
		d.DisallowUnknownFields()
		if err := d.Decode(&docs[i]); err != nil || docs[i].key() != one.Key || slices.Contains(keys, one.Key) {
			return fmt.Errorf("%w: insertion %d, of %s: it is no copy of that, or the second one (%w)", store.ErrInvalid, i,
				one.Key, cmp.Or(err, store.ErrInvalid))
		}
		keys = append(keys, one.Key)
	}
	after := make([]store.Outcome, len(list))
	c := Call{Method: "Insert", Namespace: namespace, Query: store.Query{Target: t}, Paths: keys}
	err := s.do(ctx, c, func() error {
		size := 0
		for i, d := range docs {
			if size += len(list[i].Data); size > s.copyBytes() && i > 0 {
				break
			}
			if after[i] = store.Kept; s.copyOf(d.Kind, namespace, keys[i]).Data != nil {
				continue
			}
			after[i] = store.Inserted
			s.insert(t, namespace, d, list[i])
			store.Bill(ctx, store.Operations{Writes: 1})
		}
		return nil
	})
	if err != nil {
		return err // also if it took effect: nobody was told
	}
	for i := range list {
		list[i].Outcome = after[i]
	}
	return nil
}

func (s *Store) insert(t store.Target, namespace string, d document, one store.Insertion) {
	if d.Entity == nil {
		s.putBelow(above{d.Kind, namespace, d.Key}, Kin{Path: d.Path, Property: d.Property})
	} else {
		e := *d.Entity
		if !one.AsIs && d.Kind == t.Kind {
			e.Expiry = one.To
		}
		s.set(place{d.Kind, namespace}, d.Key, e)
	}
	s.writes++
}

// belowKeys returns the whole keys of paths below an entity.
func belowKeys(key string, paths []string) (keys []string) {
	for _, path := range paths {
		keys = append(keys, strings.Join([]string{key, path}, "/"))
	}
	return keys
}
