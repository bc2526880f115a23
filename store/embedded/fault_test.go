package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/reaper-ttl/reaper/store"
)

// A fullDisk fails the operations that its rule picks, once it is armed.
type fullDisk struct {
	*vfs.MemFS
	fs    vfs.FS
	armed atomic.Bool
	hits  atomic.Int64
}

func newDisk(err error, fails func(errorfs.Op) bool) *fullDisk {
	d := &fullDisk{MemFS: vfs.NewCrashableMem()}
	d.fs = errorfs.Wrap(d.MemFS, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if d.armed.Load() && fails(op) {
			d.hits.Add(1)
			return err
		}
		return nil
	}))
	return d
}

// within fails the test, with all stacks, if do hangs.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		panic(what + " hangs")
	}
}

// TestWritesFail fills the disk in the middle of work, seen by one part of the
// engine or by all of it. The work must end with an error that says so, every
// later call must fail at once, and after a crash all must be there that was
// durable before.
func TestWritesFail(t *testing.T) {
	write := func(op errorfs.Op) bool {
		return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose
	}
	rules := map[string]func(errorfs.Op) bool{
		"everything": write,
		"log":        func(op errorfs.Op) bool { return write(op) && strings.HasSuffix(op.Path, ".log") },
		"log, sync only": func(op errorfs.Op) bool {
			return strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo)
		},
		"log, creation only": func(op errorfs.Op) bool {
			return strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite)
		},
		"tables":   func(op errorfs.Op) bool { return write(op) && strings.HasSuffix(op.Path, ".sst") },
		"manifest": func(op errorfs.Op) bool { return write(op) && strings.HasPrefix(path.Base(op.Path), "MANIFEST") },
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			d := newDisk(syscall.ENOSPC, rule)
			db := openIn(t, d.fs)
			var durable int
			var failure error
			within(t, "the work", func() { durable, failure = workUntilFailure(t, db, func(round int) { d.armed.Store(round >= 20) }) })
			if !errors.Is(failure, store.ErrFailed) || !errors.Is(failure, syscall.ENOSPC) {
				t.Errorf("the work ended with %v", failure)
			}
			within(t, "a later call", func() { allFail(t, db, syscall.ENOSPC) })
			within(t, "close", func() {
				if err := db.Close(); !errors.Is(err, store.ErrFailed) {
					t.Errorf("close: %v", err)
				}
			})
			within(t, "close again", func() { closeDB(t, db) })
			if durable < 20 {
				t.Fatalf("only %d rounds before the disk was full", durable)
			}
			again := openIn(t, d.CrashClone(vfs.CrashCloneCfg{}))
			defer closeDB(t, again)
			checkWork(t, again, durable)
		})
	}
}

const perRound = 100

// workUntilFailure puts entities, deletes the first half of them and records
// that, round after round. It returns the rounds whose record was saved.
func workUntilFailure(t *testing.T, db *DB, before func(round int)) (durable int, err error) {
	prev := ""
	filler := []byte(fmt.Sprintf(`{"filler":%q}`, strings.Repeat("x", 1000)))
	for round := range 2000 {
		before(round)
		put := entities(round*perRound, perRound)
		for i := range put {
			put[i].Data = filler
		}
		if err := db.Put(t.Context(), sessions, "", put); err != nil {
			return durable, err
		}
		b := batchOf()
		for _, e := range put[:perRound/2] {
			b.Ops = append(b.Ops, store.Op{Entry: store.Entry{Key: `"` + e.Name + `"`, Value: e.Expiry}})
		}
		if err := db.Dispose(t.Context(), b); err != nil {
			return durable, err
		}
		for i := range b.Ops {
			if b.Ops[i].Outcome != store.Deleted {
				return durable, fmt.Errorf("round %d, op %d: outcome %d", round, i, b.Ops[i].Outcome)
			}
		}
		r := cursor(round+1, prev)
		if err := db.Save(t.Context(), r, prev); err != nil {
			return durable, err
		}
		durable, prev = round+1, r.Revision
	}
	return durable, errors.New("2,000 rounds and no failure")
}

