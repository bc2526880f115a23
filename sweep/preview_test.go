package sweep_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A population is an embedded store with all that a target may hold, and a clock that
// its test puts forward.
type population struct {
	*testing.T
	rng    *rand.Rand
	db     *embedded.DB
	target sweep.Target
	ahead  atomic.Int64 // of the clock
	names  int
	kinds  map[string]int // how many of each were put, for people
}

func newPopulation(t *testing.T, seed uint64) *population {
	p := &population{T: t, rng: rand.New(rand.NewPCG(seed, 17)), kinds: map[string]int{}}
	db, err := embedded.Open(t.TempDir(), embedded.Options{Create: true, Now: p.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	p.db = db
	p.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 3, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 20, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true},
	}
	return p
}

func (p *population) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

func (p *population) forward(d time.Duration) { p.ahead.Add(int64(d)) }

func (p *population) config(once sweep.Once) sweep.Config {
	return sweep.Config{Store: p.db, Targets: []sweep.Target{p.target}, Apply: true, Once: once, Workers: 4, Grace: time.Minute,
		Owner: fmt.Sprint("process-", p.rng.Int()), Now: p.now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func (p *population) sweep(once sweep.Once) sweep.TargetResult {
	p.Helper()
	return p.run(p.config(once))
}

// dry makes a dry run, which must leave everything as it is.
func (p *population) dry(once sweep.Once) sweep.TargetResult {
	p.Helper()
	c, before := p.config(once), p.all()
	c.Apply = false
	res := p.run(c)
	if after := p.all(); !slices.Equal(before, after) {
		p.Errorf("a dry run changed the store from %d to %d entities", len(before), len(after))
	}
	return res
}

func (p *population) run(c sweep.Config) sweep.TargetResult {
	p.Helper()
	res := sweep.Run(p.Context(), c).Targets[0]
	if res.Error != "" || !res.Complete {
		p.Fatalf("%+v", res)
	}
	return res
}

// all lists what is there, with expiries.
func (p *population) all() (list []string) {
	for e, err := range p.db.Dump(p.Context(), p.target.Target, "") {
		if err != nil {
			p.Fatal(err)
		}
		list = append(list, e.Name+" "+e.Expiry.String())
	}
	return list
}

// put writes an entity with any value.
func (p *population) put(kind string, v, shard store.Value) {
	p.names++
	p.kinds[kind]++
	e := store.Entity{Name: fmt.Sprintf("%s-%05d", kind, p.names), Expiry: v, Shard: shard}
	if err := p.db.Put(p.Context(), p.target.Target, "", []store.Entity{e}); err != nil {
		p.Fatalf("%s: %v", kind, err)
	}
}

// key returns the value that expires at an instant in some range, and its shard value.
func (p *population) key(number int, expires time.Time) (v, shard store.Value) {
	if p.target.Type == store.Instant {
		if n := len(p.target.ShardValues); n > 0 {
			shard = p.target.ShardValues[p.rng.IntN(n)]
		}
		return store.InstantValue(expires), shard
	}
	k, err := expirykey.New(number, p.rng.IntN(3), expires)
	if err != nil {
		p.Fatal(err)
	}
	return store.TextValue(k.String()), shard
}

// some writes up to so many entities of a kind that expire at instants.
func (p *population) some(kind string, most, number int, at func() time.Time) {
	for range p.rng.IntN(most) {
		v, shard := p.key(number, at())
		p.put(kind, v, shard)
	}
}

// writeLife lists the numbers of the live generations, and that of the nursery first.
func (p *population) live() []int {
	rec, _, err := generation.Load(p.Context(), p.db, "sessions")
	if err != nil {
		p.Fatal(err)
	}
	list := []int{expirykey.Nursery}
	for _, g := range rec.Generations {
		list = append(list, g.Number)
	}
	return list
}

func (p *population) newest() int { return slices.Max(p.live()) }

// broken writes values of every kind that are not an expiry.
func (p *population) broken() {
	_, shard := p.key(0, p.now())
	old, later := p.now().Add(-20*365*24*time.Hour), p.now().Add(100*time.Hour)
	if p.target.Type == store.Instant {
		for _, v := range []store.Value{store.TextValue("tomorrow"), store.IntegerValue(17), {Type: store.Other, Text: "true"},
			{Type: store.List, Text: `["2020-01-01"]`}} {
			p.put("outside", v, shard)
		}
		return
	}
	prefix := func() string { return fmt.Sprintf("%08d.%04d.", p.newest(), p.rng.IntN(3)) }
	keys := func(at ...time.Time) store.Value {
		var texts []string
		for _, one := range at {
			v, _ := p.key(p.newest(), one)
			texts = append(texts, `"`+v.Text+`"`)
		}
		return store.Value{Type: store.List, Text: "[" + strings.Join(texts, ",") + "]"}
	}
	day := p.now().Add(-p.target.Retention - 48*time.Hour).UTC().Format("20060102")
	for kind, v := range map[string]store.Value{
		"short":     store.TextValue(prefix() + "2020"),
		"no-date":   store.TextValue(prefix() + "20201399T000000.000Z"),
		"recent":    store.TextValue(prefix() + day + "T"),
		"longer":    store.TextValue(prefix() + day + "T000000.000Zulu"),
		"ahead":     store.TextValue(prefix() + "99999999T000000.000Z"),
		"list-old":  keys(old),
		"list-due":  keys(p.now().Add(-p.target.Retention - 30*time.Hour)),
		"list-both": keys(old, later),
		"text":      store.TextValue("tomorrow"),
		"unknown":   store.TextValue("00000900.0001." + day + "T000000.000Z"),
		"instant":   store.InstantValue(p.now()),
		"number":    store.IntegerValue(17),
	} {
		p.put(kind, v, shard)
	}
}

// A stoppingDB ends a sweep in good order at a call that deletes: cursors then stand amid
// what is due.
type stoppingDB struct {
	*embedded.DB
	left atomic.Int64
	stop context.CancelFunc
}

func (s *stoppingDB) Dispose(ctx context.Context, b *store.Batch) error {
	err := s.DB.Dispose(ctx, b)
	if s.left.Add(-1) == 0 {
		s.stop()
	}
	return err
}

func (p *population) stoppedSweep() {
	ctx, stop := context.WithCancel(p.Context())
	s := &stoppingDB{DB: p.db, stop: stop}
	s.left.Store(int64(1 + p.rng.IntN(4)))
	c := p.config(sweep.Once{})
	c.Store, c.Workers = s, 1
	if res := sweep.Run(ctx, c).Targets[0]; res.Error != "" {
		p.Fatalf("%+v", res)
	}
}

// grow fills the store as months of use might.
func (p *population) grow(seed uint64) {
	switch seed % 4 {
	case 0:
		p.target.Policy = hourly
	case 1:
		p.target.Policy = hourly
		p.target.Policy.Keep = 30
	case 2:
		layouts["timestamp"](&p.target)
	case 3:
		layouts["sharded-timestamp"](&p.target)
	}
	if seed%3 == 0 {
		p.target.Retention = time.Hour
	}
	if _, _, err := sweep.EnsureRecord(p.Context(), p.config(sweep.Once{}), p.target); err != nil {
		p.Fatal(err)
	}
	horizon := func() time.Time { return p.now().Add(-p.target.Retention) }
	for range 30 { // so that each range has a cursor
		p.some("first", 3, p.newest(), horizon)
		p.some("first", 3, 0, horizon)
	}
	p.sweep(sweep.Once{})
	if seed%4 < 2 { // sealed generations, with survivors
		for range 3 {
			p.some("survivor", 20, p.newest(), func() time.Time { return p.now().Add(time.Duration(50+p.rng.IntN(100)) * time.Hour) })
			for range 9 {
				p.forward(10 * time.Minute)
				p.some("passing", 20, p.newest(), horizon)
				p.sweep(sweep.Once{})
			}
		}
		for _, number := range p.live() {
			p.some("late", 20, number, func() time.Time { return horizon().Add(-time.Duration(1+p.rng.IntN(100)) * time.Minute) })
		}
	}
	away := 20 * time.Minute
	if seed%5 == 4 { // nobody has swept for a day: reads from the start are due
		away = 25 * time.Hour
	}
	p.forward(away)
	for _, number := range []int{0, p.newest()} {
		p.some("head", 120, number, func() time.Time { return horizon().Add(-time.Minute - time.Duration(p.rng.IntN(15))*time.Minute) })
		p.some("behind", 90, number, func() time.Time { return horizon().Add(-26*time.Hour - time.Duration(p.rng.IntN(1000))*time.Minute) })
		same := horizon().Add(-5 * time.Minute)
		p.some("same", 90, number, func() time.Time { return same })
		p.some("suspect", 30, number, func() time.Time { return p.now().Add(-20 * 365 * 24 * time.Hour) })
		p.some("year-1", 5, number, func() time.Time { return time.Time{} })
		p.some("live", 60, number, func() time.Time { return horizon().Add(time.Duration(1+p.rng.IntN(10000)) * time.Minute) })
	}
	p.broken()
	if seed%2 == 1 {
		p.stoppedSweep()
	}
}

// A dry run with Exact says, number by number, what the next sweep from the start does,
// and which part of it the next sweep does.
func TestDryRunComesTrue(t *testing.T) {
	nightly.Races(t)
	for seed := range nightly.Size(t, uint64(20), 7) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := newPopulation(t, seed)
			p.grow(seed)
			order := control.Order{Actor: "ann", Reason: "a look"}
			if seed%7 == 3 {
				if _, _, err := control.Pause(t.Context(), p.config(sweep.Once{}), p.target, order, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			sampled, exact := p.dry(sweep.Once{}), p.dry(sweep.Once{Exact: true})
			whole := p.dry(sweep.Once{Exact: true, FromStart: true})
			if seed%7 == 3 {
				if exact.Held != "paused" || sampled.Held != "paused" {
					t.Errorf("it is paused: %q, %q", sampled.Held, exact.Held)
				}
				if _, _, err := control.Resume(t.Context(), p.config(sweep.Once{}), p.target, order); err != nil {
					t.Fatal(err)
				}
			}
			if exact.Estimated || exact.BehindCursors == nil || sampled.BehindCursors == nil || whole.BehindCursors == nil {
				t.Fatalf("%+v", exact)
			}
			next := sweep.TargetResult{}
			if seed%2 == 0 || seed%5 == 4 {
				if next = p.sweep(sweep.Once{}); next.Deleted != exact.Expired {
					t.Errorf("%d were to go, and %d went", exact.Expired, next.Deleted)
				}
			}
			full := p.sweep(sweep.Once{FromStart: true})
			for _, n := range []struct {
				what      string
				said, did int64
			}{
				{"deleted", exact.Expired + *exact.BehindCursors, next.Deleted + full.Deleted},
				{"deleted from the start", whole.Expired + *whole.BehindCursors, next.Deleted + full.Deleted},
				{"malformed", exact.Malformed, full.Malformed}, {"suspect", exact.Suspect, full.Suspect},
				{"outside", exact.Outside, full.Outside}, {"carried", exact.Carried, next.Carried + full.Carried},
				{"malformed from the start", whole.Malformed, full.Malformed}, {"suspect from the start", whole.Suspect, full.Suspect},
			} {
				if n.said != n.did {
					t.Errorf("%s: said %d, did %d", n.what, n.said, n.did)
				}
			}
			for _, res := range []sweep.TargetResult{p.dry(sweep.Once{Exact: true}), p.dry(sweep.Once{})} {
				if res.Expired != 0 || *res.BehindCursors != 0 || res.GoneBy != nil {
					t.Errorf("after it: %d, and %d behind the cursors", res.Expired, *res.BehindCursors)
				}
			}
			for name := range p.kinds {
				left := strings.Count("\n"+strings.Join(p.all(), "\n"), "\n"+name+"-")
				switch name {
				case "first", "passing", "late", "head", "behind", "same":
					if left > 0 {
						t.Errorf("%d %s are left", left, name)
					}
				default:
					if left != p.kinds[name] {
						t.Errorf("%d of %d %s are left", left, p.kinds[name], name)
					}
				}
			}
			t.Logf("would delete %d, behind %d (sampled: %d and %d); read %d of %d entries for it",
				exact.Expired, *exact.BehindCursors, sampled.Expired, *sampled.BehindCursors, sampled.Scanned, exact.Scanned)
		})
	}
}

// A store in which each entity has several shard values, and lies in the ranges of all.
type manyShards struct{ *modelstore.Store }

func (s manyShards) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	q.Target.ShardProperty = ""
	return s.Store.Scan(ctx, q, page)
}

