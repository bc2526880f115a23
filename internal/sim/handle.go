package sim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A handle is one process's way to the store, with everything that can go wrong on it.
// A call travels for a while, takes effect at one instant of its own, and its reply
// travels back. A process that is killed makes no call any more; one that is frozen
// makes them late.
type handle struct {
	w      *world
	name   string
	holder string   // as it signs leases; empty for what claims nothing
	lists  []string // the namespaces that it sweeps, if deployments differ in that
	dice   dice
	clock  *clock
	dry    bool         // must not write
	calm   bool         // nothing goes wrong
	rush   *rush        // that it works in; may be nil
	file   sweep.Target // of a process that sweeps: as its targets file has it

	known   atomic.Pointer[store.Record] // of a follower's: the target record that it read last, nil before the first
	replies time.Duration                // likewise: how long its replies travel, if they are slow

	died chan struct{} // closed when it is killed
	kill context.CancelFunc
	end  ending
	next func(n int) ending // of a process that lives on: what happens to it after its n-th stop; may be nil

	// Guarded by the world's lock.
	beatsRead map[string]time.Time // by target: the heartbeats that it has read were those of then
	calls     int                  // that took effect
	dead      bool
	stops     int           // so often it was frozen or asleep
	ground    grounds       // what it has counted before it reserved anything
	closed    bool          // the sweep has returned: there must be no further call
	thaw      time.Time     // it is frozen until then
	stood     time.Duration // it has been frozen for so long in all, or will have been by then
	amnesty   time.Time     // until then it may hold what records that went back do not show
	looks     map[stem]look
	robbed    bool // they went back while it was at work: it learns that a claim is gone as it saves that next
}

// heard returns the target record that the handle's follower read last.
func (h *handle) heard() targetFact {
	if r := h.known.Load(); r != nil {
		return readTarget(r.Fields)
	}
	return targetFact{}
}

// An ending is what happens to a process in the middle of its work.
type ending struct {
	how   string        // "", kill, stop, freeze or suspend
	after int           // so many calls have taken effect, of which the last is not answered yet,
	later time.Duration // or a little later
	mark  bool          // or rather when it is about to save a target record, by what it believes to be the time
	lasts time.Duration
}

var (
	errDead = errors.New("this process is dead")
	errPart = errors.New("done in part")
)

// A call is one of the store's methods, under way.
type call struct {
	method, key string
	write       bool
	mark        bool          // it saves a target record
	creates     bool          // a new one
	latest      time.Time     // it takes no effect later; zero is any time
	ops         int           // of Dispose
	drag        time.Duration // what the request takes longer
}

// A fate is what becomes of a call.
type fate struct {
	request, reply time.Duration
	err            error // instead of the effect
	lost           error // instead of the reply
	late           time.Duration
	partial        bool
}

// do carries out a call. The effect runs at most once, under the world's lock, perhaps
// after the caller has gone.
func (h *handle) do(ctx context.Context, c call, effect func(f fate) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, frozen, err := h.arrive(c)
	if err != nil {
		return err
	}
	if frozen > 0 { // it is sent once the process runs on, perhaps before it notices how late it is
		time.Sleep(frozen + h.wakes(c))
		if ctx.Err() != nil && !(c.write && h.goesOn(c)) {
			return ctx.Err()
		}
		ctx = context.WithoutCancel(ctx)
		if !c.latest.IsZero() { // as if the wait for an answer began only now
			c.latest = c.latest.Add(frozen)
		}
	}
	if err := h.wait(ctx, c, f.request+c.drag, false); err != nil {
		if c.write && f.err == nil && h.goesOn(c) {
			h.w.afterwards(func() {
				time.Sleep(f.late)
				_ = h.take(c, f, effect, "after its caller gave up") // nobody is there to be told
			})
			return store.InDoubt(err)
		}
		return err
	}
	err = h.take(c, f, effect, "")
	if wait := h.wait(ctx, c, f.reply, true); wait != nil {
		if c.write { // it is not known whether the request took effect
			return store.InDoubt(wait)
		}
		return wait
	}
	if err == nil && f.lost != nil {
		return f.lost
	}
	return err
}

