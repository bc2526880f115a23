package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

func counts(c Caps) string {
	if !c.Counter {
		return "the store does not count"
	}
	return ""
}

func dumps(c Caps) string {
	if !c.Dumper {
		return "the store does not dump"
	}
	return ""
}

func drops(c Caps) string {
	if !c.Dropper {
		return "the store does not drop"
	}
	return ""
}

var extraCases = []testCase{
	{name: "PutReplaces", run: putReplaces},
	{name: "PutIsAllOrNothing", run: putAllOrNothing},
	{name: "CountSpans", needs: counts, run: countSpans},
	{name: "CountIgnoresOthers", needs: counts, run: countIgnoresOthers},
	{name: "CountStopsAtItsBound", needs: counts, run: countStops},
	{name: "CountBillsWhatItCounts", needs: counts, run: countBills},
	{name: "HoldsAnything", needs: counts, run: holdsAnything},
	{name: "DumpYieldsWhatWasPut", needs: dumps, run: dumpYields},
	{name: "DumpCanBeLeft", needs: dumps, run: dumpCanBeLeft},
	{name: "KeyNamesTheEntity", needs: func(c Caps) string {
		if !c.Keyer {
			return "the store does not tell keys"
		}
		return ""
	}, run: keyNames},
	{name: "DropRefusesWhatIsAlive", needs: drops, run: dropRefuses},
	{name: "DropClosesASpan", needs: drops, run: dropCloses, last: true},
	{name: "BillsWhatItDoes", run: bills},
}

func putReplaces(w *world) {
	put := w.row(3)
	put[1].Expiry = key(500)
	w.put(put[1])
	w.shows("after a replacement", key(0).Text, key(2).Text, key(500).Text)
	put[1].Expiry = store.Value{}
	w.put(put[1])
	w.shows("after one that never expires", key(0).Text, key(2).Text)
	put[1].Expiry = store.Value{Type: store.List, Text: fmt.Sprintf("[%q,%q]", key(7).Text, key(8).Text)}
	w.put(put[1])
	if w.caps.ListsApart {
		w.shows("after a list", key(0).Text, key(2).Text)
	} else {
		w.shows("after a list", key(0).Text, key(2).Text, key(7).Text, key(8).Text)
	}
	put[1].Expiry = key(1)
	w.put(put[1])
	w.shows("at the end", key(0).Text, key(1).Text, key(2).Text)
}

func putAllOrNothing(w *world) {
	w.row(1)
	bad := map[string][]store.Entity{
		"the same name twice":   {named("a", key(5)), named("b", key(6)), named("a", key(7))},
		"the same number twice": {numbered(4, key(5)), numbered(4, key(6))},
		"no id":                 {named("a", key(5)), {Expiry: key(6)}},
		"a negative number":     {named("a", key(5)), numbered(-4, key(6))},
	}
	for what, entities := range bad {
		err := store.Retry(w.ctx, settleWithin, func() error { return w.writer.Put(w.ctx, w.target, w.ns, entities) })
		w.is("put with "+what, err, store.ErrInvalid)
	}
	w.shows("after puts that failed", key(0).Text)
}

func (w *world) count(s store.Span) int64 {
	w.Helper()
	return w.countTo(s, 0)
}

func (w *world) countTo(s store.Span, upTo int64) (n int64) {
	w.Helper()
	w.retry("count", func() (err error) {
		n, err = w.store.(store.Counter).Count(w.ctx, w.target, w.ns, s, upTo)
		return err
	})
	return n
}

// stops checks counts with bounds around a span's number of entries. Neither zero
// nor what is less is a bound.
func (w *world) stops(what string, s store.Span, entries int64) {
	w.Helper()
	bounds := []int64{-1, 0, 1, entries - 1, entries, entries + 1, 1_000_000}
	slices.Sort(bounds)
	for _, upTo := range slices.Compact(bounds) {
		want := entries
		if upTo > 0 {
			want = min(entries, upTo)
		}
		if n := w.countTo(s, upTo); n != want {
			w.Errorf("%s, up to %d: %d, not %d", what, upTo, n, want)
		}
	}
}

