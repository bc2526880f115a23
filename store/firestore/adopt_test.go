package firestore

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

var adopted = store.Target{Name: "sessions", Kind: "sessions", Property: "expiry_key", Type: store.Text}

func (w *world) rows(q store.WalkQuery) []store.Row {
	w.t.Helper()
	var page store.Rows
	if err := w.Walk(w.t.Context(), q, &page); err != nil {
		w.t.Fatal(err)
	}
	return page.List
}

func (w *world) restampOne(q store.WalkQuery, row store.Row, to string) (store.RestampOp, error) {
	op := store.RestampOp{Row: row}
	if to != "" {
		op.To = store.TextValue(to)
	}
	b := &store.Restamping{Query: q, Ops: []store.RestampOp{op}}
	err := w.Restamp(w.t.Context(), b)
	return b.Ops[0], err
}

func (w *world) fields(name string) (fields map[string]*pb.Value) {
	w.t.Helper()
	err := w.get(w.t.Context(), []string{name}, nil, func(_ string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) {
		fields = doc.GetFields()
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return fields
}

// A restamp changes one field of a document with every type of field, and removing it again
// leaves the document as it was (M1). The walk shows when it was created.
func TestRestampKeepsEveryType(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	fields := everyType(w.name("sessions/other"))
	doc := &pb.Document{Name: w.name("sessions/all"), Fields: fields}
	if _, err := w.commit(t.Context(), []*pb.Write{{Operation: &pb.Write_Update{Update: doc}}}); err != nil {
		t.Fatal(err)
	}
	q := store.WalkQuery{Target: adopted, Source: "instant", Limit: store.MaxPage}
	for _, to := range []string{"x", ""} {
		row := w.rows(q)[0]
		if row.Created.Time.Sub(began).Abs() > 10*time.Minute {
			t.Errorf("created %v", row.Created)
		}
		op, err := w.restampOne(q, row, to)
		if err != nil || op.Outcome != store.RowRestamped {
			t.Fatalf("restamp to %q: %d, %v", to, op.Outcome, err)
		}
		got := maps.Clone(w.fields(doc.Name))
		if got["expiry_key"].GetStringValue() != to {
			t.Errorf("the expiry is %v", got["expiry_key"])
		}
		delete(got, "expiry_key")
		if !maps.EqualFunc(got, fields, func(a, b *pb.Value) bool { return proto.Equal(a, b) }) {
			t.Errorf("the fields are %v, not %v", got, fields)
		}
	}
}

// The reply of a write is lost: a repeat is refused, and finds its own write.
func TestRestampRepeatedAfterALostReply(t *testing.T) {
	w := newWorld(t)
	w.put(adopted, store.Entity{Name: "a"})
	q := store.WalkQuery{Target: adopted, Limit: 10}
	row := w.rows(q)[0]
	w.faults.Add(faultrpc.Fault{Method: "BatchWrite", After: true, Code: codes.Unavailable})
	if op, err := w.restampOne(q, row, "x"); !store.MayHaveHappened(err) || op.Outcome != store.RowUnknown {
		t.Fatalf("outcome %d, %v", op.Outcome, err)
	}
	if op, err := w.restampOne(q, row, "x"); err != nil || op.Outcome != store.RowRestamped {
		t.Errorf("outcome %d, %v", op.Outcome, err)
	}
}

// Another field changes between walk and write: the write is refused, and what the caller
// gets is enough to write again.
func TestRestampMeetsAnUpdate(t *testing.T) {
	w := newWorld(t)
	w.put(adopted, store.Entity{Name: "a", Data: []byte(`{"n":1}`)})
	q := store.WalkQuery{Target: adopted, Limit: 10}
	row := w.rows(q)[0]
	w.faults.Add(faultrpc.Fault{Method: "BatchWrite", Hook: func(context.Context, any, any) {
		w.put(adopted, store.Entity{Name: "a", Data: []byte(`{"n":2}`)})
	}})
	op, err := w.restampOne(q, row, "x")
	if err != nil || op.Outcome != store.RowChanged || !op.Row.Agrees(op.Now) {
		t.Fatalf("outcome %d, now %+v, %v", op.Outcome, op.Now, err)
	}
	if op, err = w.restampOne(q, op.Now, "x"); err != nil || op.Outcome != store.RowRestamped {
		t.Errorf("by what it is now: outcome %d, %v", op.Outcome, err)
	}
	if got := w.fields(w.name("sessions/a")); got["n"].GetIntegerValue() != 2 || got["expiry_key"].GetStringValue() != "x" {
		t.Errorf("the document is %v", got)
	}
}

// The service partitions the group that a collection belongs to. Points in other
// collections of that name are left out.
func TestSplitsByPartitionsOfTheService(t *testing.T) {
	for _, group := range []bool{false, true} {
		w := newWorld(t)
		w.faults.Add(faultrpc.Fault{Method: "PartitionQuery", Instead: true, Hook: func(_ context.Context, req, reply any) {
			r := req.(*pb.PartitionQueryRequest)
			from := r.GetStructuredQuery().GetFrom()[0]
			if r.GetPartitionCount() != 4 || !from.GetAllDescendants() || from.GetCollectionId() != "sessions" || len(r.GetStructuredQuery().GetOrderBy()) != 1 {
				t.Errorf("the request is %v", r)
			}
			for _, key := range []string{"sessions/m", "users/u1/sessions/x", "sessions/f"} {
				reply.(*pb.PartitionQueryResponse).Partitions = append(reply.(*pb.PartitionQueryResponse).Partitions,
					&pb.Cursor{Values: []*pb.Value{w.reference(key)}})
			}
		}})
		target := adopted
		want := []string{"sessions/f", "sessions/m"}
		if target.Group = group; group {
			want = append(want, "users/u1/sessions/x")
		}
		got, err := w.Splits(t.Context(), target, "", 4)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("group %v: %q, %v; want %q", group, got, err, want)
		}
	}
}

// Walks by names show each document of a collection group once, whatever its name is, and each name bounds a
// span rightly: parts of an adoption end at any of them.
func TestWalkOfOddNames(t *testing.T) {
	w := newWorld(t)
	group := adopted
	group.Group = true
	names := []string{"sessions/__id7__", "sessions/__id10__", "sessions/__id4611686018427387904__", "sessions/7", "sessions/__id7_",
		`sessions/a"b`, "sessions/a b", "sessions/ä", "sessions/\U0001F600", "sessions/\uFFFD", "sessions/Z",
		"users/ü/sessions/a", "users/__id3__/sessions/__id3__", "users/__id20__/sessions/a", "sessions/a/sessions/b", "sessions/__id7__/sessions/b"}
	var writes []*pb.Write
	for _, name := range names {
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{Name: w.name(name)}}})
	}
	if _, err := w.commit(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	q := store.WalkQuery{Target: group, Limit: store.MaxPage}
	whole := w.rows(q)
	if len(whole) != len(names) {
		t.Fatalf("%d rows of %d documents", len(whole), len(names))
	}
	after := ""
	for i, row := range whole {
		if !slices.Contains(names, row.Key) {
			t.Errorf("row %d has the key %s", i, row.Key)
		}
		if i > 0 && compareNames(whole[i-1].Key, row.Key) >= 0 {
			t.Errorf("%s comes before %s", whole[i-1].Key, row.Key)
		}
		q.After, q.Until = after, row.Key
		if got := w.rows(q); len(got) != 1 || got[0].Key != row.Key {
			t.Errorf("after %s up to %s: %v", after, row.Key, got)
		}
		if id, err := w.ID(row.Key); err != nil || id == "" {
			t.Errorf("%s has the id %q, %v", row.Key, id, err)
		}
		after = row.Key
	}
	q.After, q.Until = after, ""
	if got := w.rows(q); len(got) != 0 {
		t.Errorf("after the last one: %v", got)
	}
	q.After, q.Until = whole[9].Key, whole[3].Key // splits that a sample put in another order
	if got := w.rows(q); len(got) != 0 {
		t.Errorf("a span that ends before it begins: %v", got)
	}
}
