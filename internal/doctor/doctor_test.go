package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// Nothing is found in a healthy setup, and everything is checked.
func TestHealthy(t *testing.T) {
	in(t, func(w *world) {
		if r := w.examine(); len(r.Findings)+len(r.Unchecked) > 0 || r.Checks < 15 || r.Database == nil {
			t.Errorf("%+v", r)
		}
	})
}

// failing makes all reads of records fail.
func failing(w *world, err error) {
	w.db.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "Load" {
			return fmt.Errorf("load: %w", err)
		}
		return nil
	}
}

var no = false

// faults has, for each finding, a fault that shows it, and what else the fault shows.
var faults = []struct {
	id   string
	also []string
	seed func(w *world)
}{
	{"access-denied", nil, func(w *world) { failing(w, store.ErrDenied) }},
	{"database-missing", nil, func(w *world) { failing(w, store.ErrNotFound) }},
	{"database-missing", nil, func(w *world) { w.setup.Mode, w.setup.OpenErr = "", fs.ErrNotExist }},
	{"store-unreachable", nil, func(w *world) { failing(w, store.ErrUnavailable) }},
	{"store-unusable", nil, func(w *world) { w.setup.OpenErr = store.ErrCorrupt }},
	{"credentials-missing", nil, func(w *world) { w.setup.OpenErr = store.WithHint(store.ErrDenied, "log in") }},
	{"credentials-missing", nil, func(w *world) { // a file that does not exist is named
		w.setup.OpenErr = store.WithHint(fmt.Errorf("open: %w: %w", store.ErrDenied, fs.ErrNotExist), "log in")
	}},
	{"permission-missing", nil, func(w *world) { w.db.lacking = []string{"datastore.entities.delete"} }},
	{"permission-missing", nil, func(w *world) {
		w.target.Namespaces, w.db.lacking = []string{"*"}, []string{"datastore.namespaces.list"}
	}},
	{"emulator-unused", nil, func(w *world) { w.env["FIRESTORE_EMULATOR_HOST"] = "127.0.0.1:1" }},
	{"emulator-unused", nil, func(w *world) { w.setup.Mode, w.env["DATASTORE_EMULATOR_HOST"] = "", "127.0.0.1:1" }},
	{"emulator-accidental", nil, func(w *world) {
		w.env["DATASTORE_EMULATOR_HOST"], w.env["KUBERNETES_SERVICE_HOST"] = "127.0.0.1:1", "10.0.0.1"
	}},

	{"concurrency-mode", nil, func(w *world) { w.db.about.Concurrency = facts.OptimisticWithGroups }},
	{"database-deleted", nil, func(w *world) { w.db.about.Deleted = time.Now() }},
	{"database-edition", nil, func(w *world) { w.db.about.Edition = facts.Enterprise }},
	{"database-mode", nil, func(w *world) { w.db.about.Mode = facts.NativeMode }},
	{"protection-off", nil, func(w *world) { w.db.about.Protected = &no }},
	{"recovery-off", nil, func(w *world) { w.db.about.Recovery = &no }},
	{"ttl-policy", nil, func(w *world) { w.db.fields = []facts.Field{{Name: "expiry_key", TTL: true}} }},
	{"ttl-policy-nearby", nil, func(w *world) { w.db.fields = []facts.Field{{Name: "other", TTL: true}} }},

	{"kind-empty", nil, (*world).empty},
	{"kind-misspelt", nil, func(w *world) { w.empty(); w.db.kinds = []string{"Order", "ReaperTarget", "session"} }},
	{"namespace-left-out", nil, func(w *world) {
		w.empty()
		w.db.namespaces = []string{"", "eu"}
		if err := w.db.Put(w.t.Context(), w.target.Target, "eu", []store.Entity{{Name: "a", Expiry: w.key(1, 0, time.Hour)}}); err != nil {
			w.t.Fatal(err)
		}
	}},
	{"property-missing", nil, func(w *world) {
		w.empty()
		w.put(store.Entity{Name: "a", Data: []byte(`{"expirykey":"x"}`)}, store.Entity{Name: "b"})
	}},
	{"property-type", []string{"outside"}, func(w *world) {
		w.empty()
		w.put(store.Entity{Name: "a", Expiry: store.InstantValue(time.Now())})
	}},
	{"record-differs", nil, func(w *world) { w.record(func(r *generation.Record) { r.Kind = "Order" }) }},
	{"shards-few", nil, func(w *world) { // 4 shards take 2,000 a second
		w.ran("serve", 2*time.Hour, time.Hour, history.Done, metrics.Counts{Deleted: 2500 * 3600})
	}},
	{"target-unconfigured", nil, func(w *world) { w.another("orders", "Order") }},
	{"target-renamed", nil, func(w *world) { w.another("old", "Session") }},
	{"target-swept-twice", nil, func(w *world) {
		name := w.target.Name
		w.another("old", "Session")
		w.target.Name = "old"
		w.beat("host/1", "v1", "", time.Second)
		w.target.Name = name
	}},
	{"target-superseded", []string{"targets-overlap"}, func(w *world) {
		other := w.target
		other.Name, other.Property = "adopted", "key"
		w.setup.All = []sweep.Target{w.target, other}
		w.target.Name = "adopted"
		w.edit(store.AdoptRecord, "adopted", func(f store.Fields) {
			f["schema"], f["kind"], f["property"], f["phase"] = int64(1), "Session", "key", "finished"
			f["rule"], f["rule_property"], f["began"] = "property expiry_key", "expiry_key", store.FormatTime(time.Now())
			f["rounds"] = []store.Fields{{"number": int64(1), "began": store.FormatTime(time.Now()), "percent": 100.0}}
			f["parts"] = []store.Fields{{"namespace": "", "until": ""}}
		})
		w.target.Name = "sessions"
	}},
	{"targets-overlap", nil, func(w *world) {
		other := w.target
		other.Name, other.Property = "other", "key"
		w.setup.All = []sweep.Target{w.target, other}
	}},

	{"index-empty", nil, func(w *world) { w.record(func(r *generation.Record) { r.EmptyIndex = true }) }},
	{"index-exempt", nil, func(w *world) {
		w.setup.Mode, w.db.about.Mode = facts.NativeMode, facts.NativeMode
		w.db.fields = []facts.Field{{Name: "expiry_key", Own: true, AscendingGroup: true}}
	}},
	{"property-unindexed", nil, func(w *world) {
		for key := range w.db.Entities("Session", "") {
			w.db.unindexed[key] = true
		}
	}},

	{"clock-drift", nil, func(w *world) { w.db.offset = -7 * time.Second }},
	{"clock-skew", nil, func(w *world) { w.db.offset = 20 * time.Second }},
	{"clock-skew", nil, func(w *world) { w.db.offset = -time.Hour; w.target.Retention = 2 * time.Hour }},
	{"store-slow", nil, func(w *world) {
		w.setup.Within = time.Hour
		w.db.Before = func(_ context.Context, c modelstore.Call) error {
			if len(c.Records.Keys) == 1 { // a small read
				time.Sleep(1200 * time.Millisecond)
			}
			return nil
		}
	}},

	{"breaker-open", nil, func(w *world) {
		w.target.Breaker = rules
		w.record(func(r *generation.Record) {
			r.Trip = breaker.Trip{ID: "x", Rule: "burst", At: time.Now(), Due: 5000, Limit: 1000}
		})
	}},
	{"breaker-uncounted", nil, func(w *world) { w.budget(breaker.Budget{Uncounted: "the index is not there"}) }},
	{"breaker-blind", nil, func(w *world) { w.budget(breaker.Budget{}); w.target.Breaker.Fraction = 1 }},
	{"limit-used-up", nil, func(w *world) {
		w.target.Limits = breaker.Limits{PerHour: 10}
		w.budget(breaker.Budget{Spent: breaker.Spent{Hour: time.Now().UTC().Truncate(time.Hour), InHour: 10}})
	}},
	{"gate-closed", nil, func(w *world) {
		w.target.Gate = func(context.Context) error { return errors.New("closed for the night") }
	}},
	{"paused", nil, func(w *world) { w.record(func(r *generation.Record) { r.Paused, r.PauseNote.Actor = true, "ann" }) }},
	{"config-drift", nil, func(w *world) {
		w.target.History = sweep.History{Keep: time.Hour, Settings: []string{"page: 50", "shards: 4"}}
		w.sweep()
		w.target.History.Settings = []string{"page: 70", "shards: 4"}
	}},
	{"heartbeat-malformed", nil, func(w *world) {
		w.beat("host/1", "v1", "", time.Second)
		w.edit(store.WorkerRecord, cursor.HeartbeatKey("sessions", "host/1"), func(f store.Fields) { f["epoch"] = "one" })
	}},
	{"worker-dead", nil, func(w *world) { w.beat("host/1", "v1", "", 5*time.Minute) }},
	{"worker-fault", nil, func(w *world) { w.beat("host/1", "v1", "cannot write the heartbeat", time.Second) }},
	{"version-drift", nil, func(w *world) { w.beat("host/1", "v1", "", time.Second); w.beat("host/2", "v2", "", time.Second) }},
	{"never-applied", nil, func(w *world) {
		w.target.Name = "fresh"
		w.setup.All = []sweep.Target{w.target}
		w.db.recorded = []string{"fresh"}
		time.Sleep(3 * time.Hour)
	}},
	{"never-complete", nil, func(w *world) {
		for i, end := range []history.End{history.Deadline, history.Signal, history.Lost} {
			w.ran("sweep", time.Duration(3-i)*time.Hour, time.Minute, end, metrics.Counts{Deleted: 1})
		}
	}},
	{"sweeps-failing", nil, func(w *world) {
		w.ran("sweep", 2*time.Hour, time.Minute, history.Done, metrics.Counts{Deleted: 1})
		w.ran("sweep", time.Hour, time.Minute, history.Failed, metrics.Counts{})
	}},
	{"pushed-back", nil, func(w *world) {
		for _, shard := range []int{1, 2} {
			w.put(store.Entity{Name: fmt.Sprintf("late-%d", shard), Expiry: w.key(1, shard, time.Second)})
			w.edit(store.CursorRecord, fmt.Sprintf("sessions.00000001.%04d", shard), func(f store.Fields) { f["throttled_by"] = "pushback" })
		}
		time.Sleep(2 * time.Second)
	}},
	{"not-swept", nil, func(w *world) { time.Sleep(3 * time.Hour) }},
	{"sweeps-late", nil, func(w *world) { time.Sleep(3 * time.Hour); w.beat("host/1", "v1", "", time.Second) }},

	{"behind-cursors", nil, func(w *world) { w.put(store.Entity{Name: "late", Expiry: w.key(1, 2, -time.Hour)}) }},
	{"breaker-would-trip", []string{"behind-cursors"}, func(w *world) {
		w.put(store.Entity{Name: "late", Expiry: w.key(1, 2, -time.Hour)})
		w.beat("host/1", "v1", "", time.Second)
		w.edit(store.WorkerRecord, cursor.HeartbeatKey("sessions", "host/1"), func(f store.Fields) {
			f["behind"], f["behind_counted"] = int64(5000), store.FormatTime(time.Now())
			f["would_trip_late"], f["would_trip_limit"] = int64(5000), int64(1000)
		})
	}},
	{"descendants-left", nil, func(w *world) {
		w.setup.Mode, w.db.about.Mode = facts.NativeMode, facts.NativeMode
		for key := range w.db.Entities("Session", "") {
			w.db.PutBelow("Session", "", key, modelstore.Kin{Path: "posts/p"})
		}
	}},
	{"refused", []string{"behind-cursors"}, func(w *world) {
		w.put(store.Entity{Name: "late", Expiry: w.key(1, 2, -time.Hour)})
		w.edit(store.CursorRecord, "sessions.00000001.0002", func(f store.Fields) { f["refused"] = true })
	}},
	{"ids-monotonic", nil, func(w *world) {
		w.empty()
		for i := range int64(30) {
			w.put(store.Entity{Number: 1000 + i, Expiry: w.key(1, 0, time.Hour)})
		}
	}},
	{"life-too-long", nil, func(w *world) { w.put(store.Entity{Name: "old", Expiry: w.key(1, 3, 33*24*time.Hour)}) }},
	{"life-too-long", nil, func(w *world) { // of which the newest generation knows nothing yet
		w.record(func(r *generation.Record) {
			next := r.Generations[0]
			next.Number = 2
			r.Generations[0].Opened, r.Generations[0].Closed = time.Now().Add(-26*time.Hour), time.Now().Add(-time.Hour)
			r.Generations = append(r.Generations, next)
		})
		w.put(store.Entity{Name: "old", Expiry: w.key(1, 3, 33*24*time.Hour)})
	}},
	{"lives-halved", nil, func(w *world) {
		lives := breaker.Budget{}
		for h := 20; h >= 0; h-- {
			life := 24 * time.Hour
			if h < 2 {
				life = time.Hour
			}
			lives = lives.TakeLives(time.Now().Add(-time.Duration(h)*time.Hour), map[int]int64{breaker.BucketOf(life): 1000})
		}
		w.budget(breaker.Budget{Lives: lives.Lives})
	}},
	{"mismatch", nil, func(w *world) { w.ran("serve", 2*time.Hour, time.Hour, history.Done, metrics.Counts{Mismatch: 3}) }},
	{"strays", nil, func(w *world) { w.ran("audit", 2*time.Hour, time.Hour, history.Done, metrics.Counts{Strays: 3}) }},
	{"record-lost", nil, func(w *world) { w.forget(store.TargetRecord, "sessions") }},
	{"malformed", nil, func(w *world) {
		w.put(store.Entity{Name: "odd", Expiry: store.TextValue("00000001.0002.19991340T000000.000Z")})
	}},
	{"outside", nil, func(w *world) { w.put(store.Entity{Name: "odd", Expiry: store.TextValue("zzz")}) }},
	{"suspect", nil, func(w *world) { w.put(store.Entity{Name: "odd", Expiry: w.key(1, 2, -6*365*24*time.Hour)}) }},
	{"record-malformed", nil, func(w *world) {
		w.edit(store.TargetRecord, "sessions", func(f store.Fields) { f["created"] = "yesterday" })
	}},
	{"record-newer", nil, func(w *world) {
		w.edit(store.TargetRecord, "sessions", func(f store.Fields) { f["schema"] = int64(99) })
	}},
	{"record-newer", nil, func(w *world) {
		w.edit(store.CursorRecord, "sessions.00000001.0002", func(f store.Fields) { f["schema"] = int64(99) })
	}},
	{"record-old-copy", nil, func(w *world) {
		w.edit(store.CursorRecord, "sessions.00000001.0002", func(f store.Fields) { f["target_revision"] = int64(1) << 60 })
	}},
	{"records-mixed", []string{"outside"}, func(w *world) {
		w.put(store.Entity{Name: "later", Expiry: w.key(9, 0, time.Hour)})
	}},
}

