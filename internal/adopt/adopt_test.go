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
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// Everything without a key gets the rule's; what has expired is spread over a day, and its
// shards are those that writers would use.
func TestStampsWhatHasNoKey(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 400
		w.many(n)
		own := w.put("own", 10*day)
		own.Expiry = store.TextValue("00000000.0001.20300101T000000.000Z")
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{own}); err != nil {
			t.Fatal(err)
		}
		before := w.s.Entities("Session", "")
		began := time.Now()
		res := w.run(w.config())
		if res.Stamped != n || res.Counts[adopt.Unstamped] != n || res.Scanned != n+1 || res.Counts[adopt.Mismatch] != 1 {
			t.Errorf("%+v", res)
		}
		early, spread := 0, map[int]int{}
		for key, e := range w.s.Entities("Session", "") {
			if e.Name == "own" {
				if e.Expiry != own.Expiry {
					t.Errorf("the key of a writer became %v", e.Expiry)
				}
				continue
			}
			k, ok := keyOf(t, e)
			if !ok || k.Generation != 1 || k.Shard != expirykey.ShardOfName(e.Name, 4) {
				t.Errorf("%s has the key %v", key, e.Expiry)
			}
			created, err := time.Parse(`{"created":"`+time.RFC3339Nano+`","user":"u7"}`, string(e.Data))
			if err != nil || string(e.Data) != string(before[key].Data) {
				t.Fatalf("the data of %s is %s, %v", key, e.Data, err)
			}
			rule := created.Add(30 * day)
			if rule.After(began) {
				if k.Expires.Sub(rule).Abs() > time.Millisecond {
					t.Errorf("%s expires %v, not %v", key, k.Expires, rule)
				}
				continue
			}
			early++
			if at := k.Expires.Sub(began); at < -time.Second || at > day+time.Second {
				t.Errorf("%s, which has expired, is due %v after the begin", key, at)
			} else {
				spread[int(at/(6*time.Hour))]++
			}
		}
		for quarter := range 4 {
			if spread[quarter] < early/8 {
				t.Errorf("of %d that had expired, %d are due in quarter %d of the spread", early, spread[quarter], quarter)
			}
		}
	})
}

// A dry run writes nothing at all, and foretells what a run does.
func TestDryRunWritesNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		w.putRaw("no source", `{"user":"u7"}`)
		w.putRaw("number", `{"created":1700000000}`)
		w.putRaw("text", `{"created":"yesterday"}`)
		w.put("ancient", 2000*day)
		writes := w.s.Writes()
		cfg := w.config()
		cfg.Sweep.Apply = false
		res := w.run(cfg)
		if n := w.s.Writes() - writes; n != 0 {
			t.Errorf("a dry run writes %d times", n)
		}
		want := map[adopt.Outcome]int64{adopt.Unstamped: 200, adopt.NoSource: 1, adopt.Mistyped: 2, adopt.Suspect: 1}
		for o, n := range res.Counts {
			if n != want[o] {
				t.Errorf("%s: %d, not %d", o, n, want[o])
			}
		}
		if len(res.Samples[adopt.Unstamped]) != 3 || len(res.Samples[adopt.Mistyped]) != 2 || res.Samples[adopt.Suspect][0].Key != `"ancient"` {
			t.Errorf("samples: %+v", res.Samples)
		}
		// 100 have expired; all but a few of them are due later today.
		if res.DueAlready != 100 || res.Histogram[0].Entities > 3 || res.Histogram[1].Entities+res.Histogram[2].Entities < 97 {
			t.Errorf("due already %d; histogram %+v", res.DueAlready, res.Histogram)
		}
		if res = w.run(w.config()); res.Stamped != 200 {
			t.Errorf("%d stamped", res.Stamped)
		}
	})
}

