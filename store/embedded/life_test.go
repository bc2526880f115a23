package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	cursors "github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A life is four hours of a store that is swept every ten minutes. A generation is
// opened, sealed, drained, carried and retired; a second target has timestamps. In
// between the engine flushes, and the store is closed and opened again. Each test
// decides what may break in it.
type life struct {
	began   time.Time
	targets []sweep.Target
	expires []map[string]time.Time // of each target's entities
	suspect map[string]bool        // must never be deleted
	owners  atomic.Int64           // of sweeps: a heartbeat that a fault has left behind is not that of the next one
}

const lifeSteps = 24

func newLife(t testing.TB, fsys vfs.FS) *life {
	t.Helper()
	common := sweep.Target{
		Shards: 2, MaxAge: 1825 * 24 * time.Hour, Rewind: time.Hour, Overlap: 10 * time.Second,
		Page: 4, Lease: 2 * time.Minute, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
	}
	keys, instants := common, common
	keys.Target = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}
	keys.Layout, keys.Generations = "generation", true
	keys.Policy = generation.Policy{Every: time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 1}
	instants.Target = store.Target{Name: "events", Kind: "Event", Property: "expires", Type: store.Instant}
	instants.Layout, instants.Shards = "timestamp", 0
	l := &life{began: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), targets: []sweep.Target{keys, instants},
		expires: []map[string]time.Time{{}, {}}, suspect: map[string]bool{"suspect": true, "malformed": true}}

	db := openIn(t, fsys, func(o *Options) { o.Now = l.clock(0) })
	if err := l.sweep(db, 0, l.clock(0)); err != nil {
		t.Fatal(err)
	}
	put := func(target int, name string, expiry store.Value, expires time.Time) {
		if err := db.Put(t.Context(), l.targets[target].Target, "", []store.Entity{{Name: name, Expiry: expiry, Data: []byte(lifeData)}}); err != nil {
			t.Fatal(err)
		}
		l.expires[target][name] = expires
	}
	stamp := func(name string, g, shard int, at time.Time) {
		k, err := expirykey.New(g, shard, at)
		if err != nil {
			t.Fatal(err)
		}
		put(0, name, store.TextValue(k.String()), k.Expires)
	}
	for i := range 180 {
		at := l.began.Add(time.Duration(i/9)*18*time.Minute + 9*time.Minute) // nine at one instant, none of them due while a step lasts
		name := fmt.Sprintf("e-%03d", i)
		stamp(name, i%7/6^1, expirykey.ShardOfName(name, 2), at) // every seventh in the nursery
		put(1, name, store.InstantValue(at), at)
	}
	stamp("suspect", 1, 0, l.began.AddDate(-30, 0, 0))
	stamp("beyond", 1, 7, l.began.Add(90*time.Minute)) // past the last shard
	put(0, "malformed", store.TextValue("00000001.0001.soon"), time.Time{})
	closeDB(t, db)
	return l
}

const lifeData = `{"kept":true}`

// clock goes on from the step's time.
func (l *life) clock(step int) func() time.Time {
	began := time.Now()
	return func() time.Time { return l.began.Add(time.Duration(step)*10*time.Minute + time.Since(began)) }
}

