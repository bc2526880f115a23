package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/cursortest"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

// lose removes the target record.
func lose(t *testing.T, s store.Store) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	got, err := s.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: "sessions"})
	if err != nil || len(got.List) != 1 {
		t.Fatalf("%d records, %v", len(got.List), err)
	}
	rec := got.List[0]
	if err := s.Save(ctx, store.Record{Sort: rec.Sort, Key: rec.Key, Target: rec.Target}, rec.Revision); err != nil {
		t.Fatal(err)
	}
}

func recordOf(t *testing.T, s store.Store) generation.Record {
	t.Helper()
	r, _, err := generation.Load(context.WithoutCancel(t.Context()), s, "sessions")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func numbers(r generation.Record) (list []int) {
	for _, g := range r.Generations {
		list = append(list, g.Number)
	}
	return list
}

// putIn puts an entity into a namespace.
func (w *world) putIn(namespace string, number, shards int, name string, expires time.Time) {
	w.t.Helper()
	key, err := generation.Stamper{Generation: number, Shards: shards}.Name(name, expires)
	if err == nil {
		err = w.s.Put(w.t.Context(), w.target.Target, namespace, []store.Entity{{Name: name, Expiry: store.TextValue(key.String())}})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// The first record of a target whose index holds generations lists these as closed from
// now on, with as many shards as they have, and the next one as open. They are not sealed
// before all writers by a lost record must have committed, and retire like any other.
func TestBeginsWithTheGenerationsInUse(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Namespaces = []string{"", "eu"}
		now := time.Now()
		for i := range 40 {
			w.put(3, 4, fmt.Sprintf("old-%02d", i), now.Add(time.Duration(i-20)*time.Minute+time.Second))
			w.put(0, 4, fmt.Sprintf("nursery-%02d", i), now.Add(time.Duration(i-20)*time.Minute+time.Second))
			w.putIn("eu", 7, 9, fmt.Sprintf("eu-%02d", i), now.Add(time.Duration(i-20)*time.Minute+time.Second))
		}
		res := w.sweep()
		created := time.Now()
		r := w.record()
		if !slices.Equal(numbers(r), []int{3, 7, 8}) || r.Generations[1].Shards != 9 || r.Generations[2].Shards != 4 {
			t.Fatalf("generations: %+v", r.Generations)
		}
		if res.Error != "" || !res.Complete || res.Deleted != 60 {
			t.Errorf("the first sweep: %+v", res)
		}
		for i := range 2 {
			sealed := r.SealedAt(i, 0)
			if least := 11*time.Minute - 10*time.Second; r.Generations[i].Closed.After(created) || sealed.Sub(r.Created) < least {
				t.Errorf("generation %d counts as closed at %v and sealed at %v", r.Generations[i].Number, r.Generations[i].Closed, sealed)
			}
		}
		if s := r.StamperFor("x", created); s.Generation != 8 {
			t.Errorf("writers stamp %+v", s)
		}
		for range 8 {
			time.Sleep(15 * time.Minute)
			if res := w.sweep(); res.Error != "" || !res.Complete {
				t.Fatalf("%+v", res)
			}
		}
		if r := w.record(); slices.Contains(numbers(r), 3) || slices.Contains(numbers(r), 7) || !r.Probe.IsZero() {
			t.Errorf("two hours later: %+v", r)
		}
		if left := len(w.s.Entities("Session", "")) + len(w.s.Entities("Session", "eu")); left > 0 {
			t.Errorf("%d are left", left)
		}
	})
}

// A deployment that sweeps one namespace makes a new record of a target, and knows
// nothing of the others. The first sweep of a deployment with another namespace looks for
// shards and generations there, though a look around was noted a minute ago.
func TestBeginsInOneNamespace(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Namespaces = []string{""}
		now := time.Now()
		w.put(3, 4, "here", now.Add(-time.Minute))
		for i := range 20 {
			w.putIn("eu", 3, 9, fmt.Sprint("shard-", i), now.Add(-time.Minute))
			w.putIn("eu", 5, 2, fmt.Sprint("generation-", i), now.Add(-time.Minute))
		}
		if res := w.sweep(); res.Deleted != 1 || !res.Complete {
			t.Fatalf("the first sweep: %+v", res)
		}
		time.Sleep(time.Minute)
		w.target.Namespaces = []string{"", "eu"}
		if res := w.sweep(); !res.Complete || res.Deleted != 40 {
			t.Errorf("the first sweep of the other namespace: %+v", res)
		}
		if left := w.s.Entities("Session", "eu"); len(left) > 0 || !slices.Contains(numbers(w.record()), 5) {
			t.Errorf("%d are left, of generations %v", len(left), numbers(w.record()))
		}
		// Early as that look was, the one that waits for late writers is still to come.
		w.putIn("eu", 4, 2, "stamped by the lost record", time.Now().Add(-time.Minute))
		time.Sleep(30 * time.Minute)
		w.sweep()
		if left := w.s.Entities("Session", "eu"); len(left) > 0 || !w.record().Probe.IsZero() {
			t.Errorf("%d are left, of generations %v", len(left), numbers(w.record()))
		}
	})
}

