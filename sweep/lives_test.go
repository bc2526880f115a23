package sweep_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

var hourly = generation.Policy{Every: time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 1}

// runFor sweeps every so often, and returns what the sweeps did together.
func (e *epoch) runFor(d time.Duration) (sum sweep.TargetResult) {
	e.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
		res := e.sweep()
		if res.Error != "" || !res.Complete {
			e.t.Fatalf("%+v", res)
		}
		sum.Deleted += res.Deleted
		sum.Descendants += res.Descendants
		sum.Carried += res.Carried
		sum.Strays += res.Strays
		sum.Malformed += res.Malformed
		sum.Suspect += res.Suspect
		sum.Retired = append(sum.Retired, res.Retired...)
	}
	return sum
}

// stamped writes an entity into a generation.
func (e *epoch) stamped(number, shards int, name string, expires time.Time) {
	e.t.Helper()
	k, err := generation.Stamper{Generation: number, Shards: shards}.Name(name, expires)
	if err != nil {
		e.t.Fatal(err)
	}
	e.commit("test", name, k)
}

func (e *epoch) states() string {
	now, text := time.Now(), ""
	r := e.record()
	for i, g := range r.Generations {
		text += fmt.Sprintf("%d:%s/%d ", g.Number, r.State(i, now, e.target.Policy.Settle), g.Shards)
	}
	return text
}

func TestDryRunMovesNoGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.runFor(time.Minute)
		for i := range 20 {
			e.stamped(1, 4, e.name(), time.Now().Add(time.Duration(i)*time.Hour/4))
		}
		before := e.s.Writes()
		for range 300 {
			c := e.config()
			c.Apply = false
			if res := sweep.Run(t.Context(), c).Targets[0]; res.Error != "" || res.Deleted+res.Carried > 0 {
				t.Fatalf("%+v", res)
			}
			time.Sleep(every)
		}
		if n := e.s.Writes() - before; n > 0 {
			t.Errorf("%d writes", n)
		}
	})
}

// Sweepers that find at the same moment that a generation is due open one.
func TestSweepersOpenOneGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		time.Sleep(hourly.Every / 2)
		e.sweep() // which probes for generations that are not listed
		time.Sleep(hourly.Every / 2)
		const sweepers = 5
		var ready, done sync.WaitGroup
		ready.Add(sweepers)
		e.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.TargetRecord && len(c.Record.Fields["generations"].([]store.Fields)) == 2 {
				ready.Done()
				ready.Wait() // each has decided by now
			}
			return nil
		}
		for range sweepers {
			c := e.config()
			done.Go(func() {
				if res := sweep.Run(t.Context(), c).Targets[0]; res.Error != "" {
					t.Errorf("%+v", res)
				}
			})
		}
		done.Wait()
		if got := e.states(); got != "1:closing/4 2:filling/4 " {
			t.Errorf("generations: %s", got)
		}
	})
}

// Malformed entities do not keep an old generation from retiring: they stay there and are
// counted. Suspects are carried.
func TestMalformedAndSuspectInAnOldGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		e.raw("broken", "00000001.0002.20991301T000000.000Z")
		e.raw("beyond", "00000001.0099.nonsense")
		old, err := expirykey.New(1, 3, time.Now().Add(-20*365*24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		e.commit("test", "suspect", old)
		sum := e.runFor(5 * time.Hour)
		if !slices.Contains(sum.Retired, 1) {
			t.Errorf("generation 1 did not retire: %s", e.states())
		}
		if sum.Carried < 1 || sum.Deleted > 0 || sum.Malformed == 0 || sum.Suspect == 0 {
			t.Errorf("%+v", sum)
		}
		e.wantLeft("broken", "beyond", "suspect")
		rows := e.s.Entities("Session", "")
		if v := rows[`"broken"`].Expiry.Text; v != "00000001.0002.20991301T000000.000Z" {
			t.Errorf("what is malformed became %s", v)
		}
		k, err := expirykey.Parse(rows[`"suspect"`].Expiry.Text)
		if err != nil || k.Generation < 2 || !k.Expires.Equal(old.Expires) {
			t.Errorf("the suspect became %v, %v", k, err)
		}
	})
}

// The first instant of all is an expiry like any other: a suspect that has it hides no
// other one of its range, and all of them are carried.
func TestSuspectOfYearOneHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		now := time.Now()
		for name, at := range map[string]time.Time{"year 1": {}, "old": now.Add(-20 * 365 * 24 * time.Hour)} {
			k, err := expirykey.New(1, 3, at)
			if err != nil {
				t.Fatal(err)
			}
			e.commit("test", name, k)
		}
		sum := e.runFor(5 * time.Hour)
		if sum.Strays != 0 || sum.Carried < 2 || sum.Deleted != 0 || !slices.Contains(sum.Retired, 1) {
			t.Errorf("%+v, %s", sum, e.states())
		}
		e.wantLeft("year 1", "old")
	})
}

