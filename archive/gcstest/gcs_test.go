// Package gcstest runs archives against a server that stands in for Google Cloud Storage. It is a module of its own:
// what that server needs is no concern of the program's.
package gcstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// A front is a proxy before the server, which may lose the replies of uploads.
type front struct {
	lose    atomic.Int32 // so many more
	uploads atomic.Int32
}

func serve(t *testing.T) (*fakestorage.Server, *front) {
	t.Helper()
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{Scheme: "http", Host: "127.0.0.1", Port: 0,
		InitialObjects: []fakestorage.Object{}, Writer: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "bucket"})
	to, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	f := &front{}
	proxy := httputil.NewSingleHostReverseProxy(to)
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/upload/") {
			proxy.ServeHTTP(w, r)
			return
		}
		f.uploads.Add(1)
		if f.lose.Add(-1) >= 0 {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			http.Error(w, "the reply is lost", http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(outside.Close)
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(outside.URL, "http://"))
	return server, f
}

func open(t *testing.T, address string) archive.Bucket {
	t.Helper()
	b, err := archive.OpenBucket(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBucket(t *testing.T) {
	_, _ = serve(t)
	b, ctx := open(t, "gs://bucket/a/prefix/"), t.Context()
	names := []string{"a-b/x", "a/b.c", "a/b/c", "b"}
	generations := map[string]bool{}
	for _, name := range names {
		g, err := b.Create(ctx, name, []byte(name))
		if err != nil || g == "" {
			t.Fatal(g, err)
		}
		generations[g] = true
	}
	if len(generations) != len(names) {
		t.Errorf("generations %v", generations)
	}
	if _, err := b.Create(ctx, "b", []byte("b")); err != nil {
		t.Errorf("a repeated create: %v", err)
	}
	if _, err := b.Create(ctx, "b", []byte("c")); !errors.Is(err, archive.ErrExists) || !strings.Contains(err.Error(), "gs://bucket/a/prefix/b") {
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
	if got := list("", ""); !slices.Equal(got, names) {
		t.Errorf("%q", got)
	}
	if got := list("a/", "a/b/"); !slices.Equal(got, []string{"a/b/c"}) {
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
	if o, err := b.Stat(ctx, "b"); err != nil || o.Size != 1 || o.Name != "b" {
		t.Error(o, err)
	}
	if err := b.Remove(ctx, "b"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"stat": second(b.Stat(ctx, "b")), "open": second(b.Open(ctx, "b")), "remove": b.Remove(ctx, "b")} {
		if !errors.Is(err, archive.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := open(t, "gs://other").Create(ctx, "x", nil); err == nil || !strings.Contains(err.Error(), "gs://other/x") {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// A writer archives through replies that are lost, and leaves each object once.
func TestWriter(t *testing.T) {
	_, f := serve(t)
	b := open(t, "gs://bucket/reaper")
	counts := new(archive.Counts)
	w, err := archive.Open(t.Context(), archive.Config{Bucket: b, Now: time.Now, Counts: counts,
		Header: archive.Header{Mode: archive.Full, Target: "sessions", Owner: "host/1"}})
	if err != nil {
		t.Fatal(err)
	}
	f.lose.Store(2)
	var ranges sync.WaitGroup
	for i := range 4 {
		ranges.Go(func() {
			var list []store.Copy
			for j := range 500 {
				list = append(list, store.Copy{Key: fmt.Sprintf("Session/%d-%d", i, j), Data: []byte(`{"a":1}`)})
			}
			r, err := w.Keep(t.Context(), "", list)
			if err != nil {
				t.Error(err)
				return
			}
			r.Done(func(string) archive.State { return archive.Deleted })
		})
	}
	ranges.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	deleted, objects := 0, 0
	for e, err := range archive.Objects(t.Context(), b, "sessions", time.Time{}, time.Time{}) {
		if err != nil || !e.Confirmed || e.Missing {
			t.Fatal(e, err)
		}
		objects++
		for l, err := range archive.Read(t.Context(), b, e.Name) {
			if err != nil {
				t.Fatal(err)
			}
			if l.State == archive.Deleted {
				deleted++
			}
		}
	}
	if deleted != 2000 || int64(objects) != counts.Objects.Load() || f.lose.Load() >= 0 {
		t.Errorf("%d deleted in %d objects; counts %d", deleted, objects, counts.Objects.Load())
	}
}
