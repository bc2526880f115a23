package sweep

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A Preview is what a dry run reports in addition to the counts of every sweep.
type Preview struct {
	// BehindCursors counts what is due and lies behind the cursors: the next sweep leaves it,
	// and a later read of its range from the start deletes it. Nil if that is not known: a
	// sweep that applies does not look there, unless it reads each range from its start. Then
	// it is zero if the sweep is complete and the store has refused nothing.
	BehindCursors *int64 `json:"behind"`
	// GoneBy is when the last of that can be deleted: the first sweep after it does. Nil if
	// nothing is there, or if it is not known.
	GoneBy *time.Time `json:"behind_gone_by"`
	// Estimated says that some of it was counted in the index, and not read: malformed
	// entries count as due there.
	Estimated bool      `json:"estimated"`
	Examples  []Example `json:"examples"` // of what is kept, up to three for each reason
	// WouldTrip is the event for which a sweep with --apply would trip the breaker; nil if it
	// would not, or if that is not known.
	WouldTrip *TripForecast `json:"would_trip,omitempty"`
}

// fillPreview puts into a result what a dry run found in addition to the counts.
func fillPreview(c *site.Site, v *plan.View, res *TargetResult) {
	if c.Cfg.Apply && c.Cfg.FromStart && res.Complete && res.Refused == 0 {
		res.BehindCursors = new(int64) // every range was read from its start
	}
	if c.Cfg.Apply || v == nil {
		return
	}
	t := c.Tally
	t.Mu.Lock()
	defer t.Mu.Unlock()
	found := &t.Preview
	n := found.Behind
	res.BehindCursors, res.Estimated = &n, found.Estimated
	res.Examples = slices.SortedFunc(slices.Values(found.Examples), func(x, y Example) int {
		return cmp.Or(cmp.Compare(x.Kept, y.Kept), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.ID, y.ID))
	})
	if n == 0 {
		return
	}
	rules := c.Rules
	rules.ReadSince = time.Time{} // as later sweeps plan
	var ranges []shardquery.Range
	for r := range found.Ranges {
		ranges = append(ranges, r)
	}
	if by, known := plan.New(rules, v, plan.Book{}, c.Clock.Now()).BehindGone(ranges); known {
		res.GoneBy = &by
	}
}

// A TripForecast is an event for which a sweep with --apply would trip the breaker.
type TripForecast struct {
	Rule      breaker.Rule  `json:"rule"`
	Hour      *time.Time    `json:"hour"` // of a burst: when its window of expiry begins; else nil
	Due       int64         `json:"due"`
	Limit     int64         `json:"limit"`
	All       int64         `json:"all"`
	Histogram []breaker.Bar `json:"histogram"`
}

// canForecast reports whether the sweep is a dry run of a target whose breaker is on and closed.
func canForecast(c *site.Site) bool {
	return !c.Cfg.Apply && c.Target.Breaker.On && c.Viewer.View() != nil && !c.Viewer.View().Record.Trip.IsOpen()
}

// forecastTrip judges what a dry run has found due, as a sweep with --apply would. It writes nothing.
func forecastTrip(ctx context.Context, c *site.Site) *TripForecast {
	c.Cfg.Progress.Judging.Add(1)
	defer c.Cfg.Progress.Judging.Add(-1)
	c.Tally.Mu.Lock()
	oldest := c.Tally.Preview.Oldest
	c.Tally.Mu.Unlock()
	j := spend.Observe(c.Spending())
	trip, err := j.Forecast(ctx, oldest)
	if err != nil {
		c.Log.DebugContext(ctx, "cannot foresee whether the breaker would trip", "error", err)
		return nil
	}
	if trip == nil {
		return nil
	}
	c.Log.WarnContext(ctx, "with --apply the breaker would trip", "rule", string(trip.Rule), "due", trip.Due,
		"limit", trip.Limit)
	would := &TripForecast{Rule: trip.Rule, Due: trip.Due + trip.Gone, Limit: trip.Limit, All: trip.All,
		Histogram: j.Histogram(ctx, *trip)}
	if !trip.Hour.IsZero() {
		would.Hour = &trip.Hour
	}
	return would
}