// A store whose index shows lists as what is in them, as that of Datastore does: what
// an entity has is known once it is to be written.
type projecting struct {
	*modelstore.Store
	list string // the key of an entity with one
}

func (s projecting) Dispose(ctx context.Context, b *store.Batch) error {
	rest := *b
	rest.Ops = slices.DeleteFunc(slices.Clone(b.Ops), func(op store.Op) bool { return op.Entry.Key == s.list })
	err := s.Store.Dispose(ctx, &rest)
	for i := range b.Ops {
		if op := &b.Ops[i]; op.Entry.Key == s.list {
			op.Outcome, op.Known, op.Now = store.Changed, true, store.Value{Type: store.List}
			rest.Ops = slices.Insert(rest.Ops, i, *op)
		}
	}
	copy(b.Ops, rest.Ops)
	return err
}

// A list with an implausibly old key in it looks like a suspect, but cannot be carried. Like
// all malformed entities, it does not keep its generation from retiring.
func TestListThatLooksSuspect(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.sweep()
		w.put(1, 4, "list", time.Now().Add(-20*365*24*time.Hour))
		w.put(1, 4, "suspect", time.Now().Add(-20*365*24*time.Hour))
		var retired []int
		for range 5 * 12 {
			c := w.config()
			c.Store = projecting{w.s, `"list"`}
			res := sweep.Run(t.Context(), c).Targets[0]
			if res.Error != "" || res.Deleted != 0 {
				t.Fatalf("%+v", res)
			}
			retired = append(retired, res.Retired...)
			time.Sleep(every)
		}
		if !slices.Contains(retired, 1) || !slices.Contains(retired, 2) {
			t.Errorf("%v have retired", retired)
		}
		w.wantLeft("list", "suspect")
	})
}

// A projectingGuarder says in addition that its index may hide what entities hold.
type projectingGuarder struct{ projecting }

func (projectingGuarder) Guard(store.Target) store.Guarding {
	return store.Guarding{Guard: store.GuardLookup, Most: 2}
}

// Where the index shows elements of lists as plain values, a list with an old key counts
// as malformed, and not as suspect: in a dry run, too. Other suspects count as before.
func TestListOfOldKeysIsMalformed(t *testing.T) {
	for _, single := range []bool{false, true} {
		in(t, func(t *testing.T, w *world) {
			w.target.SingleValued = single
			w.sweep()
			for _, name := range []string{"a", "b", "list", "z"} {
				w.put(1, 1, name, time.Now().Add(-20*365*24*time.Hour))
			}
			w.put(1, 1, "due", time.Now())
			c := w.config()
			c.Store, c.FromStart = projectingGuarder{projecting{w.s, `"list"`}}, true
			malformed, suspects := int64(1), int64(3)
			if single { // the owner promises that there are no lists
				malformed, suspects = 0, 4
			}
			for _, c.Apply = range []bool{false, true} {
				res := sweep.Run(t.Context(), c).Targets[0]
				if res.Malformed != malformed || res.Suspect != suspects || res.Expired != 1 || res.Error != "" {
					t.Errorf("single-valued %v: %+v", single, res)
				}
			}
			w.wantLeft("a", "b", "list", "z")
		})
	}
}

// A visit that lasts, because somebody has locked an entity of its range, has met a list. The
// owner writes a plain key in its place, by which it expires later: it goes like any other.
func TestListThatBecomesAKey(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.begin()
		w.touch()
		w.dueIn(1, 2, "locked", time.Now())
		w.dueIn(1, 2, "list", time.Now())
		w.s.Before = lockedFor(0)
		s := &projecting{w.s, `"list"`}
		cfg := w.config()
		cfg.Store = s
		daemon := w.serve(cfg)
		time.Sleep(3 * time.Minute)
		w.wantLeft("list", "locked")
		if n := daemon.counter("reaper_kept_entities_total", "reason", "malformed"); n == 0 {
			t.Errorf("%v malformed", n)
		}
		s.list = ""
		w.dueIn(1, 2, "list", time.Now().Add(2*time.Minute))
		time.Sleep(5 * time.Minute)
		w.wantLeft("locked")
	})
}

