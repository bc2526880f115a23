package datastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/store"
)

// A record is an entity of the default namespace. Its kind is the record's sort,
// and its name the record's key. Its fields are properties next to these two;
// nested fields are arrays of entities. Only the target is indexed.
const (
	targetProperty   = "target"
	revisionProperty = "revision"
)

// Load implements [store.Store], by lookups or by a query, both of which are
// strongly consistent.
func (d *DB) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	op := fmt.Sprintf("load %s of %s", q.Sort, q.Target)
	if err := q.Check(); err != nil {
		return store.Records{}, fmt.Errorf("%s: %w", op, err)
	}
	var c call
	var list []store.Record
	var err error
	if len(q.Keys) > 0 {
		list, err = d.loadKeys(withCall(ctx, &c), q)
	} else {
		list, err = d.loadPage(withCall(ctx, &c), q)
	}
	if err != nil {
		return store.Records{}, d.fail(ctx, op, err)
	}
	if c.now.IsZero() {
		return store.Records{}, fmt.Errorf("%s: %w: the reply from %s does not tell the store's time",
			op, store.ErrFailed, d.endpoint)
	}
	return store.Records{List: list, More: len(q.Keys) == 0 && len(list) == q.Most(), Now: c.now.UTC()}, nil
}

func (d *DB) loadKeys(ctx context.Context, q store.RecordQuery) ([]store.Record, error) {
	names := slices.Sorted(slices.Values(q.Keys))
	keys := make([]*sdk.Key, len(names))
	for i, name := range names {
		keys[i] = sdk.NameKey(string(q.Sort), name, nil)
	}
	rows := make([]sdk.PropertyList, len(keys))
	err := d.client.GetMulti(ctx, keys, rows)
	var multi sdk.MultiError
	if err != nil && !errors.As(err, &multi) {
		return nil, err
	}
	var list []store.Record
	for i, name := range names {
		if multi != nil && errors.Is(multi[i], sdk.ErrNoSuchEntity) {
			continue
		}
		if multi != nil && multi[i] != nil {
			return nil, multi[i]
		}
		r, err := decodeRecord(q.Sort, name, rows[i])
		if err != nil {
			return nil, err
		}
		if r.Target == q.Target {
			list = append(list, r)
		}
	}
	return list, nil
}

