package sweep_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A realStore is a driver with everything that these tests need.
type realStore interface {
	store.Store
	store.Writer
	store.Dumper
	store.Keyer
}

// onEachStore runs a test on every store, in every layout and under every guard
// that promises that a changed entity survives. All are in one range.
func onEachStore(t *testing.T, test func(t *testing.T, s realStore, c sweep.Config)) {
	config := func(s store.Store, guard store.Guard, workers int) sweep.Config {
		return sweep.Config{Store: s, Apply: true, Workers: workers, Grace: 8 * time.Second, Owner: t.Name(), Now: time.Now,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Targets: []sweep.Target{{
				Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text, Guard: guard, SingleValued: guard == store.GuardQuery},
				Layout: "generation", Generations: true, Shards: 1, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
				Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
			}}}
	}
	for _, layout := range []string{"generation", "timestamp", "sharded-timestamp"} {
		in := func(c sweep.Config) sweep.Config {
			layouts[layout](&c.Targets[0])
			if len(c.Targets[0].ShardValues) > 0 {
				c.Targets[0].ShardValues = c.Targets[0].ShardValues[:1]
			}
			return c
		}
		t.Run("embedded "+layout, func(t *testing.T) {
			db, err := embedded.Open(t.TempDir(), embedded.Options{Create: true, Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			test(t, db, in(config(db, "", 4)))
		})
		for _, group := range []bool{false, true} {
			t.Run(fmt.Sprintf("firestore %s group %v", layout, group), func(t *testing.T) {
				e := emulator.Start(t, emulator.Native)
				db, err := firestore.Open(t.Context(), firestore.Options{Project: e.Project(t), Emulator: e.Host})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				c := in(config(db, "", 4))
				c.Targets[0].Group = group
				test(t, db, c)
			})
		}
		guards := []store.Guard{store.GuardLookup, store.GuardQuery}
		if layout != "generation" {
			guards = guards[:1] // timestamps look like integers to a query
		}
		for _, guard := range guards {
			t.Run("datastore "+layout+" "+string(guard), func(t *testing.T) {
				e := emulator.Start(t, emulator.Datastore)
				db, err := datastore.Open(t.Context(), datastore.Options{Project: e.Project(t), Emulator: e.Host})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				workers := 4
				if guard == store.GuardQuery {
					workers = 1 // the emulator refuses concurrent transactions with queries
				}
				test(t, db, in(config(db, guard, workers)))
			})
		}
	}
}

func put(t *testing.T, s realStore, target sweep.Target, entities ...store.Entity) {
	t.Helper()
	for len(entities) > 0 {
		n := min(len(entities), store.MaxPage)
		if err := s.Put(context.WithoutCancel(t.Context()), target.Target, "", entities[:n]); err != nil {
			t.Fatal(err)
		}
		entities = entities[n:]
	}
}

// expiring returns an entity of the target's one range.
func expiring(t *testing.T, target sweep.Target, name string, expires time.Time) store.Entity {
	t.Helper()
	if target.Type == store.Instant {
		e := store.Entity{Name: name, Expiry: store.InstantValue(expires)}
		if len(target.ShardValues) > 0 {
			e.Shard = target.ShardValues[0]
		}
		return e
	}
	key, err := generation.Stamper{Generation: 1, Shards: 1}.Name(name, expires)
	if err != nil {
		t.Fatal(err)
	}
	return store.Entity{Name: name, Expiry: store.TextValue(key.String())}
}

func names(t *testing.T, s realStore, target sweep.Target) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for e, err := range s.Dump(t.Context(), target.Target, "") {
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name] = true
	}
	return all
}

// A hooked store runs a hook between each scan and the first delete after it.
type hooked struct {
	realStore
	once sync.Once
	hook func()
	// carries says that the first carry is waited for.
	carries bool
}

func (h *hooked) Dispose(ctx context.Context, b *store.Batch) error {
	if !h.carries || b.Ops[0].To.Type != store.Missing {
		h.once.Do(h.hook)
	}
	return h.realStore.Dispose(ctx, b)
}

