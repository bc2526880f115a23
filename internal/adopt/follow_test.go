package adopt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// create writes an entity that is created now, as an old writer does.
func (w *world) create(name string) { w.put(name, -time.Since(w.began)) }

// hasKey reports whether an entity has a key.
func (w *world) hasKey(name string) bool {
	_, ok := keyOf(w.t, w.entity(name))
	return ok
}

// calls counts the calls to the store by method: those that read the index of created as
// "index". While dead is true, no record is released.
func (w *world) calls(dead *atomic.Bool) (count func() map[string]int) {
	var mu sync.Mutex
	n := map[string]int{}
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		if dead.Load() && c.Method == "Save" && c.Record.Fields["owner"] == "" {
			return store.ErrDenied
		}
		mu.Lock()
		defer mu.Unlock()
		if c.Method == "Scan" && c.Query.Target.Property == "created" {
			n["index"]++
		}
		n[c.Method] += max(1, len(c.Restamps))
		return nil
	}
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		was := n
		n = map[string]int{}
		return was
	}
}

// follow follows in the background until the returned function is called.
func (w *world) follow(cfg adopt.Config) (stop func() (adopt.Result, error)) {
	ctx, cancel := context.WithCancel(w.t.Context())
	type end struct {
		res adopt.Result
		err error
	}
	done := make(chan end, 1)
	go func() {
		res, err := adopt.Follow(ctx, cfg)
		done <- end{res, err}
	}()
	return func() (adopt.Result, error) {
		cancel()
		e := <-done
		return e.res, e.err
	}
}

// An entity that an old writer creates is stamped soon, found by the index of the rule's property: no
// pass reads all entities, and an idle one costs one query.
func TestFollow(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(500)
		w.run(w.config())
		time.Sleep(time.Hour)
		calls := w.calls(new(atomic.Bool))
		stop := w.follow(w.config())
		time.Sleep(time.Minute)
		calls()
		time.Sleep(10 * time.Minute)
		if n := calls(); n["index"] == 0 || n["index"] > 61 || n["Walk"] > 0 || n["Look"] > 0 || n["Restamp"] > 0 {
			t.Errorf("ten idle minutes: %v", n)
		}
		for i := range 30 {
			w.create(fmt.Sprint("new-", i))
			time.Sleep(3 * time.Second)
		}
		time.Sleep(12 * time.Second)
		if n := calls(); n["index"] == 0 || n["Walk"] > 0 || n["Restamp"] != 30 {
			t.Errorf("30 new entities: %v", n)
		}
		for i := range 30 {
			if !w.hasKey(fmt.Sprint("new-", i)) {
				t.Errorf("new-%d has no key", i)
			}
		}
		res, err := stop()
		if err != nil || !res.Complete || res.Stamped != 30 || res.Round != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		st, err := adopt.LoadState(t.Context(), w.s, "sessions")
		if err != nil || st.Written != 530 || st.FollowedTo == nil || time.Since(*st.FollowedTo) > time.Minute {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// What was created while nobody followed is found by the next process, also after a kill: it
// goes on from the last value, less an overlap.
func TestFollowGoesOn(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(500)
		w.create("before the round")
		w.run(w.config())
		w.create("before anybody follows")
		time.Sleep(time.Hour)
		var dead atomic.Bool
		calls := w.calls(&dead)
		stop := w.follow(w.config())
		time.Sleep(time.Minute)
		w.create("first")
		time.Sleep(time.Minute)
		dead.Store(true) // as if it were killed: it releases nothing
		_, _ = stop()
		dead.Store(false)
		w.create("between")
		time.Sleep(2 * time.Hour)
		calls()
		stop = w.follow(w.config())
		time.Sleep(2 * time.Minute)
		for _, name := range []string{"before the round", "before anybody follows", "first", "between"} {
			if !w.hasKey(name) {
				t.Errorf("%s has no key", name)
			}
		}
		if n := calls(); n["Restamp"] != 1 || n["Look"] > 1 {
			t.Errorf("after the kill: %v", n)
		}
		// Two at once: one follows, and nothing is written twice.
		second := w.follow(w.config())
		time.Sleep(time.Minute)
		calls()
		time.Sleep(10 * time.Minute)
		if n := calls(); n["index"] > 61 {
			t.Errorf("two followers: %v", n)
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
		w.create("for the second")
		time.Sleep(time.Minute)
		if !w.hasKey("for the second") {
			t.Error("nobody took the index over")
		}
		if _, err := second(); err != nil {
			t.Error(err)
		}
	})
}

// What was created while a round stood still is found, too, if the reader of its part was past it.
func TestFollowAfterAResumedRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(400)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		if res, err := adopt.Run(ctx, cfg); err != nil || res.Complete || res.Stamped == 0 {
			t.Errorf("complete %v, %d stamped, %v", res.Complete, res.Stamped, err)
		}
		time.Sleep(2 * day) // the spread begins again
		for i := range 40 {
			w.create(fmt.Sprintf("s-%05d-late", 10*i))
		}
		time.Sleep(time.Hour)
		resumed := time.Now()
		w.run(w.config())
		if n := w.stamped(); n < 400 || n == 440 {
			t.Errorf("%d of 440 are stamped: the test shows nothing", n)
		}
		if at, err := adopt.NextRound(t.Context(), w.config(), 4*day); err != nil || at.Sub(resumed) > 2*day {
			t.Errorf("the next round is %v after this one went on, %v", at.Sub(resumed), err)
		}
		end := w.follow(w.config())
		time.Sleep(time.Minute)
		if n := w.stamped(); n != 440 {
			t.Errorf("%d of 440 are stamped", n)
		}
		if _, err := end(); err != nil {
			t.Error(err)
		}
	})
}

