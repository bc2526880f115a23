package sweep

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/schedule"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/store"
)

// Run sweeps every target once: it ends when every range is swept up to the instant
// at which Run began. When ctx is done it begins no new page, gives the pages in
// flight the grace, saves the cursors and releases the leases. Failures are in the
// result: a failing range or target stops no other.
func Run(ctx context.Context, cfg Config) Result {
	return once(ctx, cfg, schedule.Sweep, fillPreview)
}

// Audit makes a full round over the retired and sealed generations of each target, and
// does nothing else: it deletes the strays that are due, and moves the others to the
// nursery.
func Audit(ctx context.Context, cfg Config) Result {
	return once(ctx, cfg, schedule.Audit, nil)
}

// once works once on each target, all at the same time. If preview is not nil, it adds to a
// result what a dry run has found.
func once(
	ctx context.Context, cfg Config, work func(context.Context, schedule.Config, []schedule.Target) []schedule.Summary,
	preview func(*site.Site, *plan.View, *TargetResult),
) Result {
	cfg = cfg.withDefaults()
	began := cfg.Now()
	res := Result{Apply: cfg.Apply, Complete: true, Started: began.UTC().Round(0)}
	targets := targetsOf(&cfg)
	ends := work(ctx, workOf(cfg), targets)
	for i, end := range ends {
		c := targets[i].Site
		t := resultOf(c, end)
		if preview != nil {
			preview(c, end.View, &t)
		}
		if ctx.Err() != nil && t.Error == "" {
			t.Complete = t.Complete && !end.Open
		}
		if t.Error == "" && t.Scanned == 0 {
			t.EmptyKind = chore.IsEmptyKind(ctx, c)
		}
		if canForecast(c) && end.View != nil && t.Error == "" {
			t.WouldTrip = forecastTrip(ctx, c)
		}
		t.Duration = end.Ended.Sub(began).Seconds()
		res.Targets = append(res.Targets, t)
		res.Complete = res.Complete && t.Complete
	}
	finishHistories(ctx, targets, func(i int) (history.End, string) {
		return endOf(ctx, res.Targets[i]), res.Targets[i].Error
	})
	for i, end := range ends {
		publishEnd(targets[i].Site, end, res.Targets[i])
	}
	res.Duration = cfg.Now().Sub(began).Seconds()
	return res
}

// resultOf returns what was done to a target, and how the work on it ended.
func resultOf(c *site.Site, end schedule.Summary) TargetResult {
	res := resultAsOf(c)
	res.Ranges, res.Incomplete, res.Complete = end.Ranges, end.Incomplete, end.Complete
	fillHeld(c, &res, end.Held)
	if end.Fault != nil {
		res.Reason = end.Fault.Error()
	}
	if err := end.Err; err != nil {
		res.Error, res.Hint, res.Err = err.Error(), strings.Join(store.Hints(err), "; "), err
	}
	return res
}

// finishHistories ends the runs of all targets at the same time.
func finishHistories(ctx context.Context, targets []schedule.Target, why func(i int) (history.End, string)) {
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() {
			end, err := why(i)
			if c := t.Site; c.Viewer.View() != nil || err != "" { // else it was stopped before it could read the records
				c.Story.Finish(c.Metered(ctx), end, err)
			}
		})
	}
	all.Wait()
}

// publishEnd puts into metrics and log how and when one sweep of a target ended.
func publishEnd(c *site.Site, end schedule.Summary, res TargetResult) {
	c.Log.End()
	took := time.Duration(res.Duration * float64(time.Second))
	c.Cfg.Metrics.Swept(c.Target.Name, res.Outcome(), took, end.Ended)
	if end.View != nil {
		c.Publish()
	}
	level, verb := slog.LevelInfo, "swept"
	switch {
	case res.Error != "":
		level, verb = slog.LevelError, "sweep failed"
	case !res.Complete:
		level, verb = slog.LevelWarn, "sweep stopped before its end"
	}
	c.Log.LogAttrs(context.Background(), level, verb, slog.Bool("apply", c.Cfg.Apply),
		slog.Int64("expired", res.Expired), slog.Int64("deleted", res.Deleted), slog.Int64("scanned", res.Scanned),
		slog.Int64("conflicts", res.Conflicts), slog.Int64("suspect", res.Suspect), slog.Int64("malformed", res.Malformed),
		slog.Int64("refused", res.Refused), slog.Int64("mismatch", res.Mismatch), slog.Int64("outside", res.Outside),
		slog.Int("ranges", res.Ranges),
		slog.Int("ranges_incomplete", res.Incomplete), slog.Time("horizon", res.Horizon),
		slog.Any("throttled_seconds", res.Throttled), slog.Float64("seconds", res.Duration),
		slog.String("held", res.Held), slog.String("error", res.Error))
}