func TestExtendedBetweenScanAndDeleteOnEachStore(t *testing.T) {
	onEachStore(t, func(t *testing.T, s realStore, c sweep.Config) {
		target := c.Targets[0]
		now := time.Now()
		var all []store.Entity
		for i := range 200 {
			all = append(all, expiring(t, target, fmt.Sprintf("e-%03d", i), now.Add(-time.Hour)))
		}
		put(t, s, target, all...)
		c.Store = &hooked{realStore: s, hook: func() {
			put(t, s, target, expiring(t, target, "e-100", now.Add(time.Hour)), expiring(t, target, "e-101", now.Add(-2*time.Hour)))
		}}
		res := sweep.Run(t.Context(), c).Targets[0]
		if left := names(t, s, target); len(left) != 1 || !left["e-100"] {
			t.Errorf("%d left: %v; want only the one that was extended", len(left), left)
		}
		if res.Deleted != 199 || res.Conflicts != 2 || !res.Complete {
			t.Errorf("result: %+v", res)
		}
	})
}

func TestManyAtOneInstantOnEachStore(t *testing.T) {
	nightly.Races(t)
	n := nightly.Size(t, 5000, 1200)
	onEachStore(t, func(t *testing.T, s realStore, c sweep.Config) {
		target := c.Targets[0]
		at := time.Now().Add(-time.Hour)
		kept := 0
		var all []store.Entity
		for i := range n {
			e := expiring(t, target, fmt.Sprintf("e-%04d", i), at)
			switch {
			case i%10 == 0 && target.Type == store.Text: // the same key and more: not an expiry key
				e.Expiry.Text += "?"
				kept++
			case i%10 == 0: // the same instant, as a number: in Datastore mode it has the same place
				e.Expiry = store.IntegerValue(at.UnixMicro())
				kept++
			case i%10 == 5 && target.Type == store.Text && target.Guard != store.GuardQuery: // the same key, in a list
				e.Expiry = store.Value{Type: store.List, Text: fmt.Sprintf("[%q]", e.Expiry.Text)}
				kept++
			}
			all = append(all, e)
		}
		put(t, s, target, all...)
		res := sweep.Run(t.Context(), c).Targets[0]
		if left := names(t, s, target); len(left) != kept {
			t.Errorf("%d left, want %d", len(left), kept)
		}
		// Where the index has them apart, they are not met but counted.
		if res.Deleted != int64(n-kept) || res.Malformed+res.Outside != int64(kept) || res.Expired != res.Deleted || res.Conflicts != 0 || !res.Complete {
			t.Errorf("result: %+v", res)
		}
		if target.Type == store.Text && res.Outside == 0 && res.Scanned != int64(n) {
			t.Errorf("scanned %d", res.Scanned)
		}
	})
}

// An entity that has expired and is rewritten every 20 ms by its application
// does not stop its range.
func TestHotEntityOnEachStore(t *testing.T) {
	nightly.Races(t)
	onEachStore(t, func(t *testing.T, s realStore, c sweep.Config) {
		t.Parallel() // most of the time goes by between two tries
		target := c.Targets[0]
		now := time.Now()
		var all []store.Entity
		for i := range 1000 {
			all = append(all, expiring(t, target, fmt.Sprintf("e-%04d", i), now.Add(-time.Hour+time.Duration(i)*time.Second)))
		}
		put(t, s, target, all...)
		hot, cancel := context.WithTimeout(t.Context(), nightly.Size(t, 2*time.Minute, 2*time.Second)) // a sweep tries for 90 s
		var group sync.WaitGroup
		group.Go(func() {
			for i := 0; throttle.Sleep(hot, 20*time.Millisecond) == nil; i++ {
				// A writer that loses against the sweep tries again, as an application does.
				_ = s.Put(context.Background(), target.Target, "", []store.Entity{expiring(t, target, "e-0100", now.Add(-time.Hour+time.Duration(i)*time.Millisecond))})
			}
		})
		res := sweep.Run(t.Context(), c).Targets[0]
		cancel()
		group.Wait()
		left := names(t, s, target)
		delete(left, "e-0100")
		if len(left) != 0 || res.Error != "" {
			t.Errorf("%d others left, result: %+v", len(left), res)
		}
	})
}

