package sweep

import (
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/schedule"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/visit"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
)

// newSite returns the site of one target.
func newSite(cfg *Config, t *Target) *site.Site {
	return site.New(site.Setup{
		Config: site.Config{Store: cfg.Store, Apply: cfg.Apply, Workers: cfg.Workers, FromStart: cfg.FromStart,
			Exact: cfg.Exact, Now: cfg.Now, Metrics: cfg.Metrics, Progress: cfg.Progress,
			Archive: t.Archive},
		Target: site.Target{Target: t.Target, ShardValues: t.ShardValues, Policy: t.Policy, Retention: t.Retention,
			Overlap: t.Overlap, Page: t.Page, Lease: t.Lease, Limits: t.Limits, Breaker: BreakerRules(*t),
			Compare: t.Compare, Descendants: t.Descendants, Watchdog: t.Watchdog},
		Rules: t.Rules(), MaxAge: t.MaxAge, MaxClockSkew: t.MaxClockSkew, Pace: t.Pace, Total: t.Total, Gate: t.Gate,
		Yes: cfg.Yes, Owner: cfg.Owner, Version: cfg.Version, Log: cfg.Log, History: t.History,
	})
}

// workOf returns the configuration of the schedule.
func workOf(cfg Config) schedule.Config {
	return schedule.Config{Workers: cfg.Workers, Grace: cfg.Grace, Now: cfg.Now}
}

// targetsOf returns what the schedule needs to know of each target.
func targetsOf(cfg *Config) (list []schedule.Target) {
	for _, t := range cfg.Targets {
		if t.Watchdog == nil {
			t.Watchdog = &metrics.Watchdog{Patience: time.Hour}
		}
		c := newSite(cfg, &t)
		list = append(list, schedule.Target{
			Site:  c,
			Range: func(r shardquery.Range) step.Range { return visit.NewRange(c, r) },
			Chore: func(is plan.Chore) step.Job {
				if is.Kind == plan.Audit {
					return visit.NewAudit(c, is.Namespace, false)
				}
				return chore.New(c, is)
			},
			Round: func(namespace string) step.Job { return visit.NewAudit(c, namespace, true) },
			Next:  t.Next,
		})
	}
	return list
}