// A live target is resharded by opening generations with other numbers, and its
// writers follow.
func TestReshardingALiveTarget(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, generation.Policy{Every: 1000 * time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 1})
		e.target.Shards = 16
		e.sweep()
		scribes := e.scribes()
		bound := func(w *written) time.Duration { return e.target.Rewind + 1000*time.Hour }
		work := func(minutes int) {
			for m := range minutes {
				e.minute(scribes, 2, 2*time.Hour)
				if m%5 == 0 {
					began := time.Now()
					if res := e.sweep(); res.Error != "" || !res.Complete {
						t.Fatalf("%+v", res)
					}
					e.check(began, func(w *written) time.Duration {
						if w.inOrder {
							return 0
						}
						return bound(w)
					})
				}
				time.Sleep(time.Minute)
			}
		}
		for _, shards := range []int{64, 8} {
			work(60)
			if _, err := control.Advance(t.Context(), e.config(), e.target, shards, false); err != nil {
				t.Fatal(err)
			}
			if _, err := control.Advance(t.Context(), e.config(), e.target, shards, false); err == nil {
				t.Error("two generations were opened during one ramp")
			}
			work(60)
			seen := map[int]bool{}
			newest := e.record().Generations[len(e.record().Generations)-1]
			for i := range 1000 {
				k := scribes[0].stamp(e, fmt.Sprint("probe-", i), time.Hour)
				if k.Generation != newest.Number {
					t.Fatalf("a follower stamps %v; the newest generation is %d", k, newest.Number)
				}
				seen[k.Shard] = true
			}
			if newest.Shards != shards || len(seen) != shards {
				t.Errorf("generation %d has %d shards, and writers use %d of %d", newest.Number, newest.Shards, len(seen), shards)
			}
		}
		work(10 * 60)
		if got := e.states(); got != "3:filling/8 " {
			t.Errorf("generations at the end: %s", got)
		}
	})
}

// The nursery's number of shards grows with the shards found in use, and never shrinks.
func TestNurseryRemembersItsHighestShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		e.stamped(0, 64, "far", time.Now().Add(10*time.Hour))
		far := e.live["far"].key.Shard
		if far < 4 {
			t.Fatalf("the name hashes to shard %d", far)
		}
		e.runFor(e.target.Rewind + time.Hour)
		if n := e.record().NurseryShards; n != far+1 {
			t.Errorf("the nursery has %d shards, and shard %d is in use", n, far)
		}
		e.runFor(10 * time.Hour)
		e.wantLeft()
	})
}

// Survivors are carried to the newest generation no faster than the part of its pace that
// is reserved for them, and its own deletes take no more than the rest.
func TestCarryObeysThePace(t *testing.T) {
	nightly.Races(t)
	// One source for each shard, a quarter of the limit; and with others, from past the
	// last shard, all that is set aside.
	for shards, limit := range map[int]float64{4: 100 * 0.25, 16: 100 * 0.5} {
		t.Run(fmt.Sprint(shards, " shards"), func(t *testing.T) { carryObeysThePace(t, shards, limit) })
	}
}

func carryObeysThePace(t *testing.T, shards int, limit float64) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, generation.Policy{Every: time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 1})
		e.target.Pace = throttle.Limits{Start: 100, Max: 100}
		e.sweep()
		for range 4000 {
			e.stamped(1, shards, e.name(), time.Now().Add(30*time.Hour))
		}
		type commit struct {
			at time.Time
			n  int
		}
		carried := map[string][]commit{} // by the shard that is written into
		var mu sync.Mutex
		watch := e.s.Before
		e.s.Before = func(ctx context.Context, c modelstore.Call) error {
			mu.Lock()
			into := map[string]int{}
			for _, op := range c.Ops {
				if op.To.Type != store.Missing {
					into[op.To.Text[:13]]++
				}
			}
			for shard, n := range into {
				carried[shard] = append(carried[shard], commit{time.Now(), n})
			}
			mu.Unlock()
			return watch(ctx, c)
		}
		// The second sweeper begins in the middle: it must not add a budget of its own.
		for range 40 {
			var both sync.WaitGroup
			for range 2 {
				c := e.config()
				c.Workers = shards / 2
				both.Go(func() { sweep.Run(t.Context(), c) })
			}
			both.Wait()
			time.Sleep(every)
		}
		if len(carried) != 4 {
			t.Fatalf("carried into %d shards", len(carried))
		}
		for shard, list := range carried {
			for i := range list {
				sum := 0
				for j := i; j < len(list); j++ {
					sum += list[j].n
					window := list[j].at.Sub(list[i].at).Seconds()
					if most := limit*window + float64(shards/4*e.target.Page) + 1; float64(sum) > most {
						t.Fatalf("%s: %d were carried within %.1f s, more than %.0f", shard, sum, window, most)
					}
				}
			}
		}
		if e.most != 1 || e.carries < 4000 {
			t.Errorf("%d carries, one entity %d times", e.carries, e.most)
		}
	})
}

