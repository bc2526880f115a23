package restore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// What was deleted comes back with a new expiry in a live generation; what exists stays; a dry run writes nothing.
func TestRestores(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		names := w.gone(30, 7)
		w.put(`{"user":"new"}`, "s-0003")
		var announced []time.Time
		cfg := w.config()
		cfg.Announce = func(_ context.Context, at []time.Time) error { announced = append(announced, at...); return nil }
		cfg.Sweep.Apply = false
		writes := w.s.Writes()
		dry := w.run(cfg)
		want := restore.Counts{Objects: 5, Lines: 30, Restorable: 30, Expiring: 30, Exist: 1}
		if dry.Counts != want || w.s.Writes() != writes || dry.Apply || dry.FirstExpiry == nil {
			t.Errorf("dry run: %+v", dry)
		}
		cfg.Sweep.Apply = true
		began := time.Now()
		res := w.run(cfg)
		want.Restored, want.Verified = 29, 29
		if res.Counts != want || res.Operations.Writes < 29 || len(announced) != 29 {
			t.Errorf("%+v, %d announced", res, len(announced))
		}
		for _, n := range names {
			data := `{"user":"u7"}`
			if n == "s-0003" {
				data = `{"user":"new"}`
			}
			if got := w.entities()[n]; got != data {
				t.Errorf("%s holds %s", n, got)
			}
			if at, gen := w.expiry(n); n != "s-0003" && (at.Before(began.Add(7*day-time.Second)) || gen == 0) {
				t.Errorf("%s expires %v in generation %d", n, at, gen)
			}
		}
		cfg = w.config()
		if res := w.run(cfg); res.Restored != 0 || res.Exist != 30 || res.Continued {
			t.Errorf("again: %+v", res)
		}
	})
}

// Of several copies the newest counts; what was not deleted stays away; what is unconfirmed comes back.
func TestCopies(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{"v":1}`, "a", "b", "c", "d")
		w.sweep("one", deleted, key("a"), key("b"), key("d"))
		w.put(`{"v":2}`, "a", "b", "d")
		w.sweep("two", unconfirmed, key("a"))
		w.sweep("three", kept, key("b"), key("c"))
		w.s.Remove("Session", "", key("b"))
		w.s.Remove("Session", "", key("c"))
		res := w.run(w.config())
		if res.Restored != 2 || res.Unconfirmed != 1 || res.Superseded != 1 || res.NotDeleted != 2 || res.Exist != 1 {
			t.Errorf("%+v", res.Counts)
		}
		if got := fmt.Sprint(w.entities()); got != `map[a:{"v":2} b:{"v":1} d:{"v":2}]` {
			t.Errorf("restored %s", got)
		}
	})
}

// The newest copy is that of what was written last, whatever the clocks of those who deleted it said.
func TestCopiesByTwoClocks(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{"v":1}`, "a")
		w.skew = 9 * time.Second
		w.sweep("one", deleted, key("a"))
		w.put(`{"v":2}`, "a")
		w.skew = 0
		w.sweep("two", deleted, key("a"))
		time.Sleep(time.Minute)
		if res := w.run(w.config()); res.Restored != 1 || res.Superseded != 1 {
			t.Errorf("%+v", res.Counts)
		}
		if got := fmt.Sprint(w.entities()); got != `map[a:{"v":2}]` {
			t.Errorf("restored %s", got)
		}
	})
}

// What is above comes before what lies below it, though sweeps archive it later.
func TestParentsFirst(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "p", "q")
		w.s.PutBelow("Session", "", key("p"), modelstore.Kin{Path: "notes/1"}, modelstore.Kin{Path: "notes/1/lines/2"},
			modelstore.Kin{Path: "notes/3"})
		w.sweep("one", deleted, key("p")+"/notes/1/lines/2")
		w.sweep("one", deleted, key("p")+"/notes/1", key("p")+"/notes/3")
		w.sweep("one", deleted, key("p"), key("q"))
		var order []string
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" {
				order = append(order, c.Paths...)
			}
			return nil
		}
		cfg := w.config()
		cfg.Pick.IDs = []string{"p"}
		if res := w.run(cfg); res.Restored != 4 || res.Expiring != 1 {
			t.Errorf("%+v", res.Counts)
		}
		want := []string{key("p"), key("p") + "/notes/1", key("p") + "/notes/3", key("p") + "/notes/1/lines/2"}
		if !slices.Equal(order, want) || len(w.s.Below("Session", "", key("p"))) != 3 {
			t.Errorf("order %q", order)
		}
	})
}

