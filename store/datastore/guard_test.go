package datastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"

	"github.com/reaper-ttl/reaper/internal/datastorerpc"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// What auto comes to, for each target and database.
func TestAutoGuard(t *testing.T) {
	plain := store.Target{Kind: kind, Property: property, Type: store.Text, SingleValued: true}
	with := func(change func(*store.Target)) store.Target {
		t := plain
		change(&t)
		return t
	}
	for _, c := range []struct {
		what     string
		target   store.Target
		emulated bool
		groups   bool
		want     store.Guarding
	}{
		{"nothing said", plain, false, false, store.Guarding{Guard: store.GuardQuery, Most: 500}},
		{"auto", with(func(t *store.Target) { t.Guard = store.GuardAuto }), false, false, store.Guarding{Guard: store.GuardQuery, Most: 500}},
		{"no promise", with(func(t *store.Target) { t.SingleValued = false }), false, false,
			store.Guarding{Guard: store.GuardLookup, Why: "single_valued is false", Most: 500}},
		{"timestamps", with(func(t *store.Target) { t.Type = store.Instant }), false, false,
			store.Guarding{Guard: store.GuardLookup, Why: "a query shows timestamps as numbers", Most: 500}},
		{"on the emulator", plain, true, false,
			store.Guarding{Guard: store.GuardLookup, Why: "the emulator blocks parallel range queries in transactions", Most: 500}},
		{"with groups", plain, false, true, store.Guarding{Guard: store.GuardLookup, Why: groupsMode, Most: 25}},
		{"lookup", with(func(t *store.Target) { t.Guard = store.GuardLookup }), false, false,
			store.Guarding{Guard: store.GuardLookup, Why: "guard: lookup", Most: 500}},
		{"query on the emulator", with(func(t *store.Target) { t.Guard = store.GuardQuery }), true, false,
			store.Guarding{Guard: store.GuardQuery, Most: 500}},
	} {
		db := &DB{emulated: c.emulated}
		db.hasGroups.Store(c.groups)
		if got := db.Guard(c.target); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// Only a variable, or the options, make a database one of an emulator's.
func TestEmulated(t *testing.T) {
	t.Setenv("DATASTORE_EMULATOR_HOST", "")
	o := Options{Project: "p", Endpoint: "127.0.0.1:1"}
	o.ClientOptions = append(o.ClientOptions, option.WithoutAuthentication())
	if db := openWith(t, o); db.emulated {
		t.Error("an endpoint of its own is taken for an emulator")
	}
	t.Setenv("DATASTORE_EMULATOR_HOST", "127.0.0.1:1")
	if db := openWith(t, o); !db.emulated {
		t.Error("the variable is not heard")
	}
}

// A guard query that nothing can be promised for is refused before anything is sent.
func TestGuardQueryNeedsPlainTexts(t *testing.T) {
	var faults faultrpc.Injector
	db := openAt(t, "127.0.0.1:1", &faults)
	for what, change := range map[string]func(*store.Target){
		"timestamps": func(t *store.Target) { t.Type = store.Instant },
		"no promise": func(t *store.Target) { t.SingleValued = false },
		"no guard":   func(t *store.Target) { t.Guard = "none" },
	} {
		q := query(store.GuardQuery, "a", "d")
		change(&q.Target)
		err := db.Dispose(t.Context(), &store.Batch{Query: q, Ops: []store.Op{{Entry: store.Entry{Key: "Session/a"}}}})
		if !errors.Is(err, store.ErrInvalid) || len(faults.Methods()) > 0 {
			t.Errorf("%s: %v, called %v", what, err, faults.Methods())
		}
	}
}

// asked returns the filters of all queries that ran in a transaction, each as "a >= x".
func (w *world) asked() (list []string) {
	for _, c := range w.faults.Calls("RunQuery") {
		r := c.Req.(*pb.RunQueryRequest)
		if r.GetReadOptions().GetTransaction() == nil {
			continue
		}
		var parts []string
		for _, f := range r.GetQuery().GetFilter().GetCompositeFilter().GetFilters() {
			p := f.GetPropertyFilter()
			op := map[pb.PropertyFilter_Operator]string{pb.PropertyFilter_EQUAL: "=", pb.PropertyFilter_GREATER_THAN: ">",
				pb.PropertyFilter_GREATER_THAN_OR_EQUAL: ">=", pb.PropertyFilter_LESS_THAN_OR_EQUAL: "<="}[p.GetOp()]
			v := p.GetValue().GetStringValue()
			if k := p.GetValue().GetKeyValue(); k != nil {
				v = k.GetPath()[0].GetName()
			}
			parts = append(parts, op+v)
		}
		list = append(list, strings.Join(parts, " "))
	}
	return list
}

// The check asks for the batch's own part of the index, and for nothing before or
// behind it, and most often in one query.
func TestCheckAsksForItsOwn(t *testing.T) {
	for _, c := range []struct {
		what       string
		values     string // of entities s00000, s00001, ...
		from, to   int    // the batch
		after      int    // the page began after this entity; -1: at the start of the range
		asked      []string
		reads, del int64
	}{
		{"values of their own", "bcdefg", 1, 4, -1, []string{">=c <=e"}, 1, 3},
		{"all of it", "bcdefg", 0, 6, -1, []string{">=b <=g"}, 1, 6},
		{"one", "bcdefg", 2, 3, -1, []string{"=d >=s00002 <=s00002"}, 1, 1},
		{"one value", "cccccc", 1, 4, -1, []string{"=c >=s00001 <=s00003"}, 1, 3},
		{"within one value", "cccccc", 3, 6, 2, []string{"=c >=s00003 <=s00005"}, 1, 3},
		{"a value's last one", "cccdef", 2, 6, 1, []string{"=c >=s00002 <=s00002", ">=d <=f"}, 2, 4},
		{"after the last of a value", "cccdef", 3, 6, 2, []string{">=d <=f"}, 1, 3},
		{"a value's beginning", "bcdeee", 0, 5, -1, []string{">=b <=d", "=e >=s00003 <=s00004"}, 2, 5},
		{"between two values", "bbccdd", 1, 5, 0, []string{"=b >=s00001 <=s00001", ">=c <=d"}, 2, 4},
		{"from one value to another", "bbccdd", 1, 6, 0, []string{"=b >=s00001 <=s00001", ">=c <=c", "=d >=s00004 <=s00005"}, 3, 5},
		{"two values", "bbcc", 0, 4, -1, []string{"=b >=s00000 <=s00001", "=c >=s00002 <=s00003"}, 2, 4},
	} {
		w := newWorld(t, "")
		for i, v := range c.values {
			w.put(string(v), name(fmt.Sprintf("s%05d", i)))
		}
		q := query(store.GuardQuery, "a", "z")
		all := w.page(q)
		if c.after >= 0 {
			q.After = all.Entries[c.after].Position()
		}
		b := batch(q, store.Page{Entries: all.Entries[c.from:c.to]})
		var m store.Meter
		w.faults.Reset()
		if err := w.Dispose(store.WithMeter(t.Context(), &m), b); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := w.asked(); !slices.Equal(got, c.asked) {
			t.Errorf("%s: asked for %q, want %q", c.what, got, c.asked)
		}
		if o := m.Operations(); o != (store.Operations{Reads: c.reads, Deletes: c.del}) {
			t.Errorf("%s: billed %+v", c.what, o)
		}
		left := w.left("")
		for i := range c.values {
			if in := i >= c.from && i < c.to; left[fmt.Sprintf("Session/s%05d", i)] == in {
				t.Errorf("%s: %d is there: %v", c.what, i, !in)
			}
		}
	}
}

// What changed between scan and check is kept, wherever in its value's group it is:
// pushed out, pulled in, or gone and back.
func TestCheckByKeysLeavesWhatChanged(t *testing.T) {
	w := newWorld(t, "")
	keys := names("s", 9)
	w.put("b", keys[:4]...)
	w.put("c", keys[4:]...)
	q := query(store.GuardQuery, "a", "z")
	b := batch(q, w.page(q))
	w.put("x", keys[0], keys[5])
	w.put("b", keys[6]) // another value of the batch's own
	w.put("c", keys[1])
	if err := w.app.DeleteMulti(t.Context(), []*sdk.Key{keys[2], keys[7]}); err != nil {
		t.Fatal(err)
	}
	w.put("b", keys[2]) // the same again
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	want := []store.Outcome{store.Changed, store.Changed, store.Deleted, store.Deleted, store.Deleted, store.Changed,
		store.Changed, store.Gone, store.Deleted}
	left := w.left("")
	for i, o := range want {
		key := FormatKey(keys[i])
		if got := outcomes(b)[key]; got != o || left[key] != (o == store.Changed) {
			t.Errorf("%s: outcome %d, want %d; is there: %v", key, got, o, left[key])
		}
	}
}

// A reply that shows less than there is costs lookups, and no entity.
func TestCheckBelievesNoMissingRow(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 4)...)
	w.put("d", name("t"))
	q := query(store.GuardQuery, "a", "z")
	b := batch(q, w.page(q))
	w.faults.Add(faultrpc.Fault{Method: "RunQuery", After: true, Times: -1, Hook: func(_ context.Context, _, reply any) {
		r := reply.(*pb.RunQueryResponse).GetBatch()
		r.EntityResults, r.MoreResults = r.EntityResults[:1], pb.QueryResultBatch_NOT_FINISHED
	}})
	w.put("x", name("s00002"))
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if left := w.left(""); len(left) != 1 || !left["Session/s00002"] {
		t.Errorf("left %v, outcomes %v", left, outcomes(b))
	}
}

