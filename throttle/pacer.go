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

// A Pacer waits for the tokens of one claimed range. One goroutine waits; any
// other may change its limits, which a wait under way follows at once, and ask
// how it stands.
type Pacer struct {
	now func() time.Time

	mu      sync.Mutex
	pace    *Pace
	changed chan struct{} // closed at each change, to end a wait that may be outdated
	waiting bool
}

// Open returns a pacer with an empty bucket that goes on from what was kept.
func Open(now func() time.Time, l Limits, kept State, page int) *Pacer {
	return &Pacer{now: now, pace: NewPace(now(), l, kept, page), changed: make(chan struct{})}
}

// Burst returns the most entities that may be asked for at once, at most page.
func (p *Pacer) Burst(page int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace.Burst(p.now(), page)
}

// Await blocks until n entities may be deleted, or ctx is done. It tells how long it
// waited and what for: once for each stretch of it, also before an error.
func (p *Pacer) Await(ctx context.Context, n int, told func(Reason, time.Duration)) error {
	defer p.ask(0)
	for {
		wait, why, began, changed := p.ask(n)
		if wait == 0 {
			return nil
		}
		err := sleep(ctx, wait, changed)
		if d := p.now().Sub(began); d > 0 || err != nil {
			told(why, d)
		}
		if err != nil {
			return err
		}
	}
}

// ask takes the tokens or says how long to wait and for what. The clock is read
// under the lock, so that the arithmetic sees no instant that goes back.
func (p *Pacer) ask(n int) (wait time.Duration, why Reason, now time.Time, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now = p.now()
	wait = p.pace.Take(now, n)
	p.waiting = wait > 0
	return wait, p.pace.Reason(now), now, p.changed
}

// SetLimits is [Pace.SetLimits].
func (p *Pacer) SetLimits(l Limits) {
	p.change(func(now time.Time) { p.pace.SetLimits(now, l) })
}

// SetTotal is [Pace.SetTotal].
func (p *Pacer) SetTotal(s Share) {
	p.change(func(now time.Time) { p.pace.SetTotal(now, s) })
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

func (p *Pacer) change(f func(now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.now())
	if p.waiting {
		p.waiting = false // until it asks again; one notice is enough
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// A Status is how a pacer stands at one instant.
type Status struct {
	Rate   float64 // in force, in entities per second; zero where Unlimited
	Reason Reason  // what holds the range to it
	// Unlimited says that nothing holds it.
	Unlimited bool
	Waiting   bool // somebody waits for it now
}

// Status returns how the pacer stands.
func (p *Pacer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	s := Status{Rate: p.pace.Rate(now), Reason: p.pace.Reason(now), Waiting: p.waiting}
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
func Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, d, nil) }

func sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
