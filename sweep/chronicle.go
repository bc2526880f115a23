package sweep

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// noteEvery is the least time between two writes of the numbers of a run. A process that
	// is killed loses no more of them.
	noteEvery = 30 * time.Second
	// runLength is how long a run of a daemon may go on before the next one begins.
	runLength = time.Hour
	// heldLeast is for how long ranges must have been held back, all together, to be worth telling:
	// each process waits a moment for what it reserves.
	heldLeast = time.Second
	// collectEvery is how often a daemon that has nothing to write looks for expired records.
	collectEvery = 24 * time.Hour
	// mostPending bounds the records that wait to be written while the store takes none.
	mostPending = 100
)

// A History says who this process is to the history of a target, and how long that is kept.
type History struct {
	Keep     time.Duration // 0: the process writes no history
	Actor    string        // on whose behalf it works, as claimed
	Host     string
	Settings []string // of the target, one a line
}

// A chronicle writes the history of one target: what this process does, and what it sees.
// The scheduler tells it once a second how far the work is. Its own goroutine writes, so that
// no step waits for it. A run that cannot be written holds the target. A nil chronicle does nothing.
type chronicle struct {
	c        *collector
	keep     time.Duration
	by       history.Origin
	settings string
	task     string // sweep, serve or audit; empty in commands that only change the target record
	wake     chan struct{}
	opened   *plan.View // the first one
	since    time.Time  // when it was read, in the store's time

	mu    sync.Mutex
	state chronicleState
}

// A chronicleState is what is to be written.
type chronicleState struct {
	run      *history.Record // that goes on; nil if nothing happened yet
	began    time.Time       // when it began, and when it was written last, on this process's clock
	written  time.Time
	base     totals // at its beginning, which is the end of the one before
	latest   totals
	wrote    totals            // those that the store has
	pending  []history.Record  // that are as they will be
	dead     map[string]*death // by owner
	buckets  []int             // to be searched for expired records
	tidied   time.Time
	observed bool // version and settings were compared with those of the process before
	failure  failure
}

// Totals are sums since the process began.
type totals struct {
	counts     metrics.Counts
	operations store.Operations
	throttled  map[throttle.Reason]time.Duration
	failures   int64
	err        string // the last failure
	held       throttle.Reason
	missed     int64 // writes of history that failed
	unsaved    int64 // cursors that could not be saved
	budget     history.Budgeted
}

// newChronicle returns the chronicle of a target; nil if this process writes no history.
func newChronicle(c *collector) *chronicle {
	h := c.target.History
	if h.Keep <= 0 || !c.cfg.Apply {
		return nil
	}
	text, hash := history.Settings(h.Settings)
	return &chronicle{c: c, keep: h.Keep, settings: text, wake: make(chan struct{}, 1),
		by: history.Origin{Actor: h.Actor, Host: h.Host, Owner: c.keeper.Owner, Version: c.cfg.Version, Config: hash}}
}

// taskOf names what an agenda does.
func taskOf(a agenda) string {
	t, once := a.(*timed)
	if !once {
		return "serve"
	}
	if _, isAudit := t.oneTime.(*oneAudit); isAudit {
		return "audit"
	}
	return "sweep"
}

// totals returns the sums of this process as they are now. The mutex is held.
func (h *chronicle) totals(held throttle.Reason) totals {
	t := h.state.latest
	t.counts = metrics.Load(&h.c.tally.counts.CountsOf)
	t.operations = h.c.tally.meter.Operations()
	t.throttled = h.c.tally.throttledFor()
	t.held = held
	t.budget = h.c.budget.account() // after the counts: what they have, it has, too
	return t
}

// differs reports whether anything happened since earlier sums that history tells of. Reads
// that found nothing are not worth a record, so an idle daemon writes none.
func (t totals) differs(base totals) bool {
	d := metrics.Subtract(t.counts, base.counts)
	d.Scanned, d.Pages = 0, 0
	return d != metrics.Counts{} || t.failures != base.failures || t.held != base.held
}

// look takes in how far the work is, and wakes the writer if anything is to be written.
func (h *chronicle) look(now time.Time, held throttle.Reason, active bool) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.state
	s.latest = h.totals(held)
	wake := false
	switch {
	case s.run == nil && s.latest.differs(s.base):
		h.begin(now)
		wake = true
	case s.run != nil && h.task == "serve" && now.Sub(s.began) >= runLength:
		end, isHeld := heldEnd(string(held))
		switch {
		case isHeld:
		case active:
			end = history.Done
		default:
			end = history.Idle
		}
		h.end(end, "")
		wake = true
	case s.run != nil:
		h.fill()
		wake = wake || now.Sub(s.written) >= noteEvery && s.latest.differs(s.wrote)
	}
	if h.task == "serve" && now.Sub(s.tidied) >= collectEvery {
		for bucket := range history.Buckets {
			s.buckets = append(s.buckets, bucket)
		}
		s.tidied, wake = now, true
	}
	if wake {
		h.wakeUp()
	}
}

func (h *chronicle) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default: // it is awake already
	}
}

// begin begins the record of a run. It looks for expired records in one bucket, too: so
// there are never many of them, however rarely something happens.
func (h *chronicle) begin(now time.Time) {
	at := h.c.clock.Now()
	if h.task != "serve" && !h.since.IsZero() { // the run of a command began with its process
		at = h.since
	}
	r := history.NewRun(h.c.target.Name, h.task, h.by, at)
	h.state.run, h.state.began, h.state.written = &r, now, time.Time{}
	h.state.buckets = append(h.state.buckets, rand.IntN(history.Buckets))
	h.state.tidied = now
	h.fill()
}

