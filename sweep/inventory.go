package sweep

import (
	"cmp"
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// inventoryPage is how many entries a search for the first matching one reads at a
	// time: nearly always the first entry matches.
	inventoryPage = 20
	// inventoryPatience bounds the tries at one of its queries.
	inventoryPatience = 5 * time.Second
)

// takeInventory records what is left in a sealed range that was read to its end.
func (v *visit) takeInventory(t turn) error {
	var stock cursor.Stock
	past := v.claim.Cursor()
	next, left, err := v.c.firstOf(t.ctx, v.r, past.Position, shardquery.LastInstant, v.horizon, func(e store.Entry,
		j judgement) bool {
		stock.Refused = stock.Refused || v.kept.isRefused(e)
		return (j == early || j == due) && !v.kept.has(e)
	})
	if err != nil {
		return err
	}
	_, suspects, err := v.c.firstOf(t.ctx, v.r, store.Position{}, v.c.floor(v.horizon), v.horizon, func(e store.Entry,
		j judgement) bool {
		return j == suspect && !v.kept.isMistyped(e)
	})
	if err != nil {
		return err
	}
	stock.Next, stock.Suspects = next, suspects
	stock.Refused = stock.Refused || v.kept.anyRefused() || past.Stock.Refused && !v.start.need.FromStart()
	if !left && !stock.Suspects && !stock.Refused {
		stock.Emptied = past.Stock.Emptied
		if stock.Emptied.IsZero() || v.disposed {
			stock.Emptied = v.c.clock.Now().Truncate(time.Microsecond)
		}
	}
	v.update(func(c *cursor.Cursor) { c.Stock = stock })
	return nil
}

// firstOf returns the expiry of the first entry of a range that want accepts, by how
// the entry is judged at a horizon; found is false if want accepts none. The zero time is
// an expiry like any other.
func (c *collector) firstOf(ctx context.Context, r shardquery.Range, from store.Position, until, horizon time.Time,
	want func(store.Entry, judgement) bool) (at time.Time, found bool, err error) {
	var malformed error
	err = c.entries(ctx, r, from, until, horizon, inventoryPage, func(e store.Entry, j judgement) bool {
		if found = want(e, j); found {
			at, malformed = r.Expires(e.Value)
		}
		return !found
	})
	return at, found, cmp.Or(err, malformed)
}

// entries goes over the entries of a range from a position up to an instant, page by page,
// and over how each is judged at a horizon, while visit returns true.
func (c *collector) entries(ctx context.Context, r shardquery.Range, from store.Position, until, horizon time.Time,
	page int, visit func(store.Entry, judgement) bool) error {
	reader := &shardquery.Reader{Store: c.cfg.Store, Target: c.target.Target, Range: r, From: from, Until: until,
		Floor: c.floor(horizon), Now: c.cfg.Now}
	var p store.Page
	for more := true; more; {
		err := shardquery.Patiently(ctx, inventoryPatience, func() (err error) {
			more, err = reader.Next(ctx, &p, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, e := range p.Entries {
			if !visit(e, c.decide(e.Value, horizon)) {
				return nil
			}
		}
	}
	return nil
}

// firstDue returns when the first well-formed entry of a range, from a position
// on, became due; the zero time if none is.
func (c *collector) firstDue(ctx context.Context, r shardquery.Range, from store.Position) (time.Time, error) {
	horizon := c.clock.Now().Add(-c.target.Retention)
	at, found, err := c.firstOf(ctx, r, from, horizon, horizon, func(_ store.Entry, j judgement) bool { return j == due })
	if !found || err != nil {
		return time.Time{}, err
	}
	return at.Add(c.target.Retention), nil
}
