package firestore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// disposeAll scans and disposes of all sessions page by page, and returns the sizes of the pages.
func (w *world) disposeAll(archive store.Archive) (pages []int) {
	w.t.Helper()
	for more := true; more; {
		var page store.Page
		if err := w.Scan(w.t.Context(), everything(sessions), &page); err != nil {
			w.t.Fatal(err)
		}
		more, pages = page.More, append(pages, len(page.Entries))
		b := &store.Batch{Query: everything(sessions)}
		b.Query.Archive = archive
		for _, e := range page.Entries {
			b.Ops = append(b.Ops, store.Op{Entry: e})
		}
		for left := len(b.Ops); left > 0; {
			if err := w.Dispose(w.t.Context(), b); err != nil {
				w.t.Fatal(err)
			}
			b.Ops = slices.DeleteFunc(b.Ops, func(o store.Op) bool { return o.Outcome == store.Deleted })
			if len(b.Ops) >= left {
				w.t.Fatalf("of %d ops none was disposed of: %v", left, outcomes(b))
			}
			left = len(b.Ops)
		}
	}
	return pages
}

// newArchived returns a world in which a delete had an archive, so that scans read whole documents.
func newArchived(t *testing.T) *world {
	w := newWorld(t)
	w.row(1)
	w.disposeAll(&storetest.Shelf{})
	return w
}

// After a first page, each document is read once: by the scan. Once there is no archive, scans are narrow again.
func TestScanReadsForTheArchive(t *testing.T) {
	w := newWorld(t)
	want := map[string]*pb.Document{}
	for round, whole := range []bool{false, true, true} {
		w.row(6)
		for i := range 6 {
			key := fmt.Sprintf("sessions/s-%03d", i)
			want[key] = w.wire(key)
		}
		w.faults.Reset()
		archive := &storetest.Shelf{}
		w.disposeAll(archive)
		if reads := slices.Contains(w.faults.Methods(), "BatchGetDocuments"); reads == whole || w.scanned.byAge.Len() > 0 {
			t.Errorf("round %d: it looked up: %v; %d are held", round, reads, w.scanned.byAge.Len())
		}
		for key, doc := range want {
			c, err := w.copyOf(sessions, doc)
			if got := archive.Newest()[key]; err != nil || string(got.Data) != string(c.Data) || got.Expiry != c.Expiry ||
				got.Version != c.Version || !got.Created.Equal(c.Created) {
				t.Errorf("round %d: kept\n%+v\nnot\n%+v; %v", round, got, c, err)
			}
		}
	}
	w.row(2)
	w.disposeAll(nil)
	w.row(2)
	if w.batch(2); w.scanned.isWanted(sessions) || w.scanned.byAge.Len() > 0 {
		t.Errorf("without an archive %d are held", w.scanned.byAge.Len())
	}
}

// What changed after its scan stays, even if a later scan read it, and an archive that failed gets the copies again.
func TestHeldCopiesAreOfTheScan(t *testing.T) {
	w := newArchived(t)
	all := w.row(5)
	b := w.batch(5)
	archive := &storetest.Shelf{Then: func() error { return errors.New("disk full") }}
	b.Query.Archive = archive
	w.faults.Reset()
	for range 2 {
		if err := w.Dispose(t.Context(), b); !errors.Is(err, store.ErrFailed) || store.Known(b.Ops) > 0 {
			t.Errorf("outcomes %v, %v", outcomes(b), err)
		}
	}
	if m := w.faults.Methods(); len(m) > 0 || len(archive.Kept) != 10 {
		t.Errorf("the calls are %v; it was given %d", m, len(archive.Kept))
	}
	all[1].Data = []byte(`{"user":"newer"}`)
	w.put(sessions, all[1]) // after the scan of the ops, before one of another worker
	other := w.batch(5)
	all[0].Data = []byte(`{"user":"other"}`)
	w.put(sessions, all[0]) // after both
	all[2].Expiry = at(50)
	w.put(sessions, all[2])
	archive.Then = nil
	b.Ops[3].To = at(60)
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := b.Ops[1].Outcome; got != store.Changed { // what is held is another version: it is read
		t.Errorf("outcome %d", got)
	}
	want := []store.Outcome{store.Changed, store.Changed, store.Changed, store.Carried, store.Deleted}
	if got := outcomes(b); !slices.Equal(got, want) {
		t.Errorf("outcomes %v, not %v", got, want)
	}
	other.Query.Archive = archive
	other.Ops = other.Ops[:2]
	if err := w.Dispose(t.Context(), other); err != nil || other.Ops[1].Outcome != store.Deleted {
		t.Errorf("the other: %v, %v", outcomes(other), err)
	}
	if got := archive.Newest()["sessions/s-001"]; !strings.Contains(string(got.Data), "newer") {
		t.Errorf("the last copy is %s", got.Data)
	}
}

