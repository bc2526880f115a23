package firestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// wire returns a document as it is on the wire; nil if there is no such document.
func (w *world) wire(key string) (doc *pb.Document) {
	w.t.Helper()
	err := w.get(context.Background(), []string{w.name(key)}, nil,
		func(_ string, found *pb.Document, _ *pb.BatchGetDocumentsResponse) { doc = found })
	if err != nil {
		w.t.Fatal(err)
	}
	return doc
}

func (w *world) insertAll(list []store.Insertion) (calls int) {
	w.t.Helper()
	for len(list) > 0 {
		if err := w.Insert(w.t.Context(), sessions, "", list); err != nil {
			w.t.Fatal(err)
		}
		calls++
		left := slices.DeleteFunc(slices.Clone(list), func(in store.Insertion) bool { return in.Outcome != store.Unknown })
		if len(left) == len(list) {
			w.t.Fatalf("none of %d were inserted", len(list))
		}
		list = left
	}
	return calls
}

func textOf(s string) *pb.Value { return toValue(store.TextValue(s)) }

// What is deleted comes back as it was, bit by bit, here and into another project.
func TestEveryTypeComesBack(t *testing.T) {
	w := newWorld(t)
	e := emulator.Start(t, emulator.Native)
	fields := everyType(w.name("elsewhere/x"))
	fields["vector"] = &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{
		"__type__": textOf("__vector__"), "value": {ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: []*pb.Value{
			{ValueType: &pb.Value_DoubleValue{DoubleValue: 1}}, {ValueType: &pb.Value_DoubleValue{DoubleValue: 2.5}}}}}}}}}}
	fields["no elements"] = &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{}}}
	fields["no fields"] = &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{}}}
	fields["long"], fields["empty"], fields["odd"] = textOf(strings.Repeat("ü", 5000)), textOf(""), textOf("ü😀\x00\u2028<&>\"\\\n")
	fields["away"] = &pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: "projects/far/databases/away/documents/a/b"}}
	fields["` odd.name \\"], fields["expires"] = textOf("x"), toValue(at(0))
	keys := []string{"sessions/__id7__", "sessions/all", "sessions/documents"}
	w.putBelow(fields, keys...)
	before := map[string]*pb.Document{}
	for _, key := range keys {
		before[key] = w.wire(key)
	}
	fetched, err := w.Fetch(t.Context(), sessions, "", keys, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	b := w.batch(3)
	archive := &storetest.Shelf{}
	b.Query.Archive = archive
	if err := w.Dispose(t.Context(), b); err != nil || !slices.Equal(archive.Keys(), keys) || len(archive.Sizes) != 1 {
		t.Fatalf("%v, kept %q by %v", err, archive.Keys(), archive.Sizes)
	}
	for i, key := range keys {
		got, want := archive.Newest()[key], before[key]
		if w.wire(key) != nil {
			t.Errorf("%s is there", key)
		}
		if f := fetched[i]; string(f.Data) != string(got.Data) || f.Version != got.Version || f.Key != key || f.Expiry != got.Expiry {
			t.Errorf("fetched %+v\nkept %+v", f, got)
		}
		if strings.ContainsAny(string(got.Data), "\n\r") || got.Expiry != at(0) || got.Version == "" ||
			!got.Created.Equal(want.GetCreateTime().AsTime()) || !got.Updated.Equal(want.GetUpdateTime().AsTime()) {
			t.Errorf("the copy is %+v, and was %+v", got, want)
		}
	}
	for _, in := range []*world{w, openAt(t, e.Project(t), e.Host)} {
		list := archive.Insertions()
		if n := in.insertAll(list); n != 1 {
			t.Errorf("%d inserts", n)
		}
		for i, key := range keys {
			got, want := in.wire(key), proto.CloneOf(before[key])
			want.Name, want.CreateTime, want.UpdateTime = in.name(key), got.GetCreateTime(), got.GetUpdateTime()
			if !proto.Equal(got, want) {
				t.Errorf("%s came back as\n%v\nnot\n%v", key, got, want)
			}
			if list[i].Outcome != store.Inserted || list[i].Stripped != "" {
				t.Errorf("%s: outcome %d, stripped %q", key, list[i].Outcome, list[i].Stripped)
			}
		}
	}
}

