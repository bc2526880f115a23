package datastore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

var checkedGuards = []store.Guard{store.GuardLookup, store.GuardQuery}

// Somebody looked at entities before they are deleted. One was written since, and its expiry is what it was: it
// is left alone, whatever the guard.
func TestDisposeLeavesWhatWasWrittenSinceALook(t *testing.T) {
	for _, g := range append(checkedGuards, "") {
		w := newWorld(t, "")
		keys := names("s", 2)
		w.put("c", keys...)
		q := query(g, "a", "d")
		b := batch(q, w.page(q))
		var rows store.Rows
		texts := []string{b.Ops[0].Entry.Key, b.Ops[1].Entry.Key}
		if err := w.Look(t.Context(), store.WalkQuery{Target: q.Target}, texts, &rows); err != nil || len(rows.List) != 2 {
			t.Fatalf("look: %v, %v", rows, err)
		}
		for i, row := range rows.List {
			b.Ops[i].Entry.AsOf = row.Written
		}
		ps := sdk.PropertyList{{Name: property, Value: "c"}, {Name: "extended", Value: true}}
		if _, err := w.app.Put(t.Context(), keys[0], &ps); err != nil {
			t.Fatal(err)
		}
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatalf("guard %q: %v", g, err)
		}
		if b.Ops[0].Outcome != store.Changed || !b.Ops[0].Known || b.Ops[0].Now != store.TextValue("c") || b.Ops[1].Outcome != store.Deleted {
			t.Errorf("guard %q: %+v", g, b.Ops)
		}
	}
}

func TestDisposeLeavesWhatChanged(t *testing.T) {
	for _, g := range append(checkedGuards, "") {
		for _, dry := range []bool{false, true} {
			w := newWorld(t, "")
			keys := names("s", 8)
			w.put("c", keys...)
			q := query(g, "a", "d")
			b := batch(q, w.page(q))
			w.put("x", keys[0])         // pushed out of the range
			w.put("b", keys[1])         // moved within it
			w.put(nil, keys[2])         // never expires now
			w.put([]any{"c"}, keys[3])  // the index shows the same
			w.put(int64(5), keys[4])    //
			w.put([]byte("c"), keys[5]) // the index shows the same
			if err := w.app.Delete(t.Context(), keys[6]); err != nil {
				t.Fatal(err)
			}
			if g == store.GuardQuery { // sees what the index shows: lists and blobs are promised away
				w.put("c", keys[3], keys[5])
			}
			b.DryRun = dry
			before := w.left("")
			w.faults.Reset()
			if err := w.Dispose(t.Context(), b); err != nil {
				t.Fatalf("guard %q: %v", g, err)
			}
			want := []store.Op{
				{Outcome: store.Changed, Now: store.TextValue("x"), Known: true},
				{Outcome: store.Changed, Now: store.TextValue("b"), Known: true},
				{Outcome: store.Changed, Known: true},
				{Outcome: store.Changed, Now: store.Value{Type: store.List, Text: `["c"]`}, Known: true},
				{Outcome: store.Changed, Now: store.Value{Type: store.Other, Text: `5`}, Known: true},
				{Outcome: store.Changed, Now: store.Value{Type: store.Other, Text: `"Yw=="`}, Known: true},
				{Outcome: store.Gone},
				{Outcome: store.Deleted},
			}
			if g == store.GuardQuery {
				want[3], want[5] = store.Op{Outcome: store.Deleted}, store.Op{Outcome: store.Deleted}
			}
			for i, op := range b.Ops {
				op.Entry = store.Entry{}
				if op != want[i] {
					t.Errorf("guard %q, dry %v, entity %d: %+v, want %+v", g, dry, i, op, want[i])
				}
			}
			left := w.left("")
			if dry {
				if len(left) != len(before) {
					t.Errorf("guard %q: a dry run left %d of %d", g, len(left), len(before))
				}
				if m := w.faults.Methods(); slices.Contains(m, "Commit") || slices.Contains(m, "BeginTransaction") {
					t.Errorf("guard %q: a dry run called %v", g, m)
				}
				continue
			}
			for i, k := range keys {
				if kept := want[i].Outcome == store.Changed; left[FormatKey(k)] != kept {
					t.Errorf("guard %q: %v is there: %v, want %v", g, k, left[FormatKey(k)], kept)
				}
			}
			if b.SteppedOver != store.UnknownSteps {
				t.Errorf("guard %q: stepped over %d", g, b.SteppedOver)
			}
		}
	}
}

