package plan

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
)

// SealOf returns the view's seal of a live generation; ok is false if the generation has
// none, or if it is of an earlier generation with the same number.
func (p *Plan) SealOf(number int) (seal cursor.Seal, ok bool) {
	seal, ok = p.view.Seals[number]
	return seal, ok && seal.Is(number, p.opened[number], p.rules.Scope.Kind, p.rules.Scope.Property)
}

// sealed adds to a cursor what the pass over its generation says of its range: a range
// without a record was empty when the pass began or later.
func (p *Plan) sealed(c cursor.Cursor) cursor.Cursor {
	seal, ok := p.SealOf(c.Generation)
	if !ok || p.isKnown(c.ID) || !seal.Covers(c.Namespace, time.Time{}) {
		return c
	}
	c.Stock.Emptied, c.Rewind.Done, c.Swept = seal.First, seal.Began, seal.Began.Add(-p.rules.Retention)
	return c
}

// ShardsOf returns how many shards a live generation was opened with; 0 if it is not live.
func (p *Plan) ShardsOf(number int) int {
	if g := p.known.generation(number); g != nil {
		return g.Shards
	}
	return 0
}

// sealDue reports whether a sealed generation needs a pass: none that began at an instant
// or later has covered every namespace that any deployment sweeps.
func (p *Plan) sealDue(number int, since time.Time) bool {
	_, swept := p.totals(number)
	return swept && !p.isCovered(number, since)
}

// isCovered reports whether a pass that began at an instant or later has covered every
// namespace that any deployment sweeps.
func (p *Plan) isCovered(number int, since time.Time) bool {
	seal, ok := p.SealOf(number)
	if !ok {
		return false
	}
	for _, ns := range p.known.swept {
		if !seal.Covers(ns, since) {
			return false
		}
	}
	return true
}

// Swept lists the namespaces that any deployment sweeps, in order, or
// [cursor.AllNamespaces].
func (p *Plan) Swept() []string { return slices.Clone(p.known.swept) }

func (p *Plan) findSwept() (names []string) {
	names = slices.Clone(p.rules.Namespaces)
	if len(names) == 0 {
		names = slices.Clone(p.view.Namespaces)
	}
	for _, n := range p.view.Record.Namespaces {
		names = append(names, n.Name)
	}
	if slices.Contains(names, cursor.AllNamespaces) {
		return []string{cursor.AllNamespaces}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isToBeRaised reports whether the target record has an older schema, and no process of an
// older version holds a range: it would stop at the present one.
func (p *Plan) isToBeRaised() bool {
	if s := p.view.Record.Schema; s == 0 || s >= generation.Schema {
		return false
	}
	for _, c := range p.view.Cursors.All() {
		if c.Lease.Owner != "" && c.Lease.Epoch == 0 {
			return false
		}
	}
	return true
}
