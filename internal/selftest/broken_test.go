package selftest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/selftest"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// A flaw is a store that breaks a promise, and checks that say so.
type flaw struct {
	what  string // a store that …
	make  func(*embedded.DB) selftest.Database
	bills bool     // the checks of a store that bills are made, too
	also  []string // checks that are made, too
	fails []string
}

// with makes a broken store.
func with(breaks func(*broken)) func(*embedded.DB) selftest.Database {
	return func(db *embedded.DB) selftest.Database {
		b := &broken{DB: db}
		breaks(b)
		return b
	}
}

// hides is a store in whose index some entries are missing.
func hides(b *broken, hidden func(store.Entry) bool) {
	b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
		err := b.DB.Scan(ctx, q, p)
		p.Entries = slices.DeleteFunc(p.Entries, hidden)
		return err
	}
}

var flaws = []flaw{
	{what: "ignores preconditions", make: with(func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			for i := range batch.Ops {
				op := &batch.Ops[i]
				verdict := store.Delete
				if op.IsCarry() {
					verdict = store.CarryTo(op.To)
				}
				if batch.DryRun {
					verdict = store.Keep
				}
				o, err := b.DB.Settle(ctx, batch.Query, op.Entry, func(store.Value) store.Verdict { return verdict })
				if err != nil {
					return err
				}
				op.Outcome = o
			}
			return nil
		}
	}), fails: []string{"DisposeKeepsWhatWasPushedOut", "CarryKeepsWhatChanged", "extension"}},
	{what: "reorders", make: with(func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			err := b.DB.Scan(ctx, q, p)
			slices.Reverse(p.Entries)
			return err
		}
	}), fails: []string{"ScanOrdersByValue", "PagesContinue"}},
	{what: "answers late", make: with(func(b *broken) {
		b.after = func(string) error {
			time.Sleep(6 * time.Second)
			return nil
		}
	}), also: []string{"sweep"}, fails: []string{"latency"}},
	{what: "loses index rows", make: with(func(b *broken) {
		hides(b, func(e store.Entry) bool { return strings.ContainsAny(e.Key, "37") })
	}), fails: []string{"LimitIsRespected", "dry-run", "sweep", "reshard", "two-processes", "takeover", "pause"}},
	{what: "misreports time", make: with(func(b *broken) {
		var calls atomic.Int64
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			got, err := b.DB.Load(ctx, q)
			got.Now = got.Now.Add(-time.Duration(calls.Add(1)%3) * time.Minute)
			return got, err
		}
	}), fails: []string{"commit-times"}},
	{what: "is a quarter of an hour behind", make: with(func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			got, err := b.DB.Load(ctx, q)
			got.Now = got.Now.Add(-15 * time.Minute)
			return got, err
		}
	}), fails: []string{"StoreTellsItsTime", "commit-times"}},
	{what: "serves stale queries", make: with(func(b *broken) {
		var mu sync.Mutex
		written := map[string]time.Time{}
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range es {
				key, err := b.DB.Key(t, ns, e)
				if err == nil {
					written[key] = time.Now()
				}
			}
			return b.DB.Put(ctx, t, ns, es)
		}
		hides(b, func(e store.Entry) bool {
			mu.Lock()
			defer mu.Unlock()
			return time.Since(written[e.Key]) < 300*time.Millisecond
		})
	}), fails: []string{"query-freshness", "BoundsAreInclusive"}},
	{what: "drops a batch", make: with(func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			dry := *batch
			dry.DryRun = true
			return b.DB.Dispose(ctx, &dry) // of the same ops, which so read deleted
		}
	}), fails: []string{"DisposeDeletesWhatIsUnchanged", "sweep", "two-processes", "takeover", "breaker"}},
	{what: "bills double", bills: true, make: with(func(b *broken) { explains(b, 2) }), fails: []string{"bills"}},
	{what: "counts its bill twice", make: with(func(b *broken) {
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			store.Bill(ctx, store.Operations{Writes: int64(len(es))})
			return b.DB.Put(ctx, t, ns, es)
		}
	}), fails: []string{"BillsWhatItDoes"}},
	{what: "lets the last save win", make: with(func(b *broken) {
		b.save = func(ctx context.Context, r store.Record, prev string) error {
			for {
				err := b.DB.Save(ctx, r, prev)
				if !errors.Is(err, store.ErrConflict) {
					return err
				}
				got, err := b.DB.Load(ctx, store.RecordQuery{Sort: r.Sort, Target: r.Target, Keys: []string{r.Key}})
				if err != nil {
					return err
				}
				if prev = ""; len(got.List) > 0 {
					prev = got.List[0].Revision
				}
			}
		}
	}), fails: []string{"RecordIsCreatedOnce", "OneOfManySavesWins"}},
	{what: "forgets who paused", make: with(func(b *broken) {
		b.save = func(ctx context.Context, r store.Record, prev string) error {
			if _, ok := r.Fields["paused"]; ok && r.Sort == store.TargetRecord {
				r.Fields["paused"] = false
			}
			return b.DB.Save(ctx, r, prev)
		}
	}), fails: []string{"pause"}},
	{what: "stamps nothing", make: with(func(b *broken) {
		b.restamp = func(_ context.Context, batch *store.Restamping) error {
			for i := range batch.Ops {
				batch.Ops[i].Outcome = store.RowRestamped
			}
			return nil
		}
	}), fails: []string{"RestampSetsOneProperty", "adoption"}},
	{what: "keeps the locks of the dead", make: func(db *embedded.DB) selftest.Database { return locking(db, 24*time.Hour) },
		fails: []string{"locks"}},
	{what: "cannot query by two properties", bills: true, make: with(func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			if q.Target.ShardProperty != "" {
				return fmt.Errorf("%w: one property is enough", store.ErrInvalid)
			}
			return b.DB.Scan(ctx, q, p)
		}
	}), fails: []string{"features"}},
}

