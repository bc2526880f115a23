package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reaper-ttl/reaper/store"
)

// FuzzPut puts an entity with any expiry, shard, data and id into a store that
// earlier inputs left empty. It is refused as a whole, or entity and index agree,
// and it is found, counted and deleted.
func FuzzPut(f *testing.F) {
	for kind := range uint8(5) {
		for _, s := range []string{"", "00000001.0000.20261121T000730.855Z", `[1,"a",[2],{"b":1e999},null,-0,0.0,"\ud800","\u0000"]`, "null", " 7 ", "1e400", "{}", `"x"`, "true", "\xff"} {
			f.Add("a", int64(0), kind, s, int64(1), uint8(4), "7", []byte(`{"a":1}`))
		}
	}
	f.Add("", int64(7), uint8(2), "", int64(-62135596800000001), uint8(1), "eu", []byte(`[]`))
	f.Add("a\x00", int64(0), uint8(2), "", int64(253402300800000000), uint8(3), "[1]", []byte(``))
	target := store.Target{Name: "t", Kind: "K\x00", Property: "expires", ShardProperty: "shard", Type: store.Instant}
	plain := sessions
	db := openIn(f, vfs.NewMem())
	f.Cleanup(func() { _ = db.Close() })
	f.Fuzz(func(t *testing.T, name string, number int64, kind uint8, text string, at int64, shardKind uint8, shard string, data []byte) {
		value := store.Value{Type: store.Type(kind % 6), Text: text}
		if value.Type == store.Instant {
			value = store.Value{Type: store.Instant, Time: time.UnixMicro(at)}
		}
		e := store.Entity{Name: name, Number: number, Expiry: value, Data: data}
		on := plain
		if shardKind%2 == 0 {
			on, e.Shard = target, store.Value{Type: store.Type(shardKind / 2 % 6), Text: shard}
		}
		err := db.Put(t.Context(), on, "", []store.Entity{e})
		found := holding(t, db, on)
		if err != nil {
			if !errors.Is(err, store.ErrInvalid) || len(found) > 0 {
				t.Fatalf("%+v: %d entities with the error %v", e, len(found), err)
			}
			return
		}
		if len(found) != 1 || found[0].Name != name || found[0].Number != number && name == "" || len(data) > 0 && !json.Valid(found[0].Data) {
			t.Fatalf("%+v was put, and %+v is there", e, found)
		}
		checkRows(t, db)
		key, err := db.Key(on, "", e)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := db.ID(key); err != nil || name != "" && id != name {
			t.Errorf("%s is %q; %v", key, id, err)
		}
		n, err := db.Count(t.Context(), on, "", store.Span{}, 0)
		if err != nil || n > 1 {
			t.Errorf("%+v counts %d; %v", e, n, err)
		}
		q := store.Query{Target: on, Shard: e.Shard, Limit: 2}
		if on.ShardProperty != "" && e.Shard.Type != store.Text && e.Shard.Type != store.Other {
			q.Target = store.Target{}
		}
		rows := 0
		for q.Target.Kind != "" {
			var page store.Page
			if err := db.Scan(t.Context(), q, &page); err != nil {
				t.Fatalf("%+v: %v", e, err)
			}
			rows += len(page.Entries)
			for _, entry := range page.Entries {
				if entry.Key != key {
					t.Fatalf("%s is found as %s", key, entry.Key)
				}
				// What a scan shows is a place that a scan can go on from.
				q.After = entry.Position()
			}
			if !page.More {
				break
			}
		}
		if (rows > 0) != (n > 0) && q.Target.Kind != "" {
			t.Errorf("%+v has %d rows and counts %d", e, rows, n)
		}
		o, err := db.Settle(t.Context(), store.Query{Target: on}, store.Entry{Key: key}, func(store.Value) store.Verdict { return store.Delete })
		if err != nil || o != store.Deleted {
			t.Fatalf("%s: %d, %v", key, o, err)
		}
		checkRows(t, db)
		if n, err := db.Count(t.Context(), on, "", store.Span{}, 0); n != 0 || err != nil {
			t.Errorf("%d rows are left; %v", n, err)
		}
	})
}

