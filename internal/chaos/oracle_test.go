//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// An expiry is the value of an expiry property, and what it means.
type expiry struct {
	text string    // an expiry key, or an instant in RFC 3339; empty without an expiry
	at   time.Time // when the entity expires; zero: it is kept for ever
}

// A state is what an entity is known to be.
type state struct {
	present bool
	body    string // everything but the expiry property
	expiry  expiry
	stamped time.Time // when the expiry property was written, or earlier
	acked   time.Time // when it was known to be
	late    bool      // the write took longer than writers are allowed
	// ruled says that its writer gave it no key: it has none, or the one of the adoption's rule. Former
	// is what the rule said before its writer extended it, and left a key that was there as it was.
	ruled  bool
	former time.Time
}

// agrees reports whether an adopted entity may have this key. One that is earlier than the rule is of
// an entity that was extended since: no sweep may go by it. One that is later was due already when the
// round of the adoption began, and is due from then on.
func (s state) agrees(key string, now time.Time) bool {
	k, err := expirykey.Parse(key)
	fits := func(at time.Time) bool {
		return k.Expires.Equal(at) || k.Expires.After(at) && !k.Expires.After(now)
	}
	return key == "" || err == nil && (fits(s.expiry.at) || !s.former.IsZero() && fits(s.former))
}

// expired reports whether the entity may be gone.
func (s state) expired(now time.Time) bool {
	return s.present && !s.expiry.at.IsZero() && !now.Before(s.expiry.at)
}

// A found is an entity as it was read; nil if it does not exist.
type found struct {
	body, expiry string
}

func (f *found) String() string {
	if f == nil {
		return "absent"
	}
	return fmt.Sprintf("%s, %.60q", f.expiry, f.body)
}

// A slot is one id and what the oracle knows of it. Only one writer writes to it.
type slot struct {
	kind, id string
	target   string

	mu      sync.Mutex
	version int  // rises with each change of what follows
	busy    bool // a write is under way
	told    bool // that the audit moved it
	given   bool // the outcome of a write could not be found out: nothing is claimed
	adopted int  // the version that was seen with the key of an adoption
	state   state
	history []string
}

const historyLength = 14

// note adds a line to the slot's history. The caller holds mu.
func (s *slot) note(format string, args ...any) {
	if len(s.history) >= historyLength {
		s.history = slices.Delete(s.history, 0, 1)
	}
	s.history = append(s.history, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// say adds a line to the slot's history.
func (s *slot) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(format, args...)
}

// begin marks the slot as being written to, and returns what is known of it.
func (s *slot) begin() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = true
	s.version++
	return s.state
}

// end records the outcome of the write.
func (s *slot) end(to state, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	s.version++
	s.state = to
	s.note("%s: %s", what, to)
}

func (s state) String() string {
	if !s.present {
		return "absent"
	}
	return (&found{s.body, s.expiry.text}).String()
}

// A view is what the oracle knew of a slot at one time.
type view struct {
	slot    *slot
	version int
	state   state
	sound   bool // no write was under way
}

func (s *slot) look() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{s, s.version, s.state, !s.busy && !s.given}
}

// gone records that the entity expired and is gone, unless it was written to meanwhile. It
// returns 1 if it did so.
func (s *slot) gone(version int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version != version || s.busy {
		return 0
	}
	s.version++
	s.state = state{}
	s.note("expired, and gone")
	return 1
}

// adoptedOnce returns 1 the first time that a version was seen with the key of an adoption.
func (s *slot) adoptedOnce(version int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.adopted == version {
		return 0
	}
	s.adopted = version
	return 1
}

// A known is what is known of a target's records, read before an entity was.
type known struct {
	at      time.Time // before they were read
	cursors cursor.Table
	record  generation.Record
}

// An observation is what the oracle made of one read.
type observation struct {
	wrong   string // which invariant is broken, and how; empty where none is
	gone    bool   // it expired, and is gone
	carried bool   // its expiry key is another one than was written, for the same instant
	moved   bool   // and that is one of the nursery's: the audit found it where nothing should be
	stray   bool   // it lies in a generation that has retired
	adopted bool   // it has a key that its writer did not give it
}

