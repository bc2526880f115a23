package nodewriter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	gofirestore "cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/writers"
)

// saved saves a record. On a busy machine that may take too long, and be done anyway, now or later.
func saved(t *testing.T, db store.Store, r generation.Record) generation.Record {
	t.Helper()
	for {
		stored, err := generation.Save(t.Context(), db, r)
		if err == nil {
			return stored
		}
		if !errors.Is(err, store.ErrDeadline) && !errors.Is(err, store.ErrConflict) {
			t.Fatal(err)
		}
		stored, _, err = generation.Load(t.Context(), db, r.Target)
		if err == nil && len(stored.Generations) == len(r.Generations) {
			return stored
		}
	}
}

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
				r = saved(t, db, r)
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

// Go's follower reads the record with Google's client for native mode, as docs/writers.md shows it.
func TestFollowsByGooglesClientInGo(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	project := e.Project(t)
	client, err := gofirestore.NewClient(t.Context(), project,
		option.WithEndpoint(e.Host), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	record := client.Doc("ReaperTarget/sessions")
	follower := writers.Follow(t.Context(), func(ctx context.Context) (map[string]any, error) {
		doc, err := record.Get(ctx)
		switch status.Code(err) {
		case codes.OK:
			return doc.Data(), nil
		case codes.NotFound:
			return nil, nil
		}
		return nil, err
	}, writers.Options{})
	defer follower.Close()
	for { // until an emulator that has just been started is quick enough
		err := follower.Refresh(t.Context())
		if errors.Is(err, generation.ErrMissing) {
			break
		}
		t.Log(err)
	}
	db := open(t, e, emulator.Native, project)
	p := generation.Policy{Staleness: time.Minute, Slack: time.Minute, Shards: 5}
	r := generation.New("sessions", "Session", "expiry_key", p.Shards, true, time.Now()).WithWriterBounds(p)
	saved(t, db, r)
	if err := follower.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, err := follower.Key("s-1842", time.Now().Add(time.Hour))
	if want := writers.ShardOf("s-1842", p.Shards); err != nil || k.Generation != 1 || k.Shard != want {
		t.Errorf("%v, %v; want generation 1, shard %d", k, err, want)
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
