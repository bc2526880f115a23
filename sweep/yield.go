package sweep

import (
	"time"

	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// yieldFor is for how long a range is left to other processes, and yieldTurn how much longer for
	// each other one that they have to read first: what is due must not wait for a process that does
	// not come.
	yieldFor  = 4 * readAtMost
	yieldTurn = readAtMost / 4
)

// yields returns for how long a range that nobody holds is left to other processes before this
// one looks at it again. Those that hold fewer than their part of the ranges take it first, one
// after the other; and so that one which has lost a race learns what else is taken, it waits until
// the record is read again. If the wait is 0, the range may be claimed unless the function says by
// then that this process is full; nil says nothing.
func (j *rangeJob) yields(todo todo) (full func(held int) bool, wait time.Duration) {
	c, now := j.c, j.c.cfg.Now()
	most := yieldFor + yieldTurn*time.Duration(min(todo.wanted/c.cfg.Workers, 40))
	switch since := now.Sub(j.yielded); {
	case !c.cfg.Apply || c.keeper.Opening != "":
		return nil, 0
	case !j.yielded.IsZero() && since >= most:
		return nil, 0
	}
	full = func(held int) bool { return c.keeper.IsFull(held, todo.wanted) }
	if j.yielded.IsZero() && !j.empty.IsZero() {
		return full, 0 // it was done a tick ago: one query is less than to ask what others do with it
	}
	before, processes := c.keeper.Turn(todo.cursor.ID)
	switch first := j.yielded.IsZero(); {
	case full(c.keeper.Pulse.Held()) && first:
		wait = most
	case full(c.keeper.Pulse.Held()):
		wait = most - now.Sub(j.yielded)
	case before > 0 && first:
		wait = readAtMost + readAtMost*time.Duration(before)/time.Duration(processes)
	case c.keeper.IsDoubtful(c.viewer.View().ToldAt(todo.cursor.ID)):
		wait = readAtMost
	}
	return full, wait
}

// yield leaves the range to other processes for a moment, and has its record read meanwhile.
func (j *rangeJob) yield(wait time.Duration) outcome {
	c, now := j.c, j.c.cfg.Now()
	if j.yielded.IsZero() {
		j.yielded = now
	}
	c.viewer.wantCursor(c.rules.ID(j.r))
	c.viewer.watch.ask(0)
	return outcome{state: waiting, wake: now.Add(wait), why: throttle.ReasonLease, elsewhere: elsewhere{yields: true}}
}
