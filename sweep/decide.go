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

// A judged is what was found out about an entry of a page. It is kept while the page is at
// hand, since nothing else that is done for each entity takes as long as to parse its expiry.
type judged struct {
	judgement
	expires time.Time // zero if it is not an expiry
}

// isExpiry reports whether the value of the entry says when its entity expires.
func (j judged) isExpiry() bool { return j.judgement != never && j.judgement != malformed }

// decide judges an expiry, which must be of the given form. What expires at the
// horizon is due.
func decide(f layout.Form, v store.Value, horizon time.Time, maxAge time.Duration) judged {
	if v.Type == store.Missing {
		return judged{judgement: never}
	}
	expires, err := f.Expires(v)
	switch {
	case err != nil:
		return judged{judgement: malformed}
	case expires.After(horizon):
		return judged{early, expires}
	case expires.Before(horizon.Add(-maxAge)):
		return judged{suspect, expires}
	}
	return judged{due, expires}
}