// rules are those of a breaker with the defaults.
var rules = breaker.Rules{On: true, Floor: 1000, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour}

// budget gives the target a breaker and a budget.
func (w *world) budget(b breaker.Budget) {
	w.t.Helper()
	w.target.Breaker = rules
	b.Target, b.Began, b.Revision = w.target.Name, time.Now().Add(-48*time.Hour), store.NewRevision("")
	if err := w.db.Save(w.t.Context(), b.Encode(), ""); err != nil {
		w.t.Fatal(err)
	}
}

// ran writes what a run has left in the history.
func (w *world) ran(task string, ago, long time.Duration, end history.End, counts metrics.Counts) {
	w.t.Helper()
	r := history.NewRun(w.target.Name, task, history.Origin{Actor: "ann", Host: "host", Owner: "host/1"}, time.Now().Add(-ago))
	r.Run.Updated = r.At.Add(long)
	r.Run.Ended, r.Run.End, r.Run.Sums = r.Run.Updated, end, []history.Sum{{Account: "all", Counts: counts}}
	if end == history.Failed {
		r.Run.Error, r.Run.Failures = "the disk is full", 1
	}
	if _, err := history.Save(w.t.Context(), w.db, r.KeptFor(90*24*time.Hour)); err != nil {
		w.t.Fatal(err)
	}
}