const nearly1MiB = 1_040_000

// big writes documents of nearly the size that the service allows.
func (w *world) big(keys ...string) {
	w.t.Helper()
	for i, key := range keys {
		w.putBelow(map[string]*pb.Value{"expires": toValue(at(i)),
			"data": {ValueType: &pb.Value_BytesValue{BytesValue: slices.Repeat([]byte{byte(i)}, nearly1MiB)}}}, key)
	}
}

// bigRow writes so many of them, and returns their keys.
func (w *world) bigRow(n int) (keys []string) {
	w.t.Helper()
	for i := range n {
		keys = append(keys, fmt.Sprintf("sessions/b%02d", i))
	}
	w.big(keys...)
	return keys
}

// A call reads about CopyBytes, deletes what it has kept of that, and leaves the rest to the next call.
func TestArchivesInParts(t *testing.T) {
	w := newWorld(t)
	keys := w.bigRow(8)
	keys = append(keys, "sessions/c0", "sessions/c1")
	w.putBelow(map[string]*pb.Value{"expires": toValue(at(99))}, keys[8:]...)
	archive := &storetest.Shelf{}
	b := w.batch(10)
	b.Query.Archive = archive
	var m store.Meter
	rounds := 0
	for left := len(b.Ops); left > 0; rounds++ {
		if err := w.Dispose(store.WithMeter(t.Context(), &m), b); err != nil {
			t.Fatal(err)
		}
		var rest []store.Op
		for _, op := range b.Ops {
			_, kept := archive.Newest()[op.Entry.Key]
			switch there := w.wire(op.Entry.Key) != nil; {
			case op.Outcome == store.Deleted && kept && !there:
			case op.Outcome == store.Unknown && !kept && there:
				rest = append(rest, op)
			default:
				t.Fatalf("%s: outcome %d, kept %v, there %v", op.Entry.Key, op.Outcome, kept, there)
			}
		}
		if len(rest) == left {
			t.Fatal("nothing was deleted")
		}
		b.Ops, left = rest, len(rest)
	}
	if got := archive.Keys(); !slices.Equal(got, keys) || rounds < 2 || rounds > 4 || slices.Max(archive.Sizes) > 7<<20 {
		t.Errorf("kept %d in %d rounds of %v bytes", len(got), rounds, archive.Sizes)
	}
	if got := m.Operations(); got != (store.Operations{Reads: 10, Deletes: 10}) {
		t.Errorf("billed %+v", got)
	}
	if n := w.insertAll(archive.Insertions()); n < 3 || n > 5 {
		t.Errorf("%d inserts", n)
	}
	fetches := 0
	for rest := keys; len(rest) > 0; fetches++ {
		got, err := w.Fetch(t.Context(), sessions, "", rest, time.Time{})
		if err != nil || len(got) == 0 {
			t.Fatalf("fetched %d, %v", len(got), err)
		}
		for i, c := range got {
			if want := archive.Newest()[c.Key]; c.Key != rest[i] || c.Expiry != want.Expiry || !sameFields(t, c, want) {
				t.Errorf("fetched %s for %s", c.Key, rest[i])
			}
		}
		rest = rest[len(got):]
	}
	if fetches < 3 || fetches > 5 {
		t.Errorf("fetched in %d calls", fetches)
	}
}

// sameFields reports whether two copies have the same fields: a document that was written again has other times.
func sameFields(t *testing.T, a, b store.Copy) bool {
	t.Helper()
	var docs [2]pb.Document
	for i, c := range []store.Copy{a, b} {
		if err := google.DecodeJSON(c.Data, &docs[i]); err != nil {
			t.Fatal(err)
		}
		docs[i].CreateTime, docs[i].UpdateTime = nil, nil
	}
	return proto.Equal(&docs[0], &docs[1])
}

