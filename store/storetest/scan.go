package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

var scanCases = []testCase{
	{name: "EmptyTargetHasNoEntries", run: emptyTarget},
	{name: "ScanOrdersByValue", run: ordersByValue},
	{name: "ScanOrdersTiesByKey", run: ordersTies},
	{name: "BoundsAreInclusive", run: bounds},
	{name: "HorizonIsInclusive", run: horizon},
	{name: "LimitIsRespected", run: limit},
	{name: "PagesContinue", run: pagesContinue},
	{name: "PositionResumesWithinTies", run: resumesWithinTies},
	{name: "PositionWithoutKeyIsBeforeItsValue", run: positionWithoutKey},
	{name: "IDsMayHoldAnyLegalCharacter", run: oddIDs},
	{name: "MalformedShowsAsItIs", run: malformedShows},
	{name: "ListShowsOnceForEachElement", run: listShows},
	{name: "InstantsKeepTheirMicroseconds", run: instants},
	{name: "OtherPropertyShowsNothing", run: otherProperty},
	{name: "StepsAreCounted", run: steps, fresh: true},
}

func emptyTarget(w *world) {
	w.shows("in a kind that nobody wrote to")
	var page store.Page
	w.retry("scan", func() error { return w.store.Scan(w.ctx, w.all(), &page) })
	if page.More {
		w.Errorf("there is more after the only page of an empty target")
	}
}

func ordersByValue(w *world) {
	var put []store.Entity
	for n, i := range []int{5, 86_400_000, 0, 3, -1, 4, 1, -86_400_000} {
		put = append(put, named(fmt.Sprintf("n%d", n), key(i)))
	}
	w.put(put...)
	want := texts(put...)
	slices.Sort(want)
	w.shows("in order", want...)
}

// keysOf returns the keys' texts of entities, which it writes.
func (w *world) keysOf(entities ...store.Entity) []string {
	w.Helper()
	put := slices.Clone(entities)
	for i := range put {
		put[i].Expiry = key(i)
	}
	w.put(put...)
	return keys(w.find(len(put)))
}

func ordersTies(w *world) {
	at := key(7)
	var numbers, names []store.Entity
	for _, id := range []int64{300, 20, 1, 1 << 60} {
		numbers = append(numbers, numbered(id, at))
	}
	for _, id := range []string{"b", "a", "ab", "B", "é", "10", "2"} {
		names = append(names, named(id, at))
	}
	slices.SortFunc(numbers, func(a, b store.Entity) int { return int((a.Number - b.Number) >> 1) })
	slices.SortFunc(names, func(a, b store.Entity) int { return strings.Compare(a.Name, b.Name) })
	tied := append(slices.Clone(numbers), names...)
	known := w.keysOf(tied...)
	slices.Reverse(tied)
	w.put(tied...)
	got := keys(w.scan(w.all(), false))
	if w.caps.NumbersFirst && w.caps.OrdersByBytes {
		w.same("keys at one value, numbers first, then names bytewise", got, known)
		return
	}
	again := keys(w.scan(w.all(), false))
	w.same("keys at one value, scanned again", again, got)
	sorted := slices.Sorted(slices.Values(got))
	slices.Sort(known)
	w.same("keys at one value, sorted", sorted, known)
}

func bounds(w *world) {
	put := w.row(5)
	q := w.all()
	q.Lo, q.Hi = put[1].Expiry, put[3].Expiry
	w.same("from the second to the fourth", values(w.scan(q, false)), texts(put[1:4]...))
	q.Lo, q.Hi = put[2].Expiry, put[2].Expiry
	w.same("the third alone", values(w.scan(q, false)), texts(put[2]))
	q.Lo, q.Hi = put[3].Expiry, put[1].Expiry
	w.same("from the fourth to the second", values(w.scan(q, false)), []string{})
}

func horizon(w *world) {
	put := w.row(4)
	last, ok := expirykey.UpTo(1, 0, noon.Add(2*time.Millisecond))
	if !ok {
		w.Fatalf("no expiry key is at or before the horizon")
	}
	q := w.all()
	q.Hi = store.TextValue(last)
	w.same("due at noon + 2 ms", values(w.scan(q, false)), texts(put[:3]...))
}

func limit(w *world) {
	put := w.row(7)
	for _, n := range []int{1, 3, 6, 7, 8, store.MaxPage} {
		q := w.all()
		q.Limit = n
		var page store.Page
		w.retry("scan", func() error { return w.store.Scan(w.ctx, q, &page) })
		if len(page.Entries) > n {
			w.Errorf("limit %d: %d entries", n, len(page.Entries))
		}
		if len(page.Entries) < len(put) && !page.More {
			w.Errorf("limit %d: %d of %d entries, and no more", n, len(page.Entries), len(put))
		}
		w.same(fmt.Sprintf("all pages with limit %d", n), values(w.scan(q, false)), texts(put...))
	}
}