func (w *world) record() generation.Record { return recordOf(w.t, w.s) }

// The second probe finds a generation of a lost record that had no entries at first: it
// comes when all writers by that record must have committed.
func TestGenerationsThatShowLater(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.put(7, 4, "seen", time.Now().Add(time.Hour))
		w.sweep()
		time.Sleep(time.Minute)
		for i, number := range []int{5, 42} {
			w.put(number, 4, fmt.Sprint("late ", i), time.Now().Add(30*time.Second))
		}
		time.Sleep(time.Minute)
		if w.sweep(); len(w.left()) != 3 || !slices.Equal(numbers(w.record()), []int{7, 8}) {
			t.Errorf("%v left, generations %v", w.left(), numbers(w.record()))
		}
		time.Sleep(10 * time.Minute)
		res := w.sweep()
		r := w.record()
		if !slices.Equal(numbers(r), []int{5, 7, 8, 42, 43}) || res.Deleted != 2 || res.Error != "" {
			t.Errorf("generations %v, %+v", numbers(r), res)
		}
		if s := r.StamperFor("x", time.Now()); s.Generation != 43 {
			t.Errorf("writers stamp %+v", s)
		}
		time.Sleep(time.Hour)
		if w.put(6, 4, "a stray", time.Now().Add(-time.Minute)); w.sweep().Error != "" || slices.Contains(numbers(w.record()), 6) {
			t.Errorf("a stray is taken for a generation: %v", numbers(w.record()))
		}
	})
}

// One entity far past the shards that a generation is believed to have is found by the look around
// that follows at once, as its generation is found by the second probe.
func TestShardsOfGenerationsThatShowLater(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.put(7, 4, "seen", time.Now().Add(time.Hour))
		w.sweep()
		time.Sleep(time.Minute)
		w.dueIn(5, 30, "late", time.Now())
		time.Sleep(11 * time.Minute)
		if res := w.sweep(); res.Error != "" || !res.Complete || res.Deleted != 1 {
			t.Errorf("%+v; left %v, generations %+v", res, w.left(), w.record().Generations)
		}
	})
}

// A target that is new has no lost record: what it opened itself since does not put off the
// second probe, for which generations wait before they retire.
func TestNewTargetRetiresSoon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = generation.Policy{Shards: 2, Staleness: time.Second, Slack: time.Second}
		w.sweep()
		time.Sleep(time.Second)
		if _, err := control.Advance(t.Context(), w.config(), w.target, 2, true); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for slices.Contains(numbers(w.record()), 1) && time.Since(begun) < 5*time.Minute {
			time.Sleep(5 * time.Second)
			w.sweep()
		}
		if r := w.record(); slices.Contains(numbers(r), 1) || !r.Probe.IsZero() {
			t.Errorf("generations %v after %s; probes at %s", numbers(r), time.Since(begun), r.Probe)
		}
	})
}

