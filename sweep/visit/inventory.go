package visit

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
)

// takeInventory records what is left in a sealed range that was read to its end.
func (v *visit) takeInventory(t step.Turn) error {
	var stock cursor.Stock
	past := v.hold.Cursor()
	next, left, err := v.task.c.Index.FirstOf(t.Ctx, v.task.r, past.Position, shardquery.LastInstant, v.decide.Horizon, func(e store.Entry,
		j index.Judgement) bool {
		stock.Refused = stock.Refused || v.kept.IsRefused(e)
		return (j == index.Early || j == index.Due) && !v.kept.Has(e)
	})
	if err != nil {
		return err
	}
	_, suspects, err := v.task.c.Index.FirstOf(t.Ctx, v.task.r, store.Position{}, v.task.c.Index.Floor(v.decide.Horizon), v.decide.Horizon, func(e store.Entry,
		j index.Judgement) bool {
		return j == index.Suspect && !v.kept.IsMistyped(e)
	})
	if err != nil {
		return err
	}
	stock.Next, stock.Suspects = next, suspects
	stock.Refused = stock.Refused || v.kept.AnyRefused() || past.Stock.Refused && !v.task.need.FromStart()
	if !left && !stock.Suspects && !stock.Refused {
		stock.Emptied = past.Stock.Emptied
		if stock.Emptied.IsZero() || v.account.disposed {
			stock.Emptied = v.task.c.Clock.Now().Truncate(time.Microsecond)
		}
	}
	v.hold.Update(func(c *cursor.Cursor) { c.Stock = stock })
	return nil
}

// FirstDue returns when the first well-formed entry of a range, from a position
// on, became due; the zero time if none is.
func FirstDue(c *site.Site, ctx context.Context, r shardquery.Range, from store.Position) (time.Time, error) {
	horizon := c.Clock.Now().Add(-c.Target.Retention)
	at, found, err := c.Index.FirstOf(ctx, r, from, horizon, horizon, func(_ store.Entry, j index.Judgement) bool { return j == index.Due })
	if !found || err != nil {
		return time.Time{}, err
	}
	return at.Add(c.Target.Retention), nil
}
