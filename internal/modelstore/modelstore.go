// Package modelstore is a store in memory for tests of what works on stores:
// simple enough to be right by inspection, with a hook before and after every
// call for faults, races and traces. It is no database: nothing is durable.
//
// The invariant is that each call takes effect at one instant, under one lock,
// between its Before and its After hook.
package modelstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Call is what a hook is told about.
type Call struct {
	Method    string // Scan, Dispose, Settle, Load or Save
	Namespace string
	Query     store.Query  // of Scan, Dispose and Settle
	Ops       []store.Op   // of Dispose
	Record    store.Record // of Save
}

// A Store is a store in memory. Set the hooks before using it from several
// goroutines.
type Store struct {
	Now func() time.Time
	// Before may fail the call before it took effect, After after it did.
	Before, After func(context.Context, Call) error

	mu      sync.Mutex
	rows    map[place]map[string]store.Entity // by target kind and namespace, then by key
	records map[store.RecordSort]map[string]store.Record
	writes  int
}

type place struct{ kind, namespace string }

// New returns an empty store that goes by the given clock.
func New(now func() time.Time) *Store {
	return &Store{Now: now, rows: map[place]map[string]store.Entity{}, records: map[store.RecordSort]map[string]store.Record{}}
}

// Writes returns how many calls changed anything so far.
func (s *Store) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Key returns the canonical text of an entity's key.
func Key(e store.Entity) string {
	if e.Name != "" {
		return strconv.Quote(e.Name)
	}
	return strconv.FormatInt(e.Number, 10)
}

// do runs f between the hooks, under the lock.
func (s *Store) do(ctx context.Context, c Call, f func() error) error {
	if s.Before != nil {
		if err := s.Before(ctx, c); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	err := f()
	s.mu.Unlock()
	if err == nil && s.After != nil {
		err = s.After(ctx, c)
	}
	return err
}

// Entities returns a copy of what is in a kind and namespace, by key.
func (s *Store) Entities(kind, namespace string) map[string]store.Entity {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]store.Entity{}
	for k, e := range s.rows[place{kind, namespace}] {
		all[k] = e
	}
	return all
}

// Put writes entities.
func (s *Store) Put(_ context.Context, t store.Target, namespace string, entities []store.Entity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := place{t.Kind, namespace}
	if s.rows[at] == nil {
		s.rows[at] = map[string]store.Entity{}
	}
	for _, e := range entities {
		s.rows[at][Key(e)] = e
	}
	s.writes++
	return nil
}

// Remove deletes one entity, as its application would.
func (s *Store) Remove(kind, namespace, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows[place{kind, namespace}], key)
	s.writes++
}

// Count implements store.Counter for text values; others lie below all text.
func (s *Store) Count(_ context.Context, t store.Target, namespace string, span store.Span) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.rows[place{t.Kind, namespace}] {
		switch e.Expiry.Type {
		case store.Missing:
		case store.Text:
			if e.Expiry.Text >= span.From.Value.Text && (span.To == (store.Point{}) || e.Expiry.Text < span.To.Value.Text) {
				n++
			}
		default:
			if span.From == (store.Point{}) {
				n++
			}
		}
	}
	return n, nil
}

// Holds implements store.Counter.
func (s *Store) Holds(_ context.Context, t store.Target, namespace string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows[place{t.Kind, namespace}]) > 0, nil
}

func before(v store.Value, k string, p store.Position) bool {
	if v.Text != p.Value.Text {
		return v.Text < p.Value.Text
	}
	return p.Key != "" && k <= p.Key
}

