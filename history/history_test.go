package history_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
)

func TestMain(m *testing.M) { emulator.Main(m) }

const (
	target  = "sessions"
	keepFor = 90 * 24 * time.Hour
)

var (
	start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	by    = history.Origin{Actor: "ann@example.com", Host: "web-1", Owner: "web-1/7/ABC", Version: "1.2.0", Config: "0123"}
)

func model() *modelstore.Store { return modelstore.New(func() time.Time { return start }) }

// onEachStore runs a test on the model, the embedded store and both emulators.
func onEachStore(t *testing.T, test func(t *testing.T, s store.Store)) {
	t.Run("model", func(t *testing.T) { test(t, model()) })
	t.Run("embedded", func(t *testing.T) {
		db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		test(t, db)
	})
	t.Run("datastore", func(t *testing.T) {
		e := emulator.Start(t, emulator.Datastore)
		db, err := datastore.Open(t.Context(), datastore.Options{Project: e.Project(t), Emulator: e.Host})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		test(t, db)
	})
	t.Run("firestore", func(t *testing.T) {
		e := emulator.Start(t, emulator.Native)
		db, err := firestore.Open(t.Context(), firestore.Options{Project: e.Project(t), Emulator: e.Host})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		test(t, db)
	})
}

// run returns a run with a number in every field.
func run(at time.Time, owner string) history.Record {
	o := by
	o.Owner = owner
	r := history.NewRun(target, "serve", o, at)
	r.Run = history.Run{Task: "serve", Updated: at.Add(time.Minute), Ended: at.Add(2 * time.Minute), End: history.Limit,
		Horizon: at, Operations: store.Operations{Reads: 1, Writes: 2, Deletes: 3}, Held: []string{"breaker", "limit"},
		Failures: 4, Error: "no", Missed: 5, Unsaved: 6,
		Delays: []metrics.DelayCount{{Within: 100 * time.Millisecond, N: 7}, {Over: 24 * time.Hour, N: 1}}, Sums: []history.Sum{
			{Account: history.AccountAll, Counts: metrics.Counts{Scanned: 10, Expired: 9, Deleted: 8, Conflicts: 7, Suspect: 6,
				Malformed: 5, Refused: 4, Carried: 3, Strays: 2, Pages: 1}},
			{Account: "late", Counts: metrics.Counts{Deleted: 100},
				Budget: history.Budgeted{Began: at, Unreported: -3, Doubtful: 2}},
		}}
	return r.KeptFor(keepFor)
}

// noBase is for a history that begins with the first delete.
func noBase(*history.State) error { return nil }

