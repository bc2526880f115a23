package sweep_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// editCursors edits the cursor records that pass a filter by hand, which leaves their revisions.
func (w *world) editCursors(change func(store.Fields) bool) (n int) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	got, err := w.s.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: w.target.Name, Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, rec := range got.List {
		if !change(rec.Fields) {
			continue
		}
		prev := rec.Revision
		rec.Revision = store.NewRevision(prev)
		if err := w.s.Save(ctx, rec, prev); err != nil {
			w.t.Fatal(err)
		}
		n++
	}
	return n
}

// A position that somebody has moved into the future, or made unreadable, keeps nobody from what is
// due after that: no process can have saved it. What was due before it waits for the next read from
// the start at most.
func TestPositionInTheFuture(t *testing.T) {
	for _, to := range []string{"99991231T235959.999Z", "~"} {
		testEditedPosition(t, to)
	}
}

func testEditedPosition(t *testing.T, to string) {
	in(t, func(t *testing.T, w *world) {
		w.fill(400, time.Hour)
		w.sweep()
		n := w.editCursors(func(f store.Fields) bool {
			at, _ := f["position"].(string)
			if len(at) < 14 {
				return false
			}
			f["position"] = at[:14] + to
			return true
		})
		if n == 0 {
			t.Fatal("there is no position to move")
		}
		w.put(1, 4, "due soon", time.Now().Add(time.Minute))
		time.Sleep(2 * time.Hour)
		w.sweep()
		if left := w.left(); len(left) > 0 {
			t.Errorf("the position in the future hides %d entities", len(left))
		}
		for id, c := range w.cursors() {
			if k, err := expirykey.Parse(c.Position.Value.Text); err == nil && k.Expires.After(time.Now()) {
				t.Errorf("the cursor of %v is still at %v", id, k.Expires)
			}
		}
	})
}

// A read from the start that somebody has moved out of its range begins again, and ends.
func TestReadFromTheStartOutOfItsRange(t *testing.T) {
	for _, to := range []string{"~", "00000002.", "!"} {
		in(t, func(t *testing.T, w *world) {
			w.begin()
			w.fill(400, time.Hour)
			time.Sleep(2 * time.Hour)
			w.sweep()
			w.target.Rewind = time.Hour
			time.Sleep(2 * time.Hour)
			w.dueIn(1, 1, "behind", time.Now().Add(-3*time.Hour))
			began := store.FormatTime(time.Now())
			if n := w.editCursors(func(f store.Fields) bool {
				f["rewind_began"], f["rewind_position"], f["rewind_window_ms"] = began, to, int64(60_000)
				return f["position"] != ""
			}); n == 0 {
				t.Fatal("there is no cursor to edit")
			}
			var scans atomic.Int64
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Scan" {
					scans.Add(1)
				}
				return nil
			}
			w.sweep()
			w.wantLeft()
			if n := scans.Load(); n > 300 {
				t.Errorf("moved to %q: %d queries", to, n)
			}
		})
	}
}

// A visit may be interrupted where a malformed text ends its page. The next one reads on from there.
func TestPositionAtAMalformedText(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.target.Page = 4
		due := time.Now().Truncate(time.Millisecond)
		malformed := ""
		for i := range 40 {
			key, err := expirykey.New(1, 2, due.Add(time.Duration(i)*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			w.raw(fmt.Sprintf("e-%02d", i), key.String())
			if i == 10 {
				malformed = key.String() + "x" // the last of the third page
				w.raw("malformed", malformed)
			}
		}
		time.Sleep(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var pages atomic.Int64
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" && c.Query.Lo.Text[:13] == "00000001.0002" {
				if pages.Add(1) == 3 {
					cancel()
				}
			}
			return nil
		}
		sweep.Run(ctx, w.config())
		var at store.Value
		for id, c := range w.cursors() {
			if id.Shard == "0002" {
				at = c.Position.Value
			}
		}
		if at.Text != malformed {
			t.Fatalf("the cursor is at %v, not at the malformed text", at)
		}
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if lo := c.Query.Lo; c.Method == "Scan" && lo.Text[:13] == "00000001.0002" && c.Query.After.Value.Compare(at) < 0 {
				t.Errorf("it reads from %v, after %v, though it has read up to %v", lo, c.Query.After, at)
			}
			return nil
		}
		w.sweep()
		w.wantLeft("malformed")
	})
}