// Scan implements store.Store, for text values.
func (s *Store) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	return s.do(ctx, Call{Method: "Scan", Namespace: q.Namespace, Query: q}, func() error {
		page.Entries, page.Next, page.SteppedOver = page.Entries[:0], nil, 0
		for k, e := range s.rows[place{q.Target.Kind, q.Namespace}] {
			v := e.Expiry
			if v.Type == store.Text && v.Text >= q.Lo.Text && v.Text <= q.Hi.Text && !before(v, k, q.After) {
				page.Entries = append(page.Entries, store.Entry{Key: k, Value: v})
			}
		}
		slices.SortFunc(page.Entries, func(a, b store.Entry) int {
			return cmp.Or(cmp.Compare(a.Value.Text, b.Value.Text), cmp.Compare(a.Key, b.Key))
		})
		page.More = len(page.Entries) > q.Limit
		page.Entries = page.Entries[:min(q.Limit, len(page.Entries))]
		store.Bill(ctx, store.Operations{Reads: 1})
		return nil
	})
}

// Dispose implements store.Store.
func (s *Store) Dispose(ctx context.Context, b *store.Batch) error {
	c := Call{Method: "Dispose", Namespace: b.Query.Namespace, Query: b.Query, Ops: b.Ops}
	var after []store.Outcome
	err := s.do(ctx, c, func() error {
		rows := s.rows[place{b.Query.Target.Kind, b.Query.Namespace}]
		for i := range b.Ops {
			op := &b.Ops[i]
			e, ok := rows[op.Entry.Key]
			switch {
			case !ok:
				after = append(after, store.Gone)
			case e.Expiry != op.Entry.Value:
				op.Now, op.Known = e.Expiry, true
				after = append(after, store.Changed)
			default:
				after = append(after, store.Deleted)
				if !b.DryRun {
					delete(rows, op.Entry.Key)
					s.writes++
					store.Bill(ctx, store.Operations{Deletes: 1})
				}
			}
		}
		return nil
	})
	if err != nil {
		return err // also where it took effect: nobody was told
	}
	for i := range b.Ops {
		b.Ops[i].Outcome = after[i]
	}
	return nil
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (o store.Outcome, err error) {
	err = s.do(ctx, Call{Method: "Settle", Namespace: q.Namespace, Query: q, Ops: []store.Op{{Entry: e}}}, func() error {
		rows := s.rows[place{q.Target.Kind, q.Namespace}]
		now, ok := rows[e.Key]
		switch {
		case !ok:
			o = store.Gone
		case decide(now.Expiry) == store.Delete:
			o = store.Deleted
			delete(rows, e.Key)
			s.writes++
		default:
			o = store.Kept
		}
		return nil
	})
	if err != nil {
		o = store.Unknown
	}
	return o, err
}

// Load implements store.Store.
func (s *Store) Load(ctx context.Context, sort store.RecordSort, target string) (got store.Records, err error) {
	err = s.do(ctx, Call{Method: "Load"}, func() error {
		for _, r := range s.records[sort] {
			if r.Target == target {
				got.List = append(got.List, r)
			}
		}
		slices.SortFunc(got.List, func(a, b store.Record) int { return cmp.Compare(a.Key, b.Key) })
		got.Now = s.Now().UTC().Round(0)
		store.Bill(ctx, store.Operations{Reads: 1})
		return nil
	})
	return got, err
}

// Save implements store.Store.
func (s *Store) Save(ctx context.Context, r store.Record, prev string) error {
	return s.do(ctx, Call{Method: "Save", Record: r}, func() error {
		if s.records[r.Sort] == nil {
			s.records[r.Sort] = map[string]store.Record{}
		}
		old, ok := s.records[r.Sort][r.Key]
		switch {
		case ok && old.Revision == r.Revision:
			return nil
		case !ok && r.Fields == nil:
			return nil
		case old.Revision != prev:
			return fmt.Errorf("record %s has revision %q, not %q: %w", r.Key, old.Revision, prev, store.ErrConflict)
		case r.Fields == nil:
			delete(s.records[r.Sort], r.Key)
		default:
			s.records[r.Sort][r.Key] = r
		}
		s.writes++
		store.Bill(ctx, store.Operations{Writes: 1})
		return nil
	})
}
