package firestore

import (
	"errors"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// A look-up whose reply does not tell of every document fails: nothing counts as missing because
// nobody told of it.
func TestLookUpThatTellsOfLess(t *testing.T) {
	w := newWorld(t)
	w.row(3)
	keys := []string{"sessions/s-000", "sessions/s-001", "sessions/s-002"}
	for _, key := range []string{"a", "b"} {
		r := store.Record{Sort: store.CursorRecord, Target: "sessions", Key: key, Revision: "1-a", Fields: store.Fields{"n": int64(1)}}
		if err := w.Save(t.Context(), r, ""); err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func() error{
		"settle": func() error {
			keep := func(store.Value) store.Verdict { return store.Keep }
			_, err := w.Settle(t.Context(), everything(sessions), store.Entry{Key: keys[0]}, keep)
			return err
		},
		"fetch": func() error {
			_, err := w.Fetch(t.Context(), sessions, "", keys, time.Time{})
			return err
		},
		"look": func() error {
			var rows store.Rows
			return w.Look(t.Context(), store.WalkQuery{Target: sessions}, keys, &rows)
		},
		"load": func() error {
			_, err := w.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions", Keys: []string{"a", "b"}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); err != nil {
				t.Fatal(err)
			}
			w.faults.Add(faultrpc.Fault{Method: "BatchGetDocuments", Loses: 1})
			if err := call(); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("error: %v", err)
			}
		})
	}
}
