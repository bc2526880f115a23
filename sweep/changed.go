package sweep

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
)

// tellMoved warns if the target record names another kind or property than the
// configuration: what is there would stay for ever, and nobody would see why.
func (v *viewer) tellMoved(ctx context.Context, was, is generation.Record) {
	if was.Target == "" || was.Kind == is.Kind && was.Property == is.Property {
		return
	}
	v.log.WarnContext(ctx, "target changed: what its old kind and property hold is no longer swept",
		"kind", is.Kind, "before_kind", was.Kind, "property", is.Property, "before_property", was.Property)
}

// tellLayout warns if no range was swept yet in the layout that is configured, but some
// were in another one.
func (v *viewer) tellLayout(ctx context.Context, cursors cursor.Table) {
	var before string
	var swept time.Time
	for _, c := range cursors.All() {
		if c.Layout == v.rules.Scope.Layout {
			return
		}
		if c.Layout != "" && (before == "" || c.Swept.After(swept)) {
			before, swept = c.Layout, c.Swept
		}
	}
	if before != "" {
		v.log.WarnContext(ctx, "target changed: every range is read from its start in the new layout",
			"layout", v.rules.Scope.Layout, "before_layout", before)
	}
}
