package sweep

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// A published is the part of a tally that was added to the metrics already.
type published struct {
	mu         sync.Mutex
	counts     metrics.Counts
	operations store.Operations
	throttled  map[throttle.Reason]time.Duration
}

// publish adds to the metrics what has happened since the last call, and sets the gauges
// that show the state of the target.
func (c *collector) publish() {
	last, m, t := &c.tally.published, c.cfg.Metrics, c.target.Name
	last.mu.Lock()
	defer last.mu.Unlock()
	counts := metrics.Load(&c.tally.counts.CountsOf)
	m.Counted(t, counts, last.counts)
	last.counts = counts
	ops := c.tally.meter.Operations()
	m.Operations(t, metrics.OpRead, max(0, ops.Reads-last.operations.Reads))
	m.Operations(t, metrics.OpWrite, max(0, ops.Writes-last.operations.Writes))
	m.Operations(t, metrics.OpDelete, max(0, ops.Deletes-last.operations.Deletes))
	last.operations = ops
	throttled := c.tally.throttledFor()
	for why, d := range throttled {
		m.Throttled(t, string(why), d-last.throttled[why])
	}
	last.throttled = throttled
	m.Rate(t, c.pacing.rate())
	c.log.look()
	m.OldestDue(t, c.target.Watchdog.OldestDue())
	m.Stuck(t, len(c.target.Watchdog.Stuck(c.cfg.Now())))
	c.publishRecord()
}

// publishRecord tells the metrics what the target record says.
func (c *collector) publishRecord() {
	m, t, rec := c.cfg.Metrics, c.target.Name, c.viewer.View().Record
	m.Held(t, string(c.heldBy()))
	m.Breaker(t, c.target.IsTripped(rec))
	outside, empty := c.tally.aroundOr(rec.Outside, rec.EmptyIndex)
	m.Outside(t, outside)
	m.EmptyIndex(t, empty)
	newest := 0
	for _, g := range rec.Generations {
		newest = max(newest, g.Number)
	}
	m.Generations(t, newest, len(rec.Generations))
}

// result returns what was done to the target so far.
func (c *collector) result() TargetResult {
	res := TargetResult{Name: c.target.Name, Retired: []int{}}
	c.tally.fill(&res)
	if v := c.viewer.View(); v != nil {
		res.Outside, res.EmptyIndex = c.tally.aroundOr(v.Record.Outside, v.Record.EmptyIndex)
		res.Horizon = c.horizon()
	} else { // the store's time is not known
		res.Horizon = c.cfg.Now().Add(-c.target.Retention).UTC().Round(0)
	}
	return res
}

// fillHeld puts into a result why nothing may be deleted. A dry run writes nothing, held
// or not, but must not promise what the next sweep would not do.
func (c *collector) fillHeld(res *TargetResult, why throttle.Reason) {
	v := c.viewer.View()
	switch {
	case v == nil || c.cfg.Apply:
	case c.target.IsTripped(v.Record):
		why = throttle.ReasonBreaker
	case v.Record.IsPaused(c.clock.Now()):
		why = throttle.ReasonPaused
	case !c.pacing.gate.isOpen():
		why = throttle.ReasonGate
	}
	res.Held = string(why)
	if v != nil && why == throttle.ReasonBreaker {
		res.Reason = v.Record.Trip.Summary()
	}
	if v != nil && why == throttle.ReasonLimit {
		res.Reason = fmt.Sprintf("%s, used up until %s", c.budget.usedUp(), c.budget.limitEnds().UTC().Format(time.RFC3339))
	}
	if v != nil && why == throttle.ReasonPaused {
		res.Reason, res.Actor = v.Record.PauseNote.Reason, v.Record.PauseNote.Actor
	}
}

// pauseAttrs returns who paused the target, why and until when, as far as the record says.
func (c *collector) pauseAttrs() (attrs []any) {
	rec := c.viewer.View().Record
	if n := rec.PauseNote; n != (generation.Note{}) {
		attrs = append(attrs, "actor", n.Actor, "since", n.At, "reason", n.Reason)
	}
	if !rec.PausedUntil.IsZero() {
		attrs = append(attrs, "until", rec.PausedUntil)
	}
	return attrs
}

// tellHold logs that the target is held, or is no longer held.
func (c *collector) tellHold(why throttle.Reason, fault error) {
	now := c.cfg.Now()
	if c.log.held.IsZero() {
		c.log.held = now
	}
	switch why {
	case "":
		c.log.Info("deletes go on", "seconds", seconds(now.Sub(c.log.held)))
		c.log.held = time.Time{}
	case throttle.ReasonPaused:
		c.log.Warn("target is paused; run reaper resume to continue", c.pauseAttrs()...)
	case throttle.ReasonBreaker: // the process that tripped it has logged it as an error
		t := c.viewer.View().Record.Trip
		c.log.Warn("breaker is open; see reaper breaker show", "trip", t.ID, "rule", string(t.Rule), "due", t.Due,
			"limit", t.Limit)
	case throttle.ReasonLimit:
		l := c.target.Limits
		c.log.Warn("limit reached: deletes go on later", "until", c.budget.limitEnds(), "per_hour", l.PerHour,
			"per_day", l.PerDay)
	case throttle.ReasonGate: // the gatekeeper has logged it
	case throttle.ReasonRecord:
		c.log.Warn("deletes suspended: a record cannot be read or written", "why", fault)
	default:
		c.log.Debug("deletes suspended", "why", string(why))
	}
}

const (
	// manyReads is how many reads an hour give a warning: ten cents in us-central1, or
	// 70 dollars a month.
	manyReads = 333_333
	// readPrice is what a read costs there, in dollars: 0.03 for 100,000 in the Standard
	// edition (billing catalogue, September 2026).
	readPrice = 0.03 / 100_000
)

// tellCost warns if idle ticks cost much: each sends one query for each range that writers
// may still write to.
func (c *collector) tellCost(p *plan.Plan, every time.Duration) {
	if _, local := c.cfg.Store.(store.Exclusive); local || every <= 0 {
		return
	}
	queries := 0
	for r := range p.All() {
		if !p.Stage(r.Generation).IsSealed() {
			queries++
		}
	}
	hourly := float64(queries) * float64(time.Hour) / float64(max(every, time.Second))
	if hourly < manyReads {
		return
	}
	c.log.Warn("idle ticks cost much: fewer shards or namespaces, or a slower schedule, cost less",
		"ranges", queries, "every_seconds", every.Round(time.Second).Seconds(), "reads_per_hour", int64(hourly),
		"dollars_per_hour_in_us_central1", math.Round(hourly*readPrice*100)/100)
}