// checkWork checks what a crash left of that work: both invariants of the
// package, with at least the rounds that were durable.
func checkWork(t testing.TB, db *DB, durable int) {
	t.Helper()
	checkRows(t, db)
	rounds := 0
	if recs := load(t, db); len(recs) > 0 {
		n, ok := recs[0].Fields["number"].(int64)
		if !ok {
			t.Fatalf("the record's fields are %v", recs[0].Fields)
		}
		rounds = int(n)
	}
	if rounds < durable {
		t.Errorf("the record of round %d is there, not of %d", rounds, durable)
	}
	there := make(map[string]bool)
	for e, err := range db.Dump(t.Context(), sessions, "") {
		if err != nil {
			t.Fatal(err)
		}
		there[e.Name] = true
	}
	for i, e := range entities(0, rounds*perRound) {
		if want := i%perRound >= perRound/2; there[e.Name] != want {
			t.Fatalf("with the record of round %d, entity %s is there: %v", rounds, e.Name, !want)
		}
	}
}

func allFail(t *testing.T, db *DB, cause error) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	entry := store.Entry{Key: `"e-00001"`, Value: expiry(1)}
	calls := map[string]error{
		"scan":    db.Scan(ctx, everything(), new(store.Page)),
		"dispose": db.Dispose(ctx, batchOf(entry)),
		"put":     db.Put(ctx, sessions, "", entities(0, 1)),
		"save":    db.Save(ctx, cursor(1, ""), ""),
		"drop":    db.Drop(ctx, sessions, "a", "b"),
		"flush":   db.Flush(),
	}
	db.stale.Store(true)
	db.Pressed() // has no error to return, and must come back
	_, calls["settle"] = db.Settle(ctx, everything(), entry, func(store.Value) store.Verdict { return store.Delete })
	_, calls["load"] = db.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
	_, calls["count"] = db.Count(ctx, sessions, "", store.Span{}, 0)
	_, calls["holds"] = db.Holds(ctx, sessions, "")
	for _, err := range db.Dump(ctx, sessions, "") {
		calls["dump"] = err
	}
	for what, err := range calls {
		if !errors.Is(err, store.ErrFailed) || !errors.Is(err, cause) {
			t.Errorf("%s after the failure: %v", what, err)
		}
	}
}

// TestWritesFailForMany: a writer that waits when the disk fills must be released.
func TestWritesFailForMany(t *testing.T) {
	d := newDisk(syscall.ENOSPC, func(op errorfs.Op) bool {
		return op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst")
	})
	db := openIn(t, d.fs)
	d.armed.Store(true)
	within(t, "one of many writers", func() {
		var wait sync.WaitGroup
		for w := range 8 {
			wait.Go(func() {
				for i := 0; ; i++ {
					put := entities((w*10_000+i)*20, 20)
					for k := range put {
						put[k].Data = []byte(fmt.Sprintf(`{"filler":%q}`, strings.Repeat("x", 10_000)))
					}
					if err := db.Put(t.Context(), sessions, "", put); err != nil {
						if !errors.Is(err, store.ErrFailed) || !errors.Is(err, syscall.ENOSPC) {
							t.Errorf("writer %d: %v", w, err)
						}
						return
					}
				}
			})
		}
		wait.Wait()
	})
	within(t, "close", func() {
		if err := db.Close(); !errors.Is(err, store.ErrFailed) {
			t.Errorf("close: %v", err)
		}
	})
}

// TestReadsFail: after a table could not be read, every later call fails, even of what the engine still holds: a
// sweep would take the error for the refusal of one entity, and go on past it. The next opening finds all there.
func TestReadsFail(t *testing.T) {
	for _, c := range []struct {
		name string
		kind errorfs.OpKind
		err  error
	}{
		{"open", errorfs.OpOpen, syscall.EIO},
		{"size", errorfs.OpFileStat, syscall.EIO},
		{"read", errorfs.OpFileReadAt, syscall.EIO},
		{"too short", errorfs.OpFileReadAt, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(c.err, func(op errorfs.Op) bool { return op.Kind == c.kind && strings.HasSuffix(op.Path, ".sst") })
			db := openIn(t, d.fs)
			mustPut(t, db, entities(0, 110)...)
			if err := db.engine.Flush(); err != nil {
				t.Fatal(err)
			}
			closeDB(t, db)
			d.armed.Store(true)
			// The engine's own look at a new table may be the first to fail, even before it is open.
			db, err := Open("db", Options{Now: time.Now, FS: d.fs, HoldCompaction: true})
			if err == nil {
				err = db.Scan(t.Context(), everything(), new(store.Page))
			}
			if d.hits.Load() == 0 {
				t.Fatal("nothing was read from the disk")
			}
			if !errors.Is(err, store.ErrFailed) || !errors.Is(err, c.err) {
				t.Errorf("scan: %v", err)
			}
			d.armed.Store(false)
			if db != nil {
				within(t, "a later call", func() { allFail(t, db, c.err) })
				within(t, "close", func() { _ = db.Close() }) // it may have met the fault itself
			}
			again := openIn(t, d.CrashClone(vfs.CrashCloneCfg{}))
			defer closeDB(t, again)
			if n, err := again.Count(t.Context(), sessions, "", store.Span{}, 0); n != 110 || err != nil {
				t.Errorf("%d entities are left of 110; %v", n, err)
			}
		})
	}
}

