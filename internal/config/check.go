package config

import (
	"errors"
	"strings"

	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

var errNotInt64 = errors.New("is not a whole number of 64 bits")

// check applies the rules that need more than one field, after the defaults. A rule
// ignores a field that was reported already: a second message would only mislead.
func (r *reader) check() {
	t := &r.target
	for _, name := range []string{"name", "kind", "property"} {
		if name == "property" && (t.Layout.DefaultProperty() != "" || r.bad["layout"]) {
			continue // it has a default, or may have
		}
		if r.values[name] == nil {
			r.at(r.node, r.path, "%s is missing", name)
		}
	}
	if r.good("kind", "group") && r.values["kind"] != nil {
		if err := checkKind(t.Kind, r.driver, t.Group); err != nil {
			r.at(r.values["kind"], r.path+".kind", "%s %v", quote(t.Kind), err)
			r.bad["kind"] = true
		}
	}
	r.checkStore()
	if r.good("layout") {
		r.checkLayout()
	}
	r.checkGuard()
	r.checkAdopt()
	r.checkLengths()
}

// checkGuard refuses guard query without the promise that it needs.
func (r *reader) checkGuard() {
	t := &r.target
	if t.Guard == store.GuardQuery && r.good("guard", "single_valued") && !t.SingleValued {
		r.blame("guard",
			"query needs single_valued: true, the promise that %s always holds one plain text: "+
				"a query cannot tell a list, a blob or a nested map from a text, and would delete each that reads "+
				"like an expired key. Else write auto or lookup",
			quote(t.Property))
	}
}

// checkAdopt refuses a rule for a target that has no expiry keys, or that reads the property
// which it writes.
func (r *reader) checkAdopt() {
	t := &r.target
	if t.Adopt.From.IsZero() || !r.good("adopt.from") {
		return
	}
	if r.good("layout") && t.Layout.Form().Type() != store.Text {
		r.blame("adopt.from", "adoption stamps expiry keys, and the layout %s has none: describe the target that they are "+
			"for, with a layout such as generation and a property of its own", t.Layout)
		return
	}
	if r.good("property") && t.Adopt.From.Property == t.Property {
		r.blame("adopt.from", "the rule reads %s, which is the property that adoption writes", quote(t.Property))
	}
}

// checkLengths checks pairs of settings, most of them durations, of which one bounds the
// other.
func (r *reader) checkLengths() {
	t := &r.target
	if r.good("max_age", "retention") && t.MaxAge <= t.Retention {
		r.either("max_age", "retention", "max_age (%s) must be longer than retention (%s)",
			FormatDuration(t.MaxAge), FormatDuration(t.Retention))
	}
	if r.good("overlap", "rewind") && t.Overlap >= t.Rewind {
		r.either("overlap", "rewind", "overlap (%s) must be shorter than rewind (%s)",
			FormatDuration(t.Overlap), FormatDuration(t.Rewind))
	}
	if r.good("pace.start", "pace.max") && t.Pace.Start.Exceeds(t.Pace.Max) {
		r.either("pace.start", "pace.max", "start (%s) must not be above max (%s)", t.Pace.Start, t.Pace.Max)
	}
	g := t.Generations
	if r.good("generations.ramp", "generations.every") && g.Ramp > g.Every {
		r.either("generations.ramp", "generations.every", "ramp (%s) must not be longer than every (%s)",
			FormatDuration(g.Ramp), FormatDuration(g.Every))
	}
	if r.good("generations.staleness", "generations.every") && g.Staleness > g.Every {
		r.either("generations.staleness", "generations.every", "staleness (%s) must not be longer than every (%s)",
			FormatDuration(g.Staleness), FormatDuration(g.Every))
	}
}

// checkStore refuses settings that only make sense in another store. Settings that this
// store merely ignores, such as guard, pass: one file may serve a test on the embedded
// store and production.
func (r *reader) checkStore() {
	t := &r.target
	if t.Group && r.driver != Firestore && r.driver != "" {
		r.blame("group", "collection groups exist in firestore stores only; this one is %s", r.driver)
	}
	if r.driver != Datastore && r.driver != "" && r.good("namespaces") &&
		(t.AllNamespaces || len(t.Namespaces) != 1 || t.Namespaces[0] != "") {
		r.blame("namespaces", "namespaces exist in datastore stores only; this one is %s", r.driver)
	}
	if t.Archive.Mode != NoArchive && t.Archive.To == "" && r.good("archive.mode") && r.good("archive.to") {
		r.blame("archive.mode", "%s needs a place: write archive: {mode: %s, to: gs://bucket/prefix}", t.Archive.Mode,
			t.Archive.Mode)
	}
	if r.driver == Embedded && t.Descendants.Mode != KeepDescendants && r.good("descendants.mode") {
		r.blame("descendants.mode", "descendants exist in datastore and firestore stores only; this one is %s", r.driver)
	}
}

// checkLayout refuses fields that the layout does not use, and requires those that it
// needs.
func (r *reader) checkLayout() {
	t := &r.target
	for _, name := range layout.Settings() {
		if r.values[name] != nil && !t.Layout.Uses(name) {
			r.blame(name, "the layout %s does not use it", t.Layout)
		}
	}
	if t.Layout.Uses("shard_values") {
		if r.values["shard_values"] == nil {
			r.at(r.node, r.path, "shard_values is missing: "+
				"the layout %s needs every value that the shard property has", t.Layout)
		}
		if r.good("property", "shard_property") && t.Property != "" && t.Property == t.ShardProperty {
			r.either("shard_property", "property", "property and shard_property are both %s", quote(t.Property))
		}
	}
	if t.Layout.Form().Type() != store.Text && r.driver == Datastore && r.good("guard") && t.Guard == store.GuardQuery {
		r.blame("guard", "query cannot check the layout %s in Datastore mode, "+
			"where queries show timestamps as numbers: write auto or lookup", t.Layout)
	}
}

// good reports whether all of the fields are without a reported problem.
func (r *reader) good(fields ...string) bool {
	for _, f := range fields {
		section, _, _ := strings.Cut(f, ".")
		if r.bad[f] || r.bad[section] {
			return false
		}
	}
	return true
}

// blame reports a problem of a field that is in the file.
func (r *reader) blame(name, format string, args ...any) {
	r.at(r.values[name], r.path+"."+name, format, args...)
}

// either reports a problem between two fields, at the first of them that
// stands in the file: the other one has its default.
func (r *reader) either(a, b, format string, args ...any) {
	name := a
	if r.values[a] == nil {
		name = b
	}
	r.blame(name, format, args...)
}
