package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A ground is what a sweep must know of the generation that a range lies in. The
// zero ground is that of ranges that are never sealed: the nursery's, and those
// of timestamps.
type ground struct {
	state  generation.State
	sealed time.Time // when the last writer must have committed; zero where there may be one yet
	// since is the mark for reads from the start: once sealed, each range must
	// have been read by one that began then or later.
	since time.Time
	final bool // since is that of the last read, before the generation retires
	drain bool // what is left is carried to the newest generation
}

// takeBearings finds out how each generation stands.
func (p *pass) takeBearings(now time.Time) {
	p.grounds = map[int]ground{}
	staleness, _ := p.record.Bounds()
	for i, g := range p.record.Generations {
		at := ground{state: p.record.State(i, now, p.target.Policy.Settle)}
		if at.state == generation.Sealed || at.state == generation.Draining {
			at.sealed = p.record.SealedAt(i, p.target.Policy.Settle)
			at.since = at.sealed
			if ready, empty := p.emptySince(g.Number, at.sealed); empty && !now.Before(ready) {
				at.since, at.final = ready, true
			}
			// Until all workers know, they sweep the newest generation at full pace.
			at.drain = at.state == generation.Draining && !now.Before(g.Draining.Add(staleness))
		}
		p.grounds[g.Number] = at
	}
}

// survey finds out how each generation stands, looks past the last shard of those
// that are about to be read from their start, and lists the ranges that are due.
func (p *pass) survey(ctx context.Context) error {
	now := p.clock.Now()
	p.takeBearings(now)
	for _, g := range p.record.Generations {
		if at := p.grounds[g.Number]; !at.sealed.IsZero() && p.anyUnread(g.Number, at.since) {
			if _, err := p.lookPast(ctx, g); err != nil { // it happens again before the generation retires
				if err := p.withoutLook(ctx, err); err != nil {
					return err
				}
			}
		}
	}
	p.ranges = slices.DeleteFunc(slices.Clone(p.all), func(r shardquery.Range) bool {
		return !p.due(r.Generation, p.cursor(r), now)
	})
	p.restsAndGone()
	return nil
}

// due reports whether a range is to be visited. One that nobody writes to any more
// is left alone until something in it is due.
func (p *pass) due(number int, c cursor.Cursor, now time.Time) bool {
	at := p.grounds[number]
	switch {
	case at.sealed.IsZero() || c.Rewind.Done.Before(at.since):
		return true
	case !c.Stock.Emptied.IsZero():
		return false
	case at.drain:
		return true
	case c.Stock.Suspects && p.rewindDue(c, now): // max_age may have been raised
		return true
	case c.Stock.Next.IsZero():
		return !c.Stock.Suspects // else it was lost: a worker of another version wrote the record
	}
	return !now.Before(c.Stock.Next.Add(p.target.Retention))
}

// behindDue reports whether a range is to be read from its start, too.
func (p *pass) behindDue(number int, c cursor.Cursor, now time.Time) bool {
	at := p.grounds[number]
	if at.sealed.IsZero() {
		return p.rewindDue(c, now) && (!p.sealedSoon(number) || !c.Rewind.Began.IsZero())
	}
	return c.Rewind.Done.Before(at.since) || c.Stock.Suspects && (at.drain || p.rewindDue(c, now))
}

// sealedSoon reports whether a generation lives so short that its ranges are read
// from their start once it is sealed, and not before: twice would be once too often.
func (p *pass) sealedSoon(number int) bool {
	every, settle := p.target.Policy.Every, time.Duration(p.target.Policy.Settle)
	return number != expirykey.Nursery && p.target.Generations && 0 < every && every <= 2*p.target.Rewind/(1+settle)
}

// emptySince returns when a sealed generation may be read for the last time, a
// slack after the last of it was disposed of, if nothing is left in any range. Where
// no range of it is swept, as under another layout, nobody knows.
func (p *pass) emptySince(number int, sealed time.Time) (ready time.Time, empty bool) {
	ready = sealed
	_, slack := p.record.Bounds()
	for _, r := range p.all {
		if r.Generation != number {
			continue
		}
		empty = true
		c := p.cursor(r)
		if c.Rewind.Done.Before(sealed) || c.Stock.Emptied.IsZero() {
			return ready, false
		}
		if t := c.Stock.Emptied.Add(slack); t.After(ready) {
			ready = t
		}
	}
	return ready, empty
}

// anyUnread reports whether a range of the generation has yet to be read from its
// start, by a read that begins at the given instant or later.
func (p *pass) anyUnread(number int, since time.Time) bool {
	return slices.ContainsFunc(p.all, func(r shardquery.Range) bool {
		return r.Generation == number && p.cursor(r).Rewind.Done.Before(since)
	})
}

