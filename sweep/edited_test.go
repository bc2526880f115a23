package sweep_test

import (
	"context"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
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
