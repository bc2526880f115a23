package cursor

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Table holds the cursors of one target as they were read. It is immutable, and the
// zero Table is empty. The cost of a change grows with the number of recent changes, not
// with the size of the table.
type Table struct {
	all  map[ID]Packed    // shared by the tables that were made of one another
	gone map[ID]time.Time // that had no record, and when that read was sent; shared likewise
	late map[ID]*lateRead // read since: goes before all
}

// A lateRead is what a later read has shown of one range.
type lateRead struct {
	Cursor
	gone bool // there is no record; only ID and Sent are set
}

// NewTable returns a table of these cursors.
func NewTable(cursors ...Cursor) Table {
	t := Table{all: make(map[ID]Packed, len(cursors))}
	var last *shared
	for _, c := range cursors {
		last = t.add(c, last)
	}
	return t
}

// add adds a cursor to a table that is still being built. It returns the part that the next
// cursor may share.
func (t Table) add(c Cursor, last *shared) *shared {
	p := pack(c, last)
	t.all[c.ID] = p
	return p.shared
}

// At returns the cursor of a range as its record has it.
func (t Table) At(id ID) (c Cursor, ok bool) {
	if late, ok := t.late[id]; ok {
		if late.gone {
			return Cursor{}, false
		}
		return late.Cursor, true
	}
	if p, ok := t.all[id]; ok {
		return p.Cursor(id), true
	}
	return Cursor{}, false
}

// Has reports whether a range has a record.
func (t Table) Has(id ID) bool {
	if late, ok := t.late[id]; ok {
		return !late.gone
	}
	_, ok := t.all[id]
	return ok
}

// Sent returns when the last read that covered a range's record was sent, even if it found
// no record. It is zero if the table does not know.
func (t Table) Sent(id ID) time.Time {
	if late, ok := t.late[id]; ok {
		return late.Sent
	}
	if p, ok := t.all[id]; ok {
		return p.shared.sent
	}
	return t.gone[id]
}

// Get returns the cursor of a range in the given scope, or a new one. See
// [Cursor.In].
func (t Table) Get(id ID, scope Scope, values store.Type) Cursor {
	c, ok := t.At(id)
	if !ok {
		return Cursor{ID: id, Scope: scope}
	}
	c.adjust(scope, values)
	return c
}

// IDs yields the ranges that have a cursor, in no order.
func (t Table) IDs() iter.Seq[ID] {
	return func(yield func(ID) bool) {
		for id, c := range t.late {
			if !c.gone && !yield(id) {
				return
			}
		}
		for id := range t.all {
			if _, newer := t.late[id]; !newer && !yield(id) {
				return
			}
		}
	}
}

// All yields the cursors of the table, in no order.
func (t Table) All() iter.Seq2[ID, Cursor] {
	return func(yield func(ID, Cursor) bool) {
		for id := range t.IDs() {
			if c, _ := t.At(id); !yield(id, c) {
				return
			}
		}
	}
}

// Len returns how many cursors there are.
func (t Table) Len() int {
	n := len(t.all)
	for id, c := range t.late {
		_, had := t.all[id]
		switch {
		case had && c.gone:
			n--
		case !had && !c.gone:
			n++
		}
	}
	return n
}

// Changes are what a read of some records has shown.
type Changes struct {
	Read []Cursor
	Gone []ID      // have no record
	Sent time.Time // when the read was sent, on this process's clock
}

// With returns the table with what a read of some records has shown. Cursors in the table
// that come from a later read stay.
func (t Table) With(ch Changes) Table {
	list := make([]*lateRead, 0, len(ch.Read)+len(ch.Gone))
	for _, c := range ch.Read {
		list = append(list, &lateRead{Cursor: c})
	}
	for _, id := range ch.Gone {
		list = append(list, &lateRead{Cursor: Cursor{ID: id, Sent: ch.Sent}, gone: true})
	}
	return t.with(list)
}

func (t Table) with(list []*lateRead) Table {
	const few = 256
	late := maps.Clone(t.late)
	if late == nil {
		late = make(map[ID]*lateRead, len(list))
	}
	for _, c := range list {
		if !c.Sent.Before(t.Sent(c.ID)) {
			late[c.ID] = c
		}
	}
	if len(late) <= few+len(t.all)/64 {
		return Table{all: t.all, gone: t.gone, late: late}
	}
	return t.merge(late)
}

// merge returns a table in which nothing is late any more. It goes on to know which records
// were gone: else an earlier read that is answered later would bring them back.
func (t Table) merge(late map[ID]*lateRead) Table {
	merged := Table{all: maps.Clone(t.all), gone: maps.Clone(t.gone)}
	if merged.all == nil {
		merged.all = make(map[ID]Packed, len(late))
	}
	if merged.gone == nil {
		merged.gone = map[ID]time.Time{}
	}
	var last *shared
	for id, c := range late {
		if c.gone {
			delete(merged.all, id)
			merged.gone[id] = c.Sent
		} else {
			last = merged.add(c.Cursor, last)
			delete(merged.gone, id)
		}
	}
	return merged
}