// Nothing is inserted below what the store refuses: it would be an orphan.
func TestNothingBelowWhatIsRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "p")
		w.s.PutBelow("Session", "", key("p"), modelstore.Kin{Path: "notes/1"}, modelstore.Kin{Path: "notes/1/lines/2"},
			modelstore.Kin{Path: "notes/3"}, modelstore.Kin{Path: "notes/3/lines/4"})
		below := key("p") + "/notes/"
		w.sweep("one", deleted, below+"1/lines/2", below+"3/lines/4", below+"1", below+"3", key("p"))
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" && slices.Contains(c.Paths, below+"1") {
				return store.ErrTooLarge
			}
			return nil
		}
		res, err := restore.Run(t.Context(), w.config())
		if !errors.Is(err, restore.ErrPartial) || res.Restored != 3 || res.Refused != 2 || len(res.RefusedOf) != 2 {
			t.Errorf("%+v, %v", res, err)
		}
		if left := w.s.Below("Session", "", key("p")); !slices.Equal(left, []string{"notes/3", "notes/3/lines/4"}) {
			t.Errorf("below: %q", left)
		}
	})
}

func TestExpiries(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		names := w.gone(100, 50)
		cfg := w.config()
		cfg.Expiry = restore.Expiry{Keep: true}
		if res, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrDue) || res.Due != 100 ||
			len(w.entities()) > 0 {
			t.Errorf("kept expiries are due: %+v, %v", res, err)
		}
		cfg = w.config()
		cfg.Expiry, cfg.Pick.IDs, cfg.Order = restore.Expiry{Never: true}, names[:10], "never"
		if res := w.run(cfg); res.Restored != 10 || res.Expiring != 0 || res.FirstExpiry != nil {
			t.Errorf("%+v", res)
		}
		if at, _ := w.expiry(names[3]); !at.IsZero() {
			t.Errorf("it expires %v", at)
		}
		cfg = w.config()
		cfg.Expiry.Spread, cfg.Order = day, "spread"
		began := time.Now()
		res := w.run(cfg)
		hours := map[int]int{}
		for _, n := range names[10:] {
			at, _ := w.expiry(n)
			hours[int(at.Sub(began.Add(7*day))/time.Hour)]++
		}
		if res.Restored != 90 || len(hours) < 15 || res.LastExpiry.Sub(*res.FirstExpiry) < 20*time.Hour {
			t.Errorf("spread over %v, %+v", hours, res)
		}
	})
}

// An expiry that is kept is stamped again, in a generation that is swept.
func TestKeepsExpiry(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		at := time.Now().Add(30 * day).UTC().Truncate(time.Millisecond)
		k, err := generation.Stamper{Generation: 4711, Shards: 4}.Name("a", at)
		if err != nil {
			t.Fatal(err)
		}
		e := store.Entity{Name: "a", Data: []byte(`{}`), Expiry: store.TextValue(k.String())}
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
			t.Fatal(err)
		}
		w.sweep("one", deleted, key("a"))
		cfg := w.config()
		cfg.Expiry = restore.Expiry{Keep: true}
		w.run(cfg)
		if got, gen := w.expiry("a"); !got.Equal(at) || gen == 4711 {
			t.Errorf("it expires %v in generation %d, want %v", got, gen, at)
		}
	})
}

