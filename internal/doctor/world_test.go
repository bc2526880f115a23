package doctor_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A database is a model store with what a service's administration would say of it, and with
// faults that a model store does not have.
type database struct {
	*modelstore.Store

	about      facts.Database
	fields     []facts.Field
	lacking    []string // permissions
	noAdmin    error    // why the administration does not answer
	kinds      []string
	recorded   []string
	namespaces []string
	offset     time.Duration   // of the store's clock
	unindexed  map[string]bool // keys without an entry in the index
	noIndex    bool            // a query needs one that does not exist
}

func (d *database) Describe(context.Context) (facts.Database, error) { return d.about, d.noAdmin }

func (d *database) Fields(context.Context, string) ([]facts.Field, error) { return d.fields, d.noAdmin }

func (d *database) Permitted(_ context.Context, wanted []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(wanted), func(p string) bool { return slices.Contains(d.lacking, p) }), d.noAdmin
}

func (d *database) Kinds(context.Context, int) ([]string, error)           { return d.kinds, nil }
func (d *database) RecordedTargets(context.Context, int) ([]string, error) { return d.recorded, nil }
func (d *database) Namespaces(context.Context) ([]string, error)           { return d.namespaces, nil }

func (d *database) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	got, err := d.Store.Load(ctx, q)
	got.Now = got.Now.Add(d.offset)
	return got, err
}

func (d *database) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	if d.noIndex {
		return fmt.Errorf("query %s: %w", q.Target.Kind, store.ErrMissingIndex)
	}
	err := d.Store.Scan(ctx, q, page)
	page.Entries = slices.DeleteFunc(page.Entries, func(e store.Entry) bool { return d.unindexed[e.Key] })
	return err
}

// A world is a database with entities, and what is needed to sweep and to examine it. It lives in
// a synctest bubble.
type world struct {
	t      *testing.T
	db     *database
	target sweep.Target
	setup  doctor.Setup
	env    map[string]string
	owners int
}

func newWorld(t *testing.T) *world {
	yes := true
	w := &world{t: t, env: map[string]string{}, db: &database{Store: modelstore.New(time.Now), namespaces: []string{""},
		kinds: []string{"Session"}, recorded: []string{"sessions"}, unindexed: map[string]bool{},
		about: facts.Database{Mode: facts.DatastoreMode, Edition: facts.Standard, Location: "eur3",
			Concurrency: "optimistic", Recovery: &yes, Protected: &yes}}}
	w.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Namespaces: []string{""},
		Pace:   throttle.Limits{Unlimited: true},
		Policy: generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32},
	}
	w.setup = doctor.Setup{Spec: "datastore:p", Mode: facts.DatastoreMode, Endpoint: "datastore.googleapis.com:443",
		Getenv: func(name string) string { return w.env[name] }}
	return w
}

// in runs a test in a healthy world: with live entities, swept a moment ago.
func in(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fill()
		test(w)
	})
}

