package visit

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// takeInventory records what is left in a sealed range that was read to its end.
func (v *visit) takeInventory(t step.Turn) error {
	var stock cursor.Stock
	past, c, horizon := v.hold.Cursor(), v.task.c, v.decide.Horizon
	survives := func(e store.Entry, j index.Judgement) bool {
		stock.Refused = stock.Refused || v.kept.IsRefused(e)
		return (j == index.Early || j == index.Due) && !v.kept.Has(e)
	}
	next, left, err := c.Index.FirstOf(t.Ctx, v.task.r, past.Position, shardquery.LastInstant, horizon, survives)
	if err != nil {
		return err
	}
	isSuspect := func(e store.Entry, j index.Judgement) bool { return j == index.Suspect && !v.kept.IsMistyped(e) }
	_, suspects, err := c.Index.FirstOf(t.Ctx, v.task.r, store.Position{}, c.Index.Floor(horizon), horizon, isSuspect)
	if err != nil {
		return err
	}
	stock.Next, stock.Suspects = next, suspects
	stock.Refused = stock.Refused || v.kept.AnyRefused() || past.Stock.Refused && !v.task.need.FromStart()
	if !left && !stock.Suspects && !stock.Refused {
		stock.Emptied = past.Stock.Emptied
		if stock.Emptied.IsZero() || v.account.disposed {
			stock.Emptied = c.Clock.Now().Truncate(time.Microsecond)
		}
	}
	v.hold.Update(func(c *cursor.Cursor) { c.Stock = stock })
	return nil
}

// FirstDue returns when the first well-formed entry of a range, from a position
// on, became due; the zero time if none is.
func FirstDue(ctx context.Context, c *site.Site, r shardquery.Range, from store.Position) (time.Time, error) {
	horizon := c.Clock.Now().Add(-c.Target.Retention)
	isDue := func(_ store.Entry, j index.Judgement) bool { return j == index.Due }
	at, found, err := c.Index.FirstOf(ctx, r, from, horizon, horizon, isDue)
	if !found || err != nil {
		return time.Time{}, err
	}
	return at.Add(c.Target.Retention), nil
}