// withGroups has the emulator refuse what a database of the mode optimistic with
// entity groups refuses.
func (w *world) withGroups() {
	w.emulated = false
	for _, f := range datastorerpc.EntityGroups() {
		w.faults.Add(f)
	}
}

// In such a database auto finds out, and goes on by lookup in batches of 25.
func TestEntityGroupsByAuto(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 30)...)
	w.withGroups()
	q := query(store.GuardAuto, "a", "d")
	q.Target.SingleValued = true
	b := batch(q, w.page(q))
	err := w.Dispose(t.Context(), b)
	if !errors.Is(err, store.ErrTooLarge) || len(w.left("")) != 30 {
		t.Fatalf("30 at once: %v, %d left", err, len(w.left("")))
	}
	if g := w.Guard(q.Target); g.Guard != store.GuardLookup || g.Most != 25 || g.Why != groupsMode {
		t.Errorf("then: %+v", g)
	}
	before := len(w.faults.Methods())
	if err := w.Dispose(t.Context(), b); !errors.Is(err, store.ErrTooLarge) || len(w.faults.Methods()) != before {
		t.Errorf("once it is known: %v, called %v", err, w.faults.Methods()[before:])
	}
	part := &store.Batch{Query: q, Ops: b.Ops[:25]}
	if err := w.Dispose(t.Context(), part); err != nil || len(w.left("")) != 5 {
		t.Errorf("25 at once: %v, %d left", err, len(w.left("")))
	}
	dry := &store.Batch{Query: q, Ops: b.Ops, DryRun: true}
	if err := w.Dispose(t.Context(), dry); err != nil || len(w.left("")) != 5 {
		t.Errorf("a dry run needs no transaction: %v, %d left", err, len(w.left("")))
	}
}

