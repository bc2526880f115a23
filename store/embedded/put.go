package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// maxPut is the most bytes of data that one Put takes: a batch is held in
// memory until it is in a table.
const maxPut = 64 << 20

// A draft is one entity on its way into the store.
type draft struct {
	id     []byte
	value  store.Value
	shard  store.Value
	data   []byte
	number int // in the caller's slice, from 0
}

// Put implements [store.Writer]. It indexes each entity under t.Property and
// removes the index rows of the entity that it replaces.
func (db *DB) Put(ctx context.Context, t store.Target, namespace string, entities []store.Entity) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %d entities into %s: %w", len(entities), t.Kind, err)
		}
	}()
	if err := checkTarget(t, namespace); err != nil {
		return err
	}
	drafts, err := draw(t, entities)
	if err != nil {
		return err
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if len(drafts) == 0 {
		return nil
	}
	if err := db.acquire(ctx); err != nil {
		return err
	}
	defer db.release()
	batch := db.engine.NewBatch()
	if err = db.replace(t, drafts, batch); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := db.commit(batch); err != nil {
		return err
	}
	store.Bill(ctx, store.Operations{Writes: int64(len(drafts))})
	return nil
}

// draw checks the entities and returns them in the order of their keys.
func draw(t store.Target, entities []store.Entity) ([]draft, error) {
	if len(entities) > store.MaxPage {
		return nil, fmt.Errorf("%w: one call takes at most %d", store.ErrTooLarge, store.MaxPage)
	}
	drafts := make([]draft, 0, len(entities))
	var ids []byte
	size := 0
	for i, e := range entities {
		start := len(ids)
		var err error
		if ids, err = appendID(ids, e.Name, e.Number); err != nil {
			return nil, invalid("entity %d: %w", i+1, err)
		}
		d := draft{id: ids[start:len(ids):len(ids)], data: e.Data, number: i}
		if d.value, err = normal(e.Expiry); err != nil {
			return nil, invalid("entity %d: %w", i+1, err)
		}
		if d.shard, err = shardValue(t, e.Shard); err != nil {
			return nil, invalid("entity %d: %w", i+1, err)
		}
		if e.Parent != "" {
			return nil, invalid("entity %d has a parent: an embedded store has no ancestors", i+1)
		}
		if e.Data != nil && (!bytes.HasPrefix(bytes.TrimLeft(e.Data, " \t\r\n"), []byte("{")) || !json.Valid(e.Data)) {
			return nil, invalid("entity %d: its data is not a JSON object", i+1)
		}
		if size += len(e.Data); size > maxPut {
			return nil, fmt.Errorf("%w: the data has more than %d bytes", store.ErrTooLarge, maxPut)
		}
		drafts = append(drafts, d)
	}
	slices.SortFunc(drafts, func(a, b draft) int { return bytes.Compare(a.id, b.id) })
	for i := range drafts[min(1, len(drafts)):] {
		if bytes.Equal(drafts[i].id, drafts[i+1].id) {
			text, err := appendKeyText(nil, drafts[i].id)
			return nil, errors.Join(err, invalid("entities %d and %d have the same key %s",
				min(drafts[i].number, drafts[i+1].number)+1, max(drafts[i].number, drafts[i+1].number)+1, text))
		}
	}
	return drafts, nil
}

