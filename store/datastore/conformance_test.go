package datastore

import (
	"cmp"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// TestConformance runs the suite of all drivers by every guard, on the default
// database and on a named one.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		guard    store.Guard
		database string
	}{
		{store.GuardLookup, ""},
		{store.GuardLookup, "named-db"},
		{store.GuardQuery, ""},
		{store.GuardAuto, "(default)"}, // lookup, since it is an emulator
	} {
		t.Run(string(c.guard)+"/"+cmp.Or(c.database, "default"), func(t *testing.T) {
			t.Parallel() // much of the time the emulator waits for locks
			e := emulator.Start(t, emulator.Datastore)
			db := openWith(t, Options{Project: e.Project(t), Database: c.database, Emulator: e.Host})
			storetest.Run(t, func(storetest.TB) store.Store { return db }, storetest.Caps{
				Guard:      c.guard,
				Namespaces: []string{"tenant-1", "tenant-2"},
				Counter:    true,
				Dumper:     true,
				Keyer:      true,
				Adopter:    true,
				// The guard query relies on a promise that there are no lists.
				KeepsLists: c.guard != store.GuardQuery,
				TellsGone:  true,
				// The service orders keys by itself: numbers before names,
				// names by their bytes.
				NumbersFirst:  true,
				OrdersByBytes: true,
				Clock:         time.Now,
			})
		})
	}
}
