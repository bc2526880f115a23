package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// A db is the store's own state. Its methods take effect at one instant, under the
// world's lock. It keeps its index apart from the rows, with what stood there some
// seconds ago.
type db struct {
	mode    string
	lag     time.Duration
	rows    map[place]map[string]*row
	index   map[place][]*indexed // in order, also with what stood there some seconds ago
	records map[store.RecordSort]map[string]store.Record
	dropped map[string][]gap // by kind
	version int64
}

type place struct{ kind, namespace string }

// A row is an entity.
type row struct {
	key, data string
	expiry    store.Value
	element   string // of a list, as the index shows it
	shard     store.Value
	version   int64
	entry     *indexed
}

// An indexed is what the index showed of an entity, for a while.
type indexed struct {
	key          string
	value, shard store.Value
	list         bool // value is an element of a list
	version      int64
	from, to     time.Time // to is zero while it is there
}

type gap struct{ from, to string } // a span of the index that was dropped

func newDB(mode string, lag time.Duration) *db {
	return &db{mode: mode, lag: lag, rows: map[place]map[string]*row{}, index: map[place][]*indexed{},
		records: map[store.RecordSort]map[string]store.Record{}, dropped: map[string][]gap{}}
}

// keyOf returns the canonical text of the key of an entity with a name.
func keyOf(name string) string { return strconv.Quote(name) }

func (d *db) get(at place, key string) *row { return d.rows[at][key] }

// put writes a whole entity. Into what was dropped it writes nothing.
func (d *db) put(at place, r row, now time.Time) error {
	if err := d.refuse(at.kind, r.expiry); err != nil {
		return err
	}
	if d.rows[at] == nil {
		d.rows[at] = map[string]*row{}
	}
	d.remove(at, r.key, now)
	d.enter(at, &r, now)
	d.rows[at][r.key] = &r
	return nil
}

func (d *db) refuse(kind string, v store.Value) error {
	for _, g := range d.dropped[kind] {
		if v.Type == store.Text && v.Text >= g.from && v.Text < g.to {
			return fmt.Errorf("%q lies in a span that was dropped: %w", v.Text, store.ErrInvalid)
		}
	}
	return nil
}

// enter gives a row its version and its place in the index.
func (d *db) enter(at place, r *row, now time.Time) {
	d.version++
	r.version = d.version
	e := &indexed{key: r.key, value: r.expiry, shard: r.shard, version: r.version, from: now}
	if r.expiry.Type == store.List {
		e.value, e.list = store.TextValue(r.element), true
	}
	r.entry = e
	if e.value.Type != store.Missing {
		list := d.index[at]
		i, _ := slices.BinarySearchFunc(list, e, func(a, b *indexed) int { return cmp.Or(a.compare(b), -1) })
		d.index[at] = slices.Insert(list, i, e)
	}
}

// compare orders entries as the index does: those of one type by value and key.
func (e *indexed) compare(f *indexed) int {
	return cmp.Or(cmp.Compare(e.value.Type, f.value.Type), e.value.Compare(f.value), strings.Compare(e.key, f.key))
}

// leave takes a row out of the index.
func (d *db) leave(at place, r *row, now time.Time) {
	r.entry.to = now
	d.index[at] = slices.DeleteFunc(d.index[at], func(e *indexed) bool {
		return !e.to.IsZero() && (d.lag == 0 || e.to.Before(now.Add(-d.lag)))
	})
}

func (d *db) remove(at place, key string, now time.Time) {
	if r := d.rows[at][key]; r != nil {
		d.leave(at, r, now)
		delete(d.rows[at], key)
	}
}

// carry changes the expiry of a row and nothing else.
func (d *db) carry(at place, r *row, to store.Value, now time.Time) {
	d.leave(at, r, now)
	r.expiry = to
	d.enter(at, r, now)
}

// before reports whether an entry lies before a position, or at it.
func before(v store.Value, key string, p store.Position) bool {
	if c := v.Compare(p.Value); c != 0 {
		return c < 0
	}
	return p.Key != "" && key <= p.Key
}

// scan reads the index as it was at an instant.
func (d *db) scan(q store.Query, at time.Time) (list []store.Entry, more bool) {
	index, wanted := d.index[place{q.Target.Kind, q.Namespace}], q.Target.Type
	first := sort.Search(len(index), func(i int) bool {
		e := index[i]
		return e.value.Type > wanted || e.value.Type == wanted && e.value.Compare(q.Lo) >= 0 &&
			!before(e.value, e.key, q.After)
	})
	for _, e := range index[first:] {
		if e.value.Type != wanted || e.value.Compare(q.Hi) > 0 {
			break
		}
		if e.from.After(at) || !e.to.IsZero() && !e.to.After(at) || q.Target.ShardProperty != "" && e.shard != q.Shard ||
			isHidden(q.Target.Property, e.key) {
			continue
		}
		if len(list) == q.Limit {
			return list, true
		}
		entry := store.Entry{Key: e.key, Value: e.value, Ref: e.version}
		if e.list && (d.mode == embedded || d.mode == native) {
			entry.Value, entry.At = store.Value{Type: store.List, Text: "[]"}, e.value
		}
		list = append(list, entry)
	}
	return list, false
}

