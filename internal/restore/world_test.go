package restore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const day = 24 * time.Hour

// A memory is a bucket whose objects a test may damage.
type memory struct {
	mu      sync.Mutex
	objects map[string][]byte
}

func (m *memory) Create(_ context.Context, name string, data []byte) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, ok := m.objects[name]; ok && !bytes.Equal(was, data) {
		return "", archive.ErrExists
	}
	m.objects[name] = bytes.Clone(data)
	return "1", nil
}

func (m *memory) Open(_ context.Context, name string) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.objects[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, archive.ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (m *memory) Stat(_ context.Context, name string) (archive.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.objects[name]
	if !ok {
		return archive.Object{}, fmt.Errorf("%s: %w", name, archive.ErrNotFound)
	}
	return archive.Object{Name: name, Size: int64(len(data)), Generation: "1"}, nil
}

func (m *memory) List(_ context.Context, prefix, from string) iter.Seq2[archive.Object, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.Sorted(maps.Keys(m.objects))
	return func(yield func(archive.Object, error) bool) {
		for _, n := range names {
			if strings.HasPrefix(n, prefix) && n >= from && !yield(archive.Object{Name: n, Generation: "1"}, nil) {
				return
			}
		}
	}
}

func (m *memory) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	return nil
}

// names lists the objects that hold entities.
func (m *memory) names() (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(m.objects)) {
		if !strings.HasSuffix(n, ".done.ndjson.zst") && strings.HasPrefix(n, "sessions/2") {
			list = append(list, n)
		}
	}
	return list
}

// A world is a model store whose sessions were archived and deleted. It lives in a synctest bubble, in which hours
// pass at once.
type world struct {
	t      *testing.T
	s      *modelstore.Store
	bucket *memory
	target sweep.Target
	mode   archive.Mode
	kind   string // in headers
	owners int
	skew   time.Duration     // of the clock of what archives
	lag    time.Duration     // of each look at that clock
	edit   func(*store.Copy) // changes what is archived; may be nil
}

func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, s: modelstore.New(time.Now), bucket: &memory{objects: map[string][]byte{}}, mode: archive.Full,
		kind: "Session"}
	w.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * day, Rewind: day, Overlap: 10 * time.Second,
		Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
		Policy:  generation.Policy{Every: day, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32},
		History: sweep.History{Keep: 90 * day, Actor: "ann"},
	}
	if _, _, err := sweep.EnsureRecord(t.Context(), w.config().Sweep, w.target); err != nil {
		t.Fatal(err)
	}
	return w
}

// config returns what a process of its own restores by: everything, with a new expiry in a week.
func (w *world) config() restore.Config {
	w.owners++
	return restore.Config{
		Sweep: sweep.Config{Store: w.s, Apply: true, Owner: fmt.Sprintf("process-%d", w.owners), Now: time.Now,
			Grace: time.Second, Log: slog.New(slog.DiscardHandler)},
		Target: w.target, Bucket: w.bucket, Expiry: restore.Expiry{In: 7 * day}, From: restore.FromArchive,
		Database: "datastore:p", Rate: throttle.Limits{Unlimited: true}, Reason: "a test", Order: "all",
		Progress: new(restore.Progress)}
}

func key(name string) string { return modelstore.Key(store.Entity{Name: name}) }