// An entity that has two shard values is one entity.
func TestEntityWithTwoShardValuesCountsOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		layouts["sharded-timestamp"](&w.target)
		w.target.ShardValues = w.target.ShardValues[:2]
		for i := range 30 {
			w.put(0, 1, fmt.Sprint("e-", i), time.Now().Add(-time.Minute))
		}
		c := w.config()
		c.Store, c.Exact = manyShards{w.s}, true
		for _, c.Apply = range []bool{false, true} {
			if res := sweep.Run(t.Context(), c).Targets[0]; res.Expired != 30 || res.Error != "" {
				t.Errorf("apply %v: %+v", c.Apply, res)
			}
		}
		w.wantLeft()
	})
}

// dryRun makes a dry run of a world, which writes nothing.
func (w *world) dryRun(change func(*sweep.Config)) sweep.TargetResult {
	w.t.Helper()
	c, writes := w.config(), w.s.Writes()
	c.Apply = false
	change(&c)
	res := sweep.Run(w.t.Context(), c).Targets[0]
	if w.s.Writes() != writes {
		w.t.Errorf("a dry run wrote %d times", w.s.Writes()-writes)
	}
	return res
}

func asIs(*sweep.Config) {}

func exactly(c *sweep.Config) { c.Exact = true }

// A dry run checks one page of each range, and obeys the pace. An exact one checks every
// entity, and obeys it, too.
func TestDryRunIsPaced(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Page = 500
		for i := range 5000 {
			w.put(0, 4, fmt.Sprint("e-", i), time.Now().Add(-time.Hour))
		}
		w.target.Total = throttle.Limit{PerSecond: 20}
		var checked atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				checked.Add(int64(len(c.Ops)))
			}
			return nil
		}
		res := w.dryRun(asIs)
		if n := checked.Load(); res.Expired != 5000 || !res.Estimated || !res.Complete || n < 4 || n > 80 || res.Duration > 10 {
			t.Errorf("%d checked: %+v", n, res)
		}
		checked.Store(0)
		res = w.dryRun(exactly)
		if n := checked.Load(); res.Expired != 5000 || res.Estimated || !res.Complete || n != 5000 || res.Duration < 240 || res.Duration > 330 {
			t.Errorf("exactly: %d checked: %+v", n, res)
		}
	})
}

