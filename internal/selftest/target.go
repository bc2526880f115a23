package selftest

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	day = 24 * time.Hour
	// lease is short, so that a takeover need not be waited for long.
	lease = 6 * time.Second
	// shards and page are small, so that few entities make several pages in several ranges.
	shards, page = 2, 5
	maxSkew      = 10 * time.Second
)

// target is the scratch target as sweeps know it, with one way to check deletes.
func (b *bench) target(guard store.Guard) sweep.Target {
	return sweep.Target{
		Target: store.Target{Name: b.run.scratch.target(), Kind: b.run.scratch.kind(), Property: "expiry_key",
			Type: store.Text, Guard: guard, SingleValued: guard == store.GuardQuery},
		Layout: layout.Generation, Generations: true, Shards: shards, MaxAge: 1825 * day, Rewind: day,
		Overlap: 10 * time.Second, Page: page, Lease: lease, MaxClockSkew: maxSkew, Pace: throttle.Limits{Unlimited: true},
		Policy:  generation.Policy{Every: day, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32},
		History: sweep.History{Keep: day, Actor: "reaper selftest"},
	}
}

// config is what one process sweeps with. Its owner's name is its own.
func (b *bench) config(db store.Store, owner string, t sweep.Target) sweep.Config {
	workers := 2
	if t.Guard == store.GuardQuery { // the emulator blocks parallel range queries in transactions
		workers = 1
	}
	return sweep.Config{Store: db, Targets: []sweep.Target{t}, Apply: true, Workers: workers, Grace: 2 * time.Second,
		Owner: "selftest-" + b.run.scratch.id + "-" + owner, Version: "selftest", Now: b.run.setup.Now,
		Log: slog.New(slog.DiscardHandler)}
}

// sweepOnce makes one sweep as the process of a name.
func (b *bench) sweepOnce(owner string, t sweep.Target) sweep.TargetResult {
	res := sweep.Run(b.ctx, b.config(b.db, owner, t)).Targets[0]
	if res.Error != "" {
		b.Fatalf("the sweep failed: %s", res.Error)
	}
	return res
}

// begin gives the target its record, as load does, before anything is written, and returns the
// store's time.
func (b *bench) begin(t sweep.Target) (now time.Time) {
	err := store.Retry(b.ctx, patience, func() (err error) {
		_, now, err = sweep.EnsureRecord(b.ctx, b.config(b.db, "begin", t), t)
		return err
	})
	if err != nil {
		b.Fatalf("write the target record: %v", err)
	}
	return now
}

// fill writes entities of a generation, of which some are due since a minute, and the others
// live for hours.
func (b *bench) fill(t sweep.Target, now time.Time, g generation.Generation, due, live int) {
	var list []store.Entity
	for i := range due {
		at := now.Add(-time.Minute - time.Duration(i)*time.Second)
		list = append(list, b.entity(g, fmt.Sprintf("due-%d-%02d", g.Number, i), at))
	}
	for i := range live {
		at := now.Add(6*time.Hour + time.Duration(i)*time.Minute)
		list = append(list, b.entity(g, fmt.Sprintf("live-%d-%02d", g.Number, i), at))
	}
	b.put(t, list...)
}

// firstGeneration is the one that a new target opens with.
func firstGeneration() generation.Generation { return generation.Generation{Number: 1, Shards: shards} }

func (b *bench) entity(g generation.Generation, name string, expires time.Time) store.Entity {
	key, err := expirykey.New(g.Number, expirykey.ShardOfName(name, g.Shards), expires)
	if err != nil {
		b.Fatalf("make an expiry key: %v", err)
	}
	return store.Entity{Name: name, Expiry: store.TextValue(key.String()), Data: []byte(`{"user":"u7"}`)}
}

func (b *bench) put(t sweep.Target, list ...store.Entity) {
	if err := b.tryPut(t, list); err != nil {
		b.Fatalf("write %d entities: %v", len(list), err)
	}
}

func (b *bench) tryPut(t sweep.Target, list []store.Entity) error {
	return store.Retry(b.ctx, patience, func() error { return b.db.Put(b.ctx, t.Target, "", list) })
}

// entities returns all entities of the target as texts, by their names.
func (b *bench) entities(t sweep.Target) map[string]string {
	var all map[string]string
	err := store.Retry(b.ctx, patience, func() error {
		all = map[string]string{}
		for e, err := range b.db.Dump(b.ctx, t.Target, "") {
			if err != nil {
				return err
			}
			all[e.Name] = fmt.Sprintf("%s %s", e.Expiry, e.Data)
		}
		return nil
	})
	if err != nil {
		b.Fatalf("read all entities: %v", err)
	}
	return all
}

// without returns the entities whose names do not begin with one of the words.
func without(all map[string]string, words ...string) map[string]string {
	left := maps.Clone(all)
	maps.DeleteFunc(left, func(name, _ string) bool {
		for _, word := range words {
			if len(name) >= len(word) && name[:len(word)] == word {
				return true
			}
		}
		return false
	})
	return left
}

// wantLeft compares what is in the target with what should be.
func (b *bench) wantLeft(when string, t sweep.Target, want map[string]string) {
	got := b.entities(t)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		text := want[name]
		switch now, ok := got[name]; {
		case !ok:
			b.Errorf("%s, %s is gone, which was to stay: %s", when, name, text)
		case now != text:
			b.Errorf("%s, %s is %s, and was %s", when, name, now, text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			b.Errorf("%s, %s is left, which was to go: %s", when, name, got[name])
		}
	}
}
