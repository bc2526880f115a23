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

	mu    sync.Mutex
	wall  time.Duration // ahead by so much
	mono  time.Duration // behind by so much
	speed float64       // both run so much faster; zero is one
	setAt time.Time     // when somebody turned the wall clock last
	asked time.Time     // when somebody last asked for the time: a bubble's stands still in between
	told  time.Time     // what the clock said; as long as nobody changes it
}

func (c *clock) now() time.Time {
	t := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if t != c.asked {
		gained := c.gained(t)
		c.asked = t
		c.told = withMonotonic(t.Add(c.wall+gained), t.Sub(c.began)+gained-c.mono+time.Hour)
	}
	return c.told
}

// gained returns what a clock that runs too fast is ahead for it by then. The caller holds mu.
func (c *clock) gained(t time.Time) time.Duration {
	if c.speed == 0 {
		return 0
	}
	return time.Duration(float64(t.Sub(c.began)) * (c.speed - 1))
}

// runs makes the clock run at another speed, as from its beginning.
func (c *clock) runs(speed float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.speed = speed
	c.wall -= c.gained(time.Now())
	c.asked = time.Time{}
}

// off returns by how much the wall clock has been wrong, at least, for so long; zero if
// somebody has turned it since.
func (c *clock) off(long time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Sub(c.setAt) < long || now.Sub(c.began) < long {
		return 0
	}
	return min((c.wall + c.gained(now)).Abs(), (c.wall + c.gained(now.Add(-long))).Abs())
}

// setRight sets the wall clock to the right time, nearly, and returns by how much.
func (c *clock) setRight(off time.Duration) (by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := off - c.gained(time.Now())
	by, c.wall, c.setAt, c.asked = to-c.wall, to, time.Now(), time.Time{}
	return by
}

// set turns the wall clock by so much.
func (c *clock) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += by
	c.setAt, c.asked = time.Now(), time.Time{}
}

// slept stops the monotonic clock for so long.
func (c *clock) slept(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += d
	c.asked = time.Time{}
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
