package datastore

import (
	"context"
	"errors"
	"fmt"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/reaper-ttl/reaper/store"
)

// Dispose implements [store.Store], by the target's guard, which is lookup for
// a batch that carries. All writes of a batch are one commit, so that they happen
// together or not at all.
func (d *DB) Dispose(ctx context.Context, b *store.Batch) error {
	b.SteppedOver = store.UnknownSteps
	for i := range b.Ops {
		b.Ops[i].Outcome, b.Ops[i].Now, b.Ops[i].Known = store.Unknown, store.Value{}, false
	}
	if len(b.Ops) == 0 {
		return nil
	}
	guard, err := d.guardOf(b)
	if err != nil {
		return d.failDispose(ctx, b, b.Query.Target.Guard, err)
	}
	if err = d.dispose(ctx, b, guard); err != nil {
		err = d.failDispose(ctx, b, guard, err)
	}
	isAuto := b.Query.Target.Guard != store.GuardQuery
	if guard == store.GuardQuery && isAuto && errors.Is(err, store.ErrUnsupported) {
		// The query was refused, so nothing was written, and auto is lookup from now on.
		if err = d.dispose(ctx, b, store.GuardLookup); err != nil {
			err = d.failDispose(ctx, b, store.GuardLookup, err)
		}
	}
	return err
}

func (d *DB) failDispose(ctx context.Context, b *store.Batch, guard store.Guard, err error) error {
	return d.fail(ctx, fmt.Sprintf("dispose of %d of %s by guard %s", len(b.Ops),
		where(b.Query.Target, b.Query.Namespace), guard), err)
}

// dispose does what Dispose does, with one guard.
func (d *DB) dispose(ctx context.Context, b *store.Batch, guard store.Guard) error {
	if most := d.most(); len(b.Ops) > store.MaxPage || len(b.Ops) > most && !b.DryRun {
		return fmt.Errorf("%w: more than %d", store.ErrTooLarge, most)
	}
	s, err := newSet(b, guard)
	if err != nil {
		return err
	}
	if !b.DryRun {
		return d.writeChecked(ctx, s)
	}
	if err := d.check(ctx, nil, s); err != nil {
		return err
	}
	s.done()
	return nil
}

// A set holds a batch by entities. There are fewer entities than ops if the index shows
// several elements of a list.
type set struct {
	batch  *store.Batch
	guard  store.Guard
	keys   []*sdk.Key
	ops    [][]*store.Op  // for each key
	at     map[string]int // for each entry's text of a key its place in keys
	doomed []int          // the keys that are to be deleted or carried
}

func newSet(b *store.Batch, guard store.Guard) (*set, error) {
	s := &set{batch: b, guard: guard, keys: make([]*sdk.Key, 0, len(b.Ops)), ops: make([][]*store.Op, 0, len(b.Ops)),
		at: make(map[string]int, len(b.Ops))}
	for i := range b.Ops {
		op := &b.Ops[i]
		if n, ok := s.at[op.Entry.Key]; ok {
			s.ops[n] = append(s.ops[n], op)
			continue
		}
		key, err := keyOf(b.Query.Namespace, op.Entry)
		if err != nil {
			return nil, err
		}
		s.at[op.Entry.Key] = len(s.keys)
		s.keys, s.ops = append(s.keys, key), append(s.ops, []*store.Op{op})
	}
	return s, nil
}

func (s *set) set(keys []int, o store.Outcome) {
	for _, k := range keys {
		for _, op := range s.ops[k] {
			op.Outcome = o
		}
	}
}

// to returns the expiry that the entity of a key gets, if it is carried.
func (s *set) to(k int) (to store.Value, carry bool) {
	to = s.ops[k][0].To
	return to, to.Type != store.Missing
}

// done sets the outcome of the doomed after the commit.
func (s *set) done() {
	for _, k := range s.doomed {
		if _, carry := s.to(k); carry {
			s.set([]int{k}, store.Carried)
		} else {
			s.set([]int{k}, store.Deleted)
		}
	}
}

