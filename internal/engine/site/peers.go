package site

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// yieldFor is for how long a range is left to other processes, and yieldTurn how much longer for
	// each other one that they have to read first: what is due must not wait for a process that does
	// not come.
	yieldFor  = 4 * view.ReadAtMost
	yieldTurn = view.ReadAtMost / 4
)

// Peers are the other processes, as far as a range is left to them.
type Peers struct {
	// yielded is when this process left the range to others for a moment; zero if it has not.
	yielded time.Time
	// held is another process's lease on the range, as it was when it was met first; nil
	// before.
	held *cursor.Lease
}

// End ends that this process leaves the range to others.
func (p *Peers) End() { p.yielded = time.Time{} }

// Yields returns for how long a range that nobody holds is left to other processes before this
// one looks at it again. Processes that hold fewer than their part of the ranges take it
// first, one after the other. A process that has lost a race waits until the record is read again,
// and so learns what else is taken. If the wait is 0, the range may be claimed, unless full reports
// by then that this process holds its part; nil does not. IsKnown says that this process was in the range
// before, and found nothing more.
func (p *Peers) Yields(c *Site, todo step.Todo, isKnown bool) (full func(held int) bool, wait time.Duration) {
	now, wanted := c.Cfg.Now(), todo.Wanted // full must not keep all of todo
	most := yieldFor + yieldTurn*time.Duration(min(wanted/c.Cfg.Workers, 40))
	switch since := now.Sub(p.yielded); {
	case !c.Cfg.Apply || c.Keeper.Opening != "":
		return nil, 0
	case !p.yielded.IsZero() && since >= most:
		return nil, 0
	}
	full = func(held int) bool { return c.Keeper.IsFull(held, wanted) }
	if p.yielded.IsZero() && isKnown {
		return full, 0 // it was done a tick ago: one query costs less than asking what others do with it
	}
	before, processes := c.Keeper.Turn(todo.Cursor.ID)
	switch first := p.yielded.IsZero(); {
	case full(c.Keeper.Pulse.Held()) && first:
		wait = most
	case full(c.Keeper.Pulse.Held()):
		wait = most - now.Sub(p.yielded)
	case before > 0 && first:
		wait = view.ReadAtMost + view.ReadAtMost*time.Duration(before)/time.Duration(processes)
	case c.Keeper.IsDoubtful(c.Viewer.View().CursorSent(todo.Cursor.ID)):
		wait = view.ReadAtMost
	}
	return full, wait
}

// Yield leaves the range to other processes for a moment, and has its record read meanwhile.
func (p *Peers) Yield(c *Site, id cursor.ID, wait time.Duration) step.Outcome {
	now := c.Cfg.Now()
	if p.yielded.IsZero() {
		p.yielded = now
	}
	c.Viewer.WantCursor(id)
	c.Watch.Ask(0)
	return step.Outcome{State: step.Waiting, Wake: now.Add(wait), Why: throttle.ReasonLease,
		Elsewhere: step.Elsewhere{Yields: true}}
}

// LeaveToHolder returns the outcome of a step on a range that another process holds. One
// whose heartbeat has moved since is alive: one sweep leaves the range to it, unless it may soon
// be given its part. A daemon, and a sweep that reads all ranges from their start, wait for its
// release or its death.
func (p *Peers) LeaveToHolder(c *Site, cur cursor.Cursor, wait time.Duration) step.Outcome {
	if p.held == nil || p.held.Owner != cur.Lease.Owner || p.held.Token != cur.Lease.Token {
		lease := cur.Lease // a pointer into cur would keep all of it
		p.held = &lease
	}
	out := step.Outcome{State: step.Waiting, Wake: c.Cfg.Now().Add(min(wait, c.Target.Lease/6)), Why: throttle.ReasonLease,
		Elsewhere: step.Elsewhere{Theirs: c.Keeper.IsHeld(cur)}}
	if cur.Lease.Epoch == 0 { // a process of an older version renews it in the record
		c.Viewer.WantCursor(cur.ID)
		out.Theirs = cur.Lease.Renewals > p.held.Renewals
	}
	c.Watch.Ask(wait)
	if out.Theirs && !c.Until.IsZero() && c.Rules.ReadSince.IsZero() && !c.Watch.Hopes(c.Target.Lease) {
		out.State = step.Resting
	}
	return out
}
