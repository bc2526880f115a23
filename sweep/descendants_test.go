package sweep_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A family is a world whose entities have descendants. It holds that children go first: an entity only once
// nothing lies below it, and a descendant only once nothing lies below that.
type family struct {
	*world
	deleted atomic.Int64 // descendants
	isHuge  bool         // too large to look at all of it after each call
	before  func(context.Context, modelstore.Call) error
}

func newFamily(t *testing.T) *family {
	f := &family{world: newWorld(t)}
	f.target.Descendants = sweep.Descendants{Mode: sweep.DeleteDescendants, Max: 100_000,
		Owners: []store.Target{f.target.Target, {Name: "notes", Kind: "Note", Property: "note_expiry"}}}
	f.target.Page = 7
	f.s.Before = func(ctx context.Context, c modelstore.Call) error {
		if f.before != nil {
			return f.before(ctx, c)
		}
		return nil
	}
	f.s.After = func(_ context.Context, c modelstore.Call) error {
		f.check(c)
		return nil
	}
	f.begin()
	return f
}

func keyOf(name string) string { return modelstore.Key(store.Entity{Name: name}) }

// concern reports whether ops have an entity of that name.
func concern(ops []store.Op, name string) bool {
	return slices.ContainsFunc(ops, func(op store.Op) bool { return op.Entry.Key == keyOf(name) })
}

// check looks at what a call has left.
func (f *family) check(c modelstore.Call) {
	switch c.Method {
	case "Dispose", "Settle":
		left := f.s.Entities("Session", "")
		for _, op := range c.Ops {
			if below := f.s.Below("Session", "", op.Entry.Key); !op.IsCarry() && left[op.Entry.Key].Name == "" && len(below) > 0 {
				f.t.Errorf("%s is gone before %v", op.Entry.Key, below)
			}
		}
	case "DeleteBelow":
		if f.isHuge {
			return
		}
		gone := map[string]bool{}
		for _, path := range c.Paths {
			gone[path] = true
		}
		left := f.s.Below("Session", "", c.Ops[0].Entry.Key)
		if slices.ContainsFunc(left, func(path string) bool { return gone[path] }) {
			return // nothing was deleted
		}
		f.deleted.Add(int64(len(c.Paths)))
		for _, path := range left {
			for i := range path {
				if path[i] == '/' && gone[path[:i]] {
					f.t.Errorf("%s of %s is gone before %s", path[:i], c.Ops[0].Entry.Key, path)
				}
			}
		}
	}
}

// bear puts n descendants below an entity: three levels.
func (f *family) bear(name string, n int) {
	var list []modelstore.Kin
	for i := range n {
		path := fmt.Sprintf("posts/p-%d", i%5)
		if i >= 5 {
			path += fmt.Sprintf("/likes/l-%02d", i/5%4)
		}
		if i >= 25 {
			path += fmt.Sprintf("/tags/t-%d", i/25)
		}
		list = append(list, modelstore.Kin{Path: path})
	}
	f.s.PutBelow("Session", "", keyOf(name), list...)
}

// bearMany makes the entity e due, with so many descendants that it is not looked at all of them after each call.
func (f *family) bearMany(n int) {
	f.isHuge = true
	f.put(1, 4, "e", time.Now())
	f.bear("e", n)
	time.Sleep(time.Second)
}

func (f *family) below(name string) []string { return f.s.Below("Session", "", keyOf(name)) }

func inFamily(t *testing.T, test func(*testing.T, *family)) {
	synctest.Test(t, func(t *testing.T) { test(t, newFamily(t)) })
}

// Whatever lies below an entity goes before it, and nothing else does.
func TestChildrenGoFirst(t *testing.T) {
	for _, page := range []int{1, 2, 7, 500} {
		t.Run(fmt.Sprint("page ", page), func(t *testing.T) {
			inFamily(t, func(t *testing.T, f *family) {
				f.target.Page = page
				all := 0
				for i := range 40 {
					f.put(1, 4, fmt.Sprint("e-", i), time.Now())
					f.bear(fmt.Sprint("e-", i), i)
					all += len(f.below(fmt.Sprint("e-", i)))
				}
				f.put(1, 4, "live", time.Now().Add(time.Hour))
				f.bear("live", 10)
				f.bear("e-1x", 10) // below one that does not exist
				time.Sleep(time.Second)
				res := f.sweep()
				if !res.Complete || res.Deleted != 40 || res.Descendants != int64(all) || res.Refused+res.Waiting != 0 {
					t.Errorf("%+v", res)
				}
				if left := f.left(); !slices.Equal(left, []string{"live"}) || len(f.below("live")) != 10 || len(f.below("e-1x")) != 10 {
					t.Errorf("left: %v, %v", left, f.below("live"))
				}
				for i := range 40 {
					if left := f.below(fmt.Sprint("e-", i)); len(left) > 0 {
						t.Errorf("below e-%d: %v", i, left)
					}
				}
				if d := f.deleted.Load(); d != int64(all) {
					t.Errorf("%d descendants were deleted of %d", d, all)
				}
			})
		})
	}
}

