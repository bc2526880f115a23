package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reaper-ttl/reaper/store"
)

// Options say how a directory is opened.
type Options struct {
	// Now is the store's clock; it is required. There is no other clock to compare it
	// with, so callers watch for jumps.
	Now func() time.Time

	// Create makes a store if the directory is empty or does not exist.
	// Without it, such a directory is an error.
	Create bool

	// HoldCompaction switches background compaction off, and lets writers continue
	// however many tables pile up. It is for showing what tombstones cost; such
	// a store only gets slower.
	HoldCompaction bool

	// CompactionPaused keeps compactions from writing while it returns true. It is
	// for showing what happens then. Nil never pauses.
	CompactionPaused func() bool

	// InMemory makes a new store in memory, for tests. Close discards it. The
	// directory is then only a name.
	InMemory bool

	// FS is the file system; nil means the operating system's, or memory.
	FS vfs.FS

	// Logger gets the engine's messages; nil discards them.
	Logger *slog.Logger
}

// The marker file makes a directory ours. It is written last when a store is
// created, and is never changed.
const (
	markerName   = "REAPER-STORE"
	markerText   = "reaper embedded store, format "
	markerFormat = 1
)

const (
	cacheBytes   = 8 << 20
	memtables    = 4  // full ones that wait for a flush before writers do
	compactAt    = 8  // L0 sublevels at which a compaction begins: at the engine's 4 a sweep is slower by a third
	pressedAt    = 12 // at which sweeps back off, to leave room for other writers
	crowded      = 16 // at which our writers wait for a compaction, or until their contexts are done
	stallAt      = 24 // at which the engine stalls every writer, for seconds
	stallRecheck = time.Second
)

// A DB is an open store. It implements [store.Store], [store.Counter],
// [store.Exclusive], [store.Writer], [store.Dumper], [store.Dropper], [store.Adopter] and
// [store.Archiver].
type DB struct {
	engine  *pebble.DB
	lock    *pebble.Lock
	now     func() time.Time
	opening string
	fault   *fault
	hold    bool

	life   sync.RWMutex // held for reading by each call, for writing by Close
	closed bool         // guarded by life

	write   chan struct{} // a mutex for writers, that can also be waited for with a context
	dropped dropped       // guarded by write
	sets    *sets

	stale     atomic.Bool                   // L0 has changed since its sublevels were read
	sublevels atomic.Int64                  // of L0, when last read
	stalls    atomic.Int64                  // how often the engine has made writers wait
	change    atomic.Pointer[chan struct{}] // closed at the next change of L0
}

var (
	_ store.Store     = (*DB)(nil)
	_ store.Counter   = (*DB)(nil)
	_ store.Exclusive = (*DB)(nil)
	_ store.Pressured = (*DB)(nil)
	_ store.Writer    = (*DB)(nil)
	_ store.Dumper    = (*DB)(nil)
	_ store.Dropper   = (*DB)(nil)
)

// Open opens the store in dir. Unless Create is set, it changes nothing if dir is
// not an intact store of this format. The error is then [store.ErrCorrupt], and
// also [fs.ErrNotExist] if dir is missing or empty. It is [store.ErrLocked] if
// another process has the store open.
func Open(dir string, o Options) (*DB, error) {
	if o.Now == nil {
		return nil, fmt.Errorf("%w: an embedded store needs a clock", store.ErrInvalid)
	}
	if o.InMemory {
		o.Create = true
		if o.FS == nil {
			o.FS = vfs.NewMem()
		}
	}
	if o.FS == nil {
		o.FS = vfs.Default
		// The engine knows a lock that this process holds by its path only.
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("%w: open %s: %w", store.ErrFailed, dir, err)
		}
		if dir = abs; dirExists(o.FS, dir) {
			if dir, err = filepath.EvalSymlinks(abs); err != nil {
				return nil, fmt.Errorf("%w: open %s: %w", store.ErrFailed, abs, err)
			}
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	db, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("open embedded store %s: %w", dir, err)
	}
	return db, nil
}

func dirExists(fsys vfs.FS, dir string) bool {
	_, err := fsys.Stat(dir)
	return err == nil
}

