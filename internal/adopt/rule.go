package adopt

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// A Rule says when an entity expires that has no expiry key: a fixed time after a value
// that it has. It is a value.
type Rule struct {
	Property   string // that holds a timestamp, an expiry key, or a text in RFC 3339
	CreateTime bool   // the store's time of creation counts, in the place of a property
	Plus       time.Duration
}

// String returns the rule as records hold it and people read it.
func (r Rule) String() string {
	from := "create_time"
	if !r.CreateTime {
		from = "property " + r.Property
	}
	if r.Plus == 0 {
		return from
	}
	return from + " plus " + config.FormatDuration(r.Plus)
}

// source returns the value that the rule reads.
func (r Rule) source(row store.Row) store.Value {
	if r.CreateTime {
		return row.Created
	}
	return row.Source
}

// expires returns when an entity expires, in whole milliseconds. If the rule does not fit,
// why says so, and the outcome is NoSource or Mistyped.
func (r Rule) expires(row store.Row) (at time.Time, outcome Outcome, why string) {
	v := r.source(row)
	var from time.Time
	switch v.Type {
	case store.Missing:
		if r.CreateTime {
			return at, NoSource, "the store does not tell when it was created"
		}
		return at, NoSource, "it has no " + r.Property
	case store.Instant:
		from = v.Time
	case store.Text:
		key, err := expirykey.Parse(v.Text)
		if err == nil {
			from = key.Expires
		} else if from, err = time.Parse(time.RFC3339Nano, v.Text); err != nil {
			return at, Mistyped, fmt.Sprintf("%s is a text, but neither an expiry key nor an instant in RFC 3339", r.Property)
		}
	default:
		return at, Mistyped, r.Property + " is neither a timestamp nor a text"
	}
	key, err := expirykey.New(expirykey.Nursery, 0, from.Add(r.Plus))
	if err != nil {
		return at, Suspect, "the instant by the rule is not in the years 1 to 9999"
	}
	return key.Expires, Unstamped, ""
}

// A Round is one reading of all keys. What it gives an entity depends on nothing else.
type Round struct {
	Number  int
	Began   time.Time // in the store's time
	Spread  time.Duration
	Percent float64
	// Retention is that of the target in this round. It may change later; what the round gave stays.
	Retention time.Duration
}

// instant returns the expiry that an entity gets in the round: by the rule or, if it was due
// already when the round began, spread over the time after that.
func (r Round) instant(target, id string, expires time.Time) time.Time {
	if expires.Add(r.Retention).After(r.Began) {
		return expires
	}
	// Not the hash of shards or rollouts: the first per cent must not go first, too.
	sum := sha256.Sum256([]byte("spread " + target + "\n" + id))
	part := float64(binary.BigEndian.Uint64(sum[:8])) / math.MaxUint64
	return r.Began.Add(-r.Retention + time.Duration(part*float64(r.Spread))).Truncate(time.Millisecond)
}

// isLate reports whether so much of the spread is over that it must begin again for what is still to be
// stamped.
func (r Round) isLate(now time.Time) bool { return r.Spread > 0 && now.Sub(r.Began) > r.Spread/10 }

// has reports whether an entity is in the share that the round adopts.
func (r Round) has(target, id string) bool {
	return expirykey.InRollout(id, Salt(target), r.Percent)
}

// Salt returns the salt by which the share of a target's entities is chosen, for in_rollout
// of the writers.
func Salt(target string) string { return "adopt " + target }
