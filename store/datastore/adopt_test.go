package datastore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

func walkQuery(source string) store.WalkQuery {
	return store.WalkQuery{Target: target(store.GuardLookup), Source: source, Limit: store.MaxPage}
}

// rows reads the one page that the tests here need.
func (w *world) rows(q store.WalkQuery) []store.Row {
	w.t.Helper()
	var page store.Rows
	if err := w.Walk(w.t.Context(), q, &page); err != nil || page.More {
		w.t.Fatalf("walk: more %v, %v", page.More, err)
	}
	return page.List
}

// restampOne restamps one row and returns what became of it.
func (w *world) restampOne(q store.WalkQuery, row store.Row, to string) (store.RestampOp, error) {
	op := store.RestampOp{Row: row}
	if to != "" {
		op.To = store.TextValue(to)
	}
	b := &store.Restamping{Query: q, Ops: []store.RestampOp{op}}
	err := w.Restamp(w.t.Context(), b)
	return b.Ops[0], err
}

// A restamp changes one property of an entity with every type of property, and removing the
// expiry again leaves the entity as it was: neither values nor which of them are
// indexed differ (M1).
func TestRestampKeepsEveryType(t *testing.T) {
	w := newWorld(t, "")
	ps := everyType()
	if _, err := w.app.Put(t.Context(), name("all"), &ps); err != nil {
		t.Fatal(err)
	}
	before := w.entityProto(name("all"))
	for _, to := range []string{"x", ""} {
		op, err := w.restampOne(walkQuery("instant"), w.rows(walkQuery("instant"))[0], to)
		if err != nil || op.Outcome != store.RowRestamped {
			t.Fatalf("restamp to %q: %d, %v", to, op.Outcome, err)
		}
		after := w.entityProto(name("all"))
		if v := after[property]; v.GetStringValue() != to || v.GetExcludeFromIndexes() {
			t.Errorf("the expiry is %v", v)
		}
		delete(after, property)
		if len(before) < 30 || len(after) != len(before) {
			t.Errorf("%d properties became %d", len(before), len(after))
		}
		for name, was := range before {
			if !proto.Equal(was, after[name]) {
				t.Errorf("%s was %v and is %v", name, was, after[name])
			}
		}
	}
}

// A walk transfers the two properties that it needs, and shows times of creation.
func TestWalkShowsTheTimeOfCreation(t *testing.T) {
	w := newWorld(t, "")
	began := time.Now()
	w.put(nil, name("a"), &sdk.Key{Kind: kind, Name: "b", Parent: sdk.IDKey("User", 7, nil)})
	for _, r := range w.rows(walkQuery("user")) {
		if r.Source.Text != "u7" || r.Created.Time.Sub(began).Abs() > 10*time.Minute {
			t.Errorf("%s: source %v, created %v", r.Key, r.Source, r.Created)
		}
	}
	for _, c := range w.faults.Calls("RunQuery") {
		if got := c.Req.(*pb.RunQueryRequest).GetPropertyMask().GetPaths(); !slices.Equal(got, []string{property, "user"}) {
			t.Errorf("the query transfers %q", got)
		}
	}
}

// An entity that was deleted and created again has another time of creation, so that a
// rule by it would say otherwise.
func TestRestampNoticesThatAnEntityIsAnotherOne(t *testing.T) {
	w := newWorld(t, "")
	w.put(nil, name("a"))
	row := w.rows(walkQuery(""))[0]
	if err := w.app.Delete(t.Context(), name("a")); err != nil {
		t.Fatal(err)
	}
	w.put(nil, name("a"))
	op, err := w.restampOne(walkQuery(""), row, "x")
	if err != nil || op.Outcome != store.RowChanged || !op.Now.Created.Time.After(row.Created.Time) {
		t.Errorf("outcome %d, now %+v, %v", op.Outcome, op.Now, err)
	}
}

// The reply of a commit is lost: a repeat finds its own write, and writes nothing.
func TestRestampRepeatedAfterALostReply(t *testing.T) {
	w := newWorld(t, "")
	w.put(nil, name("a"))
	row := w.rows(walkQuery(""))[0]
	w.faults.Add(faultrpc.Fault{Method: "Commit", After: true, Code: codes.Unavailable})
	if op, err := w.restampOne(walkQuery(""), row, "x"); !store.MayHaveHappened(err) || op.Outcome != store.RowUnknown {
		t.Fatalf("outcome %d, %v", op.Outcome, err)
	}
	commits := len(w.faults.Calls("Commit"))
	if op, err := w.restampOne(walkQuery(""), row, "x"); err != nil || op.Outcome != store.RowRestamped {
		t.Errorf("outcome %d, %v", op.Outcome, err)
	}
	if n := len(w.faults.Calls("Commit")) - commits; n != 0 {
		t.Errorf("the repeat commits %d times", n)
	}
}

