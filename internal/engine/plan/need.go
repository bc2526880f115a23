package plan

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
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
	// Asked says that Behind is due only because [Rules].ReadSince asks for it, and Rests
	// the same of all reads.
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

// A moment is an instant in the store's time, and the rules by which reads are due then.
type moment struct {
	rules *Rules
	now   time.Time
}

// need returns what a range with a cursor record needs, by that and the stage of its generation.
func (m moment) need(c *cursor.Cursor, s Stage) Need {
	isDue, isAsked := m.isDue(c, s), m.isAsked(c)
	if !isDue && !isAsked {
		return Need{Stage: s}
	}
	n := Need{Read: true, Unread: c.Position.IsZero(), Inventory: s.IsSealed(), Stage: s, Since: s.Since,
		Rests: !isDue}
	if m.rules.ReadSince.After(n.Since) {
		n.Since = m.rules.ReadSince
	}
	if s.Drain && s.DrainFrom.After(n.Since) {
		n.Since = s.DrainFrom // what an earlier one has passed it has not carried
	}
	if isBehindDue := m.isBehindDue(c, s); !n.Unread && (isBehindDue || isAsked) {
		n.Behind = true
		suspectsOnly := s.Drain && !c.Rewind.Done.Before(s.Since) && !c.Stock.Refused // which may be anywhere
		n.SuspectsOnly = suspectsOnly && !isAsked
		n.Asked = !isBehindDue || suspectsOnly && isAsked
	}
	return n
}

// isDue reports whether a range needs a visit. A sealed range that was read is left alone
// until something in it is due.
func (m moment) isDue(c *cursor.Cursor, s Stage) bool {
	switch {
	case !s.IsSealed() || c.Rewind.Done.Before(s.Since):
		return true
	case !c.Stock.Emptied.IsZero():
		return false
	case s.Drain && !sumOf(*c).isDrained(s, m.rules.Retention):
		return true
	case (c.Stock.Suspects || c.Stock.Refused) && m.isRetryDue(c, s):
		return true
	case c.Stock.Next.IsZero():
		return !c.Stock.Suspects && !c.Stock.Refused // else a worker of another version lost it
	}
	return !m.now.Before(c.Stock.Next.Add(m.rules.Retention))
}

// isRetryDue reports whether to try kept entities again: max_age may have been raised, or the
// store may no longer refuse them. In a drained generation a read for suspects only does
// not count as a read from the start, but as such a try. Refused entities are tried by reads
// from the start, and by nothing less: no audit looks for strays in their range.
func (m moment) isRetryDue(c *cursor.Cursor, s Stage) bool {
	tried := c.Swept.Add(m.rules.Retention)
	if s.Drain && !c.Stock.Refused && c.Rewind.Began.IsZero() && tried.After(c.Rewind.Done) {
		retried := *c
		retried.Rewind.Done = tried
		return m.isRewindDue(&retried)
	}
	return m.isRewindDue(c)
}

// isAsked reports whether the rules ask for a read of the range from its start, and none
// has been completed since.
func (m moment) isAsked(c *cursor.Cursor) bool { return c.Rewind.Done.Before(m.rules.ReadSince) }

// isBehindDue reports whether a range is to be read from its start, too.
func (m moment) isBehindDue(c *cursor.Cursor, s Stage) bool {
	if !s.IsSealed() {
		return m.isRewindDue(c) && (!m.rules.skipsRewinds(c.Generation) || !c.Rewind.Began.IsZero())
	}
	return c.Rewind.Done.Before(s.Since) || (c.Stock.Suspects || c.Stock.Refused) && (s.Drain || m.isRewindDue(c))
}

// isRewindDue reports whether a read of the range from its start is under way or due.
func (m moment) isRewindDue(c *cursor.Cursor) bool {
	least := m.rules.Rewind - m.rules.Rewind/5 - 1
	if c.Rewind.Began.IsZero() && m.now.Before(c.Rewind.Done.Add(least)) {
		return false // within four fifths of the period it is no range's turn, whatever its name is
	}
	return !c.Rewind.Began.IsZero() || !m.now.Before(m.rules.NextRewind(*c))
}
