package adopt_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/twoclocks"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// spaced is a store that lists namespaces.
type spaced struct {
	*modelstore.Store

	namespaces []string
}

func (s *spaced) Namespaces(context.Context) ([]string, error) { return s.namespaces, nil }

// A target may have more namespaces than an adoption has parts otherwise. All of them are read, or none.
func TestManyNamespaces(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 300
		s := &spaced{Store: w.s}
		for i := range n {
			ns := fmt.Sprintf("tenant-%03d", i)
			s.namespaces = append(s.namespaces, ns)
			e := store.Entity{Name: "a", Data: []byte(`{"created":"2026-11-21T12:00:00Z"}`)}
			if err := w.s.Put(t.Context(), w.target.Target, ns, []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		config := func(order adopt.Order) adopt.Config {
			cfg := w.config()
			cfg.Sweep.Store, cfg.Target.Namespaces, cfg.Order = s, []string{"*"}, order
			return cfg
		}
		if res := w.run(config(adopt.Stamp)); res.Stamped != n {
			t.Errorf("%d of %d are stamped", res.Stamped, n)
		}
		if res := w.run(config(adopt.Verify)); res.Scanned != n || res.Left() != 0 {
			t.Errorf("verify reads %d of %d: %+v", res.Scanned, n, res.Counts)
		}
		if res := w.run(config(adopt.Undo)); res.Removed != n {
			t.Errorf("undo removes %d of %d", res.Removed, n)
		}
		got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions"})
		if err != nil || len(got.List) != 0 {
			t.Errorf("%d records are left, %v", len(got.List), err)
		}
		for i := range n {
			s.namespaces = append(s.namespaces, fmt.Sprintf("more-%03d", i))
		}
		if res, err := adopt.Run(t.Context(), config(adopt.Stamp)); err == nil || res.Scanned != 0 {
			t.Errorf("600 namespaces: %d were read, %v", res.Scanned, err)
		}
	})
}

// An undo that is killed while it waits for the last writes of stampers, and one that joins it, leave no
// key behind.
func TestUndoIsKilledAndRepeated(t *testing.T) {
	for i := range 10 { // stampers read the records every five seconds
		in(t, func(t *testing.T, w *world) {
			w.many(2000)
			var group sync.WaitGroup
			cfg := w.config()
			cfg.Rate = throttle.Limits{Start: 20, Max: 20}
			group.Go(func() { _, _ = adopt.Run(t.Context(), cfg) })
			time.Sleep(20*time.Second + time.Duration(i)*500*time.Millisecond)
			ctx, kill := context.WithTimeout(t.Context(), time.Millisecond)
			defer kill()
			first := w.config()
			first.Order = adopt.Undo
			if res, err := adopt.Run(ctx, first); err != nil || res.Complete {
				t.Errorf("the first undo is to be killed: complete %v, %v", res.Complete, err)
			}
			again := w.config()
			again.Order = adopt.Undo
			w.run(again)
			group.Wait()
			if n := w.stamped(); n != 0 {
				t.Errorf("run %d: %d keys are left", i, n)
			}
		})
	}
}

// A pressedStore has no room for a write two times out of three.
type pressedStore struct {
	*modelstore.Store
	asked atomic.Int64
}

func (s *pressedStore) Pressed() bool { return s.asked.Add(1)%3 > 0 }

// While a store is pressed no tokens are lost: the rate is that of the configuration.
func TestPressureTakesNoTokens(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(2000)
		cfg := w.config()
		s := &pressedStore{Store: w.s}
		cfg.Sweep.Store, cfg.Rate = s, throttle.Limits{Start: 20, Max: 20}
		began := time.Now()
		if res := w.run(cfg); res.Stamped != 2000 || s.asked.Load() == 0 {
			t.Errorf("%d are stamped; it was asked %d times", res.Stamped, s.asked.Load())
		}
		if took := time.Since(began); took > 130*time.Second {
			t.Errorf("2000 took %v at 20 a second", took)
		}
	})
}

