package throttle

import (
	"context"
	"math"
	"sync"
	"time"
)

// A Limit is a fixed rate in entities per second. The zero Limit grants nothing
// and is refused by the configuration.
type Limit struct {
	PerSecond float64
	Unlimited bool // PerSecond does not count
}

// A Pacer is the [Pace] of one claimed range with a clock and a lock: one goroutine
// asks for tokens, any other may change its limits and ask for its status. It never
// blocks: it tells the caller how long to wait.
type Pacer struct {
	now func() time.Time

	mu   sync.Mutex
	pace *Pace
	uses int // steps that work by it
}

// Open returns a pacer with an empty bucket that goes on from what was kept.
func Open(now func() time.Time, l Limits, kept State, page int) *Pacer {
	return &Pacer{now: now, pace: NewPace(now(), l, kept, page)}
}

// Ready is [Pace.Ready], with what there is to wait for.
func (p *Pacer) Ready(most int) (n int, wait time.Duration, why Reason) {
	p.change(func(now time.Time) {
		n, wait = p.pace.Ready(now, most)
		why = p.pace.Reason(now)
	})
	return n, wait, why
}

// Burst is [Pace.Burst].
func (p *Pacer) Burst(page int) (n int) {
	p.change(func(now time.Time) { n = p.pace.Burst(now, page) })
	return n
}

// Take is [Pace.Take], with what there is to wait for.
func (p *Pacer) Take(n int) (wait time.Duration, why Reason) {
	p.change(func(now time.Time) {
		wait = p.pace.Take(now, n)
		why = p.pace.Reason(now)
	})
	return wait, why
}

// SetLimits is [Pace.SetLimits].
func (p *Pacer) SetLimits(l Limits) {
	p.change(func(now time.Time) { p.pace.SetLimits(now, l) })
}

// SetTotal is [Pace.SetTotal].
func (p *Pacer) SetTotal(s Share) {
	p.change(func(now time.Time) { p.pace.SetTotal(now, s) })
}

// Wants is [Pace.Wants], and true for one in use.
func (p *Pacer) Wants() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.uses > 0 || p.pace.Wants(p.now())
}

// Lapsed is [Pace.Lapsed].
func (p *Pacer) Lapsed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace.Lapsed(p.now())
}

// Use tells that a step works by the pacer until done is called. It may make a call that takes long between two times
// at which it asks for tokens.
func (p *Pacer) Use() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.uses--
	}
}

// Hold is [Pace.Hold].
func (p *Pacer) Hold(why Reason) {
	p.change(func(now time.Time) { p.pace.Hold(now, why) })
}

// PushBack is [Pace.PushBack].
func (p *Pacer) PushBack(why Reason) (halved bool) {
	p.change(func(now time.Time) { halved = p.pace.PushBack(now, why) })
	return halved
}

// Latency is [Pace.Latency].
func (p *Pacer) Latency(n int, took time.Duration) (halved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace.Latency(p.now(), n, took)
}

// change reads the clock under the lock, so that the arithmetic sees no instant that
// goes back.
func (p *Pacer) change(f func(now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.now())
}

// A Status is how a pacer stands at one instant.
type Status struct {
	Rate   float64 // in force, in entities per second; zero where Unlimited
	Reason Reason  // what holds the range to it
	// Unlimited says that nothing holds it.
	Unlimited bool
}

// Status returns how the pacer stands.
func (p *Pacer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	s := Status{Rate: p.pace.Rate(now), Reason: p.pace.Reason(now)}
	if math.IsInf(s.Rate, 1) {
		s.Rate, s.Unlimited = 0, true
	}
	return s
}

// State is [Pace.State].
func (p *Pacer) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace.State(p.now())
}

// Sleep waits for d or until ctx is done, whose error it then returns.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