// replace adds to the batch the writes that make the drafts the table's entities.
// It walks the existing entities in step with the drafts, in their order, and
// seeks only if its iterator is behind.
func (db *DB) replace(t store.Target, drafts []draft, batch *pebble.Batch) (err error) {
	key := entityPrefix(nil, t.Kind)
	prefix := len(key)
	it, err := db.engine.NewIter(&pebble.IterOptions{LowerBound: bytes.Clone(key),
		UpperBound: prefixEnd(bytes.Clone(key))})
	if err != nil {
		return classify("read", err)
	}
	defer func() { err = errors.Join(err, classify("read", it.Close())) }()
	closed := db.dropped[droppedKey(t)]
	var rowKey, rowValue []byte
	for i, d := range drafts {
		key = append(key[:prefix], d.id...)
		ok := it.Valid()
		if i == 0 || ok && bytes.Compare(it.Key(), key) < 0 {
			ok = it.SeekGE(key)
		}
		if ok && bytes.Equal(it.Key(), key) {
			old, err := it.ValueAndErr()
			if err != nil {
				return classify("read", err)
			}
			e, err := decodeEntity(old)
			if err != nil {
				return classify("read", err)
			}
			rowKey, err = indexRows(rowKey, t.Kind, e, d.id, func(k, _ []byte) error { return batch.Delete(k, nil) })
			if err != nil {
				return classify("write", err)
			}
		}
		e := entity{property: []byte(t.Property), value: d.value, shardProperty: []byte(t.ShardProperty), shard: d.shard,
			data: d.data}
		rowValue = appendEntity(rowValue[:0], e)
		if err := batch.Set(key, rowValue, nil); err != nil {
			return classify("write", err)
		}
		if rowKey, err = closed.index(rowKey, t, e, d.id, batch); err != nil {
			return invalid("entity %d: %w", d.number+1, err)
		}
	}
	return classify("read", it.Error())
}

// index adds the index rows of an entity to the batch, unless one lies in a
// closed span.
func (s spans) index(buf []byte, t store.Target, e entity, id []byte, batch *pebble.Batch) ([]byte, error) {
	own := indexPrefix(nil, t)
	return indexRows(buf, t.Kind, e, id, func(k, mark []byte) error {
		if bytes.HasPrefix(k, own) {
			if err := s.refuse(t, k); err != nil {
				return err
			}
		}
		return batch.Set(k, mark, nil)
	})
}

// Key implements [store.Keyer].
func (db *DB) Key(_ store.Target, _ string, e store.Entity) (string, error) {
	id, err := appendID(nil, e.Name, e.Number)
	if err != nil {
		return "", invalid("%w", err)
	}
	text, err := appendKeyText(nil, id)
	return string(text), err
}

// ID implements [store.Keyer].
func (db *DB) ID(key string) (string, error) {
	id, err := appendKey(nil, key)
	if err != nil {
		return "", invalid("%w", err)
	}
	name, number, err := cutID(id)
	if name == nil {
		return strconv.FormatInt(number, 10), err
	}
	return string(name), err
}

// shardValue checks the value that an entity is to have for the target's shard
// property.
func shardValue(t store.Target, v store.Value) (store.Value, error) {
	v, err := normal(v)
	switch _, whole := v.Integer(); {
	case err != nil:
		return v, fmt.Errorf("shard: %w", err)
	case v.Type == store.Missing:
	case t.ShardProperty == "":
		return v, fmt.Errorf("the target has no shard property for %.80q", v.Text)
	case v.Type != store.Text && !whole:
		return v, errors.New("a shard is a text or an integer")
	}
	return v, nil
}

// A span is a part of an index that was dropped.
type span struct {
	from, to string
}

type spans []span

// dropped holds the closed spans of each table and property.
type dropped map[string]spans

func droppedKey(t store.Target) string {
	return string(appendTerm(appendTerm(nil, t.Kind), t.Property))
}

// refuse returns an error if the index row with the given key lies in a closed
// span.
func (s spans) refuse(t store.Target, key []byte) error {
	if len(s) == 0 || t.ShardProperty != "" { // only indexes of expiry keys are dropped from
		return nil
	}
	v, text, _, err := cutValue(nil, key[len(indexPrefix(nil, t)):])
	if err != nil || v.Type != store.Text {
		return err
	}
	for _, closed := range s {
		if closed.from <= string(text) && string(text) < closed.to {
			return fmt.Errorf("the expiry %q lies in the dropped span from %q to %q: stamp it again",
				text, closed.from, closed.to)
		}
	}
	return nil
}

