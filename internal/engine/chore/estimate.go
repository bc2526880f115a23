package chore

import (
	"context"

	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/store"
)

// Estimate is a chore that no plan asks for: it counts what is due, for the progress bar.
const Estimate plan.Kind = "estimate"

// dueSpans lists what is due and plausible in the ranges that need a read, from
// where it begins.
func dueSpans(c *site.Site, p *plan.Plan) (list []index.Span) {
	horizon := c.Horizon()
	for r := range p.All() {
		if !p.Range(r).Read {
			continue
		}
		var from store.Value // where this sweep begins to read the range
		if !c.Cfg.FromStart {
			from = p.Cursor(r).Position.Value
		}
		to := r.At(horizon.Add(r.Resolution())).Value
		if lo := r.At(c.Index.Floor(horizon)).Value; from.Compare(lo) < 0 {
			from = lo
		}
		if from.Compare(to) < 0 {
			span := store.Span{From: store.Point{Shard: r.Value, Value: from}, To: store.Point{Shard: r.Value, Value: to}}
			list = append(list, index.Span{Namespace: r.Namespace, Span: span})
		}
	}
	return list
}

// estimateDue adds the number of entities that are due to the progress.
func estimateDue(ctx context.Context, c *site.Site, p *plan.Plan) {
	_, ok := c.Index.Counter()
	if !ok {
		return
	}
	n, err := c.Index.Count(ctx, dueSpans(c, p), 0)
	c.Cfg.Progress.Due.Add(n)
	if err != nil {
		c.Log.DebugContext(ctx, "cannot tell how much there is to do", "error", err)
	}
}
