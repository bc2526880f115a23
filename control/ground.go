package control

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// ApproveGround lets sweeps of a target begin although the breaker has not counted what is
// due: somebody has read all of its entities. That holds for the target as it is configured.
// With another kind, property or layout, or a shorter retention, it is unswept again. A trip that is open
// stays, and so do the other rules of the breaker.
func ApproveGround(ctx context.Context, cfg sweep.Config, t sweep.Target, o Order) error {
	if err := o.Check(); err != nil {
		return err
	}
	var was, rec generation.Record
	var now time.Time
	err := store.Retry(ctx, patience, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		was, rec, now, err = alter(ctx, cfg, t, func(r *generation.Record, _ time.Time) {
			*r = r.SweptAs(t.Rules().Scope.Layout, t.Retention).Settled(t.Retention)
		})
		return err
	})
	if err == nil && !was.EqualContent(rec) {
		t.History.Actor = o.Actor
		tell(ctx, cfg, t, now, history.KindApproval, history.Change{What: whatApprove, Before: "unswept",
			After: "what is due by " + t.Property + " may go", Reason: o.Reason})
	}
	return err
}