// fill brings the run up to date.
func (h *chronicle) fill() {
	s, run := &h.state, &h.state.run.Run
	run.Updated = h.c.clock.Now().UTC().Truncate(time.Microsecond)
	run.Horizon = h.c.horizon().UTC().Truncate(time.Microsecond)
	counts := metrics.Subtract(s.latest.counts, s.base.counts)
	run.Sums = []history.Sum{{Account: history.AccountAll, Counts: counts, Budget: history.Budgeted{
		Began:      s.latest.budget.Began,
		Unreported: s.latest.budget.Unreported - s.base.budget.Unreported,
		Doubtful:   s.latest.budget.Doubtful - s.base.budget.Doubtful}}}
	run.Operations = store.Operations{Reads: s.latest.operations.Reads - s.base.operations.Reads,
		Writes:  s.latest.operations.Writes - s.base.operations.Writes,
		Deletes: s.latest.operations.Deletes - s.base.operations.Deletes}
	run.Failures, run.Missed = s.latest.failures-s.base.failures, s.latest.missed-s.base.missed
	run.Unsaved = s.latest.unsaved - s.base.unsaved
	if run.Failures > 0 {
		run.Error = s.latest.err
	}
	held := map[string]bool{}
	for _, why := range run.Held {
		held[why] = true
	}
	for why, d := range s.latest.throttled {
		if d-s.base.throttled[why] >= heldLeast {
			held[string(why)] = true
		}
	}
	if s.latest.held != "" {
		held[string(s.latest.held)] = true
	}
	run.Held = slices.Sorted(maps.Keys(held))
}

// end ends the run that goes on.
func (h *chronicle) end(why history.End, err string) {
	h.fill()
	s := &h.state
	s.run.Run.End, s.run.Run.Ended = why, s.run.Run.Updated
	if err != "" {
		s.run.Run.Error = err
	}
	h.add(*s.run)
	s.run, s.base = nil, s.latest
}

// add queues a record.
func (h *chronicle) add(r history.Record) {
	s := &h.state
	if len(s.pending) >= mostPending { // the newest are what a person asks for
		s.pending = s.pending[1:]
		s.latest.missed++
	}
	s.pending = append(s.pending, r)
}

// failed counts a failure of the work.
func (h *chronicle) failed(err error) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.latest.failures++
	h.state.latest.err = err.Error()
}

// lostCursor counts a cursor that could not be saved any more, and with it what its range had
// deleted since it was saved last.
func (h *chronicle) lostCursor() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.latest.unsaved++
}

// changed tells of what happened to generations as the target record was saved.
func (h *chronicle) changed(was, is generation.Record, cursors cursor.Table) {
	if h == nil {
		return
	}
	h.tell(history.KindGeneration, history.GenerationChanges(was, is,
		func(number int) int64 { return deletedByCursors(cursors, number) })...)
}

// tell has a record written for each change that this process has made: one that a
// compare-and-set has settled, so that no other process tells of it.
func (h *chronicle) tell(kind history.Kind, changes ...history.Change) {
	if h == nil || len(changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		h.add(history.NewChange(h.c.target.Name, kind, h.by, h.c.clock.Now(), c))
	}
	h.wakeUp()
}

// deletedByCursors returns how many entities the cursor records of a generation count as deleted;
// with a negative number, those of all.
func deletedByCursors(cursors cursor.Table, number int) (n int64) {
	for id, c := range cursors.All() {
		if number < 0 || id.Generation == number {
			n += c.Deleted
		}
	}
	return n
}

// finish ends the run of this process, and writes what is left to be written. Each run of a
// command has a record; a daemon in whose last hour nothing happened has none of it.
func (h *chronicle) finish(ctx context.Context, why history.End, err string) {
	if h == nil {
		return
	}
	if h.c.viewer.View() == nil && err == "" {
		return // it was stopped before it could read the records: it did nothing
	}
	stopped := ctx.Err() != nil
	h.mu.Lock()
	held := h.state.latest.held
	if _, isHeld := heldEnd(string(why)); isHeld { // it may have held the target from the beginning
		held = throttle.Reason(why)
	}
	h.state.latest = h.totals(held)
	if h.state.run == nil && (h.task != "serve" || h.state.latest.differs(h.state.base)) {
		h.begin(h.c.cfg.Now())
	}
	if h.state.run != nil {
		h.end(why, err)
	}
	if stopped {
		h.state.buckets = nil
	}
	h.mu.Unlock()
	within := recordTimeout
	if stopped {
		within = lastWrite
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	h.flushAll(ctx)
}

// endOf returns why one sweep ended.
func endOf(ctx context.Context, res TargetResult) history.End {
	switch {
	case res.Error != "":
		return history.Failed
	}
	end, isHeld := heldEnd(res.Held)
	switch {
	case isHeld:
		return end
	case res.Complete && res.Expired+res.Carried+res.Strays == 0:
		return history.Idle
	case res.Complete:
		return history.Done
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return history.Signal
	}
	return history.Deadline
}

// heldEnd returns the end of a run that was held when it ended.
func heldEnd(held string) (end history.End, isHeld bool) {
	switch held {
	case string(throttle.ReasonPaused):
		return history.Paused, true
	case string(throttle.ReasonGate):
		return history.Gate, true
	case string(throttle.ReasonLimit):
		return history.Limit, true
	case string(throttle.ReasonRecord):
		return history.Failed, true
	case string(throttle.ReasonBreaker):
		return history.Breaker, true
	}
	return history.Open, false
}
