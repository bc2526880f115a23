package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/store"
)

// nearby is how many rows the check steps over before it seeks instead.
const nearby = 16

// Dispose implements [store.Store]. Under the write lock it reads the batch's span
// of the index again, and deletes or carries what it still finds there, all in one
// batch of the engine. It never touches an entity whose expiry is a list.
func (db *DB) Dispose(ctx context.Context, b *store.Batch) (err error) {
	b.SteppedOver = 0
	for i := range b.Ops {
		op := &b.Ops[i]
		op.Outcome, op.Now, op.Known = store.Unknown, store.Value{}, false
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("dispose of %d entities of %s: %w", len(b.Ops), b.Query.Target.Kind, err)
		}
	}()
	if err := checkTarget(b.Query.Target, b.Query.Namespace); err != nil {
		return err
	}
	if len(b.Ops) > store.MaxPage {
		return invalid("a batch takes at most %d", store.MaxPage)
	}
	if b.Query.Archive != nil && !b.DryRun {
		return db.disposeArchived(ctx, b)
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if len(b.Ops) == 0 {
		return nil
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	prefix, err := s.encode(b)
	if err != nil {
		return err
	}
	if err := db.acquire(ctx); err != nil {
		return err
	}
	defer db.release()
	return db.disposeLocked(ctx, s, prefix, b, nil)
}

// encode sets the scratch's keys to the index keys of the batch's ops, and its
// order to the order of those keys.
func (s *scratch) encode(b *store.Batch) (prefix int, err error) {
	if prefix, err = s.spanOf(b.Query); err != nil {
		return 0, err
	}
	s.keys, s.ends, s.order = s.keys[:0], s.ends[:0], s.order[:0]
	sorted := true
	for i := range b.Ops {
		p := b.Ops[i].Entry.Position()
		s.keys = append(s.keys, s.lower...)
		if s.keys, err = appendValue(s.keys, p.Value); err != nil {
			return 0, invalid("entry %s: %w", p.Key, err)
		}
		if s.keys, err = appendKey(s.keys, p.Key); err != nil {
			return 0, invalid("entry: %w", err)
		}
		s.ends = append(s.ends, len(s.keys))
		s.order = append(s.order, i)
		sorted = sorted && (i == 0 || bytes.Compare(s.key(i-1), s.key(i)) < 0)
	}
	if !sorted {
		slices.SortStableFunc(s.order, func(i, j int) int { return bytes.Compare(s.key(i), s.key(j)) })
	}
	first, last := s.order[0], s.order[len(s.order)-1]
	s.lower = append(s.lower[:0], s.key(first)...)
	s.upper = append(append(s.upper[:0], s.key(last)...), 0)
	return prefix, nil
}

func (s *scratch) key(i int) []byte {
	if i == 0 {
		return s.keys[:s.ends[0]]
	}
	return s.keys[s.ends[i-1]:s.ends[i]]
}

// disposeLocked disposes of the ops in the scratch's order. If read is not nil, it deletes only entities that
// have the row that was read for an Archive.
func (db *DB) disposeLocked(ctx context.Context, s *scratch, prefix int, b *store.Batch, read *copies) error {
	kind := b.Query.Target.Kind
	batch := db.engine.NewBatchWithSize(2*len(s.keys) + 64)
	bill, err := db.check(ctx, s, prefix, b, read, batch)
	if err == nil {
		err = db.lookUp(s, prefix, b)
	}
	if err == nil {
		err = ctx.Err() // the last chance to stop: a commit that has begun is completed
	}
	if err == nil && bill != (store.Operations{}) && !b.DryRun {
		commit := db.commitDeletes
		if bill.Writes > 0 {
			commit = db.commit
		}
		if err = commit(batch); err == nil {
			store.Bill(ctx, bill)
			return nil
		}
	} else {
		err = errors.Join(err, batch.Close())
	}
	if err == nil {
		return nil
	}
	for i := range b.Ops {
		if o := b.Ops[i].Outcome; o == store.Deleted || o == store.Carried {
			b.Ops[i].Outcome = store.Unknown
		}
	}
	return classify("dispose of "+kind, err)
}

// check walks the index in step with the batch's ops. It marks ops whose rows still
// exist as deleted or carried, and adds their writes to the engine's batch. The
// other ops are left in the scratch's pending.
func (db *DB) check(
	ctx context.Context, s *scratch, prefix int, b *store.Batch, read *copies, batch *pebble.Batch,
) (bill store.Operations, err error) {
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: s.lower, UpperBound: s.upper})
	if err != nil {
		return bill, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	s.pending = s.pending[:0]
	entity := entityPrefix(s.text[:0], b.Query.Target.Kind)
	returned, entityLen := 0, len(entity)
	ok, previous := it.First(), []byte(nil)
	for _, i := range s.order {
		key := s.key(i)
		if bytes.Equal(key, previous) || b.Ops[i].Entry.Value.Type == store.List {
			// The same entry a second time; or a list that may be a plain value by now.
			s.pending = append(s.pending, i)
			continue
		}
		previous = key
		ok = ok && forward(it, key, &returned)
		if !ok || !bytes.Equal(it.Key(), key) {
			s.pending = append(s.pending, i)
			continue
		}
		mark, err := it.ValueAndErr()
		if err != nil {
			return bill, err
		}
		if bytes.Equal(mark, listMark) {
			s.pending = append(s.pending, i)
			continue
		}
		id, err := skipValue(key[prefix:])
		if err != nil {
			return bill, err
		}
		entity = append(entity[:entityLen], id...)
		if b.Ops[i].To.Type != store.Missing {
			if err := db.carry(batch, b.Query.Target, entity, key, id, b.Ops[i].To); err != nil {
				return bill, err
			}
			b.Ops[i].Outcome = store.Carried
			bill.Writes++
			continue
		}
		removed, err := db.remove(batch, b, i, read, entity, key, id, mark)
		if err != nil {
			return bill, err
		}
		if !removed {
			s.pending = append(s.pending, i)
			continue
		}
		bill.Deletes++
	}
	s.text = entity[:0]
	if ok {
		returned++
	}
	b.SteppedOver = steps(it, returned)
	return bill, it.Error()
}