// The promise of single values covers what an index shows like a plain text: with a check
// by query these go, with lookups they stay. docs/costs.md says so.
func TestWhatSingleValuedPromises(t *testing.T) {
	for _, g := range checkedGuards {
		w := newWorld(t, "")
		w.put("c", name("text"))
		w.put([]byte("c"), name("blob"))
		w.put([]any{"c", "x"}, name("list"))
		w.put(&sdk.Entity{Properties: []sdk.Property{{Name: property, Value: "c"}}}, name("map"))
		w.put(&sdk.Entity{Properties: []sdk.Property{{Name: "other", Value: "c"}}}, name("other map"))
		q := query(g, "a", "d")
		q.Target.SingleValued = g == store.GuardQuery
		b := batch(q, w.page(q))
		if len(b.Ops) != 4 {
			t.Fatalf("guard %q: the index shows %+v", g, b.Ops)
		}
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		left := w.left("")
		for id, want := range map[string]bool{
			"text": false, "blob": g == store.GuardLookup, "list": g == store.GuardLookup, "map": g == store.GuardLookup, "other map": true,
		} {
			if left[FormatKey(name(id))] != want {
				t.Errorf("guard %q: %s is there: %v, want %v", g, id, !want, want)
			}
		}
	}
}

// TestDisposeTellsNamesFromNumbers has pairs of keys in one page which the
// client takes for the same; one of each pair is extended after the scan.
func TestDisposeTellsNamesFromNumbers(t *testing.T) {
	for _, g := range checkedGuards {
		for _, swap := range []int{0, 1} {
			w := newWorld(t, "")
			pairs := [][2]*sdk.Key{
				{name("7"), sdk.IDKey(kind, 7, nil)},
				{sdk.NameKey(kind, "b", sdk.NameKey(kind, "a", nil)), name("a/Session,b")},
			}
			for _, p := range pairs {
				w.put("c", p[0], p[1])
			}
			q := query(g, "a", "d")
			b := batch(q, w.page(q))
			for _, p := range pairs {
				w.put("x", p[swap])
			}
			if err := w.Dispose(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			left := w.left("")
			for _, p := range pairs {
				live, dead := FormatKey(p[swap]), FormatKey(p[1-swap])
				if !left[live] || left[dead] {
					t.Errorf("guard %s: extended %s is there: %v; expired %s is there: %v", g, live, left[live], dead, left[dead])
				}
				if o := outcomes(b); o[live] != store.Changed || o[dead] != store.Deleted {
					t.Errorf("guard %s: outcomes %v", g, o)
				}
			}
		}
	}
}

// TestDisposeWithinListsOfKeysFromText is what a restart does: no Ref.
func TestDisposeByText(t *testing.T) {
	w := newWorld(t, "named-db")
	keys := oddKeys("tenant")
	w.put("c", keys...)
	q := query(store.GuardLookup, "a", "d")
	q.Namespace = "tenant"
	b := batch(q, w.page(q))
	for i := range b.Ops {
		b.Ops[i].Entry.Ref = nil
	}
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if left := w.left("tenant"); len(b.Ops) != len(keys) || len(left) != 0 {
		t.Errorf("disposed of %d of %d, left %v", len(b.Ops), len(keys), left)
	}
}

// TestDisposeLosesToAWriter changes an entity between the transaction's read
// and its commit.
func TestDisposeLosesToAWriter(t *testing.T) {
	for _, g := range checkedGuards {
		w := newWorld(t, "")
		keys := names("s", 3)
		w.put("c", keys...)
		q := query(g, "a", "d")
		b := batch(q, w.page(q))
		// The emulator lets the writer wait for the transaction's locks, so it
		// writes while the commit is on its way and wins or comes after.
		var writer sync.WaitGroup
		w.faults.Add(faultrpc.Fault{Method: "Commit", Code: codes.Aborted, Message: "too much contention", Hook: func(context.Context, any, any) {
			writer.Go(func() { w.put("x", keys[1]) })
		}})
		err := w.Dispose(t.Context(), b)
		writer.Wait()
		if !errors.Is(err, store.ErrContention) || !store.Transient(err) {
			t.Errorf("guard %s: %v, want ErrContention", g, err)
		}
		if got := w.faults.Methods(); got[len(got)-1] != "Rollback" {
			t.Errorf("guard %s: called %v, want a rollback at the end", g, got)
		}
		for k, o := range outcomes(b) {
			if o != store.Unknown {
				t.Errorf("guard %s: outcome of %s is %d after a lost transaction", g, k, o)
			}
		}
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if o := outcomes(b); o["Session/s00000"] != store.Deleted || o["Session/s00001"] != store.Changed || o["Session/s00002"] != store.Deleted {
			t.Errorf("guard %s: outcomes of the repeat: %v", g, o)
		}
		if left := w.left(""); len(left) != 1 || !left["Session/s00001"] {
			t.Errorf("guard %s: left %v, want the extended one", g, left)
		}
	}
}

// TestDisposeLostReply: the commit happened, but nobody heard of it.
func TestDisposeLostReply(t *testing.T) {
	for _, g := range checkedGuards {
		w := newWorld(t, "")
		w.put("c", names("s", 3)...)
		q := query(g, "a", "d")
		b := batch(q, w.page(q))
		w.faults.Add(faultrpc.Fault{Method: "Commit", After: true, Code: codes.Unavailable, Message: "connection reset"})
		if err := w.Dispose(t.Context(), b); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("guard %s: %v, want ErrUnavailable", g, err)
		}
		for k, o := range outcomes(b) {
			if o != store.Unknown {
				t.Errorf("guard %s: outcome of %s is %d, want Unknown", g, k, o)
			}
		}
		if left := w.left(""); len(left) != 0 {
			t.Errorf("guard %s: the lost commit left %v", g, left)
		}
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		for k, o := range outcomes(b) {
			if o != store.Gone {
				t.Errorf("guard %s: outcome of %s in the repeat is %d, want Gone", g, k, o)
			}
		}
	}
}