// put writes sessions that have expired an hour ago.
func (w *world) put(data string, names ...string) {
	w.t.Helper()
	for _, n := range names {
		k, err := generation.Stamper{Shards: 4}.Name(n, time.Now().Add(-time.Hour))
		if err != nil {
			w.t.Fatal(err)
		}
		e := store.Entity{Name: n, Data: []byte(data), Expiry: store.TextValue(k.String())}
		if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// sweep archives what has some keys, whole, and deletes what state says is deleted.
func (w *world) sweep(id string, state func(key string) archive.State, keys ...string) {
	w.t.Helper()
	ctx := w.t.Context()
	writer, err := archive.Open(ctx, archive.Config{Bucket: w.bucket, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { time.Sleep(w.lag); return time.Now().Add(w.skew) }, Counts: new(archive.Counts), Header: archive.Header{Mode: w.mode, Store: "datastore:p", Target: "sessions",
			Kind: w.kind, Property: "expiry_key", Version: "test", Owner: "sweeper", Sweep: id}})
	if err != nil {
		w.t.Fatal(err)
	}
	list, err := w.s.Fetch(ctx, w.target.Target, "", keys, time.Time{})
	if err != nil || len(list) != len(keys) {
		w.t.Fatalf("fetch: %d of %d, %v", len(list), len(keys), err)
	}
	for i := range list {
		if w.edit != nil {
			w.edit(&list[i])
		}
	}
	receipt, err := writer.Keep(ctx, "", list)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, k := range keys {
		if state(k) == archive.Kept {
			continue
		}
		if above, below, ok := strings.Cut(k, "/"); ok {
			w.s.RemoveBelow("Session", "", above, below)
		} else {
			w.s.Remove("Session", "", k)
		}
	}
	if !slices.ContainsFunc(keys, func(k string) bool { return state(k) == archive.Unconfirmed }) {
		receipt.Done(state)
	}
	if err := writer.Close(ctx); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Second)
}

func deleted(string) archive.State     { return archive.Deleted }
func kept(string) archive.State        { return archive.Kept }
func unconfirmed(string) archive.State { return archive.Unconfirmed }

// gone writes sessions, and has them swept, so many in each object.
func (w *world) gone(n, each int) (names []string) {
	w.t.Helper()
	for i := range n {
		names = append(names, fmt.Sprintf("s-%04d", i))
	}
	w.put(`{"user":"u7"}`, names...)
	for some := range slices.Chunk(names, each) {
		var keys []string
		for _, n := range some {
			keys = append(keys, key(n))
		}
		w.sweep("one", deleted, keys...)
	}
	return names
}

// run restores, without an error.
func (w *world) run(cfg restore.Config) restore.Result {
	w.t.Helper()
	res, err := restore.Run(w.t.Context(), cfg)
	if err != nil || !res.Complete {
		w.t.Fatalf("complete %v, held %q, %v", res.Complete, res.Held, err)
	}
	return res
}

// pause pauses the target, or resumes it.
func (w *world) pause(on bool) {
	w.t.Helper()
	rec, _, err := generation.Load(w.t.Context(), w.s, "sessions")
	if err == nil {
		rec.Paused = on
		_, err = generation.Save(w.t.Context(), w.s, rec)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// stopHalfway has a restore stopped once its first 500 entities exist.
func (w *world) stopHalfway() restore.Result {
	w.t.Helper()
	return w.stopHalfwayOf(w.config())
}

func (w *world) stopHalfwayOf(cfg restore.Config) restore.Result {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	w.s.After = func(context.Context, modelstore.Call) error {
		if len(w.entities()) > 0 {
			cancel()
		}
		return nil
	}
	res, err := restore.Run(ctx, cfg)
	if err != nil || res.Complete || res.Restored != 500 {
		w.t.Errorf("stopped: %+v, %v", res, err)
	}
	w.s.After = nil
	return res
}

// killWhilePlanning has a restore write its record once, and nothing more.
func (w *world) killWhilePlanning(cfg restore.Config) {
	w.t.Helper()
	exist := len(w.entities())
	saves := 0
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "Save" && c.Record.Sort == store.RestoreRecord {
			if saves++; saves > 1 {
				return store.ErrDenied
			}
		}
		return nil
	}
	if _, err := restore.Run(w.t.Context(), cfg); !errors.Is(err, store.ErrDenied) || len(w.entities()) > exist {
		w.t.Fatalf("%d entities, %v", len(w.entities()), err)
	}
	w.s.Before = nil
}

// entities returns the data of all sessions, by name.
func (w *world) entities() map[string]string {
	all := map[string]string{}
	for _, e := range w.s.Entities("Session", "") {
		all[e.Name] = string(e.Data)
	}
	return all
}

// expiry returns when a session expires, and in which generation its key is; zero if it never does.
func (w *world) expiry(name string) (at time.Time, gen int) {
	w.t.Helper()
	e, ok := w.s.Entities("Session", "")[key(name)]
	if !ok {
		w.t.Fatalf("%s does not exist", name)
	}
	if e.Expiry.Type == store.Missing {
		return at, 0
	}
	k, err := expirykey.Parse(e.Expiry.Text)
	if err != nil {
		w.t.Fatal(err)
	}
	return k.Expires, k.Generation
}
