package config

import (
	"fmt"
	"strings"
)

// An area is a set of entities that a target has under expiry. A narrow area is one
// collection, or a kind in one namespace. A wide area is a collection group, or a kind in
// all namespaces: it has neither path nor namespace.
type area struct {
	kind      string // the last segment of the path, which is what a collection group goes by
	property  string
	path      string
	namespace string
}

// An owner is the target that an area belongs to, and the place of its kind in the file.
type owner struct {
	target       Target
	label        string
	line, column int
}

// owners remembers the first target of each area. Maps keep the check linear: a file
// may have tens of thousands of targets.
type owners struct {
	wide, narrow map[area]owner
	within       map[area]owner // by wide area: the first target with a narrow one in it
}

func newOwners() owners {
	return owners{wide: map[area]owner{}, narrow: map[area]owner{}, within: map[area]owner{}}
}

// checkOwner refuses a target that shares entities and property with an earlier one: each
// entity would be deleted by the target that allows it first. It ignores a target of which
// a field that matters here was reported.
func (r *reader) checkOwner(o owners) {
	t := r.target
	if !r.good("kind", "group", "namespaces", "property", "layout") || t.Kind == "" || t.Property == "" {
		return
	}
	at := r.values["kind"]
	me := owner{t, r.label(), at.Line, at.Column}
	around := area{kind: t.Kind[strings.LastIndexByte(t.Kind, '/')+1:], property: t.Property}
	first, shared := o.wide[around]
	if t.Group || t.AllNamespaces {
		if !shared {
			first, shared = o.within[around]
		}
		keepFirst(o.wide, around, me)
	} else {
		for _, ns := range t.Namespaces {
			a := around
			a.path, a.namespace = t.Kind, ns
			if !shared {
				first, shared = o.narrow[a]
			}
			keepFirst(o.narrow, a, me)
		}
		keepFirst(o.within, around, me)
	}
	if shared {
		r.at(at, r.path+".kind", "%s and %s (line %d, column %d) expire the same entities: %s. "+
			"The shorter retention of the two would decide. Remove one of them, or give it another property",
			me.label, first.label, first.line, first.column, sharing(t, first.target))
	}
}

func keepFirst(m map[area]owner, a area, o owner) {
	if _, ok := m[a]; !ok {
		m[a] = o
	}
}

// label names the target in a message about another one.
func (r *reader) label() string {
	if r.target.Name == "" || r.bad["name"] {
		return r.path
	}
	return "target " + quote(r.target.Name)
}

// sharing says, for a message, which entities two targets have in common.
func sharing(a, b Target) string {
	property := "the property " + quote(a.Property)
	switch {
	case a.Group && !b.Group:
		return fmt.Sprintf("the collection group %s holds the collection %s, and both have %s",
			quote(a.Kind), quote(b.Kind), property)
	case b.Group && !a.Group:
		return sharing(b, a)
	case a.written["namespaces"] || b.written["namespaces"]:
		return fmt.Sprintf("both have the kind %s and %s, and a namespace in common", quote(a.Kind), property)
	}
	return fmt.Sprintf("both have the kind %s and %s", quote(a.Kind), property)
}
