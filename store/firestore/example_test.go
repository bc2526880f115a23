package firestore_test

import (
	"context"
	"fmt"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/firestore"
)

// Open sends nothing. A collection's path is checked with each call, before
// anything is sent.
func ExampleOpen() {
	ctx := context.Background()
	db, err := firestore.Open(ctx, firestore.Options{Project: "my-project", Emulator: "127.0.0.1:8080"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	fmt.Println(db.Endpoint())
	_, err = db.Holds(ctx, store.Target{Kind: "users/u1", Property: "expires"}, "")
	fmt.Println(err)
	// Output:
	// 127.0.0.1:8080 (emulator)
	// look for any document of users/u1: the store refuses this: users/u1 is the path of a document: a collection's has an odd number of segments
}
