package datastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// write writes entities on the wire.
func (w *world) write(entities ...*pb.Entity) error {
	req := &pb.CommitRequest{ProjectId: w.project, DatabaseId: w.database, Mode: pb.CommitRequest_NON_TRANSACTIONAL}
	for _, e := range entities {
		req.Mutations = append(req.Mutations, &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: e}})
	}
	return w.send(context.Background(), "Commit", req, &pb.CommitResponse{})
}

func (w *world) mustWrite(entities ...*pb.Entity) {
	w.t.Helper()
	for _, e := range entities {
		if err := w.write(e); err != nil {
			w.t.Fatal(err)
		}
	}
}

// wire returns an entity as it is on the wire; nil if there is no such entity.
func (w *world) wire(namespace, text string) *pb.EntityResult {
	w.t.Helper()
	key, err := ParseKey(namespace, text)
	if err != nil {
		w.t.Fatal(err)
	}
	var reply pb.LookupResponse
	req := &pb.LookupRequest{ProjectId: w.project, DatabaseId: w.database, Keys: []*pb.Key{w.serviceKey(key)}}
	if err := w.send(context.Background(), "Lookup", req, &reply); err != nil {
		w.t.Fatal(err)
	}
	if len(reply.GetFound()) == 0 {
		return nil
	}
	return reply.GetFound()[0]
}

// here returns an entity as it would be in another database.
func here(d *DB, namespace string, e *pb.Entity) *pb.Entity {
	e = proto.CloneOf(e)
	e.Key.PartitionId = &pb.PartitionId{ProjectId: d.project, DatabaseId: d.database, NamespaceId: namespace}
	return e
}

func (w *world) insertAll(d *DB, namespace string, list []store.Insertion) (calls int) {
	w.t.Helper()
	for len(list) > 0 {
		if err := d.Insert(w.t.Context(), target(""), namespace, list); err != nil {
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

func textOf(s string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}}
}

func null() *pb.Value { return &pb.Value{ValueType: &pb.Value_NullValue{}} }

func number(n int64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}
}

func double(f float64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: f}}
}

func blob(b string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_BlobValue{BlobValue: []byte(b)}}
}

func array(list ...*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: list}}}
}

func nested(key *pb.Key, properties map[string]*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{Key: key, Properties: properties}}}
}

func excluded(v *pb.Value) *pb.Value {
	v.ExcludeFromIndexes = true
	return v
}

func meaning(m int32, v *pb.Value) *pb.Value {
	v.Meaning = m
	return v
}

func instantOf(t time.Time) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t)}}
}

// everyWireType returns a property of each type, flag and meaning that the service stores.
func everyWireType() map[string]*pb.Value {
	elsewhere := &pb.Key{PartitionId: &pb.PartitionId{ProjectId: "elsewhere", NamespaceId: "far"},
		Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: 7}},
			{Kind: "L", IdType: &pb.Key_PathElement_Name{Name: "7"}}}}
	return map[string]*pb.Value{
		property: textOf("c"), "null": null(), "null excluded": excluded(null()),
		"true": {ValueType: &pb.Value_BooleanValue{BooleanValue: true}}, "false": {ValueType: &pb.Value_BooleanValue{}},
		"least": number(math.MinInt64), "most": excluded(number(math.MaxInt64)), "zero": number(0),
		"third": double(1.0 / 3), "minus zero": double(math.Copysign(0, -1)), "nan": double(math.NaN()), "infinite": double(math.Inf(-1)),
		"tiny": double(math.SmallestNonzeroFloat64), "huge": double(math.MaxFloat64), "whole": double(3),
		"instant": instantOf(time.Date(2026, 11, 26, 1, 2, 3, 456789000, time.UTC)), "first": instantOf(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)),
		"last":  instantOf(time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)),
		"key":   {ValueType: &pb.Value_KeyValue{KeyValue: elsewhere}},
		"empty": textOf(""), "odd": textOf("ü😀\x00\u2028<&>\"\\\n"), "long": excluded(textOf(strings.Repeat("ü", 5000))), "1500": textOf(strings.Repeat("x", maxIndexed)),
		"no bytes": blob(""), "blob": blob("\x00\xff"), "long blob": excluded(blob(strings.Repeat("\xfe", 5000))),
		"point": {ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: -48.1, Longitude: 11.5}}},
		"array": array(textOf("a"), excluded(number(5)), null(), nested(nil, map[string]*pb.Value{"x": number(1)})), "no elements": array(),
		"entity":          nested(elsewhere, map[string]*pb.Value{"in": nested(nil, map[string]*pb.Value{"deep": excluded(textOf("d"))}), "a": array(number(1))}),
		"excluded entity": excluded(nested(nil, map[string]*pb.Value{"i": number(1)})), "no properties": nested(nil, nil),
		"vector": excluded(meaning(meaningVector, array(double(1), double(2.5)))), "text": excluded(meaning(meaningText, textOf("t"))),
		"user": meaning(8, textOf("u")), "bytes": excluded(meaning(16, blob("b"))), "far instant": meaning(meaningInstant, number(1<<62)),
		"` odd.name \\": number(1),
	}
}