// goesOn reports whether a request that is on its way takes effect though its caller
// has gone.
func (h *handle) goesOn(c call) bool {
	return h.w.plan.mode != embedded && h.w.plan.has("late") && h.throw(c).on("goes on").yes(0.5)
}

// take lets a call take effect.
func (h *handle) take(c call, f fate, effect func(fate) error, how string) error {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps++
	if !c.latest.IsZero() && time.Now().After(c.latest) {
		return context.DeadlineExceeded
	}
	err := f.err
	if err == nil {
		err = effect(f)
	}
	if how != "" {
		w.count("late " + c.method)
	}
	w.note(h.name, c.method, c.key, how, err)
	if h.calls++; !h.dead && !h.end.mark && h.end.how != "" && h.calls == h.end.after {
		if h.end.later == 0 {
			h.strike()
		} else {
			w.afterwards(func() {
				time.Sleep(h.end.later)
				w.mu.Lock()
				defer w.mu.Unlock()
				if !h.dead && !h.closed {
					h.strike()
				}
			})
		}
	}
	return err
}

// throw returns the dice of a call.
func (h *handle) throw(c call) dice {
	return h.dice.at(int64(time.Since(h.w.began))).on(c.method).on(c.key)
}

// wakes is how soon after it runs on a process goes on with a call: not with all of
// them at one instant, for then the scheduler would decide which is first.
func (h *handle) wakes(c call) time.Duration {
	return h.throw(c).on("wakes").between(0, time.Millisecond)
}

// begins holds steps and releases apart that begin at one instant, for then the
// scheduler would decide which is first.
func (h *handle) begins(target, name string) {
	d := h.dice.at(int64(time.Since(h.w.began))).on("begins").on(target).on(name)
	time.Sleep(d.between(1, time.Millisecond))
}

// wait lets time pass on the way to or from the store. What a frozen process is told
// it hears later.
func (h *handle) wait(ctx context.Context, c call, d time.Duration, reply bool) error {
	if d > 0 {
		timer := h.w.timer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-h.died:
		}
		timer.Stop()
		h.w.timers.Put(timer)
	}
	h.w.mu.Lock()
	dead, frozen := h.dead, h.frozen()
	h.w.mu.Unlock()
	if dead {
		return errDead
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // another call may have the same deadline, and end this one
		time.Sleep(h.wakes(c))
	}
	if err := ctx.Err(); err == nil && !reply {
		return nil // the request is there, whatever became of its sender
	}
	if frozen > 0 {
		time.Sleep(frozen + h.wakes(c))
	}
	return ctx.Err()
}

// timer returns a timer that nobody uses any more, or a new one.
func (w *world) timer(d time.Duration) *time.Timer {
	if t, ok := w.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// arrive notes that a call is sent, and decides its fate.
func (h *handle) arrive(c call) (f fate, frozen time.Duration, err error) {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case h.dead:
		return f, 0, errDead
	case h.closed:
		w.violate("leak", "%s calls %s %s after its sweep has returned", h.name, c.method, c.key)
		return f, 0, errDead
	}
	if c.mark && h.end.mark && h.end.how != "" {
		h.end.mark = false
		if h.strike(); h.dead {
			return f, 0, errDead
		}
	}
	frozen = h.frozen()
	if until := c.latest.Add(max(0, frozen)); c.creates && until.After(w.creating[c.key]) {
		w.creating[c.key] = until
	}
	return h.fate(c), frozen, nil
}

// frozen returns for how long the process stands still yet; not more than zero if it does not. The
// caller holds the world's lock.
func (h *handle) frozen() time.Duration {
	if h.thaw.IsZero() {
		return 0
	}
	return time.Until(h.thaw)
}

// freeze lets the process stand still. The caller holds the world's lock.
func (h *handle) freeze(d time.Duration) {
	h.thaw = time.Now().Add(d)
	h.stood += d
}

// stoodSoFar returns for how long the process has been frozen by now. The caller holds the world's lock.
func (h *handle) stoodSoFar() time.Duration { return h.stood - max(0, h.frozen()) }

