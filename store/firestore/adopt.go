package firestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var _ store.Adopter = (*DB)(nil)

// Splits implements [store.Adopter]. It asks the service to partition the collection
// group that the collection belongs to, and keeps the points in the collection itself. The
// emulator cannot do that, and a small collection has no points: then it looks up
// random names.
func (d *DB) Splits(ctx context.Context, t store.Target, namespace string, most int) ([]string, error) {
	op := "split " + t.Kind
	if err := check(t, namespace); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	keys, err := d.partition(ctx, t, most)
	if status.Code(err) == codes.Unimplemented {
		err = nil
	}
	if err == nil && len(keys) == 0 {
		var found [][]string
		found, err = google.SampleKeys(ctx, most, func(ctx context.Context, path []string) ([]string, error) {
			return d.seek(ctx, t, path)
		})
		for _, path := range found {
			keys = append(keys, strings.Join(path, "/"))
		}
	}
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	slices.SortFunc(keys, compareNames)
	return store.Evenly(slices.Compact(keys), most), nil
}

// partition returns the keys at which the service would split the collection.
func (d *DB) partition(ctx context.Context, t store.Target, most int) (keys []string, err error) {
	_, id := d.parent(t)
	it := d.client.PartitionQuery(d.owner(ctx), &pb.PartitionQueryRequest{
		Parent: d.root(), PartitionCount: int64(most),
		QueryType: &pb.PartitionQueryRequest_StructuredQuery{StructuredQuery: &pb.StructuredQuery{
			From:    []*pb.StructuredQuery_CollectionSelector{{CollectionId: id, AllDescendants: true}},
			OrderBy: []*pb.StructuredQuery_Order{ascending(nameField)},
		}},
	})
	for {
		point, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return keys, nil
		}
		if err != nil {
			return nil, err
		}
		for _, v := range point.GetValues() {
			key := d.key(v.GetReferenceValue())
			if above, _ := splitPath(key); t.Group || above == t.Kind {
				keys = append(keys, key)
			}
		}
	}
}

// seek returns the path of the first document at or after one, or of the first of all.
func (d *DB) seek(ctx context.Context, t store.Target, path []string) (found []string, err error) {
	parent, query := d.collection(t)
	query.Select = &pb.StructuredQuery_Projection{Fields: []*pb.StructuredQuery_FieldReference{field(nameField)}}
	query.OrderBy = []*pb.StructuredQuery_Order{ascending(nameField)}
	query.Limit = wrapperspb.Int32(1)
	if path != nil {
		key := strings.Join(path, "/")
		if above, _ := splitPath(key); above != t.Kind && !t.Group {
			return nil, nil // outside the collection: a place like this has no document of it
		}
		query.StartAt = &pb.Cursor{Values: []*pb.Value{d.reference(key)}, Before: true}
	}
	err = d.query(ctx, parent, query, func(r *pb.RunQueryResponse) error {
		if r.GetDocument() != nil {
			found = strings.Split(d.key(r.GetDocument().GetName()), "/")
		}
		return nil
	})
	return found, err
}

func (d *DB) reference(key string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: d.name(key)}}
}

// compareNames orders keys as the service orders names: by segments, numeric ids before
// others.
func compareNames(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "/"), strings.Split(b, "/"), func(x, y string) int {
		m, n := numericID.FindStringSubmatch(x), numericID.FindStringSubmatch(y)
		switch {
		case m != nil && n != nil && len(m[1]) != len(n[1]):
			return len(m[1]) - len(n[1])
		case m != nil && n == nil:
			return -1
		case m == nil && n != nil:
			return 1
		}
		return strings.Compare(x, y)
	})
}

// Walk implements [store.Adopter]. A page is one query, with two fields of each document.
// The last page is an empty one: a short page does not end a walk.
func (d *DB) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	rows.List, rows.More, rows.Next = rows.List[:0], false, nil
	op := "walk " + q.Target.Kind
	if err := check(q.Target, q.Namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return fmt.Errorf("%s: %w: a page of %d rows, not of 1 to %d", op, store.ErrInvalid, q.Limit, store.MaxPage)
	}
	parent, query := d.collection(q.Target)
	query.Select = &pb.StructuredQuery_Projection{}
	for _, f := range walkFields(q) {
		query.Select.Fields = append(query.Select.Fields, field(f))
	}
	query.OrderBy = []*pb.StructuredQuery_Order{ascending(nameField)}
	query.Limit = wrapperspb.Int32(int32(q.Limit))
	if q.After != "" {
		query.StartAt = &pb.Cursor{Values: []*pb.Value{d.reference(q.After)}}
	}
	if q.Until != "" {
		query.EndAt = &pb.Cursor{Values: []*pb.Value{d.reference(q.Until)}}
	}
	err := d.query(ctx, parent, query, func(r *pb.RunQueryResponse) error {
		if r.GetDocument() != nil {
			rows.List = append(rows.List, d.row(q, r.GetDocument()))
		}
		return nil
	})
	if err != nil {
		rows.List = rows.List[:0]
		return d.fail(ctx, op, err)
	}
	rows.More = len(rows.List) > 0
	return nil
}