// A restore that is killed before or after any of its calls is continued by the next one; and calls that fail for a
// moment change nothing. Nothing is inserted twice.
func TestKilledAtEveryCall(t *testing.T) {
	errKilled := fmt.Errorf("%w: killed", store.ErrDenied)
	for _, failure := range []error{errKilled, store.ErrUnavailable, store.ErrContention, store.ErrDeadline} {
		for kill := 1; ; kill++ {
			done := false
			in(t, func(t *testing.T, w *world) {
				names := w.gone(12, 5)
				w.s.CopyBytes = 300
				calls, inserted := 0, map[string]int{}
				at := func(_ context.Context, c modelstore.Call) error {
					if calls++; calls == kill || calls > kill && errors.Is(failure, errKilled) {
						return failure
					}
					return nil
				}
				w.s.Before = at
				w.s.After = at
				if errors.Is(failure, store.ErrContention) {
					w.s.After = nil // nothing was written then
				}
				res, err := restore.Run(t.Context(), w.config())
				done = calls < kill
				w.s.Before, w.s.After = nil, nil
				if res.Complete != (err == nil) || err != nil && !errors.Is(failure, errKilled) {
					t.Fatalf("kill %d, %v: complete %v, %v", kill, failure, res.Complete, err)
				}
				before := w.entities()
				if err != nil {
					w.s.After = func(_ context.Context, c modelstore.Call) error {
						if c.Method == "Insert" {
							for _, k := range c.Paths {
								inserted[k]++
							}
						}
						return nil
					}
					res = w.run(w.config())
				}
				if got := len(w.entities()); got != len(names) || res.Restored+res.Exist != int64(len(names)) {
					t.Fatalf("kill %d, %v: %d of %d exist, %d were there before: %+v", kill, failure, got, len(names),
						len(before), res)
				}
				if err == nil && res.Restored != int64(len(names)) {
					t.Fatalf("kill %d, %v: %d are counted", kill, failure, res.Restored)
				}
			})
			if done {
				if kill < 20 {
					t.Errorf("only %d calls", kill)
				}
				break
			}
			if t.Failed() {
				return
			}
		}
	}
}

// What somebody deletes after it was restored does not come back when the restore goes on after a kill.
func TestNothingTwice(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1500, 1500)
		inserts := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" {
				inserts++
			}
			if inserts > 1 {
				return fmt.Errorf("%w: killed", store.ErrDenied)
			}
			return nil
		}
		if _, err := restore.Run(t.Context(), w.config()); err == nil || len(w.entities()) != store.MaxPage {
			t.Fatalf("%d restored, %v", len(w.entities()), err)
		}
		w.s.Before = nil
		w.s.Remove("Session", "", key("s-0007"))
		w.gone(1, 1) // archived while the restore lies idle: not part of it
		res := w.run(w.config())
		if _, back := w.entities()["s-0007"]; back || res.Restored != 1500 || !res.Continued || len(w.entities()) != 1498 {
			t.Errorf("s-0007 is back: %v; %d exist: %+v", back, len(w.entities()), res.Counts)
		}
	})
}

// Two restores at once: the second one is refused. One whose process is dead is taken over.
func TestTwoAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(2000, 500)
		slow := w.config()
		slow.Rate = throttle.Limits{Start: 10, Max: 10}
		ctx, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if res, err := restore.Run(ctx, slow); err != nil || res.Complete {
				t.Errorf("complete %v, %v", res.Complete, err)
			}
		})
		time.Sleep(50 * time.Second)
		if res, err := restore.Run(t.Context(), w.config()); !errors.Is(err, restore.ErrBusy) ||
			!strings.Contains(err.Error(), "of ann since") || res.Restored > 0 {
			t.Errorf("the second one: %+v, %v", res, err)
		}
		stop()
		group.Wait()
		began := time.Now()
		if res := w.run(w.config()); len(w.entities()) != 2000 || !res.Continued && res.Exist == 0 {
			t.Errorf("%d exist: %+v", len(w.entities()), res.Counts)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it waited %v for a restore that was stopped in good order", took)
		}
	})
}

// What an application writes meanwhile is never overwritten.
func TestNeverOverwrites(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		names := w.gone(1200, 400)
		n := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" { // it just comes into being
				for _, k := range c.Paths[:len(c.Paths)/3] {
					name := strings.Trim(k, `"`)
					w.put(`{"user":"new"}`, name)
					n++
				}
			}
			return nil
		}
		res := w.run(w.config())
		changed := 0
		for _, name := range names {
			if w.entities()[name] == `{"user":"new"}` {
				changed++
			}
		}
		if n == 0 || changed != n || res.Exist != int64(n) || res.Restored != int64(1200-n) {
			t.Errorf("%d written, %d left: %+v", n, changed, res.Counts)
		}
	})
}

