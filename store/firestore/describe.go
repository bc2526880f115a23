package firestore

import (
	"context"
	"errors"
	"fmt"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// Describe returns what the service's administration says of the database. The emulator has
// no administration: the error is then [facts.ErrEmulated].
func (d *DB) Describe(ctx context.Context) (facts.Database, error) { return d.admin.Describe(ctx) }

// Fields returns the fields of a collection group that have indexes of their own or a TTL policy.
func (d *DB) Fields(ctx context.Context, kind string) ([]facts.Field, error) {
	return d.admin.Fields(ctx, kind)
}

// Permitted returns those of the given permissions that the credentials have on the project.
func (d *DB) Permitted(ctx context.Context, permissions []string) ([]string, error) {
	return d.admin.Permitted(ctx, permissions)
}

// Kinds lists root collections, at most so many.
func (d *DB) Kinds(ctx context.Context, most int) (names []string, err error) {
	it := d.client.ListCollectionIds(d.owner(ctx), &pb.ListCollectionIdsRequest{Parent: d.root()})
	for len(names) < most {
		name, err := it.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return nil, d.fail(ctx, "list collections", err)
		}
		names = append(names, name)
	}
	return names, nil
}

// RecordedTargets lists the targets that have a record, at most so many, in order.
func (d *DB) RecordedTargets(ctx context.Context, most int) (names []string, err error) {
	_, query := d.collection(store.Target{Kind: string(store.TargetRecord)})
	query.Select = &pb.StructuredQuery_Projection{Fields: []*pb.StructuredQuery_FieldReference{field(nameField)}}
	query.OrderBy = []*pb.StructuredQuery_Order{ascending(nameField)}
	query.Limit = wrapperspb.Int32(int32(min(most, store.MaxRecords)))
	err = d.query(ctx, d.root(), query, func(r *pb.RunQueryResponse) error {
		if doc := r.GetDocument(); doc != nil {
			_, name := splitPath(d.key(doc.GetName()))
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, d.fail(ctx, fmt.Sprintf("list %s", store.TargetRecord), err)
	}
	return names, nil
}