// An entity that is extended while its descendants are deleted lives, with what is left of them.
func TestExtendedWhileItsChildrenGo(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.put(1, 4, "e", time.Now())
		f.bear("e", 60)
		time.Sleep(time.Second)
		calls, left := 0, 0
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "DeleteBelow" {
				return nil
			}
			if calls++; calls == 3 {
				f.put(1, 4, "e", time.Now().Add(time.Hour))
				left = len(f.below("e"))
			}
			return nil
		}
		res := f.sweep()
		if !res.Complete || res.Deleted != 0 || !slices.Equal(f.left(), []string{"e"}) || calls != 3 || left == 0 || len(f.below("e")) != left {
			t.Errorf("%+v, %d calls, %d and then %d are left", res, calls, left, len(f.below("e")))
		}
	})
}

// The same, in a generation that is drained: what changed since the scan is carried, and what lies below it stays.
func TestExtendedInADrainedGeneration(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.drain(2)
		f.put(2, 1, "e", time.Now())
		f.put(2, 1, "early", time.Now().Add(100*time.Hour))
		time.Sleep(time.Second)
		extended := false
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" && concern(c.Ops, "e") && !extended {
				extended = true
				time.Sleep(2 * time.Second) // until it is looked below it again
				f.put(2, 1, "e", time.Now().Add(50*time.Hour))
				f.bear("e", 10)
			}
			return nil
		}
		carried := int64(0)
		for n := 0; n < 30 && carried < 2; n++ { // a sweep may end before it begins to drain
			carried += f.sweep().Carried
			time.Sleep(time.Minute)
		}
		if n := len(f.below("e")); n != 10 || !extended || len(f.left()) != 2 || carried != 2 {
			t.Errorf("%d of 10 are left below an entity that lives; %v, %d carried", n, f.left(), carried)
		}
	})
}

// An entity that is stamped before each try with another expiry that has passed is contended, also if something lies
// below it: a sweep leaves it to the next one.
func TestStampedBeforeEachTryAboveOthers(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.put(1, 4, "e", time.Now())
		f.bear("e", 10)
		time.Sleep(time.Second)
		began, tries := time.Now(), 0
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "DeleteBelow" {
				tries++
				f.put(1, 4, "e", began.Add(-time.Duration(tries)*time.Minute))
			}
			return nil
		}
		res := f.sweep()
		if took := time.Since(began); tries < 3 || tries > 12 || took > 4*time.Minute || res.Complete || len(f.below("e")) != 10 {
			t.Errorf("%d tries in %v; %+v", tries, took, res)
		}
	})
}

// A long look below an entity that fails once goes on, and its sweep waits for it, however long that takes.
func TestLongSurveyThatFailsOnce(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.bearMany(1000)
		lists := 0
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Descendants" {
				time.Sleep(10 * time.Second)
				if lists++; lists == 5 {
					return store.ErrContention
				}
			}
			return nil
		}
		if res := f.sweep(); !res.Complete || res.Deleted != 1 || lists < 20 {
			t.Errorf("%d lists, %d are left below; %+v", lists, len(f.below("e")), res)
		}
	})
}

// A descent that is contended now and then gets on, and its sweep waits for it.
func TestDescentThatIsContendedNowAndThen(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.bearMany(1000)
		began, calls := time.Now(), 0
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "DeleteBelow" {
				if calls++; calls%4 == 0 {
					return store.ErrContention
				}
			}
			return nil
		}
		res := f.sweep()
		if took := time.Since(began); !res.Complete || res.Deleted != 1 || took < 2*time.Minute { // or it shows nothing
			t.Errorf("%d are left below after %v; %+v", len(f.below("e")), took, res)
		}
	})
}