// An undo that is stopped while it removes its records says that it is not complete; the next one is.
func TestUndoStoppedAtItsEnd(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		w.run(w.config())
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Save" || w.stamped() > 0 || len(c.Record.Fields) > 0 {
				return nil
			}
			stop() // as its first record is removed
			return context.Canceled
		}
		cfg := w.config()
		cfg.Order = adopt.Undo
		if res, err := adopt.Run(ctx, cfg); err != nil || ctx.Err() == nil || res.Complete {
			t.Errorf("stopped: %v, complete %v, %v", ctx.Err() != nil, res.Complete, err)
		}
		w.s.Before = nil
		if res, err := adopt.Run(t.Context(), cfg); err != nil || !res.Complete {
			t.Errorf("the next one: complete %v, %v", res.Complete, err)
		}
	})
}

// A stamper that holds no part at the moment, since it is about to claim its next one, counts as one that
// may write.
func TestUndoBetweenTwoParts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(20)
		var group sync.WaitGroup
		undone := false
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			done, _ := c.Record.Fields["done"].(bool)
			if c.Method != "Save" || !done || undone {
				return nil
			}
			undone = true
			cfg := w.config()
			cfg.Order = adopt.Undo
			group.Go(func() { w.run(cfg) })
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		cfg := w.config()
		cfg.Sweep.Workers, cfg.Rate = 1, throttle.Limits{Start: 20, Max: 20}
		_, _ = adopt.Run(t.Context(), cfg)
		group.Wait()
		if n := w.stamped(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// A process that comes when all parts are done begins the next round. The others, which may not have noticed
// that theirs is done, have not failed.
func TestNextRoundBeginsAtTheEndOfOne(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const parts = 8
		w.many(400)
		var group sync.WaitGroup
		var done atomic.Int64
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if is, _ := c.Record.Fields["done"].(bool); c.Method == "Save" && is && done.Add(1) == parts {
				group.Go(func() {
					if res := w.run(w.config()); res.Round != 2 {
						t.Errorf("the second process is in round %d", res.Round)
					}
				})
				time.Sleep(10 * time.Second)
			}
			return nil
		}
		if res := w.run(w.config()); res.Round != 1 || res.Stamped != 400 {
			t.Errorf("round %d: %d stamped", res.Round, res.Stamped)
		}
		group.Wait()
		if done.Load() != 2*parts {
			t.Errorf("%d parts were done", done.Load())
		}
	})
}

// A worker stands still with a part until others have read it, and have begun the next round.
func TestFrozenUntilTheNextRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(400)
		var claimed, frozen atomic.Bool
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if owner, _ := c.Record.Fields["owner"].(string); c.Method == "Save" && owner != "" {
				claimed.Store(true)
			}
			if c.Method == "Walk" && claimed.Load() && !frozen.Swap(true) {
				for range 2 {
					w.run(w.config())
				}
			}
			return nil
		}
		cfg := w.config()
		cfg.Sweep.Workers = 1
		if res := w.run(cfg); res.Round != 1 {
			t.Errorf("it ends in round %d", res.Round)
		}
		if n := w.stamped(); n != 400 {
			t.Errorf("%d of 400 are stamped", n)
		}
	})
}

// A process says what became of the adoption that it worked on.
func TestSaysWhyItStops(t *testing.T) {
	for want, meddle := range map[string]func(w *world){
		"has begun round 2 of": func(w *world) { w.run(w.config()) },
		"was finished": func(w *world) {
			if _, err := adopt.Finish(w.t.Context(), w.config(), 1000); err != nil {
				w.t.Error(err)
			}
		},
		"undone": func(w *world) {
			cfg := w.config()
			cfg.Order = adopt.Undo
			w.run(cfg)
		},
	} {
		in(t, func(t *testing.T, w *world) {
			w.many(400)
			cfg := w.config()
			cfg.Percent, cfg.Rate = 90, throttle.Limits{Start: 5, Max: 5}
			var group sync.WaitGroup
			group.Go(func() {
				time.Sleep(20 * time.Second)
				meddle(w)
			})
			if _, err := adopt.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", want, err)
			}
			group.Wait()
		})
	}
}

// The retention of a target changes during its adoption. What an earlier round gave stays recognised.
func TestRetentionChanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		cfg := w.config()
		cfg.Percent = 50
		first := w.run(cfg).Stamped
		w.target.Retention = 7 * day
		verify := w.config()
		verify.Order = adopt.Verify
		if res := w.run(verify); res.Counts[adopt.Mismatch] != 0 {
			t.Errorf("verify: %+v", res.Counts)
		}
		second := w.run(w.config())
		if second.Round != 2 || second.Stamped != 200-first {
			t.Errorf("round %d: %d stamped", second.Round, second.Stamped)
		}
		w.target.Retention = day
		undo := w.config()
		undo.Order = adopt.Undo
		if res := w.run(undo); res.Removed != 200 {
			t.Errorf("%d removed: %+v", res.Removed, res.Counts)
		}
	})
}