func countSpans(w *world) {
	w.row(20)
	lo, hi := expirykey.Range(1, 0)
	w.put(named("nursery", store.TextValue("00000000.0000.20261121T000730.855Z")),
		named("after", store.TextValue("zebra")),
		named("integer", store.Value{Type: store.Other, Text: "7"}),
		named("bool", store.Value{Type: store.Other, Text: "false"}),
		named("instant", store.Value{Type: store.Instant, Time: noon}),
		named("null", store.Value{Type: store.Other, Text: "null"}), named("missing", store.Value{}))
	for _, c := range []struct {
		what     string
		from, to string
		want     int64
	}{
		{"the range", lo, hi, 20},
		{"from the sixth to before the tenth", key(5).Text, key(9).Text, 4},
		{"below the range, of any type", "", lo, 4},
		{"from the range's end on", hi, "", 1},
		{"everything", "", "", 25},
		{"nothing", hi, hi, 0},
	} {
		if n := w.count(store.Between(c.from, c.to)); n != c.want {
			w.Errorf("%s: %d, not %d", c.what, n, c.want)
		}
	}
	w.dispose(w.scan(w.all(), false)[:15]...)
	if n := w.count(store.Between(lo, hi)); n != 5 {
		w.Errorf("the range after 15 were deleted: %d, not 5", n)
	}
}

func countIgnoresOthers(w *world) {
	w.row(3)
	w.other().row(4)
	if n := w.count(store.Span{}); n != 3 {
		w.Errorf("%d, not 3, where another kind has 4", n)
	}
	w.target.Property = "misspelt"
	if n := w.count(store.Span{}); n != 0 {
		w.Errorf("%d under a property that nobody wrote", n)
	}
}

func countStops(w *world) {
	w.row(20)
	lo, hi := expirykey.Range(1, 0)
	w.put(named("integer", store.Value{Type: store.Other, Text: "7"}), named("after", store.TextValue("zebra")),
		named("null", store.Value{Type: store.Other, Text: "null"}), named("missing", store.Value{}))
	w.stops("the range", store.Between(lo, hi), 20)
	w.stops("from the sixth to before the tenth", store.Between(key(5).Text, key(9).Text), 4)
	w.stops("below the range", store.Between("", lo), 1)
	w.stops("everything", store.Span{}, 22)
	w.stops("nothing", store.Between(hi, hi), 0)
	w.other().stops("a kind without entities", store.Span{}, 0)
}

func countBills(w *world) {
	n := int64(w.size(1001, 20)) // one read is for a thousand
	w.row(int(n))
	lo, hi := expirykey.Range(1, 0)
	for _, c := range []struct {
		span        store.Span
		upTo, reads int64
	}{
		{store.Span{}, 0, (n + 999) / 1000},
		{store.Span{}, n, (n + 999) / 1000},
		{store.Span{}, n - 1, (n + 998) / 1000},
		{store.Between(lo, hi), 1, 1},
		{store.Between(hi, hi), 0, 1},
		{store.Between(hi, hi), 5, 1},
	} {
		want := store.Operations{Reads: c.reads}
		if o := w.spent(func(m *world) { m.countTo(c.span, c.upTo) }); o != want {
			w.Errorf("count of %+v up to %d billed %+v, not %+v", c.span, c.upTo, o, want)
		}
	}
}

func (w *world) anything() (holds bool) {
	w.Helper()
	w.retry("holds", func() (err error) {
		holds, err = w.store.(store.Counter).Holds(w.ctx, w.target, w.ns)
		return err
	})
	return holds
}

func holdsAnything(w *world) {
	w.other().row(1)
	if w.anything() {
		w.Errorf("an empty kind is said to hold something")
	}
	w.put(named("never", store.Value{}))
	w.target.Property = "misspelt"
	if !w.anything() {
		w.Errorf("an entity without the property is not seen")
	}
	if !w.other().anything() {
		w.Errorf("the other kind is said to be empty")
	}
}

