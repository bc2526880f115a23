package bench_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
)

// fileEach is how many bytes of lines are in one file of the bare loop: those of an object.
const fileEach = 16 << 20

const (
	smallEntity = 200
	largeEntity = 20 << 10
)

// An archivedSize is so many entities of one size.
type archivedSize struct {
	name    string
	size, n int
}

// payload returns JSON of about so many bytes: fields of words, of which zstd makes a third, and others for each entity.
func payload(i, size int) []byte {
	random := rand.New(rand.NewPCG(uint64(i), 7))
	b := []byte(`{"user":"u7"`)
	for field := 0; len(b) < size-10; field++ {
		b = append(strconv.AppendInt(append(b, `,"field`...), int64(field), 10), `":"`...)
		for end := min(len(b)+max(40, size/20), size-10); len(b) < end; b = append(b, ' ') {
			b = strconv.AppendUint(b, random.Uint64N(1000)*0x9E3779B97F4A7C15>>34, 36) // one of so many words
		}
		b = append(b, '"')
	}
	return append(b, '}')
}

// An archived is the archive of one sweep, as the command has it: [sweep.Archive].
type archived struct {
	*archive.Writer
	memory *archive.Memory
	whole  bool
}

// openArchive returns an archive in a directory.
func openArchive(ctx context.Context, dir string, t sweep.Target, mode archive.Mode) (*archived, error) {
	bucket, err := archive.OpenBucket(ctx, "file://"+dir)
	if err != nil {
		return nil, err
	}
	w, err := archive.Open(ctx, archive.Config{Bucket: bucket, Now: time.Now, Header: archive.Header{Mode: mode,
		Store: "bench", Target: t.Name, Kind: t.Kind, Property: t.Property, Owner: "bench"}})
	return &archived{w, archive.NewMemory(archive.DefaultMemory), mode == archive.Full}, err
}

// IsWhole implements [sweep.Archive].
func (a *archived) IsWhole() bool { return a.whole }

// Reserve implements [sweep.Archive].
func (a *archived) Reserve(ctx context.Context, bytes int64) (release func(), err error) {
	return func() { a.memory.Release(bytes) }, a.memory.Acquire(ctx, bytes)
}

// Keep implements [sweep.Archive].
func (a *archived) Keep(ctx context.Context, _, namespace string, list []store.Copy) (
	ended func(fate func(key string) store.Outcome), err error,
) {
	r, err := a.Writer.Keep(ctx, namespace, list)
	if err != nil {
		return nil, err
	}
	return func(fate func(key string) store.Outcome) {
		r.Done(func(key string) archive.State {
			if fate(key) == store.Deleted {
				return archive.Deleted
			}
			return archive.Kept
		})
	}, nil
}

// archives sweeps with an archive, which it closes: then all manifests are written.
func archives(ctx context.Context, dir string, s store.Store, t sweep.Target, mode archive.Mode) (deleted int, err error) {
	a, err := openArchive(ctx, dir, t, mode)
	if err != nil {
		return 0, err
	}
	t.Archive = a
	deleted, err = sweeps(ctx, configFor(s, t, workers))
	return deleted, errors.Join(err, a.Close(ctx))
}

// Files are what the bare loop writes lines into, one after the other. They are compressed as objects are, and synced
// when they are full.
type files struct {
	dir string

	mu      sync.Mutex
	n, size int
	file    *os.File
	to      *zstd.Encoder
}

func (f *files) write(text []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		var err error
		f.n++
		if f.file, err = os.Create(filepath.Join(f.dir, strconv.Itoa(f.n))); err != nil {
			return err
		}
		if f.to, err = zstd.NewWriter(f.file, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20),
			zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
			return err
		}
	}
	f.size += len(text)
	_, err := f.to.Write(text)
	if err == nil && f.size >= fileEach {
		err = f.endLocked()
	}
	return err
}

func (f *files) endLocked() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file, f.size = nil, 0
	return errors.Join(f.to.Close(), file.Sync(), file.Close())
}

func (f *files) end() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.endLocked()
}

// copying is a store of which the bare loop copies what it deletes. It does so as simply as can be: what it deletes
// may not be on the disk yet, and may have changed since it was read.
type copying struct {
	*embedded.DB
	files *files
}

func (c copying) Dispose(ctx context.Context, b *store.Batch) error {
	keys := make([]string, len(b.Ops))
	for i := range b.Ops {
		keys[i] = b.Ops[i].Entry.Key
	}
	var text []byte
	for len(keys) > 0 {
		list, err := c.Fetch(ctx, b.Query.Target, b.Query.Namespace, keys, time.Time{})
		if err != nil {
			return err
		}
		now := time.Now()
		text = text[:0]
		for _, one := range list {
			if text, err = archive.AppendLine(text, "", one, now); err != nil {
				return err
			}
		}
		if err := c.files.write(text); err != nil {
			return err
		}
		keys = keys[len(list):]
	}
	return c.DB.Dispose(ctx, b)
}

func copyingLoop(ctx context.Context, db *embedded.DB, dir string) (int, error) {
	to := &files{dir: dir}
	n, err := bareLoop(ctx, copying{db, to}, 1)
	return n, errors.Join(err, to.end())
}

// An archiveRace compares sweeps with archives in one kind of store.
type archiveRace struct {
	name   string
	target sweep.Target
	n      int // of entities that are due
	open   func() (s closer, done func())
	aims   map[archive.Mode]string // of sweeps with these modes against one without an archive
	bare   *contestant[closer]     // that full is compared with; may be nil
	warm   bool                    // begins with a round that does not count, as emulators need it
}