func (l *life) run(ctx context.Context, s store.Store, now func() time.Time) sweep.Result {
	return sweep.Run(ctx, sweep.Config{Store: s, Targets: l.targets, Apply: true, Workers: 2,
		Grace: time.Minute, Owner: fmt.Sprint("mortal-", l.owners.Add(1)), Now: now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

// sweep sweeps once.
func (l *life) sweep(db *DB, step int, now func() time.Time) error {
	res := l.run(context.Background(), db, now)
	for _, t := range res.Targets {
		if t.Err != nil {
			return t.Err
		}
	}
	if !res.Complete {
		return fmt.Errorf("step %d: the sweep is not complete: %+v", step, res.Targets)
	}
	return nil
}

// A brief store has its sweep stopped in good order after some pages.
type brief struct {
	*DB
	left atomic.Int64
	stop context.CancelFunc
}

func (b *brief) Dispose(ctx context.Context, batch *store.Batch) error {
	if b.left.Add(-1) == 0 {
		b.stop()
	}
	return b.DB.Dispose(ctx, batch)
}

// sweepSome sweeps, and stops in the middle of ranges: their cursors then stand
// between entities of one instant.
func (l *life) sweepSome(db *DB, now func() time.Time, pages int64) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	b := &brief{DB: db, stop: stop}
	b.left.Store(pages)
	for _, t := range l.run(ctx, b, now).Targets {
		if t.Err != nil {
			return t.Err
		}
	}
	return nil
}

// play goes through the steps from one to the last, and stops at the first error.
// It leaves nothing open but where closing fails.
func (l *life) play(fsys vfs.FS, from int, at *atomic.Int64) (err error) {
	var db *DB
	var clock atomic.Pointer[func() time.Time]
	now := func() time.Time { return (*clock.Load())() }
	defer func() {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	for step := from; step <= lifeSteps; step++ {
		at.Store(int64(step))
		clock.Store(new(l.clock(step)))
		if db == nil {
			if db, err = Open("db", Options{Now: now, FS: fsys}); err != nil {
				return err
			}
		}
		if err := l.sweepSome(db, now, int64(1+step%4)); err != nil {
			return err
		}
		if err := l.sweep(db, step, now); err != nil {
			return err
		}
		if step%3 == 0 {
			if err := db.flushEngine(); err != nil {
				return err
			}
		}
		if step%5 == 0 {
			again := db
			db = nil
			if err := again.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flushEngine has the engine write a table.
func (db *DB) flushEngine() (err error) {
	if err := db.enter(context.Background()); err != nil {
		return err
	}
	defer db.leave()
	return classify("flush", db.fault.run(db.engine.Flush))
}

// check opens what is left of a store after a step, or in the middle of it. No
// entity is half there, none is gone that was not due, and no cursor stands past
// one that was. A sweep then makes good what is missing, to the very entity.
func (l *life) check(t *testing.T, fsys vfs.FS, step int) {
	t.Helper()
	clock := l.clock(step)
	db, err := Open("db", Options{Now: clock, FS: fsys})
	if err != nil {
		t.Fatalf("step %d: it does not open: %v", step, err)
	}
	defer closeDB(t, db)
	checkRows(t, db)
	now := clock()
	left := l.left(t, db)
	for i, target := range l.targets {
		for name, at := range l.expires[i] {
			if _, ok := left[i][name]; !ok && (at.After(now) || l.suspect[name]) {
				t.Errorf("step %d: %s of %s is gone, which is due at %v", step, name, target.Name, at)
			}
		}
		l.checkCursors(t, db, target, left[i], now)
	}
	if err := l.sweep(db, step, clock); err != nil {
		t.Fatalf("step %d: the sweep after it: %v", step, err)
	}
	l.checkDone(t, db, step, clock())
}

// checkDone wants just the entities that are not due.
func (l *life) checkDone(t *testing.T, db *DB, step int, now time.Time) {
	t.Helper()
	checkRows(t, db)
	for i, left := range l.left(t, db) {
		for name, at := range l.expires[i] {
			if _, ok := left[name]; ok != (at.After(now) || l.suspect[name]) {
				t.Errorf("step %d: %s is there: %v; it is due at %v", step, name, ok, at)
			}
		}
	}
}

// left returns the entities that are there, and checks that each is what was put.
func (l *life) left(t *testing.T, db *DB) []map[string]store.Value {
	t.Helper()
	all := make([]map[string]store.Value, len(l.targets))
	for i, target := range l.targets {
		all[i] = map[string]store.Value{}
		for e, err := range db.Dump(context.WithoutCancel(t.Context()), target.Target, "") {
			if err != nil {
				t.Fatal(err)
			}
			all[i][e.Name] = e.Expiry
			expires, known := l.expires[i][e.Name]
			at := e.Expiry.Time
			if target.Type == store.Text {
				k, _ := expirykey.Parse(e.Expiry.Text)
				at = k.Expires
			}
			if !known || !at.Equal(expires) || string(e.Data) != lifeData {
				t.Errorf("%s of %s is %v %s, put to expire at %v", e.Name, target.Name, e.Expiry, e.Data, expires)
			}
		}
	}
	return all
}

// checkCursors: no due entity stands before a position that was saved.
func (l *life) checkCursors(t *testing.T, db *DB, target sweep.Target, left map[string]store.Value, now time.Time) {
	t.Helper()
	table, err := cursors.Reader{Store: db, Target: target.Name, Now: time.Now}.All(context.WithoutCancel(t.Context()), cursors.Table{})
	if err != nil {
		t.Fatal(err)
	}
	for name, expiry := range left {
		id, expires := cursors.ID{Target: target.Name, Shard: "0000"}, expiry.Time
		if target.Type == store.Text {
			k, err := expirykey.Parse(expiry.Text)
			if err != nil {
				continue
			}
			id.Generation, id.Shard, expires = k.Generation, fmt.Sprintf("%04d", k.Shard), k.Expires
		}
		c, ok := table.At(id)
		if !ok || expires.After(now) || l.suspect[name] {
			continue
		}
		for _, p := range []store.Position{c.Position, c.Rewind.Position} {
			if at := expiry.Compare(p.Value); at < 0 || at == 0 && p.Key != "" && strconv.Quote(name) <= p.Key {
				t.Errorf("a cursor of %v stands at %v, past %s %v", c.ID, p, name, expiry)
			}
		}
	}
}

// finish plays the rest of the life, after which the first generation has retired.
func (l *life) finish(t *testing.T, fsys vfs.FS, from int) {
	t.Helper()
	if err := l.play(fsys, from, new(atomic.Int64)); err != nil {
		t.Fatalf("from step %d on: %v", from, err)
	}
	db := openIn(t, fsys)
	defer closeDB(t, db)
	l.checkDone(t, db, lifeSteps, l.clock(lifeSteps)())
	r, _, err := generation.Load(t.Context(), db, "sessions")
	if err != nil || len(r.Generations) > 3 || r.Generations[0].Number == 1 {
		t.Errorf("live generations at the end: %+v; %v", r.Generations, err)
	}
}

func changes(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

// torn is what a crash leaves that keeps all that was written, but for the end of
// the log: any number of bytes of what was not synced there. A log cut between two
// records is what shows a change that was made in two.
func torn(fsys *vfs.MemFS, rng *rand.Rand) *vfs.MemFS {
	synced, all := fsys.CrashClone(vfs.CrashCloneCfg{}), fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
	names, err := all.List("db")
	if err != nil {
		panic(err)
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		if strings.HasSuffix(name, ".log") {
			name = all.PathJoin("db", name)
			least := 0
			if text, err := contents(synced, name); err == nil {
				least = len(text)
			}
			text, err := contents(all, name)
			if err != nil {
				panic(err)
			}
			if least < len(text) {
				text = text[:least+rng.IntN(len(text)-least)]
			}
			f, err := all.Create(name, vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = f.Write(text)
				err = errors.Join(err, f.Sync(), f.Close())
			}
			if err != nil {
				panic(err)
			}
			break
		}
	}
	return all.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
}

func contents(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	return text, errors.Join(err, f.Close())
}

// TestLifeCrashes crashes the life of a store before each write and sync of each
// file, keeping any part of what was not synced, and goes on with what is left.
func TestLifeCrashes(t *testing.T) {
	fsys := vfs.NewCrashableMem()
	l := newLife(t, fsys)
	type crash struct {
		step int
		fs   *vfs.MemFS
		done chan struct{}
	}
	crashes := make(chan crash)
	rng := rand.New(rand.NewPCG(4, 2))
	every := int64(1)
	if testing.Short() {
		every = 23
	}
	var step, n, clones atomic.Int64
	var cloning sync.Mutex // the engine writes from several goroutines
	hooked := errorfs.Wrap(fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !changes(op) || n.Add(1)%every != 0 {
			return nil
		}
		c := crash{step: int(step.Load()), done: make(chan struct{})}
		cloning.Lock()
		if percent := []int{0, 30, 70, 100, -1, -1}[clones.Add(1)%6]; percent >= 0 {
			c.fs = fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		} else {
			c.fs = torn(fsys, rng)
		}
		cloning.Unlock()
		crashes <- c
		<-c.done // one at a time: each is a whole store in memory
		return nil
	}))
	ended := make(chan error, 1)
	go func() { ended <- l.play(hooked, 1, &step) }()
	for seen := 0; ; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			l.finish(t, fsys, lifeSteps)
			t.Logf("%d crashes at %d writes", seen, n.Load())
			if seen < 20 {
				t.Errorf("only %d crashes", seen)
			}
			return
		case c := <-crashes:
			l.check(t, c.fs, c.step)
			if seen%20 == 0 {
				l.finish(t, c.fs, c.step)
			}
			seen++
			close(c.done)
			if t.Failed() {
				t.Fatalf("after %d crashes, at write %d", seen, n.Load())
			}
		}
	}
}

// TestLifeWithFaults has the disk fail at the k-th operation, once or from then on,
// for many k. The store says so and does no more; what it leaves opens once the
// disk is sound again, with nothing lost, and goes on.
func TestLifeWithFaults(t *testing.T) {
	base := vfs.NewCrashableMem()
	l := newLife(t, base)
	reads := func(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsRead }
	for _, c := range []struct {
		name string
		hits func(errorfs.Op) bool
		err  error
		once bool
	}{
		{"full", changes, syscall.ENOSPC, false},
		{"a write fails", changes, syscall.EIO, true},
		{"no read works", reads, syscall.EIO, false},
		{"a read fails", reads, syscall.EIO, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			total := l.count(t, base, c.hits)
			runs := int64(20)
			if testing.Short() {
				runs = 5
			}
			rng := rand.New(rand.NewPCG(uint64(len(c.name)), 3))
			failed := 0
			for i := range runs {
				k := 1 + i // first those of an opening, then some spread over the whole life
				if i >= 10 {
					k = 1 + (i-10)*total/(runs-10) + rng.Int64N(max(1, total/runs))
				}
				if l.fails(t, base, k, c.hits, c.err, c.once) {
					failed++
				}
				if t.Failed() {
					t.Fatalf("operation %d of %d", k, total)
				}
			}
			t.Logf("%d lives, %d of them cut short, of %d operations", runs, failed, total)
			if failed == 0 {
				t.Error("nothing failed")
			}
		})
	}
}

// count plays the life once and counts operations.
func (l *life) count(t *testing.T, base *vfs.MemFS, hits func(errorfs.Op) bool) (n int64) {
	t.Helper()
	var seen atomic.Int64
	fsys := errorfs.Wrap(base.CrashClone(vfs.CrashCloneCfg{}), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hits(op) {
			seen.Add(1)
		}
		return nil
	}))
	if err := l.play(fsys, 1, new(atomic.Int64)); err != nil {
		t.Fatal(err)
	}
	return seen.Load()
}

// fails plays the life on a disk that fails at the k-th operation, and checks what
// it leaves. It reports whether anybody noticed.
func (l *life) fails(t *testing.T, base *vfs.MemFS, k int64, hits func(errorfs.Op) bool, cause error, once bool) (noticed bool) {
	t.Helper()
	fsys := base.CrashClone(vfs.CrashCloneCfg{})
	var n, step atomic.Int64
	faulty := errorfs.Wrap(fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !hits(op) {
			return nil
		}
		if i := n.Add(1); i == k || i > k && !once {
			return cause
		}
		return nil
	}))
	within(t, fmt.Sprintf("life with a fault at operation %d", k), func() {
		err := l.play(faulty, 1, &step)
		noticed = err != nil
		if err != nil && !errors.Is(err, store.ErrFailed) && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("it ended with %v", err)
		}
		if err != nil && !errors.Is(err, cause) {
			t.Errorf("it ended with %v, which does not say %v", err, cause)
		}
	})
	rest := fsys.CrashClone(vfs.CrashCloneCfg{})
	l.check(t, rest, int(step.Load()))
	l.finish(t, rest, int(step.Load()))
	return noticed
}