func pagesContinue(w *world) {
	put := w.row(25)
	for _, positions := range []bool{false, true} {
		for _, n := range []int{1, 4, 5} {
			q := w.all()
			q.Limit = n
			w.same(fmt.Sprintf("pages of %d, by position: %v", n, positions), values(w.scan(q, positions)), texts(put...))
		}
	}
}

func resumesWithinTies(w *world) {
	tied := w.size(1200, 250)
	var put []store.Entity
	for i := range tied {
		if i%2 == 0 {
			put = append(put, numbered(int64(i)+1, key(0)))
		} else {
			put = append(put, named(fmt.Sprintf("t-%04d", i), key(0)))
		}
	}
	for i := 1; i <= 5; i++ {
		put = append(put, named(fmt.Sprintf("before-%d", i), key(-i)), named(fmt.Sprintf("after-%d", i), key(i)))
	}
	w.put(put...)
	q := w.all()
	q.Limit = 100
	got := w.scan(q, true)
	if len(got) != len(put) {
		w.Errorf("found %d entries, not %d", len(got), len(put))
	}
	seen := slices.Sorted(slices.Values(keys(got)))
	if unique := slices.Compact(slices.Clone(seen)); len(unique) != len(seen) {
		w.Errorf("%d entries came more than once", len(seen)-len(unique))
	}
	if !slices.IsSorted(values(got)) {
		w.Errorf("the values are not in order")
	}
}

func positionWithoutKey(w *world) {
	put := w.row(5)
	q := w.all()
	q.After = store.Position{Value: put[2].Expiry}
	w.same("after the place before the third", values(w.scan(q, true)), texts(put[2:]...))
	between := put[2].Expiry
	between.Text += "0"
	q.After = store.Position{Value: between}
	w.same("after a place that no entry has", values(w.scan(q, true)), texts(put[3:]...))
	q.After = store.Position{Value: key(-1)}
	q.Lo = put[1].Expiry
	w.same("after a place before the lower bound", values(w.scan(q, true)), texts(put[1:]...))
}

// oddNames are legal in every store.
var oddNames = []string{
	"plain", "with space", ` leading`, `quo"te`, `'single'`, "back\\slash", `\"`, "dot.dot", "per%cent", "%2F", "a,b;c:d",
	"ünï", "日本語", "😀", "e\u0301", "\u00a0", "-", "0", "007", "12", "9223372036854775807", "<a&b>", "[x]", "{y}", "~", "=",
	"#", "?", "__a", strings.Repeat("x", 1500), strings.Repeat("é", 750),
}

func oddIDs(w *world) {
	var put []store.Entity
	for i, name := range oddNames {
		put = append(put, named(name, key(i)))
	}
	for i, id := range []int64{12, 1, 7, 9223372036854775807} {
		put = append(put, numbered(id, key(len(oddNames)+i)))
	}
	w.put(put...)
	for _, positions := range []bool{false, true} {
		q := w.all()
		q.Limit = 1
		w.same("one by one", values(w.scan(q, positions)), texts(put...))
	}
	found := w.find(len(put))
	unique := slices.Sorted(slices.Values(keys(found)))
	if n := len(slices.Compact(unique)); n != len(put) {
		w.Errorf("%d entities have %d different keys", len(put), n)
	}
	var odd []store.Entry
	var rest []store.Entity
	for i, e := range found {
		if i%2 == 1 {
			odd = append(odd, e)
		} else {
			rest = append(rest, put[i])
		}
	}
	for i, op := range w.dispose(odd...) {
		if op.Outcome != store.Deleted {
			w.Errorf("%s is %s", odd[i].Key, outcome(op.Outcome))
		}
	}
	w.shows("after every other one was deleted", texts(rest...)...)
	// At one value the position has to tell the ids apart, too.
	for i := range put {
		put[i].Expiry = key(0)
	}
	w.put(put...)
	q := w.all()
	q.Limit = 3
	if got := slices.Compact(slices.Sorted(slices.Values(keys(w.scan(q, true))))); len(got) != len(put) {
		w.Errorf("at one value %d of %d ids were met", len(got), len(put))
	}
}

// malformed are values that no target has, by name.
func malformed() map[string]store.Value {
	return map[string]store.Value{
		"garbage": store.TextValue("00000001.0000.yesterday"),
		"short":   store.TextValue("00000001.0000.20261121"),
		"empty":   store.TextValue(""),
		"integer": {Type: store.Other, Text: "20261121"},
		"float":   {Type: store.Other, Text: "1.5"},
		"bool":    {Type: store.Other, Text: "true"},
		"null":    {Type: store.Other, Text: "null"},
		"missing": {},
		"instant": {Type: store.Instant, Time: noon},
	}
}