// decide sets the outcome of a key whose entity was read, or dooms it. Second is what the property
// of the premises holds.
func (s *set) decide(k int, found bool, now, second store.Value) {
	switch {
	case !found:
		s.set([]int{k}, store.Gone)
	case len(s.ops[k]) == 1 && same(s.ops[k][0].Entry.Value, now) && s.ops[k][0].Premise.Holds(second):
		s.doomed = append(s.doomed, k)
	default:
		for _, op := range s.ops[k] {
			op.Outcome, op.Now, op.Known = store.Changed, now, true
			if op.To.Type != store.Missing && same(op.To, now) {
				op.Outcome = store.Carried // by an earlier try
			}
		}
	}
}

// writeChecked reads the entities and deletes or carries the unchanged ones in one
// transaction. The commit fails if another client has written one of them in between.
func (d *DB) writeChecked(ctx context.Context, s *set) (err error) {
	// The transaction remembers its context, and with it the mask.
	c := &call{mask: s.batch.Query.Target.Property, also: s.batch.PremiseProperty()}
	ctx = withCall(ctx, c)
	tx, err := d.begin(ctx)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			rollback(tx)
		}
	}()
	if s.batch.Query.Archive != nil {
		err = d.checkAndKeep(ctx, tx, c.tx, s)
	} else {
		err = d.check(ctx, tx, s)
	}
	if err != nil {
		return err
	}
	if len(s.doomed) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var gone []*sdk.Key
	for _, k := range s.doomed {
		to, carry := s.to(k)
		if !carry {
			gone = append(gone, s.keys[k])
		} else if err := carryIn(tx, s.batch.Query.Target, s.keys[k], to); err != nil {
			return err
		}
	}
	if err := deleteIn(tx, gone); err != nil {
		return err
	}
	if _, err := tx.Commit(); err != nil {
		return err // the doomed stay Unknown: they may be gone
	}
	committed = true
	s.done()
	return nil
}

// carryIn adds mutations to a transaction that set an entity's expiry and nothing else.
// An update, unlike an upsert, cannot create a deleted entity again.
func carryIn(tx *sdk.Transaction, t store.Target, key *sdk.Key, to store.Value) error {
	ps, err := expiryProperty(t.Property, to)
	if err != nil {
		return err
	}
	_, err = tx.Mutate(sdk.NewUpdate(key, &ps).WithPropertyMask(maskPath(t.Property)))
	return err
}

// deleteIn adds deletes to a transaction.
func deleteIn(tx *sdk.Transaction, keys []*sdk.Key) error {
	for _, g := range groups(keys) {
		if err := tx.DeleteMulti(pick(keys, g)); err != nil {
			return err
		}
	}
	return nil
}

// check decides about every key of the set, within a transaction unless tx is
// nil.
func (d *DB) check(ctx context.Context, tx *sdk.Transaction, s *set) error {
	rest := make([]int, 0, len(s.keys))
	shown := map[string]store.Value{}
	if s.guard == store.GuardQuery {
		var err error
		if shown, err = d.shown(ctx, tx, s); err != nil {
			return err
		}
	}
	for k, ops := range s.ops {
		now, ok := shown[ops[0].Entry.Key]
		if ok && len(ops) == 1 && same(ops[0].Entry.Value, now) {
			s.doomed = append(s.doomed, k)
		} else {
			rest = append(rest, k)
		}
	}
	return d.checkStored(ctx, tx, s, rest)
}

// checkStored decides about some keys of the set by what their entities hold.
func (d *DB) checkStored(ctx context.Context, tx *sdk.Transaction, s *set, rest []int) error {
	if len(rest) == 0 {
		return nil
	}
	keys, also := pick(s.keys, rest), s.batch.PremiseProperty()
	for _, g := range groups(keys) {
		cells, found, err := d.look(ctx, tx, s.batch.Query.Target.Property, also, pick(keys, g))
		if err != nil {
			return err
		}
		for i, n := range g {
			for _, op := range s.ops[rest[n]] {
				op.Entry.Written = writtenAt(ctx, keys[n])
			}
			s.decide(rest[n], found[i], stored(cells[i].value), stored(cells[i].second))
		}
	}
	return nil
}

// shown queries the batch's own part of the index, and returns what it shows of each
// entity. For an entity that appears twice, and so has a list, it returns nothing.
func (d *DB) shown(ctx context.Context, tx *sdk.Transaction, s *set) (map[string]store.Value, error) {
	out := make(map[string]store.Value, len(s.keys))
	for _, part := range s.own() {
		var page store.Page
		if _, err := d.read(ctx, tx, &part, store.MaxPage, &page); err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			if _, twice := out[e.Key]; twice {
				out[e.Key] = store.Value{Type: store.List}
			} else {
				out[e.Key] = e.Value
			}
		}
	}
	return out, nil
}

