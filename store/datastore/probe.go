package datastore

import (
	"context"
	"fmt"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// Abandon reads an entity in a read-write transaction, and leaves the transaction to the
// service, as a process does that is killed: the service ends it when it has been idle for
// long enough. Until then it may hold others up.
func (d *DB) Abandon(ctx context.Context, t store.Target, namespace, key string) error {
	op := fmt.Sprintf("begin a transaction on %s of %s", key, where(t, namespace))
	k, err := ParseKey(namespace, key)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	tx, err := d.begin(ctx)
	if err == nil {
		err = tx.Get(k, new(sdk.PropertyList))
	}
	if err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// askToExplain has the service say what a query is billed, if the context wants to know.
func askToExplain(ctx context.Context, req any) {
	if facts.ExplainedOf(ctx) == nil {
		return
	}
	analyze := &pb.ExplainOptions{Analyze: true}
	switch r := req.(type) {
	case *pb.RunQueryRequest:
		r.ExplainOptions = analyze
	case *pb.RunAggregationQueryRequest:
		r.ExplainOptions = analyze
	}
}

// noteExplained adds up what the service says that it bills.
func noteExplained(ctx context.Context, reply any) {
	e := facts.ExplainedOf(ctx)
	r, ok := reply.(interface{ GetExplainMetrics() *pb.ExplainMetrics })
	if e == nil || !ok {
		return
	}
	if stats := r.GetExplainMetrics().GetExecutionStats(); stats != nil {
		e.Add(stats.GetReadOperations())
	}
}
