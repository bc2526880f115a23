package bench_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// Of the ranges of a delayed target the last few are at rest, but for an entity
// that expires now and then.
const restShards = 2

// A delays is how long what was deleted in ranges at rest had been due.
type delays struct {
	mu   sync.Mutex
	list []time.Duration
}

// note takes in a batch that was disposed of.
func (d *delays) note(b *store.Batch) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range b.Ops {
		if k, err := expirykey.Parse(op.Entry.Value.Text); err == nil && op.Outcome == store.Deleted &&
			strings.Contains(op.Entry.Key, "due-") {
			d.list = append(d.list, now.Sub(k.Expires))
		}
	}
}

// The stores, each with an eye on what it deletes.
type (
	timedDatastore struct {
		*datastore.DB
		delays *delays
	}
	timedFirestore struct {
		*firestore.DB
		delays *delays
	}
	timedEmbedded struct {
		*embedded.DB
		delays *delays
	}
)

func (s timedDatastore) Dispose(ctx context.Context, b *store.Batch) error {
	defer s.delays.note(b)
	return s.DB.Dispose(ctx, b)
}

func (s timedFirestore) Dispose(ctx context.Context, b *store.Batch) error {
	defer s.delays.note(b)
	return s.DB.Dispose(ctx, b)
}

func (s timedEmbedded) Dispose(ctx context.Context, b *store.Batch) error {
	defer s.delays.note(b)
	return s.DB.Dispose(ctx, b)
}

// A timedStore is one that a daemon is measured on.
type timedStore interface {
	store.Store
	store.Writer
}

// delay measures how long an entity waits that expires in a range at rest, while all
// other ranges work on a backlog that their pace makes last. The emulators read the
// whole kind for each query, so they can take only few ranges and entities.
func delay(tb testing.TB, r *report) {
	r.section("What falls due in ranges at rest, while others are busy", fmt.Sprintf(
		"`serve` with a schedule of `@every 1s` and 16 workers, for %v: from the instant at which an entity is due to the answer that it is deleted. "+
			"Busy ranges have a backlog and 50 deletes a second each; in %d ranges at rest an entity expires five times a second.", r.delay, restShards))
	run := func(what string, busy, backlog int, open func(*delays) (timedStore, func())) {
		d := new(delays)
		s, done := open(d)
		defer done()
		n := fallDue(tb, s, busy, backlog, r.delay)
		if len(d.list) == 0 { // as in a short run, on a busy machine
			r.add(what, fmt.Sprintf("none of the %d that fell due was deleted in time to be measured", n), "all")
			return
		}
		slices.Sort(d.list)
		at := func(q float64) float64 { return d.list[min(len(d.list)-1, int(q*float64(len(d.list))))].Seconds() }
		r.add(fmt.Sprintf("%s, %d busy ranges: deleted of %d that fell due", what, busy, n), fmt.Sprint(len(d.list)), "all")
		r.add(fmt.Sprintf("**%s, %d busy ranges: p50 / p99 / worst**", what, busy),
			fmt.Sprintf("%.1f / %.1f / %.1f s", at(0.5), at(0.99), at(1)), "p99 at most 3 s")
	}
	run("embedded store", 64, 4000, func(d *delays) (timedStore, func()) { return timedEmbedded{open(tb, false), d}, func() {} })
	if !emulator.Available(tb.Context()) {
		r.add("emulators", "they are not installed here", "")
		return
	}
	run("Datastore emulator", 6, 1000, func(d *delays) (timedStore, func()) {
		e := emulator.Start(tb, emulator.Datastore)
		db, err := datastore.Open(tb.Context(), datastore.Options{Project: e.Project(tb), Emulator: e.Host})
		if err != nil {
			tb.Fatal(err)
		}
		return timedDatastore{db, d}, func() { closed(tb, db) }
	})
	run("Firestore emulator, native mode", 6, 1000, func(d *delays) (timedStore, func()) {
		e := emulator.Start(tb, emulator.Native)
		db, err := firestore.Open(tb.Context(), firestore.Options{Project: e.Project(tb), Emulator: e.Host})
		if err != nil {
			tb.Fatal(err)
		}
		return timedFirestore{db, d}, func() { closed(tb, db) }
	})
}

// fallDue lets entities expire while a daemon runs, and returns how many.
func fallDue(tb testing.TB, s timedStore, busy, backlog int, most time.Duration) (n int) {
	tb.Helper()
	t := sharded()
	t.Shards, t.Pace, t.Page = busy+restShards, throttle.Limits{Start: 50, Max: 50}, 100
	t.Next = func(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }
	put := func(batch []store.Entity) {
		if err := s.Put(tb.Context(), t.Target, "", batch); err != nil {
			tb.Fatal(err)
		}
	}
	entity := func(shard int, name string, at time.Time) store.Entity {
		k, err := expirykey.New(expirykey.Nursery, shard, at)
		if err != nil {
			tb.Fatal(err)
		}
		return store.Entity{Name: name, Expiry: store.TextValue(k.String()), Data: []byte(`{}`)}
	}
	now := time.Now()
	for shard := range busy {
		var batch []store.Entity
		for i := range backlog {
			batch = append(batch, entity(shard, fmt.Sprintf("busy-%02d-%04d", shard, i), now.Add(-time.Hour+time.Duration(i)*time.Second/2)))
			if len(batch) == store.MaxPage || i == backlog-1 {
				put(batch)
				batch = nil
			}
		}
	}
	lookedAround(tb, s, t)
	cfg := configFor(s, t, workers)
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan struct{})
	go func() { defer close(done); sweep.NewDaemon(cfg, true).Run(ctx) }()
	defer func() { cancel(); <-done }()
	warm := min(10*time.Second, most/2)
	time.Sleep(warm) // it has found its work, and which ranges take long
	began := time.Now()
	for ; time.Since(began) < most-warm; n++ {
		put([]store.Entity{entity(busy+n%restShards, fmt.Sprintf("due-%05d", n), time.Now().Add(2*time.Second))})
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(warm)
	return n
}
