package firestore

import (
	"cmp"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// TestConformance runs the suite of all drivers, on the default database and on
// a named one.
func TestConformance(t *testing.T) {
	for _, database := range []string{"", "named-db"} {
		t.Run(cmp.Or(database, "default"), func(t *testing.T) {
			t.Parallel()
			e := emulator.Start(t, emulator.Native)
			db, err := Open(t.Context(), Options{Project: e.Project(t), Database: database, Emulator: e.Host})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			storetest.Run(t, func(storetest.TB) store.Store { return db }, storetest.Caps{
				Counter: true, Dumper: true, ListsApart: true, TellsGone: true, BillsEntries: true,
				NumbersFirst: true, OrdersByBytes: true, Clock: time.Now,
			})
		})
	}
}