func open(dir string, o Options) (db *DB, err error) {
	found, err := inspect(o.FS, dir, o.Create)
	if err != nil {
		return nil, err
	}
	if !found {
		if err := o.FS.MkdirAll(dir, 0o755); err != nil {
			return nil, refused(err)
		}
	}
	lock, err := takeLock(dir, o.FS)
	if err != nil {
		return nil, err
	}
	f := &fault{hit: make(chan struct{})}
	defer func() {
		// After a fault the engine may still be at work here.
		if err != nil && f.get() == nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	defer f.rescue(&err)
	// Somebody may have created or changed it before the lock was ours.
	if found, err = inspect(o.FS, dir, o.Create); err != nil {
		return nil, err
	}
	if found {
		if err := probe(dir, o, lock); err != nil {
			return nil, err
		}
	}
	db = &DB{lock: lock, now: o.Now, opening: rand.Text(), fault: f, hold: o.HoldCompaction, write: make(chan struct{}, 1),
		sets: new(sets)}
	db.change.Store(new(make(chan struct{})))
	db.stale.Store(true)
	cfg := settings(o, lock, f)
	cfg.EventListener = engineEvents(f, db.roomier)
	cfg.EventListener.WriteStallBegin = func(info pebble.WriteStallBeginInfo) {
		if strings.HasPrefix(info.Reason, "L0 ") { // the other reason is a disk slower than its writers
			db.stalls.Add(1)
		}
	}
	cfg.ErrorIfExists, cfg.ErrorIfNotExists = !found, found
	if db.engine, err = openEngine(dir, cfg, f); err != nil {
		return nil, classify("the engine", err)
	}
	if !found {
		err = mark(o.FS, dir)
	}
	if err == nil {
		err = db.loadDropped()
	}
	if err != nil {
		return nil, errors.Join(err, classify("close", f.run(db.engine.Close)))
	}
	return db, nil
}

// openEngine opens the engine and does not wait for it beyond a fault: before it
// is open, a flush or compaction of its own may already have failed.
func openEngine(dir string, cfg *pebble.Options, f *fault) (*pebble.DB, error) {
	opened := make(chan *pebble.DB, 1)
	f.opening.Store(true)
	err := f.run(func() error {
		engine, err := pebble.Open(dir, cfg)
		f.opening.Store(false)
		opened <- engine
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-opened, nil
}

func settings(o Options, lock *pebble.Lock, f *fault) *pebble.Options {
	cfg := &pebble.Options{
		FS:                          disk{o.FS, f, o.CompactionPaused},
		Lock:                        lock,
		Logger:                      engineLog{o.Logger, f},
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   cacheBytes,
		MemTableStopWritesThreshold: memtables,
		L0CompactionThreshold:       compactAt,
		L0StopWritesThreshold:       stallAt,
	}
	if o.HoldCompaction {
		cfg.DisableAutomaticCompactions = true
		cfg.L0StopWritesThreshold = math.MaxInt32
	}
	return cfg
}

// inspect reports whether dir holds a store of ours. If not, it returns an error
// unless a store may be created there. It changes nothing.
func inspect(fsys vfs.FS, dir string, create bool) (found bool, err error) {
	text, err := readMarker(fsys, dir)
	switch {
	case err == nil:
		return true, checkMarker(text)
	case !errors.Is(err, fs.ErrNotExist):
		if info, statErr := fsys.Stat(dir); statErr == nil && !info.IsDir() {
			return false, fmt.Errorf("%w: it is not a directory", store.ErrCorrupt)
		}
		return false, refused(err)
	}
	names, err := fsys.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if create {
			return false, nil
		}
		return false, fmt.Errorf("%w: there is no such directory: %w", store.ErrCorrupt, fs.ErrNotExist)
	case err != nil:
		return false, refused(err)
	}
	// An empty LOCK is what taking the lock leaves behind.
	names = slices.DeleteFunc(names, func(name string) bool { return name == "LOCK" })
	switch {
	case len(names) > 0:
		slices.Sort(names)
		return false, fmt.Errorf("%w: the directory holds %q and other files, but no %s: "+
			"it was not made by this program, or its creation was interrupted",
			store.ErrCorrupt, names[0], markerName)
	case !create:
		return false, fmt.Errorf("%w: the directory is empty: %w", store.ErrCorrupt, fs.ErrNotExist)
	}
	return false, nil
}

func readMarker(fsys vfs.FS, dir string) (string, error) {
	f, err := fsys.Open(fsys.PathJoin(dir, markerName))
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, 200))
	return string(b), errors.Join(err, f.Close())
}

