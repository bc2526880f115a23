package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
)

// Forgotten lists the cursors of generations and namespaces that no longer exist, in the
// order of their keys.
func (p *Plan) Forgotten() (list []cursor.Cursor) {
	for _, c := range p.view.Cursors.All() {
		if p.IsForgotten(c.Generation) || p.isDead(c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b cursor.Cursor) int {
		return cmp.Or(a.Generation-b.Generation, strings.Compare(a.Key(), b.Key()))
	})
	return list
}

// anyForgotten reports whether there are records to forget.
func (p *Plan) anyForgotten() bool {
	for number := range p.strays.stored {
		if p.IsForgotten(number) {
			return true
		}
	}
	for number := range p.view.Seals {
		if p.IsForgotten(number) {
			return true
		}
	}
	return slices.ContainsFunc(p.strays.gone, func(id cursor.ID) bool {
		c, ok := p.view.Cursors.At(id)
		return ok && p.isDead(c)
	})
}

// IsForgotten reports whether a generation has existed and is not live any more. One that is
// newer than all that the record lists has not: another worker has just opened it.
func (p *Plan) IsForgotten(number int) bool {
	newest := 0
	for _, g := range p.view.Record.Generations {
		if g.Number == number {
			return false
		}
		newest = max(newest, g.Number)
	}
	return number != expirykey.Nursery && number <= newest
}

// isDead reports whether a cursor belongs to a namespace that has been gone for two rewinds.
// If it had existed meanwhile, its range would have been read from the start, and the
// cursor would have a later time.
func (p *Plan) isDead(c cursor.Cursor) bool {
	if !p.isGone(c.Namespace) || p.Stage(c.Generation).IsSealed() { // removed with their generation
		return false
	}
	since := p.Now().Add(-2 * p.rules.Rewind)
	for _, at := range []time.Time{c.Swept.Add(p.rules.Retention), c.Rewind.Done, c.Lease.Released, c.RateUsed} {
		if at.After(since) {
			return false
		}
	}
	return true
}