// Rounds that follow each other fast do not make the keys of earlier ones unknown before these are due.
func TestManyRounds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(40)
		stamped := w.run(w.config()).Stamped
		for range 150 { // as with --watch --every 5m
			time.Sleep(5 * time.Minute)
			w.run(w.config())
		}
		verify := w.config()
		verify.Order = adopt.Verify
		if res := w.run(verify); res.Counts[adopt.Mismatch] != 0 {
			t.Errorf("verify: %+v", res.Counts)
		}
		undo := w.config()
		undo.Order = adopt.Undo
		if res := w.run(undo); res.Removed != stamped {
			t.Errorf("%d of %d removed: %+v", res.Removed, stamped, res.Counts)
		}
	})
}

// What is left of a round that was stopped is spread from the time at which somebody goes on.
func TestSpreadOfAResumedRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 400
		for i := range n {
			w.put(fmt.Sprintf("s-%05d", i), 40*day)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		if res, err := adopt.Run(ctx, cfg); err != nil || res.Complete {
			t.Errorf("complete %v, %v", res.Complete, err)
		}
		before := w.stamped()
		time.Sleep(7 * day)
		began := time.Now()
		res := w.run(w.config())
		if res.Round != 1 || res.Scanned >= n {
			t.Errorf("round %d reads %d of %d: it does not go on", res.Round, res.Scanned, n)
		}
		due := 0
		for _, e := range w.s.Entities("Session", "") {
			if k, ok := keyOf(t, e); ok && !k.Expires.After(began.Add(time.Minute)) {
				due++
			}
		}
		if due > before+n/20 {
			t.Errorf("%d are due, %d of which were stamped a week ago", due, before)
		}
		undo := w.config()
		undo.Order = adopt.Undo
		if res := w.run(undo); res.Removed != n {
			t.Errorf("%d of %d removed", res.Removed, n)
		}
	})
}

// A round that is held for long, while somebody tries again and again, stays in the record: undo takes back what it
// gave.
func TestSpreadOfAHeldRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 400 {
			w.put(fmt.Sprintf("s-%05d", i), 40*day)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		if res, err := adopt.Run(ctx, cfg); err != nil || res.Complete || res.Stamped == 0 {
			t.Errorf("%+v, %v", res, err)
		}
		before := w.stamped()
		w.pause(t.Context(), true)
		for range 150 { // as with --watch
			time.Sleep(w.config().Spread / 5)
			if res, err := adopt.Run(t.Context(), w.config()); err != nil || res.Complete || res.Stamped != 0 ||
				!strings.HasPrefix(res.Held, "paused") || res.Phase != adopt.Stamping {
				t.Fatalf("%+v, %v", res, err)
			}
		}
		w.pause(t.Context(), false)
		undo := w.config()
		undo.Order = adopt.Undo
		if res := w.run(undo); res.Removed != int64(before) || w.stamped() != 0 {
			t.Errorf("%d of %d removed, %d are left: %+v", res.Removed, before, w.stamped(), res.Counts)
		}
	})
}

// A process that joins a round after a while has the spread begin again, also for those that have worked
// on it all the time: they write what was to be due meanwhile no more, and know the other one's keys.
func TestSpreadOfAJoinedRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 400 {
			w.put(fmt.Sprintf("s-%05d", i), 40*day)
		}
		began := time.Now()
		var early atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			for _, op := range c.Restamps {
				k, err := expirykey.Parse(op.To.Text)
				if err != nil {
					t.Error(err)
				}
				if time.Since(began) > 4*time.Hour && k.Expires.Before(began.Add(3*time.Hour)) {
					early.Add(1)
				}
			}
			return nil
		}
		config := func(rate float64) adopt.Config {
			cfg := w.config()
			cfg.Sweep.Workers, cfg.Rate = 1, throttle.Limits{Start: rate, Max: rate}
			return cfg
		}
		var group sync.WaitGroup
		group.Go(func() { w.run(config(0.01)) })
		time.Sleep(3 * time.Hour) // one worker is in the first of two parts
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if res, err := adopt.Run(ctx, config(1)); err != nil || res.Stamped == 0 || res.Round != 1 {
			t.Errorf("%d stamped in round %d, %v", res.Stamped, res.Round, err)
		}
		group.Wait()
		if early.Load() != 0 {
			t.Errorf("%d keys were due already when they were written", early.Load())
		}
		st, err := adopt.LoadState(t.Context(), w.s, "sessions")
		if err != nil || st.Mismatch != 0 || w.stamped() != 400 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// swept sweeps the target once, from the start, by its keys and the adoption.