// explains is a store that says so many times what it bills.
func explains(b *broken, times int64) {
	say := func(ctx context.Context, call func(context.Context) error) error {
		meter := new(store.Meter)
		err := call(store.WithMeter(ctx, meter))
		store.Bill(ctx, meter.Operations())
		if e := facts.ExplainedOf(ctx); e != nil {
			e.Add(times * meter.Operations().Reads)
		}
		return err
	}
	b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
		return say(ctx, func(ctx context.Context) error { return b.DB.Scan(ctx, q, p) })
	}
	b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (n int64, err error) {
		err = say(ctx, func(ctx context.Context) error {
			n, err = b.DB.Count(ctx, t, ns, s, upTo)
			return err
		})
		return n, err
	}
}

// locking is a store in which the locks of a dead process last for a while.
func locking(db *embedded.DB, lasts time.Duration) transactional {
	b := &broken{DB: db}
	var until time.Time
	b.abandon = func(string) { until = time.Now().Add(lasts) }
	b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
		if time.Now().Before(until) {
			return fmt.Errorf("%w: it is locked", store.ErrContention)
		}
		return b.DB.Put(ctx, t, ns, es)
	}
	return transactional{b}
}

// TestBrokenStores: of each store that breaks a promise, the report says which one, with
// evidence, and nothing is left in it. All own checks fail on one of them; that the cases of
// the suite do is shown in store/storetest.
func TestBrokenStores(t *testing.T) {
	if len(flaws) < 8 {
		t.Fatalf("%d broken stores", len(flaws))
	}
	failed := map[string]bool{}
	for _, f := range flaws {
		t.Run(f.what, func(t *testing.T) {
			checks := nightly.Size(t, nil, slices.Concat(f.also, f.fails))
			in(t, func(t *testing.T, db *embedded.DB) {
				good := putUsers(t, db, users)
				s := setup(f.make(db), checks...)
				if f.bills {
					s.Mode = selftest.Datastore
				}
				r := run(t, s)
				for _, c := range r.Results {
					if c.Status == selftest.Failed {
						failed[c.Name] = true
					}
				}
				for _, name := range f.fails {
					c := statusOf(r, name)
					t.Logf("%s: %s %q", name, c.Status, c.Evidence)
					if c.Status != selftest.Failed || len(c.Evidence) == 0 {
						t.Errorf("a store that %s passes %s: %+v\n%s", f.what, name, c, describe(r))
					}
				}
				if !r.HasFindings() {
					t.Error("the report has no findings")
				}
				good()
				clean(t, db)
				wantEmpty(t, db, "Session")
			})
		})
	}
	in(t, func(t *testing.T, db *embedded.DB) {
		suite := 0
		for _, name := range selftest.Names(setup(db)) {
			switch isSuite := name[0] >= 'A' && name[0] <= 'Z'; {
			case isSuite && failed[name]:
				suite++
			case !isSuite && !failed[name]:
				t.Errorf("no broken store shows that %s can fail", name)
			}
		}
		t.Logf("%d cases of the suite failed on these stores", suite)
	})
}

// clean cleans up by the intact store, where a broken one may have hindered the run.
func clean(t *testing.T, db *embedded.DB) {
	t.Helper()
	if done, err := selftest.Clean(t.Context(), setup(db)); err != nil || !done.Empty {
		t.Errorf("%+v, %v", done, err)
	}
}

// TestLocksEnd: how long they last is told, and is a difference if the emulator's last longer.
func TestLocksEnd(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		s := setup(locking(db, 15*time.Second), "locks")
		s.Mode = selftest.Datastore
		r := run(t, s)
		if r.HasFindings() || len(r.Differences) != 1 || r.Differences[0].Here != "less than half a minute" {
			t.Errorf("%+v\n%s", r.Differences, describe(r))
		}
	})
}

// TestExplained: a service that bills what the program counts passes, and so differs from its
// emulator.
func TestExplained(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		b := &broken{DB: db}
		explains(b, 1)
		s := setup(b, "bills")
		s.Mode = selftest.Native
		r := run(t, s)
		if r.HasFindings() || len(r.Differences) != 1 || statusOf(r, "bills").Status != selftest.Passed {
			t.Errorf("%+v\n%s", r.Differences, describe(r))
		}
	})
}
