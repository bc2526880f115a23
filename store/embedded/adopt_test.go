package embedded

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// The splits of keys as applications make them leave parts of about the same size, without
// a read of the table.
func TestSplitsAreEven(t *testing.T) {
	const entities, most = 4000, 15
	random := rand.New(rand.NewPCG(1, 2))
	for name, id := range map[string]func(i int) store.Entity{
		"counted names": func(i int) store.Entity { return store.Entity{Name: fmt.Sprintf("s-%07d", i)} },
		"random names":  func(int) store.Entity { return store.Entity{Name: randomName(random)} },
		"numbers":       func(i int) store.Entity { return store.Entity{Number: int64(i + 1)} },
	} {
		db := inMemory(t)
		target := store.Target{Name: "t", Kind: "K", Property: "expiry_key", Type: store.Text}
		for from := 0; from < entities; from += store.MaxPage {
			var page []store.Entity
			for i := range store.MaxPage {
				page = append(page, id(from+i))
			}
			if err := db.Put(t.Context(), target, "", page); err != nil {
				t.Fatal(err)
			}
		}
		splits, err := db.Splits(t.Context(), target, "", most)
		if err != nil || len(splits) != most {
			t.Fatalf("%s: %d splits, %v", name, len(splits), err)
		}
		after, sum := "", 0
		for _, until := range append(splits, "") {
			n, q := 0, store.WalkQuery{Target: target, After: after, Until: until, Limit: store.MaxPage}
			for more := true; more; {
				var rows store.Rows
				if err := db.Walk(t.Context(), q, &rows); err != nil {
					t.Fatal(err)
				}
				if n += len(rows.List); len(rows.List) > 0 {
					q.After = rows.List[len(rows.List)-1].Key
				}
				more = rows.More
			}
			if average := entities / (most + 1); n > 4*average {
				t.Errorf("%s: the part up to %s has %d entities, the average is %d", name, until, n, average)
			}
			sum, after = sum+n, until
		}
		if sum != entities {
			t.Errorf("%s: %d entities in all parts, not %d", name, sum, entities)
		}
	}
}

