package schedule

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/throttle"
)

// An item is what the schedule knows of a job.
type item struct {
	job   step.Job
	chore plan.Chore // that the job does, by its key; zero for a range
	c     *site.Site // of its target
	owner owner
	name  string
	state step.State
	since time.Time     // when it became ready, or began to wait
	out   *step.Outcome // of the last step; never nil, and [step.AtRest] if there is no more to say
	lane
	counted
	places [queues]int // in each queue, from 1 on; 0 if it is not in it
	course
}

// The queues that an item may be in.
const (
	fastQueue = iota
	slowQueue
	unopenedQueue
	sleepingQueue
	laggingQueue
	queues
)

// An owner has the items of one target, and decides what happens to them next.
type owner interface {
	// note counts an item as it is now. It must be called after each change of an item.
	note(it *item)
	// todo returns what the plan says of an item now.
	todo(it *item) step.Todo
	// stepped handles the outcome of a step.
	stepped(it *item, now time.Time)
	// released handles the end of the release of a claim: the cursor that it saved, or why it failed.
	released(it *item, saved cursor.Cursor, err error, now time.Time)
}

// A lane says how an item comes to a worker.
type lane struct {
	slow   bool
	either bool      // by the fast lane, too: a read from the start must not hold up what is due in its range
	late   bool      // a call of the last step that made any took long
	apart  bool      // it takes no worker: its result is for people, and may take long
	wanted time.Time // since when it has been waiting for the slow lane
	order  int       // of items that became ready at one instant
}

// A counted has the properties of an item that its book counts. The counts are used at
// each step and each second, so they must not cost a pass over all items.
type counted struct {
	// reached is the latest instant up to which everything due was disposed of.
	reached time.Time
	pending bool // the counted sweep waits for it
	needed  bool // it is at rest, and its range needs a read
	tags    tags // by which it is counted now
}

// Tags say in which counts an item is.
type tags struct {
	working   bool // it does not rest
	contended bool // it is pending, and waits for, or retries after, another client's transaction
	looked    bool // it is pending, but the target is held, so that its range was only read
	elsewhere bool // it waits for another process
	lags      bool // this process has to bring its range to the horizon
}

// A course is how the work on an item goes.
type course struct {
	cancel   context.CancelFunc // ends the step that is running
	again    bool               // a tick came during the work: its main reading continues to a new horizon
	gives    bool               // after its next step the range is given back
	worked   time.Time          // when its first step ended; zero if the item came to rest since
	failures int                // in a row
}

// rangeJob returns the job of the range that the item stands for; ok is false for a chore.
func (it *item) rangeJob() (j step.Range, ok bool) {
	j, ok = it.job.(step.Range)
	return j, ok
}

// isUnopened reports whether an item is a range or an audit that has no visit yet.
func (it *item) isUnopened() bool {
	if _, isRange := it.rangeJob(); !isRange && it.chore.Kind != plan.Audit {
		return false
	}
	return !it.job.IsClaimed()
}

// isContended reports whether an item waits for another client's transaction, or retries
// after it: a store may take seconds to refuse such a try.
func (it *item) isContended() bool {
	return (it.state == step.Waiting || it.state == step.Ready || it.state == step.Running) && it.out.Contended
}

// staysBlocked completes the outcome of a step on a range that could not be claimed before. Until it is
// claimed, left to another process or at rest, that is so: a look at it while its target is held, or a
// probe, does not touch its record.
func (it *item) staysBlocked(out *step.Outcome) {
	was := it.out.Blocked
	if was == nil || out.Blocked != nil || it.job.IsClaimed() {
		return
	}
	if out.State == step.Ready || out.State == step.Waiting && out.Why != throttle.ReasonLease {
		out.Contended, out.Blocked = true, was
	}
}

// isTicked reports whether a tick came while the range was in work, and its main reading has
// ended.
func (it *item) isTicked() bool {
	j, isRange := it.rangeJob()
	return it.again && isRange && j.AtHorizon()
}

// givesBack reports whether the step that has just ended was the last one before the range
// is given back. Its bucket is empty then: nothing of the pace is lost.
func (it *item) givesBack() bool {
	j, isRange := it.rangeJob()
	return it.gives && isRange && j.MayEnd() &&
		(it.out.State == step.Ready || it.out.State == step.Waiting)
}

// close ends a visit that has come to the slow lane while enough others wait there. The
// range comes back from the release, and waits without a claim.
func (it *item) close() {
	if j, isRange := it.rangeJob(); isRange && j.MayEnd() &&
		it.out.State == step.Ready && !it.either {
		it.end(step.Outcome{State: step.Resting})
		it.again = true
	}
}

// end gives up what the item holds between two steps.
func (it *item) end(out step.Outcome) {
	out = it.job.End(out)
	it.out = &out
}

// reportBegin calls the hook for the begin of a step or of a release.
func (it *item) reportBegin() {
	if begin := it.c.Cfg.Progress.Begin; begin != nil {
		begin(it.c.Target.Name, it.name)
	}
}

// isBefore is the tie-break of all queues: it always puts the same two items into the
// same order.
func (it *item) isBefore(other *item) bool {
	return cmp.Or(it.order-other.order, strings.Compare(it.c.Target.Name, other.c.Target.Name),
		strings.Compare(it.name, other.name)) < 0
}

// inOrder sorts items by isBefore.
func inOrder(list []*item) []*item {
	slices.SortFunc(list, func(a, b *item) int {
		if a.isBefore(b) {
			return -1
		}
		return 1
	})
	return list
}