// The archive gets what is deleted, and nothing else.
func TestArchivesWhatIsDeleted(t *testing.T) {
	w := newWorld(t)
	all := w.row(6)
	b := w.batch(6)
	archive := &storetest.Shelf{}
	b.Query.Archive = archive
	all[0].Expiry = at(100)
	w.put(sessions, all[0])
	all[1].Data = []byte(`{"user":"u8"}`)
	w.put(sessions, all[1])
	if _, err := w.commit(t.Context(), []*pb.Write{{Operation: &pb.Write_Delete{Delete: w.name("sessions/s-002")}}}); err != nil {
		t.Fatal(err)
	}
	b.Ops[3].To = at(101)
	b.Ops = append(b.Ops, b.Ops[5])
	dry := *b
	dry.DryRun, dry.Ops = true, slices.Clone(b.Ops)
	if err := w.Dispose(t.Context(), &dry); err != nil || len(archive.Sizes) > 0 {
		t.Errorf("a dry run kept %v, %v", archive.Keys(), err)
	}
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	want := []store.Outcome{store.Changed, store.Changed, store.Gone, store.Carried, store.Deleted, store.Deleted, store.Changed}
	if got := outcomes(b); !slices.Equal(got, want) || !slices.Equal(outcomes(&dry), want) {
		t.Errorf("outcomes %v, in a dry run %v, not %v", got, outcomes(&dry), want)
	}
	if op := b.Ops[0]; op.Now != at(100) || !op.Known {
		t.Errorf("now %+v", op)
	}
	if got := archive.Keys(); !slices.Equal(got, []string{"sessions/s-004", "sessions/s-005"}) {
		t.Errorf("kept %q", got)
	}
	if got := w.wire("sessions/s-003").GetFields(); fromValue(got["expires"]) != at(101) || got["user"].GetStringValue() != "u7" {
		t.Errorf("carried: %v", got)
	}
}

// removal is a call that deletes something.
type removal struct {
	what string
	do   func(w *world, archive store.Archive) (store.Outcome, error)
	gone []string
}

var removals = []removal{
	{"dispose", func(w *world, archive store.Archive) (store.Outcome, error) {
		b := w.batch(1)
		b.Query.Archive = archive
		err := w.Dispose(w.t.Context(), b)
		return b.Ops[0].Outcome, err
	}, []string{"sessions/a"}},
	{"settle", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := everything(sessions)
		q.Archive = archive
		return w.Settle(w.t.Context(), q, store.Entry{Key: "sessions/a"}, func(store.Value) store.Verdict { return store.Delete })
	}, []string{"sessions/a"}},
	{"below", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := everything(sessions)
		q.Archive = archive
		list := listOf("sessions/a/n/x", "sessions/a/n/missing", "sessions/a/n/x/m/y")
		return w.DeleteBelow(w.t.Context(), q, store.Entry{Key: "sessions/a"}, list, due)
	}, []string{"sessions/a/n/x", "sessions/a/n/x/m/y"}},
	{"orphans", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := store.LineageQuery{Target: sessions, Whole: true, Archive: archive, Limit: store.MaxPage,
			Owners: []store.Target{{Name: "tags", Kind: "tags", Group: true, Property: "none"}}}
		_, list := w.lineageOf(q)
		list = slices.DeleteFunc(list, func(r store.Relative) bool { return !store.IsBelow(r.Key, "sessions/o") })
		list = append(list, store.Relative{Key: "sessions/o/n/missing", Kind: "n"})
		return w.DeleteOrphans(w.t.Context(), q, "sessions/o", list)
	}, []string{"sessions/o/n/x", "sessions/o/tags/x"}},
}

func newFamily(t *testing.T) *world {
	w := newWorld(t)
	w.put(sessions, store.Entity{Name: "a", Expiry: at(0)})
	w.putBelow(map[string]*pb.Value{"v": textOf("1")}, "sessions/a/n/x", "sessions/a/n/x/m/y", "sessions/o/n/x", "sessions/o/tags/x")
	return w
}

