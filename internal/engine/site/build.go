package site

import (
	"context"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/engine/guard"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Setup is what a site is built from.
type Setup struct {
	Config
	Target
	Rules        plan.Rules
	MaxAge       time.Duration   // an expiry older than this before the horizon is suspect
	MaxClockSkew time.Duration   // more than this between local and store's clock stops the work
	Pace         throttle.Limits // of each range
	Total        throttle.Limit  // of the target, over all workers
	Gate         func(context.Context) error
	Yes          bool   // go on whatever the target's limits say
	Owner        string // names this process in leases, unlike any other
	Version      string // of the program, for people
	Log          *slog.Logger
	History      History
}

// New returns the site of one target. Its records have not been read yet: see [Site.Open].
func New(s Setup) *Site {
	cfg, t, name := s.Config, s.Target, s.Target.Name
	log := journal.New(s.Log.With("target", name), cfg.Now)
	clk := storeclock.New(cfg.Now, s.MaxClockSkew)
	opening := ""
	if x, ok := cfg.Store.(store.Exclusive); ok {
		opening = x.Opening() + "/"
	}
	records := view.NewRecordStore(cfg.Store, cfg.Metrics, name)
	c := &Site{Cfg: cfg, Target: t, Rules: s.Rules, Log: log, Clock: clk, Tally: NewTally(),
		Index:  &index.Index{Store: cfg.Store, Target: t.Target, Form: s.Rules.Form, MaxAge: s.MaxAge, Now: cfg.Now},
		Guards: guard.New(cfg.Store, t.Target, log, cfg.Now)}
	c.Keeper = &cursor.Keeper{Store: records, Owner: opening + s.Owner, Opening: opening,
		Lease: t.Lease, Now: cfg.Now, StoreNow: clk.Now, Log: log.Logger,
		BeatFails: func(err error) { log.Failed("write the heartbeat", "", err) }}
	c.Pacing = pace.New(pace.Config{Limits: s.Pace, Total: s.Total, Page: t.Page, Lease: t.Lease,
		Owner: cursor.HeartbeatKey(name, c.Keeper.Owner), Dry: !cfg.Apply, Clock: clk})
	c.Watch = pace.NewWatch(pace.WatchConfig{Target: name, Version: s.Version, Apply: cfg.Apply, Lease: t.Lease,
		Keeper: c.Keeper, Pacing: c.Pacing, Clock: clk, Now: cfg.Now, Log: log,
		Bury:   func(h cursor.Heartbeat) bool { return c.Story.Bury(h) },
		Notify: func() { c.Viewer.Notify() }})
	c.Story = newStory(c, s.History, s.Version)
	c.Viewer = view.New(view.Config{Store: records, Target: t.Target, Rules: s.Rules,
		Breaker: t.Breaker.On, Apply: cfg.Apply, Clock: clk, Log: log, Story: c.Story})
	if spending := c.Spending(); cfg.Apply {
		if s.Yes {
			spending.Rules.Limits = breaker.Limits{} // what is deleted counts for the next sweep
		}
		c.Budget = spend.New(spending)
	}
	c.Pacing.Gate = pace.NewGatekeeper(s.Gate, cfg.Now, log.Logger)
	return c
}

// Spending returns the configuration of the target's budget.
func (c *Site) Spending() spend.Config {
	t := c.Target
	return spend.Config{Rules: t.Breaker, Plan: c.Rules, Page: t.Page, Hourly: t.Limits.Any(),
		IsOnce: func() bool { return !c.Until.IsZero() }, Index: c.Index, Viewer: c.Viewer, Clock: c.Clock, Log: c.Log,
		Story: c.Story, Metrics: c.Cfg.Metrics, Now: c.Cfg.Now}
}

// A History says how this process appears in the history of a target, and how long that is kept.
type History struct {
	Keep     time.Duration // 0: the process writes no history
	Actor    string        // on whose behalf it works, as claimed
	Host     string
	Settings []string // of the target, one a line
}

// newStory returns the chronicle of a target, which writes its history; nil if this process writes none.
func newStory(c *Site, h History, version string) *chronicle.Chronicle {
	if h.Keep <= 0 || !c.Cfg.Apply {
		return nil
	}
	text, hash := history.Settings(h.Settings)
	return chronicle.New(chronicle.Config{Store: c.Keeper.Store, Target: c.Target.Name, Settings: text, Keep: h.Keep,
		By:  history.Origin{Actor: h.Actor, Host: h.Host, Owner: c.Keeper.Owner, Version: version, Config: hash},
		Now: c.Cfg.Now, StoreNow: c.Clock.Now, Sums: c.Sums, Budgeted: c.BudgetedSoFar,
		Failed: func(task string, err error) { c.Log.Failed(task, "", err) },
		Marked: func() { c.Watch.Ask(0) }, // the heartbeat may be removed
	})
}
