package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/shardquery"
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
	Began   int // the number of the visit's reading with which the step began
}

// A Todo is what the plan says of a job when its step begins.
type Todo struct {
	Need   plan.Need
	Cursor cursor.Cursor
	Wanted int            // ranges that are in work in this process
	Spans  []plan.KeySpan // of an audit
	Plan   *plan.Plan     // for stages and shards only: the scheduler alone asks it for cursors
	Chore  ChoreView
}

// A ChoreView has what a chore needs to make a plan, outside the scheduler's goroutine: the
// time that it takes grows with the number of ranges.
type ChoreView struct {
	View *plan.View
	Book plan.Book
	Now  time.Time
}

// Plan makes the plan.
func (v ChoreView) Plan(r plan.Rules) *plan.Plan { return plan.New(r, v.View, v.Book, v.Now) }

// A Job is something that is done in steps: a range, an audit or a chore.
type Job interface {
	// Step does one bounded piece of work. It never sleeps: if it has to wait, the outcome says so.
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
	// GoOn lets the visit, if there is one, continue to the horizon of now.
	GoOn()
	// AtHorizon reports whether the main reading of a visit has ended, while the visit
	// continues for other reasons.
	AtHorizon() bool
	// MayEnd reports whether there is a visit that loses nothing if it ends between two steps.
	MayEnd() bool
	// WasReadAll reports whether all of the range has been read from its start since that was
	// ordered.
	WasReadAll() bool
}

// A State is what an item does, or waits for.
type State uint8

const (
	Resting State = iota // nothing to do until the next tick
	Ready                // waits for a worker
	Running              // a worker runs its step
	Waiting              // does nothing before its wake
	Failed               // the last step, and what it belonged to, failed
	Stopped              // the process ends
	Lost                 // another process has the range
	Given                // the range was given back for others to take
	Ended                // a chore is done
)

// An Outcome is the result of a step, and says when the next one is due.
type Outcome struct {
	State State
	Wake  time.Time       // when it is waiting: when that ends
	Why   throttle.Reason // what it waits for
	Held  throttle.Reason // what holds the target, if it only looked
	NextLane
	Contended bool           // it waits for another client's transaction
	Reached   time.Time      // everything that was due up to then is disposed of; zero if that is not known
	Moved     *cursor.Cursor // of a range that rests, as the step saved it; nil if it did not
	Elsewhere
	Blocked error // why its record cannot be claimed; it is tried again
	Err     error
	Release func(context.Context) (cursor.Cursor, error) // runs off the workers; may be nil
}

// AtRest is the outcome of items at rest of which there is no more to say. Most items of
// a target with many ranges share it, so it must not be changed.
var AtRest = &Outcome{State: Resting}

// IsPlain reports whether the outcome says only that the item rests.
func (o *Outcome) IsPlain() bool {
	return o.State == Resting && o.Why == "" && o.Held == "" && o.Err == nil && o.Blocked == nil
}

// IsElsewhere reports whether another process holds the range.
func (o *Outcome) IsElsewhere() bool {
	return o.Why == throttle.ReasonLease && !o.Contended && !o.Yields
}

// An Elsewhere says why a range is left to another process.
type Elsewhere struct {
	Theirs bool // another process holds the range, and is alive
	Yields bool // other processes may take the range first, for a moment
}

// A NextLane says in which lane the next step waits for a worker.
type NextLane struct {
	Slow   bool // the next step belongs to the slow lane
	Either bool // until the slow lane has room, another reading can continue in the fast one
}

// OutcomeOfPause returns the outcome of a step that ends with a pause.
func OutcomeOfPause(p *throttle.Pause, now time.Time) Outcome {
	if p.Wait <= 0 {
		return Outcome{State: Ready}
	}
	return Outcome{State: Waiting, Wake: now.Add(p.Wait), Why: cmp.Or(p.Why, throttle.ReasonPushBack)}
}

// OutcomeOfBlocked returns the outcome of a step on a range that cannot be claimed before an instant.
func OutcomeOfBlocked(r shardquery.Range, until time.Time, why error) Outcome {
	return Outcome{State: Waiting, Wake: until, Why: throttle.ReasonLease, Contended: true,
		Blocked: fmt.Errorf("%v: it cannot be claimed yet: %w", r, why)}
}

// IsEnd reports whether a context that is done explains the error.
func IsEnd(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) || errors.Is(err,
		context.Canceled))
}

// RetryEvery is how soon what failed is tried again, and retryMost the longest time between two tries.
const RetryEvery, retryMost = 5 * time.Second, time.Minute

// AgainIn returns how long to wait before the next try after this many failures, at least
// one.
func AgainIn(tries int) time.Duration { return min(retryMost, RetryEvery<<min(tries-1, 4)) }