// A settled is what became of one op.
type settled struct {
	outcome store.Outcome
	now     store.Value
	known   bool
}

// dispose does one op, if the entity is as it was scanned.
func (d *db) dispose(at place, op store.Op, dry bool, now time.Time) settled {
	r := d.get(at, op.Entry.Key)
	carry := op.To.Type != store.Missing
	switch {
	case r == nil:
		return settled{outcome: store.Gone}
	case carry && r.expiry == op.To:
		return settled{outcome: store.Carried}
	case !d.unchanged(r, op):
		return settled{store.Changed, r.expiry, d.mode != native}
	case carry && !dry:
		d.carry(at, r, op.To, now)
	case !dry:
		d.remove(at, r.key, now)
	}
	if carry {
		return settled{outcome: store.Carried}
	}
	return settled{outcome: store.Deleted}
}

// unchanged is the condition of a write.
func (d *db) unchanged(r *row, op store.Op) bool {
	if d.mode == native {
		return r.version == op.Entry.Ref
	}
	return r.expiry == op.Entry.Value
}

// drop forgets a span where nothing well-formed is left.
func (d *db) drop(kind, from, to string) error {
	for at := range d.rows {
		for _, r := range d.rows[at] {
			if at.kind != kind || r.expiry.Type != store.Text || r.expiry.Text < from || r.expiry.Text >= to {
				continue
			}
			if _, err := expirykey.Parse(r.expiry.Text); err == nil {
				return fmt.Errorf("%s is in the span: %w", r.key, store.ErrConflict)
			}
		}
	}
	d.dropped[kind] = append(d.dropped[kind], gap{from, to})
	return nil
}

// save is compare-and-set. It reports whether anything changed.
func (d *db) save(r store.Record, prev string) (bool, error) {
	old, ok := d.records[r.Sort][r.Key]
	switch {
	case ok && old.Revision == r.Revision, !ok && r.Fields == nil:
		return false, nil
	case old.Revision != prev:
		return false, fmt.Errorf("record %s has revision %q, not %q: %w", r.Key, old.Revision, prev, store.ErrConflict)
	case r.Fields == nil:
		delete(d.records[r.Sort], r.Key)
		return true, nil
	}
	if d.records[r.Sort] == nil {
		d.records[r.Sort] = map[string]store.Record{}
	}
	d.records[r.Sort][r.Key] = r
	return true, nil
}

func (d *db) load(q store.RecordQuery) (got store.Records) {
	records := d.records[q.Sort]
	var keys []string
	if len(q.Keys) == 0 {
		for key := range records {
			if key > q.After && (q.Before == "" || key < q.Before) {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
	}
	got.List, got.More = modelstore.Answer(records, keys, q)
	return got
}

// count counts what carries the property, in a span, up to a bound if that is more
// than zero.
func (d *db) count(t store.Target, namespace string, s store.Span, upTo int64) (n int64) {
	for _, e := range d.index[place{t.Kind, namespace}] {
		if !e.to.IsZero() || t.ShardProperty != "" && e.shard.Type == store.Missing || isHidden(t.Property, e.key) {
			continue
		}
		if behind(s.From, e) && (s.To == (store.Point{}) || !behind(s.To, e)) {
			if n++; n == upTo {
				break
			}
		}
	}
	return n
}

// behind reports whether an entry lies behind a point.
func behind(p store.Point, e *indexed) bool {
	if p == (store.Point{}) {
		return true
	}
	c := compare(e.shard, p.Shard)
	if c == 0 && p.Value.Type != store.Missing {
		c = compare(e.value, p.Value)
	}
	return c > 0 || c == 0 && !p.After
}

// compare orders values of any type as the stores do.
func compare(a, b store.Value) int {
	rank := [...]int{store.Missing: 0, store.Other: 1, store.Instant: 2, store.Text: 3, store.List: 4}
	if m, ok := a.Integer(); ok && a.Type == b.Type {
		n, _ := b.Integer()
		return cmp.Compare(m, n)
	}
	return cmp.Or(cmp.Compare(rank[a.Type], rank[b.Type]), a.Compare(b))
}

func (d *db) namespaces() []string {
	seen := map[string]bool{}
	for at, rows := range d.rows {
		if len(rows) > 0 {
			seen[at.namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
