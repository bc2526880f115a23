package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := embedded.Open(filepath.Join(dir, "store"), embedded.Options{Now: time.Now, Create: true})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	ctx := context.Background()
	sessions := store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var entities []store.Entity
	for i, name := range []string{"old", "due", "live"} {
		key, err := expirykey.New(1, 0, noon.Add(time.Duration(i-1)*time.Hour))
		if err != nil {
			log.Fatal(err)
		}
		entities = append(entities, store.Entity{Name: name, Expiry: store.TextValue(key.String())})
	}
	if err := db.Put(ctx, sessions, "", entities); err != nil {
		log.Fatal(err)
	}

	last, _ := expirykey.UpTo(1, 0, noon)
	q := store.Query{Target: sessions, Lo: store.TextValue(expirykey.Prefix(1, 0)), Hi: store.TextValue(last), Limit: 100}
	var page store.Page
	if err := db.Scan(ctx, q, &page); err != nil {
		log.Fatal(err)
	}
	batch := store.Batch{Query: q}
	for _, e := range page.Entries {
		batch.Ops = append(batch.Ops, store.Op{Entry: e})
	}
	if err := db.Dispose(ctx, &batch); err != nil {
		log.Fatal(err)
	}
	for _, op := range batch.Ops {
		fmt.Println(op.Entry.Key, op.Outcome == store.Deleted)
	}
	for e, err := range db.Dump(ctx, sessions, "") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("left:", e.Name)
	}
	// Output:
	// "old" true
	// "due" true
	// left: live
}
