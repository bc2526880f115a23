package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// logEvery is how often a daemon logs the state of a target.
	logEvery = 5 * time.Minute
	// openAgain is how soon the records of a target are read again if the first read failed.
	openAgain = 5 * time.Second
	// failsEvery is how often it counts as a failed sweep at least.
	failsEvery = 5 * time.Minute
)

// A State is what a daemon knows of one target.
type State struct {
	Target    string
	Tick      time.Time // the last one, by the wall clock; zero before the first
	Next      time.Time // the next one
	SweptTo   time.Time // nothing that was due then is left, in the store's time; zero if that is not known
	OldestDue time.Time // when the oldest entity that is known to be left became due; zero if none is
	Swept     time.Time // when the last complete sweep ended
	Rate      float64   // how much the ranges in work may delete a second; +Inf if they are unlimited
	Working   int       // ranges in work
	Deleted   int64
	Expired   int64 // found due by the last sweep that was counted; without apply, what would be deleted
	Held      throttle.Reason
	Err       string // why the last sweep that was counted failed; empty if it did not
}

// A StateBox holds a state for others to read.
type StateBox struct {
	mu     sync.Mutex
	state  State
	own    Own
	filled time.Time // when own was
	asked  bool      // for own, since then
}

func (b *StateBox) set(change func(*State)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.state)
}

func (b *StateBox) Get() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Own returns what the process knew of its ranges a second ago. Finding that out takes a look at each
// range, so it is done only while somebody asks: the first answer is that nothing is known.
func (b *StateBox) Own() Own {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = true
	return b.own
}

// fillOwn looks at the ranges again if somebody has asked for them. If nobody does, it forgets them:
// else who asks after hours would get what was true then.
func (b *StateBox) fillOwn(now time.Time, look func() Own) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.asked:
		b.own, b.filled, b.asked = look(), now, false
	case now.Sub(b.filled) > 2*heartbeat:
		b.own = Own{}
	}
}

// NewStateBox returns a box with the state before the first tick.
func NewStateBox(target string, next time.Time) *StateBox {
	return &StateBox{state: State{Target: target, Next: next}}
}

// An onSchedule is the agenda of a daemon.
type onSchedule struct {
	box      *StateBox
	ticks    func(time.Time) time.Time // see [Target]
	first    bool                      // a tick is due at once
	due      time.Time                 // the next tick, by the wall clock
	seen     time.Time                 // the wall clock at the last look
	expired  int64                     // found due before the sweep that is counted
	last     logged
	isWarned bool // of what idle ticks cost
	behind   behindTimes
	stopping bool
}

// A logged is what the log last said of a target.
type logged struct {
	at      time.Time // zero if it has not said anything
	deleted int64     // how many had been deleted by then
	isIdle  bool
}

// open reads the records, and retries until that succeeds. Each tick that passes meanwhile is a sweep that failed, and
// so are five minutes of a slower schedule: alerts need not wait for its ticks.
func (o *onSchedule) open(ctx context.Context, c *site.Site) error {
	tick := o.nextFailure(c.Cfg.Now())
	if o.first {
		tick = c.Cfg.Now()
	}
	for {
		began := c.Cfg.Now()
		err := background.Protect(func() error { return c.Open(ctx) }) // a panic is a failed try
		if err == nil || ctx.Err() != nil {
			return err
		}
		if now := c.Cfg.Now(); !now.Before(tick) {
			c.Cfg.Metrics.Swept(c.Target.Name, metrics.Failed, now.Sub(began), now)
			tick = o.nextFailure(now)
		}
		c.Log.Failed("read the target's records", "", err)
		c.Log.Look()
		o.box.set(func(s *State) { s.Err = err.Error() })
		if err := throttle.Sleep(ctx, openAgain); err != nil {
			return err
		}
	}
}

// nextFailure returns when it counts as the next failed sweep that the records cannot be read.
func (o *onSchedule) nextFailure(now time.Time) time.Time {
	at, most := o.ticks(now), now.Add(failsEvery)
	if at.After(most) {
		return most
	}
	return at
}

func (o *onSchedule) failed(*book, error) { o.stopping = true }

func (o *onSchedule) chores() bool { return true }

func (o *onSchedule) task() string { return "serve" }

func (o *onSchedule) isOver(*book) bool { return o.stopping }

// next is at most a heartbeat, so that the clock is checked often: if it is set back by an
// hour, sweeps must not stop for an hour.
func (o *onSchedule) next(_ *book, now time.Time) time.Duration {
	if o.stopping {
		return heartbeat
	}
	return min(heartbeat, max(0, o.due.Sub(now.Round(0))))
}

func (o *onSchedule) look(b *book, now time.Time) {
	if b.s.isStopping() {
		o.stopping = true
		b.stop(now)
		b.cancelChores(chore.BehindKind)
		return
	}
	beats := b.looked.Equal(now)                 // once in a heartbeat
	if beats && now.Sub(o.last.at) >= logEvery { // before a tick that is due now makes ranges ready
		o.logState(b, now)
	}
	o.watchSchedule(b, now)
	if b.count.open {
		o.closeCount(b, now)
	}
	if beats {
		o.countBehind(b, now)
		if b.hold.isLong(now) {
			b.releaseClaims(now)
		}
		o.box.set(func(st *State) { b.describe(st) })
		o.box.fillOwn(now, b.own)
	}
}

