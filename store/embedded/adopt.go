package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/store"
)

var _ store.Adopter = (*DB)(nil)

// Splits implements [store.Adopter]. It divides the span between the first and the last
// key evenly, as if keys were numbers, then each part again. So it costs two seeks a
// split, and never reads the table. Parts are even if keys are: counted, or random.
func (db *DB) Splits(ctx context.Context, t store.Target, namespace string, most int) (keys []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("split %s: %w", t.Kind, err)
		}
	}()
	if err := checkTarget(t, namespace); err != nil {
		return nil, err
	}
	if err := db.enter(ctx); err != nil {
		return nil, err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	prefix := entityPrefix(nil, t.Kind)
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{
		LowerBound: prefix, UpperBound: prefixEnd(bytes.Clone(prefix))})
	if err != nil {
		return nil, classify("read", err)
	}
	defer func() { err = classify("read", errors.Join(err, it.Close())) }()
	for _, key := range divide(it, len(prefix), most) {
		text, err := appendKeyText(nil, key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, string(text))
	}
	return keys, it.Error()
}

// divide returns encoded keys of entities, at most so many, in order. Each round halves
// the gaps that the last one left, until there are enough or no gap holds a further key.
func divide(it *pebble.Iterator, prefix, most int) [][]byte {
	if !it.First() {
		return nil
	}
	ends := [][]byte{bytes.Clone(it.Key()[prefix:])}
	it.Last()
	ends = append(ends, bytes.Clone(it.Key()[prefix:]))
	table := bytes.Clone(it.Key()[:prefix])
	for found := true; found && len(ends)-2 < most; {
		found = false
		next := ends[:1:1]
		for i, last := range ends[1:] {
			// Halfway to the last key of the gap, not to its end: the end may be far.
			if it.SeekLT(append(table[:prefix:prefix], last...)) &&
				it.SeekGE(append(table[:prefix:prefix], middle(ends[i], bytes.Clone(it.Key()[prefix:]))...)) {
				key := it.Key()[prefix:]
				if bytes.Compare(ends[i], key) < 0 && bytes.Compare(key, last) < 0 {
					next, found = append(next, bytes.Clone(key)), true
				}
			}
			next = append(next, last)
		}
		ends = next
	}
	return store.Evenly(ends[1:max(1, len(ends)-1)], most)
}

// middle returns a key halfway between two, by the eight bytes behind what they share.
// Names are mostly digits and letters, so bytes count as if no others existed.
func middle(first, last []byte) []byte {
	n := 0
	for n < len(first) && n < len(last) && first[n] == last[n] {
		n++
	}
	if len(first) > 0 && first[0] == keyName && n > 0 {
		return append(slices.Clone(first[:n]), middleText(first[n:], last[n:])...)
	}
	var a, b [8]byte
	copy(a[:], first[n:])
	copy(b[:], last[n:])
	low, high := binary.BigEndian.Uint64(a[:]), binary.BigEndian.Uint64(b[:])
	return binary.BigEndian.AppendUint64(slices.Clone(first[:n]), low+(high-low)/2)
}

// digits are the bytes that most names consist of, in order.
const digits = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// middleText returns the text halfway between two, by their first six bytes.
func middleText(first, last []byte) []byte {
	const length = 6
	number := func(text []byte, pad int) (n uint64) {
		for i := range length {
			d := pad
			if i < len(text) {
				d = max(0, bytes.LastIndexFunc([]byte(digits), func(r rune) bool { return byte(r) <= text[i] }))
			}
			n = n*uint64(len(digits)) + uint64(d)
		}
		return n
	}
	low, high := number(first, 0), number(last, len(digits)-1)
	mid := low + (high-low)/2
	out := make([]byte, length)
	for i := range out {
		out[length-1-i] = digits[mid%uint64(len(digits))]
		mid /= uint64(len(digits))
	}
	return out
}

// Walk implements [store.Adopter]. A source is a value in the entity's data: an instant
// is a text there, since JSON has no type for it. The store does not know when an
// entity was created.
func (db *DB) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) (err error) {
	rows.List, rows.More, rows.Next = rows.List[:0], false, nil
	defer func() {
		if err != nil {
			err = fmt.Errorf("walk %s: %w", q.Target.Kind, err)
		}
	}()
	if err := checkTarget(q.Target, q.Namespace); err != nil {
		return err
	}
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return invalid("limit %d is not between 1 and %d", q.Limit, store.MaxPage)
	}
	var from, until []byte
	if q.After != "" {
		if from, err = appendKey(nil, q.After); err != nil {
			return invalid("position: %w", err)
		}
		from = append(from, 0) // the next possible key: no other begins with a key
	}
	if q.Until != "" {
		if until, err = appendKey(nil, q.Until); err != nil {
			return invalid("end: %w", err)
		}
	}
	var bad error
	past := false
	next, err := db.readEntities(ctx, q.Target, from, q.Limit, func(id []byte, e entity) {
		if past = past || until != nil && bytes.Compare(id, until) > 0; past {
			return
		}
		row, err := rowOf(q, e)
		text, keyErr := appendKeyText(nil, id)
		row.Key = string(text)
		bad = errors.Join(bad, err, keyErr)
		rows.List = append(rows.List, row)
	})
	if err = errors.Join(err, classify("read", bad)); err != nil {
		return err
	}
	rows.More = next != nil && !past
	store.Bill(ctx, store.Operations{Reads: max(1, int64(len(rows.List)))})
	return nil
}

