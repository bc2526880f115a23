package datastore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

func (w *world) dump(t store.Target, namespace string) []store.Entity {
	w.t.Helper()
	var out []store.Entity
	for e, err := range w.Dump(w.t.Context(), t, namespace) {
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func TestPutAndDump(t *testing.T) {
	for _, namespace := range []string{"", "tenant"} {
		w := newWorld(t, "")
		tgt := target("")
		data := `{"a":"x<y>&","arr":[1,"b",null,{"c":true}],"big":9223372036854775807,"f":1.5,"huge":1e+300,"long":"` + strings.Repeat("x", 3000) + `","n":null,"nested":{"deep":{"é":-1}}}`
		at := time.Date(2026, 11, 21, 0, 7, 30, 855_000_000, time.UTC)
		want := []store.Entity{
			{Number: 3, Namespace: namespace, Expiry: store.TextValue("e"), Data: []byte(`{}`)},
			{Number: 1 << 60, Namespace: namespace, Data: []byte(data)},
			{Name: "#odd/", Namespace: namespace, Expiry: store.Value{Type: store.Instant, Time: at}, Data: []byte(`{"k":1}`)},
			{Name: "list", Namespace: namespace, Expiry: store.Value{Type: store.List, Text: `["a",7]`}, Data: []byte(`{}`)},
			{Name: "number", Namespace: namespace, Expiry: store.Value{Type: store.Other, Text: `7`}, Data: []byte(`{}`)},
			{Name: "x", Parent: "User/#7", Namespace: namespace, Expiry: store.TextValue("e"), Data: []byte(`{}`)},
		}
		put := slices.Clone(want)
		put[0].Data = nil
		slices.Reverse(put)
		if err := w.Put(t.Context(), tgt, namespace, put); err != nil {
			t.Fatal(err)
		}
		if got := w.dump(tgt, namespace); !reflect.DeepEqual(got, want) {
			t.Errorf("dumped\n%+v\nwant\n%+v", got, want)
		}
		// Only the expiry property is indexed: nothing else can be asked for.
		ks, err := w.app.GetAll(t.Context(), sdk.NewQuery(kind).Namespace(namespace).FilterField("k", "=", 1).KeysOnly(), nil)
		if err != nil || len(ks) != 0 {
			t.Errorf("a property of the data is indexed: %v, %v", ks, err)
		}
		// A second put replaces the whole.
		if err := w.Put(t.Context(), tgt, namespace, []store.Entity{{Number: 1 << 60}}); err != nil {
			t.Fatal(err)
		}
		if got := w.dump(tgt, namespace)[1]; string(got.Data) != `{}` || got.Expiry != (store.Value{}) {
			t.Errorf("after a second put: %+v", got)
		}
	}
}

func TestDumpOfForeignTypes(t *testing.T) {
	w := newWorld(t, "")
	ps := sdk.PropertyList{
		{Name: "blob", Value: []byte("\x00\xff")}, {Name: "geo", Value: sdk.GeoPoint{Lat: 1.5, Lng: -2}},
		{Name: "key", Value: sdk.IDKey("User", 7, nil)}, {Name: "nan", Value: math.NaN()}, {Name: "inf", Value: []any{math.Inf(-1)}},
		{Name: "time", Value: time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)},
	}
	if _, err := w.app.Put(t.Context(), name("x"), &ps); err != nil {
		t.Fatal(err)
	}
	want := `{"blob":"AP8=","geo":{"lat":1.5,"lng":-2.0},"inf":["-Inf"],"key":"User/#7","nan":"NaN","time":"0001-01-01T00:00:00.000001Z"}`
	if got := w.dump(target(""), ""); len(got) != 1 || string(got[0].Data) != want {
		t.Errorf("dumped %s, want %s", got[0].Data, want)
	}
}

func TestPutRefuses(t *testing.T) {
	w := newWorld(t, "")
	for what, es := range map[string][]store.Entity{
		"twice":              {{Name: "a"}, {Name: "b"}, {Name: "a"}},
		"no name":            {{}},
		"a negative number":  {{Number: -1}},
		"a broken parent":    {{Name: "a", Parent: "User"}},
		"data of no object":  {{Name: "a", Data: []byte(`[1]`)}},
		"broken data":        {{Name: "a", Data: []byte(`{"a":`)}},
		"two objects":        {{Name: "a", Data: []byte(`{} {}`)}},
		"an infinite number": {{Name: "a", Data: []byte(`{"a":1e999}`)}},
		"nested arrays":      {{Name: "a", Data: []byte(`{"a":[[1]]}`)}},
		"a reserved name":    {{Name: "a", Data: []byte(`{"a":{"__key__":1}}`)}},
		"the expiry in data": {{Name: "a", Data: []byte(`{"expiry_key":"x"}`)}},
		"a long expiry":      {{Name: "b"}, {Name: "a", Expiry: store.TextValue(strings.Repeat("x", 1501))}},
	} {
		if err := w.Put(t.Context(), target(""), "", es); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if err := w.Put(t.Context(), target(""), "", make([]store.Entity, 501)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("501 entities: %v, want ErrTooLarge", err)
	}
	if left := w.left(""); len(left) != 0 {
		t.Errorf("refused puts wrote %v", left)
	}
}

func TestDumpOfMany(t *testing.T) {
	w := newWorld(t, "")
	keys := names("s", 1234)
	w.put("c", keys...)
	got := w.dump(target(""), "")
	if len(got) != len(keys) || !slices.IsSortedFunc(got, func(a, b store.Entity) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("dumped %d of %d, in order: no", len(got), len(keys))
	}
	n := 0
	for _, err := range w.Dump(t.Context(), target(""), "") {
		if n++; n == 3 || err != nil {
			break
		}
	}
	w.faults.Reset()
	w.faults.Add(faultrpc.Fault{Method: "RunQuery", Code: 8, Message: "quota", Times: -1})
	for e, err := range w.Dump(t.Context(), target(""), "") {
		if !errors.Is(err, store.ErrPushback) {
			t.Errorf("dumped %+v, %v, want ErrPushback", e, err)
		}
	}
}

func TestCount(t *testing.T) {
	w := newWorld(t, "")
	values := map[string]any{
		"text": "m", "empty": "", "null": nil, "int": int64(5), "least": leastInteger, "true": true, "blob": []byte{0}, "float": 1.5,
		"time": time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "nan": math.NaN(), "key": name("z"), "noexpiry": []any{}, "list": []any{"m2", int64(-1)},
	}
	for n, v := range values {
		w.put(v, name(n))
	}
	tgt := target("")
	for _, c := range []struct {
		s    store.Span
		want int64
	}{
		{store.Span{}, 12},            // all but null and the empty list; the list's two elements count
		{store.Between("", "m"), 7},   // integers, the instant, boolean, empty text, blob
		{store.Between("m", ""), 5},   // texts, floats, key
		{store.Between("m", "m2"), 1}, // half open
		{store.Between("m", "m3"), 2},
		{store.Between("x", "y"), 0},
	} {
		if got, err := w.Count(t.Context(), tgt, "", c.s, 0); err != nil || got != c.want {
			t.Errorf("Count(%+v) = %d, %v, want %d", c.s, got, err, c.want)
		}
	}
	if got, err := w.Count(t.Context(), tgt, "elsewhere", store.Span{}, 0); err != nil || got != 0 {
		t.Errorf("Count elsewhere = %d, %v", got, err)
	}
	if holds, err := w.Holds(t.Context(), tgt, ""); err != nil || !holds {
		t.Errorf("Holds = %v, %v", holds, err)
	}
	if holds, err := w.Holds(t.Context(), tgt, "elsewhere"); err != nil || holds {
		t.Errorf("Holds elsewhere = %v, %v", holds, err)
	}
}

// A count asks for no more than its bound, and in each part of a span for no more
// than the parts before have left of it.
func TestCountAsksForNoMore(t *testing.T) {
	w := newWorld(t, "")
	tgt := target("")
	tgt.ShardProperty = "shard"
	for _, shard := range []string{"a", "b", "c"} {
		for _, v := range []string{"g", "h", "m", "n"} {
			e := store.Entity{Name: shard + v, Shard: store.TextValue(shard), Expiry: store.TextValue(v)}
			if err := w.Put(t.Context(), tgt, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
	}
	place := func(shard string) store.Point {
		return store.Point{Shard: store.TextValue(shard), Value: store.TextValue("m")}
	}
	span := store.Span{From: place("a"), To: place("c")} // two of a, all four of b, two of c
	for _, c := range []struct {
		upTo, want int64
		asked      []string
	}{
		{-1, 8, []string{"all", "all", "all"}},
		{0, 8, []string{"all", "all", "all"}},
		{1, 1, []string{"1"}},
		{2, 2, []string{"2"}},
		{3, 3, []string{"3", "1"}},
		{6, 6, []string{"6", "4"}},
		{7, 7, []string{"7", "5", "1"}},
		{9, 8, []string{"9", "7", "3"}},
	} {
		w.faults.Reset()
		n, err := w.Count(t.Context(), tgt, "", span, c.upTo)
		var asked []string
		for _, call := range w.faults.Calls("RunAggregationQuery") {
			for _, a := range call.Req.(*pb.RunAggregationQueryRequest).GetAggregationQuery().GetAggregations() {
				bound := "all"
				if upTo := a.GetCount().GetUpTo(); upTo != nil {
					bound = fmt.Sprint(upTo.GetValue())
				}
				asked = append(asked, bound)
			}
		}
		if err != nil || n != c.want || !slices.Equal(asked, c.asked) {
			t.Errorf("up to %d: %d, %v, asked for %q; want %d, asked for %q", c.upTo, n, err, asked, c.want, c.asked)
		}
	}
}

// TestOddProperties: names that the client's query syntax would misread.
func TestOddProperties(t *testing.T) {
	for _, p := range []string{"-desc", "with space", "\"quoted\"", "=", "é", "+x", `a\b`, "9"} {
		w := newWorld(t, "")
		tgt := target(store.GuardLookup)
		tgt.Property = p
		for _, n := range []string{"b", "a", "c"} {
			if err := w.Put(t.Context(), tgt, "", []store.Entity{{Name: n, Expiry: store.TextValue(n)}}); err != nil {
				t.Fatalf("%q: %v", p, err)
			}
		}
		q := store.Query{Target: tgt, Lo: store.TextValue("a"), Hi: store.TextValue("b"), Limit: 1}
		if got, want := w.walk(q, func(int) bool { return true }), []string{"a Session/a", "b Session/b"}; !slices.Equal(got, want) {
			t.Errorf("property %q: %q, want %q", p, got, want)
		}
		if n, err := w.Count(t.Context(), tgt, "", store.Between("b", ""), 0); err != nil || n != 2 {
			t.Errorf("property %q: Count = %d, %v, want 2", p, n, err)
		}
		q.Limit = 10
		b := batch(q, w.page(q))
		if err := w.Dispose(t.Context(), b); err != nil || len(w.left("")) != 1 {
			t.Errorf("property %q: %v, left %v", p, err, w.left(""))
		}
	}
}

// TestNamespaces answers in the service's place: Google's Firestore emulator
// has no such queries.
func TestNamespaces(t *testing.T) {
	w := newWorld(t, "")
	if _, err := w.Namespaces(t.Context()); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "emulator") {
		t.Errorf("on the emulator: %v, want its refusal", err)
	}
	answer := func(req, reply any) {
		if k := req.(*pb.RunQueryRequest).GetQuery().GetKind(); len(k) != 1 || k[0].Name != "__namespace__" {
			t.Errorf("asked for %v", k)
		}
		key := func(id any) *pb.EntityResult {
			e := &pb.Key_PathElement{Kind: "__namespace__"}
			switch id := id.(type) {
			case int:
				e.IdType = &pb.Key_PathElement_Id{Id: int64(id)}
			case string:
				e.IdType = &pb.Key_PathElement_Name{Name: id}
			}
			return &pb.EntityResult{Entity: &pb.Entity{Key: &pb.Key{Path: []*pb.Key_PathElement{e}}}}
		}
		reply.(*pb.RunQueryResponse).Batch = &pb.QueryResultBatch{
			EntityResults: []*pb.EntityResult{key(1), key("b"), key("a")}, MoreResults: pb.QueryResultBatch_NO_MORE_RESULTS,
		}
	}
	w.faults.Add(faultrpc.Fault{Method: "RunQuery", Instead: true, Hook: func(_ context.Context, req, reply any) { answer(req, reply) }})
	if got, err := w.Namespaces(t.Context()); err != nil || !slices.Equal(got, []string{"", "a", "b"}) {
		t.Errorf("Namespaces = %q, %v", got, err)
	}
}

func TestBilling(t *testing.T) {
	w := newWorld(t, "")
	ctx := t.Context()
	bill := func(what string, want store.Operations, do func(context.Context) error) {
		t.Helper()
		var m store.Meter
		if err := do(store.WithMeter(ctx, &m)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := m.Operations(); got != want {
			t.Errorf("%s: billed %+v, want %+v", what, got, want)
		}
	}
	es := make([]store.Entity, 30)
	for i := range es {
		es[i] = store.Entity{Name: fmt.Sprintf("s%02d", i), Expiry: store.TextValue("c")}
	}
	bill("put", store.Operations{Writes: 30}, func(ctx context.Context) error { return w.Put(ctx, target(""), "", es) })
	w.put("c", names("t", 1100)...)
	count := func(namespace string, upTo int64) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.Count(ctx, target(""), namespace, store.Span{}, upTo)
			return err
		}
	}
	bill("count", store.Operations{Reads: 2}, count("", 0))
	bill("count up to a thousand", store.Operations{Reads: 1}, count("", 1000))
	bill("count of nothing", store.Operations{Reads: 1}, count("x", 0))
	bill("holds", store.Operations{Reads: 1}, func(ctx context.Context) error { _, err := w.Holds(ctx, target(""), ""); return err })
	for g, want := range map[store.Guard]store.Operations{
		store.GuardLookup: {Reads: 10, Deletes: 9},
		store.GuardQuery:  {Reads: 2, Deletes: 9},  // the query, and a look at the one that changed
		store.GuardAuto:   {Reads: 10, Deletes: 9}, // lookup, since it is an emulator
	} {
		q := query(g, "a", "d")
		q.Limit = 10
		var p store.Page
		bill("scan", store.Operations{Reads: 1}, func(ctx context.Context) error { return w.Scan(ctx, q, &p) })
		b := batch(q, p)
		changed := p.Entries[4].Ref.(*sdk.Key)
		w.put("x", changed)
		dry := *b
		dry.DryRun = true
		bill("dry run by "+string(g), store.Operations{Reads: want.Reads}, func(ctx context.Context) error { return w.Dispose(ctx, &dry) })
		bill("dispose by "+string(g), want, func(ctx context.Context) error { return w.Dispose(ctx, b) })
	}
	q := query("", "a", "d")
	q.After = store.Position{Value: store.TextValue("c"), Key: "Session/zzz"}
	q.Limit = 10
	bill("scan that resumes", store.Operations{Reads: 2}, func(ctx context.Context) error { return w.Scan(ctx, q, &store.Page{}) })
	r := store.Record{Sort: store.CursorRecord, Key: "k", Target: "t", Revision: "1-a", Fields: store.Fields{}}
	bill("creation of a record", store.Operations{Writes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "") })
	r.Revision = "2-a"
	bill("save", store.Operations{Reads: 1, Writes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "1-a") })
	bill("load", store.Operations{Reads: 1}, func(ctx context.Context) error {
		_, err := w.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: "t"})
		return err
	})
	r.Fields = nil
	bill("removal", store.Operations{Reads: 1, Deletes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "2-a") })
}
