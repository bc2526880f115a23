package firestore

import (
	"context"
	"fmt"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// Abandon reads a document in a read-write transaction, and leaves the transaction to the
// service, as a process does that is killed: the service ends it when it has been idle for
// long enough. Until then it may hold others up.
func (d *DB) Abandon(ctx context.Context, t store.Target, namespace, key string) error {
	op := fmt.Sprintf("begin a transaction on %s", key)
	if err := check(t, namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	_, _, err := d.begin(ctx, t, key)
	if err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// explain returns the options by which the service says what a query is billed, if the
// context wants to know.
func explain(ctx context.Context) *pb.ExplainOptions {
	if facts.ExplainedOf(ctx) == nil {
		return nil
	}
	return &pb.ExplainOptions{Analyze: true}
}

// noteExplained adds up what the service says that it bills.
func noteExplained(ctx context.Context, m *pb.ExplainMetrics) {
	if stats := m.GetExecutionStats(); stats != nil && facts.ExplainedOf(ctx) != nil {
		facts.ExplainedOf(ctx).Add(stats.GetReadOperations())
	}
}