// What is deleted comes back as it was, bit by bit, here and into another project, from a namespace into another.
func TestEveryTypeComesBack(t *testing.T) {
	e := emulator.Start(t, emulator.Datastore)
	for _, c := range []struct{ from, to string }{{"", ""}, {"tenant", "other"}} {
		w := newWorld(t, "")
		other := openWith(t, Options{Project: e.Project(t), Database: "named-db", Emulator: e.Host})
		away := &world{DB: other, t: t}
		before := map[string]*pb.EntityResult{}
		for _, text := range []string{"Session/all", "Session/#7", "Session/7", "User/#7/Session/x%2F"} {
			key, err := ParseKey(c.from, text)
			if err != nil {
				t.Fatal(err)
			}
			w.mustWrite(&pb.Entity{Key: w.serviceKey(key), Properties: everyWireType()})
			before[text] = w.wire(c.from, text)
		}
		q := query("", "a", "d")
		q.Namespace = c.from
		archive := &storetest.Shelf{}
		b := batch(q, w.page(q))
		b.Query.Archive = archive
		texts := slices.Sorted(maps.Keys(before))
		fetched, err := w.Fetch(t.Context(), q.Target, c.from, texts, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Dispose(t.Context(), b); err != nil || len(b.Ops) != len(before) {
			t.Fatalf("%d ops, %v", len(b.Ops), err)
		}
		if got := archive.Keys(); !slices.Equal(got, texts) || len(archive.Sizes) != 1 {
			t.Fatalf("kept %q by %v", got, archive.Sizes)
		}
		for i, text := range texts {
			got, want := archive.Newest()[text], before[text]
			if w.wire(c.from, text) != nil {
				t.Errorf("%s is there", text)
			}
			if f := fetched[i]; string(f.Data) != string(got.Data) || f.Version != got.Version || f.Key != text || f.Expiry != got.Expiry {
				t.Errorf("fetched %+v\nkept %+v", f, got)
			}
			if strings.ContainsAny(string(got.Data), "\n\r") || got.Expiry != store.TextValue("c") || got.Version != fmt.Sprint(want.GetVersion()) ||
				!got.Created.Equal(want.GetCreateTime().AsTime()) || !got.Updated.Equal(want.GetUpdateTime().AsTime()) {
				t.Errorf("the copy is %+v, and was %+v", got, want)
			}
		}
		for _, in := range []struct {
			*world
			namespace string
		}{{w, c.from}, {away, c.to}} {
			list := archive.Insertions()
			if n := w.insertAll(in.DB, in.namespace, list); n != 1 {
				t.Errorf("%d inserts", n)
			}
			for i, text := range texts {
				got, want := in.wire(in.namespace, text).GetEntity(), here(in.DB, in.namespace, before[text].GetEntity())
				if !proto.Equal(got, want) {
					t.Errorf("%s came back as\n%v\nnot\n%v", text, got, want)
				}
				if list[i].Outcome != store.Inserted || list[i].Stripped != "" {
					t.Errorf("%s: outcome %d, stripped %q", text, list[i].Outcome, list[i].Stripped)
				}
			}
		}
	}
}

// big returns entities of nearly the size that the service allows.
func (w *world) big(size int, texts ...string) {
	w.t.Helper()
	for i, text := range texts {
		key, err := ParseKey("", text)
		if err != nil {
			w.t.Fatal(err)
		}
		w.mustWrite(&pb.Entity{Key: w.serviceKey(key), Properties: map[string]*pb.Value{
			property: textOf("c"), "data": excluded(textOf(strings.Repeat(string(rune('a'+i)), size)))}})
	}
}

const nearly1MiB = 1_040_000

// A call reads about CopyBytes, deletes what it has kept of that, and leaves the rest to the next call.
func TestArchivesInParts(t *testing.T) {
	w := newWorld(t, "")
	var texts []string
	for i := range 8 {
		texts = append(texts, fmt.Sprintf("Session/b%02d", i))
	}
	w.big(nearly1MiB, texts...)
	for i := range 4 {
		texts = append(texts, FormatKey(name(fmt.Sprintf("c%02d", i))))
		w.put("c", name(fmt.Sprintf("c%02d", i)))
	}
	archive := &storetest.Shelf{}
	q := query("", "a", "d")
	b := batch(q, w.page(q))
	b.Query.Archive = archive
	rounds := 0
	for left := len(b.Ops); left > 0; rounds++ {
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		var rest []store.Op
		for _, op := range b.Ops {
			_, kept := archive.Newest()[op.Entry.Key]
			switch there := w.wire("", op.Entry.Key) != nil; {
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
	if got := archive.Keys(); !slices.Equal(got, texts) || rounds < 2 || rounds > 4 || slices.Max(archive.Sizes) > 5<<20 {
		t.Errorf("kept %d in %d rounds of %v bytes", len(got), rounds, archive.Sizes)
	}
	if n := w.insertAll(w.DB, "", archive.Insertions()); n < 3 || n > 6 {
		t.Errorf("%d inserts", n)
	}
	var fetched int
	for rest := texts; len(rest) > 0; {
		got, err := w.Fetch(t.Context(), target(""), "", rest, time.Time{})
		if err != nil || len(got) == 0 {
			t.Fatalf("fetched %d, %v", len(got), err)
		}
		for i, c := range got {
			if c.Key != rest[i] || string(c.Data) != string(archive.Newest()[c.Key].Data) {
				t.Errorf("fetched %s for %s", c.Key, rest[i])
			}
		}
		rest, fetched = rest[len(got):], fetched+1
	}
	if fetched < 3 || fetched > 4 {
		t.Errorf("fetched in %d calls", fetched)
	}
}

// The archive gets what is deleted, and nothing else.
func TestArchivesWhatIsDeleted(t *testing.T) {
	for _, guard := range checkedGuards {
		w := newWorld(t, "")
		keys := names("s", 7)
		w.put("c", keys...)
		q := query(guard, "a", "d")
		b := batch(q, w.page(q))
		archive := &storetest.Shelf{}
		b.Query.Archive = archive
		w.put("x", keys[0])
		w.put([]any{"c"}, keys[1])
		if err := w.app.Delete(t.Context(), keys[2]); err != nil {
			t.Fatal(err)
		}
		b.Ops[3].To = store.TextValue("e")
		b.Ops[4].Premise = store.Premise{Property: "user", Value: store.TextValue("u7")}
		b.Ops[5].Premise = store.Premise{Property: "user", Value: store.TextValue("u8")}
		dry := *b
		dry.DryRun, dry.Ops = true, slices.Clone(b.Ops)
		if err := w.Dispose(t.Context(), &dry); err != nil || len(archive.Sizes) > 0 {
			t.Errorf("a dry run kept %v, %v", archive.Keys(), err)
		}
		w.faults.Reset()
		if err := w.Dispose(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		want := []store.Outcome{store.Changed, store.Changed, store.Gone, store.Carried, store.Deleted, store.Changed, store.Deleted}
		for i, op := range b.Ops {
			if op.Outcome != want[i] || dry.Ops[i].Outcome != want[i] {
				t.Errorf("guard %s, %s: outcome %d, in a dry run %d, not %d", guard, op.Entry.Key, op.Outcome, dry.Ops[i].Outcome, want[i])
			}
			if op.Outcome == store.Deleted && op.Entry.Written.IsZero() {
				t.Errorf("%s: it does not tell when it was written", op.Entry.Key)
			}
		}
		if v := b.Ops[0].Now; v != store.TextValue("x") || !b.Ops[0].Known || b.Ops[1].Now.Text != `["c"]` {
			t.Errorf("now %+v, %+v", b.Ops[0], b.Ops[1])
		}
		if got := archive.Keys(); !slices.Equal(got, []string{FormatKey(keys[4]), FormatKey(keys[6])}) {
			t.Errorf("kept %q", got)
		}
		if slices.Contains(w.faults.Methods(), "RunQuery") {
			t.Errorf("the calls are %v", w.faults.Methods())
		}
		for i, call := range w.faults.Calls("Lookup") {
			r := call.Req.(*pb.LookupRequest)
			if masked := r.GetPropertyMask() != nil; masked != (i == 0) || r.GetReadOptions().GetTransaction() == nil {
				t.Errorf("lookup %d of %d keys is masked: %v", i, len(r.GetKeys()), masked)
			}
		}
	}
}

// removal is a call that deletes a.
type removal struct {
	what string
	do   func(w *world, archive store.Archive) (store.Outcome, error)
	gone []string
}

var removals = []removal{
	{"dispose", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := query("", "a", "d")
		b := batch(q, w.page(q))
		b.Query.Archive = archive
		err := w.Dispose(w.t.Context(), b)
		return b.Ops[0].Outcome, err
	}, []string{"Session/a"}},
	{"settle", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := query("", "a", "d")
		q.Archive = archive
		return w.Settle(w.t.Context(), q, store.Entry{Key: "Session/a"}, func(store.Value) store.Verdict { return store.Delete })
	}, []string{"Session/a"}},
	{"below", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := query("", "a", "d")
		q.Archive = archive
		return w.DeleteBelow(w.t.Context(), q, store.Entry{Key: "Session/a"}, listOf("Session/a/A/x", "Session/a/A/missing", "Session/a/A/x/B/y"), due)
	}, []string{"Session/a/A/x", "Session/a/A/x/B/y"}},
	{"orphans", func(w *world, archive store.Archive) (store.Outcome, error) {
		q := store.LineageQuery{Target: target(""), Archive: archive, Owners: []store.Target{{Name: "a", Kind: "A", Property: "none"}}}
		return w.DeleteOrphans(w.t.Context(), q, "Session/o", []store.Relative{{Key: "Session/o/A/x", Kind: "A"}, {Key: "Session/o/A/missing", Kind: "A"}})
	}, []string{"Session/o/A/x"}},
}

func newFamily(t *testing.T) *world {
	w := newWorld(t, "")
	w.put("c", name("a"))
	w.putBelow("", sdk.PropertyList{{Name: "v", Value: "1"}}, "Session/a/A/x", "Session/a/A/x/B/y", "Session/o/A/x")
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
			if m := w.faults.Methods(); slices.Contains(m, "Commit") || !slices.Contains(m, "Rollback") {
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
		for _, key := range []string{"Session/a", "Session/a/A/x", "Session/a/A/x/B/y", "Session/o/A/x"} {
			if there := w.wire("", key) != nil; there == slices.Contains(r.gone, key) {
				t.Errorf("%s: %s is there: %v", r.what, key, there)
			}
		}
	}
}

// A context that ends while the archive works stops the delete.
func TestContextEndsWhileKept(t *testing.T) {
	w := newFamily(t)
	q := query("", "a", "d")
	b := batch(q, w.page(q))
	ctx, cancel := context.WithCancel(t.Context())
	b.Query.Archive = &storetest.Shelf{Then: func() error { cancel(); return nil }}
	if err := w.Dispose(ctx, b); !errors.Is(err, context.Canceled) || b.Ops[0].Outcome != store.Unknown || w.wire("", "Session/a") == nil {
		t.Errorf("outcome %d, %v", b.Ops[0].Outcome, err)
	}
	if m := w.faults.Methods(); !slices.Contains(m, "Rollback") || slices.Contains(m, "Commit") {
		t.Errorf("the calls are %v", m)
	}
}

// An application changes what the archive is just keeping. Either it waits, as on the emulator, and comes right
// behind the delete, or the delete fails.
func TestChangeWhileKept(t *testing.T) {
	for _, r := range removals {
		w := newFamily(t)
		done := make(chan error, len(r.gone))
		archive := &storetest.Shelf{Then: func() error {
			for _, text := range r.gone {
				go func() {
					key, err := ParseKey("", text)
					if err == nil {
						_, err = w.app.Put(context.Background(), key, &sdk.PropertyList{{Name: property, Value: "z"}})
					}
					done <- err
				}()
			}
			time.Sleep(100 * time.Millisecond) // most writes have arrived by then; the outcome does not depend on it
			return nil
		}}
		o, err := r.do(w, archive)
		for range r.gone {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if o != store.Deleted && !errors.Is(err, store.ErrContention) {
			t.Errorf("%s: outcome %d, %v", r.what, o, err)
		}
		for _, text := range r.gone {
			if got := w.wire("", text).GetEntity().GetProperties()[property].GetStringValue(); got != "z" {
				t.Errorf("%s: the application wrote z to %s, and it is %q", r.what, text, got)
			}
		}
	}
}

// The service may answer for a part of a lookup only, and a reply may be larger than a message can be.
func TestLookupsInParts(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 9)...)
	remove := func(archive store.Archive) (map[store.Outcome]int, error) {
		q := query("", "a", "d")
		b := batch(q, w.page(q))
		b.Query.Archive = archive
		err := w.Dispose(t.Context(), b)
		n := map[store.Outcome]int{}
		for _, op := range b.Ops {
			n[op.Outcome]++
		}
		return n, err
	}
	defers := func(left int) faultrpc.Fault {
		return faultrpc.Fault{Method: "Lookup", After: true, Times: -1, Hook: func(_ context.Context, _, reply any) {
			r := reply.(*pb.LookupResponse)
			for _, f := range r.GetFound()[min(left, len(r.GetFound())):] {
				r.Deferred = append(r.Deferred, f.GetEntity().GetKey())
			}
			r.Found = r.Found[:min(left, len(r.GetFound()))]
		}}
	}
	w.faults.Add(defers(0))
	if n, err := remove(&storetest.Shelf{}); !errors.Is(err, store.ErrUnavailable) || n[store.Unknown] != 9 {
		t.Errorf("all deferred: %v, %v", n, err)
	}
	w.faults.Reset()
	w.faults.Add(faultrpc.Fault{Method: "Lookup", Times: -1, Code: codes.ResourceExhausted, Message: "grpc: received message larger than max (1 vs. 2)"})
	if n, err := remove(&storetest.Shelf{}); !errors.Is(err, store.ErrTooLarge) || n[store.Unknown] != 9 || len(w.faults.Calls("Lookup")) != 3 {
		t.Errorf("all too large: %v, %v, %d lookups", n, err, len(w.faults.Calls("Lookup")))
	}
	w.faults.Reset()
	w.faults.Add(faultrpc.Fault{Method: "Lookup", Times: 2, Code: codes.ResourceExhausted, Message: "grpc: received message larger than max (1 vs. 2)"})
	w.faults.Add(defers(1))
	archive := &storetest.Shelf{}
	if n, err := remove(archive); err != nil || n[store.Deleted] != 9 || len(archive.Newest()) != 9 {
		t.Errorf("some deferred: %v, %v, kept %q", n, err, archive.Keys())
	}
	if n := len(w.faults.Calls("Lookup")); n != 11 {
		t.Errorf("%d lookups", n)
	}
}

// A list of descendants that is larger than a message goes in one transaction, and is kept in parts.
func TestArchivesLargeFamilies(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", name("a"))
	for _, above := range []string{"Session/a", "Session/o"} {
		var texts []string
		for i := range 6 {
			texts = append(texts, fmt.Sprintf("%s/A/b%d", above, i))
		}
		w.big(nearly1MiB, texts...)
		archive := &storetest.Shelf{}
		var o store.Outcome
		var err error
		if above == "Session/a" {
			q := query("", "a", "d")
			q.Archive = archive
			o, err = w.DeleteBelow(t.Context(), q, store.Entry{Key: above}, listOf(texts...), due)
		} else {
			var list []store.Relative
			for _, text := range texts {
				list = append(list, store.Relative{Key: text, Kind: "A"})
			}
			o, err = w.DeleteOrphans(t.Context(), store.LineageQuery{Target: target(""), Archive: archive}, above, list)
		}
		if o != store.Deleted || err != nil || len(archive.Sizes) < 2 || slices.Max(archive.Sizes) > 5<<20 || !slices.Equal(archive.Keys(), texts) {
			t.Errorf("outcome %d, %v; kept %q by %v", o, err, archive.Keys(), archive.Sizes)
		}
		if left := w.below("", above, 9); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

// What is due no more, is above an existing entity, or has an owner, is not even read.
func TestKeepsNothingThatStays(t *testing.T) {
	w := newFamily(t)
	archive := &storetest.Shelf{}
	q := query("", "a", "d")
	q.Archive = archive
	o, err := w.DeleteBelow(t.Context(), q, store.Entry{Key: "Session/a"}, listOf("Session/a/A/x"), func(store.Value) bool { return false })
	if o != store.Kept || err != nil {
		t.Errorf("not due: %d, %v", o, err)
	}
	for _, v := range []store.Verdict{store.Keep, store.CarryTo(store.TextValue("d"))} {
		if _, err = w.Settle(t.Context(), q, store.Entry{Key: "Session/a"}, func(now store.Value) store.Verdict {
			if now.Text != "c" {
				t.Errorf("it is %+v", now)
			}
			return v
		}); err != nil {
			t.Error(err)
		}
	}
	if o, err = w.Settle(t.Context(), q, store.Entry{Key: "Session/none"}, nil); o != store.Gone || err != nil {
		t.Errorf("settle of none: %d, %v", o, err)
	}
	lineage := store.LineageQuery{Target: target(""), Archive: archive, Owners: []store.Target{{Name: "a", Kind: "A", Property: "v"}}}
	if o, err = w.DeleteOrphans(t.Context(), lineage, "Session/a", []store.Relative{{Key: "Session/a/A/x", Kind: "A"}}); o != store.Kept || err != nil {
		t.Errorf("no orphan: %d, %v", o, err)
	}
	if o, err = w.DeleteOrphans(t.Context(), lineage, "Session/o", []store.Relative{{Key: "Session/o/A/x", Kind: "A"}}); o != store.Changed || err != nil {
		t.Errorf("owned: %d, %v", o, err)
	}
	if len(archive.Sizes) > 0 {
		t.Errorf("kept %q", archive.Keys())
	}
}

func TestFetch(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", name("a"), name("b"))
	w.mustWrite(&pb.Entity{Key: w.serviceKey(name("other")), Properties: map[string]*pb.Value{property: number(5)}})
	before := w.wire("", "Session/other").GetUpdateTime().AsTime()
	w.put("e", name("a"))
	after := w.wire("", "Session/a").GetUpdateTime().AsTime()
	if err := w.app.Delete(t.Context(), name("b")); err != nil {
		t.Fatal(err)
	}
	texts := []string{"Session/b", "Session/a", "Session/none", "Session/a", "Session/other"}
	for at, want := range map[time.Time]string{
		{}: " e  e 5", after: "c e  e 5", after.Add(-1): "c c  c 5", before: "c c  c 5", before.Add(-time.Second): "    ",
	} {
		got, err := w.Fetch(t.Context(), target(""), "", texts, at)
		if err != nil || len(got) != len(texts) {
			t.Fatalf("fetched %+v, %v", got, err)
		}
		var values []string
		for i, c := range got {
			values = append(values, c.Expiry.String())
			if c.Key != texts[i] || (len(c.Data) == 0) != (c.Expiry.Type == store.Missing) {
				t.Errorf("%s is %+v", texts[i], c)
			}
		}
		if s := strings.Join(values, " "); s != want {
			t.Errorf("at %v: %q, not %q", at, s, want)
		}
	}
	if got, err := w.Fetch(t.Context(), target(""), "", nil, time.Time{}); len(got) != 0 || err != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
	for _, c := range []struct {
		at    time.Time
		fault *faultrpc.Fault
		want  error
	}{
		{after.Add(-2400 * time.Hour), nil, store.ErrInvalid},
		{after.Add(time.Hour), nil, store.ErrInvalid},
		{after, &faultrpc.Fault{Method: "Lookup", Code: codes.InvalidArgument, Message: "read_time must be a whole minute"}, store.ErrUnsupported},
		{after.Truncate(time.Minute), &faultrpc.Fault{Method: "Lookup", Code: codes.InvalidArgument, Message: "read_time is no good"}, store.ErrInvalid},
		{after, &faultrpc.Fault{Method: "Lookup", Code: codes.ResourceExhausted}, store.ErrPushback},
	} {
		w.faults.Reset()
		if c.fault != nil {
			w.faults.Add(*c.fault)
		}
		if got, err := w.Fetch(t.Context(), target(""), "", texts, c.at); len(got) > 0 || !errors.Is(err, c.want) ||
			errors.Is(err, store.ErrUnsupported) != (c.want == store.ErrUnsupported) {
			t.Errorf("at %v: %v, %v, not %v", c.at, got, err, c.want)
		}
	}
	if _, err := w.Fetch(t.Context(), target(""), "", []string{"Session"}, time.Time{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
}

// Insert never changes what exists, and changes the expiry of the target's own entities alone.
func TestInsert(t *testing.T) {
	w := newFamily(t)
	w.putBelow("", sdk.PropertyList{{Name: property, Value: "c"}, {Name: "v", Value: "1"}}, "Session/b", "Session/c", "Session/d", "Session/e", "Session/b/A/x")
	texts := []string{"Session/a", "Session/b", "Session/b/A/x", "Session/c", "Session/d", "Session/e"}
	copies, err := w.Fetch(t.Context(), target(""), "", texts, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	noon := store.InstantValue(time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC))
	var list []store.Insertion
	for i, to := range []store.Value{store.TextValue("x"), store.TextValue("x"), store.TextValue("x"), noon, {}, store.TextValue("x")} {
		list = append(list, store.Insertion{Copy: copies[i], To: to, AsIs: i == 5})
	}
	before := w.wire("", "Session/a")
	for _, text := range texts[1:] {
		key, _ := ParseKey("", text)
		if err := w.app.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	var meter store.Meter
	if err := w.Insert(store.WithMeter(t.Context(), &meter), target(""), "", list); err != nil {
		t.Fatal(err)
	}
	if got := meter.Operations(); got != (store.Operations{Reads: 6, Writes: 5}) {
		t.Errorf("billed %+v", got)
	}
	if after := w.wire("", "Session/a"); after.GetVersion() != before.GetVersion() {
		t.Errorf("what was there changed to %v", after)
	}
	for i, want := range []string{"", `string_value:"x"`, `string_value:"c"`, "timestamp_value:{seconds:1795694400}", "<nil>", `string_value:"c"`} {
		e := w.wire("", texts[i]).GetEntity()
		got := strings.ReplaceAll(fmt.Sprint(e.GetProperties()[property]), "  ", " ")
		wantOutcome := store.Inserted
		if i == 0 {
			wantOutcome = store.Kept
		}
		if list[i].Outcome != wantOutcome || i > 0 && (got != want || e.GetProperties()["v"].GetStringValue() != "1") {
			t.Errorf("%s: outcome %d, %v", texts[i], list[i].Outcome, e)
		}
	}
	// A second time all are there, as after a lost reply.
	if err := w.Insert(t.Context(), target(""), "", list); err != nil {
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
	copies, err := w.Fetch(t.Context(), target(""), "", []string{"Session/a", "Session/a/A/x"}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.app.Delete(t.Context(), name("a")); err != nil {
		t.Fatal(err)
	}
	ok := store.Insertion{Copy: copies[0], AsIs: true}
	foreign, newer, none, list := ok, ok, ok, ok
	foreign.Key = "Session/b"
	newer.Data = []byte(strings.Replace(string(ok.Data), `{"key":`, `{"novelty":1,"key":`, 1))
	none.Data = nil
	list.AsIs, list.To = false, store.Value{Type: store.List, Text: "[1]"}
	for what, in := range map[string][]store.Insertion{
		"twice": {ok, ok}, "foreign": {foreign}, "newer": {newer}, "none": {none}, "list": {list}, "too many": make([]store.Insertion, store.MaxPage+1),
	} {
		if err := w.Insert(t.Context(), target(""), "", in); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.Insert(t.Context(), target(""), "", nil); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		fault faultrpc.Fault
		want  error
	}{
		{faultrpc.Fault{Method: "Commit", Code: codes.AlreadyExists, Message: "entity already exists"}, store.ErrContention},
		{faultrpc.Fault{Method: "Commit", Code: codes.Aborted}, store.ErrContention},
		{faultrpc.Fault{Method: "Lookup", Code: codes.ResourceExhausted}, store.ErrPushback},
		{faultrpc.Fault{Method: "Commit", Code: codes.Unavailable, After: true}, store.ErrUnavailable},
	} {
		w.faults.Reset()
		w.faults.Add(c.fault)
		in := []store.Insertion{ok}
		if err := w.Insert(t.Context(), target(""), "", in); !errors.Is(err, c.want) || in[0].Outcome != store.Unknown {
			t.Errorf("outcome %d, %v, not %v", in[0].Outcome, err, c.want)
		}
	}
	if w.wire("", "Session/a") == nil {
		t.Error("a lost reply was of an insert that happened")
	}
}

// The service gives what it does not take back. Each of these is refused, and taken once it is stripped.
func TestStripped(t *testing.T) {
	w := newWorld(t, "")
	long := strings.Repeat("x", maxIndexed+1)
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	cases := []struct {
		v    *pb.Value
		want string
	}{
		{textOf(long), "index of p"},
		{blob(long), "index of p"},
		{array(excluded(textOf(long)), textOf(long)), "index of p"},
		{nested(nil, map[string]*pb.Value{"b": textOf(long), "a": number(1)}), "index of p.b"},
		{excluded(nested(nil, map[string]*pb.Value{"b": textOf(long)})), "index of p.b"},
		{meaning(meaningText, textOf("t")), "index of p"},
		{excluded(array(textOf("a"), number(1))), "exclusion from indexes of p, which its elements have instead"},
		{excluded(array()), "exclusion from indexes of p, which its elements have instead"},
		{nested(nil, map[string]*pb.Value{"a": excluded(array(textOf(long)))}), "exclusion from indexes of p.a, which its elements have instead"},
		{meaning(meaningVector, array(double(1))), "index of p"},
		{meaning(5, array(double(1))), "meaning 5 of p"},
		{meaning(meaningInstant, number(now.UnixMicro())), "meaning 7 of p"},
		{meaning(14, excluded(blob("b"))), "meaning 14 of p"},
		{array(meaning(9, textOf("s")), meaning(24, textOf("s"))), "meaning 9 of p, meaning 24 of p"},
		{array(meaning(9, number(1)), meaning(18, number(1)), meaning(19, blob("s")), meaning(21, textOf("s")), meaning(24, textOf("s")), meaning(28, textOf("s"))),
			"meaning 9 of p, meaning 18 of p, meaning 19 of p, meaning 21 of p, meaning 24 of p, 1 more"},
	}
	for i, c := range cases {
		e := &pb.Entity{Key: w.serviceKey(name(fmt.Sprint("s", i))), Properties: map[string]*pb.Value{"p": c.v, "other": number(int64(i))}}
		if err := w.write(e); err == nil {
			t.Errorf("%d: %v is not refused", i, c.v)
		}
		one, err := copyOf(target(""), &pb.EntityResult{Entity: e})
		if err != nil {
			t.Fatal(err)
		}
		list := []store.Insertion{{Copy: one, To: store.TextValue("c")}}
		if err := w.Insert(t.Context(), target(""), "", list); err != nil || list[0].Outcome != store.Inserted || list[0].Stripped != c.want {
			t.Errorf("%d: outcome %d, %v, stripped %q, not %q", i, list[0].Outcome, err, list[0].Stripped, c.want)
		}
		got := w.wire("", one.Key)
		again, err := copyOf(target(""), got)
		if err != nil {
			t.Fatal(err)
		}
		if what := strip(got.GetEntity()); what != "" || again.Expiry.Text != "c" || got.GetEntity().GetProperties()["other"].GetIntegerValue() != int64(i) {
			t.Errorf("%d: it is %v, of which %s would be stripped", i, got, what)
		}
	}
}

// Entities that this program cannot keep as they are stay.
func TestUnknownFieldsStay(t *testing.T) {
	w := newFamily(t)
	w.faults.Add(faultrpc.Fault{Method: "Lookup", After: true, Times: -1, Hook: func(_ context.Context, _, reply any) {
		for _, r := range reply.(*pb.LookupResponse).GetFound() {
			for _, v := range r.GetEntity().GetProperties() {
				v.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
			}
		}
	}})
	for _, r := range removals {
		if o, err := r.do(w, &storetest.Shelf{}); o != store.Unknown || !errors.Is(err, store.ErrFailed) || !strings.Contains(err.Error(), "too old") {
			t.Errorf("%s: outcome %d, %v", r.what, o, err)
		}
	}
}

func TestBillOfArchiving(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 20)...)
	q := query("", "a", "d")
	b := batch(q, w.page(q))
	b.Query.Archive = &storetest.Shelf{}
	var m store.Meter
	if err := w.Dispose(store.WithMeter(t.Context(), &m), b); err != nil {
		t.Fatal(err)
	}
	if got := m.Operations(); got != (store.Operations{Reads: 20, Deletes: 20}) {
		t.Errorf("billed %+v", got)
	}
	if m := strings.Join(w.faults.Methods()[1:], " "); m != "BeginTransaction Lookup Lookup Commit" {
		t.Errorf("the calls are %s", m)
	}
}

func TestExpiryOf(t *testing.T) {
	storetest.CheckExpiryOf(t, new(DB), "Session", "Session/a", `{"key":{"path":[{"kind":"Session","name":"a"}]},`+
		`"properties":{"expires":{"timestampValue":"2026-11-28T00:00:00Z"},"expiry_key":{"stringValue":"k"}}}`)
}
