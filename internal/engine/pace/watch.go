package pace

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
)

// A WatchConfig says whose heartbeats are read, and what uses them.
type WatchConfig struct {
	Target  string
	Version string // of the program, for people
	Apply   bool   // without it there are no heartbeats
	Lease   time.Duration
	Keeper  *cursor.Keeper
	Pacing  *Pacing
	Clock   *storeclock.Clock
	Now     func() time.Time // this process's clock
	Log     *journal.Journal
	Bury    func(cursor.Heartbeat) bool // marks the runs of a dead process, and reports whether they are marked
	Notify  func()                      // called after each read
}

// A Watch keeps the heartbeat of this process for one target, and reads those of the
// others, independently of all other reads. The pace gets what was read first; only then does
// this process's next heartbeat say that it was read. So other processes can rely on that
// heartbeat.
type Watch struct {
	WatchConfig
	wake  chan struct{}
	asked atomic.Bool // a step waits for the next read
	due   atomic.Bool // the next read is due now: claims wait for it
	epoch atomic.Int64
	until atomic.Int64 // in Unix nanoseconds; before then others may have begun at the same time
	search
	seen cursor.Heartbeats
	// When the last read was sent, by this process's clock, and answered, in the store's
	// time; zero before the first.
	sent, stored time.Time

	mu      sync.Mutex
	failure journal.Failure // of reading them
}

// A search is for ranges that others hold.
type search struct {
	wants atomic.Bool  // this process waits for some
	began atomic.Int64 // when one sweep began to wait for others to give some, in Unix nanoseconds; zero if it did not
}

// NewWatch returns a watch, which makes the pulse of the keeper.
func NewWatch(cfg WatchConfig) *Watch {
	w := &Watch{WatchConfig: cfg, wake: make(chan struct{}, 1), failure: journal.Failure{Task: "read the heartbeats"}}
	w.Keeper.Pulse = w.Keeper.NewPulse(w.Target, w.Version, w.beat)
	return w
}

// beat handles a change of this process's own heartbeat.
func (w *Watch) beat(b cursor.Beat) {
	w.Pacing.beat(b)
	if b.Live && w.epoch.Swap(b.Epoch) != b.Epoch && w.Keeper.Opening == "" {
		w.until.Store(b.Acked.Add(joinEvery).UnixNano())
		w.due.Store(true)
	}
	w.wakeUp() // a process that joins must read at once
}

func (w *Watch) wakeUp() { background.Wake(w.wake) }

// Ask asks for the heartbeats to be read soon, if the caller is about to wait for no longer
// than joinEvery.
func (w *Watch) Ask(wait time.Duration) {
	if wait <= joinEvery && !w.asked.Swap(true) {
		w.wakeUp()
	}
}

// WantRanges sets whether this process waits for ranges that others hold. If it does, it reads the
// heartbeats more often, and says so in its own.
func (w *Watch) WantRanges(wants bool) {
	if w.wants.Swap(wants) != wants {
		w.Keeper.Pulse.Seek(wants)
		w.wakeUp()
	}
}

// Hopes reports whether others may soon give ranges to this process: they hold more than one
// each, and it has been looking for some for less than half a lease.
func (w *Watch) Hopes(lease time.Duration) bool {
	k := w.Keeper
	processes, ranges, _ := k.Parts()
	if k.Pulse.Held() > 0 || ranges < processes {
		return false
	}
	now := w.Now()
	w.began.CompareAndSwap(0, now.UnixNano())
	return now.UnixNano()-w.began.Load() < int64(lease/2)
}

// Run keeps the heartbeat and reads the others' until ctx is done. Then it removes the
// heartbeat, unless last is done, too. With announce it writes one even before anything is
// claimed.
func (w *Watch) Run(ctx, last context.Context, announce bool) {
	if !w.Apply {
		return
	}
	var pulse sync.WaitGroup
	pulse.Go(func() { w.Keeper.Pulse.Run(ctx, last, announce) })
	defer pulse.Wait()
	if !announce { // a sweep that finds nothing to do reads no heartbeats
		w.sent = w.Now()
	}
	background.Repeat(ctx, w.wake, w.refresh)
}

// refresh reads the heartbeats if that is due, and returns how long until it is due again.
func (w *Watch) refresh(ctx context.Context) (wait time.Duration) {
	every := w.Pacing.readEvery()
	if w.wants.Load() {
		every = min(every, w.Pacing.Trust()/3)
	}
	if w.asked.Load() {
		every = min(every, joinEvery)
	}
	now := w.Now()
	if now.UnixNano() < w.until.Load() {
		every = min(every, view.ReadAtMost)
	}
	if w.due.Load() {
		every = 0
	}
	wait = every - now.Sub(w.sent)
	if _, err := w.Failing(); err == nil && wait > 0 {
		return wait
	}
	err := w.read(ctx)
	if ctx.Err() != nil {
		return 0
	}
	w.mu.Lock()
	w.failure.Note(w.Log, w.Now(), err)
	w.mu.Unlock()
	if err != nil {
		return view.ReadAgain
	}
	w.removeDeadHeartbeat(ctx)
	return 0
}

// Failing returns why the heartbeats cannot be read; nil if the last read succeeded. Long
// reports whether they could not be read for a lease.
func (w *Watch) Failing() (long bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.failure
	return f.Err != nil && w.Now().Sub(f.Since) > w.Lease, f.Err
}

// read reads the heartbeats once.
func (w *Watch) read(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, w.Pacing.Trust())
	defer cancel()
	w.asked.Store(false)
	w.due.Store(false)
	sent, stored := w.Now(), w.Clock.Now()
	all, at, err := w.Keeper.Look(within, w.Target)
	if err != nil {
		return err
	}
	w.seen, w.sent = all, sent
	news := w.Pacing.observe(sent, w.Now(), at, w.Keeper.Alive(all))
	w.Keeper.Pulse.SetRead(stored, news)
	w.stored = at
	w.Notify()
	return nil
}

// removeDeadHeartbeat removes the heartbeat of one dead process, if there is any. Otherwise each
// process that joins would have to watch the heartbeat for a lease to see that it does not
// change. It has a short timeout, because the next read waits for it.
func (w *Watch) removeDeadHeartbeat(ctx context.Context) {
	for _, key := range slices.Sorted(maps.Keys(w.seen)) {
		h := w.seen[key]
		dead := h.IsDead(w.sent, w.Lease, w.Pacing.Trust()) || h.IsForgotten(w.stored, w.sent)
		if h.Owner == w.Keeper.Owner || !dead && w.Keeper.IsOfThisOpening(h.Owner) {
			continue
		}
		if !w.Bury(h) {
			continue // its runs are marked first
		}
		ctx, cancel := context.WithTimeout(ctx, w.Pacing.Trust()/3)
		defer cancel()
		if err := w.Keeper.ForgetHeartbeat(ctx, h); err != nil {
			w.Log.DebugContext(ctx, "cannot remove a dead heartbeat; trying again", "error", err)
		}
		return
	}
}
