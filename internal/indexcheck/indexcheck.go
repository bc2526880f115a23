// Package indexcheck tells whether index definitions serve a query, by the rules of the
// services. It is for tests: an emulator runs any query without an index.
//
// The invariant is that it knows no more indexes than the definitions have and the services
// make by themselves. Limits: it knows queries with equality filters and ascending orders, which
// are all that the drivers send.
package indexcheck

import (
	"slices"

	"github.com/reaper-ttl/reaper/internal/indexes"
)

// A Query is what an index must serve.
type Query struct {
	Collection string // its id, or the kind
	Scope      indexes.Scope
	Equal      []string // properties with an equality filter
	Order      []string // properties in the order of the results, ascending; an inequality's are among them
}

// Serves reports whether the query can be run on the definitions and on the automatic
// indexes of single fields. The key or name, by which every index is ordered in the end, is no
// property here.
func Serves(d indexes.Definitions, q Query) bool {
	properties := append(slices.Clone(q.Equal), q.Order...)
	if len(properties) == 0 {
		return true // by name alone
	}
	if len(properties) == 1 {
		for _, f := range d.Fields {
			if f.Collection == q.Collection && f.Path == properties[0] {
				return slices.Contains(f.Singles, indexes.Single{Scope: q.Scope})
			}
		}
		return q.Scope == indexes.Collection
	}
	return slices.ContainsFunc(d.Composites, func(c indexes.Composite) bool {
		if c.Collection != q.Collection || c.Scope != q.Scope || len(c.Fields) != len(properties) {
			return false
		}
		// Equalities come first, in any order; then the order's, in theirs.
		head, tail := c.Fields[:len(q.Equal)], c.Fields[len(q.Equal):]
		for _, p := range q.Equal {
			if !slices.Contains(head, p) {
				return false
			}
		}
		return slices.Equal(tail, q.Order)
	})
}
