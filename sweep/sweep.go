// Package sweep makes one pass over the due ranges of each target: it scans a
// page, decides about each entry, disposes of what is due, and moves the cursor.
// It ties generation, shardquery, cursor and throttle together and knows no
// database: those are behind package store.
//
// The invariants are those that users rely on. Nothing is deleted unless its
// expiry is at or before the horizon when the delete commits, which the store's
// condition sees to. A cursor never stands past an entry that was not disposed
// of, wherever the process dies. Without Apply nothing is written at all.
//
// Limits: memory is bounded by workers times one page, whatever the backlog.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Target is what is swept and how. The configuration validates it.
type Target struct {
	store.Target
	Layout       string                      // as configured; part of what a cursor is good for
	Generations  bool                        // the layout has generations beside the nursery
	ShardValues  []store.Value               // of Target.ShardProperty, where there is one
	Namespaces   []string                    // or just "*" for all that the store lists
	Shards       int                         // of a generation opened now, and of the nursery at least; 0 for timestamps
	Policy       generation.Policy           // how generations follow each other; its Shards count for nothing
	Retention    time.Duration               // kept this long past expires
	MaxAge       time.Duration               // an expiry older than this before the horizon is suspect
	Rewind       time.Duration               // how often a range is read from its start
	Overlap      time.Duration               // a saved cursor stays this much behind the horizon
	Page         int                         // entries per page, 1 to store.MaxPage
	Lease        time.Duration               // how long a claim holds without renewal
	MaxClockSkew time.Duration               // more than this between local and store's clock stops the sweep
	Pace         throttle.Limits             // of each range
	Total        throttle.Limit              // of the target, over all workers
	Gate         func(context.Context) error // returns why nothing may be deleted at present; may be nil
	MaxDeletes   int64                       // one sweep deletes no more than this; 0 is no limit
	Watchdog     *metrics.Watchdog           // what is known of the ranges' progress, from sweep to sweep; may be nil
	MaxFraction  float64                     // of the entities that carry the property; 0 is no limit
}

// A Config says what a sweep works on. The zero Config deletes nothing.
type Config struct {
	Store    store.Store
	Targets  []Target
	Apply    bool             // without it, count only and write nothing
	Workers  int              // ranges swept at the same time; at least 1
	Grace    time.Duration    // for the pages in flight once ctx is done
	Yes      bool             // go on whatever the targets' limits say
	Owner    string           // names this process in leases, unlike any other
	Now      func() time.Time // this process's clock
	Log      *slog.Logger
	Progress *Progress        // may be nil
	Metrics  *metrics.Metrics // may be nil
}

// Progress is how far a running sweep has come, over all targets. It may be
// read at any time.
type Progress struct {
	// Estimate asks for Due, which costs a COUNT for each range.
	Estimate bool

	Due                                           atomic.Int64 // entities due when the sweep began
	Ranges, RangesDone, Scanned, Expired, Deleted atomic.Int64
}

// A Result is what a sweep did, in the form that `reaper sweep --json` prints.
type Result struct {
	Store    string         `json:"store"`
	Apply    bool           `json:"apply"`
	Complete bool           `json:"complete"`
	Started  time.Time      `json:"started"`
	Duration float64        `json:"duration_seconds"`
	Targets  []TargetResult `json:"targets"`
}

// A TargetResult is what a sweep did with one target.
type TargetResult struct {
	Name     string    `json:"name"`
	Horizon  time.Time `json:"horizon"`
	Complete bool      `json:"complete"`
	Error    string    `json:"error"` // empty where nothing failed

	Scanned    int64  `json:"scanned"`   // index entries read
	Expired    int64  `json:"expired"`   // found due; in a dry run, what would go
	Deleted    int64  `json:"deleted"`   // acknowledged
	Conflicts  int64  `json:"conflicts"` // changed between scan and write
	Suspect    int64  `json:"suspect"`   // implausibly old, kept
	Malformed  int64  `json:"malformed"` // not an expiry, kept
	Outside    int64  `json:"outside"`   // carry the property but lie in no range
	Carried    int64  `json:"carried"`   // survivors of a draining generation, stamped anew
	Strays     int64  `json:"strays"`    // found by the audit, and deleted or moved to the nursery
	Pages      int64  `json:"pages"`
	Stepped    *int64 `json:"points_stepped_over"`            // nil where the store cannot tell
	Behind     *int64 `json:"points_stepped_over_from_start"` // of these, in reads of a range from its start
	Ranges     int    `json:"ranges"`
	Incomplete int    `json:"ranges_incomplete"`
	Retired    []int  `json:"retired"`

	Operations store.Operations   `json:"operations"`
	Throttled  map[string]float64 `json:"throttled_seconds"`
	EmptyIndex bool               `json:"empty_index"` // holds entities, but no index entry in any range

	Err error `json:"-"` // what Error says, for errors.Is
}

