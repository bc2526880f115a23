// Package indexes defines the indexes that the reaper's queries need, and prints them in
// the forms that Google's tools read: firestore.indexes.json, index.yaml, and gcloud
// commands.
//
// The invariant is that the definitions of a set of targets serve every query
// that the drivers send for any of them. Merging drops nothing from the existing
// file. [Definitions.Serves] checks one query; a test passes it the queries that
// were really sent.
//
// The definitions also switch off indexes that cost writes and serve no query of
// the reaper: the descending and the array index of an expiry key. For a target with
// a composite index they switch off all single-field indexes of shard and timestamp.
// Entities with only one of these two properties are then in no index: no count of
// the entries outside all ranges includes them.
//
// Limits: it knows the reaper's queries, not those of the application. In
// Datastore mode single properties are excluded from indexes by the writer of
// each entity, not by a definition.
package indexes

import (
	"cmp"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

// A Scope says over what an index ranges.
type Scope string

const (
	Collection      Scope = "COLLECTION"       // one collection
	CollectionGroup Scope = "COLLECTION_GROUP" // all collections of one id
)

// A Single is one of the indexes that a field may have by itself.
type Single struct {
	Array      bool // of the elements of arrays, not of whole values
	Descending bool
	Scope      Scope
}

// Automatic are the indexes that a field of Firestore in native mode has where
// nobody says otherwise.
var Automatic = []Single{{Scope: Collection}, {Descending: true, Scope: Collection}, {Array: true, Scope: Collection}}

// A Field says which indexes one field has by itself.
type Field struct {
	Collection string // the collection's id, the last segment of its path
	Path       string
	Singles    []Single // as recommended
	Needed     []Single // what the reaper's own queries need of them
	Automatic  bool     // the others are what is automatic: somebody else may query the field
}

// overrides reports whether the field's indexes differ from the automatic ones.
func (f Field) overrides() bool { return !slices.Equal(f.Singles, tidy(slices.Clone(Automatic))) }

// A Composite is an index on several fields, all ascending.
type Composite struct {
	Collection string // in Datastore mode the kind
	Scope      Scope
	Fields     []string
}

// Definitions are the indexes of a set of targets, in a fixed order.
type Definitions struct {
	Composites []Composite
	Fields     []Field
}

// ForFirestore returns the definitions for Firestore in native mode.
func ForFirestore(targets []store.Target) Definitions {
	type place struct{ collection, path string }
	fields := map[place]*Field{}
	at := func(collection, path string) *Field {
		p := place{collection, path}
		if fields[p] == nil {
			fields[p] = &Field{Collection: collection, Path: path}
		}
		return fields[p]
	}
	var d Definitions
	for _, t := range targets {
		collection, scope := lastSegment(t.Kind), Collection
		if t.Group {
			scope = CollectionGroup
		}
		if t.ShardProperty != "" {
			d.Composites = append(d.Composites, Composite{collection, scope, []string{t.ShardProperty, t.Property}})
			at(collection, t.ShardProperty)
			at(collection, t.Property)
			continue
		}
		f := at(collection, t.Property)
		f.Automatic = f.Automatic || t.Type == store.Instant
		f.Needed = append(f.Needed, Single{Scope: scope})
		if t.Type == store.Text {
			f.Singles = append(f.Singles, Single{Scope: Collection}) // for the console, and it costs little
		}
	}
	for _, sort := range ownRecords { // they are found by it
		f := at(string(sort), "target")
		f.Automatic, f.Needed = true, append(f.Needed, Single{Scope: Collection})
	}
	for _, f := range fields {
		f.Needed = tidy(f.Needed)
		f.Singles = append(f.Singles, f.Needed...)
		if f.Automatic {
			f.Singles = append(f.Singles, Automatic...)
		}
		f.Singles = tidy(f.Singles)
		d.Fields = append(d.Fields, *f)
	}
	d.sort()
	return d
}

// ownRecords are the sorts of the reaper's own records that are queried by target.
var ownRecords = []store.RecordSort{store.CursorRecord, store.WorkerRecord, store.SealRecord}

// ForDatastore returns the definitions for Firestore in Datastore mode, where
// single properties need none.
func ForDatastore(targets []store.Target) Definitions {
	var d Definitions
	for _, t := range targets {
		if t.ShardProperty != "" {
			d.Composites = append(d.Composites, Composite{t.Kind, Collection, []string{t.ShardProperty, t.Property}})
		}
	}
	d.sort()
	return d
}

// Of returns what concerns the collections of the given targets, and the
// reaper's own records. Definitions are made of all targets first, because those
// of one collection share its fields.
func (d Definitions) Of(targets []store.Target) Definitions {
	wanted := map[string]bool{}
	for _, sort := range ownRecords {
		wanted[string(sort)] = true
	}
	for _, t := range targets {
		wanted[t.Kind], wanted[lastSegment(t.Kind)] = true, true
	}
	return Definitions{
		Composites: slices.DeleteFunc(slices.Clone(d.Composites), func(c Composite) bool { return !wanted[c.Collection] }),
		Fields:     slices.DeleteFunc(slices.Clone(d.Fields), func(f Field) bool { return !wanted[f.Collection] }),
	}
}

func (d *Definitions) sort() {
	slices.SortFunc(d.Composites, func(a, b Composite) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.Scope, b.Scope),
			slices.Compare(a.Fields, b.Fields))
	})
	d.Composites = slices.CompactFunc(d.Composites, func(a, b Composite) bool {
		return a.Collection == b.Collection && a.Scope == b.Scope && slices.Equal(a.Fields, b.Fields)
	})
	slices.SortFunc(d.Fields, func(a, b Field) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.Path, b.Path))
	})
}

// tidy sorts singles, each once.
func tidy(list []Single) []Single {
	rank := func(s Single) int {
		n := 0
		if s.Array {
			n += 2
		} else if s.Descending {
			n++
		}
		if s.Scope == CollectionGroup {
			n += 4
		}
		return n
	}
	slices.SortFunc(list, func(a, b Single) int { return rank(a) - rank(b) })
	return slices.Compact(list)
}

func lastSegment(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
