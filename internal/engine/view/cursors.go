package view

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
)

// The cursorRecords of a target are read into the view: all of them, or some by their keys.
type cursorRecords struct {
	source  *source
	current *current
	wanted  *wanted
	target  *targetRecord
}

// LoadCursors reads all cursors of the target, and the store's time with them.
func (c *cursorRecords) LoadCursors(ctx context.Context, next *plan.View) error {
	c.wanted.setAll(false)
	// The seals first: the ranges that a pass has met have cursors by then.
	var seals map[int]cursor.Seal
	if c.source.Rules.Form.HasGenerations() {
		var err error
		seals, err = cursor.LoadSeals(ctx, pages{c.source, RecordPatience}, c.source.Target.Name)
		if err != nil {
			return err
		}
	}
	sent := c.source.Clock.Local()
	table, err := c.source.cursors(RecordPatience).All(ctx, next.Cursors)
	if err != nil {
		return err
	}
	next.Cursors, next.CursorsSent, next.Seals = c.current.withFound(table), sent, seals
	return nil
}

// refreshAll reads all cursors.
func (c *cursorRecords) refreshAll(ctx context.Context) error {
	next := *c.current.View()
	err := c.LoadCursors(ctx, &next)
	if err == nil {
		err = c.checkLineage(ctx, &next, next.Cursors)
	}
	if err != nil {
		c.wanted.setAll(true)
		return err
	}
	c.current.takeAll(&next)
	return nil
}

// checkLineage makes sure that the target record is not older than the cursors.
func (c *cursorRecords) checkLineage(ctx context.Context, next *plan.View, cursors cursor.Table) error {
	name := c.source.Target.Name
	if plan.CheckLineage(next.Record, false, name, cursors) == nil {
		return nil
	}
	if err := c.target.load(ctx, next); err != nil {
		return err
	}
	return plan.CheckLineage(next.Record, false, name, cursors)
}

// refreshWanted reads the cursors that are wanted, by their keys.
func (c *cursorRecords) refreshWanted(ctx context.Context) error {
	if err := c.ReadSome(ctx, c.wanted.next(), OneTry); err != nil {
		return err
	}
	c.wanted.endSome(c.source.Clock.Local())
	return nil
}

// ReadSome reads some cursors by their keys, now.
func (c *cursorRecords) ReadSome(ctx context.Context, ids []cursor.ID, patience time.Duration) error {
	c.wanted.beginSome(ids)
	ch, err := c.source.cursors(patience).Some(ctx, c.current.View().Cursors, ids)
	if err == nil {
		err = c.take(ctx, ch)
	}
	if err != nil {
		c.wanted.wantSome(ids) // the refresher tries again later
	}
	return err
}

// ReadGeneration reads the cursors of a generation and the target record, now, for a
// chore that must know them as they are.
func (c *cursorRecords) ReadGeneration(ctx context.Context, number int) error {
	ch, err := c.source.cursors(RecordPatience).Generation(ctx, c.current.View().Cursors, number)
	if err != nil {
		return err
	}
	if err := c.target.ReloadRecord(ctx); err != nil {
		return err
	}
	return c.take(ctx, ch)
}

// take puts cursors that were read by their keys into the view.
func (c *cursorRecords) take(ctx context.Context, ch cursor.Changes) error {
	next := *c.current.View()
	if len(ch.Gone) > 0 { // their generation may have retired since the target record was read
		if err := c.target.load(ctx, &next); err != nil {
			return err
		}
	}
	if err := c.checkLineage(ctx, &next, cursor.NewTable(ch.Read...)); err != nil {
		return err
	}
	c.current.takeSome(&next, ch)
	return nil
}