// 5, 25 and 100 per cent: none that was in is out again, and the shares are as large as
// they should be.
func TestPercentOnlyRises(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 2000
		w.many(n)
		var was map[string]store.Value
		for _, percent := range []float64{5, 25, 100} {
			cfg := w.config()
			cfg.Percent = percent
			w.run(cfg)
			now := map[string]store.Value{}
			for key, e := range w.s.Entities("Session", "") {
				if e.Expiry.Type == store.Missing {
					continue
				}
				now[key] = e.Expiry
				if !expirykey.InRollout(e.Name, adopt.Salt("sessions"), percent) {
					t.Errorf("%s is not among %v per cent", key, percent)
				}
			}
			for key, v := range was {
				if now[key] != v {
					t.Errorf("%s had %v, and has %v", key, v, now[key])
				}
			}
			if share := 100 * float64(len(now)) / n; share < percent*0.7 || share > percent*1.3 {
				t.Errorf("%v per cent are %v per cent", percent, share)
			}
			was = now
			time.Sleep(2 * day) // the spread of each round counts from its own begin
		}
		cfg := w.config()
		cfg.Percent = 50
		if _, err := adopt.Run(t.Context(), cfg); !errors.Is(err, adopt.ErrPercent) {
			t.Errorf("a lower percentage: %v", err)
		}
	})
}

// The second round spreads what has expired from its own begin on.
func TestEachRoundSpreads(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 200 {
			w.put(fmt.Sprint("e-", i), 40*day)
		}
		cfg := w.config()
		cfg.Percent = 10
		w.run(cfg)
		time.Sleep(10 * day)
		w.run(w.config())
		due := 0
		for _, e := range w.s.Entities("Session", "") {
			if k, _ := keyOf(t, e); !k.Expires.After(time.Now()) {
				due++
			}
		}
		if due > 40 {
			t.Errorf("%d of 200 are due at once", due)
		}
	})
}

// Processes are killed, which leaves their parts behind, and stand still for longer than a
// lease; others take over. In the end everything is stamped, once, and nothing else changed.
func TestKilledAndFrozen(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 3000
		w.many(n)
		before := w.s.Entities("Session", "")
		var restamps, lost atomic.Int64
		stamps := map[string]int{}
		var mu sync.Mutex
		frozen := map[int64]bool{40: true, 90: true}
		w.s.After = func(ctx context.Context, c modelstore.Call) error {
			if c.Method != "Restamp" {
				return nil
			}
			mu.Lock()
			for _, op := range c.Restamps {
				stamps[op.Row.Key]++
			}
			mu.Unlock()
			i := restamps.Add(1)
			if frozen[i] {
				time.Sleep(2 * w.target.Lease) // with its reply in the air
			}
			if i%7 == 3 {
				lost.Add(1)
				return fmt.Errorf("reply lost: %w", store.ErrUnavailable)
			}
			return nil
		}
		var wait sync.WaitGroup
		for i := range 6 {
			wait.Go(func() {
				ctx, kill := context.WithCancel(t.Context())
				cfg := w.config()
				cfg.Rate = throttle.Limits{Start: 40, Max: 40}
				if i < 5 { // a kill gives nothing back
					time.AfterFunc(time.Duration(i+1)*3*time.Second, kill)
					cfg.Sweep.Store = &deaf{w.s, ctx}
				}
				res, err := adopt.Run(ctx, cfg)
				if i == 5 && (err != nil || !res.Complete) {
					t.Errorf("the survivor: complete %v, %v", res.Complete, err)
				}
				kill()
			})
			time.Sleep(time.Second)
		}
		wait.Wait()
		if got := w.stamped(); got != n {
			t.Errorf("%d of %d are stamped", got, n)
		}
		for key, e := range w.s.Entities("Session", "") {
			if string(e.Data) != string(before[key].Data) {
				t.Errorf("%s holds %s", key, e.Data)
			}
		}
		if restamps.Load() < 50 || lost.Load() < 5 {
			t.Errorf("%d writes, %d lost replies: the test shows little", restamps.Load(), lost.Load())
		}
	})
}

// deaf is the store of a process that is killed: from then on nothing reaches it.
type deaf struct {
	*modelstore.Store

	life context.Context
}

func (d *deaf) Save(ctx context.Context, r store.Record, prev string) error {
	if err := d.life.Err(); err != nil {
		return err
	}
	return d.Store.Save(ctx, r, prev)
}

