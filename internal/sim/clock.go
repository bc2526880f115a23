package sim

import (
	"sync"
	"time"
	"unsafe"
)

// A clock is what a process takes for the time: the bubble's, with a wall clock that
// is set wrong, and a monotonic one that stood still while the machine slept.
type clock struct {
	began time.Time

	mu   sync.Mutex
	wall time.Duration // ahead by so much
	mono time.Duration // behind by so much
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now()
	return withMonotonic(t.Add(c.wall), t.Sub(c.began)-c.mono+time.Hour)
}

// set turns the wall clock by so much.
func (c *clock) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += by
}

// slept stops the monotonic clock for so long.
func (c *clock) slept(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += d
}

// withMonotonic gives an instant a monotonic reading. Package time has no way to do
// that, so it is done in its own representation; TestClock holds that it is still so.
func withMonotonic(t time.Time, reading time.Duration) time.Time {
	const (
		hasMonotonic = 1 << 63
		nanoseconds  = 1<<30 - 1
		since1885    = (1884*365 + 1884/4 - 1884/100 + 1884/400) * 24 * 60 * 60
	)
	t = t.Round(0)
	fields := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&t))
	seconds := fields.ext - since1885
	fields.wall = hasMonotonic | uint64(seconds)<<30 | fields.wall&nanoseconds
	fields.ext = int64(reading)
	return t
}