// Of a damaged object all lines before the damage come back, and of the others all; the error says what is missing.
func TestDamaged(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(30, 10)
		names := w.bucket.names()
		last := w.bucket.objects[names[2]]
		w.bucket.objects[names[2]] = last[:len(last)-20]
		res, err := restore.Run(t.Context(), w.config())
		if !errors.Is(err, restore.ErrPartial) || !res.Complete || res.BadObjects != 1 || len(res.Problems) != 1 ||
			res.Problems[0].Object != names[2] || res.Restored < 20 {
			t.Errorf("%+v, %v", res, err)
		}
		delete(w.bucket.objects, names[0])
		w.s.Remove("Session", "", key("s-0015"))
		cfg := w.config()
		cfg.Order = "again"
		res, err = restore.Run(t.Context(), cfg)
		if !errors.Is(err, restore.ErrPartial) || res.BadObjects != 2 || res.Restored != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		cfg.Pick.Sweeps, cfg.Order = []string{"one"}, "sweep"
		res, err = restore.Run(t.Context(), cfg)
		if !errors.Is(err, restore.ErrPartial) || res.BadObjects != 1 || res.GoneObjects != 1 || len(res.Warnings) != 1 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestHeld(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1200, 600)
		w.pause(true)
		if res, err := restore.Run(t.Context(), w.config()); err != nil || res.Complete || res.Held == "" || res.Tripped ||
			len(w.entities()) > 0 {
			t.Errorf("paused: %+v, %v", res, err)
		}
		w.pause(false)
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		var group sync.WaitGroup
		group.Go(func() {
			time.Sleep(20 * time.Second)
			w.pause(true)
		})
		res, err := restore.Run(t.Context(), cfg)
		group.Wait()
		n := len(w.entities())
		if err != nil || res.Complete || res.Held == "" || n == 0 || n > 600 || int64(n) != res.Restored {
			t.Errorf("paused in the midst: %d exist, %+v, %v", n, res, err)
		}
		w.pause(false)
		if w.run(w.config()); len(w.entities()) != 1200 {
			t.Errorf("%d exist", len(w.entities()))
		}
	})
}

// A breaker that is open holds a restore, which says so: the command exits with 4.
func TestTripped(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(10, 10)
		rec, _, err := generation.Load(t.Context(), w.s, "sessions")
		if err == nil {
			trip := breaker.Trip{ID: "b-1", Rule: breaker.Burst, At: time.Now(), Due: 10, Limit: 1}
			_, err = generation.Save(t.Context(), w.s, rec.Tripped(trip))
		}
		if err != nil {
			t.Fatal(err)
		}
		if res, err := restore.Run(t.Context(), w.config()); err != nil || res.Complete || !res.Tripped || res.Held == "" ||
			len(w.entities()) > 0 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A lost store keeps what was there, for Fetch at an instant.
type pastStore struct {
	*modelstore.Store
	past     map[string]store.Copy
	asked    []time.Time
	earliest time.Time
	most     int // that one call reads; 0: all
}

func (s *pastStore) Fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) (list []store.Copy, err error) {
	if at.IsZero() {
		return s.Store.Fetch(ctx, t, namespace, keys, at)
	}
	s.asked = append(s.asked, at)
	if at.Before(s.earliest) {
		return nil, fmt.Errorf("%w: too old", store.ErrInvalid)
	}
	if s.most > 0 {
		keys = keys[:min(s.most, len(keys))]
	}
	for _, k := range keys {
		c := s.past[k]
		c.Key = k
		list = append(list, c)
	}
	return list, nil
}

// An archive of keys takes contents from point-in-time recovery, as far as they are those that were deleted.
func TestPITR(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mode = archive.Keys
		w.put(`{"v":1}`, "same", "changed", "young")
		time.Sleep(3 * time.Minute)
		keys := []string{key("same"), key("changed"), key("young")}
		copies, err := w.s.Fetch(t.Context(), w.target.Target, "", keys, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		past := &pastStore{Store: w.s, past: map[string]store.Copy{keys[0]: copies[0], keys[1]: copies[1]}}
		w.put(`{"v":2}`, "changed")
		latest := time.Now().Add(-w.target.MaxClockSkew) // the clock of who deleted them may have been ahead
		w.sweep("one", deleted, keys...)
		cfg := w.config()
		if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrKeysOnly) {
			t.Errorf("keys alone: %v", err)
		}
		cfg = w.config()
		cfg.Sweep.Store, cfg.From = past, restore.FromPITR
		res, err := restore.Run(t.Context(), cfg)
		if !errors.Is(err, restore.ErrPartial) || res.Restored != 1 || res.NotFound != 2 || len(res.NotFoundOf) != 2 ||
			w.entities()["same"] != `{"v":1}` || len(w.entities()) != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		for _, at := range past.asked {
			if at.Second() != 0 || at.Nanosecond() != 0 || at.After(latest) {
				t.Errorf("asked at %v", at)
			}
		}
		past.earliest = time.Now()
		w.s.Remove("Session", "", key("same"))
		cfg.Order = "again"
		if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrTooOld) {
			t.Errorf("too old: %v", err)
		}
	})
}