// forget removes a record.
func (w *world) forget(sort store.RecordSort, key string) {
	w.t.Helper()
	got, err := w.db.Load(w.t.Context(), store.RecordQuery{Sort: sort, Target: w.target.Name, Keys: []string{key}})
	if err != nil || len(got.List) != 1 {
		w.t.Fatalf("%+v, %v", got, err)
	}
	was := got.List[0].Revision
	gone := store.Record{Sort: sort, Key: key, Target: w.target.Name, Revision: store.NewRevision(was)}
	if err := w.db.Save(w.t.Context(), gone, was); err != nil {
		w.t.Fatal(err)
	}
}

// another writes the record of a target that is not configured.
func (w *world) another(name, kind string) {
	w.t.Helper()
	w.db.recorded = append(w.db.recorded, name)
	if _, err := generation.Save(w.t.Context(), w.db, generation.New(name, kind, "expiry_key", 4, true, time.Now())); err != nil {
		w.t.Fatal(err)
	}
}

// Each fault is found by its id, and nothing else is found.
func TestFaults(t *testing.T) {
	for i, f := range faults {
		t.Run(fmt.Sprintf("%s-%d", f.id, i), func(t *testing.T) {
			in(t, func(w *world) {
				f.seed(w)
				r := w.examine()
				want := append([]string{f.id}, f.also...)
				slices.Sort(want)
				if got := found(r); !slices.Equal(got, want) {
					t.Errorf("found %q, want %q", got, want)
				}
				for _, f := range r.Findings {
					t.Logf("%s %s: %s %q -> %s", f.Severity, f.ID, f.What, f.Evidence, f.Mend)
				}
				for _, u := range r.Unchecked {
					t.Logf("unchecked %s: %s", u.ID, u.Why)
				}
			})
		})
	}
}