func (w *world) swept(c *adopt.Comparer) sweep.TargetResult {
	w.t.Helper()
	s, target := w.config().Sweep, w.target
	target.Compare = c.Compare
	s.Targets, s.Once.FromStart = []sweep.Target{target}, true
	res := sweep.Run(w.t.Context(), s)
	if res.Failed() || !res.Complete {
		w.t.Errorf("%+v", res)
	}
	return res.Targets[0]
}

// An old writer takes the expiry away from an entity, or makes it something that the rule cannot read, and
// leaves the key as it was. No rule says that the entity has expired, so sweeps keep it.
func TestSweepsKeepWhatTheRuleCannotRead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for _, name := range []string{"expired", "null", "missing", "number", "never", "far", "zero", "epoch"} {
			w.put(name, 40*day)
		}
		cfg := w.config()
		cfg.Spread = 0
		w.run(cfg)
		for name, data := range map[string]string{"null": `{"created":null}`, "missing": `{}`, "number": `{"created":4102444800}`,
			"never": `{"created":"never"}`, "far": `{"created":"9999-12-31T00:00:00Z"}`,
			"zero": `{"created":"0001-01-01T00:00:00Z"}`, "epoch": `{"created":"1970-01-01T00:00:00Z"}`} {
			e := w.entity(name)
			e.Data = []byte(data)
			if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		res := w.swept(&adopt.Comparer{Store: w.s, Target: w.target, Now: time.Now})
		if left := len(w.s.Entities("Session", "")); left != 7 || res.Deleted != 1 || res.Mismatch != 7 {
			t.Errorf("%d are left: %+v", left, res)
		}
		cfg = w.config()
		if _, err := adopt.Finish(t.Context(), cfg, 6); !errors.Is(err, adopt.ErrUnverified) {
			t.Errorf("finish: %v", err)
		}
		if res, err := adopt.Finish(t.Context(), cfg, 7); err != nil || res.Counts[adopt.Mismatch] != 7 {
			t.Errorf("finish: %+v, %v", res.Counts, err)
		}
	})
}

// Each stamp is announced once, however often its batch is tried: the breaker lets as many more entities
// pass as were announced.
func TestAnnouncesOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 200
		w.many(n)
		var mu sync.Mutex
		tries, announced := map[string]int{}, 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Method != "Restamp" {
				return nil
			}
			first := c.Restamps[0].Row.Key
			if tries[first]++; tries[first] < 3 {
				return fmt.Errorf("busy: %w", store.ErrPushback)
			}
			return nil
		}
		cfg := w.config()
		cfg.Announce = func(_ context.Context, expiries []time.Time) error {
			mu.Lock()
			defer mu.Unlock()
			announced += len(expiries)
			return nil
		}
		if res := w.run(cfg); res.Stamped != n || len(tries) < 4 {
			t.Errorf("%d stamped by %v", res.Stamped, tries)
		}
		if announced != n {
			t.Errorf("%d are announced, and %d stamped", announced, n)
		}
	})
}

// If the announcement fails, that is the fault of no entity.
func TestAnnouncementThatFails(t *testing.T) {
	for _, kind := range []error{store.ErrInvalid, store.ErrFailed, store.ErrTooLarge} {
		in(t, func(t *testing.T, w *world) {
			w.many(20)
			cfg := w.config()
			cfg.Announce = func(context.Context, []time.Time) error { return fmt.Errorf("save the budget: %w", kind) }
			if res, err := adopt.Run(t.Context(), cfg); !errors.Is(err, kind) || res.Counts[adopt.Refused] != 0 || w.stamped() != 0 {
				t.Errorf("%v: %+v, %v", kind, res.Counts, err)
			}
		})
	}
}