func dumpYields(w *world) {
	want := []store.Entity{numbered(3, key(9)), numbered(20, key(8)), numbered(100, store.Value{}),
		named("B", key(7)), named("a", store.Value{Type: store.Other, Text: "5"}), named("ab", store.TextValue("garbage")),
		{Name: "z", Expiry: key(2), Data: []byte(`{"n":12345678901,"s":"x","t":true,"deep":{"a":[1,2]}}`)},
		named("ü \" %", key(3))}
	scrambled := slices.Clone(want)
	slices.Reverse(scrambled)
	w.put(scrambled...)
	w.other().row(1)
	i := 0
	for e, err := range w.store.(store.Dumper).Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		if i == len(want) {
			w.Fatalf("the dump has more than the %d entities that were put: %+v", len(want), e)
		}
		if e.Name != want[i].Name || e.Number != want[i].Number || e.Expiry != want[i].Expiry || e.Namespace != w.ns {
			w.Errorf("entity %d is %+v, not %+v", i, e, want[i])
		}
		if got, want := canonical(w, e.Data), canonical(w, want[i].Data); got != want {
			w.Errorf("the data of entity %d is %s, not %s", i, got, want)
		}
		i++
	}
	if i != len(want) {
		w.Errorf("the dump has %d entities, not %d", i, len(want))
	}
}

func canonical(w *world, data []byte) string {
	if data == nil {
		return "{}"
	}
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		w.Errorf("the data %s is no JSON object: %v", data, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		w.Errorf("the data %s: %v", data, err)
	}
	return string(b)
}

func dumpCanBeLeft(w *world) {
	n := w.size(1100, 150) // usually more than any driver reads at once
	var put []store.Entity
	for i := range n {
		put = append(put, named(fmt.Sprintf("d-%05d", i), key(i)))
	}
	w.put(put...)
	dumper := w.store.(store.Dumper)
	for _, err := range dumper.Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		break
	}
	seen := 0
	for e, err := range dumper.Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		if e.Name != put[seen].Name {
			w.Fatalf("entity %d is %s, not %s", seen, e.Name, put[seen].Name)
		}
		if seen++; seen == n {
			break
		}
	}
	if seen != n {
		w.Errorf("the dump has %d entities, not %d", seen, n)
	}
}

func keyNames(w *world) {
	var put []store.Entity
	for i, name := range oddNames {
		put = append(put, named(name, key(i)))
	}
	for i, id := range []int64{12, 1, 9223372036854775807} {
		put = append(put, numbered(id, key(len(oddNames)+i)))
	}
	w.put(put...)
	for i, e := range w.find(len(put)) {
		got, err := w.store.(store.Keyer).Key(w.target, w.ns, put[i])
		if err != nil || got != e.Key {
			w.Errorf("the key of %q %d is said to be %s, %v; a scan shows %s", put[i].Name, put[i].Number, got, err, e.Key)
		}
		want := put[i].Name
		if want == "" {
			want = strconv.FormatInt(put[i].Number, 10)
		}
		if id, err := w.store.(store.Keyer).ID(e.Key); err != nil || id != want {
			w.Errorf("the id in the key %s is said to be %q, %v; want %q", e.Key, id, err, want)
		}
	}
	if got, err := w.store.(store.Keyer).Key(w.target, w.ns, store.Entity{}); err == nil {
		w.Errorf("an entity without an id is said to have the key %s", got)
	}
}

func (w *world) drop(from, to string) error {
	return store.Retry(w.ctx, settleWithin, func() error {
		return w.store.(store.Dropper).Drop(w.ctx, w.target, from, to)
	})
}

func (w *world) droppedUpTo(when, want string) {
	w.Helper()
	got, err := w.store.(store.Dropper).Dropped(w.ctx, w.target)
	if err != nil || got != want {
		w.Errorf("%s: dropped up to %q, %v; want %q", when, got, err, want)
	}
}

