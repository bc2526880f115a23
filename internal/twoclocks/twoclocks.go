// Package twoclocks makes instants for tests whose wall clock and monotonic clock differ: of a machine that slept, or
// whose clock was set.
//
// The invariant is that package time takes such an instant for one of time.Now, also in a bubble of testing/synctest,
// whose instants have no monotonic reading.
//
// Limits: wall clocks from the year 1885 to 2157.
package twoclocks

import (
	"time"
	"unsafe"
)

// At returns the instant of a wall clock with the reading of a monotonic one, from any beginning. Package time offers
// no way to do that, so it changes the representation.
func At(wall time.Time, reading time.Duration) time.Time {
	const (
		hasMonotonic = 1 << 63
		nanoseconds  = 1<<30 - 1
		since1885    = (1884*365 + 1884/4 - 1884/100 + 1884/400) * 24 * 60 * 60
	)
	wall = wall.Round(0)
	fields := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&wall))
	seconds := fields.ext - since1885
	fields.wall = hasMonotonic | uint64(seconds)<<30 | fields.wall&nanoseconds
	fields.ext = int64(reading)
	return wall
}
