package view

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
)

// sweptAs notes in the target record as what the target is swept from now on. If that is
// another kind, property or layout than before, the look around is due at once: a name that
// is misspelt must not go unnoticed until the next day.
func (v *Viewer) sweptAs(was, want generation.Record) generation.Record {
	want = want.Holding(v.Target.Kind, v.Target.Property).SweptAs(v.Rules.Scope.Layout, v.Rules.Retention)
	if v.Breaker {
		want = want.OnGround(was)
	} else {
		want.NewGround = false // to switch the breaker off is a word, too
	}
	if isMoved(was, want) || IsLaidOut(was, want) {
		return want.WithoutFindings()
	}
	return want
}

// isMoved reports whether a target has another kind or property than before.
func isMoved(was, is generation.Record) bool {
	return was.Target != "" && (was.Kind != is.Kind || was.Property != is.Property)
}

// IsLaidOut reports whether a target is known to have another layout than before.
func IsLaidOut(was, is generation.Record) bool { return was.Layout != "" && was.Layout != is.Layout }

// tellChanged warns if the target record says that the target was swept as something else
// than the configuration has it. It comes before the first delete.
func (v *Viewer) tellChanged(ctx context.Context, was, is generation.Record, cursors cursor.Table) {
	if isMoved(was, is) { // what is there would stay for ever, and nobody would see why
		v.Log.WarnContext(ctx, "target changed: what its old kind and property hold is no longer swept",
			"kind", is.Kind, "before_kind", was.Kind, "property", is.Property, "before_property", was.Property)
	}
	if was.Trip.IsOpen() && !is.Trip.IsOpen() {
		v.Log.WarnContext(ctx, "trip ended: it was for what the target held before; what is due now is counted afresh",
			"trip", was.Trip.ID)
	}
	switch {
	case IsLaidOut(was, is):
		v.tellLayout(ctx, was.Layout)
	case was.Layout == "":
		v.tellLayout(ctx, v.layoutBefore(cursors))
	}
	if !was.Retention.Known || !is.Retention.Known || was.Retention == is.Retention {
		return
	}
	message := "target changed: a longer retention keeps what was due so far"
	if is.Retention.Length < was.Retention.Length {
		message = "target changed: a shorter retention makes more entities due at once"
	}
	v.Log.WarnContext(ctx, message, "retention_seconds", is.Retention.Length.Seconds(),
		"before_retention_seconds", was.Retention.Length.Seconds())
}

// tellLayout warns that the target is laid out in another way than before.
func (v *Viewer) tellLayout(ctx context.Context, before string) {
	if before != "" {
		v.Log.WarnContext(ctx, "target changed: every range is read from its start in the new layout",
			"layout", v.Rules.Scope.Layout, "before_layout", before)
	}
}

// layoutBefore returns the layout in which ranges were last swept, if none was swept yet in
// the configured one: for records that do not tell.
func (v *Viewer) layoutBefore(cursors cursor.Table) (before string) {
	var swept time.Time
	for _, c := range cursors.All() {
		if c.Layout == v.Rules.Scope.Layout {
			return ""
		}
		if c.Layout != "" && (before == "" || c.Swept.After(swept)) {
			before, swept = c.Layout, c.Swept
		}
	}
	return before
}