func (d *DB) loadPage(ctx context.Context, q store.RecordQuery) ([]store.Record, error) {
	query := sdk.NewQuery(string(q.Sort)).FilterField(targetProperty, "=", q.Target).Order("__key__").Limit(q.Most())
	if q.After != "" {
		query = query.FilterField("__key__", ">", sdk.NameKey(string(q.Sort), q.After, nil))
	}
	if q.Before != "" {
		query = query.FilterField("__key__", "<", sdk.NameKey(string(q.Sort), q.Before, nil))
	}
	it := d.client.Run(ctx, query)
	var list []store.Record
	for {
		var ps sdk.PropertyList
		key, err := it.Next(&ps)
		if errors.Is(err, iterator.Done) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		r, err := decodeRecord(q.Sort, key.Name, ps)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
}

// Save implements [store.Store].
func (d *DB) Save(ctx context.Context, r store.Record, prev string) error {
	op := fmt.Sprintf("save %s %s", r.Sort, r.Key)
	ps, err := encodeRecord(r)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if prev == "" && r.Fields != nil {
		err = d.create(ctx, r, ps)
	} else {
		err = d.save(ctx, r, ps, prev)
	}
	if err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// create needs no transaction: an insert fails if there is a record. So processes that
// claim the same new ranges at once never wait for each other's locks.
func (d *DB) create(ctx context.Context, r store.Record, ps sdk.PropertyList) error {
	key := sdk.NameKey(string(r.Sort), r.Key, nil)
	_, err := d.client.Mutate(ctx, sdk.NewInsert(key, &ps))
	var rpc *rpcError
	if !errors.As(err, &rpc) || rpc.status.Code() != codes.AlreadyExists {
		return err
	}
	cells, found, err := d.look(ctx, nil, revisionProperty, "", []*sdk.Key{key})
	if err != nil {
		return err
	}
	now, _ := cells[0].value.(string)
	if found[0] && now == r.Revision {
		return nil // an earlier try of this call wrote it
	}
	return fmt.Errorf("%w: there is one already, of revision %q", store.ErrConflict, now)
}

func (d *DB) save(ctx context.Context, r store.Record, ps sdk.PropertyList, prev string) error {
	ctx = withCall(ctx, &call{mask: revisionProperty})
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
	key := sdk.NameKey(string(r.Sort), r.Key, nil)
	cells, found, err := d.look(ctx, tx, revisionProperty, "", []*sdk.Key{key})
	if err != nil {
		return err
	}
	now, _ := cells[0].value.(string)
	switch {
	case found[0] && r.Fields != nil && now == r.Revision:
		return nil // an earlier try of this call wrote it
	case !found[0] && r.Fields == nil:
		return nil
	case !found[0] || prev == "" || now != prev:
		return fmt.Errorf("%w: its revision is %q, not %q", store.ErrConflict, now, prev)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.Fields == nil {
		err = tx.Delete(key)
	} else {
		_, err = tx.Put(key, &ps)
	}
	if err != nil {
		return err
	}
	if _, err := tx.Commit(); err != nil {
		return err
	}
	committed = true
	return nil
}

// encodeRecord returns a record's properties.
func encodeRecord(r store.Record) (sdk.PropertyList, error) {
	if r.Key == "" || r.Sort == "" {
		return nil, fmt.Errorf("%w: the record has no sort or no key", store.ErrInvalid)
	}
	if r.Fields == nil {
		return nil, nil
	}
	if r.Revision == "" {
		return nil, fmt.Errorf("%w: the record has no revision", store.ErrInvalid)
	}
	ps, err := encodeFields(r.Fields)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{targetProperty, revisionProperty} {
		if _, taken := r.Fields[name]; taken {
			return nil, fmt.Errorf("%w: field %s has the name of the record's own", store.ErrInvalid, name)
		}
	}
	return append(ps,
		sdk.Property{Name: targetProperty, Value: r.Target},
		sdk.Property{Name: revisionProperty, Value: r.Revision, NoIndex: true}), nil
}

func encodeFields(fields store.Fields) (sdk.PropertyList, error) {
	ps := make(sdk.PropertyList, 0, len(fields)+2)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		p := sdk.Property{Name: name, NoIndex: true}
		switch v := fields[name].(type) {
		case string, int64, float64, bool:
			p.Value = v
		case []store.Fields:
			nested := make([]any, len(v))
			for i, f := range v {
				inner, err := encodeFields(f)
				if err != nil {
					return nil, fmt.Errorf("field %s: %w", name, err)
				}
				nested[i] = &sdk.Entity{Properties: inner}
			}
			p.Value = nested
		default:
			return nil, fmt.Errorf("%w: field %s is a %T", store.ErrInvalid, name, v)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// decodeRecord is strict: it refuses a record as a whole if another program has changed
// its form.
func decodeRecord(sort store.RecordSort, key string, ps sdk.PropertyList) (store.Record, error) {
	r := store.Record{Sort: sort, Key: key}
	fields, err := decodeFields(ps)
	if err != nil {
		return r, fmt.Errorf("%s %s: %w", sort, key, err)
	}
	var ok1, ok2 bool
	r.Target, ok1 = fields[targetProperty].(string)
	r.Revision, ok2 = fields[revisionProperty].(string)
	if !ok1 || !ok2 || r.Revision == "" {
		return r, fmt.Errorf("%s %s: %w: it lacks its target or its revision", sort, key, store.ErrCorrupt)
	}
	delete(fields, targetProperty)
	delete(fields, revisionProperty)
	r.Fields = fields
	return r, nil
}

func decodeFields(ps []sdk.Property) (store.Fields, error) {
	fields := make(store.Fields, len(ps))
	for _, p := range ps {
		switch v := p.Value.(type) {
		case string, int64, float64, bool:
			fields[p.Name] = v
		case []any:
			nested := make([]store.Fields, len(v))
			for i, e := range v {
				entity, ok := e.(*sdk.Entity)
				if !ok {
					return nil, fmt.Errorf("%w: element %d of field %s is a %T", store.ErrCorrupt, i, p.Name, e)
				}
				var err error
				if nested[i], err = decodeFields(entity.Properties); err != nil {
					return nil, fmt.Errorf("field %s: %w", p.Name, err)
				}
			}
			fields[p.Name] = nested
		default:
			return nil, fmt.Errorf("%w: field %s is a %T", store.ErrCorrupt, p.Name, v)
		}
	}
	return fields, nil
}
