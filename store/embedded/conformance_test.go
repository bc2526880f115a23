package embedded_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/storetest"
)

func TestConformance(t *testing.T) {
	open := func(tb storetest.TB) store.Store {
		db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
		if err != nil {
			tb.Fatalf("open: %v", err)
		}
		tb.Cleanup(func() {
			if err := db.Close(); err != nil {
				tb.Errorf("close: %v", err)
			}
		})
		return db
	}
	storetest.Run(t, open, storetest.Caps{
		Counter: true, Dumper: true, Dropper: true, Keyer: true, Adopter: true, Archiver: true,
		Steps: true, ListsInIndex: true, KeepsLists: true, TellsGone: true, NumbersFirst: true, OrdersByBytes: true,
		Clock: time.Now,
	})
}
