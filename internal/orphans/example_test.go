package orphans_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/orphans"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A dry run over a user who exists, and one who was deleted without the notes.
func ExampleRun() {
	users := store.Target{Name: "users", Kind: "User", Property: "expiry_key", Type: store.Text}
	s := modelstore.New(time.Now)
	if err := s.Put(context.Background(), users, "", []store.Entity{{Name: "ann"}}); err != nil {
		panic(err)
	}
	for _, user := range []string{"ann", "bob"} {
		s.PutBelow("User", "", modelstore.Key(store.Entity{Name: user}), modelstore.Kin{Path: "notes/1"})
	}
	res, err := orphans.Run(context.Background(), orphans.Config{
		Sweep:  sweep.Config{Store: s, Now: time.Now, Log: slog.New(slog.DiscardHandler)},
		Target: sweep.Target{Target: users},
	})
	fmt.Println(res.Orphans, res.Samples[0].Key, err)
	// Output: 1 "bob"/notes/1 <nil>
}
