package sweep

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// tellEvery is how often a daemon logs the state of a target.
	tellEvery = 5 * time.Minute
	// openAgain is how soon the records of a target are read again if they could not be
	// read at the beginning.
	openAgain = 5 * time.Second
)

// errUnheard is why a record is old though no read of it failed.
var errUnheard = errors.New("the process or its machine stood still")

// A Daemon sweeps for as long as it runs: at each tick of a target's schedule
// every range at rest becomes ready, and no range waits for another one.
type Daemon struct {
	cfg    Config
	first  bool
	states map[string]*stateBox // by target
}

// A State is what a daemon knows of one target.
type State struct {
	Target    string
	Tick      time.Time // the last one, by the wall clock; zero before the first
	Next      time.Time // the next one
	SweptTo   time.Time // nothing that was due then is left, in the store's time; zero if that is not known
	OldestDue time.Time // when the oldest entity that is known to be left became due; zero if none is
	Swept     time.Time // when the last complete sweep ended
	Rate      float64   // what the ranges in work may delete a second; +Inf if they are unlimited
	Working   int       // ranges in work
	Deleted   int64
	Expired   int64 // found due by the last sweep that was counted; without apply, what would be deleted
	Held      throttle.Reason
	Err       string // why the last sweep that was counted failed; empty if it did not
}

// A stateBox holds a state for others to read.
type stateBox struct {
	mu    sync.Mutex
	state State
}

func (b *stateBox) set(change func(*State)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.state)
}

func (b *stateBox) get() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// NewDaemon returns a daemon for the targets of a configuration, each of which must
// have a Next. If first is true, a sweep begins at once instead of at the first tick.
func NewDaemon(cfg Config, first bool) *Daemon {
	d := &Daemon{cfg: cfg.withDefaults(), first: first, states: map[string]*stateBox{}}
	now := cfg.Now().Round(0)
	for _, t := range cfg.Targets {
		next := now
		if !first {
			next = t.Next(now)
		}
		d.states[t.Name] = &stateBox{state: State{Target: t.Name, Next: next}}
	}
	return d
}

// States returns the state of each target, in the order of the configuration.
func (d *Daemon) States() (list []State) {
	for _, t := range d.cfg.Targets {
		list = append(list, d.states[t.Name].get())
	}
	return list
}

// Run sweeps until ctx is done. No goroutine outlives it.
func (d *Daemon) Run(ctx context.Context) {
	books := collect(ctx, &d.cfg, func(i int) agenda {
		return &onSchedule{box: d.states[d.cfg.Targets[i].Name], first: d.first}
	})
	finishHistories(ctx, books, func(int) (history.End, string) { return history.Signal, "" })
	for _, b := range books {
		b.c.log.end()
	}
}

// An onSchedule is the agenda of a daemon.
type onSchedule struct {
	box      *stateBox
	first    bool      // a tick is due at once
	due      time.Time // the next tick, by the wall clock
	seen     time.Time // the wall clock at the last look
	expired  int64     // found due before the sweep that is counted
	told     time.Time
	toldOf   int64 // how many had been deleted when it was told last
	wasIdle  bool  // when it was told last
	costTold bool
	counted  time.Time // when what is behind the cursors was counted last, or the work began
	stopping bool
}

