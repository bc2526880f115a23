package repair_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A database is a model store that lists the targets of which it has records.
type database struct{ *modelstore.Store }

func (d database) RecordedTargets(ctx context.Context, _ int) (names []string, err error) {
	for _, name := range []string{"old", "other", "sessions"} {
		got, err := d.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: name, Keys: []string{name}})
		if err != nil {
			return nil, err
		}
		if len(got.List) > 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// A world is a store with two targets that were swept: sessions, and old, which nobody configures.
// It lives in a synctest bubble.
type world struct {
	t      *testing.T
	db     database
	target sweep.Target
	old    sweep.Target
	config repair.Config
	owners int
}

func in(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, db: database{modelstore.New(time.Now)}}
		w.target = sweep.Target{
			Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
			Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
			Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Namespaces: []string{""},
			Pace:    throttle.Limits{Unlimited: true},
			History: sweep.History{Keep: 90 * 24 * time.Hour, Actor: "ann", Settings: []string{"page: 50"}},
			Policy: generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute,
				Keep: 32, Shards: 4},
		}
		w.old = w.target
		w.old.Name, w.old.Kind = "old", "Order"
		for _, target := range []sweep.Target{w.old, w.target} {
			w.fill(target)
		}
		time.Sleep(time.Hour)
		test(w)
	})
}

