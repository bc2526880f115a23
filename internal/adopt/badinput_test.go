package adopt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// unchanged fails if an entity is not as it was.
func (w *world) unchanged(before map[string]store.Entity) {
	w.t.Helper()
	now := w.s.Entities("Session", "")
	for key, e := range before {
		if is, ok := now[key]; !ok || string(is.Data) != string(e.Data) || is.Expiry != e.Expiry {
			w.t.Errorf("%s was %+v and is %+v", key, e, is)
		}
	}
}

// A rule that fits nothing stamps nothing, and says so.
func TestRuleThatFitsNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(50)
		before := w.s.Entities("Session", "")
		cfg := w.config()
		cfg.Rule.Property = "createdAt"
		res := w.run(cfg)
		if res.Stamped != 0 || res.Counts[adopt.NoSource] != 50 || len(res.Samples[adopt.NoSource]) != 3 ||
			len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "fits none of 50 entities") {
			t.Errorf("%+v", res)
		}
		w.unchanged(before)
	})
}

// A property of mixed types: what the rule can read is stamped, all else is counted, sampled and
// kept as it is.
func TestPropertyOfMixedTypes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(20)
		for i, v := range []string{`17`, `1.5`, `true`, `["2026-01-01T00:00:00Z"]`, `{"seconds":1}`, `"yesterday"`, `""`,
			`"2026-13-01T00:00:00Z"`, `"1700000000"`} {
			w.putRaw(fmt.Sprint("odd-", i), `{"created":`+v+`}`)
		}
		w.putRaw("null", `{"created":null}`)
		w.putRaw("absent", `{}`)
		before := w.s.Entities("Session", "")
		for key := range before {
			if strings.Contains(key, "s-") {
				delete(before, key)
			}
		}
		res := w.run(w.config())
		if res.Stamped != 20 || res.Counts[adopt.Mistyped] != 9 || res.Counts[adopt.NoSource] != 2 ||
			len(res.Samples[adopt.Mistyped]) != 3 || len(res.Samples[adopt.NoSource]) != 2 {
			t.Errorf("%d stamped, %+v, %+v", res.Stamped, res.Counts, res.Samples)
		}
		w.unchanged(before)
		if len(before) != 11 {
			t.Errorf("%d odd entities", len(before))
		}
	})
}

// A key property that is used for something else is refused after a sample, and nothing has
// changed. A few such values are kept and counted.
func TestKeyPropertyThatIsInUse(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(40)
		foreign := func(n int) {
			for i := range n {
				e := w.put(fmt.Sprint("f-", i), 0)
				e.Expiry = store.TextValue("blue")
				if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
					t.Fatal(err)
				}
			}
		}
		foreign(3)
		before := w.s.Entities("Session", "")
		if res, err := adopt.Run(t.Context(), w.config()); !errors.Is(err, adopt.ErrForeign) || res.Stamped != 0 {
			t.Errorf("all values are something else: %v", err)
		}
		w.unchanged(before)
		for i := range 4 { // more keys than other values
			e := w.put(fmt.Sprint("key-", i), 0)
			e.Expiry = store.TextValue("00000000.0001.21000101T000000.000Z")
			if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		res := w.run(w.config())
		if res.Stamped != 40 || res.Counts[adopt.Foreign] != 3 || len(res.Samples[adopt.Foreign]) != 3 {
			t.Errorf("%+v", res.Counts)
		}
		if e := w.entity("f-1"); e.Expiry.Text != "blue" {
			t.Errorf("%+v", e)
		}
	})
}