// If the archive fails, nothing is deleted, and the error is its own.
func TestNothingGoesUnlessKept(t *testing.T) {
	own := errors.New("disk full")
	for _, r := range removals {
		w := newFamily(t)
		for _, c := range []struct{ err, want error }{{own, store.ErrFailed}, {store.ErrUnavailable, store.ErrUnavailable}} {
			w.faults.Reset()
			o, err := r.do(w, &storetest.Shelf{Then: func() error { return c.err }})
			if o != store.Unknown || !errors.Is(err, c.err) || !errors.Is(err, c.want) {
				t.Errorf("%s: outcome %d, %v", r.what, o, err)
			}
			if m := w.faults.Methods(); slices.Contains(m, "Commit") || slices.Contains(m, "BatchWrite") {
				t.Errorf("%s: the calls are %v", r.what, m)
			}
		}
		archive := &storetest.Shelf{}
		if o, err := r.do(w, archive); o != store.Deleted || err != nil {
			t.Errorf("%s: outcome %d, %v", r.what, o, err)
		}
		if got := archive.Keys(); !slices.Equal(got, r.gone) {
			t.Errorf("%s: kept %q", r.what, got)
		}
		for _, key := range []string{"sessions/a", "sessions/a/n/x", "sessions/a/n/x/m/y", "sessions/o/n/x", "sessions/o/tags/x"} {
			if there := w.wire(key) != nil; there == slices.Contains(r.gone, key) {
				t.Errorf("%s: %s is there: %v", r.what, key, there)
			}
		}
	}
}

// A context that ends while the archive works stops the delete.
func TestContextEndsWhileKept(t *testing.T) {
	w := newFamily(t)
	b := w.batch(1)
	ctx, cancel := context.WithCancel(t.Context())
	b.Query.Archive = &storetest.Shelf{Then: func() error { cancel(); return nil }}
	if err := w.Dispose(ctx, b); !errors.Is(err, context.Canceled) || b.Ops[0].Outcome != store.Unknown || w.wire("sessions/a") == nil {
		t.Errorf("outcome %d, %v", b.Ops[0].Outcome, err)
	}
	if m := w.faults.Methods(); slices.Contains(m, "BatchWrite") {
		t.Errorf("the calls are %v", m)
	}
}

// What changes after it was kept stays. No lock is held meanwhile, so that the change does not wait.
func TestChangeWhileKept(t *testing.T) {
	for _, r := range removals {
		w := newFamily(t)
		last := r.gone[len(r.gone)-1]
		o, err := r.do(w, &storetest.Shelf{Then: func() error {
			w.putBelow(map[string]*pb.Value{"v": textOf("2")}, last)
			return nil
		}})
		if r.what == "dispose" && (o != store.Changed || err != nil) || r.what != "dispose" && (o != store.Unknown || !errors.Is(err, store.ErrContention)) {
			t.Errorf("%s: outcome %d, %v", r.what, o, err)
		}
		for _, key := range r.gone {
			want := "1"
			if key == last {
				want = "2"
			}
			if got := w.wire(key).GetFields()["v"].GetStringValue(); got != want {
				t.Errorf("%s: %s is %q, not %q", r.what, key, got, want)
			}
		}
		if r.what == "dispose" || r.what == "settle" {
			continue
		}
		archive := &storetest.Shelf{}
		if o, err := r.do(w, archive); o != store.Deleted || err != nil || !strings.Contains(string(archive.Newest()[last].Data), `"2"`) {
			t.Errorf("%s again: outcome %d, %v", r.what, o, err)
		}
	}
}