func (w *world) sweepConfig(targets ...sweep.Target) sweep.Config {
	w.owners++
	return sweep.Config{Store: w.db, Targets: targets, Apply: true, Workers: 4, Grace: 8 * time.Second,
		Owner: fmt.Sprintf("process-%d", w.owners), Version: "v1.2.3", Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// fill writes entities that are due, sweeps them, and writes one that lives.
func (w *world) fill(t sweep.Target) {
	w.t.Helper()
	if _, _, err := sweep.EnsureRecord(w.t.Context(), w.sweepConfig(t), t); err != nil {
		w.t.Fatal(err)
	}
	for shard := range 4 {
		w.put(t, fmt.Sprintf("due-%d", shard), 1, shard, -time.Minute)
	}
	w.sweep(t)
	w.put(t, "lives", 1, 0, 100*24*time.Hour)
}

func (w *world) put(t sweep.Target, name string, number, shard int, in time.Duration) {
	w.t.Helper()
	k, err := expirykey.New(number, shard, time.Now().Add(in))
	if err != nil {
		w.t.Fatal(err)
	}
	e := store.Entity{Name: name, Expiry: store.TextValue(k.String())}
	if err := w.db.Put(w.t.Context(), t.Target, "", []store.Entity{e}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) sweep(t sweep.Target) {
	w.t.Helper()
	if res := sweep.Run(w.t.Context(), w.sweepConfig(t)).Targets[0]; res.Error != "" {
		w.t.Fatalf("%+v", res)
	}
}

// edit changes a record as a person does: past all checks, and without a new revision. Without a
// record it begins one.
func (w *world) edit(sort store.RecordSort, target, key string, change func(store.Fields)) {
	w.t.Helper()
	r, found := w.record(sort, target, key)
	was := r.Revision
	if !found {
		r = store.Record{Sort: sort, Key: key, Target: target, Fields: store.Fields{}, Revision: store.NewRevision("")}
	} else { // the model keeps no record under the revision that it has
		w.remove(sort, target, key)
	}
	r.Fields = maps.Clone(r.Fields)
	change(r.Fields)
	if found {
		r.Revision = was
	}
	if err := w.db.Save(w.t.Context(), r, ""); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) record(sort store.RecordSort, target, key string) (store.Record, bool) {
	w.t.Helper()
	got, err := w.db.Load(w.t.Context(), store.RecordQuery{Sort: sort, Target: target, Keys: []string{key}})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(got.List) == 0 {
		return store.Record{}, false
	}
	return got.List[0], true
}

func (w *world) remove(sort store.RecordSort, target, key string) {
	w.t.Helper()
	r, found := w.record(sort, target, key)
	if !found {
		w.t.Fatalf("there is no %s %s", sort, key)
	}
	gone := store.Record{Sort: sort, Key: key, Target: target, Revision: store.NewRevision(r.Revision)}
	if err := w.db.Save(w.t.Context(), gone, r.Revision); err != nil {
		w.t.Fatal(err)
	}
}

// beat writes the heartbeat of another process.
func (w *world) beat(target, owner string, ago, lease time.Duration) string {
	w.t.Helper()
	at, key := store.FormatTime(time.Now().Add(-ago)), cursor.HeartbeatKey(target, owner)
	w.edit(store.WorkerRecord, target, key, func(f store.Fields) {
		for name, v := range map[string]any{"schema": int64(2), "owner": owner, "process": "p", "epoch": int64(1), "count": int64(3),
			"lease_ms": lease.Milliseconds(), "read": at, "begun": at, "renewed": at, "claims": int64(2), "version": "v1", "why": ""} {
			f[name] = v
		}
	})
	return key
}

// keys lists the keys of the records of a target.
func (w *world) keys(target string) (keys []string) {
	w.t.Helper()
	for _, sort := range []store.RecordSort{store.TargetRecord, store.CursorRecord, store.SealRecord, store.WorkerRecord,
		store.BudgetRecord, store.AdoptRecord, store.RestoreRecord} {
		err := store.LoadAll(w.t.Context(), w.db, store.RecordQuery{Sort: sort, Target: target}, func(page store.Records) error {
			for _, r := range page.List {
				keys = append(keys, string(sort)+" "+r.Key)
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return keys
}

// setup returns the config of a repair of the targets that are configured.
func (w *world) setup(id string, apply bool, names ...string) repair.Config {
	c := w.config
	c.ID, c.Spec, c.Apply, c.Names = id, "memory", apply, names
	c.All = []sweep.Target{w.target}
	c.Sweep = w.sweepConfig(w.target)
	return c
}

// repair says what a repair would change, and makes sure that it writes nothing.
func (w *world) look(id string, names ...string) repair.Result {
	w.t.Helper()
	before := w.db.Writes()
	r, err := repair.Run(w.t.Context(), w.setup(id, false, names...))
	if err != nil || r.Apply || w.db.Writes() != before {
		w.t.Errorf("%+v, %v: %d writes", r, err, w.db.Writes()-before)
	}
	for _, c := range r.Changes {
		if c.Done != 0 || c.Count == 0 {
			w.t.Errorf("%+v", c)
		}
	}
	return r
}

// apply makes a repair, and makes sure that it changes what it says without --apply.
func (w *world) apply(id string, names ...string) repair.Result {
	w.t.Helper()
	planned := w.look(id, names...)
	r, err := repair.Run(w.t.Context(), w.setup(id, true, names...))
	if err != nil || !r.Apply {
		w.t.Errorf("%+v, %v", r, err)
	}
	wantChanges(w.t, r, planned)
	for _, c := range r.Changes {
		if c.Done != c.Count {
			w.t.Errorf("only %d of %d: %+v", c.Done, c.Count, c)
		}
	}
	return r
}

// wantChanges compares what two repairs change.
func wantChanges(t *testing.T, got, want repair.Result) {
	t.Helper()
	same := slices.EqualFunc(got.Changes, want.Changes, func(a, b repair.Change) bool {
		return a.Target == b.Target && a.Action == b.Action && a.Record == b.Record && a.Key == b.Key && a.Count == b.Count
	})
	if !same {
		t.Errorf("changes %+v, want %+v", got.Changes, want.Changes)
	}
}

// wantLeft looks for a reason among what a repair has left alone.
func wantLeft(t *testing.T, r repair.Result, failed bool, why string) {
	t.Helper()
	if !slices.ContainsFunc(r.Left, func(l repair.Left) bool { return contains(l.Why, why) && l.Failed == failed }) {
		t.Errorf("nothing is left because %q (failed: %t): %+v", why, failed, r.Left)
	}
	if r.Failed() != failed {
		t.Errorf("failed: %t", r.Failed())
	}
}