// WalkWritten is Walk, and tells when each document was last written.
func (d *DB) WalkWritten(ctx context.Context, q store.WalkQuery, rows *store.Rows) (written []time.Time, err error) {
	if err := d.Walk(ctx, q, rows); err != nil {
		return nil, err
	}
	for _, r := range rows.List {
		at := time.Time{}
		if v, _ := r.Ref.(version); v.updated != nil {
			at = instant(v.updated)
		}
		written = append(written, at)
	}
	return written, nil
}

// Look implements [store.Adopter].
func (d *DB) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	*rows = store.Rows{List: rows.List[:0]}
	op := fmt.Sprintf("look at %d of %s", len(keys), q.Target.Kind)
	if err := check(q.Target, q.Namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = d.name(key)
	}
	err := d.get(ctx, names, walkFields(q), func(_ string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) {
		if doc != nil {
			rows.List = append(rows.List, d.row(q, doc))
		}
	})
	if err != nil {
		rows.List = rows.List[:0]
		return d.fail(ctx, op, err)
	}
	return nil
}

// walkFields are the fields that a walk reads.
func walkFields(q store.WalkQuery) []string {
	if q.Source == "" || q.Source == q.Target.Property {
		return []string{q.Target.Property}
	}
	return []string{q.Target.Property, q.Source}
}

func (d *DB) row(q store.WalkQuery, doc *pb.Document) store.Row {
	row := store.Row{
		Key:     d.key(doc.GetName()),
		Expiry:  fromValue(doc.GetFields()[q.Target.Property]),
		Created: store.InstantValue(instant(doc.GetCreateTime())),
		Ref:     version{doc.GetUpdateTime()},
	}
	if q.Source != "" {
		row.Source = fromValue(doc.GetFields()[q.Source])
	}
	return row
}

// Restamp implements [store.Adopter], in one BatchWrite: each document is updated on its
// own if its update time is the walk's. Documents that are refused are read again.
func (d *DB) Restamp(ctx context.Context, b *store.Restamping) error {
	t := b.Query.Target
	op := fmt.Sprintf("restamp %d of %s", len(b.Ops), t.Kind)
	for i := range b.Ops {
		b.Ops[i].Outcome, b.Ops[i].Now = store.RowUnknown, store.Row{}
	}
	if err := check(t, b.Query.Namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if len(b.Ops) > store.MaxPage {
		return fmt.Errorf("%s: %w: more than %d", op, store.ErrTooLarge, store.MaxPage)
	}
	if len(b.Ops) == 0 {
		return nil
	}
	writes := make([]*pb.Write, len(b.Ops))
	for i, o := range b.Ops {
		v, ok := o.Row.Ref.(version)
		if !ok {
			return fmt.Errorf("%s: %w: the row of %s is not from a walk of this store", op, store.ErrInvalid, o.Row.Key)
		}
		writes[i] = d.restampWrite(t, o, v.updated)
	}
	if err := d.restamp(ctx, b, writes); err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// restampWrite returns the write that sets or removes the expiry of a document with this update
// time. A field that the mask names and the document lacks is removed.
func (d *DB) restampWrite(t store.Target, o store.RestampOp, updated *timestamppb.Timestamp) *pb.Write {
	if o.To.Type != store.Missing {
		return d.write(t, o.Row.Key, o.To, updated)
	}
	return &pb.Write{
		Operation:       &pb.Write_Update{Update: &pb.Document{Name: d.name(o.Row.Key)}},
		UpdateMask:      &pb.DocumentMask{FieldPaths: []string{fieldPath(t.Property)}},
		CurrentDocument: unchanged(updated),
	}
}

// restamp makes the writes, one for each op, and reads again what was refused.
func (d *DB) restamp(ctx context.Context, b *store.Restamping, writes []*pb.Write) error {
	var refused []int
	why := d.writeEach(ctx, writes, func(i int, code codes.Code) bool {
		switch code {
		case codes.OK:
			b.Ops[i].Outcome = store.RowRestamped
		case codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists:
			refused = append(refused, i)
		default:
			return false
		}
		return true
	})
	if len(refused) > 0 {
		why = worse(d.reread(ctx, b, refused), why)
	}
	return why
}

// reread reads documents whose update was refused, and says what became of them.
func (d *DB) reread(ctx context.Context, b *store.Restamping, refused []int) error {
	names := make([]string, len(refused))
	byName := make(map[string]int, len(refused))
	for i, n := range refused {
		names[i] = d.name(b.Ops[n].Row.Key)
		byName[names[i]] = n
	}
	return d.get(ctx, names, walkFields(b.Query), func(name string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) {
		n, ok := byName[name]
		if !ok {
			return
		}
		op := &b.Ops[n]
		if doc == nil {
			op.Outcome = store.RowGone
			return
		}
		now := d.row(b.Query, doc)
		if out, write := op.Judge(now, true); !write && out == store.RowRestamped {
			op.Outcome = out
			return
		}
		// Another field may have changed: what the caller needs is the new update time.
		op.Outcome, op.Now = store.RowChanged, now
	})
}
