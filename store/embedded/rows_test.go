package embedded

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

var (
	sessions = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}
	noon     = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
)

func expiry(i int) store.Value {
	k, err := expirykey.New(1, 0, noon.Add(time.Duration(i)*time.Millisecond))
	if err != nil {
		panic(err)
	}
	return store.TextValue(k.String())
}

func everything() store.Query {
	lo, hi := expirykey.Range(1, 0)
	return store.Query{Target: sessions, Lo: store.TextValue(lo), Hi: store.TextValue(hi), Limit: store.MaxPage}
}

// entities makes n entities that expire one millisecond apart, the first at from.
func entities(from, n int) []store.Entity {
	var out []store.Entity
	for i := from; i < from+n; i++ {
		out = append(out, store.Entity{Name: fmt.Sprintf("e-%05d", i), Expiry: expiry(i), Data: []byte(`{"user":"u7"}`)})
	}
	return out
}

func openIn(t testing.TB, fsys vfs.FS, change ...func(*Options)) *DB {
	t.Helper()
	o := Options{Now: time.Now, Create: true, FS: fsys}
	for _, c := range change {
		c(&o)
	}
	db, err := Open("db", o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func closeDB(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func mustPut(t testing.TB, db *DB, put ...store.Entity) {
	t.Helper()
	if err := db.Put(t.Context(), sessions, "", put); err != nil {
		t.Fatal(err)
	}
}

func scanAll(t testing.TB, db *DB) []store.Entry {
	t.Helper()
	var out []store.Entry
	q := everything()
	for {
		var page store.Page
		if err := db.Scan(t.Context(), q, &page); err != nil {
			t.Fatal(err)
		}
		out = append(out, page.Entries...)
		if !page.More {
			return out
		}
		q.After = out[len(out)-1].Position()
	}
}

func batchOf(entries ...store.Entry) *store.Batch {
	b := &store.Batch{Query: everything()}
	for _, e := range entries {
		b.Ops = append(b.Ops, store.Op{Entry: e})
	}
	return b
}

func cursor(number int, prev string) store.Record {
	return store.Record{Sort: store.CursorRecord, Key: "sessions.1.0000", Target: "sessions",
		Revision: store.NewRevision(prev), Fields: store.Fields{"number": int64(number)}}
}

// checkRows holds the first invariant of the package against all rows: entity
// and index never differ.
func checkRows(t testing.TB, db *DB) {
	t.Helper()
	want := make(map[string][]byte)
	eachRow(t, db, rowEntity, func(key, value []byte) {
		kind, id, err := cutTerm(nil, key[1:])
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEntity(value)
		if err != nil {
			t.Fatal(err)
		}
		_, err = indexRows(nil, string(kind), e, id, func(k, mark []byte) error {
			want[string(k)] = mark
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	eachRow(t, db, rowIndex, func(key, value []byte) {
		mark, ok := want[string(key)]
		if !ok {
			t.Errorf("index row %q has no entity", key)
		} else if !bytes.Equal(mark, value) {
			t.Errorf("index row %q is marked %v, not %v", key, value, mark)
		}
		delete(want, string(key))
	})
	for key := range want {
		t.Errorf("an entity lacks its index row %q", key)
	}
}

func eachRow(t testing.TB, db *DB, first byte, do func(key, value []byte)) {
	t.Helper()
	it, err := db.engine.NewIter(&pebble.IterOptions{LowerBound: []byte{first}, UpperBound: []byte{first + 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			t.Fatal(err)
		}
		do(it.Key(), value)
	}
}

func load(t testing.TB, db *DB) []store.Record {
	t.Helper()
	recs, err := db.Load(context.WithoutCancel(t.Context()), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
	if err != nil {
		t.Fatal(err)
	}
	return recs.List
}
