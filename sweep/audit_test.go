package sweep_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A full round finds entities that were put back into retired generations, even if the
// round is stopped and resumed. A dry round changes nothing.
func TestAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		e.runFor(6 * time.Hour)
		r := e.record()
		if r.Generations[0].Number < 4 {
			t.Fatalf("generations: %s", e.states())
		}
		for i := range 300 {
			e.stamped(1+i%3, 4, fmt.Sprintf("stray-%03d", i), time.Now().Add(time.Duration(i-150)*time.Minute+time.Second))
			e.live[fmt.Sprintf("stray-%03d", i)].returned = true
		}
		e.raw("broken", "00000002.0001.nonsense")
		c := e.config()
		c.Apply = false
		before := e.s.Writes()
		if res := sweep.Audit(t.Context(), c).Targets[0]; res.Error != "" || res.Strays != 300 || res.Expired != 150 || res.Deleted != 0 || e.s.Writes() != before {
			t.Errorf("dry: %+v", res)
		}
		// One that is stopped after a few pages leaves the rest to the next sweep.
		c = e.config()
		c.Targets[0].Page = 10
		ctx, cancel := context.WithCancel(t.Context())
		writes := 0
		e.s.After = func(_ context.Context, call modelstore.Call) error {
			if call.Method == "Dispose" {
				if writes++; writes == 5 {
					cancel()
				}
			}
			return nil
		}
		if res := sweep.Audit(ctx, c).Targets[0]; res.Error != "" || res.Complete || res.Strays == 0 || res.Strays == 300 {
			t.Errorf("stopped: %+v", res)
		}
		e.s.After = nil
		first := e.strays()
		res := e.sweep()
		if int(res.Strays) != first || e.strays() != 0 || res.Scanned > int64(first)+50 {
			t.Errorf("%d strays were left; the next sweep: %+v", first, res)
		}
		for name, row := range e.s.Entities("Session", "") {
			if k, err := expirykey.Parse(row.Expiry.Text); name != `"broken"` && (err != nil || k.Generation != 0 || !k.Expires.Equal(e.live[row.Name].expires)) {
				t.Errorf("%s is %s now", name, row.Expiry.Text)
			}
		}
		if n := len(e.s.Entities("Session", "")); n != 151 {
			t.Errorf("%d entities are left, want 150 and a malformed one", n)
		}
		// A moved stray is deleted once it is due.
		e.runFor(3 * time.Hour)
		e.wantLeft("broken")
	})
}

// A stray that is stamped into a sealed generation before its first survivor is
// found by the audit, too, and does not lose the survivors.
func TestAuditOfSealedGround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly
		p.Keep = 30
		e := newEpoch(t, p)
		e.sweep()
		for i := range 40 {
			e.stamped(1, 4, fmt.Sprint("survivor-", i), time.Now().Add(40*time.Hour))
		}
		e.runFor(3 * time.Hour)
		e.stamped(1, 4, "late", time.Now().Add(-time.Minute))
		e.stamped(1, 4, "early", time.Now().Add(35*time.Hour))
		e.live["early"].returned = true
		e.runFor(26 * time.Hour)
		k, err := expirykey.Parse(e.s.Entities("Session", "")[strconv.Quote("early")].Expiry.Text)
		if err != nil || k.Generation != 0 {
			t.Errorf("the stray that is not due is %v, %v", k, err)
		}
		if n := len(e.left()); n != 41 {
			t.Errorf("%d entities are left", n)
		}
		if e.carries > 0 {
			t.Errorf("%d survivors were carried", e.carries)
		}
		e.runFor(14 * time.Hour)
		e.wantLeft()
	})
}