// Writers go on while an adoption runs: keys of their own stay, deleted entities stay
// away, and extended ones get the newer instant.
func TestWritersWin(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		own := store.TextValue("00000001.0001.20300101T000000.000Z")
		n := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Restamp" {
				return nil
			}
			w.s.Before = nil
			for _, op := range c.Restamps {
				id, _ := w.s.ID(op.Row.Key)
				switch n++; n % 4 {
				case 0:
					w.s.Remove("Session", "", op.Row.Key)
				case 1:
					e := w.put(id, 0)
					e.Expiry = own
					if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
						t.Error(err)
					}
				case 2:
					w.put(id, -100*day)
				}
			}
			return nil
		}
		cfg := w.config()
		cfg.Sweep.Workers = 1
		res := w.run(cfg)
		all := w.s.Entities("Session", "")
		var owned, extended int
		for _, e := range all {
			switch k, ok := keyOf(t, e); {
			case !ok:
				t.Errorf("%s has no key", e.Name)
			case e.Expiry == own:
				owned++
			case k.Expires.Equal(w.began.Add(130 * day)):
				extended++
			}
		}
		if gone := int64(100 - len(all)); gone == 0 || res.Counts[adopt.Gone] != gone || res.Counts[adopt.Overtaken] != int64(owned) || extended == 0 {
			t.Errorf("%d gone, %d with keys of their own, %d extended: %+v", gone, owned, extended, res.Counts)
		}
	})
}

// Undo removes what the rule gave, in every round, and nothing else; then no record is left.
func TestUndo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(300)
		before := w.s.Entities("Session", "")
		for _, percent := range []float64{20, 100} {
			cfg := w.config()
			cfg.Percent = percent
			w.run(cfg)
			time.Sleep(day)
		}
		own := w.entity("s-00007")
		own.Expiry = store.TextValue("00000001.0001.20300101T000000.000Z")
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{own}); err != nil {
			t.Fatal(err)
		}
		cfg := w.config()
		cfg.Order, cfg.Sweep.Apply = adopt.Undo, false
		if res := w.run(cfg); res.Removable != 299 || w.stamped() != 300 {
			t.Errorf("a dry run: %d removable, %d stamped", res.Removable, w.stamped())
		}
		cfg = w.config()
		cfg.Order = adopt.Undo
		if res := w.run(cfg); res.Removed != 299 {
			t.Errorf("%d removed", res.Removed)
		}
		before[modelstore.Key(own)] = own
		if now := w.s.Entities("Session", ""); !maps.EqualFunc(now, before, func(a, b store.Entity) bool {
			return a.Expiry == b.Expiry && string(a.Data) == string(b.Data)
		}) {
			t.Errorf("not as before: %d stamped", w.stamped())
		}
		got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions"})
		if err != nil || len(got.List) != 0 {
			t.Errorf("%d records are left, %v", len(got.List), err)
		}
		if _, err := adopt.Run(t.Context(), cfg); !errors.Is(err, adopt.ErrNotAdopted) {
			t.Errorf("a second undo: %v", err)
		}
	})
}

// Undo begins while another process stamps: no key is written behind it.
func TestUndoWhileOthersStamp(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(2000)
		var wait sync.WaitGroup
		for range 2 {
			cfg := w.config()
			cfg.Rate = throttle.Limits{Start: 20, Max: 20}
			wait.Go(func() {
				if res, err := adopt.Run(t.Context(), cfg); err == nil || res.Complete {
					t.Errorf("a worker of an adoption that was undone: complete %v, %v", res.Complete, err)
				}
			})
		}
		time.Sleep(20 * time.Second)
		if n := w.stamped(); n == 0 || n > 1900 {
			t.Errorf("%d are stamped after 20 s", n)
		}
		cfg := w.config()
		cfg.Order = adopt.Undo
		w.run(cfg)
		wait.Wait()
		if n := w.stamped(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
		if res := w.run(w.config()); res.Round != 1 || res.Stamped != 2000 || res.Scanned != 2000 {
			t.Errorf("a new adoption: round %d, %d of %d stamped", res.Round, res.Stamped, res.Scanned)
		}
	})
}

// Finish refuses while something is left, and then stampers are refused.
func TestFinish(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		cfg := w.config()
		cfg.Percent = 60
		w.run(cfg)
		cfg = w.config()
		if res, err := adopt.Finish(t.Context(), cfg, 0); !errors.Is(err, adopt.ErrUnverified) || res.Left() == 0 {
			t.Errorf("%d left, %v", res.Left(), err)
		}
		w.run(w.config())
		if res, err := adopt.Finish(t.Context(), w.config(), 0); err != nil || res.Phase != adopt.Finished {
			t.Errorf("phase %s, %v", res.Phase, err)
		}
		if _, err := adopt.Run(t.Context(), w.config()); !errors.Is(err, adopt.ErrPhase) {
			t.Errorf("a stamper of a finished adoption: %v", err)
		}
		cfg = w.config()
		cfg.Order = adopt.Undo
		if _, err := adopt.Run(t.Context(), cfg); !errors.Is(err, adopt.ErrPhase) {
			t.Errorf("undo of a finished adoption: %v", err)
		}
		cfg.AlsoWriters = true
		if res := w.run(cfg); res.Removed != 100 {
			t.Errorf("%d removed", res.Removed)
		}
	})
}

