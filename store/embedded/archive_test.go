package embedded

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// An onKeep is an Archive that is a function.
type onKeep struct{ keep func(list []store.Copy) error }

func (k *onKeep) Keep(_ context.Context, list []store.Copy) error { return k.keep(list) }

// collect is an Archive that appends to a list.
func collect(into *[]store.Insertion) store.Archive {
	return &onKeep{func(list []store.Copy) error {
		for _, c := range list {
			*into = append(*into, store.Insertion{Copy: c, AsIs: true})
		}
		return nil
	}}
}

func rows(t *testing.T, db *DB) map[string]string {
	t.Helper()
	out := map[string]string{}
	it, err := db.engine.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		out[string(it.Key())] = string(it.Value())
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestArchiveKeepsEveryByte: what is settled with an Archive and inserted again has the same rows, whatever its
// numbers, properties and shard, also after a crash.
func TestArchiveKeepsEveryByte(t *testing.T) {
	fsys := vfs.NewCrashableMem()
	db := openIn(t, fsys)
	sharded := sessions
	sharded.ShardProperty = "shard"
	timed := sessions
	timed.Property, timed.Type = "expires", store.Instant
	at := store.InstantValue(time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC))
	put := func(target store.Target, list ...store.Entity) {
		if err := db.Put(t.Context(), target, "", list); err != nil {
			t.Fatal(err)
		}
	}
	put(sessions, store.Entity{Name: "numbers", Expiry: expiry(1),
		Data: []byte(`{"a":1e400,"b":-0,"c":0.10,"d":123456789012345678901234567890, "e" : [ 1.0,1E+2 ],"a":2}`)},
		store.Entity{Name: `q"\` + "\u2028<&>", Expiry: store.TextValue("\x00<\u2028\"\ufffd")},
		store.Entity{Number: 7, Expiry: store.Value{Type: store.Other, Text: `{"a":"<b>"}`}},
		store.Entity{Number: 8, Expiry: store.Value{Type: store.List, Text: `["<",1.50,null,"x"]`}, Data: []byte(`{}`)},
		store.Entity{Number: 9}, store.Entity{Name: "true", Expiry: store.Value{Type: store.Other, Text: "true"}})
	put(sharded, store.Entity{Name: "text", Expiry: expiry(2), Shard: store.TextValue("a")},
		store.Entity{Name: "integer", Expiry: at, Shard: store.IntegerValue(-3)}, store.Entity{Name: "no shard", Expiry: expiry(3)})
	put(timed, store.Entity{Name: "instant", Expiry: at}, store.Entity{Name: "two", Expiry: at})
	restamp := &store.Restamping{Query: store.WalkQuery{Target: sessions}, Ops: []store.RestampOp{
		{Row: store.Row{Key: `"two"`}, To: expiry(4)}}}
	if err := db.Restamp(t.Context(), restamp); err != nil || restamp.Ops[0].Outcome != store.RowRestamped {
		t.Fatalf("%+v, %v", restamp.Ops[0], err)
	}
	want := rows(t, db)
	var kept []store.Insertion
	for e, err := range db.Dump(t.Context(), sessions, "") {
		if err != nil {
			t.Fatal(err)
		}
		key, _ := db.Key(sessions, "", e)
		q := store.Query{Target: sessions, Archive: collect(&kept)}
		o, err := db.Settle(t.Context(), q, store.Entry{Key: key}, func(store.Value) store.Verdict { return store.Delete })
		if o != store.Deleted {
			t.Fatalf("%s: %d, %v", key, o, err)
		}
	}
	if left := rows(t, db); len(left) > 0 {
		t.Errorf("%d rows are left", len(left))
	}
	if err := db.Insert(t.Context(), sessions, "", kept); err != nil {
		t.Fatal(err)
	}
	again := openIn(t, fsys.CrashClone(vfs.CrashCloneCfg{}))
	defer closeDB(t, again)
	defer closeDB(t, db)
	for _, d := range []*DB{db, again} {
		got := rows(t, d)
		for key, value := range want {
			if got[key] != value {
				t.Errorf("row %q is %q, not %q", key, got[key], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d rows, not %d", len(got), len(want))
		}
	}
}

// TestKeepHoldsNoLock: while Keep runs, others write, delete what it was given, and even close the store.
func TestKeepHoldsNoLock(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	mustPut(t, db, entities(0, 4)...)
	found := scanAll(t, db)
	b := batchOf(found...)
	b.Query.Archive = &onKeep{func(list []store.Copy) error {
		mustPut(t, db, store.Entity{Name: "new", Expiry: expiry(9)})
		inner := batchOf(found[0])
		if err := db.Dispose(t.Context(), inner); err != nil || inner.Ops[0].Outcome != store.Deleted {
			t.Errorf("another worker's delete: %+v, %v", inner.Ops[0], err)
		}
		changed := entities(0, 4)[1]
		changed.Data = []byte(`{"changed":true}`)
		mustPut(t, db, changed)
		return nil
	}}
	if err := db.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	var got []store.Outcome
	for _, op := range b.Ops {
		got = append(got, op.Outcome)
	}
	if want := []store.Outcome{store.Gone, store.Changed, store.Deleted, store.Deleted}; !slices.Equal(got, want) {
		t.Errorf("outcomes %v, not %v", got, want)
	}
	checkRows(t, db)
	last := batchOf(scanAll(t, db)...)
	last.Query.Archive = &onKeep{func([]store.Copy) error { closeDB(t, db); return nil }}
	if err := db.Dispose(t.Context(), last); !errors.Is(err, store.ErrFailed) || last.Ops[0].Outcome != store.Unknown {
		t.Errorf("after a close: %+v, %v", last.Ops[0], err)
	}
}

// TestInsertRefuses: what is not a copy of its key, or lies in a dropped span, is an error, and nothing is written.
func TestInsertRefuses(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	mustPut(t, db, entities(0, 2)...)
	var kept []store.Insertion
	b := batchOf(scanAll(t, db)...)
	b.Query.Archive = collect(&kept)
	if err := db.Dispose(t.Context(), b); err != nil || len(kept) != 2 {
		t.Fatalf("%d copies, %v", len(kept), err)
	}
	good := string(kept[1].Data)
	for what, data := range map[string]string{
		"nothing": "", "no JSON": "{", "another entity": string(kept[0].Data), "two": good + good,
		"a field more":  strings.Replace(good, "{", `{"x":1,`, 1),
		"no object":     `{"id":` + kept[1].Key + `,"property":"p","data":[]}`,
		"no id":         `{"property":"p"}`,
		"a bad instant": `{"id":` + kept[1].Key + `,"property":"p","expires":"tomorrow"}`,
	} {
		bad := slices.Clone(kept)
		bad[1].Data = []byte(data)
		if err := db.Insert(t.Context(), sessions, "", bad); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := db.Fetch(t.Context(), sessions, "", []string{"1"}, time.Unix(1, 0)); !errors.Is(err, store.ErrUnsupported) {
		t.Errorf("fetch of the past: %v", err)
	}
	if err := db.Archives(store.Target{Kind: "K"}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a target without a property can be archived: %v", err)
	}
	if err := db.Drop(t.Context(), sessions, "0", "1"); err != nil {
		t.Fatal(err)
	}
	other := sessions
	other.Property = "other"
	for _, target := range []store.Target{sessions, other} {
		if err := db.Insert(t.Context(), target, "", kept); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("insert into a dropped span of %s: %v", target.Property, err)
		}
	}
	if got := rows(t, db); len(got) != 1 { // that of the span
		t.Errorf("%d rows are there", len(got))
	}
}

// FuzzLine: a row that an entity may have comes back from its line, but for line breaks.
func FuzzLine(f *testing.F) {
	f.Add("name", int64(0), "p", "text", uint8(1), "{\"a\":\n1}")
	f.Add("", int64(7), "", "[1,2]", uint8(3), "")
	f.Add("\u2028", int64(0), "<p>", "2026-11-21T12:00:00.000001Z", uint8(2), "{}")
	f.Fuzz(func(t *testing.T, name string, number int64, property, text string, kind uint8, data string) {
		target := store.Target{Kind: "K", Property: property}
		v := store.Value{Type: store.Type(kind % 5), Text: text}
		if v.Type == store.Instant {
			v = store.InstantValue(time.UnixMicro(number))
		}
		one := store.Entity{Name: name, Number: number, Expiry: v, Data: []byte(data)}
		if data == "" {
			one.Data = nil
		}
		drafts, err := draw(target, []store.Entity{one})
		if err != nil || checkTarget(target, "") != nil || !utf8.ValidString(property) { // targets files are UTF-8
			return
		}
		e := entity{property: []byte(property), value: drafts[0].value, data: drafts[0].data}
		e.other = &indexed{[]byte(property + "2"), drafts[0].value}
		line, err := appendLine(nil, drafts[0].id, e)
		if err != nil || bytes.ContainsAny(line, "\r\n") {
			t.Fatalf("%+v has the line %q; %v", e, line, err)
		}
		id, back, err := parseLine(line)
		if err != nil {
			t.Fatalf("%q does not parse: %v", line, err)
		}
		e.data = []byte(strings.NewReplacer("\r", " ", "\n", " ").Replace(strings.TrimSpace(string(e.data))))
		if !bytes.Equal(id, drafts[0].id) || !bytes.Equal(appendEntity(nil, back), appendEntity(nil, e)) {
			t.Errorf("%+v comes back from %q as %+v", e, line, back)
		}
	})
}

func TestExpiryOf(t *testing.T) {
	storetest.CheckExpiryOf(t, new(DB), "sessions", `"a"`, `{"id":"a","property":"expires",`+
		`"expires":"2026-11-28T00:00:00.000000Z","other":{"property":"expiry_key","key":"k"},"data":{}}`)
}