func TestDisposeOfNothingCallsNobody(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 2)...)
	for _, g := range checkedGuards {
		q := query(g, "a", "d")
		w.faults.Reset()
		if err := w.Dispose(t.Context(), &store.Batch{Query: q}); err != nil || len(w.faults.Methods()) != 0 {
			t.Errorf("guard %s: an empty batch: %v, called %v", g, err, w.faults.Methods())
		}
	}
	q := query(store.GuardLookup, "a", "d")
	b := batch(q, w.page(q))
	w.put("x", names("s", 2)...)
	w.faults.Reset()
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := w.faults.Methods(); !slices.Equal(got, []string{"BeginTransaction", "Lookup", "Rollback"}) {
		t.Errorf("with nothing left to delete: called %v", got)
	}
}

// TestDisposeStopsWithItsContext: Dispose writes nothing once the context is done,
// but still rolls the transaction back.
func TestDisposeStopsWithItsContext(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 2)...)
	q := query(store.GuardLookup, "a", "d")
	b := batch(q, w.page(q))
	ctx, cancel := context.WithCancel(t.Context())
	w.faults.Reset()
	w.faults.Add(faultrpc.Fault{Method: "Lookup", After: true, Hook: func(context.Context, any, any) { cancel() }})
	if err := w.Dispose(ctx, b); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	calls := w.faults.Calls("")
	if last := calls[len(calls)-1]; last.Method != "Rollback" || last.Code != codes.OK {
		t.Errorf("called %v, want a successful rollback at the end", w.faults.Methods())
	}
	if n := len(w.faults.Calls("Commit")); n != 0 || len(w.left("")) != 2 {
		t.Errorf("%d commits after the context was done, %d left of 2", n, len(w.left("")))
	}
}

// TestLookupTransfersOneProperty: big entities are not read as a whole.
func TestLookupTransfersOneProperty(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 2)...)
	q := query(store.GuardLookup, "a", "d")
	b := batch(q, w.page(q))
	seen := 0
	w.faults.Add(faultrpc.Fault{Method: "Lookup", After: true, Times: -1, Hook: func(_ context.Context, _, reply any) {
		for _, f := range reply.(*pb.LookupResponse).Found {
			seen++
			if len(f.Entity.Properties) != 1 || f.Entity.Properties[property] == nil {
				t.Errorf("a lookup transferred %v", f.Entity.Properties)
			}
		}
	}})
	if err := w.Dispose(t.Context(), b); err != nil || seen != 2 {
		t.Errorf("%v, looked at %d of 2", err, seen)
	}
}