// look reads one property of entities, or two, whose keys the client must be able to
// tell apart, and says which of them exist.
func (d *DB) look(
	ctx context.Context, tx *sdk.Transaction, property, also string, keys []*sdk.Key,
) (cells []cell, found []bool, err error) {
	cells, found = make([]cell, len(keys)), make([]bool, len(keys))
	for i := range cells {
		cells[i].property, cells[i].also, found[i] = property, also, true
	}
	if tx != nil {
		err = tx.GetMulti(keys, cells)
	} else {
		err = d.client.GetMulti(withCall(ctx, &call{mask: property, also: also}), keys, cells)
	}
	var multi sdk.MultiError
	if !errors.As(err, &multi) {
		return cells, found, err
	}
	for i, e := range multi {
		if errors.Is(e, sdk.ErrNoSuchEntity) {
			found[i] = false
		} else if e != nil {
			return nil, nil, e
		}
	}
	return cells, found, nil
}

// Settle implements [store.Store].
func (d *DB) Settle(
	ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
) (store.Outcome, error) {
	op := fmt.Sprintf("settle %s of %s", e.Key, where(q.Target, q.Namespace))
	key, err := keyOf(q.Namespace, e)
	if err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	o, err := d.transact(ctx, q.Target, key, q.Archive, func(in *transacting) (store.Outcome, error) {
		verdict := decide(in.now)
		switch to, carry := verdict.To(); {
		case carry:
			return store.Carried, carryIn(in.tx, q.Target, key, to)
		case verdict == store.Delete:
			return store.Deleted, in.tx.Delete(key)
		}
		return store.Kept, nil
	})
	if err != nil {
		return store.Unknown, d.fail(ctx, op, err)
	}
	return o, nil
}

// A transacting is a transaction that has read one entity.
type transacting struct {
	tx    *sdk.Transaction
	id    []byte
	call  *call // by which its reads are made
	found bool
	now   store.Value      // its expiry
	whole *pb.EntityResult // if it was read whole
}

// transact reads the expiry of one entity in a transaction, and commits what act adds to it, unless act keeps
// the entity. If it does not exist, act is not called. With an archive, which is that of the entity alone, it is
// read whole, and kept there before act's delete of it is committed.
func (d *DB) transact(
	ctx context.Context, t store.Target, key *sdk.Key, archive store.Archive,
	act func(in *transacting) (store.Outcome, error),
) (store.Outcome, error) {
	c := &call{mask: t.Property}
	ctx = withCall(ctx, c)
	tx, err := d.begin(ctx)
	if err != nil {
		return store.Unknown, err
	}
	committed := false
	defer func() {
		if !committed {
			rollback(tx)
		}
	}()
	in := &transacting{tx: tx, id: c.tx, call: c}
	if err := d.readOne(ctx, in, t, key, archive != nil); err != nil {
		return store.Unknown, err
	}
	if !in.found {
		return store.Gone, nil
	}
	done, err := act(in)
	if err == nil && done == store.Deleted && archive != nil {
		err = keep(ctx, archive, t, []*pb.EntityResult{in.whole})
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return store.Unknown, err
	}
	if done == store.Kept {
		return store.Kept, nil
	}
	if _, err := tx.Commit(); err != nil {
		return store.Unknown, err
	}
	committed = true
	return done, nil
}

// readOne reads one entity in a transaction, whole or its expiry alone.
func (d *DB) readOne(ctx context.Context, in *transacting, t store.Target, key *sdk.Key, whole bool) error {
	keys := []*sdk.Key{key}
	if !whole {
		cells, found, err := d.look(ctx, in.tx, t.Property, "", keys)
		if err == nil {
			in.found, in.now = found[0], stored(cells[0].value)
		}
		return err
	}
	entities, err := d.readWhole(ctx, inTransaction(in.id), t.Kind, keys)
	if err == nil {
		in.whole = entities[0].result
		in.found, in.now = in.whole != nil, propertyOf(in.whole, t.Property)
	}
	return err
}
