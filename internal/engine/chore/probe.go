package chore

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/view"
)

// probeAgain looks for generations in use once more: when all writers that stamped by a lost
// record must have committed, since a generation that was empty when the new record was made,
// or that an index did not show yet, may hold entities now; and as soon as a deployment joins
// before that, with other namespaces, since the first probe did not go there. The index of another kind or
// property says nothing of what the record is of: who sweeps that probes.
func probeAgain(ctx context.Context, c *site.Site, p *plan.Plan) error {
	v := c.Viewer
	was := v.View().Record
	if due := was.Probe; !c.Cfg.Apply || due.IsZero() || c.Clock.Now().Before(due) {
		return nil // another process was faster, and generations may have retired since
	}
	if !isOurs(c, was) {
		return nil
	}
	namespaces, err := c.Viewer.AllNamespaces(ctx, p.With(v.View()))
	if err != nil {
		return err
	}
	used, err := v.InUse(ctx, namespaces, was.Live())
	if err != nil {
		return err
	}
	floor, err := v.LastDropped(ctx)
	if err != nil {
		return err
	}
	var next generation.Record
	err = v.ChangeRecord(ctx, func(is generation.Record, now time.Time) (_ generation.Record, changed bool, err error) {
		next = generation.Record{}
		if !is.Probe.Equal(was.Probe) || !is.Created.Equal(was.Created) || hasJoined(is, was) || !isOurs(c, is) {
			return is, false, nil // another process was faster, or the record wants a probe of its own, or still one
		}
		if next, err = is.Adopt(used, floor, c.Rules.Policy, now); err != nil {
			return next, false, err
		}
		if last := next.ProbeLater(c.Rules.Policy); last.Probe.After(now) { // this one was early, for new namespaces
			next = last
		}
		return next, true, nil
	})
	if err != nil {
		return err
	}
	if len(used) > 0 && len(next.Generations) > 0 {
		c.Log.WarnContext(ctx, "found generations in use that the target record did not list; listed them",
			"generations", view.NumbersOf(used), "newest", next.Generations[len(next.Generations)-1].Number)
	}
	return nil
}
