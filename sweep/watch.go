package sweep

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
)

// A watch keeps the heartbeat of this process for one target, and reads those of the
// others, apart from all other reads. What it reads goes first to the pace, and only then
// into this process's next heartbeat. So a process that is counted in that heartbeat can
// rely on it.
type watch struct {
	c     *collector
	wake  chan struct{}
	asked atomic.Bool // somebody waits for the next read
	meets atomic.Bool // the next read is due now: claims wait for it
	epoch atomic.Int64
	until atomic.Int64 // for so long, in Unix nanoseconds, others may have begun at the same time
	search
	seen cursor.Heartbeats
	// When the last read was sent, on this process's clock, and answered, in the store's
	// time; zero before the first.
	sent, stored time.Time

	mu      sync.Mutex
	failure failure // of reading them
}

// A search is for ranges that others hold.
type search struct {
	seeks atomic.Bool  // this process waits for some
	hoped atomic.Int64 // since when, in Unix nanoseconds, one sweep waits to be given any; zero if it has not
}

func newWatch(c *collector) *watch {
	w := &watch{c: c, wake: make(chan struct{}, 1), failure: failure{task: "read the heartbeats"}}
	c.keeper.Pulse = c.keeper.NewPulse(c.target.Name, c.cfg.Version, w.beat)
	return w
}

// beat takes in the state of this process's own heartbeat.
func (w *watch) beat(b cursor.Beat) {
	w.c.pacing.beat(b)
	if b.Live && w.epoch.Swap(b.Epoch) != b.Epoch && w.c.keeper.Opening == "" {
		w.until.Store(b.Acked.Add(joinEvery).UnixNano())
		w.meets.Store(true)
	}
	w.wakeUp() // a process that joins must read at once
}

func (w *watch) wakeUp() {
	background.Wake(w.wake)
}

// ask asks for the heartbeats to be read soon, if the caller waits for no longer than
// joinEvery.
func (w *watch) ask(wait time.Duration) {
	if wait <= joinEvery && !w.asked.Swap(true) {
		w.wakeUp()
	}
}

// seek sets whether this process waits for ranges that others hold. If it does, it reads the
// heartbeats more often, and says so in its own.
func (w *watch) seek(seeks bool) {
	if w.seeks.Swap(seeks) != seeks {
		w.c.keeper.Pulse.Seek(seeks)
		w.wakeUp()
	}
}

// hopes reports whether this process may soon be given ranges by others: they hold more than one
// each, and it has looked for some for less than half a lease.
func (w *watch) hopes(lease time.Duration) bool {
	k := w.c.keeper
	processes, ranges, _ := k.Parts()
	if k.Pulse.Held() > 0 || ranges < processes {
		return false
	}
	now := w.c.cfg.Now()
	w.hoped.CompareAndSwap(0, now.UnixNano())
	return now.UnixNano()-w.hoped.Load() < int64(lease/2)
}

// run keeps the heartbeat and reads the others' until ctx is done. Then it removes the
// heartbeat, unless last is done, too. With announce it writes one even before anything is
// claimed.
func (w *watch) run(ctx, last context.Context, announce bool) {
	if !w.c.cfg.Apply {
		return
	}
	var pulse sync.WaitGroup
	pulse.Go(func() { w.c.keeper.Pulse.Run(ctx, last, announce) })
	defer pulse.Wait()
	if !announce { // a sweep that finds nothing to do reads no heartbeats
		w.sent = w.c.cfg.Now()
	}
	background.Repeat(ctx, w.wake, w.refresh)
}

// refresh reads the heartbeats if that is due, and returns how long until it is due again.
func (w *watch) refresh(ctx context.Context) (wait time.Duration) {
	every := w.c.pacing.readEvery()
	if w.seeks.Load() {
		every = min(every, w.c.pacing.trust()/3)
	}
	if w.asked.Load() {
		every = min(every, joinEvery)
	}
	now := w.c.cfg.Now()
	if now.UnixNano() < w.until.Load() {
		every = min(every, readAtMost)
	}
	if w.meets.Load() {
		every = 0
	}
	wait = every - now.Sub(w.sent)
	if _, err := w.failing(); err == nil && wait > 0 {
		return wait
	}
	err := w.read(ctx)
	if ctx.Err() != nil {
		return 0
	}
	w.mu.Lock()
	w.failure.note(w.c.log, w.c.cfg.Now(), err)
	w.mu.Unlock()
	if err != nil {
		return readAgain
	}
	w.removeDeadHeartbeat(ctx)
	return 0
}

// failing returns why the heartbeats cannot be read; nil if the last read succeeded. Long
// reports whether they could not be read for a lease.
func (w *watch) failing() (long bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.failure
	return f.err != nil && w.c.cfg.Now().Sub(f.since) > w.c.target.Lease, f.err
}

// read reads the heartbeats once.
func (w *watch) read(ctx context.Context) error {
	c := w.c
	within, cancel := context.WithTimeout(ctx, c.pacing.trust())
	defer cancel()
	w.asked.Store(false)
	w.meets.Store(false)
	sent, stored := c.cfg.Now(), c.clock.Now()
	all, at, err := c.keeper.Look(within, c.target.Name)
	if err != nil {
		return err
	}
	w.seen, w.sent = all, sent
	news := c.pacing.observe(sent, c.cfg.Now(), at, c.keeper.Alive(all))
	c.keeper.Pulse.SetRead(stored, news)
	w.stored = at
	c.viewer.notify()
	return nil
}

// removeDeadHeartbeat removes the heartbeat of one dead process, if there is any. Without that, each
// process that joins would have to watch for a lease that the heartbeat does not change. It
// has a short timeout, because the next read waits for it.
func (w *watch) removeDeadHeartbeat(ctx context.Context) {
	c := w.c
	ctx, cancel := context.WithTimeout(ctx, c.pacing.trust()/3)
	defer cancel()
	for _, key := range slices.Sorted(maps.Keys(w.seen)) {
		h := w.seen[key]
		dead := h.IsDead(w.sent, c.target.Lease, c.pacing.trust()) || h.IsForgotten(w.stored, w.sent)
		if h.Owner == c.keeper.Owner || !dead && c.keeper.IsOfThisOpening(h.Owner) {
			continue
		}
		if !c.log.story.Bury(h) {
			continue // its runs are marked first
		}
		if err := c.keeper.ForgetHeartbeat(ctx, h); err != nil {
			c.log.DebugContext(ctx, "cannot remove a dead heartbeat; trying again", "error", err)
		}
		return
	}
}
