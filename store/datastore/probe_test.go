package datastore

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// TestExplained: queries and counts ask what they bill if the context wants to know, and only
// then, and what the service says is added up. The emulator says nothing, so the replies are
// the service's here.
func TestExplained(t *testing.T) {
	w := newWorld(t, "")
	metrics := &pb.ExplainMetrics{ExecutionStats: &pb.ExecutionStats{ReadOperations: 7}}
	asked := 0
	w.faults.Add(faultrpc.Fault{Times: -1, After: true, Hook: func(_ context.Context, req, reply any) {
		switch r := req.(type) {
		case *pb.RunQueryRequest:
			if r.GetExplainOptions().GetAnalyze() {
				asked++
				reply.(*pb.RunQueryResponse).ExplainMetrics = metrics
			}
		case *pb.RunAggregationQueryRequest:
			if r.GetExplainOptions().GetAnalyze() {
				asked++
				reply.(*pb.RunAggregationQueryResponse).ExplainMetrics = metrics
			}
		}
	}})
	ask := func(ctx context.Context) {
		t.Helper()
		q := store.Query{Target: target(store.GuardLookup), Lo: store.TextValue(""), Hi: store.TextValue("z"), Limit: 10}
		if err := w.Scan(ctx, q, new(store.Page)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Count(ctx, q.Target, "", store.Span{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	ask(t.Context())
	if asked != 0 {
		t.Errorf("%d queries asked, though nobody wants to know", asked)
	}
	said := new(facts.Explained)
	ask(facts.WithExplained(t.Context(), said))
	if reads, answers := said.Reads(); reads != 14 || answers != 2 || asked != 2 {
		t.Errorf("%d answers of %d that were asked for say %d reads", answers, asked, reads)
	}
}

// TestAbandon: what an abandoned transaction has read cannot be written until the service ends it.
func TestAbandon(t *testing.T) {
	w := newWorld(t, "")
	tg := target(store.GuardLookup)
	e := store.Entity{Name: "locked", Expiry: store.TextValue("x")}
	if err := w.Put(t.Context(), tg, "", []store.Entity{e}); err != nil {
		t.Fatal(err)
	}
	key, err := w.Key(tg, "", e)
	if err == nil {
		err = w.Abandon(t.Context(), tg, "", key)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = w.Put(ctx, tg, "", []store.Entity{e})
	if !errors.Is(err, store.ErrContention) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the entity can be written: %v", err)
	}
	if err := w.Abandon(t.Context(), tg, "", "no key"); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("of what has no valid key: %v", err)
	}
}