func holding(t *testing.T, db *DB, on store.Target) (found []store.Entity) {
	t.Helper()
	for e, err := range db.Dump(context.WithoutCancel(t.Context()), on, "") {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, e)
	}
	return found
}

// FuzzQuery scans, disposes and counts with any bounds and positions, as cursor
// records may hold them: what is wrong is refused, and what is not finds nothing
// that lies outside.
func FuzzQuery(f *testing.F) {
	for kind := range uint8(5) {
		f.Add(kind, "00000001.0000.", uint8(1), expiry(3).Text, kind, expiry(1).Text, `"e-00001"`)
		f.Add(uint8(1), "", kind, "nan", uint8(4), "0x1p-2", "7")
		f.Add(uint8(4), "Infinity", kind, "-", uint8(1), "\x00\xff", `"\x00"`)
	}
	db := openIn(f, vfs.NewMem())
	f.Cleanup(func() { _ = db.Close() })
	mustPut(f, db, append(entities(0, 5), store.Entity{Number: 7, Expiry: store.Value{Type: store.Other, Text: "7"}})...)
	f.Fuzz(func(t *testing.T, kind1 uint8, lo string, kind2 uint8, hi string, kind3 uint8, after, key string) {
		value := func(kind uint8, text string) store.Value {
			v := store.Value{Type: store.Type(kind % 6), Text: text}
			if v.Type == store.Instant {
				v = store.Value{Type: store.Instant, Time: noon.Add(time.Duration(len(text)))}
			}
			return v
		}
		q := store.Query{Target: sessions, Lo: value(kind1, lo), Hi: value(kind2, hi), After: store.Position{Value: value(kind3, after), Key: key}, Limit: 3}
		var page store.Page
		err := db.Scan(t.Context(), q, &page)
		if err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Fatalf("%+v: %v", q, err)
		}
		for _, e := range page.Entries {
			if q.Lo.Type == store.Text && compareValues(e.Value, q.Lo) < 0 || q.Hi.Type == store.Text && compareValues(e.Value, q.Hi) > 0 ||
				q.After.Value.Type == store.Text && (compareValues(e.Value, q.After.Value) < 0 || e.Value == q.After.Value && e.Key == key) {
				t.Errorf("%+v shows %+v", q, e)
			}
		}
		b := &store.Batch{Query: q, DryRun: true, Ops: []store.Op{{Entry: store.Entry{Key: key, Value: q.After.Value}, To: q.Lo}, {Entry: store.Entry{Key: key, Value: q.Hi}}}}
		if err := db.Dispose(t.Context(), b); err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: %v", b, err)
		}
		s := store.Span{From: store.Point{Value: q.Lo, After: kind1 > 99}, To: store.Point{Value: q.Hi, After: kind2 > 99}}
		if _, err := db.Count(t.Context(), sessions, "", s, 0); err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	})
}

// FuzzMarker opens a directory whose marker says anything: what is no format of
// ours is refused, and left as it is.
func FuzzMarker(f *testing.F) {
	f.Add(markerText + "1\n")
	f.Add(markerText + "01")
	f.Add(markerText + "99999999999999999999\n")
	f.Add("")
	f.Add(strings.Repeat("x", 300))
	f.Fuzz(func(t *testing.T, text string) {
		fsys := vfs.NewMem()
		if err := fsys.MkdirAll("db", 0o755); err != nil {
			t.Fatal(err)
		}
		w, err := fsys.Create(fsys.PathJoin("db", markerName), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write([]byte(text))
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		// There is no engine's file, so that even our own format does not open.
		if db, err := Open("db", Options{Now: time.Now, Create: true, FS: fsys}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%q: %v, %v", text, db, err)
		}
		names, err := fsys.List("db")
		if err != nil || len(names) > 2 { // the lock is there
			t.Errorf("%q: it holds %q; %v", text, names, err)
		}
	})
}
