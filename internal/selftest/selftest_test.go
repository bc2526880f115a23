package selftest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/selftest"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// TestGoodStore: a store that keeps all promises passes all checks, and nothing is left.
func TestGoodStore(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		good := putUsers(t, db, users)
		r := run(t, setup(db))
		if r.HasFindings() || r.Count(selftest.Unchecked) != 3 || r.Count(selftest.Passed) < 90 {
			t.Errorf("%d passed\n%s", r.Count(selftest.Passed), describe(r))
		}
		if len(r.Latencies) < 10 || r.Operations.Writes > 3000 || r.Dollars != 0 {
			t.Errorf("%d sorts of calls; %+v, $%v", len(r.Latencies), r.Operations, r.Dollars)
		}
		good()
		wantEmpty(t, db, "Session")
	})
}

// TestKilledAnywhere: whenever a run dies, Clean empties its kinds and removes its records,
// and so does the next run once the time of the dead one is over.
func TestKilledAnywhere(t *testing.T) {
	step := nightly.Size(t, 1, 7)
	for n := 1; ; n += step {
		lives, left := false, int64(0)
		in(t, func(t *testing.T, db *embedded.DB) {
			good := putUsers(t, db, users)
			r, err := selftest.Run(t.Context(), setup(diesAfter(db, n), sample...))
			lives = err == nil && r.Cleaned.Empty
			if n%2 == 0 {
				done, err := selftest.Clean(t.Context(), setup(db))
				if left = done.Entities + done.Records; err != nil || !done.Empty || done.Duration > selftest.CleanWithin.Seconds() {
					t.Errorf("killed at call %d: %+v, %v", n, done, err)
				}
			} else {
				time.Sleep(selftest.DefaultWithin + 2*selftest.CleanWithin + time.Second)
				next := setup(db, sample[0])
				next.ID = "next"
				for _, done := range run(t, next).Earlier {
					if left += done.Entities + done.Records; done.ID != "test" || !done.Empty {
						t.Errorf("killed at call %d: the next run %+v", n, done)
					}
				}
			}
			good()
			wantEmpty(t, db, "Session")
		})
		if lives || t.Failed() {
			t.Logf("it lives after %d calls", n)
			return
		}
		if left == 0 && n > 20 {
			t.Errorf("killed at call %d, and nothing was left", n)
		}
	}
}

// TestStoppedAnywhere: a run that is stopped cleans up itself.
func TestStoppedAnywhere(t *testing.T) {
	for n := 4; ; n += nightly.Size(t, 5, 60) {
		stopped := false
		in(t, func(t *testing.T, db *embedded.DB) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var calls atomic.Int64
			b := &broken{DB: db, before: func(string) error {
				if calls.Add(1) == int64(n) {
					stop()
				}
				return nil
			}}
			r, err := selftest.Run(ctx, setup(b, sample...))
			stopped = errors.Is(err, context.Canceled) || r.Stopped != ""
			if err == nil && (!r.Cleaned.Empty || stopped == r.Complete || r.Count(selftest.Failed) > 0) {
				t.Errorf("stopped at call %d: %s", n, describe(r))
			}
			if err != nil {
				clean(t, db)
			}
			wantEmpty(t, db)
		})
		if !stopped || t.Failed() {
			return
		}
	}
}

// TestOneCallInThree: of a store that answers one call in three nothing is said that is not
// true, and nothing is left in it.
func TestOneCallInThree(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		var calls atomic.Int64
		b := &broken{DB: db}
		b.before = func(string) error {
			if calls.Add(1)%3 == 0 {
				return errDown
			}
			return nil
		}
		b.after = func(string) error {
			if calls.Load()%3 == 1 { // it took effect, and the answer got lost
				return errDown
			}
			return nil
		}
		r := run(t, setup(b, append([]string{"RecordIsCreatedOnce", "PagesContinue"}, sample...)...))
		if r.Count(selftest.Failed) > 0 || r.Count(selftest.Passed) == 0 || !r.Cleaned.Empty {
			t.Error(describe(r))
		}
		for _, c := range r.Results {
			told := strings.Contains(c.Why, "failed meanwhile") && c.Tries > 1 || c.Why == "no time was left"
			if c.Status == selftest.Unchecked && !told {
				t.Errorf("%+v", c)
			}
		}
		wantEmpty(t, db)
	})
}

