package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// A memoryBucket keeps objects in memory. Before each Create it asks fault, which may be nil, what goes wrong.
type memoryBucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	fault   func(ctx context.Context, name string) fault
	creates int
}

// A fault is how a Create goes wrong. The zero fault lets it pass.
type fault struct {
	before error // it fails, and writes nothing
	after  error // it writes, and fails
	part   int   // it fails, and leaves so many bytes
	lose   bool  // it succeeds, and writes nothing
}

func newMemoryBucket() *memoryBucket { return &memoryBucket{objects: map[string][]byte{}} }

func (b *memoryBucket) Create(ctx context.Context, name string, data []byte) (string, error) {
	b.mu.Lock()
	b.creates++
	ask := b.fault
	b.mu.Unlock()
	var f fault
	if ask != nil {
		f = ask(ctx, name)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	there, ok := b.objects[name]
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case f.before != nil:
		return "", f.before
	case f.lose:
		return "1", nil
	case ok && !bytes.Equal(there, data):
		return "", fmt.Errorf("memory:%s: %w", name, archive.ErrExists)
	case f.part > 0:
		b.objects[name] = slices.Clone(data[:min(f.part, len(data))])
		return "", io.ErrShortWrite
	}
	b.objects[name] = slices.Clone(data)
	return "1", f.after
}

func (b *memoryBucket) Open(_ context.Context, name string) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if data, ok := b.objects[name]; ok {
		return io.NopCloser(bytes.NewReader(data)), nil
	}
	return nil, fmt.Errorf("memory:%s: %w", name, archive.ErrNotFound)
}

func (b *memoryBucket) Stat(_ context.Context, name string) (archive.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if data, ok := b.objects[name]; ok {
		return archive.Object{Name: name, Size: int64(len(data)), Generation: "1"}, nil
	}
	return archive.Object{}, fmt.Errorf("memory:%s: %w", name, archive.ErrNotFound)
}

func (b *memoryBucket) List(_ context.Context, prefix, from string) iter.Seq2[archive.Object, error] {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []archive.Object
	for name, data := range b.objects {
		if strings.HasPrefix(name, prefix) && name >= from {
			all = append(all, archive.Object{Name: name, Size: int64(len(data)), Generation: "1"})
		}
	}
	slices.SortFunc(all, func(a, b archive.Object) int { return strings.Compare(a.Name, b.Name) })
	return func(yield func(archive.Object, error) bool) {
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

func (b *memoryBucket) Remove(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, name)
	return nil
}

// fails makes Create of objects, but not of probes, go wrong as f says.
func (b *memoryBucket) fails(f func(ctx context.Context, name string) fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = nil
	if f != nil {
		b.fault = func(ctx context.Context, name string) fault {
			if strings.Contains(name, "probe") {
				return fault{}
			}
			return f(ctx, name)
		}
	}
}

// names returns the names of all objects, in order.
func (b *memoryBucket) names() []string {
	var all []string
	for o, err := range b.List(context.Background(), "", "") {
		if err != nil {
			panic(err) // it never fails
		}
		all = append(all, o.Name)
	}
	return all
}

var errFault = errors.New("a fault of the test")

var header = archive.Header{Mode: archive.Full, Store: "datastore:p", Target: "sessions", Kind: "Session",
	Property: "expiry", Version: "test", Owner: "host/1"}

func config(b archive.Bucket) archive.Config {
	return archive.Config{Bucket: b, Header: header, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Counts: new(archive.Counts)}
}

func open(t *testing.T, cfg archive.Config) *archive.Writer {
	t.Helper()
	w, err := archive.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func closeWriter(t *testing.T, w *archive.Writer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
}

// copies returns n entities with numbers from from on.
func copies(from, n int) []store.Copy {
	all := make([]store.Copy, n)
	for i := range all {
		all[i] = store.Copy{Key: fmt.Sprintf("Session/s-%06d", from+i), Version: "7",
			Data: fmt.Appendf(nil, `{"user":{"stringValue":"u-%d"}}`, from+i), Expiry: store.TextValue("20261101")}
	}
	return all
}

// all states what became of all entities of a receipt.
func all(s archive.State) func(string) archive.State { return func(string) archive.State { return s } }

// read returns the lines of an object, and the error that they end with.
func read(b archive.Bucket, name string) (lines []archive.Line, err error) {
	for l, err := range archive.Read(context.Background(), b, name) {
		if err != nil {
			return lines, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// objects returns all objects of the target.
func objects(t *testing.T, b archive.Bucket) (list []archive.Entry) {
	t.Helper()
	for e, err := range archive.Objects(t.Context(), b, "sessions", time.Time{}, time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// states counts the lines of all objects by their states. Each object must be intact.
func states(t *testing.T, b archive.Bucket) map[archive.State]int {
	t.Helper()
	counts := map[archive.State]int{}
	for _, e := range objects(t, b) {
		lines, err := read(b, e.Name)
		if err != nil {
			t.Error(err)
		}
		for _, l := range lines {
			counts[l.State]++
		}
	}
	return counts
}