// watchSchedule begins a sweep if the next tick has come.
func (o *onSchedule) watchSchedule(b *book, now time.Time) {
	wall := now.Round(0)
	if o.due.IsZero() || wall.Before(o.seen) {
		o.due = b.Next(wall)
		if o.first {
			o.due, o.first = wall, false
		}
	}
	o.seen = wall
	o.box.set(func(st *State) { st.Next = o.due })
	if wall.Before(o.due) {
		return
	}
	o.due = b.Next(wall)
	o.box.set(func(st *State) { st.Tick = wall })
	o.begin(b, now)
}

// begin makes the ranges at rest ready. While a sweep is still being counted, no other one
// begins to be counted.
func (o *onSchedule) begin(b *book, now time.Time) {
	if !o.isWarned {
		o.isWarned = true
		b.c.WarnOfCost(b.plan, o.due.Sub(now.Round(0)))
	}
	b.readyAll(now)
	if !b.count.open {
		b.count.begin(b.ranges, now)
		o.expired = b.c.Tally.Counts.Expired.Load()
	}
}

// behindTimes say when a daemon counts what is due behind the cursors.
type behindTimes struct {
	last   time.Time     // when it counted last, or the work began
	every  time.Duration // after which it counts again
	isHeld bool
}

// isDue reports whether it is time to count. It counts sooner if what lies there may have changed much:
// the target was held and no longer is, or something lay there and a range was read from its start since.
// The first count waits, too: a process that keeps restarting must not count each time.
func (t *behindTimes) isDue(b *book, now time.Time) bool {
	if t.last.IsZero() {
		t.last, t.every = now, chore.BehindAgain
	}
	wasHeld := t.isHeld
	if t.isHeld = b.hold.why != ""; wasHeld && !t.isHeld {
		t.every = chore.BehindAgain
	}
	every := t.every
	if found := b.c.Tally.Behind(); found.N > 0 && b.memory.rewound.After(found.Counted) {
		every = chore.BehindAgain // until that is counted
	}
	return now.Sub(t.last) >= every
}

// countBehind begins to count what is due behind the cursors, once in a while.
func (o *onSchedule) countBehind(b *book, now time.Time) {
	if o.behind.isDue(b, now) {
		o.behind.last, o.behind.every = now, chore.BehindEvery(len(b.plan.Ranges()))
		b.beginChore(plan.Chore{Kind: chore.BehindKind}, 0, now)
	}
}

// closeCount ends the counted sweep once every range is swept up to the instant at which
// it began.
func (o *onSchedule) closeCount(b *book, now time.Time) {
	var err error
	if b.hold.why == throttle.ReasonRecord { // this may last, and no range is swept meanwhile
		err = b.hold.fault
	}
	if err != nil {
		b.count.giveUp(b.ranges)
		b.count.failures.Add(err)
	}
	if b.count.pending > 0 {
		return
	}
	b.count.open = false
	text, outcome := "", metrics.Complete
	if b.count.left > 0 {
		outcome = metrics.Incomplete
	}
	if err = b.count.err(); err != nil {
		text, outcome = err.Error(), metrics.Failed
	}
	b.c.Publish()
	b.c.Cfg.Metrics.Swept(b.c.Target.Name, outcome, now.Sub(b.count.began), now)
	o.box.set(func(st *State) {
		st.Err = text
		st.Expired = b.c.Tally.Counts.Expired.Load() - o.expired
		if outcome == metrics.Complete {
			st.Swept = now.Round(0)
		}
	})
}

// logState logs the state of the target, except the first time.
func (o *onSchedule) logState(b *book, now time.Time) {
	o.box.set(func(st *State) { b.describe(st) })
	st := o.box.Get()
	idle := st.Held == "" && st.OldestDue.IsZero() && st.Working == 0
	last := o.last
	o.last.at, o.last.deleted = now, st.Deleted
	if last.at.IsZero() {
		return
	}
	o.last.isIdle = idle
	deleted := st.Deleted - last.deleted
	attrs := []any{"apply", b.c.Cfg.Apply, "swept_to", st.SweptTo, "next", st.Next, "deleted", deleted,
		"rate", float64(deleted) / now.Sub(last.at).Seconds(), "ranges_in_work", st.Working}
	if !b.c.Cfg.Apply {
		attrs = append(attrs, "would_delete", st.Expired)
	}
	if !st.OldestDue.IsZero() {
		attrs = append(attrs, "oldest_due", st.OldestDue, "behind_seconds", max(0,
			b.c.Clock.Now().Sub(st.OldestDue).Seconds()))
	}
	switch {
	case st.Held != "":
		b.c.Log.Warn("deletes suspended", append(attrs, "held", string(st.Held))...)
	case idle && last.isIdle && deleted == 0:
		b.c.Log.Debug("nothing is due", attrs...) // an idle daemon has said so, and is silent
	case idle:
		b.c.Log.Info("nothing is due", attrs...)
	default:
		b.c.Log.Info("collecting", attrs...)
	}
}

// describe fills in the state of the target.
func (b *book) describe(st *State) {
	st.SweptTo, st.Working = b.sweptTo(), b.working
	st.OldestDue = b.c.Target.Watchdog.OldestDue()
	st.Rate = b.c.Pacing.Rate()
	st.Deleted = b.c.Tally.Counts.Deleted.Load()
	st.Held = b.hold.why
}

// sweptTo returns the instant up to which nothing due is left in any range; zero if that is not
// known. Ranges that another process holds do not count.
func (b *book) sweptTo() time.Time {
	switch {
	case !b.visited:
		return time.Time{}
	case b.lagging.Len() == 0: // nothing needs a read
		return b.c.Horizon()
	}
	return b.lagging.items[0].reached // zero if it is not known for one of them
}