// A page of large documents ends early, and the scan goes on after it; what is held is bounded.
func TestWholePagesAreBounded(t *testing.T) {
	w := newArchived(t)
	keys := w.bigRow(8)
	archive := &storetest.Shelf{}
	pages := w.disposeAll(archive)
	if !slices.Equal(archive.Keys(), keys) || slices.Max(pages) > 4 || len(pages) > 5 || slices.Max(archive.Sizes) > 7<<20 {
		t.Errorf("pages %v of %v bytes, kept %q", pages, archive.Sizes, archive.Keys())
	}
}

// A batch of which only some is held is disposed of in one call anyway: what it does not hold is read. An engine
// makes its next batches as large as what a call took.
func TestBatchThatIsPartlyHeld(t *testing.T) {
	w := newArchived(t)
	w.row(50)
	b := w.batch(50)
	archive := &storetest.Shelf{}
	b.Query.Archive = archive
	w.scanned.mu.Lock()
	for i := range 49 { // as if others had needed the room
		w.scanned.drop(b.Ops[i].Entry.Key)
	}
	w.scanned.mu.Unlock()
	if err := w.Dispose(t.Context(), b); err != nil || store.Known(b.Ops) != 50 || len(archive.Newest()) != 50 {
		t.Errorf("of 50 it took %d and kept %d: %v", store.Known(b.Ops), len(archive.Newest()), err)
	}
}

// What is held and what is read are about CopyBytes together, and a call always gets on.
func TestPartlyHeldIsBounded(t *testing.T) {
	w := newArchived(t)
	keys := w.bigRow(6)
	w.scanned.want(sessions, false)
	b := w.batch(6)
	archive := &storetest.Shelf{}
	b.Query.Archive = archive
	c, err := w.copyOf(sessions, w.wire(keys[5]))
	if err != nil {
		t.Fatal(err)
	}
	w.scanned.want(sessions, true)
	w.scanned.hold(c)
	calls := 0
	for ; len(b.Ops) > 0 && calls < 6; calls++ {
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		b.Ops = slices.DeleteFunc(b.Ops, func(o store.Op) bool { return o.Outcome == store.Deleted })
	}
	if !slices.Equal(archive.Keys(), keys) || calls > 4 || slices.Max(archive.Sizes) > 7<<20 {
		t.Errorf("%d calls of %v bytes, kept %q", calls, archive.Sizes, archive.Keys())
	}
}

func TestHeldCopiesFit(t *testing.T) {
	var s scanned
	s.want(sessions, true)
	data := make([]byte, 1<<20)
	op := func(i int) *store.Op {
		return &store.Op{Entry: store.Entry{Key: fmt.Sprintf("sessions/%d", i), Value: at(i), Written: noon}}
	}
	for i := range 100 {
		s.hold(store.Copy{Key: op(i).Entry.Key, Data: data, Updated: noon})
		s.hold(store.Copy{Key: op(i).Entry.Key, Data: data, Updated: noon}) // of a second scan
	}
	if n := s.byAge.Len(); n != 63 || len(s.copies) != n || s.bytes > scannedBytes {
		t.Errorf("%d are held, %d bytes", n, s.bytes)
	}
	changed, carried := op(97), op(98)
	changed.Entry.Written, carried.To = noon.Add(time.Microsecond), at(200)
	ops := []*store.Op{op(0), changed, carried, op(99), op(96), op(95), op(94)}
	found, _ := s.of(ops)
	if len(found) != 3 || found[3].Expiry != at(99) || found[4].Expiry != at(96) || found[5].Key != ops[5].Entry.Key {
		t.Errorf("found %d", len(found))
	}
	for i := range 100 {
		ended := []store.Op{*op(i)}
		if s.settled(ended); s.copies[op(99).Entry.Key] == nil {
			t.Fatalf("after %d it does not hold 99, which has no outcome", i)
		}
		ended[0].Outcome = store.Gone
		s.settled(ended)
	}
	if s.byAge.Len() != 0 || len(s.copies) != 0 || s.bytes != 0 {
		t.Errorf("%d are held in the end, %d bytes", s.byAge.Len(), s.bytes)
	}
}