// What point-in-time recovery does not have as it was, and exists, is not missing: what lies below it comes back.
func TestPITRExists(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mode = archive.Keys
		w.put(`{}`, "p")
		w.s.PutBelow("Session", "", key("p"), modelstore.Kin{Path: "notes/1"})
		time.Sleep(3 * time.Minute)
		note := key("p") + "/notes/1"
		copies, err := w.s.Fetch(t.Context(), w.target.Target, "", []string{note}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		copies[0].Expiry = store.InstantValue(time.Now()) // of its own kind, of which the journal knows nothing
		past := &pastStore{Store: w.s, past: map[string]store.Copy{note: copies[0]}}
		w.put(`{"v":2}`, "p") // within the last minute
		w.sweep("one", deleted, note)
		w.sweep("one", deleted, key("p"))
		cfg := w.config()
		cfg.Sweep.Store, cfg.From = past, restore.FromPITR
		cfg.Sweep.Apply = false
		if res, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrPartial) || res.NotFound != 1 || res.Refused != 1 {
			t.Errorf("before it exists: %+v, %v", res, err)
		}
		w.put(`{"v":3}`, "p")
		if res := w.run(cfg); res.Exist != 1 || res.NotFound+res.Refused > 0 {
			t.Errorf("a dry run: %+v", res)
		}
		cfg.Sweep.Apply = true
		res := w.run(cfg)
		if res.Exist != 1 || res.Restored != 1 || len(w.s.Below("Session", "", key("p"))) != 1 || w.entities()["p"] != `{"v":3}` {
			t.Errorf("%+v", res)
		}
	})
}

// The clock of what archived the last entities before the restore may have been ahead.
func TestArchivedByAClockAhead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.skew = w.target.MaxClockSkew - 2*time.Second
		w.gone(6, 1)
		if res := w.run(w.config()); res.Restored != 6 {
			t.Errorf("%+v", res)
		}
	})
}

// An object with a changed byte brings nothing back: nobody knows which of its entities is another one now.
func TestChangedByte(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		random := rand.New(rand.NewPCG(1, 2))
		var keys []string
		for i := range 40 { // of several blocks of zstd, which are decoded before its checksum is compared
			text := make([]byte, 10_000)
			for i := range text {
				text[i] = byte('a' + random.IntN(26))
			}
			w.put(fmt.Sprintf(`{"user":%q}`, text), fmt.Sprintf("s-%04d", i))
			keys = append(keys, key(fmt.Sprintf("s-%04d", i)))
		}
		want := w.entities()
		w.sweep("one", deleted, keys...)
		name := w.bucket.names()[0]
		whole := w.bucket.objects[name]
		for i := range 30 {
			data := bytes.Clone(whole)
			data[random.IntN(len(data))] ^= 1
			w.bucket.objects[name] = data
			cfg := w.config()
			cfg.Order = fmt.Sprint(i)
			if res, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrPartial) || res.BadObjects != 1 {
				t.Errorf("%+v, %v", res, err)
			}
			for n, data := range w.entities() {
				if data != want[n] {
					t.Errorf("%s is not what was deleted", n)
				}
				w.s.Remove("Session", "", key(n))
			}
		}
	})
}

// A journal of keys in the archive does not keep whole copies from coming back.
func TestJournalBesideCopies(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "a", "b")
		w.mode = archive.Keys
		w.sweep("one", deleted, key("a"), key("b"))
		w.put(`{}`, "b")
		w.mode = archive.Full
		w.sweep("two", deleted, key("b"))
		cfg := w.config()
		if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrKeysOnly) {
			t.Errorf("one has its key alone: %v", err)
		}
		cfg.Pick.IDs = []string{"b"}
		if res := w.run(cfg); res.Restored != 1 || res.Superseded != 1 {
			t.Errorf("%+v", res)
		}
	})
}