// takeStock finds out what is left in a sealed range that was read to its end.
func (w *worker) takeStock() error {
	var stock cursor.Stock
	past := w.claim.Cursor()
	next, err := w.firstOf(w.ctx, w.r, past.Position, shardquery.LastInstant, w.horizon,
		func(_ store.Entry, j judgement) bool { return j == early || j == due })
	if err != nil {
		return err
	}
	old, err := w.firstOf(w.ctx, w.r, store.Position{}, w.floor(w.horizon), w.horizon,
		func(e store.Entry, j judgement) bool { return j == suspect && !w.impostors[e.Key] })
	if err != nil {
		return err
	}
	stock.Next, stock.Suspects = next, !old.IsZero()
	if stock.Next.IsZero() && !stock.Suspects {
		stock.Emptied = past.Stock.Emptied
		if stock.Emptied.IsZero() || w.disposed {
			stock.Emptied = w.clock.Now().Truncate(time.Microsecond)
		}
	}
	w.update(func(c *cursor.Cursor) { c.Stock = stock })
	return nil
}

// retire ends the generations of which the last read found nothing, and removes
// the cursors of all that have retired.
func (p *pass) retire(ctx context.Context) error {
	if !p.Apply {
		return nil
	}
	last := slices.ContainsFunc(p.record.Generations, func(g generation.Generation) bool { return p.grounds[g.Number].final })
	if last {
		if err := p.loadTable(ctx); err != nil {
			return err
		}
		if err := p.reloadRecord(ctx); err != nil {
			return err
		}
		for _, g := range slices.Clone(p.record.Generations) {
			if p.grounds[g.Number].final {
				if err := p.retireOne(ctx, g); err != nil {
					return fmt.Errorf("retire generation %08d: %w", g.Number, err)
				}
			}
		}
	}
	return p.forget(ctx)
}

// retireOne retires a generation if it may. Where it may not yet, the next sweep
// goes on from what the cursors say.
func (p *pass) retireOne(ctx context.Context, g generation.Generation) error {
	i := slices.IndexFunc(p.record.Generations, func(h generation.Generation) bool { return h.Number == g.Number })
	if i < 0 {
		return nil // another worker was first
	}
	sealed := p.record.SealedAt(i, p.target.Policy.Settle)
	ready, empty := p.emptySince(g.Number, sealed)
	if sealed.IsZero() || !empty || p.clock.Now().Before(ready) || p.anyUnread(g.Number, ready) {
		return nil
	}
	if more, err := p.lookPast(ctx, g); err != nil || more {
		return err
	}
	if d, ok := p.Store.(store.Dropper); ok {
		from, to := expirykey.GenerationRange(g.Number)
		err := d.Drop(ctx, p.target.Target, from, to)
		if errors.Is(err, store.ErrConflict) {
			p.Log.WarnContext(ctx, "an entity turned up in a generation that was about to retire", "generation", g.Number, "error", err)
			return p.unread(ctx, g.Number)
		}
		if err != nil {
			return err
		}
	}
	malformed, err := p.leftIn(ctx, g.Number)
	if err != nil {
		return err
	}
	next, err := p.record.Retire(g.Number, p.clock.Now(), p.target.Policy.Settle)
	if err != nil {
		return err
	}
	saved, err := generation.Save(ctx, p.Store, next)
	if errors.Is(err, store.ErrConflict) {
		return nil // somebody changed the record: the next sweep sees
	}
	if err != nil {
		return err
	}
	p.record = saved
	p.retired = append(p.retired, g.Number)
	p.Log.InfoContext(ctx, "generation retired", "generation", g.Number, "malformed_left", malformed)
	return nil
}

// unread makes the ranges of a generation be read from their start again.
func (p *pass) unread(ctx context.Context, number int) error {
	for _, r := range p.all {
		if r.Generation != number {
			continue
		}
		_, err := p.keeper.Move(ctx, p.cursor(r), func(c *cursor.Cursor) { c.Rewind, c.Stock = cursor.Rewind{}, cursor.Stock{} })
		if err != nil {
			return err
		}
	}
	return nil
}

// leftIn counts what is left in a generation, where the store can count.
func (p *pass) leftIn(ctx context.Context, number int) (int64, error) {
	counter, ok := p.Store.(store.Counter)
	if !ok {
		return 0, nil
	}
	from, to := expirykey.GenerationRange(number)
	return p.countSpans(ctx, counter, p.everywhere(store.Between(from, to)))
}

// forget removes the cursors of generations that are no more. Those of younger
// generations than the record knows are another worker's.
func (p *pass) forget(ctx context.Context) error {
	live := map[int]bool{expirykey.Nursery: true}
	newest := 0
	for _, g := range p.record.Generations {
		live[g.Number] = true
		newest = max(newest, g.Number)
	}
	for _, c := range slices.SortedFunc(maps.Values(p.table), func(a, b cursor.Cursor) int { return strings.Compare(a.Key(), b.Key()) }) {
		if live[c.Generation] || c.Generation > newest {
			continue
		}
		if err := p.keeper.Forget(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// stampBy returns the target record, read not longer ago than a quarter of the
// staleness: what is stamped by it commits while it is less than half as old.
func (p *pass) stampBy(ctx context.Context) (generation.Record, error) {
	return p.governor.latest(ctx, p.governor.staleness()/4)
}