// A query without the index that it needs makes most other checks fail: each says so.
func TestMissingIndex(t *testing.T) {
	in(t, func(w *world) {
		w.db.noIndex = true
		r := w.examine()
		if got := found(r); !slices.Equal(got, []string{"index-missing"}) || len(r.Unchecked) == 0 {
			t.Errorf("%q, %+v", got, r.Unchecked)
		}
	})
}

// Of many namespaces the first are read. The others may hold what these lack, so it is not missed, and the
// report says that they were not read.
func TestManyNamespaces(t *testing.T) {
	many := func(w *world) {
		w.empty()
		w.db.namespaces, w.db.kinds = []string{""}, []string{"Sessions"}
		for i := range 40 {
			w.db.namespaces = append(w.db.namespaces, fmt.Sprintf("t%02d", i))
		}
	}
	put := func(w *world, namespace string, e store.Entity) {
		if err := w.db.Put(w.t.Context(), w.target.Target, namespace, []store.Entity{e}); err != nil {
			w.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		why  string
		want []string
		seed func(w *world)
	}{
		"empty": {"the first 32 of 41 namespaces", nil, func(w *world) {
			w.target.Namespaces = []string{"*"}
			put(w, "t39", store.Entity{Name: "a", Expiry: w.key(1, 1, time.Hour)})
		}},
		"without the property": {"the first 32 of 41 namespaces", nil, func(w *world) {
			w.target.Namespaces = []string{"*"}
			put(w, "t39", store.Entity{Name: "a", Expiry: w.key(1, 1, time.Hour)})
			put(w, "t00", store.Entity{Name: "b"})
		}},
		"elsewhere": {"the first 32 of 40 other namespaces", nil, func(w *world) {
			put(w, "t39", store.Entity{Name: "a", Expiry: w.key(1, 1, time.Hour)})
		}},
		"left out": {"the first 32 of 40 other namespaces", []string{"namespace-left-out"}, func(w *world) {
			put(w, "t07", store.Entity{Name: "a", Expiry: w.key(1, 1, time.Hour)})
		}},
		"few": {"", []string{"kind-misspelt"}, func(w *world) { w.db.namespaces = w.db.namespaces[:32] }},
	} {
		in(t, func(w *world) {
			many(w)
			c.seed(w)
			r := w.examine()
			if got := found(r); !slices.Equal(got, c.want) {
				t.Errorf("%s: found %q, want %q", name, got, c.want)
			}
			var whys []string
			for _, u := range r.Unchecked {
				whys = append(whys, u.ID+" of "+u.Target+": "+u.Why)
			}
			want := []string{"sample of sessions: only " + c.why + " were read"}
			if c.why == "" {
				want = nil
			}
			if !slices.Equal(whys, want) {
				t.Errorf("%s: unchecked %q, want %q", name, whys, want)
			}
		})
	}
}

// What is left out, because there is too much of it, is named.
func TestManyNames(t *testing.T) {
	for _, c := range []struct {
		targets, kinds int
		want           []string
	}{
		{50, 1000, nil},
		{51, 1001, []string{
			"kinds: only the first 1000 kinds were looked at",
			"target records: of 51 targets that have records and are not configured only the first 50 were looked at",
		}},
		{501, 1, []string{
			"target records: only the first 500 targets that have records were looked at",
			"target records: of 500 targets that have records and are not configured only the first 50 were looked at",
		}},
	} {
		in(t, func(w *world) {
			w.empty()
			w.db.recorded, w.db.kinds = nil, nil
			for i := range c.targets {
				w.db.recorded = append(w.db.recorded, fmt.Sprintf("t-%d", i))
			}
			for i := range c.kinds {
				w.db.kinds = append(w.db.kinds, fmt.Sprintf("Kind%04d", i))
			}
			var got []string
			for _, u := range w.examine().Unchecked {
				got = append(got, u.ID+": "+u.Why)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%d targets, %d kinds: unchecked %q, want %q", c.targets, c.kinds, got, c.want)
			}
		})
	}
}

// A kind that the store lists is not misspelt, whatever is near.
func TestKindThatIsListed(t *testing.T) {
	in(t, func(w *world) {
		w.empty()
		w.db.kinds = []string{"Session", "Sessions"}
		if got := found(w.examine()); !slices.Equal(got, []string{"kind-empty"}) {
			t.Errorf("found %q", got)
		}
	})
}

// Each kind of finding is shown by a fault.
func TestEachFindingHasAFault(t *testing.T) {
	seeded := map[string]bool{"index-missing": true} // see TestMissingIndex
	for _, f := range faults {
		seeded[f.id] = true
	}
	for id := range doctor.IDs() {
		if !seeded[id] {
			t.Errorf("no fault shows %s", id)
		}
	}
}

// A record that the store cannot decode is a finding that names it, and the other checks are made.
func TestUndecodable(t *testing.T) {
	for _, sort := range []store.RecordSort{store.TargetRecord, store.CursorRecord, store.SealRecord, store.WorkerRecord,
		store.BudgetRecord, store.AdoptRecord, store.SweepRecord} {
		in(t, func(w *world) {
			w.target.Breaker, w.target.History.Settings = rules, []string{"page: 50"}
			w.another("orders", "Order")
			w.another("visits", "Visit")
			w.db.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Load" && c.Record.Sort == sort && c.Records.Target != "visits" {
					return fmt.Errorf("%s x: %w: field created is a time.Time", sort, store.ErrCorrupt)
				}
				return nil
			}
			r := w.examine()
			named := slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
				return f.ID == "record-malformed" && f.Severity == doctor.Error && f.Target == "sessions" &&
					strings.Contains(f.Evidence[0], string(sort)+" x: ") && strings.Contains(f.Mend, "by hand")
			})
			if !named {
				t.Errorf("%s: %+v, %+v", sort, r.Findings, r.Unchecked)
			}
			others := slices.DeleteFunc(found(r), func(id string) bool { return id == "record-malformed" })
			if !slices.Equal(others, []string{"target-unconfigured"}) {
				t.Errorf("%s: found %q", sort, others)
			}
			for _, u := range r.Unchecked { // what depends on that record
				if u.ID != "state and data" && u.ID != "status" {
					t.Errorf("%s: %+v", sort, u)
				}
			}
		})
	}
}