// The record lists what the second probe has found even if others have written the record
// meanwhile, such as other chores of the same sweep.
func TestProbeBesideOthers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.put(7, 4, "seen", time.Now().Add(time.Hour))
		w.sweep()
		w.put(5, 4, "late", time.Now().Add(30*time.Second))
		time.Sleep(12 * time.Minute)
		left := w.overtake("probe", 2)
		res := w.sweep()
		if r := w.record(); !slices.Equal(numbers(r), []int{5, 7, 8}) || res.Error != "" || *left > 0 || r.NurseryShards < 6 {
			t.Errorf("generations %v, %d writes of others left, %d shards of the nursery, %+v",
				numbers(r), *left, r.NurseryShards, res)
		}
	})
}

// Cursors of the former record lose their positions and marks, but not their tokens and
// leases. Their generations are live, even if they hold nothing.
func TestCursorsOfALostRecord(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.fill(200, 48*time.Hour)
		w.sweep()
		before := w.cursors()
		if len(before) == 0 {
			t.Fatal("no cursors")
		}
		k := cursortest.Start(t, w.s, "sessions", "another", w.target.Lease)
		held := cursor.ID{Target: "sessions", Generation: 1, Shard: "0002"}
		claim, err := k.Claim(t.Context(), before[held])
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		lose(t, w.s)
		w.put(1, 4, "behind", time.Now().Add(-20*time.Hour)) // the former cursors are past it
		st, err := inspect.Status(t.Context(), w.config(), w.target)
		if err != nil || len(st.Generations) != 3 || st.Generations[0].State != "closed" {
			t.Errorf("status without a record: %+v, %v", st.Generations, err)
		}
		w.forget()
		res := w.sweep()
		after := w.cursors()
		if res.Error != "" || !slices.Equal(numbers(w.record()), []int{1, 2}) {
			t.Errorf("%+v, generations %v", res, numbers(w.record()))
		}
		for id, c := range before {
			if after[id].Lease.Token < c.Lease.Token || id == held && after[id].Lease.Owner != "another" {
				t.Errorf("%v: %+v became %+v", id, c.Lease, after[id].Lease)
			}
		}
		if err := claim.Release(t.Context()); err != nil { // by what the former record said
			t.Error(err)
		}
		if res := w.sweep(); res.Error != "" || !res.Complete {
			t.Errorf("with a cursor that was saved since: %+v", res)
		}
		w.wantLive()
		w.checkLeases()
	})
}

// Nothing is written without --apply, and by a process that dies before it saves.
func TestBeginningWritesNothingBeforeTheRecord(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(6, 4, "due", time.Now().Add(-time.Hour))
		writes := w.s.Writes()
		c := w.config()
		c.Apply = false
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Error != "" || res.Expired != 1 || !res.Complete || res.Ranges != 12 {
			t.Errorf("a dry run: %+v", res)
		}
		st, err := inspect.Status(t.Context(), c, w.target)
		if err != nil || len(st.Generations) != 3 || st.Generations[1].Number != 7 || st.OldestDue == nil {
			t.Errorf("status: %+v, %v", st, err)
		}
		lives, err := inspect.Lives(t.Context(), c, w.target)
		if err != nil || len(lives) != 3 {
			t.Errorf("generation list: %+v, %v", lives, err)
		}
		x, err := inspect.Explain(t.Context(), c, w.target, "", store.Entity{Name: "due"})
		if err != nil || x.Verdict != "due" || x.State != "closed" {
			t.Errorf("explain: %+v, %v", x, err)
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" {
				return errDead
			}
			return nil
		}
		if res := w.sweep(); !errors.Is(res.Err, errDead) || w.s.Writes() != writes {
			t.Errorf("a process that died: %+v, %d writes", res, w.s.Writes()-writes)
		}
		w.s.Before = nil
		if res := w.sweep(); res.Deleted != 1 || res.Error != "" || !slices.Equal(numbers(w.record()), []int{6, 7}) {
			t.Errorf("the next one: %+v, %v", res, numbers(w.record()))
		}
	})
}