// What lies below an entity is deleted as fast as the pace allows.
func TestFamilyUnderAPace(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.target.Page, f.target.Pace = 50, throttle.Limits{Start: 100, Max: 100}
		f.bearMany(400)
		began, n := time.Now(), len(f.below("e"))
		res := f.sweep()
		if took := time.Since(began); !res.Complete || len(f.left()) > 0 || took > 2*time.Duration(n)*time.Second/100+4*time.Second {
			t.Errorf("%d went in %v; %+v", n, took, res)
		}
	})
}

// drain lets a generation be drained, of which two are newer.
func (f *family) drain(number int) {
	f.t.Helper()
	f.target.Shards = 1
	f.target.Policy = generation.Policy{Every: 1000 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 1, Shards: 1}
	now := time.Now().UTC().Truncate(time.Microsecond)
	r := generation.New("sessions", "Session", "expiry_key", 1, true, now.Add(-300*time.Hour)).WithWriterBounds(f.target.Policy)
	r.Generations[0].Number, r.Generations[0].Draining = number, now.Add(-time.Hour)
	for i, ago := range []time.Duration{200 * time.Hour, 100 * time.Hour} {
		r.Generations[i].Closed = now.Add(-ago)
		r.Generations = append(r.Generations, generation.Generation{Number: number + 1 + i, Shards: 1, Opened: now.Add(-ago),
			Staleness: time.Minute, Slack: 10 * time.Minute})
	}
	rec, _, err := generation.Load(f.t.Context(), f.s, "sessions")
	if err != nil {
		f.t.Fatal(err)
	}
	r.Revision = rec.Revision
	if _, err := generation.Save(f.t.Context(), f.s, r); err != nil {
		f.t.Fatal(err)
	}
}

// An entity that waits aside because nobody knows what became of its first try was found to be extended by that.
func TestExtendedInDoubt(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.put(1, 4, "e", time.Now())
		time.Sleep(time.Second)
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Dispose" {
				return nil
			}
			f.put(1, 4, "e", time.Now().Add(50*time.Hour))
			f.bear("e", 10)
			return store.ErrContention
		}
		settles := 0
		f.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Settle" {
				if settles++; settles == 1 {
					return context.DeadlineExceeded
				}
			}
			f.check(c)
			return nil
		}
		res := f.sweep()
		if n := len(f.below("e")); n != 10 || settles < 2 || res.Deleted != 0 {
			t.Errorf("after %d tries %d of 10 are left below an entity that lives; %+v", settles, n, res)
		}
	})
}

// What comes to be below an entity until the last look goes with it. What is written between the last look
// and the delete stays, which no store can prevent.
func TestBornMeanwhile(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.put(1, 4, "e", time.Now())
		f.bear("e", 30)
		time.Sleep(time.Second)
		born := 0
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "DeleteBelow" && born < 20 {
				f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: fmt.Sprintf("late/%02d", 20-born)})
				born++
			}
			return nil
		}
		if res := f.sweep(); !res.Complete || res.Deleted != 1 || len(f.below("e")) > 0 || born < 5 {
			t.Errorf("%+v, %v are left, %d were born", res, f.below("e"), born)
		}
	})
}

// A descendant that gets an expiry of its own between the look and the delete stays, and so does what it is below.
func TestOwnedMeanwhile(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.put(1, 4, "e", time.Now())
		f.bear("e", 3)
		const note = "posts/p-9/Note/n"
		f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: note})
		time.Sleep(time.Second)
		f.before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "DeleteBelow" {
				f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: note, Property: "note_expiry"})
			}
			return nil
		}
		res := f.sweep()
		if !res.Complete || res.Deleted != 0 || res.Waiting != 1 || !slices.Equal(f.left(), []string{"e"}) || !slices.Contains(f.below("e"), note) {
			t.Errorf("%+v, %v are left, and below %v", res, f.left(), f.below("e"))
		}
	})
}

// A descendant gets an expiry of its own while what lies below it is deleted, page by page: the rest of that stays.
func TestOwnedWhileItsOwnGo(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.put(1, 4, "e", time.Now())
		const note = "Note/n"
		for _, place := range []string{"", "/posts/0"} { // directly below it, and below what lies below it
			for i := range 50 {
				f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: fmt.Sprintf("%s%s/tags/t-%02d", note, place, i)})
			}
		}
		f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: note})
		time.Sleep(time.Second)
		calls, left := 0, 0
		f.s.After = func(_ context.Context, c modelstore.Call) error {
			if f.check(c); c.Method != "DeleteBelow" {
				return nil
			}
			switch calls++; calls {
			case 2: // what changes without an owner is listed again, and goes
				f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: note})
			case 6:
				f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: note, Property: "note_expiry"})
				left = len(f.below("e"))
			}
			return nil
		}
		res := f.sweep()
		if now := len(f.below("e")); left < 60 || left > 90 || now != left || res.Deleted != 0 || res.Waiting != 1 {
			t.Errorf("%+v; %d of %d are left", res, now, left)
		}
	})
}