// Sweeps that run while an adoption begins compare its first key already, also on a machine that slept meanwhile.
func TestSweepsCompareTheFirstKey(t *testing.T) {
	for name, now := range map[string]func() time.Time{
		"awake":  time.Now,
		"asleep": func() time.Time { return twoclocks.At(time.Now(), time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.put("idle", 40*day)
				w.put("extended", 40*day)
				c := &adopt.Comparer{Store: w.s, Target: w.target, Now: now}
				for range 10 {
					if got, err := c.Compare(t.Context(), "", nil); got.Active || err != nil {
						t.Errorf("before the adoption: %+v, %v", got, err)
					}
					time.Sleep(time.Second)
				}
				cfg := w.config()
				cfg.Spread = 0
				w.run(cfg)
				w.extend("extended")
				if res := w.swept(c); res.Deleted != 1 || res.Mismatch != 1 {
					t.Errorf("%+v", res)
				}
				w.entity("extended")
			})
		})
	}
}

// extend has an old writer extend an entity, and leave its key.
func (w *world) extend(name string) {
	w.t.Helper()
	e := w.entity(name)
	e.Data = []byte(fmt.Sprintf(`{"created":%q}`, time.Now().UTC().Format(time.RFC3339)))
	if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
		w.t.Fatal(err)
	}
}

// An old writer extends an entity after a sweep has compared it with the rule, and before the delete.
func TestExtendedBeforeTheDelete(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put("idle", 40*day)
		w.put("extended", 40*day)
		cfg := w.config()
		cfg.Spread = 0
		w.run(cfg)
		var extended atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			isIt := func(op store.Op) bool { return op.Entry.Key == `"extended"` } // another range deletes the other one
			if c.Method == "Dispose" && slices.ContainsFunc(c.Ops, isIt) && !extended.Swap(true) {
				w.extend("extended")
			}
			return nil
		}
		res := w.swept(&adopt.Comparer{Store: w.s, Target: w.target, Now: time.Now})
		if res.Deleted != 1 {
			t.Errorf("%+v", res)
		}
		w.entity("extended")
	})
}

// A sweep sets an entity aside that the store refuses to delete at first. It is not deleted later without
// another comparison, also if the pages that follow have nothing to compare.
func TestExtendedWhileAside(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards, w.target.Page = 1, 1
		w.put("extended", 40*day)
		cfg := w.config()
		cfg.Spread = 0
		w.run(cfg)
		junk := w.put("junk", 40*day)
		junk.Expiry = store.TextValue(w.entity("extended").Expiry.Text + "junk")
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{junk}); err != nil {
			t.Fatal(err)
		}
		refusals := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" && c.Ops[0].Entry.Key == `"extended"` {
				if refusals++; refusals == 1 {
					w.extend("extended")
				}
				return fmt.Errorf("not now: %w", store.ErrInvalid)
			}
			return nil
		}
		w.swept(&adopt.Comparer{Store: w.s, Target: w.target, Now: time.Now})
		if refusals == 0 {
			t.Error("nothing was refused")
		}
		w.entity("extended")
	})
}

// What was adopted can be undone, whatever others have written into the key property since.
func TestUndoAmongForeignValues(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(20)
		w.run(w.config())
		for i := range 60 {
			e := w.put(fmt.Sprint("f-", i), 0)
			e.Expiry = store.TextValue("blue")
			if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		verify, undo := w.config(), w.config()
		verify.Order, undo.Order = adopt.Verify, adopt.Undo
		if res := w.run(verify); res.Counts[adopt.Foreign] != 60 || res.Counts[adopt.Keyed] != 20 {
			t.Errorf("verify: %+v", res.Counts)
		}
		if res := w.run(undo); res.Removed != 20 {
			t.Errorf("%d removed", res.Removed)
		}
	})
}

// An undo that could not remove every key says so, and keeps the records, by which sweeps compare and the
// undo is repeated.
func TestUndoThatLeavesKeys(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		w.run(w.config())
		var calm atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			for _, op := range c.Restamps {
				if op.Row.Key == `"s-00042"` && !calm.Load() {
					return fmt.Errorf("busy: %w", store.ErrContention)
				}
			}
			return nil
		}
		cfg := w.config()
		cfg.Order = adopt.Undo
		if res, err := adopt.Run(t.Context(), cfg); err == nil || res.Complete || !strings.Contains(err.Error(), "are left: 1") {
			t.Errorf("complete %v, %v", res.Complete, err)
		}
		calm.Store(true)
		if res := w.run(cfg); res.Removed == 0 || w.stamped() != 0 {
			t.Errorf("%d are stamped: %+v", w.stamped(), res)
		}
		if _, err := adopt.Run(t.Context(), cfg); !errors.Is(err, adopt.ErrNotAdopted) {
			t.Errorf("a third undo: %v", err)
		}
	})
}