// Of two adoptions that begin at the same moment with different rules, one goes on, and the
// other one is refused. All keys are those of one rule.
func TestTwoRulesAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(300)
		rules := []adopt.Rule{{Property: "created", Plus: 30 * day}, {Property: "created", Plus: 31 * day}}
		var ready, wait sync.WaitGroup
		ready.Add(len(rules))
		var mu sync.Mutex
		first := map[string]bool{}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			owner, _ := c.Record.Fields["rule"].(string)
			mu.Lock()
			meets := c.Method == "Save" && c.Record.Sort == store.AdoptRecord && owner != "" && !first[owner]
			first[owner] = first[owner] || meets
			mu.Unlock()
			if meets {
				ready.Done()
				ready.Wait() // both have found no adoption by now
			}
			return nil
		}
		errs, results := make([]error, len(rules)), make([]adopt.Result, len(rules))
		for i, rule := range rules {
			cfg := w.config()
			cfg.Rule = rule
			wait.Go(func() { results[i], errs[i] = adopt.Run(t.Context(), cfg) })
		}
		wait.Wait()
		won := 0
		if errs[0] != nil {
			won = 1
		}
		if errs[won] != nil || !errors.Is(errs[1-won], adopt.ErrOtherRule) || results[won].Stamped != 300 || results[1-won].Stamped != 0 {
			t.Errorf("%v, %v: %d and %d stamped", errs[0], errs[1], results[0].Stamped, results[1].Stamped)
		}
		cfg := w.config()
		cfg.Rule, cfg.Order = rules[won], adopt.Verify
		if res := w.run(cfg); res.Counts[adopt.Keyed] != 300 {
			t.Errorf("%+v", res.Counts)
		}
	})
}

// A target whose breaker is open is not written to.
func TestAdoptOfATrippedTarget(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		cfg := w.config()
		cfg.Percent = 10
		w.run(cfg)
		stamped := w.stamped()
		rec, now, err := generation.Load(t.Context(), w.s, w.target.Name)
		if err == nil {
			_, err = generation.Save(t.Context(), w.s, rec.Tripped(breaker.Trip{ID: "x", Rule: breaker.Burst, At: now, Due: 1000}))
		}
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		cfg = w.config()
		cfg.Progress = new(adopt.Progress)
		res, err := adopt.Run(t.Context(), cfg)
		if err != nil || res.Complete || res.Stamped != 0 || !res.Tripped || !strings.Contains(res.Held, "reaper breaker show") {
			t.Errorf("complete %v, %d stamped, held %q, %v", res.Complete, res.Stamped, res.Held, err)
		}
		if n := cfg.Progress.Scanned.Load(); n > int64(stamped) { // what it has read is not what it has done
			t.Errorf("it is done with %d, not with at most %d", n, stamped)
		}
		if n := w.stamped(); n != stamped {
			t.Errorf("%d were stamped", n-stamped)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it held on for %v, not for one lease", took)
		}
	})
}

// A finish while old writers still write is refused, and changes nothing; so is one that accepts
// less than is left. What they write after a finish is found by verify.
func TestFinishWhileOldWritersWrite(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		w.run(w.config())
		var writer sync.WaitGroup
		stop := make(chan struct{})
		writer.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					w.put(fmt.Sprint("old-", i), 0)
				}
			}
		})
		for range 3 {
			time.Sleep(10 * time.Second)
			res, err := adopt.Finish(t.Context(), w.config(), 5)
			if !errors.Is(err, adopt.ErrUnverified) || res.Left() <= 5 || res.Phase != adopt.Stamping || res.Apply {
				t.Errorf("%d left, phase %s, %v", res.Left(), res.Phase, err)
			}
			w.run(w.config()) // a new round, and they write on
		}
		close(stop)
		writer.Wait()
		w.run(w.config())
		if _, err := adopt.Finish(t.Context(), w.config(), 0); err != nil {
			t.Fatal(err)
		}
		w.put("after", 0)
		cfg := w.config()
		cfg.Order = adopt.Verify
		if res := w.run(cfg); res.Left() != 1 || res.Phase != adopt.Finished {
			t.Errorf("after the finish: %d left, phase %s", res.Left(), res.Phase)
		}
	})
}
