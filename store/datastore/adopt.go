package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/iterator"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var _ store.Adopter = (*DB)(nil)

// scatterSamples is how many samples the service recommends for each split. About one
// entity in 128 has the hidden property that such a query goes by.
const scatterSamples = 32

// Splits implements [store.Adopter]. It asks the service for its own samples of the keys.
// The emulator has none, and neither has a small kind: then it looks up random keys.
func (d *DB) Splits(ctx context.Context, t store.Target, namespace string, most int) ([]string, error) {
	op := "split " + where(t, namespace)
	query := sdk.NewQuery(t.Kind).Namespace(namespace).KeysOnly().Order("__scatter__").Limit(most * scatterSamples)
	keys, err := d.client.GetAll(ctx, query, nil)
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	if len(keys) < most {
		paths, err := google.SampleKeys(ctx, most, func(ctx context.Context, path []string) ([]string, error) {
			found, err := d.client.GetAll(ctx, seekKey(t, namespace, path), nil)
			if err != nil || len(found) == 0 {
				return nil, err
			}
			keys = append(keys, found...)
			return strings.Split(FormatKey(found[0]), "/"), nil
		})
		if err != nil {
			return nil, d.fail(ctx, fmt.Sprintf("%s, after %d samples", op, len(paths)), err)
		}
	}
	slices.SortFunc(keys, compareKeys)
	keys = slices.CompactFunc(keys, func(a, b *sdk.Key) bool { return compareKeys(a, b) == 0 })
	var splits []string
	for _, k := range store.Evenly(keys, most) {
		splits = append(splits, FormatKey(k))
	}
	return splits, nil
}

// seekKey returns the query for the first key at or after a path, or for the first of all.
func seekKey(t store.Target, namespace string, path []string) *sdk.Query {
	query := sdk.NewQuery(t.Kind).Namespace(namespace).KeysOnly().Order("__key__").Limit(1)
	if key, err := ParseKey(namespace, strings.Join(path, "/")); err == nil {
		query = query.FilterField("__key__", ">=", key)
	}
	return query
}

// compareKeys orders keys as the service does: by their paths, an ancestor before what is
// below it, and numbers before names.
func compareKeys(a, b *sdk.Key) int {
	return slices.CompareFunc(elements(a), elements(b), func(x, y *sdk.Key) int {
		return cmp.Or(strings.Compare(x.Kind, y.Kind), cmp.Compare(min(1, len(x.Name)), min(1, len(y.Name))),
			cmp.Compare(x.ID, y.ID), strings.Compare(x.Name, y.Name))
	})
}

func elements(k *sdk.Key) []*sdk.Key {
	if k == nil {
		return nil
	}
	return append(elements(k.Parent), k)
}

// Walk implements [store.Adopter]. A page is one query that reads whole entities, of
// which two properties are transferred: an entity without an expiry is in no index of it.
func (d *DB) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	_, err := d.WalkWritten(ctx, q, rows)
	return err
}

// WalkWritten is Walk, and tells when each entity was last written: the zero time if the service
// did not say.
func (d *DB) WalkWritten(ctx context.Context, q store.WalkQuery, rows *store.Rows) (written []time.Time, err error) {
	if written, err = d.walk(ctx, q, rows); err != nil {
		rows.List = rows.List[:0]
		return nil, d.fail(ctx, "walk "+where(q.Target, q.Namespace), err)
	}
	return written, nil
}

// A walkPlace is the Next of a page: the service's cursor in the query for all rows.
type walkPlace struct {
	query  store.WalkQuery // without After, Next and Limit
	after  string          // of the query that the cursor belongs to
	cursor sdk.Cursor
}

func walkOf(q store.WalkQuery) store.WalkQuery {
	q.After, q.Next, q.Limit = "", nil, 0
	return q
}

