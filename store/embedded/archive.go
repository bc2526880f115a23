package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/store"
)

var _ store.Archiver = (*DB)(nil)

// A line is the Data of a copy: what dump prints of an entity, and what else its row holds. It is for
// reading alone: see [appendLine].
type line struct {
	ID json.RawMessage `json:"id"`
	lineValue
	Other         *lineValue      `json:"other"` // a second indexed property
	ShardProperty string          `json:"shard_property"`
	Shard         json.RawMessage `json:"shard"`
	Data          json.RawMessage `json:"data"`
}

// A lineValue is an indexed property and its value: an instant in Expires, or anything else in Key.
type lineValue struct {
	Property string          `json:"property"`
	Expires  string          `json:"expires"`
	Key      json.RawMessage `json:"key"`
}

// appendLine appends an entity in one line. All JSON in it keeps its bytes, but for line breaks
// between values, which become spaces: so no number is rounded on its way to an archive and back.
func appendLine(dst, id []byte, e entity) ([]byte, error) {
	name, number, err := cutID(id)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `{"id":`...)
	if name == nil {
		dst = strconv.AppendInt(dst, number, 10)
	} else {
		dst = appendQuoted(dst, string(name))
	}
	dst = appendLineValue(append(dst, ','), e.property, e.value)
	if e.other != nil {
		dst = append(appendLineValue(append(dst, `,"other":{`...), e.other.property, e.other.value), '}')
	}
	if len(e.shardProperty) > 0 {
		dst = appendQuoted(append(dst, `,"shard_property":`...), string(e.shardProperty))
		if e.shard.Type != store.Missing {
			dst = appendJSON(append(dst, `,"shard":`...), e.shard)
		}
	}
	if len(e.data) > 0 {
		start := len(dst)
		dst = append(append(dst, `,"data":`...), e.data...)
		for i := start; i < len(dst); i++ {
			if dst[i] == '\n' || dst[i] == '\r' { // no string has these unescaped
				dst[i] = ' '
			}
		}
	}
	return append(dst, '}'), nil
}

func appendLineValue(dst, property []byte, v store.Value) []byte {
	dst = appendQuoted(append(dst, `"property":`...), string(property))
	switch v.Type {
	case store.Missing:
		return dst
	case store.Instant:
		dst = v.Time.UTC().AppendFormat(append(dst, `,"expires":"`...), store.TimeLayout)
		return append(dst, '"')
	}
	return appendJSON(append(dst, `,"key":`...), v)
}

// appendJSON appends a value that is not an instant.
func appendJSON(dst []byte, v store.Value) []byte {
	if v.Type == store.Text {
		return appendQuoted(dst, v.Text)
	}
	return append(dst, v.Text...)
}

func appendQuoted(dst []byte, s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("a string does not marshal: %v", err))
	}
	return append(dst, b...)
}

// parseLine is the inverse of [appendLine].
func parseLine(text []byte) (id []byte, e entity, err error) {
	var l line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return nil, e, err
	}
	if d.More() {
		return nil, e, errors.New("more follows the entity")
	}
	var name string
	var number int64
	if bytes.HasPrefix(l.ID, []byte{'"'}) {
		err = json.Unmarshal(l.ID, &name)
	} else {
		number, err = strconv.ParseInt(string(l.ID), 10, 64)
	}
	if err != nil {
		return nil, e, err
	}
	if id, err = appendID(nil, name, number); err != nil {
		return nil, e, err
	}
	e.property, e.shardProperty = []byte(l.Property), []byte(l.ShardProperty)
	if e.value, err = l.value(); err != nil {
		return nil, e, err
	}
	if l.Other != nil {
		e.other = &indexed{property: []byte(l.Other.Property)}
		if e.other.value, err = l.Other.value(); err != nil {
			return nil, e, err
		}
	}
	shard := lineValue{Key: l.Shard}
	if e.shard, err = shard.value(); err != nil {
		return nil, e, err
	}
	if e.data = l.Data; len(e.data) > 0 && e.data[0] != '{' {
		return nil, e, errors.New("its data is not a JSON object")
	}
	return id, e, nil
}

