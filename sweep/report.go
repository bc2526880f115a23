package sweep

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/throttle"
)

// resultAsOf returns what was done to the target so far.
func resultAsOf(c *site.Site) TargetResult {
	res := TargetResult{Name: c.Target.Name, Retired: []int{}}
	res.fill(c.Tally)
	if v := c.Viewer.View(); v != nil {
		res.Outside, res.EmptyIndex = c.Tally.OutsideOr(v.Record.Outside, v.Record.EmptyIndex)
		res.Horizon = c.Horizon()
	} else { // the store's time is not known
		res.Horizon = c.Cfg.Now().Add(-c.Target.Retention).UTC().Round(0)
	}
	return res
}

// fillHeld puts into a result why nothing may be deleted. A dry run writes nothing anyway,
// but must not promise what the next sweep would not do.
func fillHeld(c *site.Site, res *TargetResult, why throttle.Reason) {
	v := c.Viewer.View()
	switch {
	case v == nil || c.Cfg.Apply:
	case c.Target.IsTripped(v.Record):
		why = throttle.ReasonBreaker
	case v.Record.IsPaused(c.Clock.Now()):
		why = throttle.ReasonPaused
	case !c.Pacing.Gate.IsOpen():
		why = throttle.ReasonGate
	}
	res.Held = string(why)
	if v != nil && why == throttle.ReasonBreaker {
		res.Reason = v.Record.Trip.Summary()
	}
	if v != nil && why == throttle.ReasonLimit {
		res.Reason = fmt.Sprintf("%s, used up until %s", c.Budget.UsedUp(), c.Budget.LimitEnds().UTC().Format(time.RFC3339))
	}
	if v != nil && why == throttle.ReasonPaused {
		res.Reason, res.Actor = v.Record.PauseNote.Reason, v.Record.PauseNote.Actor
	}
}

// fill puts the sums of a tally into the result.
func (r *TargetResult) fill(t *site.Tally) {
	c := &t.Counts
	r.Counts = metrics.Load(&c.CountsOf)
	r.Operations = t.Meter.Operations()
	if !c.StepsUnknown.Load() {
		n, behind := c.Stepped.Load(), c.Behind.Load()
		r.Stepped, r.Behind = &n, &behind
	}
	r.Throttled = map[string]float64{}
	for why, d := range t.ThrottledFor() {
		r.Throttled[string(why)] = d.Seconds()
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	r.Retired = append([]int{}, t.Retired...)
	r.Examples = []Example{}
}
