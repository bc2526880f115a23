package nodewriter_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/writers"
)

// The Node package's follower reads the record with Google's clients, as they give its lists,
// maps and integers, and moves to each new generation.
func TestFollowsByGooglesClients(t *testing.T) {
	for mode, on := range map[string]emulator.Mode{"native": emulator.Native, "datastore": emulator.Datastore} {
		t.Run(mode, func(t *testing.T) {
			e := emulator.Start(t, on)
			project := e.Project(t)
			db := open(t, e, on, project)
			for { // until an emulator that has just been started is quick enough for a save
				if _, _, err := generation.Load(t.Context(), db, "sessions"); errors.Is(err, generation.ErrMissing) {
					break
				} else if !errors.Is(err, store.ErrDeadline) {
					t.Fatal(err)
				}
			}
			var stamp func(id string) string
			p := generation.Policy{Staleness: time.Second, Slack: time.Second, Shards: 5}
			r := generation.New("sessions", "Session", "expiry_key", p.Shards, true, time.Now()).WithWriterBounds(p)
			for g := 1; g <= 3; g++ {
				if g > 1 {
					p.Shards = 7 * g
					var err error
					if r, err = r.Advance(p, time.Now(), true); err != nil {
						t.Fatal(err)
					}
				}
				var err error
				if r, err = generation.Save(t.Context(), db, r); err != nil {
					t.Fatal(err)
				}
				if stamp == nil {
					stamp = nodewriter.Follow(t, e, mode, project, "sessions")
				}
				for n := 0; ; n++ { // until it has read that
					id := fmt.Sprintf("s-%d", n)
					k, err := writers.Parse(stamp(id))
					if err != nil {
						t.Fatal(err)
					}
					if k.Generation == g {
						if want := writers.ShardOf(id, p.Shards); k.Shard != want {
							t.Errorf("generation %d: shard %d of %s, want %d", g, k.Shard, id, want)
						}
						break
					}
					<-time.After(10 * time.Millisecond)
				}
			}
		})
	}
}

func open(t *testing.T, e *emulator.Emulator, mode emulator.Mode, project string) store.Store {
	t.Helper()
	var db interface {
		store.Store
		io.Closer
	}
	var err error
	if mode == emulator.Native {
		db, err = firestore.Open(t.Context(), firestore.Options{Project: project, Emulator: e.Host})
	} else {
		db, err = datastore.Open(t.Context(), datastore.Options{Project: project, Emulator: e.Host})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}