// TestLookupFollowsDeferredKeys: the service may answer for some keys later.
func TestLookupFollowsDeferredKeys(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 4)...)
	q := query(store.GuardLookup, "a", "d")
	b := batch(q, w.page(q))
	w.faults.Add(faultrpc.Fault{Method: "Lookup", After: true, Hook: func(_ context.Context, _, reply any) {
		r := reply.(*pb.LookupResponse)
		for _, f := range r.Found[2:] {
			r.Deferred = append(r.Deferred, f.Entity.Key)
		}
		r.Found = r.Found[:2]
	}})
	if err := w.Dispose(t.Context(), b); err != nil || len(w.left("")) != 0 {
		t.Errorf("%v, outcomes %v, left %v", err, outcomes(b), w.left(""))
	}
}

// The guard by lookup says when each entity was last written.
func TestLookupSaysWhenItWasWritten(t *testing.T) {
	w := newWorld(t, "")
	w.put("b", &sdk.Key{Kind: kind, Name: "x", Parent: &sdk.Key{Kind: "User", ID: 7}})
	q := query(store.GuardLookup, "a", "c")
	b := batch(q, w.page(q))
	if err := w.Dispose(t.Context(), b); err != nil || len(b.Ops) != 1 {
		t.Fatalf("%v, outcomes %v", err, outcomes(b))
	}
	if at := b.Ops[0].Entry.Written; time.Since(at) > time.Hour || time.Until(at) > time.Hour {
		t.Errorf("written at %v", at)
	}
}

func TestSettle(t *testing.T) {
	w := newWorld(t, "")
	key := &sdk.Key{Kind: kind, ID: 7, Parent: &sdk.Key{Kind: "User", Name: "u", Namespace: "tenant"}, Namespace: "tenant"}
	w.put([]any{"c", int64(3)}, key)
	q := query(store.GuardLookup, "a", "d")
	q.Namespace = "tenant"
	e := store.Entry{Key: FormatKey(key)}
	settle := func(v store.Verdict) (store.Outcome, error) {
		return w.Settle(t.Context(), q, e, func(now store.Value) store.Verdict {
			if want := (store.Value{Type: store.List, Text: `["c",3]`}); now != want {
				t.Errorf("decide got %+v, want %+v", now, want)
			}
			return v
		})
	}
	if o, err := settle(store.Keep); o != store.Kept || err != nil || len(w.left("tenant")) != 1 {
		t.Errorf("Keep: %d, %v, %d left", o, err, len(w.left("tenant")))
	}
	w.faults.Add(faultrpc.Fault{Method: "Commit", Code: codes.Aborted, Message: "contention"})
	if o, err := settle(store.Delete); o != store.Unknown || !errors.Is(err, store.ErrContention) || len(w.left("tenant")) != 1 {
		t.Errorf("Delete that loses: %d, %v", o, err)
	}
	if o, err := settle(store.Delete); o != store.Deleted || err != nil || len(w.left("tenant")) != 0 {
		t.Errorf("Delete: %d, %v, %d left", o, err, len(w.left("tenant")))
	}
	if o, err := settle(store.Delete); o != store.Gone || err != nil {
		t.Errorf("again: %d, %v", o, err)
	}
	e.Key = "nonsense"
	if _, err := settle(store.Delete); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a key that does not parse: %v", err)
	}
}

// TestDisposeRacesAWriter has an application extend an entity just after the
// transaction has looked at it, with nothing injected: whether the store makes
// the writer wait or the transaction fail, the extended entity is there in the
// end.
func TestDisposeRacesAWriter(t *testing.T) {
	for _, g := range checkedGuards {
		w := newWorld(t, "")
		keys := names("s", 3)
		w.put("c", keys...)
		q := query(g, "a", "d")
		b := batch(q, w.page(q))
		read := "Lookup"
		if g == store.GuardQuery {
			read = "RunQuery"
		}
		written := make(chan struct{})
		w.faults.Reset()
		w.faults.Add(faultrpc.Fault{Method: read, After: true, Hook: func(context.Context, any, any) {
			go func() {
				defer close(written)
				w.put("x", keys[1])
			}()
			select {
			case <-written: // it got in first
			case <-time.After(200 * time.Millisecond): // it waits for the transaction
			}
		}})
		err := w.Dispose(t.Context(), b)
		<-written
		t.Logf("guard %s: dispose: %v, outcomes %v", g, err, outcomes(b))
		if err != nil && !errors.Is(err, store.ErrContention) {
			t.Errorf("guard %s: %v, want success or ErrContention", g, err)
		}
		var c cell
		c.property = property
		if err := w.app.Get(t.Context(), keys[1], &c); err != nil || c.value != "x" {
			t.Errorf("guard %s: the extended entity holds %v, %v", g, c.value, err)
		}
	}
}
