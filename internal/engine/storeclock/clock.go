package storeclock

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// ErrWrong is why a process refuses to sweep by its clock.
var ErrWrong = store.WithHint(errors.New("the clock cannot be trusted"), "set this machine's clock")

// fastest is how fast the local clock may run without harm: it may count eight seconds while
// the store counts seven.
const fastest = 8

// A Clock tells the store's time: the time in the last response, and what has passed here
// since that response arrived, less an eighth. It never runs ahead of the store: the store's own
// clock had moved on while the response travelled, and a local clock that runs too fast gains
// no more than that eighth until the next response. So whatever is due by it is due.
type Clock struct {
	now     func() time.Time     // the wall clock
	passed  func() time.Duration // the monotonic clock, from any beginning
	maxSkew time.Duration

	mu    sync.Mutex
	wrong error         // what the last response showed of the local clock; nil if it is right
	store time.Time     // in the last response
	local time.Time     // when that response had arrived
	at    time.Duration // the same, by the monotonic clock
}

// New returns a clock that refuses a local time that differs from the store's by more than
// maxSkew. It needs a response before it tells the time.
func New(now func() time.Time, maxSkew time.Duration) *Clock {
	began := now()
	return &Clock{now: now, passed: func() time.Duration { return now().Sub(began) }, maxSkew: maxSkew}
}

// Local returns the local wall clock's time, with its monotonic reading.
func (c *Clock) Local() time.Time { return c.now() }

// Observe takes the store's time from a response to a request that was sent at
// the given instant. It fails if the local clock differs by more than maxSkew.
func (c *Clock) Observe(store, sent time.Time) error {
	arrived := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if store.Before(sent.Round(0).Add(-c.maxSkew)) || store.After(arrived.Round(0).Add(c.maxSkew)) {
		c.wrong = fmt.Errorf("%w: it is %s here and %s in the store, more than max_clock_skew (%v) apart",
			ErrWrong, arrived.UTC().Format(time.RFC3339Nano), store.UTC().Format(time.RFC3339Nano), c.maxSkew)
		return c.wrong
	}
	c.wrong = nil
	c.store, c.local, c.at = store, arrived, c.passed()
	return nil
}

// Now returns the store's time, or a little less.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := c.passed() - c.at
	return c.store.Add(passed - passed/fastest).UTC()
}

// Since returns how long ago an instant in the store's time was, or a little more.
func (c *Clock) Since(at time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store.Add(c.passed() - c.at).Sub(at)
}

// Check fails if the last response has shown that the wall clock is wrong, or if it has jumped
// since. The embedded store uses the same clock, so only such a jump shows there that it is wrong.
// The jump alone is not enough: one that happens while a response travels goes unnoticed.
func (c *Clock) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong != nil {
		return c.wrong
	}
	jump := c.now().Round(0).Sub(c.local.Round(0)) - (c.passed() - c.at)
	if jump.Abs() > c.maxSkew {
		return fmt.Errorf("%w: it jumped by %v during the sweep, more than max_clock_skew (%v)", ErrWrong, jump, c.maxSkew)
	}
	return nil
}

// Age returns how long ago an instant was, by the wall or the monotonic clock, whichever
// shows more: one of them may have stopped while the machine slept.
func Age(now, at time.Time) time.Duration {
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}