// Keys that disagree with the rule stay after an undo, and nothing compares them any more. It warns.
func TestUndoWarnsOfMismatches(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(50)
		w.run(w.config())
		w.extend("s-00040")
		for _, apply := range []bool{false, true} {
			cfg := w.config()
			cfg.Order, cfg.Sweep.Apply = adopt.Undo, apply
			if res := w.run(cfg); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "disagree with the rule stay: 1.") {
				t.Errorf("apply %v: %q", apply, res.Warnings)
			}
		}
	})
}

// Two processes undo together. Both end well.
func TestTwoUndo(t *testing.T) {
	for range 20 {
		in(t, func(t *testing.T, w *world) {
			w.many(100)
			w.run(w.config())
			var removed atomic.Int64
			var group sync.WaitGroup
			for range 3 {
				cfg := w.config()
				cfg.Order = adopt.Undo
				group.Go(func() {
					res, err := adopt.Run(t.Context(), cfg)
					if err != nil && !errors.Is(err, adopt.ErrNotAdopted) {
						t.Error(err)
					}
					removed.Add(res.Removed)
				})
			}
			group.Wait()
			if removed.Load() != 100 || w.stamped() != 0 {
				t.Errorf("%d removed, %d stamped", removed.Load(), w.stamped())
			}
		})
	}
}

// A part that cannot be read does not keep the workers from the others.
func TestOnePartFails(t *testing.T) {
	for range 10 { // workers take parts in no order
		in(t, func(t *testing.T, w *world) {
			const n = 400
			w.many(n)
			cfg := w.config()
			cfg.Sweep.Store, cfg.Sweep.Workers = &denied{w.s, `"s-00200"`}, 2
			res, err := adopt.Run(t.Context(), cfg)
			if !errors.Is(err, store.ErrDenied) || res.Complete {
				t.Errorf("complete %v, %v", res.Complete, err)
			}
			if got := w.stamped(); got < n*3/4 {
				t.Errorf("%d of %d are stamped", got, n)
			}
		})
	}
}

// What all parts fail by is said once.
func TestAllPartsFail(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(400)
		var claimed atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			owner, _ := c.Record.Fields["owner"].(string)
			claimed.Store(claimed.Load() || c.Method == "Save" && owner != "")
			if c.Method == "Walk" && claimed.Load() {
				return fmt.Errorf("the account: %w", store.ErrDenied)
			}
			return nil
		}
		if _, err := adopt.Run(t.Context(), w.config()); !errors.Is(err, store.ErrDenied) || strings.Count(err.Error(), "the account") != 1 {
			t.Errorf("%v", err)
		}
	})
}

// denied is a store that cannot read one entity.
type denied struct {
	*modelstore.Store

	key string
}

func (d *denied) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	if err := d.Store.Walk(ctx, q, rows); err != nil {
		return err
	}
	for _, row := range rows.List {
		if row.Key == d.key {
			return fmt.Errorf("walk: %w", store.ErrDenied)
		}
	}
	return nil
}

// Calls for records fail for a moment, as they do over networks. No run ends by that.
func TestRecordsThatFailForAMoment(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		var calls, failed atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if (c.Method == "Load" || c.Method == "Save") && calls.Add(1)%3 == 0 {
				failed.Add(1)
				return fmt.Errorf("the network: %w", store.ErrUnavailable)
			}
			return nil
		}
		for range 10 {
			w.run(w.config())
		}
		if _, err := adopt.Dualize(t.Context(), w.config()); err != nil {
			t.Error(err)
		}
		if res, err := adopt.Finish(t.Context(), w.config(), 0); err != nil || res.Phase != adopt.Finished {
			t.Errorf("phase %s, %v", res.Phase, err)
		}
		undo := w.config()
		undo.Order, undo.AlsoWriters = adopt.Undo, true
		if res := w.run(undo); res.Removed != 200 || failed.Load() < 20 {
			t.Errorf("%d removed, %d calls failed", res.Removed, failed.Load())
		}
	})
}

