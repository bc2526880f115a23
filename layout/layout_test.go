package layout_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

var at = time.Date(2026, 11, 21, 0, 7, 30, 855e6, time.UTC)

func Example() {
	floor := at.AddDate(-5, 0, 0)
	for _, l := range layout.All() {
		r := layout.Range{Generation: 1, Shard: 7}
		if !l.Form().HasGenerations() {
			r = l.Form().Ranges(nil, []string{""})[0]
		}
		hi, _ := r.UpTo(at)
		fmt.Printf("%s: %v from %q to %q\n", l, r, r.Lo(floor), hi)
	}
	// Output:
	// generation: range 00000001.0007 from "00000001.0007." to "00000001.0007.20261121T000730.855Z"
	// sharded: range 00000001.0007 from "00000001.0007." to "00000001.0007.20261121T000730.855Z"
	// sharded-timestamp: the range of all timestamps from "2021-11-21T00:07:30.855000Z" to "2026-11-21T00:07:30.855000Z"
	// timestamp: the range of all timestamps from "2021-11-21T00:07:30.855000Z" to "2026-11-21T00:07:30.855000Z"
}

// aRange returns a range of a form.
func aRange(f layout.Form) layout.Range {
	if f.HasGenerations() {
		return layout.Range{Form: f, Generation: 3, Shard: 7}
	}
	return f.Ranges([]store.Value{store.TextValue("x")}, []string{"ns"})[0]
}

// What a writer of a layout writes, its sweep reads: the same instant, in the range up to then and
// not in the range up to any instant before.
func TestValuesAreReadAsTheyAreWritten(t *testing.T) {
	for _, l := range layout.All() {
		f, r := l.Form(), aRange(l.Form())
		stamp := func(at time.Time) (expirykey.Key, error) { return expirykey.New(r.Generation, r.Shard, at) }
		for _, want := range []time.Time{at, layout.FirstInstant.AddDate(1, 0, 0), layout.LastInstant.AddDate(-1, 0, 0).Truncate(time.Millisecond)} {
			v, err := f.Value(want, stamp)
			if err != nil || v.Type != f.Type() {
				t.Fatalf("%s: %v, type %d, %v", l, v, v.Type, err)
			}
			if got, err := f.Expires(v); err != nil || !got.Equal(want) {
				t.Errorf("%s: %v was written as %v, which reads as %v, %v", l, want, v, got, err)
			}
			lo, hi := r.Lo(layout.FirstInstant), upTo(t, r, want)
			if v.Compare(lo) < 0 || v.Compare(hi) > 0 {
				t.Errorf("%s: %v is not in [%v, %v]", l, v, lo, hi)
			}
			if before := upTo(t, r, want.Add(-r.Resolution())); v.Compare(before) <= 0 {
				t.Errorf("%s: %v is in the range up to %v", l, v, before)
			}
		}
		if _, err := f.Value(layout.LastInstant.Add(time.Microsecond), stamp); err == nil {
			t.Errorf("%s: the year 10000 was written", l)
		}
	}
}

func upTo(t *testing.T, r layout.Range, at time.Time) store.Value {
	t.Helper()
	v, ok := r.UpTo(at)
	if !ok {
		t.Fatalf("%v has nothing up to %v", r, at)
	}
	return v
}

// A position may lie anywhere among the values of its range, at malformed ones too.
func TestPassed(t *testing.T) {
	r := aRange(layout.Keys)
	key := upTo(t, r, at).Text
	prefix := expirykey.Prefix(r.Generation, r.Shard)
	for text, want := range map[string]time.Time{
		key:                 at,
		key + "x":           at,
		key[:len(key)-1]:    at.Add(-time.Millisecond), // without its Z
		prefix + "20261121": time.Date(2026, 11, 20, 23, 59, 59, 999e6, time.UTC),
		prefix:              layout.FirstInstant,
		prefix + "~":        layout.LastInstant.Truncate(time.Millisecond),
	} {
		if got, ok := r.Passed(store.TextValue(text)); !ok || !got.Equal(want) {
			t.Errorf("%q has passed %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "00000003.0006.~", "00000003.0008" + key[len(prefix)-1:]} {
		if got, ok := r.Passed(store.TextValue(text)); ok {
			t.Errorf("%q lies outside, and has passed %v", text, got)
		}
	}
	if _, ok := r.Passed(store.Value{}); ok {
		t.Error("no value has passed something")
	}
	if got, ok := aRange(layout.Instants).Passed(store.InstantValue(at)); !ok || !got.Equal(at) {
		t.Errorf("%v, %v", got, ok)
	}
}

// A value that is not an expiry is malformed in every layout, and people read what it is instead.
func TestMalformedValues(t *testing.T) {
	for _, l := range layout.All() {
		for _, v := range []store.Value{{Type: store.List, Text: "[]"}, store.IntegerValue(5), store.TextValue("tomorrow"),
			store.InstantValue(at)} {
			if v.Type == store.Instant && l.Form().Type() == store.Instant {
				continue
			}
			if _, err := l.Form().Expires(v); !errors.Is(err, expirykey.ErrMalformed) {
				t.Errorf("%s: %q: %v", l, v, err)
			}
			if l.Form().NotOne(v) == "" {
				t.Errorf("%s: nothing is said of %q", l, v)
			}
		}
	}
}

// Each layout has its row: a sample that sets what its target must have, and settings that are
// listed.
func TestRows(t *testing.T) {
	all := layout.All()
	if len(all) == 0 || all[0] != layout.Generation {
		t.Fatalf("the default of %v is not the layout generation", all)
	}
	for _, l := range all {
		if property := slices.ContainsFunc(l.Sample(), func(s string) bool { return s == "property: expires" }); property == (l.DefaultProperty() != "") {
			t.Errorf("%s: the default property is %q, and the sample %q", l, l.DefaultProperty(), l.Sample())
		}
		if l.HasSuccession() && !l.Form().HasGenerations() {
			t.Errorf("%s has a succession of generations, but none of its values names one", l)
		}
	}
	if got := layout.Settings(); !slices.Equal(got, []string{"shards", "generations", "shard_property", "shard_values"}) {
		t.Errorf("the settings of some layouts are %q", got)
	}
	if unknown := layout.Layout("hourly"); unknown.Uses("shards") || unknown.HasSuccession() || unknown.DefaultProperty() != "" {
		t.Error("a layout that does not exist has something")
	}
}
