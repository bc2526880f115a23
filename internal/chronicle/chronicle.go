package chronicle

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
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

// Sums are what a process has done since it began.
type Sums struct {
	Horizon    time.Time // up to when what has expired may go at present
	Counts     metrics.Counts
	Operations store.Operations
	Delays     metrics.DelayCounts // of the deletes
	Throttled  map[throttle.Reason]time.Duration
	Budget     history.Budgeted
}

// A Config says whose history is written, and where. All fields are needed.
type Config struct {
	Store    store.Store
	Target   string
	By       history.Origin
	Settings string           // of the target: the text that [history.Settings] returns
	Keep     time.Duration    // how long records are kept
	Now      func() time.Time // this process's clock, monotonic
	StoreNow func() time.Time // the store's clock
	Sums     func() Sums
	Budgeted func(context.Context) (history.Budgeted, error) // before this process reported anything to the budget
	Failed   func(task string, err error)                    // is told of a write that failed
	Marked   func()                                          // is told that the runs of a dead process are marked
}

// A Chronicle writes the history of one target: what this process does, and what it sees.
// The scheduler tells it once a second how far the work is. Its own goroutine writes, so that
// no step waits for it. A run that cannot be written holds the target. A nil Chronicle does
// nothing. It is safe for concurrent use.
type Chronicle struct {
	cfg     Config
	task    string // sweep, serve or audit; empty in commands that only change the target record
	wake    chan struct{}
	opened  bool
	since   time.Time    // when it was opened, in the store's time
	cursors cursor.Table // as they were read then

	mu    sync.Mutex
	state state
}

// A state is what is to be written.
type state struct {
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
	observed bool      // version and settings were compared with those of the process before
	fault    error     // of the last write of a run; nil if it succeeded
	faulty   time.Time // since when those writes fail
}

// Totals are sums since the process began, and what the chronicle was told meanwhile.
type totals struct {
	done     Sums
	failures int64
	err      string // the last failure
	held     throttle.Reason
	missed   int64 // writes of history that failed
	unsaved  int64 // cursors that could not be saved
}

// New returns a chronicle. Nothing is written before something happens.
func New(cfg Config) *Chronicle { return &Chronicle{cfg: cfg, wake: make(chan struct{}, 1)} }

// For says what the process does: sweep, serve or audit. It is called before anything else.
func (h *Chronicle) For(task string) {
	if h != nil {
		h.task = task
	}
}

// totals returns the sums of this process as they are now. The mutex is held.
func (h *Chronicle) totals(held throttle.Reason) totals {
	t := h.state.latest
	t.done, t.held = h.cfg.Sums(), held
	return t
}

// differs reports whether anything happened since earlier sums that history tells of. Reads
// that found nothing are not worth a record, so an idle daemon writes none.
func (t totals) differs(base totals) bool {
	d := metrics.Subtract(t.done.Counts, base.done.Counts)
	d.Scanned, d.Pages = 0, 0
	return d != metrics.Counts{} || t.failures != base.failures || t.held != base.held
}

