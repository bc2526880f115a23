package datastore

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

func fields() store.Fields {
	return store.Fields{
		"text": "é", "empty": "", "long": strings.Repeat("x", 4000), "schema": int64(1), "big": int64(math.MaxInt64),
		"rate": 500.0, "half": 0.5, "paused": false, "open": true, "none": []store.Fields{},
		"generations": []store.Fields{{"number": int64(1), "long": strings.Repeat("y", 4000), "more": []store.Fields{{"a": "b"}}}, {}},
	}
}

func TestRecordsKeepTheirFields(t *testing.T) {
	for _, database := range []string{"", "named-db"} {
		w := newWorld(t, database)
		ctx := t.Context()
		records := []store.Record{
			{Sort: store.CursorRecord, Key: "sessions.00000001.0001", Target: "sessions", Revision: "1-a", Fields: fields()},
			{Sort: store.CursorRecord, Key: "sessions.00000001.0000@te%2Fn/ant", Target: "sessions", Revision: "1-b", Fields: store.Fields{}},
			{Sort: store.CursorRecord, Key: "other.00000001.0000", Target: "other", Revision: "1-c", Fields: store.Fields{"a": "b"}},
			{Sort: store.TargetRecord, Key: "sessions", Target: "sessions", Revision: "1-d", Fields: fields()},
		}
		for _, r := range records {
			if err := w.Save(ctx, r, ""); err != nil {
				t.Fatal(err)
			}
		}
		got, err := w.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
		if want := []store.Record{records[1], records[0]}; err != nil || !reflect.DeepEqual(got.List, want) {
			t.Errorf("cursor records: %+v, %v, want %+v", got.List, err, want)
		}
		one, err := w.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
		if err != nil || !reflect.DeepEqual(one.List, records[3:]) {
			t.Errorf("target record: %+v, %v, want %+v", one.List, err, records[3:])
		}
		if one.Now.Before(got.Now) || got.Now.IsZero() || got.Now.Year() < 2026 {
			t.Errorf("the store's time went from %v to %v", got.Now, one.Now)
		}
		for _, sort := range []store.RecordSort{store.TargetRecord, store.CursorRecord} {
			if none, err := w.Load(ctx, store.RecordQuery{Sort: sort, Target: "nobody"}); err != nil || len(none.List) != 0 || none.Now.IsZero() {
				t.Errorf("%s of nobody: %+v, %v", sort, none, err)
			}
		}
	}
}

func TestSaveIsCompareAndSet(t *testing.T) {
	w := newWorld(t, "")
	ctx := t.Context()
	r := store.Record{Sort: store.CursorRecord, Key: "k", Target: "sessions", Revision: "1-a", Fields: store.Fields{"n": int64(1)}}
	save := func(what, revision, prev string, n int64, want error) {
		t.Helper()
		r.Revision, r.Fields = revision, store.Fields{"n": n}
		if n < 0 {
			r.Fields = nil
		}
		if err := w.Save(ctx, r, prev); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check := func(revision string, n int64) {
		t.Helper()
		got, err := w.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
		if err != nil {
			t.Fatal(err)
		}
		if revision == "" && len(got.List) == 0 {
			return
		}
		if len(got.List) != 1 || got.List[0].Revision != revision || got.List[0].Fields["n"] != n {
			t.Errorf("the store holds %+v, want revision %q with %d", got.List, revision, n)
		}
	}
	save("update of what is not there", "1-a", "0-x", 1, store.ErrConflict)
	check("", 0)
	save("create", "1-a", "", 1, nil)
	save("create again, repeated", "1-a", "", 1, nil)
	save("create again, by another", "1-b", "", 2, store.ErrConflict)
	check("1-a", 1)
	save("update", "2-a", "1-a", 2, nil)
	save("update, repeated", "2-a", "1-a", 2, nil)
	save("update by another", "2-b", "1-a", 3, store.ErrConflict)
	check("2-a", 2)
	save("removal by another", "3-b", "1-a", -1, store.ErrConflict)
	check("2-a", 2)
	save("removal", "3-a", "2-a", -1, nil)
	check("", 0)
	save("removal, repeated", "3-a", "2-a", -1, nil)

	// A reply that got lost, and a writer that came in between.
	w.faults.Add(faultrpc.Fault{Method: "Commit", After: true, Code: codes.DeadlineExceeded, Message: "lost"})
	save("create with a lost reply", "1-a", "", 1, store.ErrDeadline)
	save("its repeat", "1-a", "", 1, nil)
	check("1-a", 1)
	w.faults.Add(faultrpc.Fault{Method: "Commit", Code: codes.Aborted, Message: "contention"})
	save("update that loses", "2-a", "1-a", 2, store.ErrContention)
	check("1-a", 1)
}

// TestSaveRaces lets many savers follow one revision: exactly one succeeds.
func TestSaveRaces(t *testing.T) {
	w := newWorld(t, "")
	const savers = 8
	results := make(chan error, savers)
	for i := range savers {
		go func() {
			r := store.Record{Sort: store.CursorRecord, Key: "k", Target: "t", Revision: store.NewRevision(""), Fields: store.Fields{"n": int64(i)}}
			results <- w.Save(t.Context(), r, "")
		}()
	}
	won := 0
	for range savers {
		switch err := <-results; {
		case err == nil:
			won++
		case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrContention):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d savers succeeded, want 1", won, savers)
	}
}

func TestRecordsAreStrict(t *testing.T) {
	w := newWorld(t, "")
	good := store.Record{Sort: store.CursorRecord, Key: "k", Target: "t", Revision: "1-a", Fields: store.Fields{}}
	for what, change := range map[string]func(*store.Record){
		"an int":           func(r *store.Record) { r.Fields["n"] = 1 },
		"a nested int":     func(r *store.Record) { r.Fields["n"] = []store.Fields{{"n": 1}} },
		"a reserved field": func(r *store.Record) { r.Fields["target"] = "x" },
		"no revision":      func(r *store.Record) { r.Revision = "" },
		"no key":           func(r *store.Record) { r.Key = "" },
	} {
		r := good
		r.Fields = store.Fields{}
		change(&r)
		if err := w.Save(t.Context(), r, ""); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	for what, p := range map[string]sdk.Property{
		"a null":      {Name: "n", Value: nil},
		"a blob":      {Name: "n", Value: []byte("x")},
		"a flat list": {Name: "n", Value: []any{"x"}},
	} {
		ps := sdk.PropertyList{{Name: "target", Value: "t"}, {Name: "revision", Value: "1-a"}, p}
		if _, err := w.app.Put(t.Context(), sdk.NameKey("ReaperCursor", "k", nil), &ps); err != nil {
			t.Fatal(err)
		}
		if got, err := w.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "t"}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: %+v, %v, want ErrCorrupt", what, got, err)
		}
	}
	ps := sdk.PropertyList{{Name: "target", Value: "t"}}
	if _, err := w.app.Put(t.Context(), sdk.NameKey("ReaperCursor", "k", nil), &ps); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "t"}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("no revision: %+v, %v, want ErrCorrupt", got, err)
	}
}

func TestLoadNeedsTheStoresTime(t *testing.T) {
	w := newWorld(t, "")
	w.faults.Add(faultrpc.Fault{Method: "Lookup", After: true, Hook: func(_ context.Context, _, reply any) {
		reply.(*pb.LookupResponse).ReadTime = nil
	}})
	if _, err := w.Load(t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "t", Keys: []string{"t"}}); !errors.Is(err, store.ErrFailed) || !strings.Contains(err.Error(), "time") {
		t.Errorf("a reply without its time: %v", err)
	}
}
