package datastore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/reaper-ttl/reaper/store"
)

// Put implements [store.Writer], in one transaction. Only the expiry property
// and the shard property are indexed.
func (d *DB) Put(ctx context.Context, t store.Target, namespace string, entities []store.Entity) error {
	op := fmt.Sprintf("put %d of %s", len(entities), where(t, namespace))
	if len(entities) == 0 {
		return nil
	}
	if most := d.most(); len(entities) > most {
		return fmt.Errorf("%s: %w: more than %d", op, store.ErrTooLarge, most)
	}
	keys := make([]*sdk.Key, len(entities))
	lists := make([]sdk.PropertyList, len(entities))
	seen := make(map[string]bool, len(entities))
	for i, e := range entities {
		key, err := entityKey(t.Kind, namespace, e)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		text := FormatKey(key)
		if seen[text] {
			return fmt.Errorf("%s: %w: %s appears twice", op, store.ErrInvalid, text)
		}
		seen[text] = true
		if lists[i], err = entityProperties(t, e); err != nil {
			return fmt.Errorf("%s: %s: %w", op, text, err)
		}
		keys[i] = key
	}
	if err := d.put(ctx, keys, lists); err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

func (d *DB) put(ctx context.Context, keys []*sdk.Key, lists []sdk.PropertyList) error {
	tx, err := d.begin(ctx)
	if err != nil {
		return err
	}
	if _, err = tx.PutMulti(keys, lists); err == nil {
		if err = ctx.Err(); err == nil {
			_, err = tx.Commit()
		}
	}
	if err != nil {
		rollback(tx)
	}
	return err
}

// Key implements [store.Keyer].
func (d *DB) Key(t store.Target, namespace string, e store.Entity) (string, error) {
	key, err := entityKey(t.Kind, namespace, e)
	return FormatKey(key), err
}

// ID implements [store.Keyer].
func (d *DB) ID(text string) (string, error) {
	key, err := ParseKey("", text)
	if err != nil {
		return "", err
	}
	if key.Name == "" {
		return strconv.FormatInt(key.ID, 10), nil
	}
	return key.Name, nil
}

func entityKey(kind, namespace string, e store.Entity) (*sdk.Key, error) {
	key := &sdk.Key{Kind: kind, Name: e.Name, Namespace: namespace}
	if e.Name == "" {
		if e.Number <= 0 {
			return nil, fmt.Errorf("%w: an entity has neither a name nor a positive number", store.ErrInvalid)
		}
		key.ID = e.Number
	}
	if e.Parent != "" {
		var err error
		if key.Parent, err = ParseKey(namespace, e.Parent); err != nil {
			return nil, fmt.Errorf("parent: %w", err)
		}
	}
	return key, nil
}

func entityProperties(t store.Target, e store.Entity) (sdk.PropertyList, error) {
	var ps sdk.PropertyList
	if len(e.Data) > 0 {
		raw, err := parseJSON(e.Data)
		if err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		object, ok := raw.(*sdk.Entity)
		if !ok {
			return nil, fmt.Errorf("data: %w: it is no JSON object", store.ErrInvalid)
		}
		ps = object.Properties
	}
	for _, p := range ps {
		if p.Name == t.Property || t.ShardProperty != "" && p.Name == t.ShardProperty {
			return nil, fmt.Errorf("data: %w: it holds the property %s, which is set apart from the data",
				store.ErrInvalid, p.Name)
		}
	}
	if e.Shard.Type != store.Missing {
		if t.ShardProperty == "" {
			return nil, fmt.Errorf("%w: the target has no shard property", store.ErrInvalid)
		}
		shard, err := shardOperand(e.Shard)
		if err != nil {
			return nil, err
		}
		ps = append(ps, sdk.Property{Name: t.ShardProperty, Value: shard})
	}
	expiry, err := expiryProperty(t.Property, e.Expiry)
	return append(ps, expiry...), err
}

// expiryProperty returns the one indexed property, or none for an entity that
// never expires.
func expiryProperty(property string, v store.Value) (sdk.PropertyList, error) {
	p := sdk.Property{Name: property}
	var err error
	switch v.Type {
	case store.Missing:
		return nil, nil
	case store.Text, store.Instant:
		p.Value, err = operand(v)
	default:
		p.Value, err = parseJSON([]byte(v.Text))
	}
	if err != nil {
		return nil, fmt.Errorf("expiry: %w", err)
	}
	return sdk.PropertyList{p}, nil
}

// Dump implements [store.Dumper]. It holds one of the service's batches in memory.
func (d *DB) Dump(ctx context.Context, t store.Target, namespace string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		op := "dump " + where(t, namespace)
		it := d.client.Run(ctx, sdk.NewQuery(t.Kind).Namespace(namespace).Order("__key__"))
		for {
			var ps sdk.PropertyList
			key, err := it.Next(&ps)
			if errors.Is(err, iterator.Done) {
				return
			}
			if err != nil {
				yield(store.Entity{}, d.fail(ctx, op, err))
				return
			}
			e, err := entityOf(key, ps, t)
			if err != nil {
				yield(store.Entity{}, fmt.Errorf("%s: %s: %w: %w", op, FormatKey(key), store.ErrFailed, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func entityOf(key *sdk.Key, ps sdk.PropertyList, t store.Target) (store.Entity, error) {
	e := store.Entity{Name: key.Name, Number: key.ID, Parent: FormatKey(key.Parent), Namespace: key.Namespace}
	rest := make([]sdk.Property, 0, len(ps))
	for _, p := range ps {
		v := stored(p.Value)
		switch _, whole := v.Integer(); {
		case p.Name == t.Property:
			e.Expiry = v
		case p.Name == t.ShardProperty && (v.Type == store.Text || whole):
			e.Shard = v
		default:
			rest = append(rest, p)
		}
	}
	text := jsonText(jsonObject(rest))
	if !json.Valid([]byte(text)) {
		return e, fmt.Errorf("its data has no form in JSON: %.200s", text)
	}
	e.Data = []byte(text)
	return e, nil
}