// draining saves a target record whose generation 1 is being drained into
// generation 2, both of one shard.
func draining(t *testing.T, c *sweep.Config) {
	t.Helper()
	target := &c.Targets[0]
	target.Policy = generation.Policy{Every: 1000 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 9}
	long := time.Now().Add(-100 * time.Hour)
	r := plan.First(target.Rules(), long.Add(-100*time.Hour))
	r, err := r.Advance(generation.Policy{Ramp: time.Hour, Shards: 1, Staleness: time.Minute, Slack: 10 * time.Minute}, long, true)
	if err != nil {
		t.Fatal(err)
	}
	r.Generations[0].Closed = r.Generations[1].Opened.Add(time.Hour)
	r.Generations[0].Draining = r.Generations[0].Closed.Add(time.Hour)
	if _, err := generation.Save(t.Context(), c.Store, r); err != nil {
		t.Fatal(err)
	}
}

// A writer that extends an entity while it is being carried wins, and what it wrote
// is kept.
func TestExtendedWhileCarriedOnEachStore(t *testing.T) {
	onEachStore(t, func(t *testing.T, s realStore, c sweep.Config) {
		target := c.Targets[0]
		if target.Type == store.Instant {
			return // timestamps are in no generation
		}
		draining(t, &c)
		now := time.Now().Truncate(time.Second)
		at := func(i int) time.Time { return now.Add(time.Duration(i+1) * time.Hour) }
		var all []store.Entity
		for i := range 200 {
			e := expiring(t, target, fmt.Sprintf("e-%03d", i), at(i))
			e.Data = fmt.Appendf(nil, `{"n": %d, "list": [1, null, {"deep": true}]}`, i)
			all = append(all, e)
		}
		put(t, s, target, all...)
		app := func(name string, expires time.Time) store.Entity {
			key, err := generation.Stamper{Generation: 2, Shards: 1}.Name(name, expires)
			if err != nil {
				t.Fatal(err)
			}
			return store.Entity{Name: name, Expiry: store.TextValue(key.String()), Data: []byte(`{"mine": true}`)}
		}
		c.Store = &hooked{realStore: s, carries: true, hook: func() {
			put(t, s, target, app("e-100", now.Add(9000*time.Hour)), expiring(t, target, "e-101", now.Add(-time.Hour)), app("e-102", now.Add(-time.Hour)))
		}}
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Error != "" || !res.Complete || res.Carried != 197 || res.Deleted < 1 || res.Deleted > 2 {
			t.Errorf("result: %+v", res)
		}
		seen := 0
		for e, err := range s.Dump(t.Context(), target.Target, "") {
			if err != nil {
				t.Fatal(err)
			}
			seen++
			var i int
			if _, err := fmt.Sscanf(e.Name, "e-%d", &i); err != nil {
				t.Fatal(err)
			}
			want, data := app(e.Name, at(i)).Expiry, all[i].Data
			if e.Name == "e-100" {
				want, data = app(e.Name, now.Add(9000*time.Hour)).Expiry, []byte(`{"mine": true}`)
			}
			if e.Name == "e-102" { // written behind the newest generation's cursor, it goes with the next rewind
				want, data = app(e.Name, now.Add(-time.Hour)).Expiry, []byte(`{"mine": true}`)
			}
			if e.Expiry != want || !sameJSON(t, e.Data, data) {
				t.Errorf("%s is %v %s, want %v %s", e.Name, e.Expiry, e.Data, want, data)
			}
		}
		if seen != 200-int(res.Deleted) {
			t.Errorf("%d are left, and %d were deleted of 200", seen, res.Deleted)
		}
	})
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// Both cloud drivers report push-back to the sweep. It slows down at once, continues without
// an error, and counts each delete once.
func TestPushbackOnTheCloudDrivers(t *testing.T) {
	const n = 1200
	run := func(t *testing.T, s realStore, faults *faultrpc.Injector) {
		t.Parallel() // most of it is waiting
		var first atomic.Pointer[time.Time]
		var refused, after atomic.Int64
		faults.Add(faultrpc.Fault{Times: -1, Code: faultrpc.Exhausted, Message: "Quota exceeded", Match: func(req any) bool {
			if text := fmt.Sprint(req); !strings.Contains(text, "delete") { // not records
				return false
			}
			now := time.Now()
			first.CompareAndSwap(nil, &now)
			since := now.Sub(*first.Load())
			if since > time.Second && (since < 5*time.Second || refused.Load() == 0) {
				refused.Add(1)
				return true
			}
			after.Add(1)
			return false
		}})
		c := sweep.Config{Store: s, Apply: true, Workers: 1, Grace: 8 * time.Second, Owner: t.Name(), Now: time.Now,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Targets: []sweep.Target{{
				Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text, Guard: store.GuardLookup},
				Layout: "sharded", Shards: 1, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
				Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Start: 200, Max: 200},
			}}}
		var all []store.Entity
		for i := range n {
			name := fmt.Sprintf("e-%04d", i)
			key, err := generation.Stamper{Shards: 1}.Name(name, time.Now().Add(-time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, store.Entity{Name: name, Expiry: store.TextValue(key.String())})
		}
		put(t, s, c.Targets[0], all...)
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Error != "" || !res.Complete || res.Deleted != n || res.Conflicts != 0 || res.Throttled["pushback"] == 0 {
			t.Errorf("%+v", res)
		}
		if refused.Load() == 0 || after.Load() == 0 {
			t.Errorf("%d calls were refused, %d were not", refused.Load(), after.Load())
		}
		st, err := inspect.Status(t.Context(), c, c.Targets[0])
		for err == nil && len(st.Ranges) == 0 { // a busy machine did not read them in time
			st, err = inspect.Status(t.Context(), c, c.Targets[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		if rate := *st.Ranges[0].Rate; rate > 110 || st.Ranges[0].ThrottledBy != "pushback" {
			t.Errorf("rate %.0f/s, held back by %s", rate, st.Ranges[0].ThrottledBy)
		}
		if left := names(t, s, c.Targets[0]); len(left) > 0 {
			t.Errorf("%d are left", len(left))
		}
	}
	onCloudStores(t, run)
}

// onCloudStores runs a test on the cloud drivers, whose calls it can have fail.
func onCloudStores(t *testing.T, test func(t *testing.T, s realStore, faults *faultrpc.Injector)) {
	onCloudStoresOf(t, emulator.Start, test)
}

func onCloudStoresOf(t *testing.T, start func(testing.TB, emulator.Mode) *emulator.Emulator,
	test func(t *testing.T, s realStore, faults *faultrpc.Injector),
) {
	t.Run("datastore", func(t *testing.T) {
		e := start(t, emulator.Datastore)
		faults := new(faultrpc.Injector)
		o := datastore.Options{Project: e.Project(t), Emulator: e.Host}
		o.Interceptors = append(o.Interceptors, faults.Intercept)
		db, err := datastore.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		test(t, db, faults)
	})
	t.Run("firestore", func(t *testing.T) {
		e := start(t, emulator.Native)
		faults := new(faultrpc.Injector)
		o := firestore.Options{Project: e.Project(t), Emulator: e.Host}
		o.Interceptors = append(o.Interceptors, faults.Intercept)
		db, err := firestore.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		test(t, db, faults)
	})
}

// An emulator reads all records for each page, so that a sweep takes their square.
var manyRecords = flag.Int("records", 0, "so many `records` for TestManyRecordsOnTheCloudStores; 70,000 take half an hour")

// However many records a target has, as of namespaces that another deployment sweeps, they
// are read by pages, and it is swept.
func TestManyRecordsOnTheCloudStores(t *testing.T) {
	nightly.Races(t)
	records, start := nightly.Size(t, 20_000, 1_200), emulator.Start
	if *manyRecords > 0 {
		records = *manyRecords
	}
	if records > 1_200 {
		start = emulator.StartOwn // an emulator with so many records is slow for all other tests
	}
	onCloudStoresOf(t, start, func(t *testing.T, s realStore, _ *faultrpc.Injector) {
		target := store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}
		c := sweep.Config{Store: s, Apply: true, Workers: 4, Grace: 8 * time.Second, Owner: t.Name(), Now: time.Now,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Targets: []sweep.Target{{Target: target, Layout: "generation", Generations: true, Shards: 1,
				MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second, Page: 500,
				Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true}}}}
		k := cursor.Keeper{Store: s, Owner: "another", Lease: 30 * time.Second, Now: time.Now, StoreNow: time.Now, Log: c.Log}
		group, ctx := errgroup.WithContext(t.Context())
		group.SetLimit(32)
		for i := range records {
			group.Go(func() error {
				id := cursor.ID{Target: "sessions", Namespace: fmt.Sprintf("tenant-%06d", i), Shard: "0000"}
				_, _, err := k.Move(ctx, cursor.Cursor{ID: id, Scope: c.Targets[0].Rules().Scope}, func(*cursor.Cursor) {})
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		put(t, s, c.Targets[0], expiring(t, c.Targets[0], "due", time.Now().Add(-time.Hour)),
			expiring(t, c.Targets[0], "alive", time.Now().Add(time.Hour)))
		began := time.Now()
		res := sweep.Run(t.Context(), c).Targets[0]
		t.Logf("%d records: a sweep took %v", records, time.Since(began))
		if got := names(t, s, c.Targets[0]); !res.Complete || res.Deleted != 1 || !got["alive"] || len(got) != 1 {
			t.Errorf("complete %v, %d deleted, left %v: %s", res.Complete, res.Deleted, got, res.Error)
		}
		var some []string
		for i := range 400 {
			id := cursor.ID{Target: "sessions", Namespace: fmt.Sprintf("tenant-%06d", i*(records/400)), Shard: "0000"}
			some = append(some, id.Key())
		}
		left, err := s.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions", Keys: some})
		if err != nil || len(left.List) < len(some) {
			t.Errorf("%d of %d records are left: %v", len(left.List), len(some), err)
		}
	})
}

// A dry run checks one page and counts the rest, so that it costs few reads; an exact one
// reads all of it. Both say how much is due.
func TestWhatADryRunCosts(t *testing.T) {
	nightly.Races(t)
	const n = 1200
	onEachStore(t, func(t *testing.T, s realStore, c sweep.Config) {
		target := c.Targets[0]
		var all []store.Entity
		for i := range n {
			all = append(all, expiring(t, target, fmt.Sprintf("e-%04d", i), time.Now().Add(-time.Hour+time.Duration(i)*time.Millisecond)))
		}
		put(t, s, target, all...)
		c.Apply = false
		sampled := sweep.Run(t.Context(), c).Targets[0]
		c.Exact = true
		exact := sweep.Run(t.Context(), c).Targets[0]
		if sampled.Error != "" || sampled.Expired != n || !sampled.Estimated || exact.Error != "" || exact.Expired != n || exact.Estimated {
			t.Errorf("sampled: %+v\nexact: %+v", sampled, exact)
		}
		few, many := sampled.Operations.Reads, exact.Operations.Reads
		t.Logf("%d are due: %d reads, exactly %d", n, few, many)
		if few > 1100 || many < few || target.Guard == store.GuardLookup && (few > 600 || many < n) {
			t.Errorf("%d reads, exactly %d", few, many)
		}
		if left := names(t, s, target); len(left) != n {
			t.Errorf("%d of %d are left", len(left), n)
		}
	})
}
