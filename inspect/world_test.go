package inspect_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/cursortest"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A world is a model store with entities, and what is needed to sweep and inspect it. It
// lives in a synctest bubble, in which hours pass at once.
type world struct {
	t      *testing.T
	s      *modelstore.Store
	target sweep.Target
	owners atomic.Int64

	keepers map[string]*cursor.Keeper // of other processes, by their names
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, s: modelstore.New(time.Now), keepers: map[string]*cursor.Keeper{}}
	w.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true},
	}
	return w
}

// in runs a test in a world.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// inEachLayout runs a test in a world of each layout.
func inEachLayout(t *testing.T, test func(t *testing.T, w *world)) {
	for name, change := range layouts {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				change(&w.target)
				test(t, w)
			})
		})
	}
}

// layouts are the layouts that a world may have.
var layouts = map[string]func(*sweep.Target){
	"generation": func(*sweep.Target) {},
	"timestamp": func(t *sweep.Target) {
		t.Layout, t.Generations, t.Shards = "timestamp", false, 0
		t.Property, t.Type = "expires", store.Instant
	},
	"sharded-timestamp": func(t *sweep.Target) {
		t.Layout, t.Generations, t.Shards = "sharded-timestamp", false, 0
		t.Property, t.Type, t.ShardProperty = "expires", store.Instant, "shard"
		t.ShardValues = []store.Value{store.IntegerValue(7), store.IntegerValue(-1), store.IntegerValue(12)}
	},
}

// hourly lets generations follow each other every hour.
var hourly = generation.Policy{
	Every: time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 1,
}

// config returns the configuration of one process.
func (w *world) config() sweep.Config {
	return sweep.Config{Store: w.s, Targets: []sweep.Target{w.target}, Apply: true, Workers: 4, Grace: 8 * time.Second,
		Owner: fmt.Sprintf("process-%d", w.owners.Add(1)), Now: time.Now,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// sweep sweeps once, with something to delete in each range that writers may write to: a
// range in which there never was anything to do has no cursor.
func (w *world) sweep() {
	w.t.Helper()
	if _, _, err := sweep.EnsureRecord(w.t.Context(), w.config(), w.target); err != nil {
		w.t.Fatal(err)
	}
	if s, err := sweep.TakeSnapshot(w.t.Context(), w.config(), w.target); err == nil {
		for i, r := range s.Plan.Ranges() {
			if !s.Plan.Stage(r.Generation).IsSealed() {
				e := store.Entity{Name: fmt.Sprint("touched-", i), Expiry: r.At(s.Horizon()).Value, Shard: r.Value}
				if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
					w.t.Fatal(err)
				}
			}
		}
	}
	w.sweepAsIs()
}

// sweepAsIs sweeps once, without adding anything to delete.
func (w *world) sweepAsIs() {
	w.t.Helper()
	if res := sweep.Run(w.t.Context(), w.config()).Targets[0]; res.Error != "" {
		w.t.Fatalf("%+v", res)
	}
}

// sweepFor sweeps every five minutes.
func (w *world) sweepFor(d time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Minute) {
		w.sweep()
	}
}

// looking runs a function, and checks that it writes nothing.
func (w *world) looking(look func() error) {
	w.t.Helper()
	before := w.s.Writes()
	if err := look(); err != nil {
		w.t.Fatal(err)
	}
	if w.s.Writes() != before {
		w.t.Error("looking wrote something")
	}
}

func (w *world) status() (st inspect.TargetStatus) {
	w.t.Helper()
	w.looking(func() (err error) {
		st, err = inspect.Status(w.t.Context(), w.config(), w.target)
		return err
	})
	return st
}

func (w *world) lives() (lives []inspect.GenerationLife) {
	w.t.Helper()
	w.looking(func() (err error) {
		lives, err = inspect.Lives(w.t.Context(), w.config(), w.target)
		return err
	})
	return lives
}

func (w *world) explain(name string) (x inspect.Explanation) {
	w.t.Helper()
	w.looking(func() (err error) {
		x, err = inspect.Explain(w.t.Context(), w.config(), w.target, "", store.Entity{Name: name})
		return err
	})
	return x
}

// put writes one entity, stamped for a generation or, under another layout, with a
// timestamp.
func (w *world) put(number, shards int, name string, expires time.Time) string {
	w.t.Helper()
	if w.target.Type == store.Instant {
		e := store.Entity{Name: name, Expiry: store.InstantValue(expires)}
		if n := len(w.target.ShardValues); n > 0 {
			e.Shard = w.target.ShardValues[expirykey.ShardOfName(name, n)]
		}
		if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
			w.t.Fatal(err)
		}
		return ""
	}
	key, err := generation.Stamper{Generation: number, Shards: shards}.Name(name, expires)
	if err != nil {
		w.t.Fatal(err)
	}
	w.raw(name, key.String())
	return key.String()
}

// raw writes one entity with any text for an expiry.
func (w *world) raw(name, expiry string) {
	w.t.Helper()
	e := store.Entity{Name: name, Expiry: store.TextValue(expiry)}
	if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
		w.t.Fatal(err)
	}
}

// cursors reads the cursor records.
func (w *world) cursors() map[cursor.ID]cursor.Cursor {
	w.t.Helper()
	table, err := cursor.Reader{Store: w.s, Target: "sessions", Now: time.Now}.All(context.WithoutCancel(w.t.Context()), cursor.Table{})
	if err != nil {
		w.t.Fatal(err)
	}
	return maps.Collect(table.All())
}

// claim lets another process hold a range.
func (w *world) claim(owner string, id cursor.ID) *cursor.Claim {
	w.t.Helper()
	k := w.keepers[owner]
	if k == nil {
		k = cursortest.Start(w.t, w.s, w.target.Name, owner, w.target.Lease)
		w.keepers[owner] = k
	}
	claim, err := k.Claim(w.t.Context(), w.cursors()[id])
	if err != nil {
		w.t.Fatal(err)
	}
	return claim
}

func (w *world) release(claim *cursor.Claim) {
	w.t.Helper()
	if err := claim.Release(context.WithoutCancel(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
}

// edit changes the cursor record of a range that nobody holds.
func (w *world) edit(id cursor.ID, change func(*cursor.Cursor)) {
	w.t.Helper()
	claim := w.claim("editor", id)
	claim.Update(change)
	w.release(claim)
}