// open reads the records, again and again until they can be read.
func (o *onSchedule) open(ctx context.Context, b *book) error {
	for {
		err := b.c.open(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		b.c.log.failed("read the target's records", "", err)
		b.c.log.look()
		o.box.set(func(s *State) { s.Err = err.Error() })
		if err := throttle.Sleep(ctx, openAgain); err != nil {
			return err
		}
	}
}

func (o *onSchedule) failed(*book, error) { o.stopping = true }

func (o *onSchedule) chores() bool { return true }

func (o *onSchedule) isOver(*book) bool { return o.stopping }

// next is at most a heartbeat, so that the clock is checked often: if it is put back by an
// hour, sweeps must not stop for an hour.
func (o *onSchedule) next(_ *book, now time.Time) time.Duration {
	if o.stopping {
		return heartbeat
	}
	return min(heartbeat, max(0, o.due.Sub(now.Round(0))))
}

func (o *onSchedule) look(s *scheduler, b *book, now time.Time) {
	if s.ctx.Err() != nil {
		o.stopping = true
		b.stop(s, now)
		b.cancelChores(behindKind)
		return
	}
	beats := b.looked.Equal(now)               // once in a heartbeat
	if beats && now.Sub(o.told) >= tellEvery { // before a tick that is due now makes ranges ready
		o.tell(b, now)
	}
	o.watchSchedule(s, b, now)
	if b.count.open {
		o.closeCount(b, now)
	}
	if beats {
		o.countBehind(s, b, now)
		if b.isHeldForLong(now) {
			b.releaseClaims(s, now)
		}
		o.box.set(func(st *State) { b.describe(st) })
	}
}

// watchSchedule ticks when it is time.
func (o *onSchedule) watchSchedule(s *scheduler, b *book, now time.Time) {
	wall := now.Round(0)
	if o.due.IsZero() || wall.Before(o.seen) {
		o.due = b.c.target.Next(wall)
		if o.first {
			o.due, o.first = wall, false
		}
	}
	o.seen = wall
	o.box.set(func(st *State) { st.Next = o.due })
	if wall.Before(o.due) {
		return
	}
	o.due = b.c.target.Next(wall)
	o.box.set(func(st *State) { st.Tick = wall })
	o.begin(s, b, now)
}

// begin makes the ranges at rest ready. If a sweep is still being counted, the next one is
// counted from a later tick on.
func (o *onSchedule) begin(s *scheduler, b *book, now time.Time) {
	if !o.costTold {
		o.costTold = true
		b.c.tellCost(b.plan, o.due.Sub(now.Round(0)))
	}
	b.readyAll(s, now)
	if !b.count.open {
		b.openCount(now)
		o.expired = b.c.tally.counts.Expired.Load()
	}
}

// countBehind begins to count what is due behind the cursors, once in a while. The first
// count may wait: a process that begins again and again must not count each time.
func (o *onSchedule) countBehind(s *scheduler, b *book, now time.Time) {
	if o.counted.IsZero() {
		o.counted = now
	}
	if now.Sub(o.counted) >= b.c.behindEvery() {
		o.counted = now
		b.addChore(s, plan.Chore{Kind: behindKind}, 0, now)
	}
}

// closeCount ends the counted sweep once every range is swept up to the instant at which
// that sweep began.
func (o *onSchedule) closeCount(b *book, now time.Time) {
	var err error
	if b.held.why == throttle.ReasonRecord { // that may last, and no range is swept meanwhile
		err = b.held.fault
	}
	if err != nil {
		for _, it := range b.ranges {
			b.settleCount(it, true)
		}
		b.count.failures.add(err)
	}
	if b.count.pending > 0 {
		return
	}
	b.count.open = false
	res := TargetResult{Complete: b.count.left == 0}
	if err = b.count.err(); err != nil {
		res.Error = err.Error()
	}
	b.c.publish()
	b.c.cfg.Metrics.Swept(b.c.target.Name, res.Outcome(), now.Sub(b.count.began), now)
	o.box.set(func(st *State) {
		st.Err = res.Error
		st.Expired = b.c.tally.counts.Expired.Load() - o.expired
		if res.Complete && err == nil {
			st.Swept = now.Round(0)
		}
	})
}

// tell logs the state of the target.
func (o *onSchedule) tell(b *book, now time.Time) {
	o.box.set(func(st *State) { b.describe(st) })
	st := o.box.get()
	deleted := st.Deleted - o.toldOf
	since := now.Sub(o.told)
	first := o.told.IsZero()
	o.told, o.toldOf = now, st.Deleted
	if first {
		return
	}
	attrs := []any{"apply", b.c.cfg.Apply, "swept_to", st.SweptTo, "next", st.Next, "deleted", deleted,
		"rate", float64(deleted) / since.Seconds(), "ranges_in_work", st.Working}
	if !b.c.cfg.Apply {
		attrs = append(attrs, "would_delete", st.Expired)
	}
	if !st.OldestDue.IsZero() {
		attrs = append(attrs, "oldest_due", st.OldestDue, "behind_seconds", max(0,
			b.c.clock.Now().Sub(st.OldestDue).Seconds()))
	}
	idle := st.Held == "" && st.OldestDue.IsZero() && st.Working == 0
	wasIdle := o.wasIdle && deleted == 0
	o.wasIdle = idle
	switch {
	case st.Held != "":
		b.c.log.Warn("deletes suspended", append(attrs, "held", string(st.Held))...)
	case idle && wasIdle:
		b.c.log.Debug("nothing is due", attrs...) // an idle daemon is silent: it has said so
	case idle:
		b.c.log.Info("nothing is due", attrs...)
	default:
		b.c.log.Info("collecting", attrs...)
	}
}

// describe fills in the state of the target.
func (b *book) describe(st *State) {
	st.SweptTo, st.Working = b.sweptTo()
	st.OldestDue = b.c.target.Watchdog.OldestDue()
	st.Rate = b.c.pacing.rate()
	st.Deleted = b.c.tally.counts.Deleted.Load()
	st.Held = b.held.why
}

// sweptTo returns the instant up to which nothing due is left in any range, and how many
// ranges are in work. Ranges that another process holds do not count.
func (b *book) sweptTo() (at time.Time, working int) {
	switch {
	case !b.visited:
		return time.Time{}, b.working
	case b.lagging.Len() == 0: // nothing needs a read
		return b.c.horizon(), b.working
	}
	return b.lagging.items[0].reached, b.working // zero if it is not known for one of them
}
