package sweep

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// A collector has what the steps of one target share. Its fields are set before the first
// step and do not change; what they point to is safe for concurrent use.
type collector struct {
	cfg    *Config
	target *Target
	rules  plan.Rules
	log    *journal
	clock  *clock
	keeper *cursor.Keeper
	viewer *viewer
	pacing *pacing
	budget *spender // nil without a breaker and limits
	guards *guards
	tally  *tally
	until  time.Time // one sweep: the instant at which it began; it deletes nothing that is due later; else zero
}

// newCollector returns the collector of one target.
func newCollector(cfg *Config, t *Target) *collector {
	log := newJournal(cfg.Log.With("target", t.Name), cfg.Now)
	began := cfg.Now()
	clk := &clock{now: cfg.Now, passed: func() time.Duration { return cfg.Now().Sub(began) }, maxSkew: t.MaxClockSkew}
	opening := ""
	if x, ok := cfg.Store.(store.Exclusive); ok {
		opening = x.Opening() + "/"
	}
	c := &collector{cfg: cfg, target: t, rules: t.Rules(), log: log, clock: clk, tally: newTally(),
		guards: newGuards(cfg.Store, t, log, cfg.Now)}
	c.keeper = &cursor.Keeper{Store: newRecordStore(cfg, t.Name), Owner: opening + cfg.Owner, Opening: opening,
		Lease: t.Lease, Now: cfg.Now, StoreNow: clk.Now, Log: log.Logger,
		BeatFails: func(err error) { log.failed("write the heartbeat", "", err) }}
	c.pacing = newPacing(t, cursor.HeartbeatKey(t.Name, c.keeper.Owner), clk, !cfg.Apply)
	c.viewer = newViewer(cfg, t, clk, log)
	c.viewer.watch = newWatch(c)
	log.story = newStory(c)
	c.budget = newSpender(c)
	if t.Gate != nil {
		c.pacing.gate = &gatekeeper{gate: t.Gate, now: cfg.Now, log: log.Logger}
	}
	return c
}

// open reads the records and asks the gate, before anything is deleted.
func (c *collector) open(ctx context.Context) error {
	if err := c.viewer.open(store.WithMeter(ctx, &c.tally.meter)); err != nil {
		return err
	}
	c.pacing.follow(c.viewer.View())
	c.guards.tell()
	if c.pacing.gate != nil {
		c.pacing.gate.ask(ctx)
	}
	return nil
}

// horizon returns the present horizon: an entity that expires at or before it is due.
func (c *collector) horizon() time.Time {
	now := c.clock.Now()
	if !c.until.IsZero() && now.After(c.until) {
		now = c.until
	}
	return now.Add(-c.target.Retention)
}

// floor returns the instant before which an expiry is implausible.
func (c *collector) floor(horizon time.Time) time.Time { return horizon.Add(-c.target.MaxAge) }

// decide judges the value of an expiry property at a horizon.
func (c *collector) decide(v store.Value, horizon time.Time) judgement {
	return c.judge(v, horizon).judgement
}

// judge judges it, and also returns when it expires.
func (c *collector) judge(v store.Value, horizon time.Time) judged {
	return decide(c.rules.Form, v, horizon, c.target.MaxAge)
}

// heldBy returns why nothing may be written to the target at present; it is empty if
// writes are allowed. Its information is recent: a pause takes effect within fifteen
// seconds, also in a process that had been frozen.
func (c *collector) heldBy() throttle.Reason {
	v := c.viewer.View()
	switch {
	case !c.cfg.Apply:
		return ""
	case c.target.IsTripped(v.Record): // resume does not end it, so it comes before a pause
		return throttle.ReasonBreaker
	case v.Record.IsPaused(c.clock.Now()):
		return throttle.ReasonPaused
	case !c.pacing.gate.isOpen():
		return throttle.ReasonGate
	case c.recordFault() != nil:
		return throttle.ReasonRecord
	case c.budget.isAtLimit():
		return throttle.ReasonLimit
	}
	return ""
}

// recordFault returns which of the records that it needs this process cannot read or write, and
// why; nil if it can.
func (c *collector) recordFault() error {
	if err := c.budget.lasting(); err != nil {
		return fmt.Errorf("the target's budget cannot be read or written: %w", err)
	}
	if err := c.log.story.Lasting(); err != nil {
		return fmt.Errorf("the target's history cannot be written: %w", err)
	}
	if c.isUncounted() {
		_, err := c.viewer.watch.failing()
		return fmt.Errorf("the heartbeats, which divide the total, were not read for a lease: %w", cmp.Or(err, errUnheard))
	}
	if c.isUnread() {
		return fmt.Errorf("the target record was not read for %v: %w", freshFor, cmp.Or(c.viewer.failing(), errUnheard))
	}
	return nil
}

// isUnread reports whether the target record was read too long ago to delete anything by it.
func (c *collector) isUnread() bool { return age(c.cfg.Now(), c.viewer.View().RecordSent) > freshFor }

// isUncounted reports whether this process cannot get a share of the total because it
// cannot read the heartbeats. It then leaves the ranges to others.
func (c *collector) isUncounted() bool {
	long, _ := c.viewer.watch.failing()
	return long && c.pacing.divides()
}

// lives reports whether the generation is one that is swept.
func (c *collector) lives(number int) bool {
	if number == expirykey.Nursery {
		return true
	}
	for _, g := range c.viewer.View().Record.Generations {
		if g.Number == number {
			return true
		}
	}
	return false
}

// stampBy returns the target record to stamp by. Ok is false if it was read longer ago
// than a quarter of the staleness: stamps must commit before the record is half a
// staleness old.
func (c *collector) stampBy() (rec generation.Record, ok bool) {
	v := c.viewer.View()
	staleness, _ := v.Record.Bounds()
	return v.Record, age(c.cfg.Now(), v.RecordSent) <= staleness/4
}

// slack returns how long a stamp is valid.
func (c *collector) slack() time.Duration {
	_, slack := c.viewer.View().Record.Bounds()
	return slack
}

// A placedSpan is a span of one namespace's index.
type placedSpan struct {
	namespace string
	span      store.Span
}

// everywhere lists a span in all namespaces.
func (c *collector) everywhere(span store.Span) (list []placedSpan) {
	for _, ns := range c.viewer.View().Namespaces {
		list = append(list, placedSpan{ns, span})
	}
	return list
}