// An entity that is extended while what is below it is kept keeps it, and so does one that comes into being.
func TestFamilyReturnsWhileKept(t *testing.T) {
	w := newFamily(t)
	q := everything(sessions)
	q.Archive = &storetest.Shelf{Then: func() error { w.put(sessions, store.Entity{Name: "a", Expiry: at(50)}); return nil }}
	isDue := func(v store.Value) bool { return v == at(0) }
	if o, err := w.DeleteBelow(t.Context(), q, store.Entry{Key: "sessions/a"}, listOf("sessions/a/n/x"), isDue); o != store.Kept || err != nil {
		t.Errorf("extended: %d, %v", o, err)
	}
	lineage := store.LineageQuery{Target: sessions, Archive: &storetest.Shelf{Then: func() error { w.put(sessions, store.Entity{Name: "o"}); return nil }}}
	if o, err := w.DeleteOrphans(t.Context(), lineage, "sessions/o", []store.Relative{{Key: "sessions/o/n/x"}}); o != store.Kept || err != nil {
		t.Errorf("back: %d, %v", o, err)
	}
	if w.wire("sessions/a/n/x") == nil || w.wire("sessions/o/n/x") == nil {
		t.Error("what was below is gone")
	}
}

// A document that may have an owner is as it was listed, or its owner is looked for again.
func TestArchiveMeetsAnOwner(t *testing.T) {
	w := newFamily(t)
	archive := &storetest.Shelf{}
	q := store.LineageQuery{Target: sessions, Whole: true, Archive: archive, Limit: store.MaxPage, Owners: []store.Target{tags}}
	_, list := w.lineageOf(q)
	list = slices.DeleteFunc(list, func(r store.Relative) bool { return r.Key != "sessions/o/tags/x" })
	w.putBelow(map[string]*pb.Value{"v": textOf("2")}, "sessions/o/tags/x")
	if o, err := w.DeleteOrphans(t.Context(), q, "sessions/o", list); o != store.Unknown || !errors.Is(err, store.ErrContention) {
		t.Errorf("changed: %d, %v", o, err)
	}
	w.putBelow(map[string]*pb.Value{"expires": toValue(at(0))}, "sessions/o/tags/x")
	if o, err := w.DeleteOrphans(t.Context(), q, "sessions/o", list); o != store.Changed || err != nil || list[0].Owner != "tags" {
		t.Errorf("owned: %d, %v, %+v", o, err, list)
	}
	w.putBelow(map[string]*pb.Value{"v": textOf("3")}, "sessions/o/tags/x")
	_, _ = w.DeleteOrphans(t.Context(), q, "sessions/o", list) // it learns of the change
	if o, err := w.DeleteOrphans(t.Context(), q, "sessions/o", list); o != store.Deleted || err != nil {
		t.Errorf("free again: %d, %v", o, err)
	}
	if got := string(archive.Newest()["sessions/o/tags/x"].Data); !strings.Contains(got, `"3"`) {
		t.Errorf("kept %s", got)
	}
}

// A list of descendants that is larger than a message goes in one commit, and is kept in parts.
func TestArchivesLargeFamilies(t *testing.T) {
	w := newFamily(t)
	for _, above := range []string{"sessions/a", "sessions/o"} {
		var keys []string
		for i := range 6 {
			keys = append(keys, fmt.Sprintf("%s/b/b%d", above, i))
		}
		w.big(keys...)
		archive := &storetest.Shelf{}
		var o store.Outcome
		var err error
		if above == "sessions/a" {
			q := everything(sessions)
			q.Archive = archive
			o, err = w.DeleteBelow(t.Context(), q, store.Entry{Key: above}, listOf(keys...), due)
		} else {
			var list []store.Relative
			for _, key := range keys {
				list = append(list, store.Relative{Key: key})
			}
			o, err = w.DeleteOrphans(t.Context(), store.LineageQuery{Target: sessions, Archive: archive}, above, list)
		}
		if o != store.Deleted || err != nil || len(archive.Sizes) < 2 || slices.Max(archive.Sizes) > 7<<20 || !slices.Equal(archive.Keys(), keys) {
			t.Errorf("outcome %d, %v; kept %q by %v", o, err, archive.Keys(), archive.Sizes)
		}
	}
}