// onceOpen is a file system that opens no file a second time, to read it from end to end.
type onceOpen struct{ vfs.FS }

func (f onceOpen) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if slices.Contains(opts, vfs.SequentialReadsOption) {
		return nil, syscall.EMFILE
	}
	return f.FS.Open(name, opts...)
}

// What the engine can do without is no fault.
func TestTablesAreReadAsTheyAreOpen(t *testing.T) {
	db := openIn(t, onceOpen{vfs.NewMem()}, func(o *Options) { o.HoldCompaction = true })
	for round := range 3 {
		mustPut(t, db, entities(round*perRound, perRound)...)
		if err := db.engine.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.engine.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	mustPut(t, db, entities(3*perRound, 1)...)
	closeDB(t, db)
}

// TestCreationFails: whatever fails while a store is created or opened, the
// result is an error, not a crash, a hang or half a store.
func TestCreationFails(t *testing.T) {
	for n := int64(0); ; n++ {
		seen := atomic.Int64{}
		d := newDisk(syscall.ENOSPC, func(op errorfs.Op) bool {
			return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && seen.Add(1) > n
		})
		d.armed.Store(true)
		failed := false
		within(t, fmt.Sprintf("opening with %d writes", n), func() {
			db, err := Open("db", Options{Now: time.Now, Create: true, FS: d.fs})
			if failed = err != nil; failed {
				if !errors.Is(err, store.ErrFailed) {
					t.Errorf("after %d writes: %v", n, err)
				}
				return
			}
			_ = db.Close()
		})
		if !failed {
			if n < 10 {
				t.Errorf("a store was created with %d writes", n)
			}
			return
		}
	}
}

// TestFatal: where the engine would end the process, only one goroutine ends,
// and the store has a fault.
func TestFatal(t *testing.T) {
	newLog := func() engineLog { return engineLog{slog.New(slog.DiscardHandler), &fault{hit: make(chan struct{})}} }
	t.Run("in a call", func(t *testing.T) {
		l := newLog()
		err := l.fault.run(func() error {
			l.Fatalf("MANIFEST flush failed: %v", syscall.ENOSPC)
			return errors.New("it went on")
		})
		if !errors.Is(err, store.ErrFailed) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "MANIFEST flush failed") {
			t.Errorf("%v", err)
		}
		if again := l.fault.run(func() error { return nil }); !errors.Is(again, store.ErrFailed) {
			t.Errorf("the next call: %v", again)
		}
	})
	t.Run("in the background", func(t *testing.T) {
		l := newLog()
		go l.Fatalf("%v", syscall.ENOSPC) // as on a goroutine of the engine, with no call of ours on its stack
		within(t, "the wait for the fault", func() { <-l.fault.hit })
		if err := l.fault.get(); !errors.Is(err, store.ErrFailed) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
	})
	t.Run("stuck", func(t *testing.T) {
		l := newLog()
		go l.fault.set(classify("test", syscall.EIO))
		within(t, "a call that is stuck", func() {
			if err := l.fault.run(func() error { select {} }); !errors.Is(err, syscall.EIO) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a panic of the engine", func(t *testing.T) {
		db := openIn(t, vfs.NewMem())
		closeDB(t, db)
		if err := db.fault.run(db.engine.Close); !errors.Is(err, store.ErrFailed) {
			t.Errorf("%v", err)
		}
	})
}

// A fault elsewhere ends the waiting for a write that the log may have taken: who deletes must not take it for
// one that did not happen.
func TestFaultLeavesWritesInDoubt(t *testing.T) {
	db := openIn(t, newDisk(syscall.ENOSPC, func(errorfs.Op) bool { return false }).fs)
	if err := db.acquire(t.Context()); err != nil { // for the one that gives the lock back
		t.Fatal(err)
	}
	db.fault.set(classify("the engine", syscall.ENOSPC))
	for name, commit := range map[string]func(*pebble.Batch) error{"deletes": db.commitDeletes, "durably": db.commitDurably} {
		b := db.engine.NewBatch()
		if err := b.Delete([]byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		if err := commit(b); !errors.Is(err, store.ErrFailed) || !store.MayHaveHappened(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = db.Close()
}