// Three thousand entities are restamped to yesterday: a dry run says how many lie behind
// the cursors, and by when they go, and is right.
func TestDryRunSaysWhatLiesBehind(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.touch()
		time.Sleep(10 * time.Minute)
		for i := range 3000 {
			w.put(0, 4, fmt.Sprint("e-", i), time.Now().Add(-24*time.Hour+time.Duration(i)*time.Millisecond))
		}
		for _, once := range []func(*sweep.Config){asIs, exactly} {
			res := w.dryRun(once)
			if res.Expired != 0 || res.BehindCursors == nil || *res.BehindCursors != 3000 || res.GoneBy == nil || time.Until(*res.GoneBy) > 24*time.Hour {
				t.Fatalf("%+v", res)
			}
		}
		by := *w.dryRun(asIs).GoneBy
		for time.Now().Add(5 * time.Minute).Before(by) {
			w.sweep()
			time.Sleep(5 * time.Minute)
		}
		res := w.dryRun(exactly)
		if left := int64(len(w.left())); left == 0 || res.Expired+*res.BehindCursors != left || !res.GoneBy.Equal(by) {
			t.Errorf("just before: %d are left: %+v", left, res)
		}
		time.Sleep(time.Until(by.Add(time.Second)))
		w.sweep()
		w.wantLeft()
	})
}