// Until an adoption is finished sweeps keep what is due by a key that disagrees with the rule, and
// delete the rest; from then on they go by keys alone.
func TestDual(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		cfg := w.config()
		cfg.Spread = 0
		w.run(cfg)
		// An old writer extends another one, and keeps its key.
		extended := w.entity("s-00150")
		extended.Data = []byte(fmt.Sprintf(`{"created":%q}`, w.began.Format(time.RFC3339)))
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{extended}); err != nil {
			t.Fatal(err)
		}
		if res, err := adopt.Dualize(t.Context(), cfg); err != nil || res.Phase != adopt.Dual || !res.Apply {
			t.Fatalf("%+v, %v", res, err)
		}
		// A writer takes hours for days: its key is due, and the rule is not.
		wrong := w.entity("s-00010")
		wrong.Expiry = store.TextValue("00000001.0000." + w.began.Add(-time.Hour).Format("20060102T150405.000Z"))
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{wrong}); err != nil {
			t.Fatal(err)
		}
		c := &adopt.Comparer{Store: w.s, Target: w.target, Now: time.Now}
		swept := func() sweep.TargetResult {
			s := w.config().Sweep
			target := w.target
			target.Compare = c.Compare
			s.Targets = []sweep.Target{target}
			s.Once.FromStart = true
			res := sweep.Run(t.Context(), s)
			if res.Failed() || !res.Complete {
				t.Errorf("%+v", res)
			}
			return res.Targets[0]
		}
		for range 2 {
			if res := swept(); res.Mismatch == 0 || res.Refused != 0 {
				t.Errorf("%+v", res)
			}
			w.entity("s-00010")
			if n := len(w.s.Entities("Session", "")); n != 101 {
				t.Errorf("%d entities are left", n)
			}
			time.Sleep(time.Minute)
		}
		if _, err := adopt.Finish(t.Context(), w.config(), 0); !errors.Is(err, adopt.ErrUnverified) {
			t.Errorf("finish: %v", err)
		}
		if res, err := adopt.Finish(t.Context(), w.config(), 2); err != nil || res.Phase != adopt.Finished {
			t.Errorf("finish: %+v, %v", res, err)
		}
		time.Sleep(time.Minute) // by then the sweeps know
		if res := swept(); res.Mismatch != 0 || len(w.s.Entities("Session", "")) != 99 {
			t.Errorf("%+v, %d left", res, len(w.s.Entities("Session", "")))
		}
	})
}

// What will fall due is announced before it is written. A refusal is an error, and nothing is
// written.
func TestAnnounces(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		var mu sync.Mutex
		announced := map[string]int{}
		cfg := w.config()
		cfg.Announce = func(_ context.Context, expiries []time.Time) error {
			mu.Lock()
			defer mu.Unlock()
			for _, at := range expiries {
				announced[at.String()]++
			}
			return nil
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			mu.Lock()
			defer mu.Unlock()
			for _, op := range c.Restamps {
				if k, err := expirykey.Parse(op.To.Text); err != nil || announced[k.Expires.String()] == 0 {
					t.Errorf("%s is written before it is announced: %v", op.To.Text, err)
				}
			}
			return nil
		}
		w.run(cfg)
		w.put("late", 0)
		cfg = w.config()
		cfg.Announce = func(context.Context, []time.Time) error { return errors.New("held") }
		if _, err := adopt.Run(t.Context(), cfg); err == nil || w.entity("late").Expiry.Type != store.Missing {
			t.Errorf("%v", err)
		}
	})
}

