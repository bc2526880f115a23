package firestore

import (
	"errors"
	"math"
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

// A query whose reply ends before it says anything has not found that there is nothing: what lies below an entity
// would be forgotten.
func TestQueryThatIsNotAnswered(t *testing.T) {
	w := newWorld(t)
	w.row(1)
	w.putBelow(nil, "sessions/s-000/items/a")
	below := func() (list []store.Descendant, err error) {
		var page store.Descendants
		err = w.Descendants(t.Context(), store.DescendantQuery{Target: sessions, Key: "sessions/s-000", Limit: 10}, &page)
		return page.List, err
	}
	if list, err := below(); err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	w.faults.Add(faultrpc.Fault{Method: "RunQuery", Loses: math.MaxInt})
	if list, err := below(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%v, %v", list, err)
	}
	w.faults.Add(faultrpc.Fault{Method: "RunAggregationQuery", Loses: math.MaxInt})
	if n, err := w.Count(t.Context(), sessions, "", store.Span{}, 0); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a count: %d, %v", n, err)
	}
	w.faults.Add(faultrpc.Fault{Method: "BatchGetDocuments", Loses: math.MaxInt})
	isDue := func(store.Value) bool { return true }
	o, err := w.DeleteBelow(t.Context(), everything(sessions), store.Entry{Key: "sessions/s-000"},
		[]store.Descendant{{Key: "sessions/s-000/items/a"}}, isDue)
	if o != store.Unknown || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a delete of what lies below: %v, %v", o, err)
	}
}