// What cannot be read back is not taken for verified.
func TestCannotReadBack(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(10, 10)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Fetch" {
				return fmt.Errorf("%w: no reads", store.ErrDenied)
			}
			return nil
		}
		if res, err := restore.Run(t.Context(), w.config()); !errors.Is(err, store.ErrDenied) || res.Complete {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// Whole entities of the past are held for one call of the store, not for a page.
func TestPITRHoldsFew(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mode = archive.Keys
		var keys []string
		for i := range 100 {
			w.put(`{"v":1}`, fmt.Sprint("s-", i))
			keys = append(keys, key(fmt.Sprint("s-", i)))
		}
		past := &pastStore{Store: w.s, past: map[string]store.Copy{}, most: 7}
		for _, k := range keys {
			copies, err := w.s.Fetch(t.Context(), w.target.Target, "", []string{k}, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			past.past[k] = copies[0]
		}
		time.Sleep(3 * time.Minute)
		w.sweep("one", deleted, keys[:50]...)
		time.Sleep(time.Minute)
		w.sweep("one", deleted, keys[50:]...)
		asked := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" {
				if held := len(past.asked) - asked; held > 1 {
					t.Errorf("%d calls have read whole entities before one inserts them", held)
				}
				asked = len(past.asked)
			}
			return nil
		}
		cfg := w.config()
		cfg.Sweep.Store, cfg.From = past, restore.FromPITR
		if res := w.run(cfg); res.Restored != 100 || res.Verified != 100 {
			t.Errorf("%+v", res)
		}
	})
}

func TestUnfit(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(3, 3)
		cfg := w.config()
		cfg.Database = "datastore:other"
		if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrOtherDatabase) {
			t.Errorf("another database: %v", err)
		}
		cfg = w.config()
		cfg.Target.Kind = "User"
		if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrOtherKind) {
			t.Errorf("another kind: %v", err)
		}
		for _, e := range []restore.Expiry{{}, {Keep: true, Never: true}, {In: day, Keep: true}, {Keep: true, Spread: day}} {
			cfg = w.config()
			cfg.Expiry = e
			if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%+v: %v", e, err)
			}
		}
		cfg = w.config()
		cfg.Pick.Sweeps = []string{"unknown"}
		if res := w.run(cfg); res.Lines != 0 || len(res.Warnings) != 1 {
			t.Errorf("an unknown sweep: %+v", res)
		}
		if len(w.entities()) > 0 {
			t.Errorf("%d were restored", len(w.entities()))
		}
		cfg = w.config()
		cfg.Database = ""
		if w.run(cfg); len(w.entities()) != 3 {
			t.Errorf("%d were restored", len(w.entities()))
		}
	})
}

func TestTooMany(t *testing.T) {
	restore.SetMostCopies(t, 5)
	in(t, func(t *testing.T, w *world) {
		w.gone(6, 2)
		if res, err := restore.Run(t.Context(), w.config()); !errors.Is(err, restore.ErrTooMany) || len(w.entities()) > 0 {
			t.Errorf("%+v, %v", res, err)
		}
		cfg := w.config()
		cfg.Pick.IDs = []string{"s-0001", "s-0003", "s-0005"}
		if res := w.run(cfg); res.Restored != 3 {
			t.Errorf("%+v", res)
		}
	})
}

func TestSelection(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "a", "b", "c")
		w.sweep("one", deleted, key("a"))
		from := time.Now()
		time.Sleep(time.Second)
		w.sweep("two", deleted, key("b"))
		to := time.Now()
		time.Sleep(time.Second)
		w.sweep("three", deleted, key("c"))
		for _, c := range []struct {
			pick restore.Selection
			want int64
		}{
			{restore.Selection{Sweeps: []string{"one", "three"}}, 2},
			{restore.Selection{Since: from}, 2},
			{restore.Selection{Since: from, Until: to}, 1},
			{restore.Selection{IDs: []string{"a", key("b"), "none"}}, 2},
			{restore.Selection{IDs: []string{"a"}, Since: from}, 0},
		} {
			cfg := w.config()
			cfg.Sweep.Apply, cfg.Pick = false, c.pick
			if res := w.run(cfg); res.Restorable != c.want {
				t.Errorf("%+v: %+v", c.pick, res.Counts)
			}
		}
	})
}

