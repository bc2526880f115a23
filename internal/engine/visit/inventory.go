package visit

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/index"
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
	stock.Refused = stock.Refused || v.kept.AnyRefused() || past.Rewind.Refused ||
		past.Stock.Refused && !v.task.need.FromStart()
	if !left && !stock.Suspects && !stock.Refused {
		stock.Emptied = past.Stock.Emptied
		if stock.Emptied.IsZero() {
			stock.Emptied = c.Clock.Now().Truncate(time.Microsecond)
		}
	}
	v.hold.Update(func(c *cursor.Cursor) { // a read under way keeps what it has met
		c.Stock, c.Rewind.Refused = stock, c.Rewind.Refused && !c.Rewind.Began.IsZero()
	})
	return nil
}
