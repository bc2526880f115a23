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
	"iter"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Call is what a hook is told about.
type Call struct {
	// Method is Scan, Dispose, Settle, Descendants, DeleteBelow, Lineage, Claim, DeleteOrphans, Load, Save,
	// Walk, Look, Restamp, Fetch or Insert.
	Method    string
	Namespace string
	Query     store.Query           // of Scan, Dispose and Settle
	Ops       []store.Op            // of Dispose
	Below     store.DescendantQuery // of Descendants
	Paths     []string              // of DeleteBelow; keys of DeleteOrphans, Fetch and Insert
	Restamps  []store.RestampOp     // of Restamp
	Record    store.Record          // of Save; of Load the sort alone
	Records   store.RecordQuery     // of Load
}

// A Store is a store in memory. Set the hooks before using it from several
// goroutines.
type Store struct {
	Now func() time.Time
	// Before may fail the call before it took effect, After after it did.
	Before, After func(context.Context, Call) error
	// Indexed is a property in the data that scans may read, too, if it is not empty: its texts.
	Indexed string
	// CopyBytes is about how many bytes of copies one call reads or writes; zero means store.CopyBytes.
	CopyBytes int

	mu      sync.Mutex
	rows    map[place]map[string]store.Entity  // by target kind and namespace, then by key
	shards  map[place]map[string][]store.Entry // by first bytes of values, in order: a scan need not read all
	records map[store.RecordSort]map[string]store.Record
	order   map[store.RecordSort][]string // their keys in order; nil where that is not known
	stamps  map[place]map[string]stamp    // also of entities that are gone
	kin     map[above][]Kin               // in the order of their paths
	writes  int
	walks   int
	written int // the last revision
}

type place struct{ kind, namespace string }

