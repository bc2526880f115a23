// Package layout knows how the entities of a target say when they expire, and all that
// follows from it: which settings a target has, what its ranges are, which values bound them,
// how an expiry is read and written, and what lies outside all ranges.
//
// The invariant is that the ranges of a layout, together with their gaps, are the whole index
// of a namespace, each part once: what is in no range is found by counting the gaps.
//
// Limits: all values of one layout have one type of the store's, [store.Text] or
// [store.Instant]: drivers compare no others.
package layout

import (
	"slices"
)

// A Layout is how a target's entities say when they expire, by the name that it has in the
// targets file and in records.
type Layout string

// The layouts.
const (
	Generation       Layout = "generation"        // expiry keys in generations that follow each other
	Sharded          Layout = "sharded"           // expiry keys in the nursery only
	ShardedTimestamp Layout = "sharded-timestamp" // a shard value and a timestamp
	Timestamp        Layout = "timestamp"         // a timestamp
)

// A row is all that tells a layout from others, apart from its form.
type row struct {
	layout   Layout
	form     Form
	property string   // the name of the expiry property if the targets file has none; empty if it must have one
	uses     []string // settings of the targets file that only some layouts have
	sample   []string // what the demo's targets file has of it
}

// rows has each layout once, the default first.
var rows = []row{
	{layout: Generation, form: Keys, property: "expiry_key", uses: []string{"shards", "generations"}},
	{layout: Sharded, form: Keys, property: "expiry_key", uses: []string{"shards"}, sample: []string{"layout: sharded"}},
	{layout: ShardedTimestamp, form: Instants, uses: []string{"shard_property", "shard_values"},
		sample: []string{"layout: sharded-timestamp", "property: expires", "shard_property: shard",
			"shard_values: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]"}},
	{layout: Timestamp, form: Instants, sample: []string{"layout: timestamp", "property: expires"}},
}

func (l Layout) row() row {
	for _, r := range rows {
		if r.layout == l {
			return r
		}
	}
	return row{}
}

// All lists the layouts, the default first.
func All() (list []Layout) {
	for _, r := range rows {
		list = append(list, r.layout)
	}
	return list
}

// Settings lists the settings of the targets file that only some layouts have.
func Settings() (list []string) {
	for _, r := range rows {
		for _, name := range r.uses {
			if !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// Form returns what the values of the layout's expiry property are.
func (l Layout) Form() Form { return l.row().form }

// Uses reports whether the layout has a setting of [Settings].
func (l Layout) Uses(setting string) bool { return slices.Contains(l.row().uses, setting) }

// DefaultProperty returns the name of the expiry property if the targets file has none; it is
// empty if the file must have one.
func (l Layout) DefaultProperty() string { return l.row().property }

// HasSuccession reports whether generations follow each other, in addition to the nursery.
func (l Layout) HasSuccession() bool { return l.Uses("generations") }

// Sample returns lines for a target of this layout in a targets file.
func (l Layout) Sample() []string { return l.row().sample }