// An object may be named by a later instant than its first line. What is restored up to an instant, and what from it
// on, are everything.
func TestPartsOfASpanMeet(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.lag = 5 * time.Millisecond
		began := time.Now()
		w.gone(1, 1)
		for ms := range 50 {
			cut, n := began.Add(time.Duration(ms)*time.Millisecond), int64(0)
			for _, pick := range []restore.Selection{{Until: cut}, {Since: cut}} {
				cfg := w.config()
				cfg.Sweep.Apply, cfg.Pick = false, pick
				res, err := restore.Run(t.Context(), cfg)
				if err != nil && !errors.Is(err, restore.ErrNothing) {
					t.Fatal(err)
				}
				n += res.Restorable
			}
			if n != 1 {
				t.Errorf("in two parts at %d ms, of 1 entity there are %d", ms, n)
			}
		}
	})
}

// A pathStore has keys with a kind in them, as those of both services.
type pathStore struct{ *modelstore.Store }

func (s *pathStore) Key(t store.Target, namespace string, e store.Entity) (string, error) {
	id, err := s.Store.Key(t, namespace, e)
	return t.Kind + "/" + id, err
}

// The name of a kind or collection is the key of nothing: all lies below it.
func TestKindIsNoKey(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.edit = func(c *store.Copy) { c.Key = "Session/" + c.Key }
		w.gone(3, 3)
		for id, want := range map[string]int64{"Session": 0, "s-0001": 1, "Session/" + key("s-0001"): 1} {
			cfg := w.config()
			cfg.Sweep.Store, cfg.Sweep.Apply, cfg.Pick = &pathStore{w.s}, false, restore.Selection{IDs: []string{id}}
			res, err := restore.Run(t.Context(), cfg)
			if res.Restorable != want || err != nil {
				t.Errorf("%s: %+v, %v", id, res, err)
			}
		}
	})
}

// Keys of the embedded store have no kind in them, and may have slashes.
func TestKeyWithASlash(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "a/b", "c")
		w.sweep("one", deleted, key("a/b"), key("c"))
		cfg := w.config()
		cfg.Sweep.Apply, cfg.Pick = false, restore.Selection{IDs: []string{key("a/b")}}
		if res := w.run(cfg); res.Restorable != 1 {
			t.Errorf("%+v", res)
		}
	})
}

// An archive has entities of another kind right after a span: they are none of it.
func TestOtherKindAfterTheSpan(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "a", "b")
		w.sweep("one", deleted, key("a"))
		until := time.Now()
		time.Sleep(time.Minute)
		w.kind = "Another"
		w.sweep("two", deleted, key("b"))
		cfg := w.config()
		cfg.Pick.Until = until
		if res := w.run(cfg); res.Restored != 1 {
			t.Errorf("%+v", res)
		}
		if _, err := restore.Run(t.Context(), w.config()); !errors.Is(err, restore.ErrOtherKind) {
			t.Error(err)
		}
	})
}

// A pickyStore strips one entity and refuses another.
type pickyStore struct{ *modelstore.Store }

func (s *pickyStore) Insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) error {
	for _, one := range list {
		if one.Key == key("s-0005") {
			return fmt.Errorf("%w: that one", store.ErrInvalid)
		}
	}
	err := s.Store.Insert(ctx, t, namespace, list)
	for i := range list {
		if list[i].Key == key("s-0002") && err == nil {
			list[i].Stripped = "the meaning of property user"
		}
	}
	return err
}

func TestStrippedAndRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(20, 20)
		cfg := w.config()
		cfg.Sweep.Store = &pickyStore{w.s}
		res, err := restore.Run(t.Context(), cfg)
		if !errors.Is(err, restore.ErrPartial) || res.Restored != 19 || res.Refused != 1 || res.Stripped != 1 ||
			res.RefusedOf[0].Key != key("s-0005") || res.StrippedOf[0].Why != "the meaning of property user" {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestRateAndHistory(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1000, 500)
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		began := time.Now()
		w.run(cfg)
		if took := time.Since(began); took < 40*time.Second || took > 70*time.Second {
			t.Errorf("1000 took %v at 20 a second", took)
		}
		list, err := history.Read(t.Context(), w.s, "sessions", time.Time{})
		var told []string
		for _, r := range list.Records {
			if strings.HasPrefix(r.Change.What, "restore") {
				told = append(told, fmt.Sprintf("%s by %s: %s (%s)", r.Change.What, r.By.Actor, r.Change.After, r.Change.Reason))
			}
		}
		want := []string{"restore by ann: inserts up to 1000: all (a test)",
			"restore end by ann: restored 1000, 0 exist (a test)"}
		if err != nil || !slices.Equal(told, want) {
			t.Errorf("history %q, %v", told, err)
		}
	})
}