// The delays of entities that wait aside while what lies below them is deleted count, too: they are the longest.
func TestDelayOfALargeFamily(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.target.History = sweep.History{Keep: keepHistory, Actor: "job@example.com", Host: "host"}
		f.put(1, 4, "e", time.Now())
		f.put(1, 4, "small", time.Now())
		f.bear("e", 60)
		time.Sleep(time.Second)
		res, timed := f.sweep(), int64(0)
		for _, run := range f.runs() {
			for _, d := range run.Run.Delays {
				timed += d.N
			}
		}
		if res.Deleted != 2 || timed != res.Deleted {
			t.Errorf("%d deletes have a delay: %+v", timed, res)
		}
	})
}

// A process that is killed at any call leaves nothing that the next one does not find.
func TestKilledAmongChildren(t *testing.T) {
	for kill := 1; ; kill++ {
		var killed atomic.Bool
		inFamily(t, func(t *testing.T, f *family) {
			for i := range 3 {
				f.put(1, 4, fmt.Sprint("e-", i), time.Now())
				f.bear(fmt.Sprint("e-", i), 12*i)
			}
			time.Sleep(time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int64
			f.before = func(context.Context, modelstore.Call) error {
				if calls.Add(1) >= int64(kill) && ctx.Err() == nil {
					killed.Store(true)
					cancel()
				}
				return ctx.Err()
			}
			cfg := f.config()
			cfg.Grace = 0
			sweep.Run(ctx, cfg)
			f.before = nil
			cancel()
			time.Sleep(5 * time.Minute) // its leases end
			res := f.sweep()
			if !res.Complete || len(f.left()) > 0 || len(f.below("e-1"))+len(f.below("e-2")) > 0 {
				t.Errorf("killed at call %d: %+v, left %v", kill, res, f.left())
			}
		})
		if !killed.Load() || t.Failed() {
			t.Logf("%d calls", kill)
			break
		}
	}
}

// An entity is kept with all its descendants while one of these is another target's own, if there are too
// many, or if the target refuses those that have any. Later reads from the start delete it once that has passed.
func TestKeptForItsChildren(t *testing.T) {
	for name, c := range map[string]struct {
		set           func(*family)
		waits, refuse int64
		mend          func(*family)
	}{
		"another target's": {func(f *family) {
			f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: "posts/p-9/Note/n", Property: "note_expiry"})
		}, 1, 0, func(f *family) { f.s.RemoveBelow("Session", "", keyOf("e"), "posts/p-9/Note/n") }},
		"of its kind without the property": {func(f *family) {
			f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: "posts/p-9/Note/n"})
		}, 0, 0, nil},
		"its own target's": {func(f *family) {
			f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: "Session/s", Property: f.target.Property})
		}, 1, 0, func(f *family) { f.s.RemoveBelow("Session", "", keyOf("e"), "Session/s") }},
		"a record": {func(f *family) {
			f.s.PutBelow("Session", "", keyOf("e"), modelstore.Kin{Path: "ReaperTarget/sessions"})
		}, 1, 0, func(f *family) { f.s.RemoveBelow("Session", "", keyOf("e"), "ReaperTarget/sessions") }},
		"too many": {func(f *family) { f.target.Descendants.Max = 20 }, 0, 1,
			func(f *family) { f.target.Descendants.Max = 100 }},
		"refused": {func(f *family) { f.target.Descendants.Mode = sweep.RefuseDescendants }, 0, 1,
			func(f *family) { f.s.RemoveBelow("Session", "", keyOf("e"), f.below("e")...) }},
	} {
		for _, n := range []int{3, 30} { // in a page, and in several
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				inFamily(t, func(t *testing.T, f *family) {
					f.put(1, 4, "e", time.Now())
					f.put(1, 4, "other", time.Now())
					f.bear("e", n)
					c.set(f)
					before := len(f.below("e"))
					if name == "too many" {
						f.target.Descendants.Max = int64(before - 1)
					}
					time.Sleep(time.Second)
					res := f.sweep()
					kept := c.waits+c.refuse > 0
					if !res.Complete || res.Waiting != c.waits || res.Refused != c.refuse {
						t.Errorf("%+v", res)
					}
					if !kept {
						if len(f.left()) > 0 || len(f.below("e")) > 0 {
							t.Errorf("%v and %v are left", f.left(), f.below("e"))
						}
						return
					}
					if left := f.left(); !slices.Equal(left, []string{"e"}) || len(f.below("e")) != before {
						t.Errorf("%v and %d of %d are left", left, len(f.below("e")), before)
					}
					c.mend(f)
					time.Sleep(25 * time.Hour)
					if res := f.sweep(); !res.Complete || len(f.left()) > 0 || len(f.below("e")) > 0 {
						t.Errorf("a day later: %+v, left %v, %v", res, f.left(), f.below("e"))
					}
				})
			})
		}
	}
}