// What is not due any more is not even read.
func TestKeepsNothingThatStays(t *testing.T) {
	w := newFamily(t)
	archive := &storetest.Shelf{}
	q := everything(sessions)
	q.Archive = archive
	never := func(store.Value) bool { return false }
	if o, err := w.DeleteBelow(t.Context(), q, store.Entry{Key: "sessions/a"}, listOf("sessions/a/n/x"), never); o != store.Kept || err != nil {
		t.Errorf("not due: %d, %v", o, err)
	}
	if o, err := w.DeleteBelow(t.Context(), q, store.Entry{Key: "sessions/o"}, listOf("sessions/o/n/x"), due); o != store.Gone || err != nil {
		t.Errorf("gone: %d, %v", o, err)
	}
	for _, v := range []store.Verdict{store.Keep, store.CarryTo(at(5))} {
		if _, err := w.Settle(t.Context(), q, store.Entry{Key: "sessions/a"}, func(store.Value) store.Verdict { return v }); err != nil {
			t.Error(err)
		}
	}
	if len(archive.Sizes) > 0 {
		t.Errorf("kept %q", archive.Keys())
	}
}

func TestFetch(t *testing.T) {
	w := newFamily(t)
	w.put(sessions, store.Entity{Name: "b", Expiry: at(0)})
	before := instant(w.wire("sessions/b").GetUpdateTime())
	w.put(sessions, store.Entity{Name: "a", Expiry: at(1)})
	after := instant(w.wire("sessions/a").GetUpdateTime())
	if _, err := w.commit(t.Context(), []*pb.Write{{Operation: &pb.Write_Delete{Delete: w.name("sessions/b")}}}); err != nil {
		t.Fatal(err)
	}
	keys := []string{"sessions/b", "sessions/a", "sessions/none", "sessions/a", "sessions/a/n/x"}
	for when, want := range map[time.Time][]store.Value{
		{}: {{}, at(1), {}, at(1), {}}, after: {at(0), at(1), {}, at(1), {}}, after.Add(-1000): {at(0), at(0), {}, at(0), {}}, before: {at(0), at(0), {}, at(0), {}},
	} {
		got, err := w.Fetch(t.Context(), sessions, "", keys, when)
		if err != nil || len(got) != len(keys) {
			t.Fatalf("fetched %+v, %v", got, err)
		}
		for i, c := range got {
			if c.Key != keys[i] || c.Expiry != want[i] || i < 4 && (len(c.Data) == 0) != (c.Expiry.Type == store.Missing) {
				t.Errorf("at %v, %s is %+v, not %+v", when, keys[i], c, want[i])
			}
		}
	}
	if got, err := w.Fetch(t.Context(), sessions, "", nil, time.Time{}); len(got) != 0 || err != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
	for _, c := range []struct {
		at    time.Time
		fault *faultrpc.Fault
		want  error
	}{
		{after.Add(-2400 * time.Hour), nil, store.ErrInvalid},
		{after.Add(time.Hour), nil, store.ErrInvalid},
		{after, &faultrpc.Fault{Method: "BatchGetDocuments", Code: codes.InvalidArgument, Message: "read_time must be a whole minute"}, store.ErrUnsupported},
		{after.Truncate(time.Minute), &faultrpc.Fault{Method: "BatchGetDocuments", Code: codes.InvalidArgument, Message: "read_time is no good"}, store.ErrInvalid},
		{after, &faultrpc.Fault{Method: "BatchGetDocuments", Code: codes.ResourceExhausted}, store.ErrPushback},
	} {
		w.faults.Reset()
		if c.fault != nil {
			w.faults.Add(*c.fault)
		}
		if got, err := w.Fetch(t.Context(), sessions, "", keys, c.at); len(got) > 0 || !errors.Is(err, c.want) ||
			errors.Is(err, store.ErrUnsupported) != (c.want == store.ErrUnsupported) {
			t.Errorf("at %v: %v, %v, not %v", c.at, got, err, c.want)
		}
	}
}