// A sweep that began before the sealing reads ranges from their start after it, and makes
// no inventory. The entities left there are not strays.
func TestAuditLeavesRangesAloneThatNobodyTookStockOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly
		p.Keep = 30
		e := newEpoch(t, p)
		e.target.Rewind = 5 * time.Minute
		e.sweep()
		for i := range 40 {
			e.stamped(1, 4, fmt.Sprint("survivor-", i), time.Now().Add(40*time.Hour))
		}
		time.Sleep(p.Every)
		e.sweep()
		time.Sleep(p.Ramp)
		e.sweep()
		time.Sleep(time.Until(e.record().SealedAt(0, 0).Add(-time.Second)))
		watch, late := e.s.Before, false
		e.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && c.Query.Limit == e.target.Page && !late {
				late = true
				time.Sleep(2 * time.Second)
			}
			return watch(ctx, c)
		}
		c := e.config()
		c.Workers = 1
		sweep.Run(t.Context(), c)
		sum := e.runFor(time.Hour)
		if sum.Strays > 0 || e.carries > 0 || len(e.left()) != 40 {
			t.Errorf("%d survivors were taken for strays; %d are left", sum.Strays, len(e.left()))
		}
	})
}

// A long audit does not keep the ranges from being swept again: each sweep continues it a
// little further.
func TestAuditGivesWayToTheNextSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.target.Pace = throttle.Limits{Start: 1, Max: 1}
		e.sweep()
		e.runFor(6 * time.Hour)
		for i := range 3000 { // at one a second
			e.stamped(1, 4, fmt.Sprintf("stray-%04d", i), time.Now().Add(-time.Minute))
			e.live[fmt.Sprintf("stray-%04d", i)].returned = true
		}
		time.Sleep(25 * time.Hour)
		sweeps := 0
		for ; e.strays() > 0 && sweeps < 30; sweeps++ {
			began, before := time.Now(), e.strays()
			res := e.sweep()
			if took := time.Since(began); took > 8*time.Minute || res.Error != "" || !res.Complete || e.strays() == before {
				t.Errorf("it took %v, and %d of %d strays are left: %+v", took, e.strays(), before, res)
			}
		}
		if sweeps < 5 || sweeps == 30 {
			t.Errorf("%d sweeps, %d strays are left", sweeps, e.strays())
		}
	})
}

// A stray that cannot be settled stays before the audit's saved position, even if later
// spans are done. It is deleted as soon as that is possible, in the same round.
func TestAuditReturnsToWhatItCouldNotSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly
		p.Keep = 30
		e := newEpoch(t, p)
		e.sweep()
		e.runFor(3 * time.Hour)
		list := e.record().Generations
		sealed := list[len(list)-1].Number
		var survivors []string
		for i := range 40 {
			survivors = append(survivors, fmt.Sprintf("survivor-%02d", i))
			e.stamped(sealed, 4, survivors[i], time.Now().Add(40*time.Hour))
		}
		e.runFor(3 * time.Hour)
		r := e.record()
		if at := r.State(0, time.Now(), 0); sealed < 2 || r.Generations[0].Number != sealed || at != generation.Sealed {
			t.Fatalf("generations: %s", e.states())
		}
		locked := true
		// The second one, in a later span, is held for two tries only: what it held up when it is
		// gone still waits for the first one.
		tries := 0
		e.s.Before = func(_ context.Context, c modelstore.Call) error {
			if concern(c.Ops, "briefly") {
				tries++
			}
			if locked && concern(c.Ops, "locked") || concern(c.Ops, "briefly") && tries < 3 {
				return fmt.Errorf("somebody holds it: %w", store.ErrContention)
			}
			return nil
		}
		e.stamped(1, 4, "locked", time.Now().Add(-time.Minute))
		e.stamped(sealed, 4, "stray", time.Now().Add(-time.Minute))
		e.stamped(sealed, 4, "briefly", time.Now().Add(-time.Minute))
		if res := sweep.Audit(t.Context(), e.config()).Targets[0]; res.Error != "" || res.Complete || res.Strays != 2 {
			t.Errorf("%+v", res)
		}
		e.wantLeft(append(survivors, "locked")...)
		locked = false
		e.sweep()
		e.wantLeft(survivors...)
	})
}
