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

// The index entry of an entity that was put with another property belongs to that one.
func TestRestampOfAnotherPropertyIsRefused(t *testing.T) {
	db := inMemory(t)
	old := store.Target{Name: "t", Kind: "K", Property: "expires", Type: store.Text}
	if err := db.Put(t.Context(), old, "", []store.Entity{{Name: "a", Expiry: store.TextValue("x")}}); err != nil {
		t.Fatal(err)
	}
	q := store.WalkQuery{Target: store.Target{Name: "t", Kind: "K", Property: "expiry_key"}, Source: "expires", Limit: 9}
	var rows store.Rows
	if err := db.Walk(t.Context(), q, &rows); err != nil || len(rows.List) != 1 || rows.List[0].Source != store.TextValue("x") {
		t.Fatalf("%+v, %v", rows.List, err)
	}
	b := &store.Restamping{Query: q, Ops: []store.RestampOp{{Row: rows.List[0], To: store.TextValue("y")}}}
	if err := db.Restamp(t.Context(), b); !store.MayBeOfOneEntity(err) {
		t.Errorf("%v", err)
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
