package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A sweepCount is the sweep that is counted: the progress of the ranges that were ready
// when it began.
type sweepCount struct {
	c        *site.Site
	tags     *tagCounts
	open     bool
	began    time.Time // by this process's clock
	horizon  time.Time // which every range is to reach
	pending  int       // ranges that have not reached it yet
	ranges   int
	left     int // ranges that ended before they reached it
	failures journal.Failures
}

// begin begins to count a sweep of the ranges that do not rest, except those that a live
// process holds: these are its matter.
func (n *sweepCount) begin(ranges map[shardquery.Range]*item, now time.Time) {
	*n = sweepCount{c: n.c, tags: n.tags, open: true, began: now, horizon: n.c.Horizon()}
	for _, it := range ranges {
		it.pending = it.state != step.Resting && !(it.state == step.Waiting && it.out.Theirs)
		if it.pending {
			n.pending++
		}
		n.tags.note(it)
	}
	n.ranges = n.pending
	n.c.Cfg.Progress.Ranges.Add(int64(n.ranges))
}

// add counts the outcome of a step.
func (n *sweepCount) add(it *item, out step.Outcome) {
	if out.Err != nil {
		n.fail(it, out.Err)
	}
	if out.Reached.After(it.reached) {
		it.reached = out.Reached
	}
	if !it.pending {
		return
	}
	_, isRange := it.rangeJob()
	switch {
	case !isRange:
	case out.Theirs, !out.Reached.IsZero() && !out.Reached.Before(n.horizon):
		n.settle(it, false)
	case out.State == step.Resting && !it.again: // else it continues at once
		n.settle(it, out.Held != "")
	case out.State == step.Failed, out.State == step.Stopped, out.State == step.Lost:
		n.settle(it, true)
	}
}

// settle notes that the counted sweep no longer waits for a range, and whether something is
// left in it.
func (n *sweepCount) settle(it *item, left bool) {
	if !it.pending {
		return
	}
	it.pending = false
	n.tags.note(it)
	n.pending--
	if left {
		n.left++
	} else {
		n.c.Cfg.Progress.RangesDone.Add(1)
	}
}

// giveUp settles the ranges that are pending: something is left in each of them.
func (n *sweepCount) giveUp(ranges map[shardquery.Range]*item) {
	for _, it := range ranges {
		n.settle(it, true)
	}
}

// fail keeps an error of an item for the result of the sweep, and logs it.
func (n *sweepCount) fail(it *item, err error) {
	n.failures.Add(err)
	n.c.Story.Failed(err)
	if _, isRange := it.rangeJob(); isRange {
		n.c.Log.Failed("sweep a range", it.name, err)
	} else {
		n.c.Log.Failed(it.name, "", err)
	}
}

// failOpening keeps the error for which the records of the target could not be read.
func (n *sweepCount) failOpening(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, background.ErrStopped) ||
		errors.Is(err, context.DeadlineExceeded) && n.failures.Count() > 0 {
		return
	}
	n.failures.Add(err)
}

// err returns why the sweep that was counted failed; nil if it did not.
func (n *sweepCount) err() error {
	err := n.failures.Err()
	if err == nil || n.ranges == 0 { // it failed before it had any ranges
		return err
	}
	return fmt.Errorf("%d failures in %d ranges: %w", n.failures.Count(), n.ranges, err)
}
