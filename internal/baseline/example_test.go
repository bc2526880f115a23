package baseline_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/baseline"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// The plain collector steps over more with every page.
func ExamplePlain() {
	ctx := context.Background()
	db, err := embedded.Open("unused", embedded.Options{InMemory: true, Create: true, Now: time.Now, HoldCompaction: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	target := store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}
	for first := range 4 {
		var batch []store.Entity
		for i := range store.MaxPage {
			name := fmt.Sprint("s-", first*store.MaxPage+i)
			key, _ := generation.Stamper{Shards: 1}.Name(name, time.Now().Add(-time.Hour))
			batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(key.String())})
		}
		if err := db.Put(ctx, target, "", batch); err != nil {
			fmt.Println(err)
			return
		}
	}
	var pages baseline.Pages
	deleted, err := baseline.Plain(ctx, db, target, time.Now, 100, &pages)
	stepped, _ := pages.Tenths()
	fmt.Println(deleted, err, stepped[0] < stepped[len(stepped)-1])
	// Output: 2000 <nil> true
}
