package archive_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/archive"
)

func fileBucket(t testing.TB) (b archive.Bucket, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "new", "archive")
	b, err := archive.OpenBucket(context.Background(), "file://"+filepath.ToSlash(dir))
	if err != nil {
		t.Fatal(err)
	}
	return b, dir
}

func TestFileBucket(t *testing.T) {
	b, dir := fileBucket(t)
	ctx := t.Context()
	for _, err := range b.List(ctx, "", "") {
		if !errors.Is(err, archive.ErrNotFound) || !strings.Contains(err.Error(), "file://"+dir) {
			t.Errorf("a directory that does not exist: %v", err)
		}
	}
	names := []string{"a-b/x", "a/b.c", "a/b/c", "a/d", "b"}
	for _, name := range slices.Backward(names) {
		if _, err := b.Create(ctx, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Create(ctx, "a/d", []byte("a/d")); err != nil {
		t.Errorf("a repeated create: %v", err)
	}
	if _, err := b.Create(ctx, "a/d", []byte("a/e")); !errors.Is(err, archive.ErrExists) {
		t.Errorf("another one: %v", err)
	}
	list := func(prefix, from string) (got []string) {
		for o, err := range b.List(ctx, prefix, from) {
			if err != nil || o.Size != int64(len(o.Name)) || o.Generation == "" || o.Created.IsZero() {
				t.Error(o, err)
			}
			got = append(got, o.Name)
		}
		return got
	}
	if got := list("", ""); !slices.Equal(got, names) || !slices.IsSorted(got) {
		t.Errorf("%q", got)
	}
	if got := list("a/", "a/b/c"); !slices.Equal(got, []string{"a/b/c", "a/d"}) {
		t.Errorf("%q", got)
	}
	if got := list("a/b", ""); !slices.Equal(got, []string{"a/b.c", "a/b/c"}) {
		t.Errorf("%q", got)
	}
	in, err := b.Open(ctx, "a/b/c")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(in)
	in.Close()
	if string(text) != "a/b/c" || err != nil {
		t.Error(string(text), err)
	}
	for _, name := range []string{"", ".", "../x", "a/../x", "/x", ".tmp/x", "a/.x", "a//b"} {
		if _, err := b.Create(ctx, name, nil); err == nil {
			t.Errorf("%q was created", name)
		}
	}
	if err := b.Remove(ctx, "a/b/c"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory stays: %v", err)
	}
	if err := b.Remove(ctx, "a/b/c"); !errors.Is(err, archive.ErrNotFound) {
		t.Error(err)
	}
	if _, err := b.Open(ctx, "a/b/c"); !errors.Is(err, archive.ErrNotFound) {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, ".tmp")); err != nil || len(left) != 0 {
		t.Errorf("%d temporary files, %v", len(left), err)
	}
}

// A process that was killed leaves temporary files. They are removed when they are old, by whatever process, since one
// that is young may be of another process.
func TestAbandonedFiles(t *testing.T) {
	b, dir := fileBucket(t)
	prune := func(want int) {
		t.Helper()
		if _, err := archive.Prune(t.Context(), b, "sessions", time.Time{}); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(filepath.Join(dir, ".tmp"))
		if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) != want {
			t.Errorf("%v, %v: want %d", left, err, want)
		}
	}
	prune(0) // there is no directory yet
	if _, err := b.Create(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
	age := func(name string, age time.Duration) {
		t.Helper()
		file := filepath.Join(dir, ".tmp", name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	age("new-old", 2*time.Hour)
	age("new-young", time.Minute)
	prune(1)
	age("new-young", 2*time.Hour)
	prune(0)
}

// Two processes write into one directory, while one of them prunes.
func TestTwoWriters(t *testing.T) {
	_, dir := fileBucket(t)
	var ranges sync.WaitGroup
	for range 2 {
		b, err := archive.OpenBucket(t.Context(), "file://"+filepath.ToSlash(dir))
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(b)
		cfg.RollAfter = 40 * time.Millisecond
		w := open(t, cfg) // of the same owner, as after a mistake
		for j := range 4 {
			ranges.Go(func() {
				r, err := w.Keep(t.Context(), "", copies(j*100, 100))
				if err != nil {
					t.Error(err)
					return
				}
				r.Done(all(archive.Deleted))
				if n, err := archive.Prune(t.Context(), b, "sessions", time.Now().Add(-time.Hour)); n != 0 || err != nil {
					t.Error(n, err)
				}
			})
		}
		t.Cleanup(func() { closeWriter(t, w) })
	}
	ranges.Wait()
	b, _ := archive.OpenBucket(t.Context(), "file://"+filepath.ToSlash(dir))
	total := 0
	for _, n := range states(t, b) {
		total += n
	}
	if total != 800 {
		t.Errorf("%d lines, want 800", total)
	}
}

func TestPrune(t *testing.T) {
	b, _ := fileBucket(t)
	cfg := config(b)
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	cfg.Now, cfg.RollAfter = func() time.Time { return now }, 40*time.Millisecond
	w := open(t, cfg)
	for range 3 {
		r, err := w.Keep(t.Context(), "", copies(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		r.Done(all(archive.Deleted))
		now = now.AddDate(0, 0, 20)
	}
	closeWriter(t, w)
	if _, err := b.Create(t.Context(), "sessions/notes.txt", nil); err != nil {
		t.Fatal(err)
	}
	before := now.AddDate(0, 0, -30)
	if n, err := archive.Prune(t.Context(), newMemoryBucket(), "sessions", now); n != 0 || err != nil {
		t.Errorf("a bucket that is no directory: %d, %v", n, err)
	}
	if n, err := archive.Prune(t.Context(), b, "others", now); n != 0 || err != nil {
		t.Errorf("another target: %d, %v", n, err)
	}
	// 60 and 40 days old, with their manifests
	if n, err := archive.Prune(t.Context(), b, "sessions", before); n != 4 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if got, want := states(t, b), map[archive.State]int{archive.Deleted: 1}; !maps.Equal(got, want) {
		t.Error(got)
	}
}

// One file that cannot be removed keeps none of the others.
func TestPruneGoesOn(t *testing.T) {
	b := &stuckBucket{memoryBucket: newMemoryBucket()}
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for i := range 5 {
		name := fmt.Sprintf("sessions/2026/11/26/12000%d.000-00-1.ndjson.zst", i)
		b.objects[name] = nil
		if i < 2 {
			b.stuck = append(b.stuck, name)
		}
	}
	n, err := archive.PruneAny(t.Context(), b, "sessions", at.Add(4*time.Second))
	if n != 2 || len(b.objects) != 3 || !errors.Is(err, errFault) || !strings.Contains(fmt.Sprint(err), "2 failures") {
		t.Errorf("%d were removed, %q are left: %v", n, b.names(), err)
	}
}

// One directory that cannot be read, or is removed meanwhile, keeps none of the later ones.
func TestPruneGoesOnBehindADirectory(t *testing.T) {
	for _, c := range []struct {
		fault, want error
	}{{errFault, errFault}, {archive.ErrNotFound, nil}} {
		b := &stuckBucket{memoryBucket: newMemoryBucket(), unread: map[string]error{"sessions/2026/11/25/": c.fault}}
		for day := 24; day < 28; day++ {
			b.objects[fmt.Sprintf("sessions/2026/11/%d/120000.000-00-1.ndjson.zst", day)] = nil
		}
		n, err := archive.PruneAny(t.Context(), b, "sessions", time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC))
		if n != 2 || len(b.objects) != 2 || !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%v: %d were removed, %q are left: %v", c.fault, n, b.names(), err)
		}
	}
}

// A prune that is stopped does not leave an object without its manifest: that would be unconfirmed.
func TestPruneStopsBetweenTwoObjects(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := &stuckBucket{memoryBucket: newMemoryBucket(), removes: cancel}
	for i := range 2 {
		name := fmt.Sprintf("sessions/2026/11/26/12000%d.000-00-1", i)
		b.objects[name+".ndjson.zst"], b.objects[name+".done.ndjson.zst"] = nil, nil
	}
	n, err := archive.PruneAny(ctx, b, "sessions", time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC))
	if n != 2 || len(b.objects) != 2 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d were removed, %q are left: %v", n, b.names(), err)
	}
}

// A stuckBucket does not remove some of its objects, and does not list some of its directories.
type stuckBucket struct {
	*memoryBucket
	stuck   []string
	unread  map[string]error
	removes func() // is called with each remove; may be nil
}

func (b *stuckBucket) List(ctx context.Context, prefix, from string) iter.Seq2[archive.Object, error] {
	return func(yield func(archive.Object, error) bool) {
		for o, err := range b.memoryBucket.List(ctx, prefix, from) {
			dir := o.Name[:strings.LastIndex(o.Name, "/")+1]
			if fault := b.unread[dir]; fault != nil {
				yield(archive.Object{Name: dir}, fault)
				return
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

func (b *stuckBucket) Remove(ctx context.Context, name string) error {
	if b.removes != nil {
		b.removes()
	}
	if slices.Contains(b.stuck, name) {
		return fmt.Errorf("remove %s: %w", name, errFault)
	}
	return b.memoryBucket.Remove(ctx, name)
}

func TestOpenBucket(t *testing.T) {
	for url, want := range map[string]string{
		"":                "unknown scheme",
		"/var/archive":    "unknown scheme",
		"s3://bucket":     `unknown scheme "s3" (want file:///directory or gs://bucket/prefix)`,
		"file://archive":  "the path is not absolute",
		"file:///":        "it has no directory",
		"file:archive":    "there is more than a path",
		"gs:///x":         "it has no bucket",
		"gs://b/../x":     "not a valid prefix",
		"gs://b/x?y=1":    "there is more than a path",
		"file:///a#b":     "there is more than a path",
		"gs://me@b/x":     "there is more than a path",
		"gs://b/x//y":     "not a valid prefix",
		"://":             "not a URL",
		"file:///a\x00b":  "not a URL",
		"http://x/y":      "unknown scheme",
		"gs://b/x/./y":    "not a valid prefix",
		"file://host/dir": "the path is not absolute",
	} {
		if _, err := archive.OpenBucket(t.Context(), url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
	for _, url := range []string{"gs://b", "gs://b/", "gs://b/x/y/", "file:///a"} {
		if err := archive.CheckURL(url); err != nil {
			t.Error(err)
		}
	}
}

// What is in a directory that cannot be written is named.
func TestOpenNamesURL(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := archive.OpenBucket(t.Context(), "file://"+filepath.ToSlash(dir)+"/file/x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(t.Context(), config(b)); err == nil || !strings.Contains(err.Error(), "file://"+dir+"/file/x/sessions/probe") {
		t.Error(err)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "archive")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	bucket, err := archive.OpenBucket(ctx, "file://"+filepath.ToSlash(dir))
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := archive.Open(ctx, archive.Config{Bucket: bucket, Header: header, Now: time.Now})
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt, err := w.Keep(ctx, "", copies(0, 3)) // now they may be deleted
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt.Done(func(key string) archive.State {
		if key == "Session/s-000001" {
			return archive.Kept // it changed
		}
		return archive.Deleted
	})
	if err := w.Close(ctx); err != nil {
		fmt.Println(err)
	}
	for object, err := range archive.Objects(ctx, bucket, "sessions", time.Time{}, time.Time{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		for line, err := range archive.Read(ctx, bucket, object.Name) {
			fmt.Println(line.Number, line.Key, line.State, err)
		}
	}
	// Output:
	// 1 Session/s-000000 deleted <nil>
	// 2 Session/s-000001 kept <nil>
	// 3 Session/s-000002 deleted <nil>
}
