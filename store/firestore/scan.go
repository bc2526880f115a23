package firestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// nameField is the pseudo field that holds a document's name.
const nameField = "__name__"

// A version is the Ref of an entry: what a write of its document demands.
type version struct {
	updated *timestamppb.Timestamp
}

// Scan implements [store.Store]. A page is one query. It reads whole documents if an archive wants them: then a page
// is about CopyBytes at most.
func (d *DB) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	page.Entries, page.More, page.Next, page.SteppedOver = page.Entries[:0], false, nil, store.UnknownSteps
	op := fmt.Sprintf("scan %s of %s", q.Target.Property, q.Target.Kind)
	parent, query, err := d.page(q)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if query == nil {
		return ctx.Err()
	}
	var reading *google.Reading // of whole documents
	if d.scanned.isWanted(q.Target) {
		reading = d.sizes.Read(q.Target.Kind, q.Limit)
		query.Select, query.Limit = nil, wrapperspb.Int32(int32(len(reading.Next())))
	}
	err = d.query(ctx, parent, query, func(r *pb.RunQueryResponse) error {
		doc := r.GetDocument()
		if doc == nil {
			return nil
		}
		page.Entries = append(page.Entries, store.Entry{
			Key:   d.key(doc.GetName()),
			Value: fromValue(doc.GetFields()[q.Target.Property]),
			Ref:   version{doc.GetUpdateTime()},

			Written: doc.GetUpdateTime().AsTime(),
		})
		if reading == nil {
			return nil
		}
		if c, err := d.copyOf(q.Target, doc); err == nil { // else the delete reads it, and says why
			d.scanned.hold(c)
		}
		if reading.Got(len(page.Entries)-1, proto.Size(doc)); reading.Full() {
			return errEnough
		}
		return nil
	})
	isCut := errors.Is(err, errEnough)
	if err != nil && !isCut {
		page.Entries = page.Entries[:0]
		return d.fail(ctx, op, err)
	}
	page.More = isCut || len(page.Entries) >= int(query.GetLimit().GetValue())
	return nil
}

// page returns the query that reads a page, and the parent to run it below. The
// query is nil if nothing can lie within the bounds. It orders by value and name and
// starts after both: after a value alone it would skip other documents with it.
func (d *DB) page(q store.Query) (parent string, _ *pb.StructuredQuery, err error) {
	if err := check(q.Target, q.Namespace); err != nil {
		return "", nil, err
	}
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return "", nil, fmt.Errorf("%w: a page of %d entries, not of 1 to %d", store.ErrInvalid, q.Limit, store.MaxPage)
	}
	for _, v := range []store.Value{q.Lo, q.Hi} {
		if v.Type != q.Target.Type || v.Type != store.Text && v.Type != store.Instant {
			return "", nil, fmt.Errorf("%w: a bound is of type %d, not %d", store.ErrInvalid, v.Type, q.Target.Type)
		}
	}
	if q.Lo.Compare(q.Hi) > 0 {
		return "", nil, nil
	}
	parent, query := d.collection(q.Target)
	query.Select = &pb.StructuredQuery_Projection{Fields: []*pb.StructuredQuery_FieldReference{field(q.Target.Property)}}
	filters := []*pb.StructuredQuery_Filter{
		compare(q.Target.Property, pb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL, toValue(q.Lo)),
		compare(q.Target.Property, pb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL, toValue(q.Hi)),
	}
	if q.Target.ShardProperty != "" {
		if err := checkShard(q.Shard); err != nil {
			return "", nil, err
		}
		filters = append(filters, compare(q.Target.ShardProperty, pb.StructuredQuery_FieldFilter_EQUAL, toValue(q.Shard)))
	}
	query.Where = and(filters)
	query.OrderBy = []*pb.StructuredQuery_Order{ascending(q.Target.Property), ascending(nameField)}
	query.Limit = wrapperspb.Int32(int32(q.Limit))
	if after := q.After; after.Value.Compare(q.Lo) >= 0 {
		if after.Value.Type != q.Target.Type {
			return "", nil, fmt.Errorf("%w: the position is of type %d, not %d",
				store.ErrInvalid, after.Value.Type, q.Target.Type)
		}
		query.StartAt = &pb.Cursor{Values: []*pb.Value{toValue(after.Value)}, Before: true}
		if after.Key != "" {
			query.StartAt.Values = append(query.StartAt.Values,
				&pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: d.name(after.Key)}})
			query.StartAt.Before = false
		}
	}
	return parent, query, nil
}

// collection returns a query of all documents of the target.
func (d *DB) collection(t store.Target) (parent string, q *pb.StructuredQuery) {
	parent, id := d.parent(t)
	return parent, &pb.StructuredQuery{From: []*pb.StructuredQuery_CollectionSelector{
		{CollectionId: id, AllDescendants: t.Group},
	}}
}

func field(name string) *pb.StructuredQuery_FieldReference {
	return &pb.StructuredQuery_FieldReference{FieldPath: fieldPath(name)}
}

func ascending(name string) *pb.StructuredQuery_Order {
	return &pb.StructuredQuery_Order{Field: field(name), Direction: pb.StructuredQuery_ASCENDING}
}

func compare(name string, op pb.StructuredQuery_FieldFilter_Operator, v *pb.Value) *pb.StructuredQuery_Filter {
	return &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_FieldFilter{
		FieldFilter: &pb.StructuredQuery_FieldFilter{Field: field(name), Op: op, Value: v}}}
}