func (l lineValue) value() (store.Value, error) {
	switch {
	case l.Expires != "":
		at, err := time.Parse(store.TimeLayout, l.Expires)
		if err != nil {
			return store.Value{}, err
		}
		return normal(store.InstantValue(at))
	case len(l.Key) == 0:
		return store.Value{}, nil
	case l.Key[0] == '"':
		var text string
		if err := json.Unmarshal(l.Key, &text); err != nil {
			return store.Value{}, err
		}
		return normal(store.TextValue(text))
	}
	return normal(store.Value{Type: store.Other, Text: string(l.Key)})
}

// Copies are entities that a call is about to delete, as it has read them.
type copies struct {
	list []store.Copy
	rows [][]byte // for each op of a batch, its entity's row; nil if it is not to be deleted
	sets []uint64 // for each op, the count of its row's group before the row was read
	left []bool   // ops that are left for another call
	size int
}

// copyOf returns a copy of the entity whose row has a value.
func copyOf(t store.Target, id []byte, key string, e entity) (store.Copy, error) {
	data, err := appendLine(make([]byte, 0, len(e.data)+200), id, e)
	return store.Copy{Key: key, Data: data, Expiry: e.of(t.Property)}, err
}

// Archives implements [store.Archiver].
func (db *DB) Archives(t store.Target) error { return checkTarget(t, "") }

// disposeArchived is Dispose with an Archive. It reads the entities without the write lock, and shows
// them to the Archive. Then, under the lock, it deletes those whose rows still have the same bytes. Of a row that no
// commit can have set meanwhile it knows that without a second read, which would take as long as the first one, and
// make all others wait.
func (db *DB) disposeArchived(ctx context.Context, b *store.Batch) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	var prefix int
	var c copies
	err := db.reading(ctx, func() (err error) {
		if len(b.Ops) == 0 {
			return nil
		}
		if prefix, err = s.encode(b); err == nil {
			err = db.readCopies(ctx, s, prefix, b, &c)
		}
		return err
	})
	if err != nil || len(b.Ops) == 0 {
		return err
	}
	if err := keep(ctx, b.Query.Archive, c.list); err != nil {
		return err
	}
	s.order = slices.DeleteFunc(s.order, func(i int) bool { return c.left[i] })
	return db.writing(ctx, func() error { return db.disposeLocked(ctx, s, prefix, b, &c) })
}

// reading makes a call of the engine that takes no lock.
func (db *DB) reading(ctx context.Context, do func() error) (err error) {
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	return do()
}

// writing makes one under the write lock.
func (db *DB) writing(ctx context.Context, do func() error) error {
	return db.reading(ctx, func() error {
		if err := db.acquire(ctx); err != nil {
			return err
		}
		defer db.release()
		return do()
	})
}

// keep shows copies to an Archive. The call has left the store, so that even Close need not wait.
func keep(ctx context.Context, a store.Archive, list []store.Copy) error {
	if len(list) == 0 {
		return nil
	}
	store.Bill(ctx, store.Operations{Reads: int64(len(list))})
	if err := a.Keep(ctx, list); err != nil {
		return fmt.Errorf("keep copies of %d: %w", len(list), err)
	}
	return ctx.Err()
}

// readCopies reads what a batch is about to delete.
func (db *DB) readCopies(ctx context.Context, s *scratch, prefix int, b *store.Batch, c *copies) error {
	c.rows, c.sets, c.left = make([][]byte, len(b.Ops)), make([]uint64, len(b.Ops)), make([]bool, len(b.Ops))
	row := entityPrefix(nil, b.Query.Target.Kind)
	table := len(row)
	for i := range b.Ops {
		op := &b.Ops[i]
		if op.IsCarry() || op.Entry.Value.Type == store.List {
			continue
		}
		if i%ctxEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if c.left[i] = c.size >= store.CopyBytes; c.left[i] {
			continue
		}
		id, err := skipValue(s.key(i)[prefix:])
		if err != nil {
			return classify("read", err)
		}
		row = append(row[:table], id...)
		if err := db.readCopy(b, i, row, id, s.key(i), c); err != nil {
			return classify("read", err)
		}
	}
	return nil
}

