package dsread

import (
	"cmp"
	"reflect"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
)

// An entity is one with its place in the order. The client loads it: its time,
// and then the caller's value from the same properties.
type entity[T any] struct {
	time  string // the property that holds it
	timed bool   // it was a timestamp
	at    time.Time
	key   *datastore.Key
	value T
}

var (
	_ datastore.PropertyLoadSaver = (*entity[int])(nil)
	_ datastore.KeyLoader         = (*entity[int])(nil)
)

// valueOf returns the value of a property, which may lie in an entity that another one holds. Its
// name then has a point, as has that of a flattened one.
func valueOf(properties []datastore.Property, name string) any {
	for _, p := range properties {
		if p.Name == name {
			return p.Value
		}
	}
	for _, p := range properties {
		rest, below := strings.CutPrefix(name, p.Name+".")
		if inner, ok := p.Value.(*datastore.Entity); ok && below {
			if v := valueOf(inner.Properties, rest); v != nil {
				return v
			}
		}
	}
	return nil
}

// LoadKey implements [datastore.KeyLoader]. The client calls it before Load.
func (e *entity[T]) LoadKey(k *datastore.Key) error {
	e.key = k
	return nil
}

// Load implements [datastore.PropertyLoadSaver].
func (e *entity[T]) Load(properties []datastore.Property) error {
	e.at, e.timed = valueOf(properties, e.time).(time.Time)
	if !e.timed {
		return nil // it is left out, so that its other properties do not matter
	}
	if l, ok := any(&e.value).(datastore.KeyLoader); ok {
		if err := l.LoadKey(e.key); err != nil {
			return err
		}
	}
	if l, ok := any(&e.value).(datastore.PropertyLoadSaver); ok {
		return l.Load(properties)
	}
	setKey(reflect.ValueOf(&e.value).Elem(), e.key)
	return datastore.LoadStruct(&e.value, properties)
}

// Save implements [datastore.PropertyLoadSaver], though nothing is written.
func (*entity[T]) Save() ([]datastore.Property, error) { return nil, datastore.ErrInvalidEntityType }

// setKey sets a struct's field for the key, if it has one. The client does that
// for structs that it loads, but not in LoadStruct.
func setKey(v reflect.Value, key *datastore.Key) {
	if v.Kind() != reflect.Struct {
		return
	}
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("datastore"), ",")
		if name == "__key__" && len(f.Index) == 1 && f.Type == reflect.TypeOf(key) {
			v.FieldByIndex(f.Index).Set(reflect.ValueOf(key))
		}
	}
}

// compareKeys orders keys as the store does: from the root on, by kind, ids by
// value and before all names, names by their bytes, an ancestor before its
// descendants.
func compareKeys(a, b *datastore.Key) int {
	p, q := path(a), path(b)
	for i := range min(len(p), len(q)) {
		k, l := p[i], q[i]
		named := func(k *datastore.Key) int { return min(len(k.Name), 1) }
		if c := cmp.Or(cmp.Compare(k.Kind, l.Kind), named(k)-named(l), cmp.Compare(k.ID, l.ID),
			cmp.Compare(k.Name, l.Name)); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(p), len(q))
}

// path returns the key and its ancestors, from the root on.
func path(k *datastore.Key) []*datastore.Key {
	if k == nil {
		return nil
	}
	return append(path(k.Parent), k)
}