// Reads of the follower's record fail for a moment. Neither the count of processes ends by that, nor a
// follower, nor the state, nor undo.
func TestFollowersRecordThatFailsForAMoment(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(200)
		var reads atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if keys := c.Records.Keys; c.Method == "Load" && c.Records.Sort == store.AdoptRecord && len(keys) == 1 &&
				keys[0] != "sessions" && reads.Add(1)%2 == 1 {
				return fmt.Errorf("the network: %w", store.ErrUnavailable)
			}
			return nil
		}
		failed := func(what string) {
			if n := reads.Swap(0); n < 2 {
				t.Errorf("%s: %d reads", what, n)
			}
		}
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 10, Max: 10}
		if res, err := adopt.Run(t.Context(), cfg); err != nil || res.Stamped != 200 {
			t.Errorf("%d stamped, %v", res.Stamped, err)
		}
		failed("run")
		stop := w.follow(cfg)
		time.Sleep(time.Minute)
		w.create("new")
		time.Sleep(time.Minute)
		failed("follow")
		if st, err := adopt.LoadState(t.Context(), w.s, "sessions"); err != nil || st.Written != 201 {
			t.Errorf("%+v, %v", st, err)
		}
		failed("state")
		if _, err := stop(); err != nil {
			t.Error(err)
		}
		reads.Store(0)
		cfg.Order = adopt.Undo
		if res, err := adopt.Run(t.Context(), cfg); err != nil || res.Removed != 201 {
			t.Errorf("%d removed, %v", res.Removed, err)
		}
		failed("undo")
	})
}

// An adoption that is taken back and begun again, by another rule, while it is verified is not finished.
func TestFinishOfAnotherAdoption(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(20)
		w.run(w.config())
		var begun atomic.Bool
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Walk" || begun.Swap(true) {
				return nil
			}
			undo, other := w.config(), w.config()
			undo.Order, other.Rule.Plus, other.Percent = adopt.Undo, 60*day, 1
			w.run(undo)
			w.run(other)
			return nil
		}
		if res, err := adopt.Finish(t.Context(), w.config(), 20); !errors.Is(err, adopt.ErrPhase) || res.Phase == adopt.Finished {
			t.Errorf("phase %s, %v", res.Phase, err)
		}
	})
}

// A batch that takes the store too long is made smaller.
func TestSlowBatchesAreHalved(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Restamp" && len(c.Restamps) > 10 {
				return fmt.Errorf("%d writes: %w", len(c.Restamps), store.ErrDeadline)
			}
			return nil
		}
		if res := w.run(w.config()); res.Stamped != 200 {
			t.Errorf("%d stamped", res.Stamped)
		}
	})
}

// A breaker that has tripped holds an adoption, and not its way back: what it holds may be what was adopted, and
// it lets nobody go on before that is deleted or gone.
func TestBreakerHoldsStampsAndNotUndo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(50)
		cfg := w.config()
		cfg.Percent = 50
		w.run(cfg)
		rec, now, err := generation.Load(t.Context(), w.s, w.target.Name)
		if err == nil {
			rec = rec.Tripped(breaker.Trip{ID: "t1", Rule: breaker.NewGround, At: now, Due: 2000})
			_, err = generation.Save(t.Context(), w.s, rec)
		}
		if err != nil {
			t.Fatal(err)
		}
		if res, err := adopt.Run(t.Context(), w.config()); err != nil || res.Complete || !strings.Contains(res.Held, "breaker") {
			t.Errorf("stamp: complete %v, held %q, %v", res.Complete, res.Held, err)
		}
		undo := w.config()
		undo.Order = adopt.Undo
		if res := w.run(undo); res.Removed == 0 || w.stamped() != 0 {
			t.Errorf("%d removed, %d are stamped", res.Removed, w.stamped())
		}
	})
}

