package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/history/chronicle"
	"github.com/reaper-ttl/reaper/metrics"
)

// A History says who this process is to the history of a target, and how long that is kept.
type History struct {
	Keep     time.Duration // 0: the process writes no history
	Actor    string        // on whose behalf it works, as claimed
	Host     string
	Settings []string // of the target, one a line
}

// newStory returns what writes the history of a target; nil if this process writes none.
func newStory(c *collector) *chronicle.Chronicle {
	h := c.target.History
	if h.Keep <= 0 || !c.cfg.Apply {
		return nil
	}
	text, hash := history.Settings(h.Settings)
	return chronicle.New(chronicle.Config{Store: c.keeper.Store, Target: c.target.Name, Settings: text, Keep: h.Keep,
		By:  history.Origin{Actor: h.Actor, Host: h.Host, Owner: c.keeper.Owner, Version: c.cfg.Version, Config: hash},
		Now: c.cfg.Now, StoreNow: c.clock.Now, Sums: c.sums, Budgeted: c.budgetedSoFar,
		Failed: func(task string, err error) { c.log.failed(task, "", err) },
		Marked: func() { c.viewer.watch.ask(0) }, // the heartbeat may go
	})
}

// sums returns what this process has done to the target so far.
func (c *collector) sums() chronicle.Sums {
	s := chronicle.Sums{Counts: metrics.Load(&c.tally.counts.CountsOf), Operations: c.tally.meter.Operations(),
		Throttled: c.tally.throttledFor(), Horizon: c.horizon()}
	s.Budget = c.budget.account() // after the counts: what they have, it has, too
	return s
}

// tookOver tells the history of a range whose record names another process. In an embedded
// store that process is dead if it opened the store before this one; elsewhere its heartbeat
// tells.
func (c *collector) tookOver(from cursor.Lease) {
	if from.Owner != "" && !c.keeper.IsOfThisOpening(from.Owner) {
		c.log.story.Bury(cursor.Heartbeat{Target: c.target.Name, Owner: from.Owner})
	}
}

// taskOf names what an agenda does.
func taskOf(a agenda) string {
	t, once := a.(*timed)
	if !once {
		return "serve"
	}
	if _, isAudit := t.oneTime.(*oneAudit); isAudit {
		return "audit"
	}
	return "sweep"
}

// endOf returns why one sweep ended.
func endOf(ctx context.Context, res TargetResult) history.End {
	if res.Error != "" {
		return history.Failed
	}
	end, isHeld := chronicle.HeldEnd(res.Held)
	switch {
	case isHeld:
		return end
	case res.Complete && res.Expired+res.Carried+res.Strays == 0:
		return history.Idle
	case res.Complete:
		return history.Done
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return history.Signal
	}
	return history.Deadline
}

// RecordHistory writes one record about a change that this process has made to a target. It
// does nothing for a target without history.
func RecordHistory(ctx context.Context, cfg Config, t Target, at time.Time, kind history.Kind, c history.Change,
) error {
	cfg.Apply = true
	cfg = cfg.withDefaults()
	if err := newCollector(&cfg, &t).log.story.Record(ctx, at, kind, c); err != nil {
		return fmt.Errorf("the change was made, but is not in the history: %w", err)
	}
	return nil
}