func (d *DB) walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) (written []time.Time, err error) {
	rows.List, rows.More, rows.Next = rows.List[:0], false, nil
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return nil, fmt.Errorf("%w: a page of %d rows, not of 1 to %d", store.ErrInvalid, q.Limit, store.MaxPage)
	}
	place := walkPlace{query: walkOf(q), after: q.After}
	query := sdk.NewQuery(q.Target.Kind).Namespace(q.Namespace).Order("__key__").Limit(q.Limit)
	if q.Next != nil {
		at, ok := q.Next.(*walkPlace)
		if !ok || at.query != place.query {
			return nil, fmt.Errorf("%w: the page before was read with another query", store.ErrInvalid)
		}
		place = *at
		query = query.Start(at.cursor)
	}
	for op, text := range map[string]string{">": place.after, "<=": q.Until} {
		if text == "" {
			continue
		}
		key, err := ParseKey(q.Namespace, text)
		if err != nil {
			return nil, err
		}
		query = query.FilterField("__key__", op, key)
	}
	c := &call{single: true, walk: true, mask: q.Target.Property, also: q.Source}
	it := d.client.Run(withCall(ctx, c), query)
	for {
		row := pair{property: q.Target.Property, source: q.Source}
		key, err := it.Next(&row)
		if errors.Is(err, iterator.Done) || errors.Is(err, errStopped) {
			break
		}
		if err != nil {
			return nil, err
		}
		one := row.of(key, c)
		rows.List, written = append(rows.List, one), append(written, c.updated[one.Key])
	}
	end, err := c.end()
	if err != nil {
		return nil, err
	}
	place.cursor = end
	if c.more != pb.QueryResultBatch_NO_MORE_RESULTS {
		rows.More, rows.Next = true, &place
	}
	return written, nil
}