// What was created and has expired while nobody followed is spread from the time at which somebody goes on.
func TestFollowSpreadsWhatHasExpired(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(100)
		config := func() adopt.Config {
			cfg := w.config()
			cfg.Rule.Plus = time.Hour
			return cfg
		}
		w.run(config())
		for i := range 200 {
			w.create(fmt.Sprint("new-", i))
			time.Sleep(10 * time.Minute)
		}
		time.Sleep(7 * day)
		began := time.Now()
		for range 2 { // the second one finds that it has begun again
			stop := w.follow(config())
			time.Sleep(time.Minute)
			if _, err := stop(); err != nil {
				t.Error(err)
			}
		}
		due, late := 0, 0
		for _, e := range w.s.Entities("Session", "") {
			k, ok := keyOf(t, e)
			if !strings.HasPrefix(e.Name, "new-") {
				continue
			}
			if !ok {
				t.Errorf("%s has no key", e.Name)
			}
			if k.Expires.Before(began.Add(time.Minute)) {
				due++
			}
			if k.Expires.After(began.Add(day)) {
				late++
			}
		}
		if due > 10 || late > 0 {
			t.Errorf("of 200 that had expired %d are due at once, and %d are later than the spread", due, late)
		}
		verify := config()
		verify.Order = adopt.Verify
		if res := w.run(verify); res.Left() != 0 || res.Round != 1 {
			t.Errorf("round %d: %+v", res.Round, res.Counts)
		}
	})
}