// A small batch is deleted by the very call that finds out.
func TestEntityGroupsAreLearnedInPassing(t *testing.T) {
	w := newWorld(t, "")
	keys := names("s", 3)
	w.put("c", keys...)
	w.withGroups()
	q := query("", "a", "d")
	q.Target.SingleValued = true
	b := batch(q, w.page(q))
	w.put("x", keys[1])
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if left := w.left(""); len(left) != 1 || !left["Session/s00001"] {
		t.Errorf("left %v", left)
	}
	want := []string{"RunQuery", "BeginTransaction", "RunQuery", "Rollback", "BeginTransaction", "Lookup", "Commit"}
	if got := w.faults.Methods(); !slices.Equal(got, want) {
		t.Errorf("called %v, want %v", got, want)
	}
}

// An explicit guard query is refused by name, and nothing is deleted.
func TestEntityGroupsRefuseQuery(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 3)...)
	w.withGroups()
	q := query(store.GuardQuery, "a", "d")
	b := batch(q, w.page(q))
	for _, when := range []string{"found out", "known"} {
		err := w.Dispose(t.Context(), b)
		if !errors.Is(err, store.ErrUnsupported) || store.Transient(err) ||
			!strings.Contains(err.Error(), "optimistic with entity groups") || !strings.Contains(strings.Join(store.Hints(err), ""), "set guard to auto") {
			t.Errorf("%s: %v", when, err)
		}
		if len(w.left("")) != 3 {
			t.Errorf("%s: %d left of 3", when, len(w.left("")))
		}
	}
	if n := len(w.faults.Calls("BeginTransaction")); n != 1 {
		t.Errorf("%d transactions, want 1: then it was known", n)
	}
	q.Target.Guard = store.GuardLookup // as the sweep may for one batch
	if err := w.Dispose(t.Context(), &store.Batch{Query: q, Ops: b.Ops}); err != nil || len(w.left("")) != 0 {
		t.Errorf("by lookup: %v, %d left", err, len(w.left("")))
	}
}