// The next round begins at its time; at once if one is not done, or if there is more to adopt.
func TestNextRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(50)
		in := func(percent float64) time.Duration {
			t.Helper()
			cfg := w.config()
			cfg.Percent = percent
			at, err := adopt.NextRound(t.Context(), cfg, day)
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(at)
		}
		if d := in(50); d != 0 {
			t.Errorf("before the first round: %v", d)
		}
		cfg := w.config()
		cfg.Percent = 50
		w.run(cfg)
		time.Sleep(time.Hour - time.Since(w.began))
		if d := in(50); d != 23*time.Hour {
			t.Errorf("an hour after a round: %v", d)
		}
		if d := in(100); d != 0 {
			t.Errorf("for a larger share: %v", d)
		}
		time.Sleep(2 * day)
		if d := in(50); d != -25*time.Hour {
			t.Errorf("two days later: %v", d)
		}
	})
}

// Records that make no sense are refused, and name the field at fault.
func TestBadRecords(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(10)
		w.run(w.config())
		got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions", Keys: []string{"sessions"}})
		if err != nil {
			t.Fatal(err)
		}
		for field, bad := range map[string]any{"schema": int64(2), "phase": "adopted", "rounds": []store.Fields{}, "rule": int64(3), "rule_plus_ms": int64(1)} {
			r := got.List[0]
			r.Fields = maps.Clone(r.Fields)
			r.Fields[field], r.Revision = bad, store.NewRevision(r.Revision)
			if err := w.s.Save(t.Context(), r, got.List[0].Revision); err != nil {
				t.Fatal(err)
			}
			got.List[0].Revision = r.Revision
			if _, err := adopt.Run(t.Context(), w.config()); err == nil || !strings.Contains(err.Error(), field[:4]) {
				t.Errorf("%s = %v: %v", field, bad, err)
			}
		}
	})
}

// Verify counts all that has no key, also what is in no share yet, and keys that disagree.
func TestVerify(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(400)
		cfg := w.config()
		cfg.Percent = 50
		stamped := w.run(cfg).Stamped
		live := w.entity("s-00399") // an old writer extends it, and keeps the key
		live.Data = []byte(`{"created":"2100-01-01T00:00:00Z"}`)
		live.Expiry = store.TextValue("00000001.0000.20000201T000000.000Z")
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{live}); err != nil {
			t.Fatal(err)
		}
		cfg = w.config()
		cfg.Order = adopt.Verify
		res := w.run(cfg)
		rest := 400 - stamped
		if got := res.Counts[adopt.Unstamped]; got < rest-1 || got > rest || res.Counts[adopt.Mismatch] != 1 {
			t.Errorf("%+v", res.Counts)
		}
	})
}

// A paused target, and a closed gate, hold an adoption; after one lease it ends in good order,
// and the next run goes on from there.
func TestHeld(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(500)
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 20, Max: 20}
		ctx := t.Context()
		time.AfterFunc(5*time.Second, func() { w.pause(ctx, true) })
		res, err := adopt.Run(ctx, cfg)
		if err != nil || res.Complete || !strings.HasPrefix(res.Held, "paused") {
			t.Errorf("complete %v, held %q, %v", res.Complete, res.Held, err)
		}
		// At most what was allowed within the time for which a record may be read.
		if n := w.stamped(); n == 0 || n > 20*12 {
			t.Errorf("%d were stamped", n)
		}
		w.pause(ctx, false)
		var open atomic.Bool
		cfg = w.config()
		cfg.Target.Gate = func(context.Context) error {
			if open.Load() {
				return nil
			}
			return errors.New("a sale")
		}
		stamped := w.stamped()
		time.AfterFunc(20*time.Second, func() {
			if n := w.stamped(); n != stamped {
				t.Errorf("%d were stamped behind a closed gate", n-stamped)
			}
			open.Store(true)
		})
		if res = w.run(cfg); res.Round != 1 || w.stamped() != 500 {
			t.Errorf("round %d, %d stamped", res.Round, w.stamped())
		}
	})
}

// The rate is kept in every window, whatever the number of workers.
func TestRate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(600)
		var at []time.Duration
		began := time.Now()
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			for range c.Restamps {
				at = append(at, time.Since(began))
			}
			return nil
		}
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 30, Max: 30}
		w.run(cfg)
		slices.Sort(at)
		for i := range at {
			j := i
			for j < len(at) && at[j] <= at[i]+time.Second {
				j++
			}
			if j-i > 30+30+4 {
				t.Fatalf("%d in the second from %v on", j-i, at[i])
			}
		}
		if took := time.Since(began); took < 18*time.Second || took > 60*time.Second {
			t.Errorf("600 entities at 30/s took %v", took)
		}
	})
}

