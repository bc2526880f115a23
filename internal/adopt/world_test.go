package adopt_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const day = 24 * time.Hour

// A world is a model store with entities that have a time of creation in their data, and
// no key. It lives in a synctest bubble, in which hours pass at once.
type world struct {
	t      *testing.T
	s      *modelstore.Store
	target sweep.Target
	began  time.Time
	owners atomic.Int64
}

// in runs a test in a world.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, s: modelstore.New(time.Now), began: time.Now().UTC()}
	w.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * day, Rewind: day, Overlap: 10 * time.Second,
		Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
		Policy: generation.Policy{Every: day, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32},
	}
	return w
}

// put writes an entity that was created so long ago.
func (w *world) put(name string, age time.Duration) store.Entity {
	w.t.Helper()
	at := w.began.Add(-age).Format(time.RFC3339Nano)
	return w.putRaw(name, fmt.Sprintf(`{"created":%q,"user":"u7"}`, at))
}

func (w *world) putRaw(name, data string) store.Entity {
	w.t.Helper()
	e := store.Entity{Name: name, Data: []byte(data)}
	if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
		w.t.Fatal(err)
	}
	return e
}

// many writes n entities, half of them older than the 30 days after which the rule lets
// them expire.
func (w *world) many(n int) {
	for i := range n {
		w.put(fmt.Sprintf("s-%05d", i), 30*day*time.Duration(2*i+1)/time.Duration(n))
	}
}

// config returns what a process of its own adopts by.
func (w *world) config() adopt.Config {
	return adopt.Config{
		Sweep: sweep.Config{Store: w.s, Apply: true, Workers: 4, Owner: fmt.Sprintf("process-%d", w.owners.Add(1)), Now: time.Now,
			Grace: time.Second, Log: slog.New(slog.DiscardHandler)},
		Target: w.target, Rule: adopt.Rule{Property: "created", Plus: 30 * day}, Spread: day, Percent: 100,
		Rate: throttle.Limits{Unlimited: true}, Actor: "ann",
	}
}

// run runs an order that must succeed.
func (w *world) run(cfg adopt.Config) adopt.Result {
	w.t.Helper()
	res, err := adopt.Run(w.t.Context(), cfg)
	if err != nil || !res.Complete {
		w.t.Fatalf("complete %v, held %q, %v", res.Complete, res.Held, err)
	}
	return res
}

func (w *world) entity(name string) store.Entity {
	w.t.Helper()
	e, ok := w.s.Entities("Session", "")[modelstore.Key(store.Entity{Name: name})]
	if !ok {
		w.t.Fatalf("%s is gone", name)
	}
	return e
}

// keyOf returns the key of an entity; ok is false without one.
func keyOf(t *testing.T, e store.Entity) (k expirykey.Key, ok bool) {
	t.Helper()
	if e.Expiry.Type == store.Missing {
		return k, false
	}
	k, err := expirykey.Parse(e.Expiry.Text)
	if err != nil {
		t.Fatalf("%s has the expiry %q", e.Name, e.Expiry.Text)
	}
	return k, true
}

// stamped returns how many entities have a key.
func (w *world) stamped() (n int) {
	for _, e := range w.s.Entities("Session", "") {
		if _, ok := keyOf(w.t, e); ok {
			n++
		}
	}
	return n
}

// pause sets the target's switch.
func (w *world) pause(ctx context.Context, on bool) {
	w.t.Helper()
	rec, _, err := generation.Load(ctx, w.s, w.target.Name)
	if err == nil {
		rec.Paused = on
		_, err = generation.Save(ctx, w.s, rec)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}
