package index

import (
	"time"

	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// A Judgement is what an expiry means at a horizon.
type Judgement uint8

const (
	Never     Judgement = iota // no expiry
	Early                      // it expires after the horizon
	Due                        // it may be deleted
	Suspect                    // it expired implausibly long ago: kept
	Malformed                  // it is not an expiry: kept
)

// A Judged is the judgement of an entry, and when it expires. It is kept as long as the page,
// because parsing the expiry takes longer than anything else that is done for each entity.
type Judged struct {
	Judgement
	Expires time.Time // zero if it is not an expiry
}

// IsExpiry reports whether the value of the entry says when its entity expires.
func (j Judged) IsExpiry() bool { return j.Judgement != Never && j.Judgement != Malformed }

// decide judges an expiry, which must be of the given form. An entity that expires at the
// horizon is due.
func decide(f layout.Form, v store.Value, horizon time.Time, maxAge time.Duration) Judged {
	if v.Type == store.Missing {
		return Judged{Judgement: Never}
	}
	expires, err := f.Expires(v)
	switch {
	case err != nil:
		return Judged{Judgement: Malformed}
	case expires.After(horizon):
		return Judged{Early, expires}
	case expires.Before(horizon.Add(-maxAge)):
		return Judged{Suspect, expires}
	}
	return Judged{Due, expires}
}