// holds reports whether the entity in a row, which has an index row, may be deleted: if the premise of the op is
// still true of it and, with an Archive, if it is what was kept.
func (db *DB) holds(b *store.Batch, op int, read *copies, row []byte) (bool, error) {
	if read != nil {
		return db.isAsRead(read, op, row)
	}
	if b.Ops[op].Premise.Property == "" {
		return true, nil
	}
	value, err := db.get(row)
	if err != nil || value == nil {
		return false, err
	}
	return premiseHolds(b, op, value)
}

// premiseHolds reports whether the premise of an op is true of an entity, by the value of its row.
func premiseHolds(b *store.Batch, op int, value []byte) (bool, error) {
	p := b.Ops[op].Premise
	if p.Property == "" {
		return true, nil
	}
	e, err := decodeEntity(value)
	if err != nil {
		return false, err
	}
	now, err := rowOf(store.WalkQuery{Target: b.Query.Target, Source: p.Property}, e)
	return p.Holds(now.Source), err
}

// remove adds the deletes to the batch of the entity in a row, and of its index rows: of the
// given one alone, or if that is marked of all. It leaves alone an entity that must stay: see holds.
func (db *DB) remove(
	batch *pebble.Batch, b *store.Batch, op int, read *copies, row, key, id, mark []byte,
) (removed bool, err error) {
	if holds, err := db.holds(b, op, read, row); err != nil || !holds {
		return false, err
	}
	if err := errors.Join(batch.Delete(key, nil), batch.Delete(row, nil)); err != nil {
		return false, err
	}
	if len(mark) > 0 {
		value, err := db.get(row)
		if err != nil {
			return false, err
		}
		e, err := decodeEntity(value)
		if err != nil {
			return false, err
		}
		kind := b.Query.Target.Kind
		if _, err := indexRows(nil, kind, e, id, func(k, _ []byte) error { return batch.Delete(k, nil) }); err != nil {
			return false, err
		}
	}
	b.Ops[op].Outcome = store.Deleted
	return true, nil
}

// forward moves the iterator, which is at a row, to the first row not below the key, and
// counts the rows that it passes.
func forward(it *pebble.Iterator, key []byte, returned *int) bool {
	for skipped := 0; bytes.Compare(it.Key(), key) < 0; skipped++ {
		*returned++
		if skipped == nearby {
			return it.SeekGE(key)
		}
		if !it.Next() {
			return false
		}
	}
	return true
}