// Look implements [store.Adopter].
func (d *DB) Look(ctx context.Context, q store.WalkQuery, texts []string, rows *store.Rows) error {
	*rows = store.Rows{List: rows.List[:0]}
	op := fmt.Sprintf("look at %d of %s", len(texts), where(q.Target, q.Namespace))
	keys := make([]*sdk.Key, len(texts))
	for i, text := range texts {
		var err error
		if keys[i], err = ParseKey(q.Namespace, text); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	for _, g := range groups(keys) {
		c := &call{mask: q.Target.Property, also: q.Source, walk: true}
		some := pick(keys, g)
		pairs, missing, err := getPairs(q, some, func(keys []*sdk.Key, pairs []pair) error {
			return d.client.GetMulti(withCall(ctx, c), keys, pairs)
		})
		if err != nil {
			rows.List = rows.List[:0]
			return d.fail(ctx, op, err)
		}
		for i, key := range some {
			if !missing[i] {
				rows.List = append(rows.List, pairs[i].of(key, c))
			}
		}
	}
	return nil
}

// getPairs reads entities, whose keys the client must be able to tell apart, and says which of
// them do not exist.
func getPairs(
	q store.WalkQuery, keys []*sdk.Key, get func([]*sdk.Key, []pair) error,
) (pairs []pair, missing []bool, err error) {
	pairs, missing = make([]pair, len(keys)), make([]bool, len(keys))
	for i := range pairs {
		pairs[i] = pair{property: q.Target.Property, source: q.Source}
	}
	err = get(keys, pairs)
	var multi sdk.MultiError
	if !errors.As(err, &multi) {
		return pairs, missing, err
	}
	for i, e := range multi {
		if missing[i] = errors.Is(e, sdk.ErrNoSuchEntity); e != nil && !missing[i] {
			return nil, nil, e
		}
	}
	return pairs, missing, nil
}

// A pair loads the two properties of an entity that adoption reads.
type pair struct {
	property, source string
	expiry, from     store.Value
}

// Load implements the client's PropertyLoadSaver.
func (p *pair) Load(ps []sdk.Property) error {
	p.expiry, p.from = store.Value{}, store.Value{}
	for i := range ps {
		if ps[i].Name == p.property {
			p.expiry = stored(ps[i].Value)
		}
		if ps[i].Name == p.source {
			p.from = stored(ps[i].Value)
		}
	}
	return nil
}

// Save implements the client's PropertyLoadSaver; nothing calls it.
func (p *pair) Save() ([]sdk.Property, error) {
	return nil, errors.New("a pair is only read")
}

func (p *pair) of(key *sdk.Key, c *call) store.Row {
	row := store.Row{Key: FormatKey(key), Expiry: p.expiry, Source: p.from, Ref: key}
	if at, ok := c.created[row.Key]; ok {
		row.Created = store.InstantValue(at)
	}
	return row
}

// Restamp implements [store.Adopter]: a transaction that reads the entities again and
// updates those that are as they were. All writes of a batch are one commit. A masked
// update changes one property, and cannot create a deleted entity.
func (d *DB) Restamp(ctx context.Context, b *store.Restamping) error {
	for i := range b.Ops {
		b.Ops[i].Outcome, b.Ops[i].Now = store.RowUnknown, store.Row{}
	}
	if len(b.Ops) == 0 {
		return nil
	}
	err := d.restamp(ctx, b)
	if err == nil {
		return nil
	}
	return d.fail(ctx, fmt.Sprintf("restamp %d of %s", len(b.Ops), where(b.Query.Target, b.Query.Namespace)), err)
}

func (d *DB) restamp(ctx context.Context, b *store.Restamping) (err error) {
	if most := d.most(); len(b.Ops) > most {
		return fmt.Errorf("%w: more than %d", store.ErrTooLarge, most)
	}
	keys := make([]*sdk.Key, len(b.Ops))
	for i := range b.Ops {
		if keys[i], err = keyOf(b.Query.Namespace, store.Entry{Key: b.Ops[i].Row.Key, Ref: b.Ops[i].Row.Ref}); err != nil {
			return err
		}
	}
	// The transaction remembers its context, and with it the mask.
	c := &call{mask: b.Query.Target.Property, also: b.Query.Source, walk: true}
	tx, err := d.begin(withCall(ctx, c))
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			rollback(tx)
		}
	}()
	var changed []int
	for _, g := range groups(keys) {
		doomed, err := d.judge(tx, c, b, keys, g)
		if err != nil {
			return err
		}
		changed = append(changed, doomed...)
	}
	for _, i := range changed {
		if err := restampIn(tx, b.Query.Target, keys[i], b.Ops[i].To); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil || len(changed) == 0 {
		return err
	}
	if _, err := tx.Commit(); err != nil {
		return err // these stay unknown: they may have been written
	}
	committed = true
	for _, i := range changed {
		b.Ops[i].Outcome = store.RowRestamped
	}
	return nil
}

// judge reads a group of entities in a transaction, sets the outcomes of those that need no
// write, and returns the others.
func (d *DB) judge(
	tx *sdk.Transaction, c *call, b *store.Restamping, keys []*sdk.Key, group []int,
) (write []int, err error) {
	pairs, missing, err := getPairs(b.Query, pick(keys, group), func(keys []*sdk.Key, pairs []pair) error {
		return tx.GetMulti(keys, pairs)
	})
	if err != nil {
		return nil, err
	}
	for i, n := range group {
		op, now := &b.Ops[n], pairs[i].of(keys[n], c)
		outcome, doomed := op.Judge(now, !missing[i])
		switch {
		case doomed:
			write = append(write, n)
		case outcome == store.RowChanged:
			op.Outcome, op.Now = outcome, now
		default:
			op.Outcome = outcome
		}
	}
	return write, nil
}

// restampIn adds a mutation to a transaction that sets or removes an entity's expiry.
func restampIn(tx *sdk.Transaction, t store.Target, key *sdk.Key, to store.Value) error {
	if to.Type != store.Missing {
		return carryIn(tx, t, key, to)
	}
	// A property that the mask names and the entity lacks is removed.
	_, err := tx.Mutate(sdk.NewUpdate(key, &sdk.PropertyList{}).WithPropertyMask(maskPath(t.Property)))
	return err
}
