package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/store"
)

// ctxEvery is how many rows are read between two looks at the context.
const ctxEvery = 256

// dumpChunk is how many entities Dump reads at a time: it holds no iterator
// while its caller works.
const dumpChunk = 500

// A row is where one entry's strings lie in the text of a page.
type row struct {
	valueEnd, keyEnd int
	kind             store.Type
	element          bool // of a list
	at               time.Time
}

// A scratch is the memory of one Scan or Dispose, used again by the next.
type scratch struct {
	lower, upper, text []byte
	rows               []row
	keys               []byte
	ends               []int
	order              []int
	pending            []int
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{store.ErrInvalid}, args...)...)
}

// checkTarget refuses a target that this store cannot have.
func checkTarget(t store.Target, namespace string) error {
	switch {
	case t.Kind == "":
		return invalid("a target needs a kind")
	case t.Property == "":
		return invalid("target %q needs a property", t.Name)
	case namespace != "":
		return invalid("namespace %q: an embedded store has only the default one", namespace)
	}
	return nil
}

// spanOf sets the scratch's lower to the common prefix of all index rows of the
// query's target and shard.
func (s *scratch) spanOf(q store.Query) (prefix int, err error) {
	s.lower = indexPrefix(s.lower[:0], q.Target)
	if q.Target.ShardProperty != "" {
		if s.lower, err = appendValue(s.lower, q.Shard); err != nil {
			return 0, invalid("shard: %w", err)
		}
	}
	return len(s.lower), nil
}

// bounds sets the scratch's lower and upper to the rows of q.
func (s *scratch) bounds(q store.Query) (prefix int, err error) {
	if prefix, err = s.spanOf(q); err != nil {
		return 0, err
	}
	s.upper = append(s.upper[:0], s.lower...)
	if q.Hi.Type == store.Missing {
		s.upper = prefixEnd(s.upper)
	} else {
		if s.upper, err = appendValue(s.upper, q.Hi); err != nil {
			return 0, invalid("upper bound: %w", err)
		}
		s.upper = append(s.upper, keyEnd)
	}
	if q.Lo.Type != store.Missing {
		if s.lower, err = appendValue(s.lower, q.Lo); err != nil {
			return 0, invalid("lower bound: %w", err)
		}
	}
	if q.After.IsZero() {
		return prefix, nil
	}
	s.keys = append(s.keys[:0], s.lower[:prefix]...)
	if s.keys, err = appendValue(s.keys, q.After.Value); err != nil {
		return 0, invalid("position: %w", err)
	}
	if q.After.Key != "" {
		if s.keys, err = appendKey(s.keys, q.After.Key); err != nil {
			return 0, invalid("position: %w", err)
		}
		s.keys = append(s.keys, 0) // the next possible key: no other begins with a key
	}
	if bytes.Compare(s.keys, s.lower) > 0 {
		s.lower = append(s.lower[:0], s.keys...)
	}
	return prefix, nil
}

// steps returns how many points an iterator met beyond those it returned.
func steps(it *pebble.Iterator, returned int) int64 {
	st := it.Stats()
	return max(0, int64(st.InternalStats.PointCount)-int64(returned))
}

// Scan implements [store.Store]. A zero Lo or Hi is open.
func (db *DB) Scan(ctx context.Context, q store.Query, page *store.Page) (err error) {
	page.Entries, page.More, page.Next, page.SteppedOver = page.Entries[:0], false, nil, 0
	defer func() {
		if err != nil {
			err = fmt.Errorf("scan %s.%s: %w", q.Target.Kind, q.Target.Property, err)
		}
	}()
	if err := checkTarget(q.Target, q.Namespace); err != nil {
		return err
	}
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return invalid("limit %d is not between 1 and %d", q.Limit, store.MaxPage)
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	prefix, err := s.bounds(q)
	if err != nil {
		return err
	}
	store.Bill(ctx, store.Operations{Reads: 1})
	if bytes.Compare(s.lower, s.upper) >= 0 {
		return nil
	}
	if err := db.readPage(ctx, s, prefix, q.Limit, page); err != nil {
		page.Entries, page.More = page.Entries[:0], false
		return classify("read", err)
	}
	return nil
}