// A store that cannot read a record that does not exist is damaged as a whole.
func TestDamagedStore(t *testing.T) {
	in(t, func(w *world) {
		failing(w, store.ErrCorrupt)
		if r := w.examine(); !slices.Equal(found(r), []string{"store-unusable"}) {
			t.Errorf("%+v", r.Findings)
		}
	})
}

// What the administration does not say is unchecked, with the reason; an emulator's reason is short.
func TestAdministrationIsSilent(t *testing.T) {
	for _, why := range []error{facts.ErrEmulated, fmt.Errorf("describe: %w: the API is switched off", store.ErrDenied)} {
		in(t, func(w *world) {
			w.db.noAdmin = fmt.Errorf("describe: %w", why)
			r := w.examine()
			var ids []string
			for _, u := range r.Unchecked {
				ids = append(ids, u.ID)
				if errors.Is(why, facts.ErrEmulated) != (u.Why == "not available on the emulator") {
					t.Errorf("%+v", u)
				}
			}
			if want := []string{"database", "field policies", "permissions"}; len(r.Findings) > 0 || !slices.Equal(ids, want) {
				t.Errorf("%q, %+v", ids, r.Findings)
			}
		})
	}
}

// A store that never answers costs no more than the time that was given, and all that could not be
// checked is named.
func TestSilentStore(t *testing.T) {
	in(t, func(w *world) {
		w.setup.Within = doctor.DefaultWithin
		silent := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		w.db.Before = func(ctx context.Context, c modelstore.Call) error { return silent(ctx) }
		began := time.Now()
		r := w.examine()
		if took := time.Since(began); took > doctor.DefaultWithin {
			t.Errorf("it took %v", took)
		}
		if got := found(r); !slices.Equal(got, []string{"store-unreachable"}) || len(r.Unchecked) == 0 {
			t.Errorf("%q, %+v", got, r.Unchecked)
		}
	})
	in(t, func(w *world) { // only queries are not answered
		w.setup.Within = doctor.DefaultWithin
		w.db.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Load" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		r := w.examine()
		if took := time.Since(began); took > doctor.DefaultWithin {
			t.Errorf("it took %v", took)
		}
		if len(r.Findings) > 0 || len(r.Unchecked) == 0 || !strings.Contains(r.Unchecked[0].Why, "--wait 36s") {
			t.Errorf("%+v", r)
		}
	})
}

