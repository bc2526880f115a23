package layout

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// A Form is what the values of an expiry property are. Layouts may share one.
type Form uint8

// The forms.
const (
	Keys     Form = iota // expiry keys; their ranges are those of generations and shards
	Instants             // timestamps; they have a range for each value of the shard property, or one
)

// A form is how one Form works. Whatever depends on it is a method here.
type form interface {
	valueType() store.Type
	hasGenerations() bool
	holdsMalformed() bool
	beginsAtFloor() bool
	resolution() time.Duration
	expires(v store.Value) (time.Time, error)
	value(expires time.Time, stamp Stamp) (store.Value, error)
	name(r Range) string
	lo(r Range, floor time.Time) store.Value
	upTo(r Range, t time.Time) (store.Value, bool)
	passed(r Range, v store.Value) (time.Time, bool)
	gaps(ranges []Range, floor time.Time) []store.Span
	notOne(v store.Value) string
	emptyIndex() (message, outside string)
}

var forms = [...]form{Keys: keys{}, Instants: instants{}}

// The first and the last instant that the stores have.
var (
	FirstInstant = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	LastInstant  = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

// Type returns the store's type of a well-formed value.
func (f Form) Type() store.Type { return forms[f].valueType() }

// HasGenerations reports whether the ranges are those of generations and their shards, which
// the target record lists. Otherwise they are fixed: [Form.Ranges].
func (f Form) HasGenerations() bool { return forms[f].hasGenerations() }

// HoldsMalformed reports whether malformed values may lie in a range, among those that are expiries.
func (f Form) HoldsMalformed() bool { return forms[f].holdsMalformed() }

// BeginsAtFloor reports whether a range begins with the instant before which an expiry is
// implausible, so that suspects lie outside all ranges.
func (f Form) BeginsAtFloor() bool { return forms[f].beginsAtFloor() }

// Ranges lists the fixed ranges of a form without generations: one for each value of the shard
// property, or one if there are no values, in every namespace.
func (f Form) Ranges(values []store.Value, namespaces []string) (list []Range) {
	if len(values) == 0 {
		values = []store.Value{{}}
	}
	for _, ns := range namespaces {
		for _, v := range values {
			list = append(list, Range{Namespace: ns, Form: f, Value: v})
		}
	}
	return list
}

// Expires returns when an entity with this value expires. It fails for a value that is
// malformed.
func (f Form) Expires(v store.Value) (time.Time, error) {
	if want := f.Type(); v.Type != want {
		return time.Time{}, wrongType{v.Type, want}
	}
	return forms[f].expires(v)
}

// A wrongType is the error for a value of one type instead of another. Many callers only ask whether
// there is an expiry, of a position that has no value yet, so its text is not made before it is wanted.
type wrongType struct{ is, want store.Type }

func (e wrongType) Error() string {
	return fmt.Sprintf("%v: its type is %d, not %d", expirykey.ErrMalformed, e.is, e.want)
}

func (e wrongType) Unwrap() error { return expirykey.ErrMalformed }

// A Stamp returns the expiry key of an entity for its expiry.
type Stamp func(expires time.Time) (expirykey.Key, error)

// Value returns the value that says that an entity expires then. Only the form of keys stamps.
func (f Form) Value(expires time.Time, stamp Stamp) (store.Value, error) {
	return forms[f].value(expires, stamp)
}

// NotOne says for people what a malformed value is instead of an expiry.
func (f Form) NotOne(v store.Value) string {
	switch {
	case v.Type == store.List:
		return "a list"
	case v.Type != store.Text && v.Type != store.Instant:
		return "neither a text nor a timestamp"
	}
	return forms[f].notOne(v)
}

// EmptyIndex returns the warning about a target that holds entities but nothing in any range,
// and the log's name for the number of values outside.
func (f Form) EmptyIndex() (message, outside string) { return forms[f].emptyIndex() }

// keys are expiry keys.
type keys struct{}

func (keys) valueType() store.Type     { return store.Text }
func (keys) hasGenerations() bool      { return true }
func (keys) holdsMalformed() bool      { return true }
func (keys) beginsAtFloor() bool       { return false }
func (keys) resolution() time.Duration { return time.Millisecond }

func (keys) expires(v store.Value) (time.Time, error) {
	k, err := expirykey.Parse(v.Text)
	return k.Expires, err
}

func (keys) value(expires time.Time, stamp Stamp) (store.Value, error) {
	key, err := stamp(expires)
	return store.TextValue(key.String()), err
}

func (keys) name(r Range) string { return fmt.Sprintf("range %08d.%04d", r.Generation, r.Shard) }

func (keys) lo(r Range, _ time.Time) store.Value {
	lo, _ := expirykey.Range(r.Generation, r.Shard)
	return store.TextValue(lo)
}

func (keys) upTo(r Range, t time.Time) (store.Value, bool) {
	s, ok := expirykey.UpTo(r.Generation, r.Shard, t)
	return store.TextValue(s), ok
}

// passed finds a malformed text's place among the keys of the range, which sort by their instants.
func (keys) passed(r Range, v store.Value) (time.Time, bool) {
	if lo, hi := expirykey.Range(r.Generation, r.Shard); v.Text < lo || v.Text >= hi {
		return time.Time{}, false
	}
	if k, err := expirykey.Parse(v.Text); err == nil {
		return k.Expires, true
	}
	first, end := FirstInstant.UnixMilli(), LastInstant.UnixMilli()+1
	after := sort.Search(int(end-first), func(ms int) bool {
		return r.At(time.UnixMilli(first+int64(ms))).Value.Text > v.Text
	})
	return time.UnixMilli(first + max(0, int64(after)-1)).UTC(), true
}

func (keys) gaps(ranges []Range, _ time.Time) []store.Span {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Shard, b.Shard))
	})
	var gaps []store.Span
	from := ""
	for _, r := range sorted {
		lo, hi := expirykey.Range(r.Generation, r.Shard)
		if from < lo {
			gaps = append(gaps, store.Between(from, lo))
		}
		from = hi
	}
	return append(gaps, store.Between(from, ""))
}

