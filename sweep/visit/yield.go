package visit

import (
	"time"

	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/sweep/view"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// yieldFor is for how long a range is left to other processes, and yieldTurn how much longer for
	// each other one that they have to read first: what is due must not wait for a process that does
	// not come.
	yieldFor  = 4 * view.ReadAtMost
	yieldTurn = view.ReadAtMost / 4
)

// yields returns for how long a range that nobody holds is left to other processes before this
// one looks at it again. Those that hold fewer than their part of the ranges take it first, one
// after the other; and so that one which has lost a race learns what else is taken, it waits until
// the record is read again. If the wait is 0, the range may be claimed unless the function says by
// then that this process is full; nil says nothing.
func (j *rangeJob) yields(todo step.Todo) (full func(held int) bool, wait time.Duration) {
	c, now := j.c, j.c.Cfg.Now()
	most := yieldFor + yieldTurn*time.Duration(min(todo.Wanted/c.Cfg.Workers, 40))
	switch since := now.Sub(j.yielded); {
	case !c.Cfg.Apply || c.Keeper.Opening != "":
		return nil, 0
	case !j.yielded.IsZero() && since >= most:
		return nil, 0
	}
	full = func(held int) bool { return c.Keeper.IsFull(held, todo.Wanted) }
	if j.yielded.IsZero() && !j.empty.IsZero() {
		return full, 0 // it was done a tick ago: one query is less than to ask what others do with it
	}
	before, processes := c.Keeper.Turn(todo.Cursor.ID)
	switch first := j.yielded.IsZero(); {
	case full(c.Keeper.Pulse.Held()) && first:
		wait = most
	case full(c.Keeper.Pulse.Held()):
		wait = most - now.Sub(j.yielded)
	case before > 0 && first:
		wait = view.ReadAtMost + view.ReadAtMost*time.Duration(before)/time.Duration(processes)
	case c.Keeper.IsDoubtful(c.Viewer.View().CursorSent(todo.Cursor.ID)):
		wait = view.ReadAtMost
	}
	return full, wait
}

// yield leaves the range to other processes for a moment, and has its record read meanwhile.
func (j *rangeJob) yield(wait time.Duration) step.Outcome {
	c, now := j.c, j.c.Cfg.Now()
	if j.yielded.IsZero() {
		j.yielded = now
	}
	c.Viewer.WantCursor(c.Rules.ID(j.r))
	c.Watch.Ask(0)
	return step.Outcome{State: step.Waiting, Wake: now.Add(wait), Why: throttle.ReasonLease, Elsewhere: step.Elsewhere{Yields: true}}
}