func checkMarker(text string) error {
	number, ok := strings.CutPrefix(strings.TrimSuffix(text, "\n"), markerText)
	format, err := strconv.Atoi(number)
	switch {
	case !ok || err != nil || format < 1:
		return fmt.Errorf("%w: %s says %.80q, which is no format", store.ErrCorrupt, markerName, text)
	case format > markerFormat:
		return fmt.Errorf("%w: its format is %d and this program knows up to %d: it needs a newer program",
			store.ErrCorrupt, format, markerFormat)
	}
	return nil
}

// mark makes the directory ours, durably.
func mark(fsys vfs.FS, dir string) (err error) {
	name := fsys.PathJoin(dir, markerName)
	f, err := fsys.Create(name+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return refused(err)
	}
	_, err = io.WriteString(f, markerText+strconv.Itoa(markerFormat)+"\n")
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return refused(err)
	}
	if err := fsys.Rename(name+".new", name); err != nil {
		return refused(err)
	}
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return refused(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return refused(err)
	}
	return nil
}

// refused wraps an error of the file system.
func refused(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", store.ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", store.ErrFailed, err)
}

func takeLock(dir string, fsys vfs.FS) (*pebble.Lock, error) {
	lock, err := pebble.LockDirectory(dir, fsys)
	if err == nil {
		return lock, nil
	}
	var path *fs.PathError // the lock file could not be opened, as opposed to locked
	held := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "lock held")
	if held && !errors.As(err, &path) {
		return nil, fmt.Errorf("%w: %w", store.ErrLocked, err)
	}
	return nil, refused(err)
}

// probe opens the store for reading only, and closes it: that finds what would
// make the real opening fail, before that has written anything.
func probe(dir string, o Options, lock *pebble.Lock) (err error) {
	f := &fault{hit: make(chan struct{})}
	defer func() {
		if err != nil && !errors.Is(err, store.ErrDenied) && !errors.Is(err, store.ErrCorrupt) {
			// What can be read but not understood is damaged, whatever the engine
			// calls it; this includes formats of a newer engine.
			err = fmt.Errorf("%w: damaged, or written by a newer program: %w", store.ErrCorrupt, err)
		}
	}()
	defer f.rescue(&err)
	cfg := settings(o, lock, f)
	cfg.EventListener = engineEvents(f, func() {})
	cfg.FS = o.FS // what fails while nothing is written is the engine's to report
	cfg.ReadOnly = true
	cfg.DisableAutomaticCompactions = true
	engine, err := openEngine(dir, cfg, f)
	if err != nil {
		return classify("read it", err)
	}
	return classify("read it", f.run(engine.Close))
}

// Opening implements [store.Exclusive].
func (db *DB) Opening() string { return db.opening }

// Flush makes everything that was written before it durable.
func (db *DB) Flush() (err error) {
	if err := db.enter(context.Background()); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	defer db.leave()
	if err := db.sync(context.Background()); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// Close makes everything durable and closes the store, once the calls in
// progress are done. A second Close does nothing.
func (db *DB) Close() error {
	db.life.Lock()
	defer db.life.Unlock()
	if db.closed {
		return nil
	}
	db.closed = true
	if err := db.fault.run(db.engine.Close); err != nil {
		// The directory stays locked: the engine may still be at work there.
		return fmt.Errorf("close embedded store: %w", classify("close", err))
	}
	if err := db.lock.Close(); err != nil {
		return fmt.Errorf("close embedded store: %w", classify("unlock", err))
	}
	return nil
}

// enter begins a call; leave ends it.
func (db *DB) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	db.life.RLock()
	if db.closed {
		db.life.RUnlock()
		return fmt.Errorf("%w: the store is closed", store.ErrFailed)
	}
	if err := db.fault.get(); err != nil {
		db.life.RUnlock()
		return err
	}
	return nil
}