// A dry run names up to three of what is kept for each reason.
func TestDryRunGivesExamples(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		for i := range 10 {
			w.raw(fmt.Sprint("malformed-", i), fmt.Sprintf("00000000.0000.1%d", i))
			w.dueIn(0, 1, fmt.Sprint("suspect-", i), time.Unix(int64(i), 0))
		}
		for _, once := range []func(*sweep.Config){asIs, exactly} {
			res := w.dryRun(once)
			kept := map[string]int{}
			for _, x := range res.Examples {
				if kept[x.Kept]++; !strings.HasPrefix(x.ID, x.Kept+"-") || x.Value == "" {
					t.Errorf("%+v", x)
				}
			}
			if len(kept) != 2 || kept["malformed"] != sweep.MostExamples || kept["suspect"] != sweep.MostExamples {
				t.Errorf("%+v", res.Examples)
			}
		}
		if res := w.sweep(); len(res.Examples) > 0 || res.BehindCursors != nil {
			t.Errorf("a sweep that applies: %+v", res.Preview)
		}
	})
}

// What cannot be counted is read.
func TestDryRunWithoutCounts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 1000 {
			w.put(0, 4, fmt.Sprint("e-", i), time.Now().Add(-time.Hour))
		}
		s := &uncounted{Store: w.s}
		s.mute.Store(true)
		if res := w.dryRun(func(c *sweep.Config) { c.Store = s }); res.Expired != 1000 || res.Estimated || res.Error != "" {
			t.Errorf("%+v", res)
		}
	})
}

