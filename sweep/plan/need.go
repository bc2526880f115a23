package plan

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A Need is what a range wants next. The zero Need is a range at rest.
type Need struct {
	// Read is a read from the cursor to the horizon or, in a generation that is
	// drained, to the range's end.
	Read bool
	// Unread says that the range has no position: Read then begins at its start.
	Unread bool
	// Fresh says that the range has no record either: it is probed from its start, and only
	// claimed if that finds something, or takes long.
	Fresh bool
	// Behind is a read from the start up to the cursor, for what was written there.
	Behind bool
	// SuspectsOnly says that Behind has to read only the suspects' part of the range: it
	// was read to its end since the sealing, and only suspects are left.
	SuspectsOnly bool
	// Inventory says that the visit records what is left, once all reads are done.
	Inventory bool
	// Asked says that Behind is due only since somebody asks for it, and Rests the same of
	// all reads.
	Asked, Rests bool
	// Since is when a read from the start must have begun to count: an earlier one that is
	// under way begins again.
	Since time.Time
	Stage Stage
}

// FromStart reports whether the range is read from its start, over whatever
// tombstones lie there.
func (n Need) FromStart() bool { return n.Unread || n.Behind }

// IsSlow reports whether the range belongs to the lane of those that may take
// long from its first step on. A read behind the cursor comes after that.
func (n Need) IsSlow() bool { return n.Unread && !n.Fresh || n.Stage.Drain }

// Range returns what a range needs.
func (p *Plan) Range(r shardquery.Range) Need {
	c, s := p.Cursor(r), p.stages[r.Generation]
	isDue, isAsked := p.due(c, s), p.isAsked(c)
	if !isDue && !isAsked {
		return Need{Stage: s}
	}
	n := Need{Read: true, Unread: c.Position.IsZero(), Inventory: s.IsSealed(), Stage: s, Since: s.Since,
		Rests: !isDue}
	if p.rules.ReadSince.After(n.Since) {
		n.Since = p.rules.ReadSince
	}
	if n.Unread && !p.isKnown(c.ID) { // in a sealed generation, until the pass over it has covered the namespace
		n.Fresh, n.Inventory = true, false
	}
	if isBehindDue := p.behindDue(r.Generation, c, s); !n.Unread && (isBehindDue || isAsked) {
		n.Behind = true
		suspectsOnly := s.Drain && !c.Rewind.Done.Before(s.Since) && !c.Stock.Refused // which may be anywhere
		n.SuspectsOnly = suspectsOnly && !isAsked
		n.Asked = !isBehindDue || suspectsOnly && isAsked
	}
	return n
}

// due reports whether a range needs a visit. A sealed range that was read is left alone
// until something in it is due.
func (p *Plan) due(c cursor.Cursor, s Stage) bool {
	switch {
	case !s.IsSealed() || c.Rewind.Done.Before(s.Since):
		return true
	case !c.Stock.Emptied.IsZero():
		return false
	case s.Drain && !p.drained(c, s):
		return true
	case (c.Stock.Suspects || c.Stock.Refused) && p.keptDue(c, s):
		return true
	case c.Stock.Next.IsZero():
		return !c.Stock.Suspects && !c.Stock.Refused // else a worker of another version lost it
	}
	return !p.now.Before(c.Stock.Next.Add(p.rules.Retention))
}

// drained reports whether a range is empty, or was read to its end since its generation
// began to be drained: what is left could then not be carried. If a survivor is left that
// could be carried, that read began before the draining.
func (p *Plan) drained(c cursor.Cursor, s Stage) bool {
	one := sumOf(c)
	return !one.left || one.noCarry && p.triedToCarry(c.Swept, s) // one that is empty is not visited any more
}

// triedToCarry reports whether a sweep that came up to a horizon has carried what it could.
func (p *Plan) triedToCarry(swept time.Time, s Stage) bool {
	return !swept.Add(p.rules.Retention).Before(s.DrainFrom)
}

// keptDue reports whether to try kept entities again: max_age may have been raised, or the
// store may no longer refuse them. In a drained generation a read for suspects only does
// not count as a read from the start, but as such a try.
func (p *Plan) keptDue(c cursor.Cursor, s Stage) bool {
	if tried := c.Swept.Add(p.rules.Retention); s.Drain && c.Rewind.Began.IsZero() && tried.After(c.Rewind.Done) {
		c.Rewind.Done = tried
	}
	return p.RewindDue(c)
}

// IsBehindDue reports whether a range that stands at the cursor is to be read from
// its start, too.
func (p *Plan) IsBehindDue(r shardquery.Range, c cursor.Cursor) bool {
	return p.isAsked(c) || p.behindDue(r.Generation, c, p.stages[r.Generation])
}

// isAsked reports whether somebody asks for a read of the range from its start, and none
// has been completed since.
func (p *Plan) isAsked(c cursor.Cursor) bool { return c.Rewind.Done.Before(p.rules.ReadSince) }

// behindDue reports whether a range is to be read from its start, too.
func (p *Plan) behindDue(number int, c cursor.Cursor, s Stage) bool {
	if !s.IsSealed() {
		return p.RewindDue(c) && (!p.sealedSoon(number) || !c.Rewind.Began.IsZero())
	}
	return c.Rewind.Done.Before(s.Since) || (c.Stock.Suspects || c.Stock.Refused) && (s.Drain || p.RewindDue(c))
}

// RewindDue reports whether a read of the range from its start is under way or
// due. Ranges take turns: each has a fixed part of the period's last fifth.
func (p *Plan) RewindDue(c cursor.Cursor) bool {
	return !c.Rewind.Began.IsZero() || !p.now.Before(p.NextRewind(c))
}

// NextRewind returns when the next read of a range from its start is due.
func (p *Plan) NextRewind(c cursor.Cursor) time.Time {
	return c.Rewind.Done.Add(Jitter(p.rules.Rewind, c.Key()))
}