// One entity that the store refuses is found, counted and named; all others are stamped.
func TestRefusedEntity(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			for _, op := range c.Restamps {
				if op.Row.Key == `"s-00042"` {
					return fmt.Errorf("too many index entries: %w", store.ErrInvalid)
				}
			}
			return nil
		}
		res := w.run(w.config())
		if res.Stamped != 99 || res.Counts[adopt.Refused] != 1 || res.Samples[adopt.Refused][0].Key != `"s-00042"` {
			t.Errorf("%d stamped, %+v, %+v", res.Stamped, res.Counts, res.Samples[adopt.Refused])
		}
	})
}

// Orders that do not fit change nothing.
func TestOrdersThatDoNotFit(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(20)
		cfg := w.config()
		cfg.Order = adopt.Verify
		if _, err := adopt.Run(t.Context(), cfg); !errors.Is(err, adopt.ErrNotAdopted) {
			t.Errorf("verify without an adoption: %v", err)
		}
		w.run(w.config())
		cfg = w.config()
		cfg.Rule.Plus = 31 * day
		if _, err := adopt.Run(t.Context(), cfg); !errors.Is(err, adopt.ErrOtherRule) {
			t.Errorf("another rule: %v", err)
		}
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
	})
}

// Entities that were all created within an hour look like an import; a rule that fits
// nothing is named.
func TestWarnings(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(150)
		cfg := w.config()
		cfg.Rule, cfg.Sweep.Apply = adopt.Rule{CreateTime: true, Plus: day}, false
		if res := w.run(cfg); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "import") {
			t.Errorf("%q", res.Warnings)
		}
		cfg.Rule = adopt.Rule{Property: "created", Plus: 30 * day}
		cfg.Spread, cfg.Rate = time.Minute, throttle.Limits{Start: 1, Max: 1}
		if res := w.run(cfg); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "about 2m30s, longer than the spread") {
			t.Errorf("%q", res.Warnings)
		}
		cfg.Rule = adopt.Rule{Property: "createdAt", Plus: day}
		if res := w.run(cfg); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "fits none of 150") {
			t.Errorf("%q", res.Warnings)
		}
	})
}

// Times of creation that are all of one hour look like an import, also if they are few.
func TestFewOfOneHourLookLikeAnImport(t *testing.T) {
	for n, want := range []int{0, 0, 1, 1} {
		in(t, func(t *testing.T, w *world) {
			w.many(n)
			cfg := w.config()
			cfg.Rule, cfg.Sweep.Apply = adopt.Rule{CreateTime: true, Plus: day}, false
			if res := w.run(cfg); len(res.Warnings) != want {
				t.Errorf("%d entities: %q", n, res.Warnings)
			}
		})
	}
}

// advance opens the next generation.
func advance(t *testing.T, w *world, shards int) {
	t.Helper()
	rec, now, err := generation.Load(t.Context(), w.s, w.target.Name)
	if err == nil {
		policy := w.target.Policy
		policy.Shards = shards
		if rec, err = rec.Advance(policy, now, true); err == nil {
			_, err = generation.Save(t.Context(), w.s, rec)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Stamps go where writers go: while writers move to a new generation, a share of them.
func TestStampsByTheFollowersRule(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put("first", 0)
		w.run(w.config())
		advance(t, w, 8)
		time.Sleep(50 * time.Minute) // of a ramp of 60
		w.many(400)
		w.run(w.config())
		in := map[int]int{}
		for _, e := range w.s.Entities("Session", "") {
			if k, _ := keyOf(t, e); e.Name != "first" {
				in[k.Generation]++
			}
		}
		if in[1] == 0 || in[2] == 0 || in[1]+in[2] != 400 {
			t.Errorf("by generation: %v", in)
		}
		synctest.Wait()
	})
}

// What a reading will cost is known before it begins: by the last round, or by the index of
// the property that the rule reads if that round was not read to its end.
func TestExpect(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(100)
		expect := func(order adopt.Order) (adopt.Expectation, error) {
			cfg := w.config()
			cfg.Order, cfg.Progress = order, new(adopt.Progress)
			e, err := adopt.Expect(t.Context(), cfg)
			if n := cfg.Progress.Expected.Load(); n != e.Entities {
				t.Errorf("the progress expects %d of %d", n, e.Entities)
			}
			return e, err
		}
		if _, err := expect(adopt.Verify); !errors.Is(err, adopt.ErrNotAdopted) {
			t.Errorf("verify without an adoption: %v", err)
		}
		if e, err := expect(adopt.Stamp); err != nil || e != (adopt.Expectation{AtLeast: true}) {
			t.Errorf("nothing is known: %+v, %v", e, err)
		}
		began := time.Now().UTC()
		w.run(w.config())
		w.put("later", 0)
		reads := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Walk" || c.Method == "Look" {
				reads++
			}
			return nil
		}
		e, err := expect(adopt.Verify)
		if want := (adopt.Expectation{Entities: 100, Source: "round 1, of " + began.Format(time.DateOnly)}); err != nil || e != want || reads != 0 {
			t.Errorf("after a round: %+v, %v, %d reads of entities", e, err, reads)
		}
	})
}