func (keys) notOne(v store.Value) string {
	if v.Type == store.Text {
		return "no expiry key"
	}
	return "a timestamp, not an expiry key"
}

func (keys) emptyIndex() (message, outside string) {
	return "the target holds entities, but not one of them has an entry in any range: nothing will be deleted. " +
		"Check that the property is spelt as the writers spell it, that it is indexed, and that they stamp expiry keys; " +
		"ignore this if no entity is meant to expire", "outside"
}

// instants are timestamps. There, unlike among expiry keys, whatever somebody once stored for an
// instant lies at the low end of a range, which therefore begins with the floor.
type instants struct{}

func (instants) valueType() store.Type     { return store.Instant }
func (instants) hasGenerations() bool      { return false }
func (instants) holdsMalformed() bool      { return false }
func (instants) beginsAtFloor() bool       { return true }
func (instants) resolution() time.Duration { return time.Microsecond }

func (instants) expires(v store.Value) (time.Time, error) { return v.Time, nil }

// value rounds up, as expiry keys are: nothing expires before its time.
func (instants) value(expires time.Time, _ Stamp) (store.Value, error) {
	v := store.InstantValue(expires.Add(time.Microsecond - time.Nanosecond))
	if v.Time.Before(FirstInstant) || v.Time.After(LastInstant) {
		return v, fmt.Errorf("the year %d is not between 1 and 9999", v.Time.Year())
	}
	return v, nil
}

func (instants) name(Range) string { return "the range of all timestamps" }

func (instants) lo(_ Range, floor time.Time) store.Value {
	if floor.Before(FirstInstant) {
		floor = FirstInstant
	}
	return store.InstantValue(floor)
}

func (instants) upTo(_ Range, t time.Time) (store.Value, bool) {
	switch {
	case t.Before(FirstInstant):
		return store.Value{}, false
	case t.After(LastInstant):
		t = LastInstant
	}
	return store.InstantValue(t), true
}

func (instants) passed(_ Range, v store.Value) (time.Time, bool) { return v.Time, true }

func (instants) gaps(ranges []Range, floor time.Time) []store.Span {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int {
		m, whole := a.Value.Integer()
		n, _ := b.Value.Integer()
		if whole {
			return cmp.Compare(m, n)
		}
		return a.Value.Compare(b.Value)
	})
	var gaps []store.Span
	var from store.Point
	for _, r := range sorted {
		gaps = append(gaps, store.Span{From: from, To: store.Point{Shard: r.Value, Value: r.Lo(floor)}})
		from = store.Point{Shard: r.Value, Value: store.InstantValue(LastInstant), After: true}
	}
	return append(gaps, store.Span{From: from})
}

func (instants) notOne(store.Value) string { return "a text, not a timestamp" }

func (instants) emptyIndex() (message, outside string) {
	return "the target holds entities, but not one of them has a timestamp in the property: nothing will ever be " +
			"deleted. Check that the property is spelt as the writers spell it, that it is indexed, and that they store " +
			"timestamps, not texts or numbers; of a target with shards, also the shard property and its values",
		"of_another_type"
}