// Insert never changes what exists, and changes the expiry of the target's own documents alone.
func TestInsert(t *testing.T) {
	w := newFamily(t)
	w.putBelow(map[string]*pb.Value{"v": textOf("1"), "expires": toValue(at(0))}, "sessions/b", "sessions/b/n/x", "sessions/c", "sessions/d", "sessions/e")
	keys := []string{"sessions/a", "sessions/b", "sessions/b/n/x", "sessions/c", "sessions/d", "sessions/e"}
	copies, err := w.Fetch(t.Context(), sessions, "", keys, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var list []store.Insertion
	var gone []*pb.Write
	for i, to := range []store.Value{at(9), at(9), at(9), store.TextValue("x"), {}, at(9)} {
		list = append(list, store.Insertion{Copy: copies[i], To: to, AsIs: i == 5})
		gone = append(gone, &pb.Write{Operation: &pb.Write_Delete{Delete: w.name(keys[i])}})
	}
	before := w.wire("sessions/a")
	if _, err := w.commit(t.Context(), gone[1:]); err != nil {
		t.Fatal(err)
	}
	var meter store.Meter
	if err := w.Insert(store.WithMeter(t.Context(), &meter), sessions, "", list); err != nil {
		t.Fatal(err)
	}
	if got := meter.Operations(); got != (store.Operations{Writes: 5}) {
		t.Errorf("billed %+v", got)
	}
	if after := w.wire("sessions/a"); !proto.Equal(after, before) || list[0].Outcome != store.Kept {
		t.Errorf("outcome %d; what was there changed to %v", list[0].Outcome, after)
	}
	for i, want := range []store.Value{{}, at(9), at(0), store.TextValue("x"), {}, at(0)} {
		fields := w.wire(keys[i]).GetFields()
		if i > 0 && (list[i].Outcome != store.Inserted || fromValue(fields["expires"]) != want || fields["v"].GetStringValue() != "1") {
			t.Errorf("%s: outcome %d, %v", keys[i], list[i].Outcome, fields)
		}
	}
	// A second time all are there, as after a lost reply.
	if err := w.Insert(t.Context(), sessions, "", list); err != nil {
		t.Fatal(err)
	}
	for _, in := range list {
		if in.Outcome != store.Kept {
			t.Errorf("again: %s: outcome %d", in.Key, in.Outcome)
		}
	}
}

func TestInsertRefuses(t *testing.T) {
	w := newFamily(t)
	copies, err := w.Fetch(t.Context(), sessions, "", []string{"sessions/a"}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	ok := store.Insertion{Copy: copies[0], AsIs: true}
	foreign, newer, none, list := ok, ok, ok, ok
	foreign.Key = "sessions/b"
	newer.Data = []byte(strings.Replace(string(ok.Data), `{"name":`, `{"novelty":1,"name":`, 1))
	none.Data = nil
	list.AsIs, list.To = false, store.Value{Type: store.List, Text: "[1]"}
	for what, in := range map[string][]store.Insertion{
		"twice": {ok, ok}, "foreign": {foreign}, "newer": {newer}, "none": {none}, "list": {list}, "too many": make([]store.Insertion, store.MaxPage+1),
	} {
		if err := w.Insert(t.Context(), sessions, "", in); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.Insert(t.Context(), sessions, "", nil); err != nil {
		t.Error(err)
	}
	w.faults.Add(faultrpc.Fault{Method: "BatchWrite", Code: codes.ResourceExhausted, Message: "quota"})
	in := []store.Insertion{ok}
	if err := w.Insert(t.Context(), sessions, "", in); !errors.Is(err, store.ErrPushback) || in[0].Outcome != store.Unknown {
		t.Errorf("outcome %d, %v", in[0].Outcome, err)
	}
	if err := w.Archives(sessions); err != nil {
		t.Error(err)
	}
	if err := w.Archives(store.Target{Kind: "a/b"}); !errors.Is(err, store.ErrInvalid) {
		t.Error(err)
	}
}

func TestExpiryOf(t *testing.T) {
	storetest.CheckExpiryOf(t, new(DB), "sessions", "sessions/a", `{"name":"projects/p/databases/d/documents/sessions/a",`+
		`"fields":{"expires":{"timestampValue":"2026-11-28T00:00:00Z"},"expiry_key":{"stringValue":"k"}}}`)
}
