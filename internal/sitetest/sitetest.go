// Package sitetest makes the site of one target for tests of the rooms of the engine: a store in memory,
// one target with generations, and a process that applies what it decides.
package sitetest

import (
	"context"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// Target is what the site works on.
var Target = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}

// PutExpired stores the entity s-1, in generation 1 and shard 2, which expired an hour before now.
func PutExpired(s store.Writer, now time.Time) {
	k, err := expirykey.New(1, 2, now.Add(-time.Hour))
	if err == nil {
		err = s.Put(context.Background(), Target, "", []store.Entity{{Name: "s-1", Expiry: store.TextValue(k.String())}})
	}
	if err != nil {
		panic(err)
	}
}

// Setup returns the setup of a site on a store, of which a test may change what it needs to.
func Setup(s store.Store, now func() time.Time) site.Setup {
	policy := generation.Policy{Every: 24 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 9, Shards: 3}
	return site.Setup{
		Config: site.Config{Store: s, Apply: true, Workers: 4, Now: now, Metrics: metrics.Discard(),
			Progress: new(site.Progress)},
		Target: site.Target{Target: Target, Policy: policy, Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second,
			Watchdog: &metrics.Watchdog{Patience: time.Hour}},
		Rules: plan.Rules{Target: Target.Name, Scope: cursor.Scope{Kind: Target.Kind, Property: Target.Property,
			Layout: string(layout.Generation)}, Form: layout.Generation.Form(), Generations: true, Policy: policy,
			MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Namespaces: []string{""}},
		MaxAge: 1825 * 24 * time.Hour, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
		Owner: "one", Log: slog.New(slog.DiscardHandler),
	}
}
