package embedded

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// A model is what a store should hold: a map, and nothing clever.
type model map[string]store.Value

// closed are the spans that were dropped.
type closed [][2]string

// refuses reports whether the value lies in a span, or one of its elements does.
func (c closed) refuses(v store.Value) bool {
	for _, e := range (model{"x": v}).index() {
		for _, s := range c {
			if e.value.Type == store.Text && s[0] <= e.value.Text && e.value.Text < s[1] {
				return true
			}
		}
	}
	return false
}

// entry is one row of the model's index.
type entry struct {
	id    string
	value store.Value
	list  bool
}

// rank orders types as the package's documentation does.
func rank(v store.Value) int {
	switch {
	case v.Type == store.Text:
		return 5
	case v.Type == store.Instant:
		return 4
	case v.Text == "false":
		return 1
	case v.Text == "true":
		return 2
	case strings.ContainsAny(v.Text[:1], "-0123456789"):
		return 3
	}
	return 6
}

func compareValues(a, b store.Value) int {
	c := cmp.Compare(rank(a), rank(b))
	switch {
	case c != 0:
		return c
	case a.Type == store.Instant:
		return a.Time.Compare(b.Time)
	case rank(a) == 3:
		var x, y float64
		_, _ = fmt.Sscan(a.Text, &x)
		_, _ = fmt.Sscan(b.Text, &y)
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a.Text, b.Text))
	}
	return strings.Compare(a.Text, b.Text)
}

func compareModelIDs(a, b string) int {
	numA, numB := a[0] == '#', b[0] == '#'
	switch {
	case numA && numB:
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	case numA:
		return -1
	case numB:
		return 1
	}
	return strings.Compare(a, b)
}

// index lists the rows of the model in their order.
func (m model) index() []entry {
	var out []entry
	for id, v := range m {
		switch v.Type {
		case store.Missing:
		case store.List:
			var elements []json.RawMessage
			_ = json.Unmarshal([]byte(v.Text), &elements)
			seen := make(map[string]bool)
			for _, raw := range elements {
				e := store.Value{Type: store.Other, Text: string(raw)}
				if raw[0] == '"' {
					_ = json.Unmarshal(raw, &e.Text)
					e.Type = store.Text
				}
				if string(raw) != "null" && !seen[string(raw)] {
					out = append(out, entry{id, e, true})
				}
				seen[string(raw)] = true
			}
		default:
			out = append(out, entry{id, v, false})
		}
	}
	slices.SortFunc(out, func(a, b entry) int {
		return cmp.Or(compareValues(a.value, b.value), compareModelIDs(a.id, b.id))
	})
	return out
}

// The domains of the fuzzer are small, so that operations meet each other.
var fuzzIDs = []string{"#1", "#9", "#10", "a", "a\x00", "a\x00b", "b", `q"`, "ü", "é\\"}

var fuzzValues = []store.Value{
	{}, expiry(0), expiry(1), expiry(2), expiry(3), store.TextValue(""), store.TextValue("garbage"), store.TextValue("00000001.0000.\x00"),
	{Type: store.Other, Text: "true"}, {Type: store.Other, Text: "false"}, {Type: store.Other, Text: "-3"}, {Type: store.Other, Text: "7"},
	{Type: store.Other, Text: "7.5"}, {Type: store.Other, Text: "1e9"}, {Type: store.Other, Text: `{"a":1}`},
	{Type: store.Instant, Time: noon}, {Type: store.Instant, Time: noon.Add(-time.Microsecond)},
	{Type: store.List, Text: fmt.Sprintf(`[%q,%q]`, expiry(1).Text, expiry(2).Text)},
	{Type: store.List, Text: fmt.Sprintf(`[3,null,%q,%q,true,[1]]`, expiry(3).Text, expiry(3).Text)}, {Type: store.List, Text: "[]"},
	later(0), later(1),
}

// later is an expiry key of the next generation.
func later(i int) store.Value { return store.TextValue("00000002" + expiry(i).Text[8:]) }

var fuzzSpans = closed{{expiry(2).Text, expiry(3).Text}, {"00000002.0000.", "00000002.0000/"}, {"garbage", "garbage\x00"}, {"00000001.0000.\x00", "00000001.0000.1"}}

var fuzzRecords = []string{"sessions.1.0000", "é%2F", "x"}