// New returns an empty store that goes by the given clock.
func New(now func() time.Time) *Store {
	return &Store{
		Now: now, rows: map[place]map[string]store.Entity{}, shards: map[place]map[string][]store.Entry{},
		records: map[store.RecordSort]map[string]store.Record{}, order: map[store.RecordSort][]string{},
		stamps: map[place]map[string]stamp{},
	}
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

// Key implements store.Keyer.
func (s *Store) Key(_ store.Target, _ string, e store.Entity) (string, error) { return Key(e), nil }

// ID implements store.Keyer.
func (s *Store) ID(key string) (string, error) {
	if strings.HasPrefix(key, `"`) {
		return strconv.Unquote(key)
	}
	return key, nil
}

// do runs f between the hooks, under the lock.
func (s *Store) do(ctx context.Context, c Call, f func() error) error {
	if err := s.begin(ctx, c); err != nil {
		return err
	}
	return s.finish(ctx, c, f)
}

// begin is what a call does before it takes effect.
func (s *Store) begin(ctx context.Context, c Call) error {
	if s.Before != nil {
		if err := s.Before(ctx, c); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// finish runs f under the lock, and the hook behind it.
func (s *Store) finish(ctx context.Context, c Call, f func() error) error {
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
	if rows := s.rows[place{kind, namespace}]; rows != nil {
		return maps.Clone(rows)
	}
	return map[string]store.Entity{}
}

// Put writes entities.
func (s *Store) Put(_ context.Context, t store.Target, namespace string, entities []store.Entity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := place{t.Kind, namespace}
	for _, e := range entities {
		s.set(at, Key(e), e)
	}
	s.writes++
	return nil
}

// Remove deletes one entity, as its application would.
func (s *Store) Remove(kind, namespace, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(place{kind, namespace}, key)
	s.writes++
}

// shardBytes is how much of an expiry key says in which range it lies.
const shardBytes = len("00000001.0000")

func shardOf(v store.Value) string { return v.Text[:min(len(v.Text), shardBytes)] }

func (s *Store) set(at place, key string, e store.Entity) {
	if s.stamps[at] == nil {
		s.stamps[at] = map[string]stamp{}
	}
	s.written++
	now := s.Now().UTC().Round(0)
	st := stamp{created: now, updated: now, revision: s.written}
	if _, replaced := s.rows[at][key]; replaced {
		st.created = s.stamps[at][key].created
	}
	s.stamps[at][key] = st
	s.remove(at, key)
	if s.rows[at] == nil {
		s.rows[at] = map[string]store.Entity{}
	}
	s.rows[at][key] = e
	if s.shards[at] == nil {
		s.shards[at] = map[string][]store.Entry{}
	}
	shard, entry := shardOf(e.Expiry), store.Entry{Key: key, Value: e.Expiry, Written: s.Now()}
	i, _ := slices.BinarySearchFunc(s.shards[at][shard], entry, inOrder)
	s.shards[at][shard] = slices.Insert(s.shards[at][shard], i, entry)
}

// inOrder compares entries as an index does.
func inOrder(a, b store.Entry) int {
	return cmp.Or(a.Value.Compare(b.Value), cmp.Compare(a.Key, b.Key))
}

func (s *Store) remove(at place, key string) {
	if e, ok := s.rows[at][key]; ok {
		shard := shardOf(e.Expiry)
		list := s.shards[at][shard]
		if i, _ := slices.BinarySearchFunc(list, store.Entry{Key: key, Value: e.Expiry}, inOrder); i == 0 {
			s.shards[at][shard] = list[1:] // the usual case: nothing need be moved
		} else {
			s.shards[at][shard] = slices.Delete(list, i, i+1)
		}
		delete(s.rows[at], key)
	}
}

// between yields the entries from a query's start on, in order: those that it may show,
// and perhaps others.
func (s *Store) between(q store.Query) iter.Seq[store.Entry] {
	lo, hi, shards := shardOf(q.Lo), shardOf(q.Hi), s.shards[place{q.Target.Kind, q.Namespace}]
	names := []string{lo} // of instants, too: they have no text
	if lo != hi {
		names = slices.Sorted(maps.Keys(shards))
	}
	return func(yield func(store.Entry) bool) {
		for _, name := range names {
			if name < lo || name > hi {
				continue
			}
			from := sort.Search(len(shards[name]), func(i int) bool {
				e := shards[name][i]
				return e.Value.Compare(q.Lo) >= 0 && !before(e.Value, e.Key, q.After)
			})
			for _, e := range shards[name][from:] {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// Count implements store.Counter.
func (s *Store) Count(
	_ context.Context, t store.Target, namespace string, span store.Span, upTo int64,
) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.rows[place{t.Kind, namespace}] {
		if e.Expiry.Type == store.Missing || t.ShardProperty != "" && e.Shard.Type == store.Missing {
			continue
		}
		if !behind(span.From, e) || span.To != (store.Point{}) && behind(span.To, e) {
			continue
		}
		if n++; n == upTo {
			break
		}
	}
	return n, nil
}

// behind reports whether the entity's entry lies behind the point.
func behind(p store.Point, e store.Entity) bool {
	c := compare(e.Shard, p.Shard)
	if c == 0 && p.Value.Type != store.Missing {
		c = compare(e.Expiry, p.Value)
	} else if c == 0 && p == (store.Point{}) {
		return true
	}
	return c > 0 || c == 0 && !p.After
}

// compare orders values of any type as the stores do: all else, then instants,
// then texts.
func compare(a, b store.Value) int {
	rank := map[store.Type]int{store.Other: 1, store.Instant: 2, store.Text: 3, store.List: 4}
	if m, ok := a.Integer(); ok && a.Type == b.Type {
		n, _ := b.Integer()
		return cmp.Compare(m, n)
	}
	return cmp.Or(cmp.Compare(rank[a.Type], rank[b.Type]), a.Compare(b))
}

// Holds implements store.Counter.
func (s *Store) Holds(_ context.Context, t store.Target, namespace string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows[place{t.Kind, namespace}]) > 0, nil
}

func before(v store.Value, k string, p store.Position) bool {
	if c := v.Compare(p.Value); c != 0 {
		return c < 0
	}
	return p.Key != "" && k <= p.Key
}

// Scan implements store.Store.
func (s *Store) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	return s.do(ctx, Call{Method: "Scan", Namespace: q.Namespace, Query: q}, func() error {
		page.Entries, page.Next, page.SteppedOver = page.Entries[:0], nil, 0
		rows := s.rows[place{q.Target.Kind, q.Namespace}]
		entries := s.between(q)
		if s.Indexed != "" && q.Target.Property == s.Indexed {
			entries = s.indexed(q)
		}
		for e := range entries {
			if e.Value.Type != q.Target.Type { // it says nothing of what comes after it
				continue
			}
			if e.Value.Compare(q.Hi) > 0 || len(page.Entries) > q.Limit {
				break
			}
			if q.Target.ShardProperty == "" || rows[e.Key].Shard == q.Shard {
				page.Entries = append(page.Entries, e)
			}
		}
		page.More = len(page.Entries) > q.Limit
		page.Entries = page.Entries[:min(q.Limit, len(page.Entries))]
		store.Bill(ctx, store.Operations{Reads: 1})
		return nil
	})
}

// Dispose implements store.Store.
func (s *Store) Dispose(ctx context.Context, b *store.Batch) error {
	c := Call{Method: "Dispose", Namespace: b.Query.Namespace, Query: b.Query, Ops: b.Ops}
	archive := b.Query.Archive
	if b.DryRun {
		archive = nil
	}
	var after []store.Outcome
	left := map[int]bool{} // for another call
	about := func() ([]store.Copy, error) { return s.toDispose(b, left), nil }
	err := s.doKept(ctx, c, archive, about, func(k kept) error {
		for i := range b.Ops {
			op := &b.Ops[i]
			o := store.Unknown
			if !left[i] {
				o = s.disposeOf(ctx, b, op, k)
			}
			after = append(after, o)
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

// judge returns what becomes of an op as the entity is now.
func (s *Store) judge(b *store.Batch, op *store.Op) (o store.Outcome, now store.Entity) {
	e, ok := s.rows[place{b.Query.Target.Kind, b.Query.Namespace}][op.Entry.Key]
	switch {
	case !ok:
		return store.Gone, e
	case e.Expiry != op.Entry.Value || !op.Premise.Holds(source(e, op.Premise.Property)):
		return store.Changed, e
	case op.IsCarry():
		return store.Carried, e
	}
	return store.Deleted, e
}

// toDispose returns copies of what a batch deletes, and sets those that are left for another call.
func (s *Store) toDispose(b *store.Batch, left map[int]bool) (list []store.Copy) {
	size := 0
	for i := range b.Ops {
		if o, _ := s.judge(b, &b.Ops[i]); o != store.Deleted {
			continue
		}
		one := s.copyOf(b.Query.Target.Kind, b.Query.Namespace, b.Ops[i].Entry.Key)
		if left[i] = size > 0 && size+len(one.Data) > s.copyBytes(); !left[i] {
			size += len(one.Data)
			list = append(list, one)
		}
	}
	return list
}

// disposeOf does what one op asks for.
func (s *Store) disposeOf(ctx context.Context, b *store.Batch, op *store.Op, k kept) store.Outcome {
	at, key := place{b.Query.Target.Kind, b.Query.Namespace}, op.Entry.Key
	op.Now, op.Known = store.Value{}, false
	o, e := s.judge(b, op)
	if o == store.Deleted && !s.has(k, at.kind, at.namespace, key) {
		o = store.Changed
	}
	switch {
	case o == store.Changed:
		op.Now, op.Known = e.Expiry, true
	case b.DryRun:
	case o == store.Carried:
		e.Expiry = op.To
		s.set(at, key, e)
		s.writes++
		store.Bill(ctx, store.Operations{Writes: 1})
	case o == store.Deleted:
		s.remove(at, key)
		s.writes++
		store.Bill(ctx, store.Operations{Deletes: 1})
	}
	return o
}

// Settle implements store.Store.
func (s *Store) Settle(
	ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
) (o store.Outcome, err error) {
	c := Call{Method: "Settle", Namespace: q.Namespace, Query: q, Ops: []store.Op{{Entry: e}}}
	at := place{q.Target.Kind, q.Namespace}
	about := func() (list []store.Copy, err error) {
		if now, ok := s.rows[at][e.Key]; ok && decide(now.Expiry) == store.Delete {
			list = append(list, s.copyOf(at.kind, at.namespace, e.Key))
		}
		return list, nil
	}
	err = s.doKept(ctx, c, q.Archive, about, func(k kept) error {
		now, ok := s.rows[at][e.Key]
		if !ok {
			o = store.Gone
			return nil
		}
		verdict := decide(now.Expiry)
		switch to, carry := verdict.To(); {
		case carry:
			now.Expiry, o = to, store.Carried
			s.set(at, e.Key, now)
			s.writes++
		case verdict == store.Delete && !s.has(k, at.kind, at.namespace, e.Key):
			return errNotKept
		case verdict == store.Delete:
			o = store.Deleted
			s.remove(at, e.Key)
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
func (s *Store) Load(ctx context.Context, q store.RecordQuery) (got store.Records, err error) {
	err = s.do(ctx, Call{Method: "Load", Record: store.Record{Sort: q.Sort}, Records: q}, func() error {
		if err := q.Check(); err != nil {
			return err
		}
		got.List, got.More = Answer(s.records[q.Sort], s.keysOf(q.Sort), q)
		got.Now = s.Now().UTC().Round(0)
		store.Bill(ctx, store.Operations{Reads: int64(max(1, len(got.List), len(q.Keys)))})
		return nil
	})
	return got, err
}

// keysOf returns the keys of the records of one sort, in order.
func (s *Store) keysOf(sort store.RecordSort) []string {
	if s.order[sort] == nil {
		s.order[sort] = slices.Sorted(maps.Keys(s.records[sort]))
	}
	return s.order[sort]
}

// Answer returns what a store with these records, and their keys in order, answers to
// a query.
func Answer(records map[string]store.Record, keys []string, q store.RecordQuery) (list []store.Record, more bool) {
	add := func(key string) {
		if r, ok := records[key]; ok && r.Target == q.Target {
			list = append(list, r)
		}
	}
	if len(q.Keys) > 0 {
		for _, key := range slices.Sorted(slices.Values(q.Keys)) {
			add(key)
		}
		return list, false
	}
	from, found := slices.BinarySearch(keys, q.After)
	if found {
		from++
	}
	for _, key := range keys[from:] {
		switch {
		case q.Before != "" && key >= q.Before:
			return list, false
		case len(list) == q.Most():
			return list, true
		}
		add(key)
	}
	return list, false
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
			delete(s.order, r.Sort)
		default:
			s.records[r.Sort][r.Key] = r
			if !ok {
				delete(s.order, r.Sort)
			}
		}
		s.writes++
		store.Bill(ctx, store.Operations{Writes: 1})
		return nil
	})
}
