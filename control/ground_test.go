package control_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/expirykey"
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