func fuzzEntity(id string, v store.Value) store.Entity {
	e := store.Entity{Name: id, Expiry: v}
	if n, ok := strings.CutPrefix(id, "#"); ok {
		e.Name = ""
		_, _ = fmt.Sscan(n, &e.Number)
	}
	return e
}

func keyText(id string) string {
	e := fuzzEntity(id, store.Value{})
	enc, err := appendID(nil, e.Name, e.Number)
	if err != nil {
		panic(err)
	}
	text, err := appendKeyText(nil, enc)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// FuzzAgainstMap does what the bytes say to a store and to a map, and compares.
func FuzzAgainstMap(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add(bytes.Repeat([]byte{0, 3, 1, 0, 4, 2, 1, 0, 9, 2, 1, 1, 5, 0, 3, 3, 7, 4}, 20))
	f.Add(bytes.Repeat([]byte{0, 1, 17, 0, 4, 18, 0, 6, 1, 1, 255, 2, 0, 5, 1, 3, 1, 4, 5}, 12))
	f.Add(bytes.Repeat([]byte{0, 1, 1, 0, 2, 5, 2, 6, 7, 19, 255, 1, 8, 20, 7, 1, 9, 3, 19, 10, 1, 1, 7, 11, 0, 11, 4, 6, 1}, 6))
	f.Add(bytes.Repeat([]byte{10, 0, 1, 1, 10, 1, 2, 2, 10, 0, 3, 0, 10, 0, 7, 1, 10, 1, 5, 1, 6, 0, 11, 8, 0, 1, 6, 1, 6, 1}, 5))
	f.Fuzz(func(t *testing.T, script []byte) {
		fsys := vfs.NewCrashableMem()
		db := openIn(t, fsys)
		defer func() { closeDB(t, db) }()
		m := make(model)
		var shut closed
		records := make(map[string]store.Record)
		var stale []store.Entry // seen by an earlier scan
		next := func() int {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return int(b)
		}
		for step := 0; len(script) > 0 && step < 200; step++ {
			switch next() % 12 {
			case 0, 1:
				id, v := fuzzIDs[next()%len(fuzzIDs)], fuzzValues[next()%len(fuzzValues)]
				other := fuzzIDs[next()%len(fuzzIDs)]
				put := []store.Entity{fuzzEntity(id, v)}
				if other != id {
					put = append(put, fuzzEntity(other, fuzzValues[1]))
				}
				err := db.Put(t.Context(), sessions, "", put)
				if refused := shut.refuses(v); refused != errors.Is(err, store.ErrInvalid) || !refused && err != nil {
					t.Fatalf("put of %v with %v dropped: %v", v, shut, err)
				}
				if err == nil {
					m[other] = fuzzValues[1]
					m[id] = v
				}
			case 2:
				stale = scanAgainst(t, db, m, store.Value{}, store.Value{}, next()%7+1)
			case 3:
				lo, hi := fuzzValues[1+next()%16], fuzzValues[1+next()%16]
				scanAgainst(t, db, m, lo, hi, next()%3+1)
			case 4:
				disposeAgainst(t, db, m, stale, shut, store.Value{}, next(), next()%4 == 0)
			case 5:
				id := fuzzIDs[next()%len(fuzzIDs)]
				settleAgainst(t, db, m, id, shut, []store.Verdict{store.Delete, store.Keep}[next()%2])
			case 6:
				switch next() % 4 {
				case 0:
					closeDB(t, db)
					db = openIn(t, fsys)
				case 1: // what was flushed is there after a crash
					if err := db.Flush(); err != nil {
						t.Fatal(err)
					}
					fsys = fsys.CrashClone(vfs.CrashCloneCfg{})
					closeDB(t, db)
					db = openIn(t, fsys)
				}
			case 7, 8:
				to := fuzzValues[1+next()%(len(fuzzValues)-1)]
				disposeAgainst(t, db, m, stale, shut, to, next(), next()%4 == 0)
			case 9:
				id := fuzzIDs[next()%len(fuzzIDs)]
				settleAgainst(t, db, m, id, shut, store.CarryTo(fuzzValues[1+next()%(len(fuzzValues)-1)]))
			case 10:
				saveAgainst(t, db, records, fuzzRecords[next()%len(fuzzRecords)], next(), next())
			case 11:
				if pick := next(); pick%4 == 0 {
					shut = dropAgainst(t, db, m, shut, fuzzSpans[pick/4%len(fuzzSpans)])
				} else {
					countAgainst(t, db, m)
				}
			}
		}
		recordsAgainst(t, db, records)
		scanAgainst(t, db, m, store.Value{}, store.Value{}, 3)
		countAgainst(t, db, m)
		checkRows(t, db)
		var ids []string
		for e, err := range db.Dump(t.Context(), sessions, "") {
			if err != nil {
				t.Fatal(err)
			}
			id := e.Name
			if e.Name == "" {
				id = fmt.Sprint("#", e.Number)
			}
			ids = append(ids, id)
			if want, ok := m[id]; !ok || e.Expiry != want {
				t.Errorf("%q has %v, not %v (%v)", id, e.Expiry, want, ok)
			}
		}
		if want := slices.SortedFunc(maps.Keys(m), compareModelIDs); !slices.Equal(ids, want) {
			t.Errorf("the dump has %q, not %q", ids, want)
		}
	})
}

func scanAgainst(t *testing.T, db *DB, m model, lo, hi store.Value, limit int) (got []store.Entry) {
	t.Helper()
	q := store.Query{Target: sessions, Lo: lo, Hi: hi, Limit: limit}
	for more := true; more; {
		var page store.Page
		if err := db.Scan(t.Context(), q, &page); err != nil {
			t.Fatal(err)
		}
		got = append(got, page.Entries...)
		if more = page.More; more {
			q.After = got[len(got)-1].Position()
		}
	}
	var want []entry
	for _, e := range m.index() {
		if (lo.Type == store.Missing || compareValues(e.value, lo) >= 0) && (hi.Type == store.Missing || compareValues(e.value, hi) <= 0) {
			want = append(want, e)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("a scan from %v to %v has %d entries, not %d:\n%v\n%v", lo, hi, len(got), len(want), got, want)
	}
	for i, e := range got {
		if e.Key != keyText(want[i].id) || e.Position().Value != want[i].value || (e.Value.Type == store.List) != want[i].list {
			t.Fatalf("entry %d is %+v, not %+v", i, e, want[i])
		}
	}
	return got
}

func disposeAgainst(t *testing.T, db *DB, m model, stale []store.Entry, shut closed, to store.Value, pick int, dry bool) {
	t.Helper()
	byKey := make(map[string]string)
	for _, id := range fuzzIDs {
		byKey[keyText(id)] = id
	}
	b := &store.Batch{Query: store.Query{Target: sessions}, DryRun: dry}
	for i, e := range stale {
		if pick>>(i%8)&1 == 1 {
			op := store.Op{Entry: e}
			if i%3 < 2 { // carried; the others are deleted in the same batch
				op.To = to
			}
			b.Ops = append(b.Ops, op)
		}
	}
	if pick%5 == 0 {
		slices.Reverse(b.Ops) // out of order is allowed, if slow
	}
	hits := func(op store.Op) bool {
		now, there := m[byKey[op.Entry.Key]]
		return there && op.Entry.Value.Type != store.List && now == op.Entry.Value
	}
	refused := false
	for _, op := range b.Ops {
		refused = refused || op.To.Type != store.Missing && hits(op) && shut.refuses(to)
	}
	err := db.Dispose(t.Context(), b)
	if refused != errors.Is(err, store.ErrInvalid) || !refused && err != nil {
		t.Fatalf("carried to %v with %v dropped: %v", to, shut, err)
	}
	before := maps.Clone(m)
	for _, op := range b.Ops {
		id := byKey[op.Entry.Key]
		now, there := before[id]
		want := store.Changed
		switch {
		case !there:
			want = store.Gone
		case op.Entry.Value.Type != store.List && now == op.Entry.Value && op.To.Type != store.Missing:
			if want = store.Carried; !dry && err == nil {
				m[id] = to
			}
		case op.Entry.Value.Type != store.List && now == op.Entry.Value:
			if want = store.Deleted; !dry && err == nil {
				delete(m, id)
			}
		case op.To.Type != store.Missing && now == op.To:
			want = store.Carried // so it seems
		}
		if err != nil {
			if op.Outcome == store.Deleted || op.Outcome == store.Carried {
				t.Errorf("%s: outcome %d with the error %v", op.Entry.Key, op.Outcome, err)
			}
			continue
		}
		if op.Outcome != want && !(op.Outcome == store.Gone && want == store.Changed && before[id] != m[id]) {
			t.Errorf("%s: outcome %d, not %d: seen %v, now %v", op.Entry.Key, op.Outcome, want, op.Entry.Value, now)
		}
		if op.Known && op.Now != now {
			t.Errorf("%s: now %v, not %v", op.Entry.Key, op.Now, now)
		}
	}
}

func settleAgainst(t *testing.T, db *DB, m model, id string, shut closed, verdict store.Verdict) {
	t.Helper()
	now, there := m[id]
	to, carry := verdict.To()
	want, refused := store.Kept, there && carry && shut.refuses(to)
	switch {
	case refused:
		want = store.Unknown
	case !there:
		want = store.Gone
	case carry:
		want = store.Carried
		m[id] = to
	case verdict == store.Delete:
		want = store.Deleted
		delete(m, id)
	}
	o, err := db.Settle(t.Context(), store.Query{Target: sessions}, store.Entry{Key: keyText(id)}, func(v store.Value) store.Verdict {
		if v != now {
			t.Errorf("settling %q shows %v, not %v", id, v, now)
		}
		return verdict
	})
	if refused != errors.Is(err, store.ErrInvalid) || !refused && err != nil || o != want {
		t.Errorf("settling %q: outcome %d, not %d; %v", id, o, want, err)
	}
}

// saveAgainst saves or removes a record from the revision that it has, or from
// another.
func saveAgainst(t *testing.T, db *DB, records map[string]store.Record, key string, what, number int) {
	t.Helper()
	old, there := records[key]
	prev := old.Revision
	if what%3 == 0 {
		prev = []string{"", "other", old.Revision + "x"}[number%3]
	}
	r := store.Record{Sort: store.CursorRecord, Key: key, Target: "sessions", Revision: store.NewRevision(prev),
		Fields: store.Fields{"number": int64(number), "text": "é\x00", "rate": float64(number), "list": []store.Fields{{"yes": true}, {}}}}
	repeated := what%7 == 0 && there
	switch {
	case repeated: // the same again, from whatever revision
		r = old
	case what%5 == 0:
		r.Fields = nil
	}
	err := db.Save(t.Context(), r, prev)
	switch {
	case repeated, r.Fields == nil && !there:
		if err != nil {
			t.Errorf("saving %q again: %v", key, err)
		}
	case prev != old.Revision:
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("saving %q from %q, but its revision is %q: %v", key, prev, old.Revision, err)
		}
	case err != nil:
		t.Errorf("saving %q: %v", key, err)
	case r.Fields == nil:
		delete(records, key)
	default:
		records[key] = r
	}
}

func recordsAgainst(t *testing.T, db *DB, records map[string]store.Record) {
	t.Helper()
	got := load(t, db)
	var keys []string
	for _, r := range got {
		keys = append(keys, r.Key)
		if !reflect.DeepEqual(r, records[r.Key]) {
			t.Errorf("record %+v, not %+v", r, records[r.Key])
		}
	}
	if want := slices.Sorted(maps.Keys(records)); !slices.Equal(keys, want) {
		t.Errorf("the records %q, not %q", keys, want)
	}
}

// dropAgainst drops a span, which only a well-formed entry in it prevents.
func dropAgainst(t *testing.T, db *DB, m model, shut closed, s [2]string) closed {
	t.Helper()
	alive := false
	for _, e := range m.index() {
		_, err := expirykey.Parse(e.value.Text)
		alive = alive || err == nil && !e.list && e.value.Type == store.Text && s[0] <= e.value.Text && e.value.Text < s[1]
	}
	err := db.Drop(t.Context(), sessions, s[0], s[1])
	if alive != errors.Is(err, store.ErrConflict) || !alive && err != nil {
		t.Fatalf("drop of %q with somebody there: %v; %v", s, alive, err)
	}
	if err != nil {
		return shut
	}
	return append(shut, s)
}

func countAgainst(t *testing.T, db *DB, m model) {
	t.Helper()
	for _, s := range []store.Span{{}, store.Between(expiry(1).Text, ""), store.Between("", expiry(2).Text), store.Between(expiry(1).Text, expiry(3).Text)} {
		ids := make(map[string]bool)
		for _, e := range m.index() {
			if (s.From == (store.Point{}) || compareValues(e.value, s.From.Value) >= 0) && (s.To == (store.Point{}) || compareValues(e.value, s.To.Value) < 0) {
				ids[e.id] = true
			}
		}
		for upTo, want := range map[int64]int{0: len(ids), 2: min(2, len(ids))} {
			n, err := db.Count(t.Context(), sessions, "", s, upTo)
			if err != nil || n != int64(want) {
				t.Errorf("count of %+v up to %d: %d, not %d; %v", s, upTo, n, want, err)
			}
		}
	}
}

// FuzzKeyText: the canonical text of a key names that key and no other.
func FuzzKeyText(f *testing.F) {
	for _, s := range []string{"1", "12", `"a"`, `"\""`, `"é"`, `"\u00e9"`, `""`, "0", "-1", "007", `"12"`, "a", `"`, "\"\\x00\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		enc, err := appendKey(nil, s)
		if err != nil {
			return
		}
		text, err := appendKeyText(nil, enc)
		if err != nil {
			t.Fatalf("%q was accepted and has no text: %v", s, err)
		}
		again, err := appendKey(nil, string(text))
		if err != nil || !bytes.Equal(enc, again) {
			t.Errorf("%q is %x, its text %q is %x; %v", s, enc, text, again, err)
		}
		name, number, err := cutID(enc)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := appendID(nil, string(name), number); err != nil || !bytes.Equal(enc, back) {
			t.Errorf("%q: %x does not decode: %v", s, enc, err)
		}
	})
}