// Many targets are examined in the same time, and what one of them does not have does not keep the
// others from being examined.
func TestManyTargets(t *testing.T) {
	in(t, func(w *world) {
		s := w.setup
		s.Sweep, s.Within = w.config(), doctor.DefaultWithin
		s.Sweep.Targets = nil
		for i := range 200 {
			other := w.target
			other.Name, other.Kind = fmt.Sprintf("t-%d", i), fmt.Sprintf("Kind%d", i)
			if i == 7 {
				other.Kind = w.target.Kind
			}
			s.Sweep.Targets = append(s.Sweep.Targets, other)
		}
		s.All, w.db.recorded = s.Sweep.Targets, nil
		r := doctor.Run(w.t.Context(), s)
		empty := 0
		for _, f := range r.Findings {
			if f.ID == "kind-empty" {
				empty++
			}
		}
		if empty != 199 || len(r.Unchecked) > 0 || len(r.Targets) != 200 {
			t.Errorf("%d kinds are empty; %q; %+v", empty, found(r), r.Unchecked)
		}
	})
}

// An examination that is interrupted says so.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fill()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := w.setup
		s.Sweep = w.config()
		if r := doctor.Run(ctx, s); len(r.Findings) > 0 || len(r.Unchecked) == 0 || r.Unchecked[0].Why != "it was interrupted" {
			t.Errorf("%+v", r)
		}
	})
}

