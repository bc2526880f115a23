package embedded

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reaper-ttl/reaper/store"
)

// TestSetsCount: each kind of call that sets an entity's row counts it before the call is back, and no delete does.
func TestSetsCount(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	row := func(key string) []byte {
		id, err := appendKey(nil, key)
		if err != nil {
			t.Fatal(err)
		}
		return append(entityPrefix(nil, sessions.Kind), id...)
	}
	one := store.Entity{Name: "one", Expiry: expiry(1), Data: []byte(`{"n":1}`)}
	key := `"one"`
	var kept []store.Insertion
	steps := []struct {
		name   string
		counts bool
		do     func() error
	}{
		{"put", true, func() error { return db.Put(t.Context(), sessions, "", []store.Entity{one}) }},
		{"put again", true, func() error { return db.Put(t.Context(), sessions, "", []store.Entity{one}) }},
		{"carry", true, func() error {
			b := batchOf(scanAll(t, db)...)
			b.Ops[0].To = expiry(2)
			return db.Dispose(t.Context(), b)
		}},
		{"settled to a carry", true, func() error {
			_, err := db.Settle(t.Context(), store.Query{Target: sessions}, store.Entry{Key: key},
				func(store.Value) store.Verdict { return store.CarryTo(expiry(3)) })
			return err
		}},
		{"restamp", true, func() error {
			return db.Restamp(t.Context(), &store.Restamping{Query: store.WalkQuery{Target: sessions},
				Ops: []store.RestampOp{{Row: store.Row{Key: key, Expiry: expiry(3)}, To: expiry(4)}}})
		}},
		{"delete", false, func() error {
			b := batchOf(scanAll(t, db)...)
			b.Query.Archive = collect(&kept)
			return db.Dispose(t.Context(), b)
		}},
		{"insert", true, func() error { return db.Insert(t.Context(), sessions, "", kept) }},
		{"record", false, func() error {
			return db.Save(t.Context(), cursor(1, ""), "")
		}},
	}
	for _, s := range steps {
		before := db.sets.count(row(key))
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if counted := db.sets.count(row(key)) != before; counted != s.counts {
			t.Errorf("%s: counted %v", s.name, counted)
		}
	}
	if len(scanAll(t, db)) != 1 {
		t.Error("the entity was not inserted again")
	}
}

// TestNoSecondRead: what nobody can have set is deleted without another read; what shares its group with a row that was
// set is read again.
func TestNoSecondRead(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	mustPut(t, db, entities(0, 3)...)
	b := batchOf(scanAll(t, db)...)
	set := func(i int, changes, counts bool) { // behind the store's back
		id, err := appendKey(nil, b.Ops[i].Entry.Key)
		if err != nil {
			t.Fatal(err)
		}
		row := append(entityPrefix(nil, sessions.Kind), id...)
		if counts {
			db.sets.counts[groupOf(row)].Add(1)
		}
		if !changes {
			return
		}
		value, err := db.get(row)
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEntity(value)
		if err != nil {
			t.Fatal(err)
		}
		e.data = []byte(`{"changed":true}`)
		if err := db.engine.Set(row, appendEntity(nil, e), nil); err != nil {
			t.Fatal(err)
		}
	}
	b.Query.Archive = &onKeep{func([]store.Copy) error {
		set(0, true, false)
		set(1, false, true)
		set(2, true, true)
		return nil
	}}
	if err := db.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i, want := range []store.Outcome{store.Deleted, store.Deleted, store.Changed} {
		if got := b.Ops[i].Outcome; got != want {
			t.Errorf("%d: outcome %d, not %d", i, got, want)
		}
	}
}

// TestArchivedAsDeleted: while others put entities again and again, the last state of each that is gone is among those
// that were kept.
func TestArchivedAsDeleted(t *testing.T) {
	const keys, writers, puts = 40, 4, 400
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	var mu sync.Mutex
	kept, last := map[string]bool{}, map[string]string{} // by key and data; by name
	archive := &onKeep{func(list []store.Copy) error {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range list {
			kept[string(c.Data)] = true
		}
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	var sweepers, putters sync.WaitGroup
	deleted := 0
	for range 3 {
		sweepers.Go(func() {
			for ctx.Err() == nil {
				b := batchOf(scanAll(t, db)...)
				b.Query.Archive = archive
				if err := db.Dispose(t.Context(), b); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i := range b.Ops {
					if b.Ops[i].Outcome == store.Deleted {
						deleted++
					}
				}
				mu.Unlock()
			}
		})
	}
	for w := range writers {
		putters.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for n := range puts {
				name := fmt.Sprintf("%d-%d", w, random.IntN(keys)) // each is one writer's
				data := fmt.Sprintf(`{"version":"%d-%d"}`, w, n)
				mustPut(t, db, store.Entity{Name: name, Expiry: expiry(1), Data: []byte(data)})
				mu.Lock()
				last[name] = data
				mu.Unlock()
			}
		})
	}
	putters.Wait()
	stop()
	sweepers.Wait()
	there := map[string]bool{}
	for _, e := range scanAll(t, db) {
		there[e.Key] = true
	}
	for name, data := range last {
		key := fmt.Sprintf("%q", name)
		line := fmt.Sprintf(`{"id":%s,"property":%q,"key":%q,"data":%s}`, key, sessions.Property, expiry(1).Text, data)
		if !there[key] && !kept[line] {
			t.Errorf("%s went as %s, which was not kept", name, line)
		}
	}
	if deleted == 0 {
		t.Error("nothing was deleted")
	}
}