// Newer returns this table, whose read began at an instant, with those cursors of the other
// table that were read later.
func (t Table) Newer(other Table, began time.Time) Table {
	var list []*lateRead
	for _, c := range other.late {
		if c.Sent.After(began) { // else this table has what became of it, be it that the record is gone
			list = append(list, c)
		}
	}
	for id, p := range other.all {
		if _, newer := other.late[id]; !newer && p.shared.sent.After(began) {
			list = append(list, &lateRead{Cursor: p.Cursor(id)})
		}
	}
	for id, at := range other.gone {
		if _, newer := other.late[id]; !newer && at.After(began) {
			list = append(list, &lateRead{Cursor: Cursor{ID: id, Sent: at}, gone: true})
		}
	}
	return t.with(list)
}

// Since returns the ranges whose cursors were read, or found gone, after an older table was
// made. ok is false if that is not known: then it may be all of them.
func (t Table) Since(old Table) (read []ID, ok bool) {
	if reflect.ValueOf(t.all).UnsafePointer() != reflect.ValueOf(old.all).UnsafePointer() {
		return nil, false
	}
	if reflect.ValueOf(t.late).UnsafePointer() == reflect.ValueOf(old.late).UnsafePointer() {
		return nil, true
	}
	for id, c := range t.late {
		if was, ok := old.late[id]; !ok || was != c {
			read = append(read, id)
		}
	}
	slices.SortFunc(read, func(a, b ID) int { return strings.Compare(a.Key(), b.Key()) })
	return read, true
}

// In returns the cursor in the given scope. If its own scope is another one, or its
// positions are not of the type of the target's values, it loses positions and marks.
func (c Cursor) In(scope Scope, values store.Type) Cursor {
	c.adjust(scope, values)
	return c
}

func (c *Cursor) adjust(scope Scope, values store.Type) {
	fits := func(p store.Position) bool { return p.Value.Type == store.Missing || p.Value.Type == values }
	if c.Scope != scope || !fits(c.Position) || !fits(c.Rewind.Position) {
		c.Scope, c.Position, c.Rewind, c.Stock, c.Swept = scope, store.Position{}, Rewind{}, Stock{}, time.Time{}
	}
}

// A Reader reads the cursor records of one target.
type Reader struct {
	Store  store.Loader
	Target string
	Now    func() time.Time // this process's clock, monotonic
}

// All reads all of them, page by page. A revision that before already has keeps the
// instant at which this process first saw it.
func (r Reader) All(ctx context.Context, before Table) (Table, error) {
	t := NewTable()
	var last *shared
	_, err := r.read(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: r.Target}, before,
		func(c Cursor) { last = t.add(c, last) })
	return t, err
}

// Generation reads those of one generation.
func (r Reader) Generation(ctx context.Context, before Table, number int) (Changes, error) {
	prefix := ID{Target: r.Target, Generation: number}.Key() // of a shard without a name
	// "~" follows every character that a shard's name has in a key.
	q := store.RecordQuery{Sort: store.CursorRecord, Target: r.Target, After: prefix, Before: prefix + "~"}
	ch, err := r.changes(ctx, q, before)
	found := ch.found()
	for id := range before.IDs() {
		if id.Generation == number && !found[id] {
			ch.Gone = append(ch.Gone, id)
		}
	}
	return ch, err
}

// Some reads those of the given ranges, at most [store.MaxRecords].
func (r Reader) Some(ctx context.Context, before Table, ids []ID) (Changes, error) {
	q := store.RecordQuery{Sort: store.CursorRecord, Target: r.Target, Keys: make([]string, len(ids))}
	for i, id := range ids {
		q.Keys[i] = id.Key()
	}
	ch, err := r.changes(ctx, q, before)
	found := ch.found()
	for _, id := range ids {
		if !found[id] {
			ch.Gone = append(ch.Gone, id)
		}
	}
	return ch, err
}

func (ch Changes) found() map[ID]bool {
	found := make(map[ID]bool, len(ch.Read))
	for i := range ch.Read {
		found[ch.Read[i].ID] = true
	}
	return found
}

func (r Reader) changes(ctx context.Context, q store.RecordQuery, before Table) (ch Changes, err error) {
	ch.Sent, err = r.read(ctx, q, before, func(c Cursor) { ch.Read = append(ch.Read, c) })
	return ch, err
}

// read reads cursors, and returns when the first read was sent.
func (r Reader) read(
	ctx context.Context, q store.RecordQuery, before Table, use func(Cursor),
) (first time.Time, err error) {
	same := sameTexts{}
	first = r.Now()
	sent := first
	err = store.LoadAll(ctx, r.Store, q, func(page store.Records) error {
		seen := r.Now()
		for _, rec := range page.List {
			c, err := decode(rec)
			if err != nil {
				return err
			}
			same.share(&c)
			c.Sent, c.Seen = sent, seen
			if old, ok := before.At(c.ID); ok && old.Revision == c.Revision {
				c.Seen = old.Seen
			}
			use(c)
		}
		sent = r.Now()
		return nil
	})
	if err != nil {
		return first, fmt.Errorf("load cursor records of %s: %w", r.Target, err)
	}
	return first, nil
}

// sameTexts lets cursors share the texts that they have in common.
type sameTexts map[string]string

func (s sameTexts) share(c *Cursor) {
	for _, text := range []*string{&c.Target, &c.Namespace, &c.Shard, &c.Kind, &c.Property, &c.Layout, &c.Throttled,
		&c.Lease.Owner} {
		if known, ok := s[*text]; ok {
			*text = known
		} else {
			s[*text] = *text
		}
	}
}