// readCopy reads the entity of one op, and adds it to the copies if it is to be deleted.
func (db *DB) readCopy(b *store.Batch, op int, row, id, key []byte, c *copies) error {
	c.sets[op] = db.sets.count(row) // before it is read
	value, err := db.get(row)
	if err != nil || value == nil {
		return err
	}
	e, err := decodeEntity(value)
	if err != nil {
		return err
	}
	indexed := false
	_, err = indexRows(nil, b.Query.Target.Kind, e, id, func(k, mark []byte) error {
		indexed = indexed || bytes.Equal(k, key) && !bytes.Equal(mark, listMark)
		return nil
	})
	if err != nil || !indexed {
		return err
	}
	if holds, err := premiseHolds(b, op, value); err != nil || !holds {
		return err
	}
	one, err := copyOf(b.Query.Target, id, b.Ops[op].Entry.Key, e)
	if err != nil {
		return err
	}
	c.list, c.rows[op], c.size = append(c.list, one), value, c.size+len(one.Data)
	return nil
}

// isAsRead reports whether an entity that has an index row is what was shown to the Archive. Then the premise of its
// op is true, as it was when the entity was read. The write lock is held.
func (db *DB) isAsRead(read *copies, op int, row []byte) (bool, error) {
	if was := read.rows[op]; was == nil || db.sets.count(row) == read.sets[op] {
		return was != nil, nil
	}
	now, err := db.get(row)
	return now != nil && bytes.Equal(now, read.rows[op]), err
}

// settleArchived is Settle with an Archive. It reads the entity twice, and asks decide each time.
func (db *DB) settleArchived(
	ctx context.Context, q store.Query, e store.Entry, id []byte, decide func(store.Value) store.Verdict,
) (out store.Outcome, err error) {
	var list []store.Copy
	seen := []byte{} // the row that was kept; no row is empty
	err = db.reading(ctx, func() error {
		value, err := db.get(append(entityPrefix(nil, q.Target.Kind), id...))
		if err != nil || value == nil {
			return classify("read", err)
		}
		now, err := decodeEntity(value)
		if err != nil || decide(now.of(q.Target.Property)) != store.Delete {
			return classify("read", err)
		}
		one, err := copyOf(q.Target, id, e.Key, now)
		list, seen = []store.Copy{one}, value
		return classify("read", err)
	})
	if err != nil {
		return store.Unknown, err
	}
	if err := keep(ctx, q.Archive, list); err != nil {
		return store.Unknown, err
	}
	err = db.writing(ctx, func() (err error) {
		out, err = db.settleLocked(ctx, q.Target, id, decide, seen)
		return err
	})
	return out, err
}

// ExpiryOf returns what the property of target t holds in a copy that was archived for the target from; Missing if t
// has another kind. Of a copy without Data nothing is known but its Expiry.
func (db *DB) ExpiryOf(c store.Copy, from, t store.Target) (store.Value, error) {
	switch {
	case t.Kind != from.Kind:
		return store.Value{}, nil
	case t.Property == from.Property:
		return c.Expiry, nil
	case c.Data == nil:
		return store.Value{}, nil
	}
	_, e, err := parseLine(c.Data)
	if err != nil {
		return store.Value{}, invalid("the data of %s: %w", c.Key, err)
	}
	return e.of(t.Property), nil
}

