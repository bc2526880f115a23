package chore

import (
	"context"
	"errors"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/store"
)

// retireGeneration retires a generation if it may. It reads the records again first. If they say
// that the generation may not retire yet, a later plan continues from them.
func retireGeneration(ctx context.Context, c *site.Site, number int) error {
	if !c.Cfg.Apply {
		return nil
	}
	// The seal first: the ranges that its pass has met have cursors by then, and a
	// namespace that a deployment adds later is not covered by it.
	seal, err := c.Viewer.LoadSeal(ctx, number, view.RecordPatience)
	if err != nil {
		return err
	}
	if err := c.Viewer.ReadGeneration(ctx, number); err != nil {
		return err
	}
	if seal.Revision != "" {
		c.Viewer.TakeSeal(seal)
	} else {
		c.Viewer.DropSeal(number)
	}
	v := c.Viewer.View()
	if !isOurs(c, v.Record) {
		return nil // what this process cannot see may be in it: who sweeps as the record says retires it
	}
	p := plan.New(c.Rules, v, plan.Book{}, c.Clock.Now())
	s := p.Stage(number)
	if !s.Final || p.Unread(number, s.Since) {
		return nil
	}
	if more, err := DiscoverShards(ctx, c, p, number); err != nil || more {
		return err
	}
	if d, ok := c.Cfg.Store.(store.Dropper); ok {
		from, to := expirykey.GenerationRange(number)
		err := d.Drop(ctx, c.Target.Target, from, to)
		if errors.Is(err, store.ErrConflict) {
			c.Log.WarnContext(ctx, "an entity turned up in a generation that was about to retire", "generation", number,
				"error", err)
			return unread(ctx, c, p, number)
		}
		if err != nil {
			return err
		}
	}
	malformed := leftIn(ctx, c, number)
	now := c.Clock.Now()
	next, err := v.Record.Retire(number, now, c.Target.Policy.Settle) // if it has changed since, this is tried again
	if err != nil {
		return err
	}
	if err := c.Viewer.SaveRecord(ctx, next, now); err != nil {
		return err
	}
	c.Tally.Retire(number)
	c.Log.InfoContext(ctx, "generation retired", "generation", number, "malformed_left", malformed)
	return nil
}

// unread marks the ranges of a generation as unread, so that they are read from their start
// again.
func unread(ctx context.Context, c *site.Site, p *plan.Plan, number int) error {
	if seal, ok := p.SealOf(number); ok { // the next pass finds what turned up in a range without a record
		if err := cursor.ForgetSeal(ctx, c.Keeper.Store, seal); err != nil {
			return err
		}
		c.Viewer.DropSeal(number)
	}
	for r := range p.All() {
		if _, known := c.Viewer.View().Cursors.At(c.Rules.ID(r)); r.Generation != number || !known {
			continue
		}
		_, _, err := c.Keeper.Move(ctx, p.Cursor(r), func(cur *cursor.Cursor) {
			cur.Rewind, cur.Stock = cursor.Rewind{},
				cursor.Stock{}
		})
		c.Viewer.WantCursor(c.Rules.ID(r)) // the view's copy is out of date
		if err != nil {
			return err
		}
	}
	return nil
}

// leftIn counts what is left in a generation, for people; -1 if it cannot be counted.
func leftIn(ctx context.Context, c *site.Site, number int) int64 {
	_, ok := c.Index.Counter()
	if !ok {
		return -1
	}
	from, to := expirykey.GenerationRange(number)
	n, err := c.Index.Count(ctx, index.Everywhere(c.Viewer.View().Namespaces, store.Between(from, to)), mostOutside)
	if err != nil {
		return -1
	}
	return n
}

// forgetCursors removes the cursors and seals of generations and namespaces that no longer exist.
func forgetCursors(ctx context.Context, c *site.Site, p *plan.Plan) error {
	if !c.Cfg.Apply {
		return nil
	}
	for number := range c.Viewer.View().Seals {
		if seal := c.Viewer.View().Seals[number]; p.IsForgotten(number) {
			if err := cursor.ForgetSeal(ctx, c.Keeper.Store, seal); err != nil {
				return err
			}
			c.Viewer.DropSeal(number)
		}
	}
	forgotten := p.Forgotten()
	gone := history.Change{What: history.Forgotten, Before: "cursors of namespaces that are gone"}
	defer func() { // all at once, because each change to the set of ranges rebuilds the plan
		for _, cur := range forgotten {
			c.Viewer.WantCursor(cur.ID)
		}
		if gone.Deleted > 0 {
			c.Story.Tell(history.KindGeneration, gone)
		}
	}()
	for _, cur := range forgotten {
		removed, err := c.Keeper.Forget(ctx, cur)
		if err != nil {
			return err
		}
		if removed && !p.IsForgotten(cur.Generation) { // otherwise the record of its retirement has the sum
			gone.Deleted += cur.Deleted
		}
	}
	return nil
}