// Junk among the records of parts is refused by name, and changes nothing.
func TestJunkParts(t *testing.T) {
	for field, bad := range map[string]any{"part": int64(7), "schema": int64(9), "reading": "noon", "after": int64(3), "done": "yes"} {
		in(t, func(t *testing.T, w *world) {
			w.many(30)
			cfg := w.config()
			cfg.Percent = 50
			w.run(cfg)
			got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions", Keys: []string{"sessions.00000"}})
			if err != nil || len(got.List) != 1 {
				t.Fatal(len(got.List), err)
			}
			r := got.List[0]
			r.Fields = maps.Clone(r.Fields)
			r.Fields[field], r.Revision = bad, store.NewRevision(r.Revision)
			if err := w.s.Save(t.Context(), r, got.List[0].Revision); err != nil {
				t.Fatal(err)
			}
			before := w.stamped()
			if _, err := adopt.Run(t.Context(), w.config()); err == nil || !strings.Contains(err.Error(), "sessions.00000") || w.stamped() != before {
				t.Errorf("%s = %v: %v", field, bad, err)
			}
			c := &adopt.Comparer{Store: w.s, Target: w.target, Now: time.Now}
			if got, err := c.Compare(t.Context(), "", nil); err != nil || !got.Active {
				t.Errorf("%s = %v: sweeps do not compare: %v", field, bad, err)
			}
		})
	}
}

// Lost records of parts cost a second reading, and nothing else.
func TestLostParts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(400)
		ctx, stop := context.WithTimeout(t.Context(), 15*time.Second)
		defer stop()
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		if res, err := adopt.Run(ctx, cfg); err != nil || res.Complete {
			t.Errorf("complete %v, %v", res.Complete, err)
		}
		before := w.s.Entities("Session", "")
		for part := range 8 {
			got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions", Keys: []string{fmt.Sprintf("sessions.%05d", part)}})
			for _, r := range got.List {
				prev := r.Revision
				r.Fields, r.Revision = nil, store.NewRevision(prev)
				err = errors.Join(err, w.s.Save(t.Context(), r, prev))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if res := w.run(w.config()); res.Scanned != 400 || w.stamped() != 400 {
			t.Errorf("%d were read, %d are stamped", res.Scanned, w.stamped())
		}
		for key, e := range w.s.Entities("Session", "") {
			if was := before[key].Expiry; was.Type != store.Missing && was != e.Expiry {
				t.Errorf("%s had %s, and has %s", key, was.Text, e.Expiry.Text)
			}
		}
	})
}

// An adoption that is refused, because its key property holds something else, leaves nothing behind: the next
// one may choose another property.
func TestRefusedAdoptionLeavesNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 30 {
			e := w.put(fmt.Sprint("f-", i), 0)
			e.Expiry = store.TextValue("blue")
			if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := adopt.Run(t.Context(), w.config()); !errors.Is(err, adopt.ErrForeign) {
			t.Errorf("a property that holds something else: %v", err)
		}
		w.target.Property = "expires_key"
		for _, e := range w.s.Entities("Session", "") {
			e.Expiry = store.Value{}
			if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		if res := w.run(w.config()); res.Stamped != 30 {
			t.Errorf("%d stamped", res.Stamped)
		}
	})
}

// A process whose clock is a little off stamps by the store's time. One whose clock is far off does nothing.
func TestClockThatIsOff(t *testing.T) {
	for _, off := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		in(t, func(t *testing.T, w *world) {
			w.many(20)
			cfg := w.config()
			cfg.Sweep.Now = func() time.Time { return time.Now().Add(off) }
			if _, err := adopt.Run(t.Context(), cfg); err == nil || w.stamped() != 0 {
				t.Errorf("%v off: %v", off, err)
			}
		})
	}
	for _, off := range []time.Duration{-9 * time.Second, 9 * time.Second} {
		in(t, func(t *testing.T, w *world) {
			w.many(200)
			cfg := w.config()
			cfg.Sweep.Now = func() time.Time { return time.Now().Add(off) }
			w.run(cfg)
			verify := w.config()
			verify.Order = adopt.Verify
			if res := w.run(verify); res.Left() != 0 || w.stamped() != 200 {
				t.Errorf("%v off: %+v", off, res.Counts)
			}
			for _, e := range w.s.Entities("Session", "") {
				if k, _ := keyOf(t, e); k.Expires.Before(w.began.Add(-time.Second)) || k.Generation != 1 {
					t.Errorf("%v off: %s has the key %v", off, e.Name, k)
				}
			}
			undo := w.config()
			undo.Order, undo.Sweep.Now = adopt.Undo, cfg.Sweep.Now
			if res := w.run(undo); res.Removed != 200 {
				t.Errorf("%v off: %d removed", off, res.Removed)
			}
		})
	}
}
