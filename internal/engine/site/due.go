package site

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// FirstDue returns when the first well-formed entry of a range, from a position
// on, became due; the zero time if none is.
func (c *Site) FirstDue(ctx context.Context, r shardquery.Range, from store.Position) (time.Time, error) {
	horizon := c.Clock.Now().Add(-c.Target.Retention)
	isDue := func(_ store.Entry, j index.Judgement) bool { return j == index.Due }
	at, found, err := c.Index.FirstOf(ctx, r, from, horizon, horizon, isDue)
	if !found || err != nil {
		return time.Time{}, err
	}
	return at.Add(c.Target.Retention), nil
}

// SawDue tells the watchdog when the oldest entity left in a range became due, as far
// as that is known.
func (c *Site) SawDue(key string, oldest time.Time, deleted int64) {
	c.Target.Watchdog.Saw(c.Cfg.Now(), key, metrics.Look{OldestDue: oldest, Disposed: deleted, Held: !c.Cfg.Apply ||
		c.HeldBy() != ""})
}