// readPage reads the rows between the scratch's bounds. All strings of a page
// share one allocation.
func (db *DB) readPage(ctx context.Context, s *scratch, prefix, limit int, page *store.Page) (err error) {
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: s.lower, UpperBound: s.upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	s.text, s.rows = s.text[:0], s.rows[:0]
	for ok := it.First(); ok; ok = it.Next() {
		if len(s.rows)%ctxEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var r row
		v, text, rest, err := cutValue(s.text, it.Key()[prefix:])
		if err != nil {
			return err
		}
		r.kind, r.at, r.valueEnd = v.Type, v.Time, len(text)
		if s.text, err = appendKeyText(text, rest); err != nil {
			return err
		}
		r.keyEnd = len(s.text)
		mark, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		r.element = bytes.Equal(mark, listMark)
		if s.rows = append(s.rows, r); len(s.rows) == limit {
			page.More = true
			break
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	page.SteppedOver = steps(it, len(s.rows))
	text, start := string(s.text), 0
	for _, r := range s.rows {
		e := store.Entry{
			Value: store.Value{Type: r.kind, Text: text[start:r.valueEnd], Time: r.at},
			Key:   text[r.valueEnd:r.keyEnd],
		}
		if r.element {
			e.At, e.Value = e.Value, store.Value{Type: store.List}
		}
		page.Entries = append(page.Entries, e)
		start = r.keyEnd
	}
	return nil
}

// Count implements [store.Counter]. An entity whose list has several elements
// in the span counts once.
func (db *DB) Count(
	ctx context.Context, t store.Target, namespace string, span store.Span, upTo int64,
) (n int64, err error) {
	defer func() {
		if err != nil {
			n, err = 0, fmt.Errorf("count %s.%s: %w", t.Kind, t.Property, err)
		}
	}()
	if err := checkTarget(t, namespace); err != nil {
		return 0, err
	}
	if err := db.enter(ctx); err != nil {
		return 0, err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	upper := prefixEnd(indexPrefix(nil, t))
	if span.To != (store.Point{}) {
		if upper, err = pointKey(t, span.To); err != nil {
			return 0, err
		}
	}
	lower, err := pointKey(t, span.From)
	if err != nil {
		return 0, err
	}
	if bytes.Compare(lower, upper) < 0 {
		if n, err = db.countRows(ctx, t, lower, upper, upTo); err != nil {
			return 0, classify("read", err)
		}
	}
	store.Bill(ctx, store.Operations{Reads: max(1, (n+999)/1000)})
	return n, nil
}

// pointKey returns the least key that a row behind the point may have.
func pointKey(t store.Target, p store.Point) (key []byte, err error) {
	key = indexPrefix(nil, t)
	if p == (store.Point{}) {
		return key, nil
	}
	if t.ShardProperty != "" {
		if key, err = appendValue(key, p.Shard); err != nil {
			return nil, invalid("shard: %w", err)
		}
	}
	if p.Value.Type != store.Missing {
		if key, err = appendValue(key, p.Value); err != nil {
			return nil, invalid("bound: %w", err)
		}
	}
	switch {
	case p.After && p.Value.Type == store.Missing:
		key = append(key, 0xff) // behind every value's tag
	case p.After:
		key = append(key, keyEnd)
	}
	return key, nil
}

// countRows counts up to upTo entities with rows between the keys, or all of them if
// upTo is not more than zero.
func (db *DB) countRows(
	ctx context.Context, t store.Target, lower, upper []byte, upTo int64,
) (n int64, err error) {
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	rows := 0
	for ok := it.First(); ok; ok = it.Next() {
		if rows++; rows%ctxEvery == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		mark, err := it.ValueAndErr()
		if err != nil {
			return 0, err
		}
		if bytes.Equal(mark, listMark) {
			first, err := db.firstElement(t, it.Key(), lower)
			if err != nil {
				return 0, err
			}
			if !first {
				continue
			}
		}
		if n++; n == upTo {
			break
		}
	}
	return n, it.Error()
}

// firstElement reports whether the index row with the given key stands for the
// first element, among those from lower on, of its entity's list.
func (db *DB) firstElement(t store.Target, key, lower []byte) (bool, error) {
	id := key[len(indexPrefix(nil, t)):]
	var err error
	if t.ShardProperty != "" {
		if id, err = skipValue(id); err != nil {
			return false, err
		}
	}
	if id, err = skipValue(id); err != nil {
		return false, err
	}
	value, err := db.get(append(entityPrefix(nil, t.Kind), id...))
	if value == nil || err != nil {
		return false, err // no entity: it was deleted while we counted
	}
	e, err := decodeEntity(value)
	if err != nil {
		return false, err
	}
	first := []byte(nil)
	own := indexPrefix(nil, t)
	_, err = indexRows(nil, t.Kind, e, id, func(k, _ []byte) error {
		if first == nil && bytes.HasPrefix(k, own) && bytes.Compare(k, lower) >= 0 {
			first = bytes.Clone(k)
		}
		return nil
	})
	return bytes.Equal(first, key), err
}

// Holds implements [store.Counter].
func (db *DB) Holds(ctx context.Context, t store.Target, namespace string) (holds bool, err error) {
	if err := checkTarget(t, namespace); err != nil {
		return false, fmt.Errorf("look for entities of %s: %w", t.Kind, err)
	}
	n := 0
	_, err = db.readEntities(ctx, t, nil, 1, func([]byte, entity) { n++ })
	if err != nil {
		return false, fmt.Errorf("look for entities of %s: %w", t.Kind, err)
	}
	store.Bill(ctx, store.Operations{Reads: 1})
	return n > 0, nil
}

// readEntities calls yield for at most limit entities of a table with encoded keys from
// id on. It returns the key to continue from; nil at the end. What it yields is valid
// during the call only.
func (db *DB) readEntities(
	ctx context.Context, t store.Target, id []byte, limit int, yield func(id []byte, e entity),
) (next []byte, err error) {
	if err := db.enter(ctx); err != nil {
		return nil, err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	lower := entityPrefix(nil, t.Kind)
	prefix := len(lower)
	upper := prefixEnd(bytes.Clone(lower))
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: append(lower, id...), UpperBound: upper})
	if err != nil {
		return nil, classify("read", err)
	}
	defer func() { err = classify("read", errors.Join(err, it.Close())) }()
	for ok := it.First(); ok; ok = it.Next() {
		if limit--; limit < 0 {
			return bytes.Clone(it.Key()[prefix:]), nil
		}
		if err := ctx.Err(); limit%ctxEvery == 0 && err != nil {
			return nil, err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		e, err := decodeEntity(value)
		if err != nil {
			return nil, err
		}
		yield(it.Key()[prefix:], e)
	}
	return nil, it.Error()
}

// Dump implements [store.Dumper]. It reads some entities at a time: what is
// written meanwhile may or may not be among them.
func (db *DB) Dump(ctx context.Context, t store.Target, namespace string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		err := checkTarget(t, namespace)
		from := []byte(nil)
		chunk := make([]store.Entity, 0, dumpChunk)
		for err == nil {
			chunk = chunk[:0]
			var bad error
			from, err = db.readEntities(ctx, t, from, dumpChunk, func(id []byte, e entity) {
				name, number, idErr := cutID(id)
				bad = errors.Join(bad, idErr)
				found := store.Entity{Name: string(name), Number: number, Expiry: e.of(t.Property)}
				if t.ShardProperty != "" && string(e.shardProperty) == t.ShardProperty {
					found.Shard = e.shard
				}
				if len(e.data) > 0 {
					found.Data = bytes.Clone(e.data)
				}
				chunk = append(chunk, found)
			})
			if err = errors.Join(err, classify("read", bad)); err != nil {
				break
			}
			store.Bill(ctx, store.Operations{Reads: int64(len(chunk))})
			for _, e := range chunk {
				if !yield(e, nil) {
					return
				}
			}
			if from == nil {
				return
			}
		}
		yield(store.Entity{}, fmt.Errorf("dump %s: %w", t.Kind, err))
	}
}

// get reads a row; missing rows are nil.
func (db *DB) get(key []byte) (value []byte, err error) {
	v, closer, err := db.engine.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return bytes.Clone(v), closer.Close()
}