func (db *DB) leave() { db.life.RUnlock() }

// acquire takes the write lock; release gives it back.
func (db *DB) acquire(ctx context.Context) error {
	if err := db.room(ctx); err != nil {
		return err
	}
	select {
	case db.write <- struct{}{}:
	default:
		select {
		case db.write <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-db.fault.hit:
			return db.fault.get()
		}
	}
	if err := db.fault.get(); err != nil {
		db.release()
		return err
	}
	return nil
}

func (db *DB) release() { <-db.write }

// roomier is called after flushes and compactions, with the engine's lock held.
func (db *DB) roomier() {
	db.stale.Store(true)
	close(*db.change.Swap(new(make(chan struct{}))))
}

// crowd returns how many sublevels L0 has, or had when the fault came: its measuring waits
// for a lock that an engine with a fault may never give back.
func (db *DB) crowd() int64 {
	if db.stale.Swap(false) {
		_ = db.fault.run(func() error {
			db.sublevels.Store(int64(db.engine.Metrics().Levels[0].Sublevels))
			return nil
		})
	}
	return db.sublevels.Load()
}

// Pressed implements [store.Pressured].
func (db *DB) Pressed() bool {
	db.life.RLock()
	defer db.life.RUnlock()
	return !db.closed && !db.hold && db.crowd() >= pressedAt
}

// Stalls returns how often the engine has stalled all writers because compaction lagged.
func (db *DB) Stalls() int64 { return db.stalls.Load() }

// room waits while L0 has so many sublevels that the engine is about to stall its
// writers: a stall lasts seconds and ignores contexts.
func (db *DB) room(ctx context.Context) error {
	if db.hold {
		return nil
	}
	for {
		change := *db.change.Load()
		if db.crowd() < crowded {
			return nil
		}
		recheck := time.NewTimer(stallRecheck)
		select {
		case <-change:
		case <-recheck.C:
			db.stale.Store(true)
		case <-db.fault.hit:
		case <-ctx.Done():
		}
		recheck.Stop()
		if err := errors.Join(ctx.Err(), db.fault.get()); err != nil {
			return err
		}
	}
}

// commit writes a batch without waiting for the disk. The write lock is held.
func (db *DB) commit(b *pebble.Batch) error {
	if err := db.sets.note(b); err != nil {
		return errors.Join(classify("write", err), b.Close())
	}
	defer db.sets.add()
	return db.commitDeletes(b)
}

// commitDeletes is commit for a batch that sets no entity's row.
func (db *DB) commitDeletes(b *pebble.Batch) error {
	err := db.fault.run(func() error { return db.engine.Apply(b, pebble.NoSync) })
	if err != nil {
		// A fault elsewhere may have ended the waiting for a batch that the log takes: it is not closed.
		return store.InDoubt(classify("write", err))
	}
	return classify("write", b.Close())
}

// commitDurably writes a batch, gives the write lock back, and then waits for
// the disk, so that others can write meanwhile.
func (db *DB) commitDurably(b *pebble.Batch) error {
	if err := db.sets.note(b); err != nil {
		db.release()
		return errors.Join(classify("write", err), b.Close())
	}
	err := db.fault.run(func() error { return db.engine.ApplyNoSyncWait(b, pebble.Sync) })
	db.sets.add()
	db.release()
	if err != nil {
		return store.InDoubt(classify("write", err))
	}
	if err := db.fault.run(b.SyncWait); err != nil {
		err = classify("write", err)
		db.fault.set(err) // of later calls it is known that they did nothing
		return store.InDoubt(err)
	}
	return classify("write", b.Close())
}

// sync makes all earlier writes durable.
func (db *DB) sync(ctx context.Context) error {
	if err := db.acquire(ctx); err != nil {
		return err
	}
	b := db.engine.NewBatch()
	if err := b.LogData(nil, nil); err != nil {
		db.release()
		return classify("write", err)
	}
	return db.commitDurably(b)
}