func (a archiveRace) run(tb testing.TB, r *report) {
	plain := &contestant[closer]{what: a.name + ": sweep without an archive", ready: func(s closer) func(context.Context) (int, error) {
		return durably(s, func(ctx context.Context) (int, error) { return sweeps(ctx, configFor(s, a.target, workers)) })
	}}
	with := map[archive.Mode]*contestant[closer]{}
	var list []*contestant[closer]
	for _, mode := range []archive.Mode{archive.Full, archive.Keys} {
		if _, ok := a.aims[mode]; !ok {
			continue
		}
		with[mode] = &contestant[closer]{what: fmt.Sprintf("%s: sweep, `%s`", a.name, mode), ready: func(s closer) func(context.Context) (int, error) {
			dir := tb.TempDir()
			return durably(s, func(ctx context.Context) (int, error) { return archives(ctx, dir, s, a.target, mode) })
		}}
		list = append(list, with[mode])
	}
	list = append(list, plain)
	if a.bare != nil {
		list = append(list, a.bare)
	}
	race(tb, r.rounds, a.n, a.warm, list, func(*contestant[closer]) (closer, func()) { return a.open() })
	for _, c := range list {
		r.add(c.what, rate(c.rates), "")
	}
	compared := func(what string, c, with *contestant[closer], wanted string) {
		r.ratio("**"+a.name+": "+what+"**", ratios(c.rates, with.rates), wanted)
		r.ratio("the same, entities a second of CPU time", ratios(c.cheap, with.cheap), "reported")
	}
	if a.bare != nil {
		compared("`full` / bare loop that copies", with[archive.Full], a.bare, "at least 0.8")
	}
	for _, mode := range []archive.Mode{archive.Full, archive.Keys} {
		if wanted, ok := a.aims[mode]; ok {
			compared(fmt.Sprintf("`%s` / without an archive", mode), with[mode], plain, wanted)
		}
	}
}

// archivesEmbedded compares them on the embedded store, also with a bare loop.
func archivesEmbedded(tb testing.TB, r *report) {
	r.section("Archives, embedded store", "An archive in files, with the defaults, on the disk of the store; all entities have expired. The bare loop has the same scan and concurrency. "+
		"It reads each entity, adds the same line to a file that is compressed the same and synced every 16 MiB, and deletes the entity: it knows neither whether that is as it "+
		"was read, nor whether the line is on the disk. A sweep ends with its last manifest. Each run that an aim is about takes some ten seconds: `keys` reads no entity, so that it "+
		"has four times as many, and only small ones.")
	for _, of := range []archivedSize{{"200 bytes", smallEntity, r.entities / 2}, {"20 KiB", largeEntity, r.entities / 50}} {
		from := newTemplate(tb, false, of.filling())
		bare := &contestant[closer]{what: of.name + ": bare loop that copies", ready: func(s closer) func(context.Context) (int, error) {
			dir := tb.TempDir()
			return durably(s, func(ctx context.Context) (int, error) { return copyingLoop(ctx, s.(*embedded.DB), dir) })
		}}
		archiveRace{of.name, target(), of.n, func() (closer, func()) { return from.open(tb, false) },
			map[archive.Mode]string{archive.Full: "reported"}, bare, false}.run(tb, r)
	}
	of := archivedSize{"200 bytes, more", smallEntity, 2 * r.entities}
	from := newTemplate(tb, false, of.filling())
	archiveRace{of.name, target(), of.n, func() (closer, func()) { return from.open(tb, false) },
		map[archive.Mode]string{archive.Keys: "at least 0.7"}, nil, false}.run(tb, r)
}

// filling is what all is due of.
func (a archivedSize) filling() filling {
	f := generational(a.n)
	f.all, f.size = true, a.size
	return f
}

// archivesEmulated compares them on Google's emulator, in both modes.
func archivesEmulated(tb testing.TB, r *report) {
	r.section("Archives, Google's emulator", "An archive in files, with the defaults; half of the entities have expired. In Datastore mode entities are read in the transaction "+
		"that deletes them, with and without an archive. In native mode a sweep without an archive reads none again, and deletes on the condition that they did not change.")
	if !emulator.Available(tb.Context()) {
		r.add("rates", "the emulator is not installed here", "")
		return
	}
	for _, of := range []archivedSize{{"200 bytes", smallEntity, r.cloud}, {"20 KiB", largeEntity, r.cloud / 5}} {
		f := expiryKeys(of.n)
		f.size = of.size
		for _, mode := range []emulator.Mode{emulator.Datastore, emulator.Native} {
			e, t := emulator.StartOwn(tb, mode), sharded() // whose projects pile up
			if mode == emulator.Native {
				t = nativeTarget()
			}
			open := func() (closer, func()) {
				s, _, err := job{Mode: mode, Project: e.Project(tb), Host: e.Host}.open(tb.Context())
				if err != nil {
					tb.Fatal(err)
				}
				if mode == emulator.Native {
					fillNative(tb, s.(*firestore.DB), f)
				} else {
					f.into(tb, s.(*datastore.DB))
				}
				lookedAround(tb, s, t)
				return s, func() { closed(tb, s) }
			}
			archiveRace{string(mode) + ", " + of.name, t, of.n / 2, open,
				map[archive.Mode]string{archive.Full: "at least 0.8", archive.Keys: "at least 0.7"}, nil, r.warm}.run(tb, r)
		}
	}
}