// A dry run counts descendants, and deletes none.
func TestDryRunCountsDescendants(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		f.target.Descendants.Max = 40
		all := 0
		for i, n := range []int{0, 3, 30, 60} {
			name := fmt.Sprint("e-", i)
			f.put(1, 4, name, time.Now())
			f.bear(name, n)
			if n < 60 {
				all += n
			}
		}
		time.Sleep(time.Second)
		cfg := f.config()
		cfg.Apply = false
		writes := f.s.Writes()
		res := sweep.Run(t.Context(), cfg).Targets[0]
		if res.Descendants != int64(all) || res.Expired != 4 || res.Refused != 1 || f.s.Writes() != writes || f.deleted.Load() > 0 {
			t.Errorf("%+v, %d writes", res, f.s.Writes()-writes)
		}
	})
}

// An entity with very much below it holds up nothing that comes after it in its range, or in others.
func TestHugeFamilyHoldsUpNothing(t *testing.T) {
	n := nightly.Size(t, 1_000_000, 40_000)
	inFamily(t, func(t *testing.T, f *family) {
		f.target.Page, f.target.Descendants.Max = 500, int64(n)
		f.isHuge = true
		list := make([]modelstore.Kin, n)
		for i := range list {
			list[i].Path = fmt.Sprintf("events/%06d", i)
		}
		f.s.PutBelow("Session", "", keyOf("huge"), list...)
		f.dueIn(1, 0, "huge", time.Now())
		f.target.Next = everyMinute
		s := f.serve(f.config())
		time.Sleep(2 * time.Minute)
		for i := range 60 {
			f.dueIn(1, i%4, fmt.Sprint("e-", i), time.Now())
			time.Sleep(5 * time.Second)
			if left := f.left(); len(left) > 16 { // two ticks of a minute
				t.Errorf("after %d of them %v are left, and %d below", i, left, len(f.below("huge")))
				break
			}
		}
		time.Sleep(30 * time.Minute)
		if left := f.left(); len(left) > 0 || len(f.below("huge")) > 0 {
			t.Errorf("%v are left, and %d below", left, len(f.below("huge")))
		}
		s.stop()
	})
}

// Entities with much below them wait aside, and a page behind them was read ahead: what goes below them
// ends with the turn, so that the next range is not held up.
func TestPageAheadHoldsUpNobody(t *testing.T) {
	inFamily(t, func(t *testing.T, f *family) {
		const parents, below = 3, 200
		f.touch() // so that the next reads are no longer from the start
		for i := range 4 * 20 {
			name := fmt.Sprint("e-", i)
			if i < 4*parents {
				f.bear(name, below)
			}
			f.dueIn(1, i%4, name, time.Now().Add(time.Duration(i)*time.Second))
		}
		time.Sleep(5 * time.Minute)
		last, since, longest := "", time.Now(), time.Duration(0) // that the same range has had the worker
		f.before = func(ctx context.Context, c modelstore.Call) error {
			for _, op := range c.Ops {
				if shard := op.Entry.Value.Text[:len("00000001.0000")]; shard != last {
					last, since = shard, time.Now()
				}
				longest = max(longest, time.Since(since))
			}
			switch c.Method {
			case "Dispose":
				return throttle.Sleep(ctx, 2*time.Second)
			case "Descendants", "DeleteBelow":
				return throttle.Sleep(ctx, time.Second)
			}
			return nil
		}
		c := f.config()
		c.Workers = 1
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Deleted != 4*20 || longest > 15*time.Second {
			t.Errorf("a range had the only worker for %v: %+v", longest, res)
		}
	})
}