// An entity that was put with another property has both after a restamp, each with an index
// row of its own. Whatever deletes or carries it by one of them keeps the rows right; undo
// leaves it as it was; and a third property is refused.
func TestRestampAddsAProperty(t *testing.T) {
	old := store.Target{Name: "old", Kind: "K", Property: "expires", ShardProperty: "shard", Type: store.Instant}
	keys := store.Target{Name: "new", Kind: "K", Property: "expiry_key", Type: store.Text}
	at := store.InstantValue(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	scan := func(db *DB, target store.Target, lo, hi store.Value) (n int) {
		t.Helper()
		var page store.Page
		q := store.Query{Target: target, Shard: store.TextValue("a"), Lo: lo, Hi: hi, Limit: 9}
		if target.ShardProperty == "" {
			q.Shard = store.Value{}
		}
		if err := db.Scan(t.Context(), q, &page); err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			if e.Value.Type != target.Type {
				t.Errorf("%+v", e)
			}
		}
		count, err := db.Count(t.Context(), target, "", store.Span{}, 0)
		if err != nil || count != int64(len(page.Entries)) {
			t.Errorf("counted %d of %d, %v", count, len(page.Entries), err)
		}
		return len(page.Entries)
	}
	restamp := func(db *DB, target store.Target, to store.Value) error {
		t.Helper()
		q := store.WalkQuery{Target: target, Source: "expires", Limit: 9}
		var rows store.Rows
		if err := db.Walk(t.Context(), q, &rows); err != nil || len(rows.List) != 1 || rows.List[0].Source != at {
			t.Fatalf("%+v, %v", rows.List, err)
		}
		b := &store.Restamping{Query: q, Ops: []store.RestampOp{{Row: rows.List[0], To: to}}}
		err := db.Restamp(t.Context(), b)
		if err == nil && b.Ops[0].Outcome != store.RowRestamped {
			t.Errorf("%+v", b.Ops[0])
		}
		return err
	}
	lo, hi := store.TextValue("k"), store.TextValue("l")
	for name, do := range map[string]func(db *DB) (olds, news int){
		"nothing": func(*DB) (int, int) { return 1, 1 },
		"restamp": func(db *DB) (int, int) { _ = restamp(db, keys, store.TextValue("k3")); return 1, 1 },
		"undo":    func(db *DB) (int, int) { _ = restamp(db, keys, store.Value{}); return 1, 0 },
		"put":     func(db *DB) (int, int) { _ = db.Put(t.Context(), keys, "", []store.Entity{{Name: "a"}}); return 0, 0 },
		"third": func(db *DB) (int, int) {
			third := keys
			third.Property = "third"
			if err := restamp(db, third, store.TextValue("k")); !store.MayBeOfOneEntity(err) {
				t.Errorf("a third property: %v", err)
			}
			return 1, 1
		},
		"delete by the key": func(db *DB) (int, int) {
			dispose(t, db, store.Query{Target: keys, Lo: lo, Hi: hi, Limit: 9}, store.Value{}, store.Deleted)
			return 0, 0
		},
		"delete by the old property": func(db *DB) (int, int) {
			q := store.Query{Target: old, Shard: store.TextValue("a"), Lo: at, Hi: at, Limit: 9}
			dispose(t, db, q, store.Value{}, store.Deleted)
			return 0, 0
		},
		"carry": func(db *DB) (int, int) {
			q := store.Query{Target: keys, Lo: lo, Hi: hi, Limit: 9}
			dispose(t, db, q, store.TextValue("k2"), store.Carried)
			return 1, 1
		},
		"settle": func(db *DB) (int, int) {
			e := store.Entry{Key: `"a"`, Value: store.TextValue("k1")}
			out, err := db.Settle(t.Context(), store.Query{Target: keys}, e, func(v store.Value) store.Verdict {
				if v != store.TextValue("k1") {
					t.Errorf("%+v", v)
				}
				return store.Delete
			})
			if err != nil || out != store.Deleted {
				t.Errorf("%v, %v", out, err)
			}
			return 0, 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := inMemory(t)
			e := store.Entity{Name: "a", Expiry: at, Shard: store.TextValue("a"), Data: []byte(`{"n":1}`)}
			if err := db.Put(t.Context(), old, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
			if err := restamp(db, keys, store.TextValue("k1")); err != nil {
				t.Fatal(err)
			}
			checkRows(t, db)
			olds, news := do(db)
			checkRows(t, db)
			if o, n := scan(db, old, at, at), scan(db, keys, lo, hi); o != olds || n != news {
				t.Errorf("%d by the old property, %d by the key; want %d and %d", o, n, olds, news)
			}
		})
	}
}

// dispose deletes or carries what a query finds.
func dispose(t *testing.T, db *DB, q store.Query, to store.Value, want store.Outcome) {
	t.Helper()
	var page store.Page
	if err := db.Scan(t.Context(), q, &page); err != nil || len(page.Entries) != 1 {
		t.Fatalf("%+v, %v", page.Entries, err)
	}
	b := &store.Batch{Query: q, Ops: []store.Op{{Entry: page.Entries[0], To: to}}}
	if err := db.Dispose(t.Context(), b); err != nil || b.Ops[0].Outcome != want {
		t.Errorf("%+v, %v", b.Ops[0], err)
	}
}

// randomName returns a name as Firestore's clients make them.
func randomName(random *rand.Rand) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	name := make([]byte, 20)
	for i := range name {
		name[i] = letters[random.IntN(len(letters))]
	}
	return string(name)
}

func inMemory(t *testing.T) *DB {
	t.Helper()
	db, err := Open("db", Options{Now: time.Now, InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}
