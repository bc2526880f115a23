package sweep

import (
	"time"

	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// A judgement is what an expiry means at a horizon.
type judgement uint8

const (
	never     judgement = iota // no expiry
	early                      // it expires after the horizon
	due                        // it may be deleted
	suspect                    // it expired implausibly long ago: kept
	malformed                  // it is not an expiry: kept
)

// decide judges an expiry, which must be of the given form. What expires at the
// horizon is due.
func decide(f layout.Form, v store.Value, horizon time.Time, maxAge time.Duration) judgement {
	if v.Type == store.Missing {
		return never
	}
	expires, err := f.Expires(v)
	switch {
	case err != nil:
		return malformed
	case expires.After(horizon):
		return early
	case expires.Before(horizon.Add(-maxAge)):
		return suspect
	}
	return due
}