// TestKindInUse: a kind that holds anything is refused, and left as it is.
func TestKindInUse(t *testing.T) {
	for _, kind := range []string{"ReaperSelftest_test", "ReaperSelftest_testOther"} {
		in(t, func(t *testing.T, db *embedded.DB) {
			theirs := users
			theirs.Kind = kind
			good := putUsers(t, db, theirs)
			_, err := selftest.Run(t.Context(), setup(db))
			if !errors.Is(err, selftest.ErrInUse) || len(store.Hints(err)) == 0 {
				t.Errorf("the error is %v", err)
			}
			done, err := selftest.Clean(t.Context(), setup(db)) // it deletes only what carries its mark
			if err != nil || done.Empty || done.Entities != 0 || len(done.Foreign) != 1 {
				t.Errorf("%+v, %v", done, err)
			}
			good()
			wantEmpty(t, db, kind)
		})
	}
}

// TestTargetInUse: a user's own target may have the name of a run's. The run is refused, and neither it
// nor Clean removes a record: those may have a pause.
func TestTargetInUse(t *testing.T) {
	for _, name := range []string{"selftest-test", "selftest-test-x"} {
		in(t, func(t *testing.T, db *embedded.DB) {
			records := []store.Record{
				{Sort: store.TargetRecord, Key: name, Fields: store.Fields{"kind": "Session", "paused": true}},
				{Sort: store.BudgetRecord, Key: name, Fields: store.Fields{"schema": int64(1)}},
			}
			for i := range records {
				records[i].Target, records[i].Revision = name, store.NewRevision("")
				if err := db.Save(t.Context(), records[i], ""); err != nil {
					t.Fatal(err)
				}
			}
			_, err := selftest.Run(t.Context(), setup(db, sample...))
			if !errors.Is(err, selftest.ErrInUse) || len(store.Hints(err)) == 0 || strings.Contains(store.Hints(err)[0], "--clean") {
				t.Errorf("the error is %v", err)
			}
			done, err := selftest.Clean(t.Context(), setup(db))
			if err != nil || done.Empty || done.Records != 0 || !strings.Contains(done.Error, name+" sweeps the kind Session") {
				t.Errorf("%+v, %v", done, err)
			}
			for _, r := range records {
				got, err := db.Load(t.Context(), store.RecordQuery{Sort: r.Sort, Target: name})
				if err != nil || len(got.List) != 1 || got.List[0].Revision != r.Revision {
					t.Errorf("%s of %s is %v, %v", r.Sort, name, got.List, err)
				}
			}
		})
	}
}

// TestRecordsInUse: a run is refused as well if other records than the target's are left.
func TestRecordsInUse(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		r := store.Record{Sort: store.CursorRecord, Key: "selftest-test-x/1", Target: "selftest-test-x",
			Revision: store.NewRevision(""), Fields: store.Fields{"schema": int64(1)}}
		if err := db.Save(t.Context(), r, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := selftest.Run(t.Context(), setup(db, sample...)); !errors.Is(err, selftest.ErrInUse) {
			t.Errorf("the error is %v", err)
		}
		got, err := db.Load(t.Context(), store.RecordQuery{Sort: r.Sort, Target: r.Target})
		if err != nil || len(got.List) != 1 {
			t.Errorf("%v, %v", got.List, err)
		}
		clean(t, db)
		wantEmpty(t, db)
	})
}

// TestSomebodyWritesIntoTheKind: what somebody else writes there during a run is kept, and
// ends the run.
func TestSomebodyWritesIntoTheKind(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		theirs := users
		theirs.Kind = "ReaperSelftest_test"
		good := func() {}
		var calls atomic.Int64
		b := &broken{DB: db, before: func(string) error {
			if calls.Add(1) == 40 {
				good = putUsers(t, db, theirs)
			}
			return nil
		}}
		r := run(t, setup(b, sample...))
		if r.Cleaned.Empty || len(r.Cleaned.Foreign) != 1 || !strings.Contains(r.Stopped, "somebody else") {
			t.Error(describe(r))
		}
		good()
	})
}