// A survivor that falls due while it waits to be carried is deleted from its old
// generation: if it were carried, it would land behind the newest generation's cursor.
func TestDueWhileItWaitsToBeCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.target.Pace = throttle.Limits{Start: 1, Max: 1}
		e.sweep()
		for i := range 800 {
			e.stamped(1, 4, e.name(), time.Now().Add(134*time.Minute+time.Duration(i)*2*time.Second))
		}
		sum := e.runFor(170 * time.Minute)
		if sum.Carried < 50 || sum.Deleted < 400 {
			t.Errorf("%d were carried, %d deleted", sum.Carried, sum.Deleted)
		}
		if states := e.states(); states != "3:filling/4 " { // a sealing would find what lies behind the cursor
			t.Errorf("generations: %s", states)
		}
		e.wantLeft()
	})
}

// So it is if it falls due long after its sweep began, and then what lies below it goes first.
func TestDueParentWhileItWaitsToBeCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.target.Pace = throttle.Limits{Start: 0.4, Max: 0.4}
		e.target.Descendants = sweep.Descendants{Mode: sweep.DeleteDescendants, Max: 10}
		e.sweep()
		names := map[string]string{} // by key
		for i := range 400 {
			name := e.name()
			names[keyOf(name)] = name
			e.stamped(1, 4, name, time.Now().Add(134*time.Minute+time.Duration(i)*4*time.Second))
			e.s.PutBelow("Session", "", keyOf(name), modelstore.Kin{Path: "posts/p"})
		}
		sum := e.runFor(170 * time.Minute)
		if sum.Carried < 50 || sum.Deleted < 100 || sum.Descendants == 0 {
			t.Errorf("%d were carried, %d deleted, %d descendants", sum.Carried, sum.Deleted, sum.Descendants)
		}
		left := e.s.Entities("Session", "")
		for key, name := range names {
			if _, there := left[key]; !there && len(e.s.Below("Session", "", key)) > 0 {
				t.Errorf("%s went before what lies below it", name)
			}
		}
	})
}

// Sealed ranges cost nothing until something in them is due.
func TestSealedRangesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly
		p.Keep = 30
		e := newEpoch(t, p)
		e.sweep()
		e.stamped(1, 4, "late", time.Now().Add(10*time.Hour))
		e.runFor(3 * time.Hour)
		st, err := inspect.Status(t.Context(), e.config(), e.target)
		if err != nil {
			t.Fatal(err)
		}
		rests := 0
		for _, r := range st.Ranges {
			if r.NextDue != nil && r.NextDue.Equal(e.live["late"].expires) {
				rests++
			}
		}
		if rests != 1 || st.Generations[0].State != "sealed" || st.Generations[0].Sealed == nil || st.OldestDue != nil {
			t.Errorf("status: %+v", st)
		}
		e.forget()
		res := e.sweep()
		n := len(e.record().Generations)
		if n < 3 || res.Ranges > 3*4 || e.calls["Scan"] > res.Ranges {
			t.Errorf("with %d generations: %d ranges, %v", n, res.Ranges, e.calls)
		}
		x, err := inspect.Explain(t.Context(), e.config(), e.target, "", store.Entity{Name: "late"})
		if err != nil || x.Verdict != "early" || x.State != "sealed" {
			t.Errorf("%+v, %v", x, err)
		}
	})
}

// An entity that turns up between the last read and the retirement is found.
func TestStragglerAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		e.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.TargetRecord {
				if list := c.Record.Fields["generations"].([]store.Fields); list[0]["number"].(int64) == 2 && e.live["last"] == nil {
					e.stamped(1, 4, "last", time.Now().Add(-time.Minute))
				}
			}
			return nil
		}
		sum := e.runFor(30 * time.Hour)
		if !slices.Contains(sum.Retired, 1) || sum.Strays != 1 {
			t.Errorf("%+v", sum)
		}
		e.wantLeft()
	})
}

// A shard past the last one that could not be visited when its generation was sealed
// is not forgotten: the generation retires anyway.
func TestShardPastTheLastIsNotForgotten(t *testing.T) {
	for _, at := range []string{"seal", "last read"} {
		synctest.Test(t, func(t *testing.T) {
			e := newEpoch(t, hourly)
			e.sweep()
			e.target.Rewind = 1000 * time.Hour // nothing else may find it
			failures := 0
			beyond := func() {
				k, err := expirykey.New(1, 7, time.Now().Add(-time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				e.commit("test", "beyond", k)
			}
			e.s.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Save" && c.Record.Key == "sessions.00000001.0007" && failures < 2 {
					failures++
					return fmt.Errorf("it dies: %w", store.ErrFailed)
				}
				return nil
			}
			if at == "seal" {
				beyond()
			} else {
				e.runFor(67 * time.Minute) // to the seal of an empty generation
				for range 12 {
					time.Sleep(every)
				}
				beyond()
			}
			retired := false
			for range 60 {
				retired = retired || slices.Contains(e.sweep().Retired, 1)
				time.Sleep(every)
			}
			if !retired || failures < 2 || len(e.left()) > 0 {
				t.Errorf("%s: %d failures, %d left: %s", at, failures, len(e.left()), e.states())
			}
		})
	}
}