// FuzzValueOrder: encoded values order as values do, and come back whole.
func FuzzValueOrder(f *testing.F) {
	f.Add("a", "a\x00", int64(1), int64(2))
	f.Add("", "\x00\xff", int64(-1), int64(1))
	f.Add("00000001.0000.20261121T000730.855Z", "00000001.0000.", int64(-62135596800000000), int64(253402300799999999))
	f.Fuzz(func(t *testing.T, a, b string, x, y int64) {
		values := []store.Value{store.TextValue(a), store.TextValue(b),
			{Type: store.Instant, Time: time.UnixMicro(x).UTC()}, {Type: store.Instant, Time: time.UnixMicro(y).UTC()},
			{Type: store.Other, Text: fmt.Sprint(x % 1e15)}, {Type: store.Other, Text: fmt.Sprint(y % 1e15)}, {Type: store.Other, Text: "true"}}
		const tail = "\x02key"
		var encoded [][]byte
		for _, v := range values {
			enc, err := appendValue(nil, v)
			if err != nil {
				t.Fatal(err)
			}
			encoded = append(encoded, enc)
			got, text, rest, err := cutValue(nil, append(slices.Clone(enc), tail...))
			got.Text = string(text)
			if err != nil || got != v || string(rest) != tail {
				t.Errorf("%v comes back as %v with %q; %v", v, got, rest, err)
			}
			if rest, err := skipValue(append(slices.Clone(enc), tail...)); err != nil || string(rest) != tail {
				t.Errorf("behind %v is %q; %v", v, rest, err)
			}
		}
		for i := range values {
			for j := range values {
				if got, want := bytes.Compare(encoded[i], encoded[j]), compareValues(values[i], values[j]); got != want {
					t.Errorf("%v against %v: %d, not %d", values[i], values[j], got, want)
				}
				if i != j && bytes.HasPrefix(encoded[i], encoded[j]) && !bytes.Equal(encoded[i], encoded[j]) {
					t.Errorf("the form of %v begins with that of %v", values[i], values[j])
				}
			}
		}
	})
}

// FuzzRows: no bytes in a row make the decoders crash.
func FuzzRows(f *testing.F) {
	plain := entity{property: []byte("p"), value: expiry(0), data: []byte("{}")}
	f.Add(appendEntity(nil, plain))
	sharded := plain
	sharded.shardProperty, sharded.shard = []byte("s"), store.IntegerValue(7)
	f.Add(appendEntity(nil, sharded))
	enc, _ := appendValue(nil, expiry(0))
	f.Add(enc)
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := decodeEntity(b); err == nil {
			again := appendEntity(nil, e)
			if f, err := decodeEntity(again); err != nil || f.value != e.value || f.shard != e.shard && len(e.shardProperty) > 0 || !bytes.Equal(f.data, e.data) {
				t.Errorf("%+v comes back as %+v; %v", e, f, err)
			}
		}
		if _, _, rest, err := cutValue(nil, b); err == nil {
			if skipped, err := skipValue(b); err != nil || !bytes.Equal(rest, skipped) {
				t.Errorf("cut leaves %x and skip %x; %v", rest, skipped, err)
			}
		}
		_, _, _ = decodeRecord(b)
		_, _, _ = cutID(b)
		_, _ = expirykey.Parse(string(b))
	})
}