// Look takes in how far the work is, and wakes the writer if anything is to be written.
func (h *Chronicle) Look(now time.Time, held throttle.Reason, active bool) {
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
		end, isHeld := HeldEnd(string(held))
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

// ID returns the id of the run that goes on. If none does, it begins one: the caller is about to do something.
func (h *Chronicle) ID(now time.Time) string {
	if h == nil {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.run == nil {
		h.state.latest = h.totals(h.state.latest.held)
		h.begin(now)
		h.wakeUp()
	}
	return h.state.run.Key
}

func (h *Chronicle) wakeUp() { background.Wake(h.wake) }

// begin begins the record of a run. It looks for expired records in one bucket, too: so
// there are never many of them, however rarely something happens.
func (h *Chronicle) begin(now time.Time) {
	at := h.cfg.StoreNow()
	if h.task != "serve" && !h.since.IsZero() { // the run of a command began with its process
		at = h.since
	}
	r := history.NewRun(h.cfg.Target, h.task, h.cfg.By, at)
	h.state.run, h.state.began, h.state.written = &r, now, time.Time{}
	h.state.buckets = append(h.state.buckets, rand.IntN(history.Buckets))
	h.state.tidied = now
	h.fill()
}

// fill brings the run up to date.
func (h *Chronicle) fill() {
	s, run := &h.state, &h.state.run.Run
	run.Updated = h.cfg.StoreNow().UTC().Truncate(time.Microsecond)
	run.Horizon = s.latest.done.Horizon.UTC().Truncate(time.Microsecond)
	counts := metrics.Subtract(s.latest.done.Counts, s.base.done.Counts)
	run.Sums = []history.Sum{{Account: history.AccountAll, Counts: counts, Budget: history.Budgeted{
		Began:      s.latest.done.Budget.Began,
		Unreported: s.latest.done.Budget.Unreported - s.base.done.Budget.Unreported,
		Doubtful:   s.latest.done.Budget.Doubtful - s.base.done.Budget.Doubtful}}}
	run.Operations = store.Operations{Reads: s.latest.done.Operations.Reads - s.base.done.Operations.Reads,
		Writes:  s.latest.done.Operations.Writes - s.base.done.Operations.Writes,
		Deletes: s.latest.done.Operations.Deletes - s.base.done.Operations.Deletes}
	run.Delays = s.latest.done.Delays.Minus(s.base.done.Delays).List()
	run.Failures, run.Missed = s.latest.failures-s.base.failures, s.latest.missed-s.base.missed
	run.Unsaved = s.latest.unsaved - s.base.unsaved
	if run.Failures > 0 {
		run.Error = s.latest.err
	}
	held := map[string]bool{}
	for _, why := range run.Held {
		held[why] = true
	}
	for why, d := range s.latest.done.Throttled {
		if d-s.base.done.Throttled[why] >= heldLeast {
			held[string(why)] = true
		}
	}
	if s.latest.held != "" {
		held[string(s.latest.held)] = true
	}
	run.Held = slices.Sorted(maps.Keys(held))
}

// end ends the run that goes on.
func (h *Chronicle) end(why history.End, err string) {
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
func (h *Chronicle) add(r history.Record) {
	s := &h.state
	if len(s.pending) >= mostPending { // the newest are what a person asks for
		s.pending = s.pending[1:]
		s.latest.missed++
	}
	s.pending = append(s.pending, r)
}

// Failed counts a failure of the work.
func (h *Chronicle) Failed(err error) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.latest.failures++
	h.state.latest.err = err.Error()
}

// LostCursor counts a cursor that could not be saved any more, and with it what its range had
// deleted since it was saved last.
func (h *Chronicle) LostCursor() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.latest.unsaved++
}

// Changed tells of what happened to generations as the target record was saved.
func (h *Chronicle) Changed(was, is generation.Record, cursors cursor.Table) {
	if h == nil {
		return
	}
	h.Tell(history.KindGeneration, history.GenerationChanges(was, is,
		func(number int) int64 { return deletedByCursors(cursors, number) })...)
}

// Tell has a record written for each change that this process has made: one that a
// compare-and-set has settled, so that no other process tells of it.
func (h *Chronicle) Tell(kind history.Kind, changes ...history.Change) {
	if h == nil || len(changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		h.add(history.NewChange(h.cfg.Target, kind, h.cfg.By, h.cfg.StoreNow(), c))
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

// Finish ends the run of this process, and writes what is left to be written. Each run of a
// command has a record; a daemon in whose last hour nothing happened has none of it.
func (h *Chronicle) Finish(ctx context.Context, why history.End, err string) {
	if h == nil {
		return
	}
	stopped := ctx.Err() != nil
	h.mu.Lock()
	held := h.state.latest.held
	if _, isHeld := HeldEnd(string(why)); isHeld { // it may have held the target from the beginning
		held = throttle.Reason(why)
	}
	h.state.latest = h.totals(held)
	if h.state.run == nil && (h.task != "serve" || h.state.latest.differs(h.state.base)) {
		h.begin(h.cfg.Now())
	}
	if h.state.run != nil {
		h.end(why, err)
	}
	if stopped {
		h.state.buckets = nil
	}
	h.mu.Unlock()
	within := writeTimeout
	if stopped {
		within = lastWrite
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	h.flushAll(ctx)
}

// HeldEnd returns the end of a run that was held when it ended.
func HeldEnd(held string) (end history.End, isHeld bool) {
	switch held {
	case string(throttle.ReasonPaused):
		return history.Paused, true
	case string(throttle.ReasonGate):
		return history.Gate, true
	case string(throttle.ReasonLimit):
		return history.Limit, true
	case string(throttle.ReasonRecord), string(throttle.ReasonArchive):
		return history.Failed, true
	case string(throttle.ReasonBreaker):
		return history.Breaker, true
	}
	return history.Open, false
}
