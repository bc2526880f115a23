package modelstore

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"slices"

	"github.com/reaper-ttl/reaper/store"
)

// sorted returns the keys of a kind and namespace in order.
func (s *Store) sorted(at place) []string { return slices.Sorted(maps.Keys(s.rows[at])) }

// Splits implements store.Adopter.
func (s *Store) Splits(_ context.Context, t store.Target, namespace string, most int) (keys []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.Evenly(s.sorted(place{t.Kind, namespace}), most), nil
}

// Walk implements store.Adopter. Each second page is cut short, as the services may do.
func (s *Store) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	return s.do(ctx, Call{Method: "Walk", Namespace: q.Namespace}, func() error {
		*rows = store.Rows{}
		at := place{q.Target.Kind, q.Namespace}
		keys := s.sorted(at)
		from, found := slices.BinarySearch(keys, q.After)
		if found {
			from++
		}
		most := q.Limit
		if s.walks++; s.walks%2 == 0 {
			most = (most + 1) / 2
		}
		for _, key := range keys[from:] {
			if q.Until != "" && key > q.Until {
				break
			}
			if rows.More = len(rows.List) == most; rows.More {
				break
			}
			rows.List = append(rows.List, s.row(q, at, key))
		}
		store.Bill(ctx, store.Operations{Reads: int64(max(1, len(rows.List)))})
		return nil
	})
}

// Look implements store.Adopter.
func (s *Store) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	return s.do(ctx, Call{Method: "Look", Namespace: q.Namespace}, func() error {
		*rows = store.Rows{}
		at := place{q.Target.Kind, q.Namespace}
		for _, key := range keys {
			if _, ok := s.rows[at][key]; ok {
				rows.List = append(rows.List, s.row(q, at, key))
			}
		}
		store.Bill(ctx, store.Operations{Reads: int64(len(keys))})
		return nil
	})
}

func (s *Store) row(q store.WalkQuery, at place, key string) store.Row {
	e := s.rows[at][key]
	return store.Row{Key: key, Expiry: e.Expiry, Source: source(e, q.Source),
		Created: store.InstantValue(s.stamps[at][key].created)}
}

// source returns the value of a property in an entity's data.
func source(e store.Entity, property string) (v store.Value) {
	var data map[string]any
	if json.Unmarshal(e.Data, &data) == nil {
		switch text := data[property].(type) {
		case nil:
		case string:
			v = store.TextValue(text)
		default:
			v = store.Value{Type: store.Other, Text: "a value of another type"}
		}
	}
	return v
}

// Restamp implements store.Adopter.
func (s *Store) Restamp(ctx context.Context, b *store.Restamping) error {
	after := make([]store.RestampOp, len(b.Ops))
	err := s.do(ctx, Call{Method: "Restamp", Namespace: b.Query.Namespace, Restamps: b.Ops}, func() error {
		at := place{b.Query.Target.Kind, b.Query.Namespace}
		for i, op := range b.Ops {
			var now store.Row
			e, ok := s.rows[at][op.Row.Key]
			if ok {
				now = s.row(b.Query, at, op.Row.Key)
			}
			outcome, write := op.Judge(now, ok)
			if op.Outcome = outcome; outcome == store.RowChanged {
				op.Now = now
			}
			if write {
				e.Expiry = op.To
				s.set(at, op.Row.Key, e)
				s.writes++
				store.Bill(ctx, store.Operations{Writes: 1})
			}
			after[i] = op
		}
		return nil
	})
	if err != nil {
		return err // also if it took effect: nobody was told
	}
	copy(b.Ops, after)
	return nil
}

// indexed yields the entries of the Indexed property from a query's start on, in order.
func (s *Store) indexed(q store.Query) iter.Seq[store.Entry] {
	var list []store.Entry
	at := place{q.Target.Kind, q.Namespace}
	for key := range s.rows[at] {
		v := s.row(store.WalkQuery{Source: s.Indexed}, at, key).Source
		if v.Type == store.Text && v.Compare(q.Lo) >= 0 && !before(v, key, q.After) {
			list = append(list, store.Entry{Key: key, Value: v})
		}
	}
	slices.SortFunc(list, inOrder)
	return slices.Values(list)
}