// Each finding has its section in the page, with its severity, and each section is of a finding.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../" + doctor.Page)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, s := range regexp.MustCompile(`(?s)\n### ([a-z-]+)\n\n(\w+)[.:]`).FindAllStringSubmatch(string(text), -1) {
		sections[s[1]] = strings.ToLower(s[2])
	}
	for id, severity := range doctor.IDs() {
		if sections[id] != string(severity) {
			t.Errorf("%s is of severity %s, and its section begins with %q", id, severity, sections[id])
		}
		delete(sections, id)
	}
	for id := range sections {
		t.Errorf("the page has a section for %s, and there is no such finding", id)
	}
}

// What is advised for a long life can be written into the targets file, and mends it.
func TestMendLongLife(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		longest, every time.Duration
		says           string
	}{
		{33 * day, day, "write generations.keep: 33 in"},
		{64 * day, day, "write generations.keep: 64 in"},
		{65 * day, day, "write generations: {every: 48h, keep: 64} in"},
		{360 * day, day, "write generations: {every: 144h, keep: 64} in"},
		{100 * 365 * day, day, "what never expires needs no key"},
	} {
		if got := doctor.MendLongLife(c.longest, c.every); !strings.HasPrefix(got, c.says) {
			t.Errorf("%v: %q, want %q", c.longest, got, c.says)
		}
	}
}
