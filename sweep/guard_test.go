package sweep_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/datastorerpc"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A guarded is a sweep of one range in Datastore mode, of entities that are all due.
type guarded struct {
	db     *datastore.DB
	config sweep.Config
	faults *faultrpc.Injector
	log    *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newGuarded opens the emulator in such a way that the driver takes it for the service.
func newGuarded(t *testing.T, guard store.Guard, shards, workers, entities int) *guarded {
	t.Helper()
	t.Setenv("DATASTORE_EMULATOR_HOST", "")
	e := emulator.Start(t, emulator.Datastore)
	g := &guarded{faults: new(faultrpc.Injector), log: new(syncBuffer)}
	o := datastore.Options{Project: e.Project(t), Endpoint: e.Host, ClientOptions: datastorerpc.AsService()}
	o.Interceptors = append(o.Interceptors, g.faults.Intercept)
	db, err := datastore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	g.db = db
	g.config = sweep.Config{Store: db, Apply: true, Workers: workers, Grace: 8 * time.Second, Owner: t.Name(), Now: time.Now,
		Log: slog.New(slog.NewTextHandler(g.log, nil)),
		Targets: []sweep.Target{{
			Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text, Guard: guard,
				SingleValued: guard != store.GuardLookup},
			Layout: "sharded", Shards: shards, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
			Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
		}}}
	var all []store.Entity
	began := time.Now().Add(-time.Hour)
	for i := range entities {
		name := fmt.Sprintf("e-%05d", i)
		key, err := generation.Stamper{Shards: shards}.Name(name, began.Add(time.Duration(i)*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, store.Entity{Name: name, Expiry: store.TextValue(key.String())})
	}
	put(t, db, g.config.Targets[0], all...)
	g.faults.Reset()
	return g
}

// checks counts the checks by query, and the entities that were looked up.
func (g *guarded) checks() (queries, lookups int) {
	for _, c := range g.faults.Calls("") {
		if datastorerpc.IsQuery(c.Req) {
			queries++
		}
		lookups += datastorerpc.LookedUp(c.Req, "Session")
	}
	return queries, lookups
}

// With checks by query, one worker and full pages, a sweep bills at most 1.01 operations
// for each deleted entity, the delete and the reaper's own records included.
func TestQueryCostsHardlyMoreThanTheDelete(t *testing.T) {
	nightly.Races(t)
	n := nightly.Size(t, 10_000, 5_000)
	for guard, most := range map[store.Guard]float64{store.GuardAuto: 1.01, store.GuardLookup: 2.01} {
		g := newGuarded(t, guard, 1, 1, n)
		res := sweep.Run(t.Context(), g.config).Targets[0]
		if res.Deleted != int64(n) || !res.Complete || res.Error != "" {
			t.Fatalf("guard %s: %+v", guard, res)
		}
		o := res.Operations
		// On a busy machine it takes longer, and what it does by the clock (heartbeats, saves,
		// reads of the target record) is no cost of the deletes.
		byTheClock := 2 * max(0, res.Duration-10)
		each := (float64(o.Reads+o.Writes+o.Deletes) - byTheClock) / float64(n)
		t.Logf("guard %s: %+v for %d entities: %.4f operations each", guard, o, n, each)
		if each > most || each <= 1-byTheClock/float64(n) || o.Deletes < int64(n) {
			t.Errorf("guard %s: %.4f operations for each entity, want at most %v", guard, each, most)
		}
	}
}

// A contended check by query is tried once more. If it is contended again, its page uses
// lookup; after three such pages the whole range does.
func TestContendedQueriesGiveWayToLookups(t *testing.T) {
	nightly.Races(t)
	const n = 1000
	for _, c := range []struct {
		what            string
		times           int
		least, most     int  // entities that are looked up
		queriesToTheEnd bool // else there are no more than two for each of three pages
	}{
		{"one try", 1, 0, 0, true},
		{"one page", 2, 1, 500, true},
		{"all", -1, n, n, false},
	} {
		g := newGuarded(t, store.GuardAuto, 1, 1, n)
		g.faults.Add(datastorerpc.Contended(c.times))
		res := sweep.Run(t.Context(), g.config).Targets[0]
		if res.Deleted != n || !res.Complete || res.Conflicts != 0 || res.Error != "" {
			t.Errorf("%s: %+v", c.what, res)
		}
		queries, lookups := g.checks()
		if lookups < c.least || lookups > c.most || c.queriesToTheEnd && queries <= c.times+1 || !c.queriesToTheEnd && queries != 6 {
			t.Errorf("%s: %d queries and %d lookups", c.what, queries, lookups)
		}
		if said := strings.Contains(g.log.String(), "checks by query are contended"); said == c.queriesToTheEnd {
			t.Errorf("%s: the log says %s", c.what, g.log)
		}
		if left := names(t, g.db, g.config.Targets[0]); len(left) > 0 {
			t.Errorf("%s: %d are left", c.what, len(left))
		}
	}
}

// An application extends an entity while checks are contended: it stays.
func TestExtendedWhileContended(t *testing.T) {
	g := newGuarded(t, store.GuardAuto, 1, 1, 600)
	target := g.config.Targets[0]
	var once sync.Once
	extend := func(context.Context, any, any) {
		once.Do(func() {
			e := expiring(t, target, "e-00123", time.Now().Add(time.Hour))
			if err := g.db.Put(context.WithoutCancel(t.Context()), target.Target, "", []store.Entity{e}); err != nil {
				t.Error(err)
			}
		})
	}
	contended := datastorerpc.Contended(2)
	contended.Hook = extend
	g.faults.Add(contended)
	res := sweep.Run(t.Context(), g.config).Targets[0]
	if left := names(t, g.db, target); len(left) != 1 || !left["e-00123"] || res.Deleted != 599 {
		t.Errorf("left: %v; %+v", left, res)
	}
}

// The emulator refuses parallel range queries in transactions: a sweep that asks for
// them succeeds anyway.
func TestParallelQueriesOnTheEmulator(t *testing.T) {
	const n = 1500
	g := newGuarded(t, store.GuardQuery, 4, 4, n)
	res := sweep.Run(t.Context(), g.config).Targets[0]
	if res.Deleted != n || !res.Complete || res.Error != "" || len(names(t, g.db, g.config.Targets[0])) > 0 {
		t.Errorf("%+v", res)
	}
}

// inGroups makes the database one with entity groups.
func (g *guarded) inGroups() {
	for _, f := range datastorerpc.EntityGroups() {
		g.faults.Add(f)
	}
}

// In a database with entity groups, a sweep with auto or lookup learns the mode, logs it,
// and deletes or carries 25 entities at once.
func TestSweepWithEntityGroups(t *testing.T) {
	const n = 620
	for _, guard := range []store.Guard{store.GuardAuto, store.GuardLookup} {
		g := newGuarded(t, guard, 2, 2, n)
		g.inGroups()
		res := sweep.Run(t.Context(), g.config).Targets[0]
		if res.Deleted != n || !res.Complete || res.Error != "" || res.Refused+res.Conflicts > 0 {
			t.Errorf("guard %s: %+v", guard, res)
		}
		refused := 0
		for _, c := range g.faults.Calls("") {
			if c.Code.String() == "InvalidArgument" {
				refused++
			}
		}
		if refused == 0 || refused > 4 { // each worker finds out at most once by query and once by number
			t.Errorf("guard %s: %d calls were refused", guard, refused)
		}
		why := "optimistic with entity groups"
		if guard == store.GuardLookup {
			why = "guard: lookup"
		}
		if !strings.Contains(g.log.String(), "deletes are checked by lookup") || !strings.Contains(g.log.String(), why) ||
			!strings.Contains(g.log.String(), "entities_per_transaction=25") {
			t.Errorf("guard %s: the log says %s", guard, g.log)
		}
		if left := names(t, g.db, g.config.Targets[0]); len(left) > 0 {
			t.Errorf("guard %s: %d are left", guard, len(left))
		}
	}
}

// There an explicit guard query fails with an error that names the mode. Nothing is
// deleted, put aside or counted as refused.
func TestQueryWithEntityGroupsFails(t *testing.T) {
	g := newGuarded(t, store.GuardQuery, 2, 2, 40)
	g.inGroups()
	res := sweep.Run(t.Context(), g.config).Targets[0]
	if res.Complete || res.Deleted != 0 || res.Refused != 0 || len(names(t, g.db, g.config.Targets[0])) != 40 {
		t.Errorf("%+v", res)
	}
	for _, part := range []string{"guard query", "optimistic with entity groups"} {
		if !strings.Contains(res.Error, part) {
			t.Errorf("the error does not say %q: %s", part, res.Error)
		}
	}
	if !strings.Contains(res.Hint, "set guard to auto or lookup") {
		t.Errorf("the hint is %q", res.Hint)
	}
}
