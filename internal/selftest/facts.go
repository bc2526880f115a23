package selftest

import (
	"slices"
	"strings"
)

// A Mode is the sort of a store.
type Mode string

// The modes.
const (
	Datastore Mode = "datastore"
	Native    Mode = "native"
	Embedded  Mode = "embedded"
)

// What a store may show, in the words of the report.
const (
	factIndexes    = "queries on two properties need composite indexes"
	factExplain    = "says what queries bill (Query Explain)"
	factNamespaces = "lists its namespaces"
	factGuard      = "how deletes of a single_valued target are checked by guard: auto"
	factLocks      = "how long a dead process's locks last"
	factCreated    = "tells when entities were created"
	factSteps      = "tells how many deleted entries a query stepped over"
)

// emulated is what Google's emulator shows in each mode. The embedded store is compared with
// the one of Datastore mode.
var emulated = map[Mode]map[string]string{
	Datastore: {factIndexes: "no", factExplain: "no", factNamespaces: "no", factGuard: "lookup",
		factLocks: locksAMinute, factCreated: "yes", factSteps: "no"},
	Native: {factIndexes: "no", factExplain: "no", factNamespaces: "has none", factGuard: "its own",
		factLocks: locksAMinute, factCreated: "yes", factSteps: "no"},
}

// How long locks last, roughly: two measurements of one store should be the same.
const (
	locksNone    = "no lock was met"
	locksAMinute = "about a minute"
	locksLonger  = "longer than two minutes"
	locksShort   = "less than half a minute"
)

// differences lists what the store showed that the emulator does not.
func (r *run) differences() []Difference {
	mode := r.setup.Mode
	if mode == Embedded {
		mode = Datastore
	}
	list := []Difference{}
	for what, here := range r.facts {
		if there := emulated[mode][what]; there != here {
			list = append(list, Difference{what, here, there})
		}
	}
	slices.SortFunc(list, func(a, b Difference) int { return strings.Compare(a.What, b.What) })
	return list
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