// The rate is that of all processes together, whenever they begin, end or die; and those that
// are left use all of it.
func TestRateIsShared(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const rate = 20
		w.many(6000)
		var mu sync.Mutex
		var at []time.Duration
		began := time.Now()
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			mu.Lock()
			defer mu.Unlock()
			for range c.Restamps {
				at = append(at, time.Since(began))
			}
			return nil
		}
		var wait sync.WaitGroup
		process := func(begin, life time.Duration) {
			cfg := w.config()
			cfg.Sweep.Workers = 2
			cfg.Rate = throttle.Limits{Start: rate, Max: rate}
			wait.Go(func() {
				time.Sleep(begin)
				ctx := t.Context()
				if life > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, life)
					defer cancel()
				}
				if _, err := adopt.Run(ctx, cfg); err != nil {
					t.Error(err)
				}
			})
		}
		process(0, 0)
		process(time.Millisecond, 0) // at once with the first
		process(20*time.Second, 40*time.Second)
		process(45*time.Second, 0)
		wait.Wait()
		if n := w.stamped(); n != 6000 {
			t.Errorf("%d are stamped", n)
		}
		slices.Sort(at)
		for i := range at {
			j := i
			for j < len(at) && at[j] <= at[i]+10*time.Second {
				j++
			}
			if j-i > 11*rate+rate { // a burst of a second, and one batch of each process
				t.Fatalf("%d in the ten seconds from %v on", j-i, at[i])
			}
		}
		// All of it, less what joins and leavings cost.
		if took := at[len(at)-1]; took < 300*time.Second || took > 450*time.Second {
			t.Errorf("6000 entities at %d/s took %v", rate, took)
		}
	})
}

// The state counts what a round has left without a key, and keys that disagree, over all
// processes.
func TestStateCountsWhatIsLeft(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(200)
		wrong := w.entity("s-00010")
		wrong.Expiry = store.TextValue("00000001.0000.20000101T000000.000Z")
		if err := w.s.Put(t.Context(), w.target.Target, "", []store.Entity{wrong}); err != nil {
			t.Fatal(err)
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			for _, op := range c.Restamps {
				if op.Row.Key == `"s-00042"` {
					return fmt.Errorf("too many index entries: %w", store.ErrInvalid)
				}
			}
			return nil
		}
		state := func() *adopt.State {
			t.Helper()
			st, err := adopt.LoadState(t.Context(), w.s, "sessions")
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		cfg := w.config()
		cfg.Percent = 50
		w.run(cfg)
		if st := state(); st.Unstamped != 199-st.Written || st.Mismatch != 1 || st.Written == 0 {
			t.Errorf("half of them: %+v", st)
		}
		w.run(w.config())
		if st := state(); st.Unstamped != 1 || st.Mismatch != 1 {
			t.Errorf("all of them: %+v", st)
		}
	})
}

// The histogram counts from the begin of the round, however long the keys took to split: what
// is spread is not due at once.
func TestHistogramCountsFromTheRound(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.many(1000)
		slow := true
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.AdoptRecord && slow {
				slow = false
				time.Sleep(9 * time.Second)
			}
			return nil
		}
		cfg := w.config()
		cfg.Spread = time.Minute
		if res := w.run(cfg); res.Histogram[0].Entities > 2 || res.Histogram[1].Entities < 490 || res.DueAlready != 500 {
			t.Errorf("%d due already, %+v", res.DueAlready, res.Histogram)
		}
	})
}