// strike ends or stops the process. The caller holds the world's lock.
func (h *handle) strike() {
	h.w.count(h.end.how)
	h.w.note(h.name, h.end.how, "", "", nil)
	switch h.end.how {
	case "kill":
		h.dead = true
		close(h.died)
		h.kill()
	case "stop":
		h.kill()
	case "suspend":
		h.clock.slept(h.end.lasts)
		h.freeze(h.end.lasts)
	case "freeze":
		h.freeze(h.end.lasts)
	}
	if h.next != nil && !h.dead && h.end.how != "stop" {
		h.stops++
		h.end, h.calls = h.next(h.stops), 0
	}
}

// fate draws what becomes of a call.
func (h *handle) fate(c call) fate {
	d, p := h.throw(c), h.w.plan
	f := fate{request: d.on("request").between(time.Millisecond, 20*time.Millisecond)}
	f.late = d.on("late").between(time.Millisecond, pick(d.on("how late"), time.Second, 10*time.Second, 2*time.Minute))
	if h.calm || h.w.calm {
		return f
	}
	if f.reply = h.replies; f.reply == 0 && d.on("replies").yes(0.2) {
		f.reply = d.on("reply").between(time.Millisecond, 50*time.Millisecond)
	}
	since := time.Since(h.w.began)
	for _, o := range p.outages {
		if since >= o.from && since < o.to && d.on("outage").yes(0.9) {
			f.err = fmt.Errorf("outage: %w", store.ErrUnavailable)
			return f
		}
	}
	for _, kind := range faults {
		if rate := p.rates[kind]; rate > 0 && d.on(kind).yes(rate) && h.faulty(d, c, kind, &f) {
			h.w.count("fault " + kind)
			break
		}
	}
	return f
}

// locked reports whether somebody holds an entity in a transaction of his own, for the
// better part of a minute. The caller holds the world's lock.
func (w *world) locked(at place, key string) bool {
	const long = 40 * time.Second
	if w.calm {
		return false
	}
	if len(w.held) > 0 && time.Now().Before(w.held[heldKey{at, key}]) {
		return true
	}
	rate := w.plan.rates["locked"]
	window := int64(time.Since(w.began) / long)
	return rate > 0 && w.dice.on("locked").on(at.namespace).on(key).at(window).yes(rate)
}

// faulty gives a call one kind of fault, if the call can have it.
func (h *handle) faulty(d dice, c call, kind string, f *fate) bool {
	transaction := c.method == "Dispose" || c.method == "Settle" || c.method == "DeleteBelow"
	unsure := func(what string) error {
		return fmt.Errorf("%s: %w", what, pick(d.on("error"), store.ErrUnavailable, store.ErrDeadline))
	}
	switch {
	case kind == "refuse":
		f.err = unsure("refused")
	case kind == "pushback":
		f.err = fmt.Errorf("quota: %w", store.ErrPushback)
	case kind == "contention" && (transaction || c.method == "Save"):
		f.err = fmt.Errorf("locked: %w", store.ErrContention)
	case kind == "toolarge" && c.method == "Dispose" && c.ops > 1:
		f.err = fmt.Errorf("so many: %w", store.ErrTooLarge)
	case kind == "fail" && d.on("rarer").yes(0.3):
		f.err = fmt.Errorf("disk: %w", store.ErrFailed)
	case kind == "lost" && c.write:
		f.lost = unsure("reply lost")
	case kind == "late" && c.write: // nearly as long as any caller waits, or longer
		f.request = d.on("long").between(3*time.Second, 40*time.Second)
	case kind == "stall":
		f.request = time.Hour
		f.err = unsure("stalled")
	case kind == "slow":
		f.request = d.on("long request").between(0, 4*time.Second)
		f.reply = d.on("long reply").between(0, pick(d.on("how long"), 4*time.Second, 4*time.Second, 30*time.Second))
	case kind == "partial" && c.method == "Dispose" && c.ops > 1:
		f.partial, f.lost = true, fmt.Errorf("%w: %w", errPart, unsure("the rest"))
	default:
		return false
	}
	return true
}
