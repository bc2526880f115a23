package datastore

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// everyType returns a property of each type that the service has, with and
// without an index.
func everyType() sdk.PropertyList {
	inner := &sdk.Entity{Key: sdk.NameKey("Inner", "x", nil), Properties: []sdk.Property{{Name: "a", Value: int64(1), NoIndex: true}, {Name: "b", Value: "c"}}}
	values := map[string]any{
		"null": nil, "bool": true, "integer": int64(math.MinInt64), "double": 1.5, "nan": math.NaN(), "infinity": math.Inf(-1),
		"instant": time.Date(2026, 11, 21, 0, 7, 30, 855_123_000, time.UTC), "text": "ü 😀", "empty": "", "blob": []byte{0, 255},
		"place": sdk.GeoPoint{Lat: 48.1, Lng: -11.5}, "key": sdk.IDKey("User", 7, sdk.NameKey("Org", "o/1", nil)),
		"list": []any{int64(1), "x", nil, 2.5}, "empty list": []any{}, "entity": inner, "list of entities": []any{inner, inner},
	}
	var ps sdk.PropertyList
	for name, v := range values {
		_, nested := v.(*sdk.Entity)
		ps = append(ps, sdk.Property{Name: name, Value: v, NoIndex: nested || name == "list of entities"})
		ps = append(ps, sdk.Property{Name: name + " unindexed", Value: v, NoIndex: true})
	}
	return append(ps, sdk.Property{Name: "long", Value: fmt.Sprintf("%02000d", 1), NoIndex: true})
}

// entityProto reads an entity as the service holds it.
func (w *world) entityProto(key *sdk.Key) map[string]*pb.Value {
	w.t.Helper()
	var found map[string]*pb.Value
	w.faults.Reset()
	w.faults.Add(faultrpc.Fault{Method: "Lookup", After: true, Code: codes.OK, Hook: func(_ context.Context, _, reply any) {
		found = reply.(*pb.LookupResponse).GetFound()[0].GetEntity().GetProperties()
	}})
	var ps sdk.PropertyList
	if err := w.client.Get(w.t.Context(), key, &ps); err != nil {
		w.t.Fatal(err)
	}
	return found
}

// A carry changes one property of an entity with every type of property, and
// nothing else: neither values nor which of them are indexed (S2).
func TestCarryKeepsEveryType(t *testing.T) {
	for _, guard := range []store.Guard{store.GuardLookup, store.GuardQuery, store.GuardAuto} {
		w := newWorld(t, "")
		ps := append(everyType(), sdk.Property{Name: property, Value: "c"})
		if _, err := w.app.Put(t.Context(), name("all"), &ps); err != nil {
			t.Fatal(err)
		}
		before := w.entityProto(name("all"))
		q := query(guard, "a", "d")
		b := batch(q, w.page(q))
		b.Ops[0].To = store.TextValue("x")
		if err := w.Dispose(t.Context(), b); err != nil || b.Ops[0].Outcome != store.Carried {
			t.Fatalf("carry: %d, %v", b.Ops[0].Outcome, err)
		}
		after := w.entityProto(name("all"))
		if len(before) < 30 || len(after) != len(before) {
			t.Errorf("%d properties became %d", len(before), len(after))
		}
		for name, was := range before {
			if name == property {
				if after[name].GetStringValue() != "x" || after[name].GetExcludeFromIndexes() {
					t.Errorf("the expiry is %v", after[name])
				}
			} else if !proto.Equal(was, after[name]) {
				t.Errorf("%s was %v and is %v", name, was, after[name])
			}
		}
	}
}

// A carry that races with the application's own extension: the application wins,
// whenever it comes in between.
func TestCarryLosesAgainstTheApplication(t *testing.T) {
	for _, method := range []string{"BeginTransaction", "Lookup", "Commit"} {
		w := newWorld(t, "")
		w.put("c", name("a"), name("b"))
		q := query(store.GuardLookup, "a", "d")
		b := batch(q, w.page(q))
		b.Ops[0].To, b.Ops[1].To = store.TextValue("x"), store.TextValue("x")
		// In the transaction's own time the emulator makes the other writer wait:
		// then it comes right behind, and must not be overwritten either.
		done := make(chan error, 1)
		w.faults.Add(faultrpc.Fault{Method: method, Hook: func(context.Context, any, any) {
			write := func() error {
				_, err := w.app.Put(context.Background(), name("a"), &sdk.PropertyList{{Name: property, Value: "z"}})
				return err
			}
			if method == "BeginTransaction" {
				done <- write()
			} else {
				go func() { done <- write() }()
			}
		}})
		err := w.Dispose(t.Context(), b)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := w.entityProto(name("a"))[property].GetStringValue(); got != "z" {
			t.Errorf("%s: the application wrote z, and it is %q; dispose: %v", method, got, err)
		}
	}
}
