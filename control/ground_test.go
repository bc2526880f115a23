package control_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// What was approved goes at the first sweep, and any other switch trips the breaker: another kind,
// property or layout, or a shorter retention.
func TestApproveGround(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*sweep.Target)
		trips  bool
	}{
		"as approved":         {func(*sweep.Target) {}, false},
		"a longer retention":  {func(t *sweep.Target) { t.Retention += time.Hour }, false},
		"a shorter retention": {func(t *sweep.Target) { t.Retention -= time.Hour }, true},
		"another kind":        {func(t *sweep.Target) { t.Kind = "Other" }, true},
		"another property":    {func(t *sweep.Target) { t.Property = "other" }, true},
		"another layout":      {func(t *sweep.Target) { t.Layout, t.Generations = layout.Sharded, false }, true},
	} {
		at(t, func(d *desk) {
			d.target.Retention = 10 * time.Hour
			d.target.Breaker = breaker.Rules{On: true, Floor: 50, Fraction: .25, Window: time.Hour}
			if err := control.ApproveGround(d.Context(), d.config(), d.target, ann); err != nil {
				d.Fatal(err)
			}
			before := d.s.Writes()
			if err := control.ApproveGround(d.Context(), d.config(), d.target, ann); err != nil || d.s.Writes() != before {
				d.Errorf("approved twice: %v", err)
			}
			c.change(&d.target)
			// More than the floor, but in hours of their own: no burst.
			for i := range 100 {
				k, err := expirykey.New(expirykey.Nursery, i%4, time.Now().Add(-time.Duration(20+i)*time.Hour))
				if err != nil {
					d.Fatal(err)
				}
				e := store.Entity{Name: fmt.Sprint(i), Expiry: store.TextValue(k.String())}
				if err := d.s.Put(d.Context(), d.target.Target, "", []store.Entity{e}); err != nil {
					d.Fatal(err)
				}
			}
			cfg := d.config()
			cfg.Apply = true
			res := sweep.Run(d.Context(), cfg).Targets[0]
			if rec := d.record(); (rec.Trip.Rule == breaker.NewGround) != c.trips || (res.Deleted == 0) != c.trips {
				d.Errorf("%s: %d deleted, %q, tripped: %q", name, res.Deleted, res.Error, rec.Trip.Rule)
			}
		})
	}
}

// The approval of what was due in an unswept target leaves the budget as it is. So it succeeds even if
// workers hold the lock on the budget all the time.
func TestApprovalOfNewGroundLeavesTheBudget(t *testing.T) {
	at(t, func(d *desk) {
		d.target.Breaker = breaker.Rules{On: true, Floor: 10, Fraction: 0.25, Window: time.Hour}
		rec, now, err := sweep.EnsureRecord(d.Context(), d.config(), d.target)
		if err != nil {
			d.Fatal(err)
		}
		tripped := rec.Tripped(breaker.Trip{ID: "first", Rule: breaker.NewGround, At: now, Through: now, Due: 500, Limit: 10})
		if _, err := generation.Save(d.Context(), d.s, tripped); err != nil {
			d.Fatal(err)
		}
		d.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.BudgetRecord {
				return fmt.Errorf("locked: %w", store.ErrContention)
			}
			return nil
		}
		rec, _, err = control.Approve(d.Context(), d.config(), d.target, ann, control.Approval{ID: "first"})
		if err != nil || rec.Trip.IsOpen() || len(rec.Approvals) != 1 {
			d.Errorf("%+v, %v", rec, err)
		}
	})
}
