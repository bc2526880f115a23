package inspect_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/store"
)

// record reads the target record as the store has it.
func (w *world) record() store.Record {
	w.t.Helper()
	got, err := w.s.Load(w.t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: w.target.Name, Keys: []string{w.target.Name}})
	if err != nil || len(got.List) != 1 {
		w.t.Fatalf("%v, %v", got.List, err)
	}
	return got.List[0]
}

// putRecordBack writes an old record in the place of the present one, with its old revision.
func (w *world) putRecordBack(old store.Record) {
	w.t.Helper()
	if err := w.s.Save(context.WithoutCancel(w.t.Context()), old, w.record().Revision); err != nil {
		w.t.Fatal(err)
	}
}

// saysAfterRestore fails the test unless the status has a reason with this text, and names the chapter.
func saysAfterRestore(t *testing.T, st inspect.TargetStatus, text string) {
	t.Helper()
	if !strings.Contains(st.Reason, text) || !strings.Contains(st.Reason, "After a restore in docs/operations.md") {
		t.Errorf("the reason is %q, and should say %q", st.Reason, text)
	}
}

// A status says that the records are older than the entities, once they alone were restored.
func TestRecordsAreOlder(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.sweep()
		old := w.record()
		time.Sleep(90 * time.Minute)
		w.sweep()
		if st := w.status(); st.Reason != "" || st.Held != "" {
			t.Errorf("all is well: %+v", st)
		}
		w.putRecordBack(old)
		st := w.status()
		saysAfterRestore(t, st, "an old copy was put back")
		if st.Verdict != inspect.Held || st.Held != "record" || st.Err == nil {
			t.Errorf("what sweeps refuse: %+v", st)
		}
	})
	in(t, func(t *testing.T, w *world) { // without its cursors
		w.target.Policy = hourly
		w.sweep()
		w.put(3, 4, "later", time.Now().Add(time.Hour))
		st := w.status()
		saysAfterRestore(t, st, "the index has the key 00000003.")
		if st.Held != "" || st.Err != nil {
			t.Errorf("nothing is held by that: %+v", st)
		}
	})
}

// A status says that entities are older than the records, if it is asked for all.
func TestEntitiesAreOlder(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.sweep()
		for range 6 {
			time.Sleep(61 * time.Minute)
			w.sweep()
		}
		if st := w.status(); st.Generations[0].Number == 1 {
			t.Fatalf("generation 1 has not retired: %+v", st.Generations)
		}
		w.put(1, 4, "restored", time.Now().Add(-time.Hour))
		if st := w.status(); st.Reason != "" {
			t.Errorf("it steps over no tombstones: %q", st.Reason)
		}
		var st inspect.TargetStatus
		w.looking(func() (err error) {
			st, err = inspect.StatusWith(t.Context(), w.config(), w.target, inspect.Look{All: true})
			return err
		})
		saysAfterRestore(t, st, "the index has the key 00000001.")
	})
}

// A status says that a record is of a time to come: the store's clock went back.
func TestRecordIsOfTheFuture(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		rec := w.record()
		rec.Fields["created"] = store.FormatTime(time.Now().Add(time.Hour))
		w.putRecordBack(rec)
		saysAfterRestore(t, w.status(), "of a time to come: the target record")
	})
}