func save(t *testing.T, s store.Store, r history.Record) history.Record {
	t.Helper()
	r, err := history.Save(context.Background(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, s store.Store, since time.Time) history.List {
	t.Helper()
	list, err := history.Read(context.Background(), s, target, since)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// What is written is read again, in the order of time, by every driver; also only from an
// instant on. Other targets have records of their own.
func TestRecordsComeBack(t *testing.T) {
	onEachStore(t, func(t *testing.T, s store.Store) {
		var want []history.Record
		for i := range 40 { // of many buckets
			want = append(want, save(t, s, run(start.Add(time.Duration(i)*time.Hour), fmt.Sprint("process-", i))))
		}
		change := history.NewChange(target, history.KindAction, by, start.Add(100*time.Hour), history.Change{What: "pause",
			Generation: 3, Before: "was", After: "is", Reason: "why ✓", Deleted: 4}).KeptFor(time.Hour)
		want = append(want, save(t, s, change))
		other := run(start, "process-1")
		other.Target = "others"
		other = history.NewRun("others", "sweep", by, start).KeptFor(time.Hour)
		save(t, s, other)
		if got := read(t, s, time.Time{}); !reflect.DeepEqual(got.Records, want) || got.Newer+got.Malformed != 0 {
			t.Errorf("read %d records, want %d:\n%+v\n%+v", len(got.Records), len(want), got, want)
		}
		if got := read(t, s, start.Add(30*time.Hour)).Records; !reflect.DeepEqual(got, want[30:]) {
			t.Errorf("of the last %d records %d were read", len(want)-30, len(got))
		}
		if n := want[3].Run.Counts(); n.Deleted != 108 || n.Pages != 1 {
			t.Errorf("the sum over both accounts is %+v", n)
		}
	})
}

// A run that began long before the instant asked for, and goes on, is found: it deletes now. So is
// it by the process that marks it as lost.
func TestLongRunsAreFound(t *testing.T) {
	s := model()
	r := history.NewRun(target, "sweep", by, start)
	r.Run.Updated = start.Add(20 * time.Hour)
	save(t, s, r.KeptFor(keepFor))
	if got := read(t, s, start.Add(19*time.Hour)).Records; len(got) != 1 {
		t.Errorf("of the last hour %d runs were read", len(got))
	}
	if got := read(t, s, start.Add(21*time.Hour)).Records; len(got) != 0 {
		t.Errorf("after its last sign of life %d runs were read", len(got))
	}
	if n, err := history.MarkLost(t.Context(), s, target, by.Owner, start.Add(19*time.Hour)); n != 1 || err != nil {
		t.Errorf("marked %d, %v", n, err)
	}
}

// A record is changed by compare-and-set alone: nobody overwrites what they have not read.
func TestSaveIsConditional(t *testing.T) {
	onEachStore(t, func(t *testing.T, s store.Store) {
		first := save(t, s, run(start, "a"))
		next := save(t, s, first)
		if _, err := history.Save(t.Context(), s, first); !errors.Is(err, store.ErrConflict) {
			t.Errorf("an old copy was written: %v", err)
		}
		if got, found, err := history.Load(t.Context(), s, target, first.Key); err != nil || !found || got.Revision != next.Revision {
			t.Errorf("%+v, %v, %v", got, found, err)
		}
	})
}

// The runs of a dead process that go on are marked, once; its finished ones and those of
// others are not.
func TestMarkLost(t *testing.T) {
	onEachStore(t, func(t *testing.T, s store.Store) {
		done, open, others := run(start, "dead"), run(start.Add(time.Hour), "dead"), run(start, "alive")
		open.Run.Ended, open.Run.End = time.Time{}, history.Open
		others.Run.Ended, others.Run.End = time.Time{}, history.Open
		for _, r := range []history.Record{done, open, others} {
			save(t, s, r)
		}
		for i, want := range []int{1, 0} {
			if n, err := history.MarkLost(t.Context(), s, target, "dead", start); n != want || err != nil {
				t.Errorf("call %d has marked %d, %v", i, n, err)
			}
		}
		ends := map[string]history.End{}
		for _, r := range read(t, s, time.Time{}).Records {
			ends[r.Key] = r.Run.End
			if lost := r.Run.End == history.Lost; lost != (r.Key == open.Key) || r.Run.IsAtLeast() != (r.Key != done.Key) {
				t.Errorf("%+v", r)
			}
		}
		if ends[others.Key] != history.Open || ends[done.Key] != history.Limit {
			t.Errorf("%v", ends)
		}
	})
}

// A guard lets nothing be removed but records of the history that it says may go.
type guard struct {
	store.Store
	t    *testing.T
	may  map[string]bool
	gone int
}

func (g *guard) Save(ctx context.Context, r store.Record, prev string) error {
	switch {
	case r.Fields != nil && r.Key == "target."+target: // the sums
		return g.Store.Save(ctx, r, prev)
	case r.Fields != nil:
		g.t.Errorf("Collect writes %s %s", r.Sort, r.Key)
	case r.Sort != store.SweepRecord || !g.may[r.Key] || prev == "":
		g.t.Errorf("Collect removes %s %s of revision %q", r.Sort, r.Key, prev)
	}
	g.gone++
	return g.Store.Save(ctx, r, prev)
}

func (g *guard) Dispose(context.Context, *store.Batch) error {
	g.t.Error("Collect deletes entities")
	return nil
}

// Records go once their own expiry key is due, and nothing else does: no younger record, no
// record that was kept for longer, or changed since, none of a later version, and no other
// sort.
func TestCollect(t *testing.T) {
	onEachStore(t, func(t *testing.T, s store.Store) {
		const keep = 24 * time.Hour
		now := start.Add(10 * keep)
		g := &guard{s, t, map[string]bool{}, 0}
		for i := range 30 {
			at := start.Add(time.Duration(i) * 10 * time.Hour)
			r := history.NewRun(target, "serve", history.Origin{Owner: fmt.Sprint(i)}, at).KeptFor(keep)
			g.may[save(t, s, r).Key] = !at.Add(keep).After(now)
			long := history.NewRun(target, "serve", history.Origin{Owner: fmt.Sprint("long", i)}, at).KeptFor(20 * keep)
			save(t, s, long)
		}
		raw(t, s, "3.20200101T000000.000Z.later", store.Fields{"schema": int64(history.Schema + 1)})
		raw(t, s, "3.20200101T000000.000Z.odd", store.Fields{"schema": "one"})
		if _, err := history.Observe(t.Context(), s, target, by, "a: 1", noBase, start); err != nil {
			t.Fatal(err)
		}
		cursorRecord := store.Record{Sort: store.CursorRecord, Key: "3.2", Target: target, Revision: "1-a", Fields: store.Fields{"x": "y"}}
		if err := s.Save(t.Context(), cursorRecord, ""); err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, may := range g.may {
			if may {
				want++
			}
		}
		removed := 0
		for range 2 {
			for bucket := range history.Buckets {
				n, err := history.Collect(t.Context(), g, target, bucket, now, keep)
				if err != nil {
					t.Fatal(err)
				}
				removed += n
			}
		}
		left := read(t, s, time.Time{})
		if removed != want || g.gone != want || len(left.Records) != 60-want || left.Newer != 1 || left.Malformed != 1 {
			t.Errorf("removed %d by %d calls, want %d; left %d, later %d, malformed %d", removed, g.gone, want,
				len(left.Records), left.Newer, left.Malformed)
		}
		if _, found, err := history.LoadState(t.Context(), s, target); !found || err != nil {
			t.Errorf("the state is gone: %v", err)
		}
	})
}

// A record that is updated between the read and the removal stays.
func TestCollectSparesWhatChanges(t *testing.T) {
	s := model()
	r := save(t, s, history.NewRun(target, "serve", by, start).KeptFor(time.Hour))
	s.After = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "Load" {
			s.After = nil
			r.Run.Updated = start.Add(30 * time.Hour)
			save(t, s, r.KeptFor(time.Hour))
		}
		return nil
	}
	n, err := history.Collect(t.Context(), s, target, history.BucketOf(target, by.Owner), start.Add(24*time.Hour), time.Hour)
	if n != 0 || err != nil || len(read(t, s, time.Time{}).Records) != 1 {
		t.Errorf("removed %d, %v", n, err)
	}
}

// If history.keep was shortened, the older records keep their own expiry. They do not make
// each call read all of them, and the younger ones follow once the older ones are gone.
func TestCollectAfterKeepWasShortened(t *testing.T) {
	s := model()
	o := history.Origin{Owner: "a"}
	bucket := history.BucketOf(target, o.Owner)
	for i := range 300 {
		keep := 90 * 24 * time.Hour
		if i >= 200 {
			keep = 24 * time.Hour
		}
		save(t, s, history.NewRun(target, "sweep", o, start.Add(time.Duration(i)*time.Hour)).KeptFor(keep))
	}
	collect := func(now time.Time) (n int) {
		t.Helper()
		s.Before = func(_ context.Context, c modelstore.Call) error {
			if n := c.Records.Limit; c.Method == "Load" && c.Records.Keys == nil && (n == 0 || n > 100) {
				t.Errorf("a call may read %d records", n)
			}
			return nil
		}
		defer func() { s.Before = nil }()
		n, err := history.Collect(t.Context(), s, target, bucket, now, 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := collect(start.Add(400 * time.Hour)); n != 0 {
		t.Errorf("%d are gone before their own expiry", n)
	}
	late := start.Add(100 * 24 * time.Hour)
	for calls := 0; len(read(t, s, time.Time{}).Records) > 0; calls++ {
		if collect(late) == 0 || calls > 5 {
			t.Fatalf("after %d calls %d are left", calls, len(read(t, s, time.Time{}).Records))
		}
	}
}

// What has expired stays in the account once, whenever the process that removes it is killed.
func TestExpiredRecordsStayInTheAccount(t *testing.T) {
	const keep = 24 * time.Hour
	late := start.Add(100 * keep)
	for kill := range 8 { // the kill-th write and all later ones fail, before or after they take effect
		for _, after := range []bool{false, true} {
			s := model()
			if _, err := history.Observe(t.Context(), s, target, by, "a: 1", noBase, start); err != nil {
				t.Fatal(err)
			}
			o := history.Origin{Owner: "a"}
			for i := range 4 {
				r := history.NewRun(target, "sweep", o, start.Add(time.Duration(i)*time.Minute))
				r.Run.Ended, r.Run.End = r.At, history.Done
				r.Run.Sums = []history.Sum{{Account: history.AccountAll, Counts: metrics.Counts{Deleted: 1 << i}}}
				if i == 2 {
					r.Run.End = history.Lost
				}
				save(t, s, r.KeptFor(keep))
			}
			save(t, s, history.NewChange(target, history.KindGeneration, o, start, history.Change{What: history.Retired,
				Deleted: 100}).KeptFor(keep))
			writes := 0
			hook := func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Save" {
					if writes++; writes > kill {
						return fmt.Errorf("killed: %w", store.ErrUnavailable)
					}
				}
				return nil
			}
			if s.Before = hook; after {
				s.Before, s.After = nil, hook
			}
			bucket := history.BucketOf(target, o.Owner)
			_, _ = history.Collect(t.Context(), s, target, bucket, late, keep)
			s.Before, s.After = nil, nil
			account := func() (deleted, counted int64) {
				t.Helper()
				st, _, err := history.LoadState(t.Context(), s, target)
				if err != nil {
					t.Fatal(err)
				}
				deleted, counted = st.Expired.Deleted, st.Expired.Counted
				for _, r := range read(t, s, time.Time{}).Records {
					if !slices.Contains(st.Expired.Keys, r.Key) {
						deleted, counted = deleted+r.Run.Counts().Deleted, counted+r.Change.Deleted
					}
				}
				return deleted, counted
			}
			if deleted, counted := account(); deleted != 15 || counted != 100 {
				t.Errorf("killed at write %d (after: %v): the account has %d, %d", kill, after, deleted, counted)
			}
			for range 2 {
				if _, err := history.Collect(t.Context(), s, target, bucket, late, keep); err != nil {
					t.Fatal(err)
				}
			}
			deleted, counted := account()
			if left := len(read(t, s, time.Time{}).Records); deleted != 15 || counted != 100 || left != 0 {
				t.Errorf("after a kill at write %d (after: %v): the account has %d, %d, and %d are left", kill, after, deleted,
					counted, left)
			}
			if st, _, err := history.LoadState(t.Context(), s, target); err != nil || st.Expired.Unsure != 1 || len(st.Expired.Keys) > 5 {
				t.Errorf("%+v, %v", st, err)
			}
			o2 := by
			o2.Version = "9"
			if _, err := history.Observe(t.Context(), s, target, o2, "a: 1", nil, late); err != nil {
				t.Fatal(err)
			}
			if deleted, _ := account(); deleted != 15 {
				t.Errorf("another version has forgotten the sums: %d", deleted)
			}
		}
	}
}

func raw(t *testing.T, s store.Store, key string, f store.Fields) {
	t.Helper()
	err := s.Save(context.Background(), store.Record{Sort: store.SweepRecord, Key: key, Target: target, Revision: "1-x", Fields: f}, "")
	if err != nil {
		t.Fatal(err)
	}
}

// Each record has an expiry key of its own, by which any tool can collect it.
func TestExpiryKey(t *testing.T) {
	s := model()
	r := save(t, s, run(start, "a"))
	got, err := s.Load(t.Context(), store.RecordQuery{Sort: store.SweepRecord, Target: target, Keys: []string{r.Key}})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := got.List[0].Fields["expiry_key"].(string)
	key, err := expirykey.Parse(text)
	if err != nil || key.Generation != expirykey.Nursery || !key.Expires.Equal(start.Add(time.Minute+90*24*time.Hour)) {
		t.Errorf("%q is %+v, %v", text, key, err)
	}
}

// Records that make no sense, and those of a later version, are skipped and counted: they
// hide no other record.
func TestBadRecordsAreCounted(t *testing.T) {
	for what, change := range map[string]func(store.Fields){
		"kind":              func(f store.Fields) { f["kind"] = "feast" },
		"end":               func(f store.Fields) { f["end"] = "tired" },
		"time":              func(f store.Fields) { f["at"] = "yesterday" },
		"no time":           func(f store.Fields) { delete(f, "at") },
		"expiry":            func(f store.Fields) { f["expiry_key"] = "never" },
		"type":              func(f store.Fields) { f["reads"] = "many" },
		"a delay":           func(f store.Fields) { f["delays"] = []store.Fields{{"over_ms": int64(1), "n": "x"}} },
		"a bucket":          func(f store.Fields) { f["delays"] = []store.Fields{{"over_ms": int64(9), "within_ms": int64(9)}} },
		"a long delay":      func(f store.Fields) { f["delays"] = []store.Fields{{"within_ms": int64(math.MaxInt64)}} },
		"sums":              func(f store.Fields) { f["sums"] = []store.Fields{{"deleted": "x"}} },
		"of another owner":  func(f store.Fields) { f["owner"] = "somebody" },
		"no version":        func(f store.Fields) { delete(f, "schema") },
		"of another moment": func(f store.Fields) { f["at"] = store.FormatTime(start.Add(time.Hour)) },
	} {
		s := model()
		good, bad := save(t, s, run(start, "a")), save(t, s, run(start, "b"))
		got, err := s.Load(t.Context(), store.RecordQuery{Sort: store.SweepRecord, Target: target, Keys: []string{bad.Key}})
		if err != nil {
			t.Fatal(err)
		}
		rec := got.List[0]
		change(rec.Fields)
		rec.Revision = store.NewRevision(rec.Revision)
		if err := s.Save(t.Context(), rec, bad.Revision); err != nil {
			t.Fatal(err)
		}
		list := read(t, s, time.Time{})
		if len(list.Records) != 1 || list.Records[0].Key != good.Key || list.Malformed != 1 {
			t.Errorf("%s: %+v", what, list)
		}
		if n, err := history.Collect(t.Context(), s, target, history.BucketOf(target, "b"), start.Add(900*24*time.Hour),
			time.Hour); n > 1 || err != nil || read(t, s, time.Time{}).Malformed != 1 {
			t.Errorf("%s: collected %d, %v", what, n, err)
		}
	}
}

// A text that is too long is cut, and one that is not UTF-8 mended: neither may prevent the
// record. So do settings with more shard values than a record can hold.
func TestLongTexts(t *testing.T) {
	onEachStore(t, func(t *testing.T, s store.Store) {
		r := history.NewChange(target, history.KindAction, by, start, history.Change{What: "pause",
			Reason: strings.Repeat("ü", 5<<10), After: "a\xff"}).KeptFor(time.Hour)
		save(t, s, r)
		got := read(t, s, time.Time{}).Records[0].Change
		if n := len(got.Reason); n > history.MaxText || n < history.MaxText-4 || !strings.HasSuffix(got.Reason, "ü...") || got.After != "a\uFFFD" {
			t.Errorf("%d bytes, %q", n, got.After)
		}
		observe := func(last string) []history.Record {
			o := by
			var text string
			text, o.Config = history.Settings([]string{"page: 500", "shard_values: " + strings.Repeat("value ", 400_000) + last})
			list, err := history.Observe(t.Context(), s, target, o, text, noBase, start)
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		observe("a")
		if list := observe("a"); len(list) > 0 {
			t.Errorf("the same settings again: %+v", list)
		}
		list := observe("b") // the difference is where the line was cut
		if len(list) != 1 || list[0].Change.Before == "" || list[0].Change.Before == list[0].Change.After {
			t.Fatalf("%.300v", list)
		}
		save(t, s, list[0].KeptFor(time.Hour))
	})
}

// A process that begins with other settings, or of another version, tells the difference
// once. Of two that begin at once one does.
func TestObserve(t *testing.T) {
	s := model()
	observe := func(version, settings string) []history.Record {
		t.Helper()
		o := by
		o.Version, o.Config = version, settings
		list, err := history.Observe(t.Context(), s, target, o, settings, func(st *history.State) error {
			st.Base, st.Budget = 42, history.Budgeted{Began: start, Deleted: 41}
			return nil
		}, start)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := observe("1", "page: 500\nlease: 30s"); len(list) != 0 {
		t.Errorf("the first process: %+v", list)
	}
	if list := observe("1", "page: 500\nlease: 30s"); len(list) != 0 {
		t.Errorf("the same again: %+v", list)
	}
	list := observe("2", "page: 100\nlease: 30s")
	if len(list) != 2 || list[0].Change != (history.Change{What: "version", Before: "1", After: "2"}) ||
		list[1].Change != (history.Change{What: "configuration", Before: "page: 500", After: "page: 100"}) {
		t.Errorf("%+v", list)
	}
	st, found, err := history.LoadState(t.Context(), s, target)
	if !found || err != nil || st.Base != 42 || st.Budget != (history.Budgeted{Began: start, Deleted: 41}) || !st.Since.Equal(start) || st.Version != "2" {
		t.Errorf("%+v, %v", st, err)
	}
	s.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "Save" {
			s.Before = nil
			if list := observe("3", "page: 100\nlease: 30s"); len(list) != 1 {
				t.Errorf("the faster one: %+v", list)
			}
		}
		return nil
	}
	if list := observe("3", "page: 100\nlease: 30s"); len(list) != 0 {
		t.Errorf("the slower one: %+v", list)
	}
}

// What happens to generations is read off the target record.
func TestGenerationChanges(t *testing.T) {
	g := func(n int, closed time.Time) generation.Generation {
		return generation.Generation{Number: n, Shards: 4, Opened: start, Closed: closed, Staleness: time.Minute, Slack: time.Minute}
	}
	was := generation.Record{Generations: []generation.Generation{g(1, start), g(2, time.Time{})}}
	is := generation.Record{Generations: []generation.Generation{g(2, start), g(3, time.Time{})}}
	got := history.GenerationChanges(was, is, func(n int) int64 { return int64(100 * n) })
	want := []history.Change{
		{What: "sealed", Generation: 2, After: "closed, sealed 2026-11-23T12:02:00Z"},
		{What: "opened", Generation: 3, After: "4 shards"},
		{What: "retired", Generation: 1, Before: "4 shards", Deleted: 100},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := history.GenerationChanges(is, is, nil); len(got) != 0 {
		t.Errorf("without a change: %+v", got)
	}
}

// No two records of one instant have the same key, and the processes' records spread.
func TestKeysSpread(t *testing.T) {
	first := map[byte]int{}
	seen := map[string]bool{}
	for i := range 800 {
		r := history.NewRun(target, "sweep", history.Origin{Owner: fmt.Sprint("host/", i)}, start)
		if seen[r.Key] {
			t.Fatalf("%s twice", r.Key)
		}
		seen[r.Key] = true
		first[r.Key[0]]++
	}
	for digit, n := range first {
		if n > 100 { // a sixteenth is 50
			t.Errorf("%d of 800 keys begin with %c", n, digit)
		}
	}
	if len(first) != history.Buckets {
		t.Errorf("keys begin with %d digits", len(first))
	}
}

// An operator's pause can be found afterwards.
func Example() {
	ctx, s := context.Background(), model()
	pause := history.NewChange("sessions", history.KindAction, history.Origin{Actor: "ann@example.com", Owner: "laptop/1"},
		start, history.Change{What: "pause", Before: "sweeping", After: "paused", Reason: "a restore is under way"})
	if _, err := history.Save(ctx, s, pause.KeptFor(90*24*time.Hour)); err != nil {
		fmt.Println(err)
		return
	}
	list, err := history.Read(ctx, s, "sessions", start.Add(-time.Hour))
	for _, r := range list.Records {
		fmt.Println(r.At.Format(time.TimeOnly), r.By.Actor, r.Change.What+":", r.Change.Reason)
	}
	fmt.Println(err)
	// Output:
	// 12:00:00 ann@example.com pause: a restore is under way
	// <nil>
}

func TestBegan(t *testing.T) {
	at := time.Date(2026, 11, 21, 0, 7, 30, 855e6, time.UTC)
	r := history.NewRun("sessions", "sweep", history.Origin{Owner: "a"}, at)
	if got, ok := history.Began(r.Key); !ok || !got.Equal(at) {
		t.Errorf("%s: %v, %v", r.Key, got, ok)
	}
	for _, text := range []string{"", "3", "3.", "3.20261121", "one.two.three.four.five.six.seven"} {
		if got, ok := history.Began(text); ok {
			t.Errorf("%q: %v", text, got)
		}
	}
}