func malformedShows(w *world) {
	put := []store.Entity{named("fine", key(0))}
	for name, v := range malformed() {
		put = append(put, named(name, v))
	}
	w.put(put...)
	// Only strings lie between two strings, and these two lie in the range.
	got := w.scan(w.all(), false)
	w.same("between two strings", values(got), []string{"00000001.0000.20261121", key(0).Text, "00000001.0000.yesterday"})
	for _, e := range got {
		if e.Value.Type != store.Text {
			w.Errorf("%s shows a value of type %d, not a string", e.Key, e.Value.Type)
		}
	}
}

func listShows(w *world) {
	list := fmt.Sprintf("[%q,%q,%q]", key(1).Text, key(3).Text, key(900).Text)
	w.put(named("list", store.Value{Type: store.List, Text: list}), named("p0", key(0)), named("p2", key(2)),
		named("p4", key(4)))
	q := w.all()
	q.Hi = key(500)
	q.Limit = 1
	for _, positions := range []bool{false, true} {
		got := w.scan(q, positions)
		if w.caps.ListsApart {
			w.same("plain values, with a list", values(got), texts(named("", key(0)), named("", key(2)), named("", key(4))))
			continue
		}
		w.same("plain values and elements of a list", values(got),
			texts(named("", key(0)), named("", key(1)), named("", key(2)), named("", key(3)), named("", key(4))))
		for i, e := range got {
			if isList := e.Value.Type == store.List; w.caps.ListsInIndex && isList != (i%2 == 1) {
				w.Errorf("entry %d of %s shows type %d", i, e.Key, e.Value.Type)
			}
		}
	}
}

func instants(w *world) {
	w.instants()
	at := func(d time.Duration) store.Value { return store.Value{Type: store.Instant, Time: noon.Add(d)} }
	var put []store.Entity
	for i, d := range []time.Duration{-time.Hour, -time.Microsecond, 0, time.Microsecond, time.Hour} {
		put = append(put, named(fmt.Sprintf("i%d", 9-i), at(d)))
	}
	w.put(put...)
	q := store.Query{Target: w.target, Namespace: w.ns, Lo: at(-time.Minute), Hi: at(0), Limit: 1}
	for _, positions := range []bool{false, true} {
		var got, want []string
		for _, e := range w.scan(q, positions) {
			if e.Value.Type != store.Instant {
				w.Errorf("%s shows a value of type %d, not an instant", e.Key, e.Value.Type)
			}
			got = append(got, e.Value.Time.UTC().Format(store.TimeLayout))
		}
		for _, e := range put[1:3] {
			want = append(want, e.Expiry.Time.Format(store.TimeLayout))
		}
		w.same("what expired in the last minute", got, want)
	}
	b := w.batch(q, w.scan(q, false)...)
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	w.same("outcomes", outcomes(b.Ops), []string{"deleted", "deleted"})
	q.Lo, q.Hi = at(-24*time.Hour), at(24*time.Hour)
	if left := w.scan(q, false); len(left) != 3 {
		w.Errorf("%d entities are left, not 3", len(left))
	}
}

func otherProperty(w *world) {
	w.row(3)
	q := w.all()
	q.Target.Property = "misspelt"
	w.same("under another property", values(w.scan(q, false)), []string{})
}

func steps(w *world) {
	n := w.size(300, 60)
	w.row(n + 20)
	found := w.find(n + 20)
	w.dispose(found[:n]...)
	var page store.Page
	w.retry("scan", func() error { return w.store.Scan(w.ctx, w.all(), &page) })
	fromStart := page.SteppedOver
	q := w.all()
	q.After = found[n-1].Position()
	w.retry("scan", func() error { return w.store.Scan(w.ctx, q, &page) })
	fromThere := page.SteppedOver
	b := w.batch(q, page.Entries...)
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	if !w.caps.Steps {
		if fromStart != store.UnknownSteps || fromThere != store.UnknownSteps || b.SteppedOver != store.UnknownSteps {
			w.Errorf("steps of a store that cannot tell: %d, %d and %d", fromStart, fromThere, b.SteppedOver)
		}
		return
	}
	if fromStart < int64(n) || fromStart > 3*int64(n) {
		w.Errorf("a scan from the start, over %d tombstones, stepped over %d points", n, fromStart)
	}
	if fromThere > 5 || fromThere < 0 || b.SteppedOver > 5 || b.SteppedOver < 0 {
		w.Errorf("beyond the tombstones a scan stepped over %d points and its check over %d", fromThere, b.SteppedOver)
	}
}