// A daemon whose target record is removed continues with a new one.
func TestRecordLostUnderADaemon(t *testing.T) {
	nightly.Races(t)
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.begin()
		w.fill(100, 4*time.Hour)
		c := w.config()
		c.Targets[0].Next = func(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			sweep.NewDaemon(c, true).Run(ctx)
		}()
		time.Sleep(time.Minute)
		lose(t, w.s)
		w.put(1, 4, "due soon", time.Now().Add(time.Minute))
		time.Sleep(2 * time.Minute)
		if r := w.record(); !slices.Equal(numbers(r), []int{1, 2}) || slices.Contains(w.left(), "due soon") {
			t.Errorf("generations %v, left %v", numbers(r), w.left())
		}
		time.Sleep(3 * time.Hour)
		stop()
		<-ended
		if r := w.record(); slices.Contains(numbers(r), 1) {
			t.Errorf("three hours later: %+v", r.Generations)
		}
		w.wantLive()
	})
}

// On each store a lost record is made again from the index, whether or not cursors are
// left.
func TestLostRecordOnEachStore(t *testing.T) {
	onEachStore(t, func(t *testing.T, s realStore, c sweep.Config) {
		target, now := c.Targets[0], time.Now()
		if _, _, err := sweep.EnsureRecord(t.Context(), c, target); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			put(t, s, target, expiring(t, target, fmt.Sprintf("e-%02d", i), now.Add(time.Duration(i-25)*time.Hour+time.Minute)))
		}
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Error != "" || res.Deleted != 25 {
			t.Fatalf("%+v", res)
		}
		was := recordOf(t, s)
		lose(t, s)
		put(t, s, target, expiring(t, target, "behind", now.Add(-20*time.Hour)))
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Error != "" || !res.Complete || res.Deleted != 1 {
			t.Errorf("without a record: %+v", res)
		}
		is := recordOf(t, s)
		if target.Generations && (!slices.Equal(numbers(is), []int{1, 2}) || is.Generations[0].Closed.Before(was.Created)) {
			t.Errorf("generations %+v", is.Generations)
		}
		if store.RevisionCount(is.Revision) <= store.RevisionCount(was.Revision) {
			t.Errorf("revision %s after %s", is.Revision, was.Revision)
		}
	})
}

// An embedded store refuses keys of dropped generations for good. So the next generation
// has a higher number than these, also if the table is now swept under another name, and if the record
// is of a process with a layout without generations.
func TestBeginsAfterWhatWasDropped(t *testing.T) {
	t.Run("without a record", func(t *testing.T) { beginsAfterWhatWasDropped(t, false) })
	t.Run("with a record without generations", func(t *testing.T) { beginsAfterWhatWasDropped(t, true) })
}

func beginsAfterWhatWasDropped(t *testing.T, recorded bool) {
	db, err := embedded.Open(t.TempDir(), embedded.Options{Create: true, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w := newWorld(t)
	if to, err := db.Dropped(t.Context(), w.target.Target); to != "" || err != nil {
		t.Errorf("dropped before anything was: %q, %v", to, err)
	}
	for _, number := range []int{40, 41, 12} {
		from, to := fmt.Sprintf("%08d.", number), fmt.Sprintf("%08d/", number)
		if err := db.Drop(t.Context(), w.target.Target, from, to); err != nil {
			t.Fatal(err)
		}
	}
	c := w.config()
	c.Store = db
	if recorded {
		if rec, _, err := sweep.EnsureRecord(t.Context(), c, withoutGenerations(w.target)); err != nil || len(rec.Generations) > 0 {
			t.Fatalf("%+v, %v", rec.Generations, err)
		}
	}
	rec, now, err := sweep.EnsureRecord(t.Context(), c, w.target)
	if err != nil || !slices.Equal(numbers(rec), []int{42}) {
		t.Fatalf("%+v, %v", rec.Generations, err)
	}
	key, err := rec.StamperFor("x", now).Name("x", now)
	if err == nil {
		err = db.Put(t.Context(), w.target.Target, "", []store.Entity{{Name: "x", Expiry: store.TextValue(key.String())}})
	}
	if err != nil {
		t.Error(err)
	}
}