// A daemon without apply says at each tick what is due then.
func TestDryDaemonSaysWhatIsDue(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		c := w.config()
		c.Apply = false
		c.Targets[0].Next = everyMinute
		s := w.serve(c)
		for n := 400; n < 2000; n += 400 {
			for i := range 400 {
				w.put(0, 4, fmt.Sprint("e-", n, "-", i), time.Now().Add(-time.Second))
			}
			time.Sleep(90 * time.Second)
			if st := s.state(); st.Expired != int64(n) || st.Deleted != 0 || st.Err != "" {
				t.Errorf("%d are due: %+v", n, st)
			}
		}
	})
}

// A gate that is closed keeps the next sweep from deleting: a dry run says so.
func TestDryRunAsksTheGate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(0, 4, "due", time.Now().Add(-time.Hour))
		w.target.Gate = func(context.Context) error { return store.ErrDenied }
		if res := w.dryRun(asIs); res.Held != "gate" || res.Expired != 1 || !res.Complete {
			t.Errorf("%+v", res)
		}
	})
}

// A read from the start is under way: the next sweep goes on with it, and leaves what it has
// passed to the one after that.
func TestDryRunDuringAReadFromTheStart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		layouts["timestamp"](&w.target)
		w.touch()
		time.Sleep(25 * time.Hour) // the read is due
		for i := range 200 {
			w.put(0, 1, fmt.Sprint("e-", i), time.Now().Add(-50*time.Hour+time.Duration(i)*time.Minute))
		}
		ctx, stop := context.WithCancel(t.Context())
		calls := 0
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				if calls++; calls == 2 {
					stop()
				}
			}
			return nil
		}
		sweep.Run(ctx, w.config())
		w.s.After = nil
		w.put(0, 1, "passed", time.Now().Add(-51*time.Hour))
		res := w.dryRun(exactly)
		if res.Expired == 0 || res.Expired >= 200 || *res.BehindCursors != 1 || res.GoneBy == nil {
			t.Fatalf("%d behind: %+v", *res.BehindCursors, res)
		}
		if next := w.sweep(); next.Deleted != res.Expired {
			t.Errorf("%d were to go: %+v", res.Expired, next)
		}
		w.wantLeft("passed")
		time.Sleep(time.Until(res.GoneBy.Add(time.Second)))
		w.sweep()
		w.wantLeft()
	})
}

// watchedCounts tell of each COUNT, for which the model store has no hook.
type watchedCounts struct {
	*modelstore.Store
	look func()
}

func (w watchedCounts) Count(
	ctx context.Context, t store.Target, namespace string, s store.Span, upTo int64,
) (int64, error) {
	w.look()
	return w.Store.Count(ctx, t, namespace, s, upTo)
}

// A dry run says what it does at present: reading ranges from their start, counting, and counting for the
// breaker. At its end it does nothing.
func TestDryRunSaysWhatItDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1500)
		w.target.Page = 50
		w.restamp(time.Now())
		time.Sleep(time.Second)
		c, p := w.config(), new(sweep.Progress)
		c.Apply, c.Progress = false, p
		var mu sync.Mutex
		var counting, fromStart, judging int64
		look := func() {
			mu.Lock()
			defer mu.Unlock()
			counting, fromStart = max(counting, p.Counting.Load()), max(fromStart, p.FromStart.Load())
			judging = max(judging, p.Judging.Load())
		}
		w.s.Before = func(context.Context, modelstore.Call) error {
			look()
			return nil
		}
		c.Store = watchedCounts{w.s, look}
		if res := sweep.Run(t.Context(), c).Targets[0]; res.WouldTrip == nil || !res.Estimated {
			t.Errorf("%+v", res)
		}
		if counting < 1 || fromStart < 1 || judging != 1 {
			t.Errorf("at most: counting in %d, from the start in %d, judging %d", counting, fromStart, judging)
		}
		if n := p.Counting.Load() + p.FromStart.Load() + p.Judging.Load(); n != 0 || p.RangesDone.Load() != p.Ranges.Load() {
			t.Errorf("at the end: %d under way, %d of %d ranges", n, p.RangesDone.Load(), p.Ranges.Load())
		}
	})
}