// TestRefusingStores: a store that cannot be used at all is said to be so, once, and one that
// may only be read, too.
func TestRefusingStores(t *testing.T) {
	for _, sentinel := range []error{store.ErrDenied, store.ErrNotFound} {
		for _, writes := range []bool{false, true} {
			in(t, func(t *testing.T, db *embedded.DB) {
				b := &broken{DB: db, before: func(method string) error {
					if writes && method != "save" && method != "put" {
						return nil
					}
					return fmt.Errorf("%w: for a reason", sentinel)
				}}
				_, err := selftest.Run(t.Context(), setup(b))
				if !errors.Is(err, sentinel) || len(store.Hints(err)) == 0 {
					t.Errorf("the error is %v", err)
				}
				wantEmpty(t, db)
			})
		}
	}
}

// TestAccessIsTakenAway: the run ends, and says which checks it did not make.
func TestAccessIsTakenAway(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		var calls atomic.Int64
		b := &broken{DB: db, before: func(string) error {
			if calls.Add(1) > 60 {
				return fmt.Errorf("%w: not any more", store.ErrDenied)
			}
			return nil
		}}
		r := run(t, setup(b, sample...))
		if r.Complete || r.Count(selftest.Failed) > 0 || r.Count(selftest.Unchecked) == 0 || r.Cleaned.Empty ||
			!strings.Contains(r.Cleaned.Error, "denied") {
			t.Error(describe(r))
		}
		clean(t, db)
		wantEmpty(t, db)
	})
}

// TestCostIsBounded: a store that bills a hundred times as much as it should ends the run
// before it costs more than a cent, apart from what cleaning up costs.
func TestCostIsBounded(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		b := &broken{DB: db}
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			store.Bill(ctx, store.Operations{Writes: 99 * int64(len(es))})
			return b.DB.Put(ctx, t, ns, es)
		}
		s := setup(b)
		s.Mode = selftest.Datastore
		r := run(t, s)
		if r.Complete || !strings.Contains(r.Stopped, "cost") || !r.Cleaned.Empty {
			t.Error(describe(r))
		}
		wantEmpty(t, db)
	})
}

// TestMissingIndex: what needs a composite index that a kind does not have is not checked,
// and is a difference from the emulator.
func TestMissingIndex(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		b := &broken{DB: db}
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			if q.Target.ShardProperty != "" {
				return fmt.Errorf("%w: on two properties", store.ErrMissingIndex)
			}
			return b.DB.Scan(ctx, q, p)
		}
		s := setup(b, "ShardsAreApart", "features")
		s.Mode = selftest.Datastore
		r := run(t, s)
		if r.HasFindings() || statusOf(r, "ShardsAreApart").Status != selftest.Unchecked || !slices.ContainsFunc(r.Differences, func(d selftest.Difference) bool {
			return d.Here == "yes" && strings.Contains(d.What, "composite")
		}) {
			t.Errorf("%+v\n%s", r.Differences, describe(r))
		}
	})
}

// TestBadSetups: wrong names are refused before anything is asked.
func TestBadSetups(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		b := diesAfter(db, 0)
		s := setup(b, "swep")
		if _, err := selftest.Run(t.Context(), s); !errors.Is(err, selftest.ErrNoCheck) {
			t.Errorf("the error is %v", err)
		}
		for _, id := range []string{"", "abc", "ABCDE", "a/../b", strings.Repeat("a", 21), "ab cd"} {
			s := setup(b)
			s.ID = id
			_, err := selftest.Run(t.Context(), s)
			_, cleanErr := selftest.Clean(t.Context(), s)
			if err == nil || cleanErr == nil {
				t.Errorf("the id %q is taken", id)
			}
		}
	})
}
