package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// A watchedBucket calls seen when an object is about to be read to its end.
type watchedBucket struct {
	archive.Bucket
	seen func()
}

func (b watchedBucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	in, err := b.Bucket.Open(ctx, name)
	return &watchedReader{in, b.seen}, err
}

type watchedReader struct {
	io.ReadCloser
	seen func()
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		r.seen()
	}
	return n, err
}

// newObject writes an object of n entities whose data is hard to compress, and returns its name.
func newObject(t *testing.T, b archive.Bucket, property string, n int) (name string) {
	t.Helper()
	w, err := archive.Open(t.Context(), archive.Config{Bucket: b, Now: time.Now, RollAfter: time.Second,
		Header: archive.Header{Mode: archive.Full, Target: "t", Owner: "o", Property: property}})
	if err != nil {
		t.Fatal(err)
	}
	var list []store.Copy
	for i := range n {
		var data bytes.Buffer
		for j := range 200 {
			fmt.Fprintf(&data, "%d", (i*200+j)*2654435761%4294967296)
		}
		list = append(list, store.Copy{Key: fmt.Sprintf("k/%d", i), Expiry: store.TextValue("x"),
			Data: fmt.Appendf(nil, `{"n":["%s",%d]}`, &data, i)})
	}
	if _, err := w.Keep(t.Context(), "", list); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for e, err := range archive.Objects(t.Context(), b, "t", time.Time{}, time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		name = e.Name
	}
	return name
}

// Show prints entities as it reads them, and no control characters of the object; with --json that is the document
// that it would be in one piece.
func TestArchiveShowWhileReading(t *testing.T) {
	for _, as := range []bool{false, true} {
		for _, n := range []int{0, 1, 500} {
			dir, err := archive.OpenBucket(t.Context(), "file://"+t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			name := newObject(t, dir, "expiry\x1b[31m", max(n, 1))
			var out bytes.Buffer
			shown := 0
			b := watchedBucket{dir, func() { shown = strings.Count(out.String(), "k/") }}
			a := &app{console: &console{stdout: &out, json: as}}
			id := map[bool]string{true: "nobody"}[n == 0]
			if err := a.showObject(t.Context(), b, name, id); err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(out.String(), "k/"); got != n || n == 500 && shown == 0 {
				t.Errorf("json %t: %d of %d entities, %d before the object was read", as, got, n, shown)
			}
			if strings.Contains(out.String(), "\x1b") {
				t.Errorf("json %t: the terminal gets control characters", as)
			}
			if !as {
				continue
			}
			var doc shownObject
			if err := json.Unmarshal(out.Bytes(), &doc); err != nil || doc.Object != name || len(doc.Entities) != n {
				t.Fatalf("%d entities, %v", len(doc.Entities), err)
			}
			var whole bytes.Buffer
			c := console{stdout: &whole, json: true}
			if err := c.print(doc, nil); err != nil || whole.String() != out.String() {
				t.Errorf("%d entities in one piece differ: %v", n, err)
			}
		}
	}
}