// loadDropped reads the closed spans at opening.
func (db *DB) loadDropped() (err error) {
	db.dropped = make(dropped)
	it, err := db.engine.NewIter(&pebble.IterOptions{LowerBound: []byte{rowDropped}, UpperBound: []byte{rowDropped + 1}})
	if err != nil {
		return classify("read", err)
	}
	defer func() { err = classify("read", errors.Join(err, it.Close())) }()
	for ok := it.First(); ok; ok = it.Next() {
		var parts [4][]byte
		rest := it.Key()[1:]
		for i := range parts {
			if parts[i], rest, err = cutTerm(nil, rest); err != nil {
				return err
			}
		}
		k := droppedKey(store.Target{Kind: string(parts[0]), Property: string(parts[1])})
		db.dropped[k] = append(db.dropped[k], span{string(parts[2]), string(parts[3])})
	}
	return it.Error()
}

// Drop implements [store.Dropper]. Malformed values in the span stay: strings that
// are not expiry keys, and elements of lists. From then on Put refuses any string
// in the span, even a malformed one.
func (db *DB) Drop(ctx context.Context, t store.Target, from, to string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("drop %q to %q of %s.%s: %w", from, to, t.Kind, t.Property, err)
		}
	}()
	if err := checkTarget(t, ""); err != nil {
		return err
	}
	if from >= to {
		return invalid("the span is empty")
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if err := db.acquire(ctx); err != nil {
		return err
	}
	batch := db.engine.NewBatch()
	err = db.dropLocked(ctx, t, span{from, to}, batch)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		db.release()
		return errors.Join(classify("read", err), batch.Close())
	}
	// Put must refuse from the moment the lock is free.
	k := droppedKey(t)
	if !slices.Contains(db.dropped[k], span{from, to}) {
		db.dropped[k] = append(db.dropped[k], span{from, to})
	}
	if err := db.commitDurably(batch); err != nil {
		return err
	}
	store.Bill(ctx, store.Operations{Reads: 1, Deletes: 1})
	return nil
}

// Dropped implements [store.Dropper].
func (db *DB) Dropped(ctx context.Context, t store.Target) (to string, err error) {
	if err := db.enter(ctx); err != nil {
		return "", err
	}
	defer db.leave()
	if err := db.acquire(ctx); err != nil {
		return "", err
	}
	defer db.release()
	for _, s := range db.dropped[droppedKey(t)] {
		to = max(to, s.to)
	}
	return to, nil
}

func (db *DB) dropLocked(ctx context.Context, t store.Target, s span, batch *pebble.Batch) (err error) {
	lower := indexPrefix(nil, t)
	prefix := len(lower)
	upper := bytes.Clone(lower)
	lower, err1 := appendValue(lower, store.TextValue(s.from))
	upper, err2 := appendValue(upper, store.TextValue(s.to))
	it, err3 := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if err := batch.DeleteRange(lower, upper, nil); err != nil {
		return err
	}
	rows := 0
	for ok := it.First(); ok; ok = it.Next() {
		if rows++; rows%ctxEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		_, text, id, err := cutValue(nil, it.Key()[prefix:])
		if err != nil {
			return err
		}
		mark, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if _, err := expirykey.Parse(string(text)); err == nil && !bytes.Equal(mark, listMark) {
			key, err := appendKeyText(nil, id)
			return errors.Join(err, fmt.Errorf("%w: entity %s expires there (%s)", store.ErrConflict, key, text))
		}
		// What is set after the range tombstone, in the same batch, survives it.
		if err := batch.Set(it.Key(), mark, nil); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	key := appendTerm(appendTerm([]byte{rowDropped}, t.Kind), t.Property)
	return batch.Set(appendTerm(appendTerm(key, s.from), s.to), nil, nil)
}
