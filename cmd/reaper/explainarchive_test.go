package main

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// A slowBucket is empty, and takes its time to say so.
type slowBucket struct {
	archive.Bucket
	perList time.Duration
}

func (b slowBucket) List(ctx context.Context, _, _ string) iter.Seq2[archive.Object, error] {
	return func(yield func(archive.Object, error) bool) {
		select {
		case <-time.After(b.perList):
		case <-ctx.Done():
			yield(archive.Object{}, ctx.Err())
		}
	}
}

// A search ends in time for its caller, such as the page, to say how far it went; without a deadline after 20 s.
func TestSearchOfALargeArchiveEndsInTime(t *testing.T) {
	for deadline, days := range map[time.Duration]int{8 * time.Second: 3, time.Minute: 9, 0: 9} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			target := config.Target{Name: "sessions", Archive: config.Archive{Keep: 90 * 24 * time.Hour}}
			now, x := time.Now(), inspect.Explanation{}
			err := searchArchive(ctx, slowBucket{perList: 2100 * time.Millisecond}, target, &x, now)
			if err != nil {
				t.Fatalf("with a deadline of %v: %v", deadline, err)
			}
			if since := now.Add(-time.Duration(days) * 24 * time.Hour); x.Archived == nil || !x.Archived.Since.Equal(since) {
				t.Errorf("with a deadline of %v: %+v, want it searched since %v", deadline, x.Archived, since)
			}
		})
	}
}

// A slowFiles bucket takes its time to open a file, whatever the context says.
type slowFiles struct{ archive.Bucket }

func (b slowFiles) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	time.Sleep(1900 * time.Millisecond)
	return b.Bucket.Open(ctx, name)
}

// searchSlowly searches an archive of two objects for what was never archived, with a deadline that is earlier. The
// manifest and the object of the newest take half of the time, and those of the next one the other half.
func searchSlowly(t *testing.T, of func(archive.Bucket) archive.Bucket) (x inspect.Explanation, err error) {
	_, url := filled(t)
	bucket, err := archive.OpenBucket(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		target := config.Target{Name: "sessions", Archive: config.Archive{Keep: 48 * time.Hour}}
		x = inspect.Explanation{Key: "Session/never"}
		err = searchArchive(ctx, slowFiles{of(bucket)}, target, &x, time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	})
	return x, err
}

// A search of files ends in time, too.
func TestSearchOfManyFilesEndsInTime(t *testing.T) {
	x, err := searchSlowly(t, func(b archive.Bucket) archive.Bucket { return b })
	if err != nil {
		t.Fatal(err)
	}
	if since := time.Date(2026, 1, 2, 4, 4, 5, 678e6, time.UTC); !x.Archived.Since.Equal(since) || x.Archived.Object != "" {
		t.Errorf("%+v, want it searched since %v", x.Archived, since)
	}
}

// A search that ends before it could read anything, because nobody lets it, says so: it does not know what was archived.
func TestSearchThatMayReadNothingEndsInTime(t *testing.T) {
	x, err := searchSlowly(t, func(b archive.Bucket) archive.Bucket { return refusing{b} })
	if !errors.Is(err, store.ErrDenied) || x.Archived != nil {
		t.Errorf("%v, %+v", err, x)
	}
}

// An object that is damaged, or is removed while the archive is searched, is named, and the other ones are searched.
func TestExplainWithoutObjectsThatCannotBeRead(t *testing.T) {
	b, url := filled(t)
	bucket, err := archive.OpenBucket(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	target := config.Target{Name: "sessions", Archive: config.Archive{Keep: 48 * time.Hour}}
	explain := func(bucket archive.Bucket, key string) inspect.Explanation {
		t.Helper()
		x := inspect.Explanation{Key: key}
		if err := searchArchive(t.Context(), bucket, target, &x, time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)); err != nil {
			t.Fatal(err)
		}
		return x
	}
	if x := explain(bucket, "Session/s-00"); x.Archived.Object != confirmedObject || strings.Contains(x.Why, "read") {
		t.Errorf("while all are there: %s", x.Why)
	}
	x := explain(removing{bucket, filepath.Join(b.dir, "kept", filepath.FromSlash(unconfirmedObject))}, "Session/s-00")
	if x.Archived.Object != confirmedObject || !strings.Contains(x.Why, "it was deleted at ") ||
		!strings.Contains(x.Why, "; not everything could be read there (1 error, the newest: open ") || !strings.Contains(x.Why, "no such object") {
		t.Errorf("without the newest: %s", x.Why)
	}
	file := filepath.Join(b.dir, "kept", filepath.FromSlash(confirmedObject))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if x := explain(bucket, "Session/s-00"); x.Archived.Object == confirmedObject {
		t.Errorf("what a damaged one says: %s", x.Why)
	}
	if x := explain(bucket, "Session/never"); x.Archived.Object != "" || !strings.Contains(x.Why, "none was archived since 2026-01-02T12:00:00Z") ||
		!strings.Contains(x.Why, "; not everything could be read there (1 error, the newest: object "+confirmedObject+" is damaged") {
		t.Errorf("with a damaged one: %s", x.Why)
	}
	denied := inspect.Explanation{Key: "Session/never"}
	err = searchArchive(t.Context(), refusing{bucket}, target, &denied, time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	if !errors.Is(err, store.ErrDenied) || denied.Archived != nil {
		t.Errorf("without a role that reads objects: %v, %+v", err, denied)
	}
	none, err := archive.OpenBucket(t.Context(), "file://"+filepath.Join(b.dir, "nothing"))
	if err != nil {
		t.Fatal(err)
	}
	if x := explain(none, "Session/never"); x.Archived.Object != "" || !strings.Contains(x.Why, "no such object") {
		t.Errorf("before anything was archived: %s", x.Why)
	}
}

// A refusing bucket lists objects, and lets nobody read them.
type refusing struct{ archive.Bucket }

func (b refusing) Open(context.Context, string) (io.ReadCloser, error) { return nil, store.ErrDenied }

// A removing bucket removes a file as soon as it has been listed, as a lifecycle rule may.
type removing struct {
	archive.Bucket
	file string
}

func (b removing) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	_ = os.Remove(b.file)
	return b.Bucket.Open(ctx, name)
}
