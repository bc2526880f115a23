package selftest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/selftest"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// caps are those of the embedded store.
var caps = storetest.Caps{
	Counter: true, Dumper: true, Dropper: true, Keyer: true, Adopter: true,
	Steps: true, ListsInIndex: true, KeepsLists: true, TellsGone: true, NumbersFirst: true, OrdersByBytes: true,
}

// in runs a test with an embedded store in memory, in a synctest bubble: leases pass at once.
func in(t *testing.T, test func(t *testing.T, db *embedded.DB)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
		if err != nil {
			t.Fatal(err)
		}
		test(t, db)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

func setup(db selftest.Database, checks ...string) selftest.Setup {
	return selftest.Setup{Store: db, Spec: "embedded:db", Mode: selftest.Embedded, Caps: caps, ID: "test", Now: time.Now,
		Within: selftest.DefaultWithin, Checks: checks}
}

// sample are checks that write to all places that any check writes to.
var sample = []string{"OtherKindsAreUntouched", "RecordsOfATargetInOrder", "RestampSetsOneProperty", "sweep", "breaker",
	"reshard", "adoption"}

func run(t *testing.T, s selftest.Setup) selftest.Report {
	t.Helper()
	r, err := selftest.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func describe(r selftest.Report) string {
	var b strings.Builder
	for _, c := range r.Results {
		if c.Status != selftest.Passed {
			fmt.Fprintf(&b, "%s is %s after %d tries: %s\n%s\n", c.Name, c.Status, c.Tries, c.Why, strings.Join(c.Evidence, "\n"))
		}
	}
	fmt.Fprintf(&b, "stopped: %q; cleaned: %+v", r.Stopped, r.Cleaned)
	return b.String()
}

func statusOf(r selftest.Report, name string) selftest.Result {
	for _, c := range r.Results {
		if c.Name == name {
			return c
		}
	}
	return selftest.Result{}
}

// wantEmpty checks that no table, and no record of any self-test, is left, apart from what
// was there before.
func wantEmpty(t *testing.T, db *embedded.DB, kinds ...string) {
	t.Helper()
	got, err := db.Kinds(t.Context(), 100)
	if err != nil || strings.Join(got, " ") != strings.Join(kinds, " ") {
		t.Errorf("tables that are left: %q, %v; want %q", got, err, kinds)
	}
	for _, target := range []string{"selftest-test", "selftest-test-x", "Selftest"} {
		for _, sort := range []store.RecordSort{store.TargetRecord, store.CursorRecord, store.SweepRecord, store.WorkerRecord,
			store.SealRecord, store.BudgetRecord, store.AdoptRecord, store.RestoreRecord} {
			recs, err := db.Load(t.Context(), store.RecordQuery{Sort: sort, Target: target})
			if err != nil || len(recs.List) > 0 {
				t.Errorf("%d records %s of %s are left: %v", len(recs.List), sort, target, err)
			}
		}
	}
}

var users = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}

// putUsers writes an entity of a user that expired, and returns a function that checks that
// it is as it was.
func putUsers(t *testing.T, db *embedded.DB, target store.Target) (check func()) {
	t.Helper()
	e := store.Entity{Name: "theirs", Expiry: store.TextValue("00000001.0000.19990101T000000.000Z"), Data: []byte(`{"user":"u1"}`)}
	if err := db.Put(t.Context(), target, "", []store.Entity{e}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		n := 0
		for got, err := range db.Dump(t.Context(), target, "") {
			if n++; err != nil || got.Name != e.Name || got.Expiry != e.Expiry || string(got.Data) != string(e.Data) {
				t.Errorf("the user's entity is %+v, %v", got, err)
			}
		}
		if n != 1 {
			t.Errorf("%d entities of the user, not 1", n)
		}
	}
}

// broken is a store of which any call may be changed.
type broken struct {
	*embedded.DB
	before  func(method string) error // a call that it fails does not take effect
	after   func(method string) error // a call that it fails has taken effect
	scan    func(context.Context, store.Query, *store.Page) error
	dispose func(context.Context, *store.Batch) error
	load    func(context.Context, store.RecordQuery) (store.Records, error)
	save    func(context.Context, store.Record, string) error
	put     func(context.Context, store.Target, string, []store.Entity) error
	count   func(context.Context, store.Target, string, store.Span, int64) (int64, error)
	restamp func(context.Context, *store.Restamping) error
	abandon func(key string)
}

func (b *broken) around(method string, call func() error) error {
	time.Sleep(5 * time.Millisecond) // else no time passes for a sweep that asks again and again
	if b.before != nil {
		if err := b.before(method); err != nil {
			return err
		}
	}
	err := call()
	if err == nil && b.after != nil {
		err = b.after(method)
	}
	return err
}

func (b *broken) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	return b.around("scan", func() error {
		if b.scan != nil {
			return b.scan(ctx, q, p)
		}
		return b.DB.Scan(ctx, q, p)
	})
}

func (b *broken) Dispose(ctx context.Context, batch *store.Batch) error {
	return b.around("dispose", func() error {
		if b.dispose != nil {
			return b.dispose(ctx, batch)
		}
		return b.DB.Dispose(ctx, batch)
	})
}

func (b *broken) Settle(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (o store.Outcome, err error) {
	err = b.around("settle", func() error {
		o, err = b.DB.Settle(ctx, q, e, decide)
		return err
	})
	return o, err
}

func (b *broken) Load(ctx context.Context, q store.RecordQuery) (got store.Records, err error) {
	err = b.around("load", func() error {
		if b.load != nil {
			got, err = b.load(ctx, q)
		} else {
			got, err = b.DB.Load(ctx, q)
		}
		return err
	})
	return got, err
}

func (b *broken) Save(ctx context.Context, r store.Record, prev string) error {
	return b.around("save", func() error {
		if b.save != nil {
			return b.save(ctx, r, prev)
		}
		return b.DB.Save(ctx, r, prev)
	})
}

func (b *broken) Put(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
	return b.around("put", func() error {
		if b.put != nil {
			return b.put(ctx, t, ns, es)
		}
		return b.DB.Put(ctx, t, ns, es)
	})
}

func (b *broken) Count(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (n int64, err error) {
	err = b.around("count", func() error {
		if b.count != nil {
			n, err = b.count(ctx, t, ns, s, upTo)
		} else {
			n, err = b.DB.Count(ctx, t, ns, s, upTo)
		}
		return err
	})
	return n, err
}

func (b *broken) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	return b.around("walk", func() error { return b.DB.Walk(ctx, q, rows) })
}

func (b *broken) Restamp(ctx context.Context, batch *store.Restamping) error {
	return b.around("restamp", func() error {
		if b.restamp != nil {
			return b.restamp(ctx, batch)
		}
		return b.DB.Restamp(ctx, batch)
	})
}

// transactional is a broken store with transactions that outlast their process.
type transactional struct{ *broken }

func (b transactional) Abandon(_ context.Context, _ store.Target, _, key string) error {
	b.abandon(key)
	return nil
}

var errDown = fmt.Errorf("%w: it is down", store.ErrUnavailable)

// diesAfter lets no call reach the store after the first n.
func diesAfter(db *embedded.DB, n int) *broken {
	var calls atomic.Int64
	return &broken{DB: db, before: func(string) error {
		if calls.Add(1) > int64(n) {
			return errors.New("this process was killed")
		}
		return nil
	}}
}
