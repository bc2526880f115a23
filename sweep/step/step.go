package step

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// SlowAfter is how long one call may take before its range belongs to the slow lane.
const SlowAfter = time.Second

// A Turn is what a step gets: contexts, an end, and memory.
type Turn struct {
	Ctx     context.Context // done: begin nothing new
	Work    context.Context // done: give up what is in flight
	Slow    bool            // the step is in the slow lane
	Over    func() bool     // somebody else is waiting, and the step has had its time
	Scratch *Scratch
	Began   int // the turn of a visit's readings with which the step began
}

// A Todo is what the plan says of a job when its step begins.
type Todo struct {
	Need   plan.Need
	Cursor cursor.Cursor
	Wanted int            // ranges that this process knows to be in work, or to be looked at
	Spans  []plan.KeySpan // of an audit
	Plan   *plan.Plan     // for stages and shards: what it says of cursors is the scheduler's
	Chore  ChoreView
}

// A ChoreView is what a chore makes a plan of, off the scheduler: that takes time in
// proportion to the ranges.
type ChoreView struct {
	View *plan.View
	Book plan.Book
	Now  time.Time
}

func (v ChoreView) Plan(r plan.Rules) *plan.Plan { return plan.New(r, v.View, v.Book, v.Now) }

// A Job is something that is done in steps: a range, an audit or a chore.
type Job interface {
	// Step does one bounded piece of work. It never sleeps: what has to wait says so.
	Step(t Turn, todo Todo) Outcome
	// End gives up what the job holds between two steps.
	End(out Outcome) Outcome
	// IsClaimed reports whether the job holds a claim between two steps.
	IsClaimed() bool
}

// A Range is the job of one range.
type Range interface {
	Job
	Range() shardquery.Range
	// GoOn lets a visit that is under way go on to the horizon of now.
	GoOn()
	// AtHorizon reports whether the main reading of a visit has ended, while the visit goes
	// on for other reasons.
	AtHorizon() bool
	// MayEnd reports whether there is a visit that loses nothing if it ends between two steps.
	MayEnd() bool
	// WasReadAll reports whether all of the range was read from its start, since somebody asked
	// for that.
	WasReadAll() bool
}

// A State is where an item stands between two steps.
type State uint8

const (
	Resting State = iota // nothing to do until the next tick
	Ready                // waits for a worker
	Running              // a worker runs its step
	Waiting              // wants nothing before its wake
	Failed               // the last step, and what it belonged to, failed
	Stopped              // the process ends
	Lost                 // another process has the range
	Given                // the range was given back for others to take
	Ended                // a chore is done
)

// An Outcome is what became of a step, and when the next one is due.
type Outcome struct {
	State State
	Wake  time.Time       // of what waits
	Why   throttle.Reason // what it waits for
	Held  throttle.Reason // what holds the target, if it only looked
	NextLane
	Contended bool           // it waits for somebody else's transaction
	Reached   time.Time      // up to here everything due is disposed of; zero if that is not known
	Moved     *cursor.Cursor // as a range without work has saved it; nil if it did not
	Elsewhere
	Blocked error // why its record cannot be claimed; it is tried again
	Err     error
	Release func(context.Context) (cursor.Cursor, error) // runs off the workers; may be nil
}

// AtRest is the outcome of items at rest of which nothing else is to be told. Most items of
// a target of many ranges share it; nobody writes to it.
var AtRest = &Outcome{State: Resting}

// IsPlain reports whether the outcome says no more than that the item rests.
func (o *Outcome) IsPlain() bool {
	return o.State == Resting && o.Why == "" && o.Held == "" && o.Err == nil && o.Blocked == nil
}

// IsElsewhere reports whether another process holds the range.
func (o *Outcome) IsElsewhere() bool {
	return o.Why == throttle.ReasonLease && !o.Contended && !o.Yields
}

// An Elsewhere says why a range is another process's matter.
type Elsewhere struct {
	Theirs bool // another process holds the range, and is alive
	Yields bool // for a moment the range is left to other processes
}

// A NextLane says by which lane the next step comes to a worker.
type NextLane struct {
	Slow   bool // the next step belongs to the slow lane
	Either bool // until there is room, another one can go on in the fast lane
}

// OutcomeOfPause returns the outcome of a step that ends with a pause.
func OutcomeOfPause(p *throttle.Pause, now time.Time) Outcome {
	if p.Wait <= 0 {
		return Outcome{State: Ready}
	}
	return Outcome{State: Waiting, Wake: now.Add(p.Wait), Why: cmp.Or(p.Why, throttle.ReasonPushBack)}
}

// IsEnd reports whether a context that is done explains the error.
func IsEnd(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) || errors.Is(err,
		context.Canceled))
}