// Failed reports whether anything went wrong, as opposed to having been stopped.
func (r Result) Failed() bool {
	for _, t := range r.Targets {
		if t.Error != "" {
			return true
		}
	}
	return false
}

// Outcome returns how the sweep ended, in the words of metrics.
func (r TargetResult) Outcome() metrics.Result {
	switch {
	case r.Error != "":
		return metrics.Failed
	case !r.Complete:
		return metrics.Incomplete
	}
	return metrics.Complete
}

// errStopped is why ranges end early when the sweep was asked to stop.
var errStopped = errors.New("stopped")

// Run sweeps every target once. When ctx is done it begins no new page, gives
// the pages in flight the grace, saves the cursors and releases the leases.
// What failed stands in the result: a failing range or target stops no other.
func Run(ctx context.Context, c Config) Result { return run(ctx, c, (*pass).run) }

// run works through the targets, side by side.
func run(ctx context.Context, c Config, do func(p *pass, ctx, work context.Context) error) Result {
	if c.Progress == nil {
		c.Progress = new(Progress)
	}
	began := c.Now()
	res := Result{Apply: c.Apply, Complete: true, Started: began.UTC().Round(0), Targets: make([]TargetResult, len(c.Targets))}
	work, cancel := graceful(ctx, c.Grace)
	defer cancel()
	slots := make(chan struct{}, max(1, c.Workers)) // shared: ranges of all targets together
	var group errgroup.Group
	group.SetLimit(max(1, c.Workers)) // no more targets at once than could have a worker each
	for i, t := range c.Targets {
		group.Go(func() error {
			res.Targets[i] = sweepTarget(ctx, work, newPass(c, t, slots), do)
			return nil
		})
	}
	_ = group.Wait() // no function returns an error: each has its own result
	for _, t := range res.Targets {
		res.Complete = res.Complete && t.Complete
	}
	res.Duration = c.Now().Sub(began).Seconds()
	return res
}

// sweepTarget sweeps one target and turns whatever happens, a panic included,
// into its result.
func sweepTarget(ctx, work context.Context, p *pass, do func(p *pass, ctx, work context.Context) error) (res TargetResult) {
	c, t := p.Config, p.target
	began := c.Now()
	err := protect(func() error { return p.governed(ctx, work, do) })
	if ended(ctx, err) || ended(work, err) {
		err = errStopped
	}
	res = p.result()
	if res.Horizon.IsZero() { // it did not come as far as the store's time
		res.Horizon = began.Add(-t.Retention).UTC().Round(0)
	}
	stopped := errors.Is(err, errStopped)
	if err != nil && !stopped {
		res.Error, res.Err = err.Error(), err
	}
	res.Complete = err == nil && res.Incomplete == 0
	level, verb := slog.LevelInfo, "swept"
	switch {
	case res.Error != "":
		level, verb = slog.LevelError, "sweep failed"
	case stopped || !res.Complete:
		level, verb = slog.LevelWarn, "sweep stopped before its end"
	}
	p.publishEnd(res)
	p.Log.LogAttrs(ctx, level, verb, slog.Bool("apply", c.Apply),
		slog.Int64("expired", res.Expired), slog.Int64("deleted", res.Deleted), slog.Int64("scanned", res.Scanned),
		slog.Int64("conflicts", res.Conflicts), slog.Int64("suspect", res.Suspect), slog.Int64("malformed", res.Malformed),
		slog.Int64("outside", res.Outside), slog.Int("ranges", res.Ranges), slog.Int("ranges_incomplete", res.Incomplete),
		slog.Time("horizon", res.Horizon), slog.Any("throttled_seconds", res.Throttled),
		slog.Float64("seconds", c.Now().Sub(began).Seconds()), slog.String("error", res.Error))
	return res
}

// ended reports whether a context that is done explains the error.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) || errors.Is(err, context.Canceled))
}

// protect turns a panic into an error: one of our own bugs must not end the
// sweep of other targets and ranges.
func protect(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error, please report it: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}

// graceful returns a context that ends the given time after ctx does.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var timer atomic.Pointer[time.Timer]
	stop := context.AfterFunc(ctx, func() {
		timer.Store(time.AfterFunc(grace, func() { cancel(errStopped) }))
	})
	return work, func() {
		stop()
		if t := timer.Load(); t != nil {
			t.Stop()
		}
		cancel(nil)
	}
}