// judge compares what was read with the state that the entity had while it was
// read. The read had ended at the given time.
func judge(s state, got *found, ended time.Time, target string, k known) (o observation) {
	switch {
	case !s.present && got != nil:
		o.wrong = fmt.Sprintf("it was deleted, and is back: %s", got)
	case !s.present:
	case got == nil && !s.expired(ended):
		o.wrong = "S1: it is live, and gone"
	case got == nil:
		o.gone = true
	case got.body != s.body:
		o.wrong = fmt.Sprintf("S2: it was %q and is %q", s.body, got.body)
	case s.ruled && !s.agrees(got.expiry, ended):
		o.wrong = fmt.Sprintf("M1: by the rule it expires at %s, and its key is %s", formatInstant(s.expiry.at), got.expiry)
	case s.ruled:
		o.adopted, o.stray = got.expiry != "", stray(got.expiry, k.record)
	case got.expiry == s.expiry.text:
		if s.late {
			break // it may lie behind the cursor
		}
		if closed := stampedClosed(s, k.record); closed != "" {
			o.wrong = "L4: " + closed
		}
		if past := passedBy(s, target, k); past != "" {
			o.wrong = "L2: the cursor " + past + " stands past it"
		}
		o.stray = stray(got.expiry, k.record)
	case !sameInstant(got.expiry, s.expiry.text):
		o.wrong = fmt.Sprintf("S2: its expiry was %s and is %s", s.expiry.text, got.expiry)
	default:
		o.carried, o.moved = true, strings.HasPrefix(got.expiry, "00000000.")
		o.stray = stray(got.expiry, k.record)
	}
	return o
}

// sameInstant reports whether two expiry keys are of one instant.
func sameInstant(a, b string) bool {
	x, err := expirykey.Parse(a)
	y, err2 := expirykey.Parse(b)
	return err == nil && err2 == nil && x.Expires.Equal(y.Expires)
}

// stampedClosed says what is wrong if an entity was stamped with a generation that no
// writer could still take for open.
func stampedClosed(s state, r generation.Record) string {
	k, err := expirykey.Parse(s.expiry.text)
	if err != nil {
		return ""
	}
	for i, g := range r.Generations {
		if sealed := r.SealedAt(i, 0); g.Number == k.Generation && !sealed.IsZero() && s.stamped.After(sealed.Add(-g.Slack)) {
			return fmt.Sprintf("it was stamped at %v, and the generation was closed at %v", s.stamped.UTC(), g.Closed)
		}
	}
	return ""
}

// stray reports whether an expiry key lies in a generation that has retired.
func stray(key string, r generation.Record) bool {
	k, err := expirykey.Parse(key)
	return err == nil && retired(k.Generation, r)
}

// retired reports whether a generation has retired.
func retired(number int, r generation.Record) bool {
	if number == expirykey.Nursery || len(r.Generations) == 0 || number > r.Generations[len(r.Generations)-1].Number {
		return false
	}
	return !slices.ContainsFunc(r.Generations, func(g generation.Generation) bool { return g.Number == number })
}

// passedBy returns a cursor that is past the entity and must not be: the entity existed,
// and was not due, when the cursor moved there. An entity that was written after it expired
// may be behind a cursor; the next read from the start finds it.
func passedBy(s state, target string, k known) string {
	if s.expiry.at.IsZero() || !s.acked.Before(s.expiry.at) {
		return ""
	}
	id := cursor.ID{Target: target, Shard: "0000"} // of timestamps
	value := store.TextValue(s.expiry.text)
	if key, err := expirykey.Parse(s.expiry.text); err == nil {
		id.Generation, id.Shard = key.Generation, fmt.Sprintf("%04d", key.Shard)
	} else {
		value = store.InstantValue(s.expiry.at)
	}
	c, ok := k.cursors.At(id)
	if !ok || c.Position.Value.Type != value.Type || c.Position.Value.Compare(value) <= 0 {
		return ""
	}
	return fmt.Sprintf("%s (at %v%s, token %d, revision %s)", c.Key(), c.Position.Value.Text, strings.TrimPrefix(c.Position.Value.Time.Format(time.RFC3339Nano), "0001-01-01T00:00:00Z"), c.Lease.Token, c.Revision)
}

// among returns what is wrong if an entity, as it was read, matches none of the
// candidates: its state before, and the states that writes with an unknown outcome
// may have left.
func among(candidates []state, got *found, now time.Time) string {
	var all []string
	for _, c := range candidates {
		all = append(all, c.String())
		if got == nil && (!c.present || c.expired(now)) {
			return ""
		}
		if got != nil && c.present && c.ruled && got.body == c.body && c.agrees(got.expiry, now) {
			return ""
		}
		if got != nil && c.present && !c.ruled && got.body == c.body && (got.expiry == c.expiry.text || sameInstant(got.expiry, c.expiry.text)) {
			return ""
		}
	}
	return fmt.Sprintf("S1/S2: it is %s, and can only be: %s", got, strings.Join(all, "; or "))
}