// Fetch implements [store.Archiver]. It knows the present alone, and entities of the target's kind.
func (db *DB) Fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) (list []store.Copy, err error) {
	defer func() {
		if err != nil {
			list, err = nil, fmt.Errorf("fetch %d entities of %s: %w", len(keys), t.Kind, err)
		}
	}()
	if err := checkTarget(t, namespace); err != nil {
		return nil, err
	}
	if !at.IsZero() {
		return nil, fmt.Errorf("%w: an embedded store keeps no earlier version", store.ErrUnsupported)
	}
	err = db.reading(ctx, func() error {
		size := 0
		for i, key := range keys {
			if size >= store.CopyBytes {
				break
			}
			if err := ctx.Err(); i%ctxEvery == 0 && err != nil {
				return err
			}
			one, err := db.fetch(t, key)
			if err != nil {
				return err
			}
			list, size = append(list, one), size+len(one.Key)+len(one.Data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	store.Bill(ctx, store.Operations{Reads: int64(len(list))})
	return list, nil
}

func (db *DB) fetch(t store.Target, key string) (store.Copy, error) {
	missing := store.Copy{Key: key}
	id, err := appendKey(nil, key)
	if err != nil {
		return missing, invalid("%w", err)
	}
	value, err := db.get(append(entityPrefix(nil, t.Kind), id...))
	if err != nil || value == nil {
		return missing, classify("read", err)
	}
	e, err := decodeEntity(value)
	if err != nil {
		return missing, classify("read", err)
	}
	one, err := copyOf(t, id, key, e)
	return one, classify("read", err)
}

// A revival is an insertion that was parsed.
type revival struct {
	id []byte
	e  entity
}

// revive parses and checks insertions.
func revive(t store.Target, list []store.Insertion) ([]revival, error) {
	if len(list) > store.MaxPage {
		return nil, invalid("one call takes at most %d", store.MaxPage)
	}
	revivals := make([]revival, 0, len(list))
	once := make(map[string]bool, len(list))
	for i := range list {
		one := &list[i]
		key, err := appendKey(nil, one.Key)
		if err != nil {
			return nil, invalid("insertion %d: %w", i+1, err)
		}
		id, e, err := parseLine(one.Data)
		switch {
		case err != nil:
			return nil, invalid("insertion %d: the data of %s: %w", i+1, one.Key, err)
		case !bytes.Equal(id, key):
			return nil, invalid("insertion %d: the data of %s are those of another entity", i+1, one.Key)
		case once[string(id)]:
			return nil, invalid("insertion %d: the key %s appears twice", i+1, one.Key)
		}
		once[string(id)] = true
		if !one.AsIs {
			to, err := normal(one.To)
			if err != nil {
				return nil, invalid("insertion %d: %w", i+1, err)
			}
			var fits bool
			if e, fits = e.with(t.Property, to); !fits {
				return nil, invalid("insertion %d: %s has expiries in %s and %s, and an embedded store indexes two properties "+
					"of an entity", i+1, one.Key, e.property, e.other.property)
			}
		}
		revivals = append(revivals, revival{id, e})
	}
	return revivals, nil
}

// Insert implements [store.Archiver]. It writes one batch, and waits for the disk.
func (db *DB) Insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) (err error) {
	for i := range list {
		list[i].Outcome, list[i].Stripped = store.Unknown, ""
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("insert %d entities into %s: %w", len(list), t.Kind, err)
		}
	}()
	if err := checkTarget(t, namespace); err != nil {
		return err
	}
	revivals, err := revive(t, list)
	if err != nil {
		return err
	}
	return db.reading(ctx, func() error { return db.insert(ctx, t, list, revivals) })
}

func (db *DB) insert(ctx context.Context, t store.Target, list []store.Insertion, revivals []revival) error {
	if err := db.acquire(ctx); err != nil {
		return err
	}
	batch := db.engine.NewBatch()
	outcomes := make([]store.Outcome, len(list))
	inserted, size := 0, 0
	var err error
	for i := 0; i < len(revivals) && err == nil && size < store.CopyBytes; i++ {
		if outcomes[i], err = db.insertLocked(t, revivals[i], batch); outcomes[i] == store.Inserted {
			inserted++
			size += len(list[i].Data)
		}
	}
	if err == nil {
		err = ctx.Err() // the last chance to stop
	}
	if err != nil || inserted == 0 {
		db.release()
		err = errors.Join(err, batch.Close())
	} else {
		err = db.commitDurably(batch)
	}
	if err != nil {
		return err
	}
	for i := range list {
		list[i].Outcome = outcomes[i]
	}
	store.Bill(ctx, store.Operations{Reads: int64(len(list)), Writes: int64(inserted)})
	return nil
}

// insertLocked adds an entity to the batch, unless there is one with its key.
func (db *DB) insertLocked(t store.Target, r revival, batch *pebble.Batch) (store.Outcome, error) {
	row := append(entityPrefix(nil, t.Kind), r.id...)
	there, err := db.get(row)
	if err != nil {
		return store.Unknown, classify("read", err)
	}
	if there != nil {
		return store.Kept, nil
	}
	if err := batch.Set(row, appendEntity(nil, r.e), nil); err != nil {
		return store.Unknown, classify("write", err)
	}
	// It may have been put with another property, of whose index a span was dropped since.
	properties := [][]byte{r.e.property}
	if r.e.other != nil {
		properties = append(properties, r.e.other.property)
	}
	for _, p := range properties {
		own := store.Target{Kind: t.Kind, Property: string(p)}
		if bytes.Equal(p, r.e.property) {
			own.ShardProperty = string(r.e.shardProperty)
		}
		if _, err := db.dropped[droppedKey(own)].index(nil, own, r.e, r.id, batch); err != nil {
			return store.Unknown, invalid("%w", err)
		}
	}
	return store.Inserted, nil
}
