package layout

import (
	"fmt"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Range is a span of one namespace's index that is swept on its own. It holds
// the expiry keys of one (generation, shard) or, in a form without generations, the values of
// one value of the target's shard property, or all values without one.
type Range struct {
	Namespace  string
	Generation int // of expiry keys
	Shard      int // of expiry keys
	Form       Form
	Value      store.Value // of the shard property
}

// ShardName returns the shard as it stands in keys and records.
func (r Range) ShardName() string {
	if r.Value.Type != store.Missing {
		return r.Value.Text
	}
	number := strconv.Itoa(r.Shard) // each plan asks for each name
	return "0000"[min(len("0000"), len(number)):] + number
}

// String names the range in errors.
func (r Range) String() string {
	s := forms[r.Form].name(r)
	if r.Value.Type != store.Missing {
		s = fmt.Sprintf("range of shard %q", r.Value.Text)
	}
	if r.Namespace != "" {
		s += "@" + r.Namespace
	}
	return s
}

// Lo returns the lowest value of the range. In a form that begins at the floor it is the
// floor's.
func (r Range) Lo(floor time.Time) store.Value { return forms[r.Form].lo(r, floor) }

// UpTo returns the highest value of the range that expires at or before t; ok
// is false where there can be none.
func (r Range) UpTo(t time.Time) (v store.Value, ok bool) { return forms[r.Form].upTo(r, t) }

// Resolution is the smallest difference between two instants of expiry.
func (r Range) Resolution() time.Duration { return forms[r.Form].resolution() }

// At returns the position before everything in the range that expires at t or
// later; before year 1 it is the range's start.
func (r Range) At(t time.Time) store.Position {
	v, ok := r.UpTo(t)
	if !ok {
		return store.Position{}
	}
	return store.Position{Value: v}
}

// Expires returns when an entry with this value expires. It fails for a value
// that is malformed.
func (r Range) Expires(v store.Value) (time.Time, error) { return r.Form.Expires(v) }

// Passed returns the last instant that a value in the range has passed: entries after it expire then or
// later, or are malformed. Ok is false for a value outside the range.
func (r Range) Passed(v store.Value) (t time.Time, ok bool) {
	if v.Type != r.Form.Type() {
		return time.Time{}, false
	}
	return forms[r.Form].passed(r, v)
}

// Gaps returns the spans of one namespace's index that lie outside all of the
// ranges, which are of one form: entries there carry the property, but no sweep reads them. In a
// form that begins at the floor, what expires before the floor lies there, too.
func Gaps(ranges []Range, floor time.Time) []store.Span {
	if len(ranges) == 0 {
		return Keys.gaps(nil, floor)
	}
	return ranges[0].Form.gaps(ranges, floor)
}

func (f Form) gaps(ranges []Range, floor time.Time) []store.Span { return forms[f].gaps(ranges, floor) }
