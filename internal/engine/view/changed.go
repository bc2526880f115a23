package view

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
)

// A changeLog logs what has changed in a target record.
type changeLog struct {
	log   *journal.Journal
	rules *plan.Rules
	apply bool
}

// isMoved reports whether a target has another kind or property than before.
func isMoved(was, is generation.Record) bool {
	return was.Target != "" && (was.Kind != is.Kind || was.Property != is.Property)
}

// IsLaidOut reports whether a target is known to have another layout than before.
func IsLaidOut(was, is generation.Record) bool { return was.Layout != "" && was.Layout != is.Layout }

// logTarget warns if the target record says that the target was swept as something else
// than the configuration has it. It comes before the first delete.
func (l changeLog) logTarget(ctx context.Context, was, is generation.Record, cursors cursor.Table) {
	if isMoved(was, is) { // what is there stays for good, and nobody would see why
		l.log.WarnContext(ctx, "target changed: what its old kind and property hold is no longer swept",
			"kind", is.Kind, "before_kind", was.Kind, "property", is.Property, "before_property", was.Property)
	}
	if was.Trip.IsOpen() && !is.Trip.IsOpen() {
		l.log.WarnContext(ctx, "trip ended: it was for what the target held before; what is due now is counted afresh",
			"trip", was.Trip.ID)
	}
	switch {
	case IsLaidOut(was, is):
		l.logLayout(ctx, was.Layout)
	case was.Layout == "":
		l.logLayout(ctx, l.layoutBefore(cursors))
	}
	if !was.Retention.Known || !is.Retention.Known || was.Retention == is.Retention {
		return
	}
	message := "target changed: a longer retention keeps what was due so far"
	if is.Retention.Length < was.Retention.Length {
		message = "target changed: a shorter retention makes more entities due at once"
	}
	l.log.WarnContext(ctx, message, "retention_seconds", is.Retention.Length.Seconds(),
		"before_retention_seconds", was.Retention.Length.Seconds())
}

// logLayout warns that the target is laid out in another way than before.
func (l changeLog) logLayout(ctx context.Context, before string) {
	if before != "" {
		l.log.WarnContext(ctx, "target changed: every range is read from its start in the new layout",
			"layout", l.rules.Scope.Layout, "before_layout", before)
	}
}

// layoutBefore returns the layout in which ranges were last swept, if none was swept yet in
// the configured one: for target records that do not say.
func (l changeLog) layoutBefore(cursors cursor.Table) (before string) {
	var swept time.Time
	for _, c := range cursors.All() {
		if c.Layout == l.rules.Scope.Layout {
			return ""
		}
		if c.Layout != "" && (before == "" || c.Swept.After(swept)) {
			before, swept = c.Layout, c.Swept
		}
	}
	return before
}

// LogChanges logs the changes of the target record, and the steps of generations among them.
func (l changeLog) LogChanges(ctx context.Context, was, is generation.Record, steps []generation.Step) {
	if was.Target == "" {
		l.logFirst(ctx, is)
	}
	if !l.apply {
		return
	}
	for _, s := range steps {
		l.log.InfoContext(ctx, "generation is "+string(s.State), "generation", s.Generation)
	}
	if n := len(is.Generations); n > 0 && was.Target != "" && (was.Staleness != is.Staleness || was.Slack != is.Slack) {
		l.log.InfoContext(ctx, "the bounds for writers changed; for generations that are open already the larger ones count",
			"staleness_seconds", is.Staleness.Seconds(), "slack_seconds", is.Slack.Seconds(),
			"before_staleness_seconds", was.Staleness.Seconds(), "before_slack_seconds", was.Slack.Seconds())
	}
	if n := len(is.Generations); n > 0 && l.rules.Generations {
		l.compareNewest(is.Generations[n-1])
	}
}

// compareNewest warns if the newest generation differs from the configuration.
func (l changeLog) compareNewest(newest generation.Generation) {
	if newest.Shards != l.rules.Policy.Shards {
		l.log.Warn("the configured shards are for the next generation", "shards", l.rules.Policy.Shards,
			"generation", newest.Number, "generation_shards", newest.Shards)
	}
	if newest.Ramp != l.rules.Policy.Ramp && newest.Number != generation.First {
		l.log.Warn("the configured ramp is for the next generation", "ramp_seconds",
			l.rules.Policy.Ramp.Seconds(), "generation", newest.Number, "generation_ramp_seconds", newest.Ramp.Seconds())
	}
}

// logFirst logs which generations the first record of a target lists.
func (l changeLog) logFirst(ctx context.Context, rec generation.Record) {
	if !rec.IsContinued() {
		return
	}
	n := len(rec.Generations)
	l.log.WarnContext(ctx, "target has no record, but generations are in use: "+
		"they count as closed, and the next one opens",
		"generations", NumbersOf(rec.Generations[:n-1]), "next", rec.Generations[n-1].Number, "apply", l.apply)
}
