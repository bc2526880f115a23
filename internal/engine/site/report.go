package site

import (
	"context"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// Publish adds to the metrics what has happened since the last call, and sets the gauges of
// the target's state.
func (c *Site) Publish() {
	last, m, t := &c.Tally.Published, c.Cfg.Metrics, c.Target.Name
	last.Mu.Lock()
	defer last.Mu.Unlock()
	counts := metrics.Load(&c.Tally.Counts.CountsOf)
	if counts != last.Counts {
		m.Counted(t, counts, last.Counts)
		last.Counts = counts
	}
	ops := c.Tally.Meter.Operations()
	m.Operations(t, metrics.OpRead, max(0, ops.Reads-last.Operations.Reads))
	m.Operations(t, metrics.OpWrite, max(0, ops.Writes-last.Operations.Writes))
	m.Operations(t, metrics.OpDelete, max(0, ops.Deletes-last.Operations.Deletes))
	last.Operations = ops
	throttled := c.Tally.ThrottledFor()
	for why, d := range throttled {
		m.Throttled(t, string(why), d-last.Throttled[why])
	}
	last.Throttled = throttled
	m.Rate(t, c.Pacing.Rate())
	c.Log.Look()
	m.OldestDue(t, c.Target.Watchdog.OldestDue())
	m.Stuck(t, len(c.Target.Watchdog.Stuck(c.Cfg.Now())))
	if says := c.says(); says != last.Record {
		c.publishRecord(says)
		last.Record = says
	}
}

// says returns what the target record says for the gauges.
func (c *Site) says() (s recordGauges) {
	rec := c.Viewer.View().Record
	s.known, s.held, s.tripped = true, c.HeldBy(), c.Target.IsTripped(rec)
	s.outside, s.empty = c.Tally.OutsideOr(rec.Outside, rec.EmptyIndex)
	for _, g := range rec.Generations {
		s.newest = max(s.newest, g.Number)
	}
	s.live = len(rec.Generations)
	return s
}

// publishRecord sets the gauges of what the target record says.
func (c *Site) publishRecord(s recordGauges) {
	m, t := c.Cfg.Metrics, c.Target.Name
	m.Held(t, string(s.held))
	m.Breaker(t, s.tripped)
	m.Outside(t, s.outside)
	m.EmptyIndex(t, s.empty)
	m.Generations(t, s.newest, s.live)
}

// pauseAttrs returns who paused the target, why and until when, as far as the record says.
func (c *Site) pauseAttrs() (attrs []any) {
	rec := c.Viewer.View().Record
	if n := rec.PauseNote; n != (generation.Note{}) {
		attrs = append(attrs, "actor", n.Actor, "since", n.At, "reason", n.Reason)
	}
	if !rec.PausedUntil.IsZero() {
		attrs = append(attrs, "until", rec.PausedUntil)
	}
	return attrs
}

// LogHold logs that the target is held, or is no longer held. It was held since an instant.
func (c *Site) LogHold(why throttle.Reason, since time.Time, fault error) {
	switch why {
	case "":
		c.Log.Info("deletes go on", "seconds", journal.Seconds(c.Cfg.Now().Sub(since)))
	case throttle.ReasonPaused:
		c.Log.Warn("target is paused; run reaper resume to continue", c.pauseAttrs()...)
	case throttle.ReasonBreaker: // the process that tripped it has logged it as an error
		t := c.Viewer.View().Record.Trip
		c.Log.Warn("breaker is open; see reaper breaker show", "trip", t.ID, "rule", string(t.Rule), "due", t.Due,
			"limit", t.Limit)
	case throttle.ReasonLimit:
		l := c.Target.Limits
		c.Log.Warn("limit reached: deletes go on later", "until", c.Budget.LimitEnds(), "per_hour", l.PerHour,
			"per_day", l.PerDay)
	case throttle.ReasonGate: // the gatekeeper has logged it
	case throttle.ReasonRecord:
		c.Log.Warn("deletes suspended: a record cannot be read or written", "why", fault)
	case throttle.ReasonArchive:
		c.Log.Warn("deletes suspended: nothing goes without a copy", "why", fault)
	default:
		c.Log.Debug("deletes suspended", "why", string(why))
	}
}

// NoteBehind says in metrics, heartbeat and log what was counted behind the cursors.
func (c *Site) NoteBehind(b cursor.Behind) {
	last := c.Tally.noteBehind(b)
	c.Cfg.Metrics.Behind(c.Target.Name, b.N, b.Late > 0)
	c.Keeper.Pulse.Report(b)
	switch {
	case b.Late > 0 && (last.Late == 0 || b.Late > 2*last.Late):
		attrs := []any{"late", b.Late, "limit", b.Limit}
		if !b.GoneBy.IsZero() {
			attrs = append(attrs, "by", b.GoneBy)
		}
		c.Log.Warn("the breaker would trip at the next reads from the start: so many were written behind the cursors",
			attrs...)
	case b.Late == 0 && last.Late > 0 && !c.Target.IsTripped(c.Viewer.View().Record):
		c.Log.Info("the breaker would no longer trip for what lies behind the cursors", "behind", b.N)
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

// WarnOfCost warns if idle ticks are expensive: each sends one query for each range that
// writers may still write to.
func (c *Site) WarnOfCost(p *plan.Plan, every time.Duration) {
	if _, local := c.Cfg.Store.(store.Exclusive); local || every <= 0 {
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
	c.Log.Warn("idle ticks cost much: fewer shards or namespaces, or a slower schedule, cost less",
		"ranges", queries, "every_seconds", every.Round(time.Second).Seconds(), "reads_per_hour", int64(hourly),
		"dollars_per_hour_in_us_central1", math.Round(hourly*readPrice*100)/100)
}

// Metered returns a context whose operations are counted for the target.
func (c *Site) Metered(ctx context.Context) context.Context {
	return store.WithMeter(ctx, &c.Tally.Meter)
}