func (w *world) config() sweep.Config {
	w.owners++
	return sweep.Config{Store: w.db, Targets: []sweep.Target{w.target}, Apply: true, Workers: 4, Grace: 8 * time.Second,
		Owner: fmt.Sprintf("process-%d", w.owners), Version: "v1.2.3", Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// fill writes an entity that is due into each range, sweeps, and adds some that are not due.
func (w *world) fill() {
	w.t.Helper()
	if _, _, err := sweep.EnsureRecord(w.t.Context(), w.config(), w.target); err != nil {
		w.t.Fatal(err)
	}
	for g := range 2 {
		for shard := range 4 {
			w.put(store.Entity{Name: fmt.Sprintf("due-%d-%d", g, shard), Expiry: w.key(g, shard, -time.Minute)})
		}
	}
	w.sweep()
	for i := range 30 {
		w.put(store.Entity{Name: fmt.Sprintf("s-%x", i*7919), Expiry: w.key(1, i%4, time.Hour)})
	}
}

func (w *world) sweep() {
	w.t.Helper()
	if res := sweep.Run(w.t.Context(), w.config()).Targets[0]; res.Error != "" {
		w.t.Fatalf("%+v", res)
	}
}

// key returns the expiry of an entity that expires some time from now.
func (w *world) key(number, shard int, in time.Duration) store.Value {
	w.t.Helper()
	k, err := expirykey.New(number, shard, time.Now().Add(in))
	if err != nil {
		w.t.Fatal(err)
	}
	return store.TextValue(k.String())
}

func (w *world) put(entities ...store.Entity) {
	w.t.Helper()
	if err := w.db.Put(w.t.Context(), w.target.Target, "", entities); err != nil {
		w.t.Fatal(err)
	}
}

// empty removes all entities.
func (w *world) empty() {
	for key := range w.db.Entities(w.target.Kind, "") {
		w.db.Remove(w.target.Kind, "", key)
	}
}

// edit changes a record as nobody should: past all checks. Without a record it begins an empty one.
func (w *world) edit(sort store.RecordSort, key string, change func(store.Fields)) {
	w.t.Helper()
	got, err := w.db.Load(w.t.Context(), store.RecordQuery{Sort: sort, Target: w.target.Name, Keys: []string{key}})
	if err != nil {
		w.t.Fatal(err)
	}
	r := store.Record{Sort: sort, Key: key, Target: w.target.Name, Fields: store.Fields{}}
	if len(got.List) > 0 {
		r = got.List[0]
	}
	was := r.Revision
	fields := store.Fields{}
	for name, v := range r.Fields {
		fields[name] = v
	}
	r.Fields, r.Revision = fields, store.NewRevision(was)
	change(r.Fields)
	if err := w.db.Save(w.t.Context(), r, was); err != nil {
		w.t.Fatal(err)
	}
}

// record changes the target record as the program does.
func (w *world) record(change func(*generation.Record)) {
	w.t.Helper()
	rec, _, err := generation.Load(w.t.Context(), w.db, w.target.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	change(&rec)
	if _, err := generation.Save(w.t.Context(), w.db, rec); err != nil {
		w.t.Fatal(err)
	}
}

// beat writes the heartbeat of another process.
func (w *world) beat(owner, version, why string, ago time.Duration) {
	w.t.Helper()
	at := store.FormatTime(time.Now().Add(-ago))
	w.edit(store.WorkerRecord, cursor.HeartbeatKey(w.target.Name, owner), func(f store.Fields) {
		for name, v := range map[string]any{"schema": int64(2), "owner": owner, "process": "p", "epoch": int64(1), "count": int64(3),
			"lease_ms": int64(30_000), "read": at, "begun": at, "renewed": at, "claims": int64(2), "version": version, "why": why} {
			f[name] = v
		}
	})
}

// examine makes all checks, and makes sure that they write nothing.
func (w *world) examine() doctor.Report {
	w.t.Helper()
	before := w.db.Writes()
	s := w.setup
	s.Sweep = w.config()
	s.Sweep.Targets = []sweep.Target{w.target}
	if s.OpenErr != nil {
		s.Sweep.Store = nil
	}
	if s.All == nil {
		s.All = s.Sweep.Targets
	}
	if s.Within == 0 {
		s.Within = time.Minute // of the bubble's time
	}
	r := doctor.Run(w.t.Context(), s)
	if w.db.Writes() != before {
		w.t.Error("an examination wrote something")
	}
	for _, f := range r.Findings {
		if f.What == "" || f.Mend == "" || f.Anchor != "docs/doctor.md#"+f.ID || !strings.HasSuffix(f.What, ".") {
			w.t.Errorf("a finding without all that it needs: %+v", f)
		}
	}
	return r
}

// found lists the ids of a report.
func found(r doctor.Report) (ids []string) {
	for _, f := range r.Findings {
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