func dropRefuses(w *world) {
	put := w.row(30)
	lo, hi := expirykey.GenerationRange(1)
	w.dispose(w.find(30)[:29]...)
	w.is("drop of a span with one entry", w.drop(lo, hi), store.ErrConflict)
	w.shows("afterwards", put[29].Expiry.Text)
	w.put(put[0]) // the span must still be open
	w.shows("at the end", put[0].Expiry.Text, put[29].Expiry.Text)
}

func dropCloses(w *world) {
	put := w.row(30)
	lo, hi := expirykey.GenerationRange(1)
	garbage := named("garbage", store.TextValue(lo+"garbage"))
	next := named("next", store.TextValue("00000002.0000.20261121T000730.855Z"))
	list := named("list", store.Value{Type: store.List, Text: fmt.Sprintf("[%q]", key(9).Text)})
	other := w.other()
	others := other.row(2)
	w.put(garbage, next, list)
	w.dispose(w.find(31)[:9]...) // up to the list, which has the place of the tenth
	for _, e := range w.scan(w.all(), false) {
		w.settle(e, verdictUnless(e.Value.Text == garbage.Expiry.Text || e.Value.Type == store.List))
	}
	w.put(list) // whether or not a scan can tell that it is one
	w.droppedUpTo("before the drop", "")
	if err := w.drop(lo, hi); err != nil {
		w.Fatalf("drop of a span without a well-formed entry: %v", err)
	}
	w.droppedUpTo("after the drop", hi)
	w.shows("after the drop", key(9).Text)
	everything := w.all()
	everything.Lo, everything.Hi = store.TextValue(""), store.TextValue("z")
	w.same("with what is malformed, and the next generation", values(w.scan(everything, false)),
		[]string{key(9).Text, garbage.Expiry.Text, next.Expiry.Text})
	w.is("put into the span", w.writer.Put(w.ctx, w.target, w.ns, put[3:4]), store.ErrInvalid)
	w.put(named("later", store.TextValue("00000002.0001.20261121T000730.855Z")))
	other.put(others...)
	other.shows("in the other kind", texts(others...)...)
	if err := w.drop(lo, hi); err != nil {
		w.Errorf("drop of a span that was dropped: %v", err)
	}
}

func verdictUnless(keep bool) store.Verdict {
	if keep {
		return store.Keep
	}
	return store.Delete
}

// spent returns what a call is billed, made on the world that it gets.
func (w *world) spent(call func(m *world)) store.Operations {
	meter := new(store.Meter)
	m := *w
	m.ctx = store.WithMeter(w.ctx, meter)
	call(&m)
	return meter.Operations()
}

func bills(w *world) {
	put := w.row(12)
	spent := func(what string, call func(m *world)) store.Operations {
		o := w.spent(call)
		w.Logf("%s: %+v", what, o)
		return o
	}
	var found []store.Entry
	scan := int64(1)
	if w.caps.BillsEntries {
		scan = 12
	}
	if o := spent("scan", func(m *world) { found = m.find(12) }); o.Reads != scan || o.Writes != 0 || o.Deletes != 0 {
		w.Errorf("a scan of one page billed %+v", o)
	}
	if o := spent("dispose", func(m *world) { m.dispose(found[:10]...) }); o.Deletes != 10 || o.Writes != 0 {
		w.Errorf("10 deletes billed %+v", o)
	}
	if o := spent("settle", func(m *world) { m.settle(found[10], store.Delete) }); o.Deletes != 1 ||
		o.Writes != 0 || o.Reads != 1 {
		w.Errorf("settling one entity billed %+v", o)
	}
	if o := spent("put", func(m *world) { m.put(put[:3]...) }); o.Writes != 3 || o.Deletes != 0 {
		w.Errorf("3 puts billed %+v", o)
	}
	if o := spent("save", func(m *world) { m.mustSave(m.record(store.CursorRecord, "c", ""), "") }); o.Writes != 1 ||
		o.Deletes != 0 {
		w.Errorf("one save billed %+v", o)
	}
	if o := spent("load", func(m *world) { m.load(store.CursorRecord) }); o.Reads < 1 || o.Writes != 0 || o.Deletes != 0 {
		w.Errorf("one load billed %+v", o)
	}
}