func and(filters []*pb.StructuredQuery_Filter) *pb.StructuredQuery_Filter {
	return &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_CompositeFilter{
		CompositeFilter: &pb.StructuredQuery_CompositeFilter{Op: pb.StructuredQuery_CompositeFilter_AND, Filters: filters}}}
}

// Count implements [store.Counter], by the position of values in the index:
// unlike filters, positions reach across types.
func (d *DB) Count(
	ctx context.Context, t store.Target, namespace string, s store.Span, upTo int64,
) (n int64, err error) {
	const alias = "n"
	op := fmt.Sprintf("count %s of %s", t.Property, t.Kind)
	parent, query, err := d.span(t, namespace, s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	count := &pb.StructuredAggregationQuery_Aggregation_Count{}
	if upTo > 0 {
		count.UpTo = wrapperspb.Int64(upTo)
	}
	ctx, cancel := context.WithCancel(d.owner(ctx))
	defer cancel()
	stream, err := d.client.RunAggregationQuery(ctx, &pb.RunAggregationQueryRequest{Parent: parent,
		ExplainOptions: explain(ctx),
		QueryType: &pb.RunAggregationQueryRequest_StructuredAggregationQuery{
			StructuredAggregationQuery: &pb.StructuredAggregationQuery{
				QueryType: &pb.StructuredAggregationQuery_StructuredQuery{StructuredQuery: query},
				Aggregations: []*pb.StructuredAggregationQuery_Aggregation{{Alias: alias,
					Operator: &pb.StructuredAggregationQuery_Aggregation_Count_{Count: count}}},
			}}})
	answered := false
	err = each(stream, err, func(r *pb.RunAggregationQueryResponse) error {
		if v, ok := r.GetResult().GetAggregateFields()[alias]; ok {
			n, answered = v.GetIntegerValue(), true
		}
		noteExplained(ctx, r.GetExplainMetrics())
		return nil
	})
	if err != nil {
		return 0, d.fail(ctx, op, err)
	}
	if !answered {
		return 0, fmt.Errorf("%s: %w: the reply holds no count", op, store.ErrUnavailable)
	}
	store.Bill(ctx, store.Operations{Reads: max(1, (n+999)/1000)})
	return n, nil
}

// span returns the query of all documents in a span.
func (d *DB) span(
	t store.Target, namespace string, s store.Span,
) (parent string, query *pb.StructuredQuery, err error) {
	if err := check(t, namespace); err != nil {
		return "", nil, err
	}
	parent, query = d.collection(t)
	null := &pb.Value{ValueType: &pb.Value_NullValue{}}
	query.StartAt = &pb.Cursor{Values: []*pb.Value{null}, Before: false}
	if t.ShardProperty != "" {
		query.OrderBy = append(query.OrderBy, ascending(t.ShardProperty))
		// Within the shards, which begin with their nulls.
		query.Where = compareNull(t.Property)
	}
	query.OrderBy = append(query.OrderBy, ascending(t.Property))
	if s.From != (store.Point{}) {
		if query.StartAt, err = cursor(t, s.From); err != nil {
			return "", nil, err
		}
		query.StartAt.Before = !s.From.After
	}
	if s.To != (store.Point{}) {
		if query.EndAt, err = cursor(t, s.To); err != nil {
			return "", nil, err
		}
		query.EndAt.Before = !s.To.After
	}
	return parent, query, nil
}

func compareNull(name string) *pb.StructuredQuery_Filter {
	return &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_UnaryFilter{
		UnaryFilter: &pb.StructuredQuery_UnaryFilter{Op: pb.StructuredQuery_UnaryFilter_IS_NOT_NULL,
			OperandType: &pb.StructuredQuery_UnaryFilter_Field{Field: field(name)}}}}
}

// cursor returns the values of a point.
func cursor(t store.Target, p store.Point) (*pb.Cursor, error) {
	c := &pb.Cursor{}
	if t.ShardProperty != "" {
		if err := checkShard(p.Shard); err != nil {
			return nil, err
		}
		c.Values = append(c.Values, toValue(p.Shard))
	}
	if p.Value.Type != store.Missing {
		c.Values = append(c.Values, toValue(p.Value))
	}
	return c, nil
}

// checkShard refuses what is no value of a shard property.
func checkShard(v store.Value) error {
	if _, whole := v.Integer(); !whole && v.Type != store.Text {
		return fmt.Errorf("%w: a shard is a text or an integer, not of type %d", store.ErrInvalid, v.Type)
	}
	return nil
}

// Holds implements [store.Counter].
func (d *DB) Holds(ctx context.Context, t store.Target, namespace string) (holds bool, err error) {
	op := "look for any document of " + t.Kind
	if err := check(t, namespace); err != nil {
		return false, fmt.Errorf("%s: %w", op, err)
	}
	parent, query := d.collection(t)
	query.Select = &pb.StructuredQuery_Projection{Fields: []*pb.StructuredQuery_FieldReference{field(nameField)}}
	query.Limit = wrapperspb.Int32(1)
	err = d.query(ctx, parent, query, func(r *pb.RunQueryResponse) error {
		holds = holds || r.GetDocument() != nil
		return nil
	})
	if err != nil {
		return false, d.fail(ctx, op, err)
	}
	return holds, nil
}

// instant returns a timestamp of the service, which keeps microseconds.
func instant(t *timestamppb.Timestamp) time.Time { return t.AsTime().Truncate(time.Microsecond) }