// A writer whose clock is behind or ahead by less than overlap and skew is not missed.
func TestFollowsClocksThatDiffer(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(500)
		w.run(w.config())
		time.Sleep(time.Hour)
		stop := w.follow(w.config())
		for i := range 20 {
			age := -time.Since(w.began)
			w.put(fmt.Sprint("ahead-", i), age-9*time.Second)
			time.Sleep(time.Duration(i) * 500 * time.Millisecond)
			w.put(fmt.Sprint("behind-", i), -time.Since(w.began)+9*time.Second)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		for i := range 20 {
			if !w.hasKey(fmt.Sprint("ahead-", i)) || !w.hasKey(fmt.Sprint("behind-", i)) {
				t.Errorf("%d: ahead %v, behind %v", i, w.hasKey(fmt.Sprint("ahead-", i)), w.hasKey(fmt.Sprint("behind-", i)))
			}
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Without an index that shows what is new nothing is followed, and the reason is named.
func TestCannotFollow(t *testing.T) {
	data := func(w *world, text string) {
		for i := range 300 {
			w.putRaw(fmt.Sprintf("s-%05d", i), fmt.Sprintf(text, w.began.Add(time.Duration(i)*time.Hour).Format(time.RFC3339)))
		}
	}
	for want, prepare := range map[string]func(w *world, cfg *adopt.Config){
		"of which there is no index": func(w *world, cfg *adopt.Config) {
			w.many(100)
			cfg.Rule = adopt.Rule{CreateTime: true, Plus: day}
		},
		"the index of created does not contain": func(w *world, _ *adopt.Config) {
			w.many(100)
			w.s.Indexed = ""
		},
		"lie in the future": func(w *world, _ *adopt.Config) { data(w, `{"created":%q}`) },
		"do not sort by time": func(w *world, _ *adopt.Config) {
			w.putRaw("zone", `{"created":"2026-01-01T00:00:00+01:00"}`)
		},
		"holds texts that do not sort by time, such as \"00000000.0001": func(w *world, _ *adopt.Config) {
			k, _ := expirykey.New(expirykey.Nursery, 1, w.began)
			w.putRaw("key", fmt.Sprintf(`{"created":%q}`, k))
		},
		"none of 50 entities": func(w *world, _ *adopt.Config) {
			for i := range 50 {
				w.putRaw(fmt.Sprint(i), `{"created":17}`)
			}
		},
	} {
		in(t, func(t *testing.T, w *world) {
			w.s.Indexed = "created"
			cfg := w.config()
			prepare(w, &cfg)
			if _, err := adopt.Follow(t.Context(), cfg); !errors.Is(err, adopt.ErrRoundNeeded) {
				t.Errorf("before a round: %v", err)
			}
			w.run(cfg)
			if _, err := adopt.Follow(t.Context(), cfg); !errors.Is(err, adopt.ErrCannotFollow) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", want, err)
			}
		})
	}
}

// What is created while the reply to a slow read travels does not lie in the future.
func TestFollowAfterASlowReply(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed, w.target.MaxClockSkew = "created", time.Second
		w.many(100)
		w.run(w.config())
		n := 0
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" {
				time.Sleep(4 * time.Second)
				for range 200 {
					n++
					w.put(fmt.Sprintf("new-%05d", n), -time.Since(w.began))
				}
			}
			return nil
		}
		stop := w.follow(w.config())
		time.Sleep(time.Minute)
		if _, err := stop(); err != nil || n == 0 {
			t.Errorf("%d are new: %v", n, err)
		}
	})
}

// A follower ends if another process begins a round, and holds while the target is paused. What
// was created meanwhile is not lost.
func TestFollowMakesRoom(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(200)
		cfg := w.config()
		cfg.Percent = 50
		w.run(cfg)
		time.Sleep(time.Minute)
		stop := w.follow(cfg)
		time.Sleep(time.Minute)
		w.pause(t.Context(), true)
		time.Sleep(time.Minute)
		for i := range 20 {
			w.create(fmt.Sprint("paused-", i))
		}
		time.Sleep(5 * time.Minute)
		stamped := w.stamped()
		w.pause(t.Context(), false)
		time.Sleep(time.Minute)
		if n := w.stamped() - stamped; n == 0 || n == 20 { // those in the share
			t.Errorf("%d of 20 were stamped after the pause", n)
		}
		w.run(w.config()) // all of them
		time.Sleep(time.Minute)
		if _, err := stop(); !adopt.IsNewRound(err) {
			t.Errorf("another round: %v", err)
		}
		if _, err := adopt.Follow(t.Context(), cfg); !errors.Is(err, adopt.ErrPercent) && !errors.Is(err, adopt.ErrRoundNeeded) {
			t.Errorf("with the old share: %v", err)
		}
		if n := w.stamped(); n != 220 {
			t.Errorf("%d are stamped", n)
		}
	})
}

// Undo waits for a follower that may still write, and removes its record.
func TestUndoOfAFollowedAdoption(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Indexed = "created"
		w.many(100)
		w.run(w.config())
		stop := w.follow(w.config())
		var writer sync.WaitGroup
		var written atomic.Bool
		writer.Go(func() {
			for i := 0; !written.Load(); i++ {
				w.create(fmt.Sprint("new-", i))
				time.Sleep(time.Second)
			}
		})
		time.Sleep(time.Minute)
		cfg := w.config()
		cfg.Order = adopt.Undo
		w.run(cfg)
		written.Store(true)
		writer.Wait()
		time.Sleep(2 * time.Minute)
		if _, err := stop(); !adopt.IsNewRound(err) {
			t.Errorf("the follower: %v", err)
		}
		if n := w.stamped(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
		q := store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions"}
		if got, err := w.s.Load(t.Context(), q); err != nil || len(got.List) > 0 {
			t.Errorf("records are left: %+v, %v", got.List, err)
		}
	})
}