// carry adds the writes to the batch that give the entity in the given row another expiry,
// and replace the index row with the old key.
func (db *DB) carry(batch *pebble.Batch, t store.Target, row, oldKey, id []byte, to store.Value) error {
	to, err := normal(to)
	if err != nil {
		return invalid("carry: %w", err)
	}
	value, err := db.get(row)
	if err != nil {
		return err
	}
	e, err := decodeEntity(value)
	if err != nil {
		return err
	}
	e, _ = e.with(t.Property, to) // it has the property: a row of its index was found
	if err := errors.Join(batch.Delete(oldKey, nil), batch.Set(row, appendEntity(nil, e), nil)); err != nil {
		return err
	}
	if _, err = db.dropped[droppedKey(t)].index(nil, t, e, id, batch); err != nil {
		return invalid("carry: %w", err)
	}
	return nil
}

// lookUp finds the outcomes of the ops in the scratch's pending.
func (db *DB) lookUp(s *scratch, prefix int, b *store.Batch) error {
	t := b.Query.Target
	gone := make(map[string]bool)
	for i := range b.Ops {
		if len(s.pending) > 0 && b.Ops[i].Outcome == store.Deleted {
			gone[b.Ops[i].Entry.Key] = true
		}
	}
	for _, i := range s.pending {
		op := &b.Ops[i]
		id, err := skipValue(s.key(i)[prefix:])
		if err != nil {
			return err
		}
		value, err := db.get(append(entityPrefix(nil, t.Kind), id...))
		if err != nil {
			return err
		}
		if value == nil || gone[op.Entry.Key] {
			op.Outcome = store.Gone
			continue
		}
		e, err := decodeEntity(value)
		if err != nil {
			return err
		}
		op.Outcome, op.Now, op.Known = store.Changed, e.of(t.Property), true
		if op.To.Type != store.Missing && op.Now == op.To {
			op.Outcome = store.Carried // by an earlier try
		}
	}
	return nil
}

// Settle implements [store.Store]. The write lock is the transaction, so it never meets
// contention, unless there is an Archive; decide must not call the store.
func (db *DB) Settle(
	ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
) (out store.Outcome, err error) {
	defer func() {
		if err != nil {
			out, err = store.Unknown, fmt.Errorf("settle %s of %s: %w", e.Key, q.Target.Kind, err)
		}
	}()
	if err := checkTarget(q.Target, q.Namespace); err != nil {
		return store.Unknown, err
	}
	id, err := appendKey(nil, e.Key)
	if err != nil {
		return store.Unknown, invalid("%w", err)
	}
	if q.Archive != nil {
		return db.settleArchived(ctx, q, e, id, decide)
	}
	if err := db.enter(ctx); err != nil {
		return store.Unknown, err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if err := db.acquire(ctx); err != nil {
		return store.Unknown, err
	}
	defer db.release()
	return db.settleLocked(ctx, q.Target, id, decide, nil)
}

// settleLocked settles one entity. If seen is not nil, it deletes none but one that has this row.
func (db *DB) settleLocked(
	ctx context.Context, t store.Target, id []byte, decide func(store.Value) store.Verdict, seen []byte,
) (out store.Outcome, err error) {
	store.Bill(ctx, store.Operations{Reads: 1})
	key := append(entityPrefix(nil, t.Kind), id...)
	value, err := db.get(key)
	if err != nil {
		return store.Unknown, classify("read", err)
	}
	if value == nil {
		return store.Gone, nil
	}
	now, err := decodeEntity(value)
	if err != nil {
		return store.Unknown, classify("read", err)
	}
	verdict := decide(now.of(t.Property))
	to, carry := verdict.To()
	if verdict != store.Delete && !carry {
		return store.Kept, nil
	}
	if verdict == store.Delete && seen != nil && !bytes.Equal(value, seen) {
		return store.Unknown, fmt.Errorf("%w: it changed after a copy was kept", store.ErrContention)
	}
	batch := db.engine.NewBatch()
	oldKey, err := indexRows(nil, t.Kind, now, id, func(k, _ []byte) error { return batch.Delete(k, nil) })
	out = store.Deleted
	if carry {
		out = store.Carried
		err = errors.Join(err, db.carry(batch, t, key, oldKey, id, to))
	} else {
		err = errors.Join(err, batch.Delete(key, nil))
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return store.Unknown, errors.Join(classify("write", err), batch.Close())
	}
	if err := db.commit(batch); err != nil {
		return store.Unknown, err
	}
	if carry {
		store.Bill(ctx, store.Operations{Writes: 1})
	} else {
		store.Bill(ctx, store.Operations{Deletes: 1})
	}
	return out, nil
}
