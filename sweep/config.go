package sweep

import (
	"context"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Target says what is swept, and how. Package config makes one from a targets file, and checks it.
type Target struct {
	store.Target
	Layout       layout.Layout               // as configured; cursors are valid for one layout
	Generations  bool                        // the layout has generations in addition to the nursery
	ShardValues  []store.Value               // of Target.ShardProperty, if there is one
	Namespaces   []string                    // or only "*" for all that the store lists
	Shards       int                         // of new generations, and at least of the nursery; 0 for timestamps
	Policy       generation.Policy           // how generations follow each other; Shards above counts, not its own
	Retention    time.Duration               // kept this long past expires
	MaxAge       time.Duration               // an expiry older than this before the horizon is suspect
	Rewind       time.Duration               // how often a range is read from its start
	Overlap      time.Duration               // a saved cursor stays this much behind the horizon
	Page         int                         // entries per page, 1 to store.MaxPage
	Lease        time.Duration               // how long a claim holds without renewal
	MaxClockSkew time.Duration               // if the clocks here and in the store are further apart, the sweep ends
	Pace         throttle.Limits             // of each range
	Total        throttle.Limit              // of the target, over all workers
	Gate         func(context.Context) error // returns why nothing may be deleted at present; may be nil
	Limits       breaker.Limits              // over all processes; the zero value has no limits
	Breaker      breaker.Rules               // the zero value is switched off
	Compare      Comparer                    // keeps due entities that disagree with their expiry; may be nil
	Descendants  Descendants                 // what becomes of what lies below due entities
	Archive      Archive                     // keeps what is about to be deleted; may be nil
	Watchdog     *metrics.Watchdog           // watches the progress of ranges; may be nil
	History      History                     // how this process appears there, and how long it is kept
	// Next returns the next tick after an instant; only a [Daemon] calls it. It goes by
	// the wall clock.
	Next func(time.Time) time.Time
}

// IsTripped reports whether an open breaker holds the target. One that is switched off holds nothing.
func (t Target) IsTripped(r generation.Record) bool {
	return site.Target{Breaker: t.Breaker}.IsTripped(r)
}

// Rules returns the part of the target that plans are made by.
func (t Target) Rules() plan.Rules {
	policy := t.Policy
	policy.Shards = t.Shards
	if !t.Generations {
		policy.Every = 0 // generations of an earlier layout may be left, but no new ones open
	}
	return plan.Rules{Target: t.Name, Scope: cursor.Scope{Kind: t.Kind, Property: t.Property, Layout: t.scope()},
		Form:        t.Layout.Form(),
		ShardValues: t.ShardValues, Generations: t.Generations, Policy: policy, Retention: t.Retention, MaxAge: t.MaxAge,
		Rewind: t.Rewind, Namespaces: t.namespaces()}
}

// BreakerRules returns the rules for the budget of a target.
func BreakerRules(t Target) breaker.Rules {
	r := t.Breaker
	r.Rewind, r.Retention, r.Limits = t.Rewind, t.Retention, t.Limits
	return r
}

// namespaces returns the configured namespaces; the default one if there are none.
func (t Target) namespaces() []string {
	if len(t.Namespaces) == 0 {
		return []string{""}
	}
	return t.Namespaces
}

// scope names the layout, and whatever else a position depends on: shards of another
// property, or integers instead of texts, are other shards.
func (t Target) scope() string {
	if t.ShardProperty == "" || len(t.ShardValues) == 0 {
		return string(t.Layout)
	}
	values := "texts"
	if t.ShardValues[0].Type != store.Text {
		values = "integers"
	}
	return string(t.Layout) + " by " + values + " in " + t.ShardProperty
}

// A Config says what is swept, and how. The zero Config deletes nothing.
type Config struct {
	Store    store.Store
	Targets  []Target
	Apply    bool             // without it, count only and write nothing
	Workers  int              // steps at the same time, over all targets; at least 1
	Grace    time.Duration    // for the pages in flight once ctx is done
	Once                      // options of one sweep
	Owner    string           // names this process in leases; no other process has the same name
	Version  string           // of the program, for people
	Now      func() time.Time // this process's clock
	Log      *slog.Logger
	Progress *Progress        // may be nil
	Metrics  *metrics.Metrics // may be nil
}

// Once has the options that an operator gives for one sweep.
type Once struct {
	Yes       bool // ignore the limits of the targets
	FromStart bool // read each range from its start, even if such a read is not due
	Exact     bool // without Apply: read and check each entity, instead of one page of each range and COUNTs
}

func (c Config) withDefaults() Config {
	if c.Progress == nil {
		c.Progress = new(Progress)
	}
	if c.Metrics == nil {
		c.Metrics = metrics.Discard()
	}
	c.Workers = max(1, c.Workers)
	return c
}

// What callers need of package site.
type (
	Progress   = site.Progress
	Comparer   = site.Comparer
	Comparison = site.Comparison
	Example    = site.Example
	History    = site.History

	Descendants     = site.Descendants
	DescendantsMode = site.DescendantsMode

	// An Archive keeps what is about to be deleted.
	Archive = site.Archive
)

// ArchiveFault begins the text of a fault of an archive.
const ArchiveFault = site.ArchiveFault

// What may become of descendants.
const (
	KeepDescendants   = site.KeepDescendants
	DeleteDescendants = site.DeleteDescendants
	RefuseDescendants = site.RefuseDescendants
)

// MostExamples is how many examples a dry run gives for each reason.
const MostExamples = site.MostExamples