// Look implements [store.Adopter].
func (db *DB) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) (err error) {
	*rows = store.Rows{List: rows.List[:0]}
	defer func() {
		if err != nil {
			err = fmt.Errorf("look at %d entities of %s: %w", len(keys), q.Target.Kind, err)
		}
	}()
	if err := checkTarget(q.Target, q.Namespace); err != nil {
		return err
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	for _, key := range keys {
		id, err := appendKey(nil, key)
		if err != nil {
			return invalid("%w", err)
		}
		value, err := db.get(append(entityPrefix(nil, q.Target.Kind), id...))
		if err != nil {
			return classify("read", err)
		}
		if value == nil {
			continue
		}
		e, err := decodeEntity(value)
		if err != nil {
			return classify("read", err)
		}
		row, err := rowOf(q, e)
		if err != nil {
			return classify("read", err)
		}
		row.Key = key
		rows.List = append(rows.List, row)
	}
	store.Bill(ctx, store.Operations{Reads: int64(len(keys))})
	return nil
}

// rowOf returns what a walk shows of an entity.
func rowOf(q store.WalkQuery, e entity) (row store.Row, err error) {
	row.Expiry = e.of(q.Target.Property)
	switch {
	case q.Source == "":
	case e.of(q.Source).Type != store.Missing:
		row.Source = e.of(q.Source)
	case len(e.data) > 0:
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(e.data, &fields); err != nil {
			return row, fmt.Errorf("%w: %w", errRow, err)
		}
		row.Source, err = fieldValue(fields[q.Source])
	}
	return row, err
}

// fieldValue returns the value of a property in an entity's data.
func fieldValue(raw json.RawMessage) (store.Value, error) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return store.Value{}, nil
	case raw[0] == '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return store.TextValue(text), err
	case raw[0] == '[':
		return store.Value{Type: store.List, Text: string(raw)}, nil
	}
	return store.Value{Type: store.Other, Text: string(raw)}, nil
}

// Restamp implements [store.Adopter], under the write lock, in one batch of the engine. An
// entity that was put with another property has two indexed ones then. It cannot have three.
func (db *DB) Restamp(ctx context.Context, b *store.Restamping) (err error) {
	for i := range b.Ops {
		b.Ops[i].Outcome, b.Ops[i].Now = store.RowUnknown, store.Row{}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("restamp %d entities of %s: %w", len(b.Ops), b.Query.Target.Kind, err)
		}
	}()
	if err := checkTarget(b.Query.Target, b.Query.Namespace); err != nil {
		return err
	}
	if len(b.Ops) > store.MaxPage {
		return fmt.Errorf("%w: one call takes at most %d", store.ErrTooLarge, store.MaxPage)
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if err := db.acquire(ctx); err != nil {
		return err
	}
	defer db.release()
	outcomes := make([]store.RestampOutcome, len(b.Ops))
	batch := db.engine.NewBatch()
	bill := store.Operations{Reads: int64(len(b.Ops))}
	for i := range b.Ops {
		var wrote bool
		if outcomes[i], wrote, err = db.restampLocked(b.Query, &b.Ops[i], batch); err != nil {
			if !errors.Is(err, store.ErrInvalid) {
				err = classify("write", err)
			}
			return errors.Join(err, batch.Close())
		}
		if wrote {
			bill.Writes++
		}
	}
	if err := ctx.Err(); err != nil { // the last chance to stop
		return errors.Join(err, batch.Close())
	}
	if err := db.commit(batch); err != nil {
		return err
	}
	for i := range b.Ops {
		b.Ops[i].Outcome = outcomes[i]
	}
	store.Bill(ctx, bill)
	return nil
}

// restampLocked adds what restamps one entity to the batch.
func (db *DB) restampLocked(
	q store.WalkQuery, op *store.RestampOp, batch *pebble.Batch,
) (out store.RestampOutcome, wrote bool, err error) {
	id, err := appendKey(nil, op.Row.Key)
	if err != nil {
		return out, false, invalid("%w", err)
	}
	key := append(entityPrefix(nil, q.Target.Kind), id...)
	value, err := db.get(key)
	if err != nil {
		return out, false, err
	}
	var e entity
	var now store.Row
	if value != nil {
		if e, err = decodeEntity(value); err != nil {
			return out, false, err
		}
		if now, err = rowOf(q, e); err != nil {
			return out, false, err
		}
		now.Key = op.Row.Key
	}
	out, write := op.Judge(now, value != nil)
	if out == store.RowChanged {
		op.Now = now
	}
	if !write {
		return out, false, nil
	}
	to, err := normal(op.To)
	if err != nil {
		return out, false, invalid("%w", err)
	}
	buf, err := indexRows(nil, q.Target.Kind, e, id, func(k, _ []byte) error { return batch.Delete(k, nil) })
	if err != nil {
		return out, false, err
	}
	e, fits := e.with(q.Target.Property, to)
	if !fits {
		return out, false, invalid("%s has expiries in %s and %s, and an embedded store indexes two properties of an entity",
			op.Row.Key, e.property, e.other.property)
	}
	if err := batch.Set(key, appendEntity(nil, e), nil); err != nil {
		return out, false, err
	}
	if _, err := db.dropped[droppedKey(q.Target)].index(buf, q.Target, e, id, batch); err != nil {
		return out, false, invalid("%w", err)
	}
	return out, true, nil
}