// A restamp that races with the application's own key: the application wins, whenever it
// comes in between.
func TestRestampLosesAgainstTheApplication(t *testing.T) {
	for _, method := range []string{"BeginTransaction", "Lookup", "Commit"} {
		w := newWorld(t, "")
		w.put(nil, name("a"), name("b"))
		rows := w.rows(walkQuery(""))
		done := make(chan error, 1)
		w.faults.Add(faultrpc.Fault{Method: method, Hook: func(context.Context, any, any) {
			write := func() error {
				_, err := w.app.Put(context.Background(), name("a"), &sdk.PropertyList{{Name: property, Value: "z"}})
				return err
			}
			if method == "BeginTransaction" {
				done <- write()
			} else {
				go func() { done <- write() }() // the emulator makes it wait for the transaction
			}
		}})
		b := &store.Restamping{Query: walkQuery(""), Ops: []store.RestampOp{
			{Row: rows[0], To: store.TextValue("x")}, {Row: rows[1], To: store.TextValue("x")}}}
		err := w.Restamp(t.Context(), b)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := w.entityProto(name("a"))[property].GetStringValue(); got != "z" {
			t.Errorf("%s: the application wrote z, and it is %q; restamp: %v", method, got, err)
		}
	}
}

// The service answers a query by __scatter__ with samples in no order of keys. Splits are a
// part of them, evenly spaced, numbers before names.
func TestSplitsBySamplesOfTheService(t *testing.T) {
	w := newWorld(t, "")
	w.put(nil, name("a"))
	w.faults.Add(faultrpc.Fault{Method: "RunQuery", Instead: true, Hook: func(_ context.Context, req, reply any) {
		q := req.(*pb.RunQueryRequest).GetQuery()
		if q.GetOrder()[0].GetProperty().GetName() != "__scatter__" || q.GetLimit().GetValue() != 3*scatterSamples {
			t.Errorf("the query is %v", q)
		}
		batch := &pb.QueryResultBatch{EntityResultType: pb.EntityResult_KEY_ONLY, MoreResults: pb.QueryResultBatch_NO_MORE_RESULTS}
		for i := range 96 {
			e := &pb.Key_PathElement{Kind: kind, IdType: &pb.Key_PathElement_Name{Name: fmt.Sprintf("s-%02d", i*37%96)}}
			if i < 32 {
				e.IdType = &pb.Key_PathElement_Id{Id: int64(1000 - i)}
			}
			batch.EntityResults = append(batch.EntityResults, &pb.EntityResult{Entity: &pb.Entity{
				Key: &pb.Key{PartitionId: partitionOf(req), Path: []*pb.Key_PathElement{e}}}})
		}
		proto.Merge(reply.(*pb.RunQueryResponse), &pb.RunQueryResponse{Batch: batch})
	}})
	splits, err := w.Splits(t.Context(), target(store.GuardLookup), "", 3)
	if err != nil || len(splits) != 3 || splits[0] != FormatKey(sdk.IDKey(kind, 985, nil)) {
		t.Fatalf("%q, %v", splits, err)
	}
	if !slices.IsSorted(splits[1:]) || len(w.faults.Calls("RunQuery")) != 1 {
		t.Errorf("%q by %d queries", splits, len(w.faults.Calls("RunQuery")))
	}
}

func partitionOf(req any) *pb.PartitionId { return req.(*pb.RunQueryRequest).GetPartitionId() }

// Walks by keys show each entity once, whatever its key is, and each key bounds a span rightly: parts of an
// adoption end at any of them.
func TestWalkOfOddKeys(t *testing.T) {
	w := newWorld(t, "")
	parent := sdk.NameKey("User", "ü/\"7\"", sdk.IDKey("Org", 1<<40, nil))
	keys := []*sdk.Key{sdk.IDKey(kind, 7, nil), sdk.IDKey(kind, 10, nil), sdk.IDKey(kind, 1<<62, nil), name("7"), name("__id7_"),
		name("a/b"), name(`a"b`), name("a\x01b"), name("ä"), name("\U0001F600"), name("\uFFFD"), name("z z"), name("Z"),
		{Kind: kind, Name: "a", Parent: parent}, {Kind: kind, ID: 3, Parent: parent}, {Kind: kind, Name: "a", Parent: name("a")},
		{Kind: kind, Name: "b", Parent: sdk.IDKey(kind, 7, nil)}}
	w.put(nil, keys...)
	whole := w.rows(walkQuery(""))
	if len(whole) != len(keys) {
		t.Fatalf("%d rows of %d entities", len(whole), len(keys))
	}
	after := ""
	for i, row := range whole {
		key, err := ParseKey("", row.Key)
		if err != nil || FormatKey(key) != row.Key || !slices.ContainsFunc(keys, key.Equal) {
			t.Errorf("row %d has the key %s, %v", i, row.Key, err)
		}
		if i > 0 {
			if before, _ := ParseKey("", whole[i-1].Key); compareKeys(before, key) >= 0 {
				t.Errorf("%s comes before %s", whole[i-1].Key, row.Key)
			}
		}
		q := walkQuery("")
		q.After, q.Until = after, row.Key
		if got := w.rows(q); len(got) != 1 || got[0].Key != row.Key {
			t.Errorf("after %s up to %s: %v", after, row.Key, got)
		}
		if id, err := w.ID(row.Key); err != nil || id == "" {
			t.Errorf("%s has the id %q, %v", row.Key, id, err)
		}
		after = row.Key
	}
	q := walkQuery("")
	q.After = after
	if got := w.rows(q); len(got) != 0 {
		t.Errorf("after the last one: %v", got)
	}
	q.After, q.Until = whole[9].Key, whole[3].Key // splits that a sample put in another order
	if got := w.rows(q); len(got) != 0 {
		t.Errorf("a span that ends before it begins: %v", got)
	}
}
