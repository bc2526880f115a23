package firestore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
)

// A record is a document of a root collection that is named after the record's
// sort; its id is the record's key. Its fields are the document's, in addition to
// these two; nested fields are arrays of maps.
const (
	targetField   = "target"
	revisionField = "revision"
)

// Load implements [store.Store], by lookups or by a query, both of which are
// strongly consistent.
func (d *DB) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	op := fmt.Sprintf("load %s of %s", q.Sort, q.Target)
	if err := q.Check(); err != nil {
		return store.Records{}, fmt.Errorf("%s: %w", op, err)
	}
	var now time.Time
	var docs []*pb.Document
	seen := func(doc *pb.Document, at *timestamppb.Timestamp) {
		if at != nil {
			now = instant(at)
		}
		if doc != nil {
			docs = append(docs, doc)
		}
	}
	var err error
	if len(q.Keys) > 0 {
		names := make([]string, len(q.Keys))
		for i, key := range q.Keys {
			names[i] = d.record(q.Sort, key)
		}
		err = d.get(ctx, names, nil, func(_ string, doc *pb.Document, r *pb.BatchGetDocumentsResponse) {
			seen(doc, r.GetReadTime())
		})
	} else {
		err = d.query(ctx, d.root(), d.recordQuery(q), func(r *pb.RunQueryResponse) error {
			seen(r.GetDocument(), r.GetReadTime())
			return nil
		})
	}
	if err != nil {
		return store.Records{}, d.fail(ctx, op, err)
	}
	if now.IsZero() || now.Equal((*timestamppb.Timestamp)(nil).AsTime()) {
		return store.Records{}, fmt.Errorf("%s: %w: the reply from %s does not tell the store's time",
			op, store.ErrFailed, d.endpoint)
	}
	records := store.Records{Now: now.UTC(), More: len(q.Keys) == 0 && len(docs) == q.Most()}
	for _, doc := range docs {
		_, key := splitPath(d.key(doc.GetName()))
		r, err := decodeRecord(q.Sort, key, doc.GetFields())
		if err != nil {
			return store.Records{}, fmt.Errorf("%s: %w", op, err)
		}
		if r.Target == q.Target {
			records.List = append(records.List, r)
			d.known.Store(doc.GetName(), stamp{r.Revision, doc.GetUpdateTime()})
		}
	}
	slices.SortFunc(records.List, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
	return records, nil
}

// record returns the full name of a record's document.
func (d *DB) record(sort store.RecordSort, key string) string {
	return d.name(string(sort) + "/" + key)
}

// recordQuery asks for a page of records. Its bounds are positions in the order of
// names, so that it needs no other index than the target's.
func (d *DB) recordQuery(q store.RecordQuery) *pb.StructuredQuery {
	_, query := d.collection(store.Target{Kind: string(q.Sort)})
	query.Where = compare(targetField, pb.StructuredQuery_FieldFilter_EQUAL, toValue(store.TextValue(q.Target)))
	query.OrderBy = []*pb.StructuredQuery_Order{ascending(nameField)}
	query.Limit = wrapperspb.Int32(int32(q.Most()))
	at := func(key string, before bool) *pb.Cursor {
		name := &pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: d.record(q.Sort, key)}}
		return &pb.Cursor{Values: []*pb.Value{name}, Before: before}
	}
	if q.After != "" {
		query.StartAt = at(q.After, false)
	}
	if q.Before != "" {
		query.EndAt = at(q.Before, true)
	}
	return query
}

// A stamp is the revision that a record had at an update time: a save from that
// revision may demand that time, without reading the record again.
type stamp struct {
	revision string
	updated  *timestamppb.Timestamp
}

// Save implements [store.Store].
func (d *DB) Save(ctx context.Context, r store.Record, prev string) error {
	op := fmt.Sprintf("save %s %s", r.Sort, r.Key)
	if r.Sort == "" || r.Fields != nil && r.Revision == "" {
		return fmt.Errorf("%s: %w: the record has no sort or no revision", op, store.ErrInvalid)
	}
	if err := checkID(r.Key); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	fields, err := encodeRecord(r)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := d.save(ctx, r, fields, prev); err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

func (d *DB) save(ctx context.Context, r store.Record, fields map[string]*pb.Value, prev string) error {
	name := d.record(r.Sort, r.Key)
	write := &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{Name: name, Fields: fields}}}
	if r.Fields == nil {
		write = &pb.Write{Operation: &pb.Write_Delete{Delete: name}}
	}
	if prev == "" && r.Fields != nil {
		write.CurrentDocument = &pb.Precondition{ConditionType: &pb.Precondition_Exists{Exists: false}}
		if err := d.saveOne(ctx, name, r, write); !refused(err) {
			return err
		}
	} else if seen, ok := d.known.Load(name); ok && seen.(stamp).revision == prev {
		write.CurrentDocument = unchanged(seen.(stamp).updated)
		if err := d.saveOne(ctx, name, r, write); !refused(err) {
			return err
		}
	}
	doc, now, err := d.revision(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case doc != nil && r.Fields != nil && now == r.Revision:
		return nil // an earlier try of this call wrote it
	case doc == nil && r.Fields == nil:
		return nil
	case doc == nil || prev == "" || now != prev:
		return fmt.Errorf("%w: its revision is %q, not %q", store.ErrConflict, now, prev)
	}
	write.CurrentDocument = unchanged(doc.GetUpdateTime())
	if err = d.saveOne(ctx, name, r, write); refused(err) {
		// Another write came in between, perhaps an earlier try of this call: the
		// next try will show.
		return fmt.Errorf("%w: it changed after it was read: %w", store.ErrContention, err)
	}
	return err
}

// saveOne writes one record, and remembers what it then is.
func (d *DB) saveOne(ctx context.Context, name string, r store.Record, w *pb.Write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	updated, err := d.commit(ctx, []*pb.Write{w})
	if err != nil || updated == nil || r.Fields == nil {
		d.known.Delete(name)
		return err
	}
	d.known.Store(name, stamp{r.Revision, updated})
	return nil
}

// refused reports whether a write's condition did not hold.
func refused(err error) bool {
	c := status.Code(err)
	return c == codes.AlreadyExists || c == codes.FailedPrecondition || c == codes.NotFound
}

func unchanged(updated *timestamppb.Timestamp) *pb.Precondition {
	return &pb.Precondition{ConditionType: &pb.Precondition_UpdateTime{UpdateTime: updated}}
}

// revision reads a record's revision; the document is nil if it does not exist.
func (d *DB) revision(ctx context.Context, name string) (doc *pb.Document, revision string, err error) {
	err = d.get(ctx, []string{name}, []string{revisionField},
		func(_ string, found *pb.Document, _ *pb.BatchGetDocumentsResponse) { doc = found })
	return doc, doc.GetFields()[revisionField].GetStringValue(), err
}

func encodeRecord(r store.Record) (map[string]*pb.Value, error) {
	if r.Fields == nil {
		return nil, nil
	}
	for _, name := range []string{targetField, revisionField} {
		if _, taken := r.Fields[name]; taken {
			return nil, fmt.Errorf("%w: field %s has the name of the record's own", store.ErrInvalid, name)
		}
	}
	fields, err := encodeFields(r.Fields)
	if err != nil {
		return nil, err
	}
	fields[targetField] = toValue(store.TextValue(r.Target))
	fields[revisionField] = toValue(store.TextValue(r.Revision))
	return fields, nil
}

func encodeFields(from store.Fields) (map[string]*pb.Value, error) {
	fields := make(map[string]*pb.Value, len(from)+2)
	for name, raw := range from {
		switch v := raw.(type) {
		case string:
			fields[name] = &pb.Value{ValueType: &pb.Value_StringValue{StringValue: v}}
		case int64:
			fields[name] = &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: v}}
		case float64:
			fields[name] = &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: v}}
		case bool:
			fields[name] = &pb.Value{ValueType: &pb.Value_BooleanValue{BooleanValue: v}}
		case []store.Fields:
			list := &pb.ArrayValue{}
			for _, f := range v {
				inner, err := encodeFields(f)
				if err != nil {
					return nil, fmt.Errorf("field %s: %w", name, err)
				}
				list.Values = append(list.Values, &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: inner}}})
			}
			fields[name] = &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
		default:
			return nil, fmt.Errorf("%w: field %s is a %T", store.ErrInvalid, name, raw)
		}
	}
	return fields, nil
}

// decodeRecord is strict: it refuses a record as a whole if another program has changed
// its form.
func decodeRecord(sort store.RecordSort, key string, from map[string]*pb.Value) (store.Record, error) {
	r := store.Record{Sort: sort, Key: key}
	fields, err := decodeFields(from)
	if err != nil {
		return r, fmt.Errorf("%s %s: %w", sort, key, err)
	}
	var ok1, ok2 bool
	r.Target, ok1 = fields[targetField].(string)
	r.Revision, ok2 = fields[revisionField].(string)
	if !ok1 || !ok2 || r.Revision == "" {
		return r, fmt.Errorf("%s %s: %w: it lacks its target or its revision", sort, key, store.ErrCorrupt)
	}
	delete(fields, targetField)
	delete(fields, revisionField)
	r.Fields = fields
	return r, nil
}

func decodeFields(from map[string]*pb.Value) (store.Fields, error) {
	fields := make(store.Fields, len(from))
	for name, v := range from {
		switch x := v.GetValueType().(type) {
		case *pb.Value_StringValue:
			fields[name] = x.StringValue
		case *pb.Value_IntegerValue:
			fields[name] = x.IntegerValue
		case *pb.Value_DoubleValue:
			fields[name] = x.DoubleValue
		case *pb.Value_BooleanValue:
			fields[name] = x.BooleanValue
		case *pb.Value_ArrayValue:
			nested := make([]store.Fields, len(x.ArrayValue.GetValues()))
			for i, e := range x.ArrayValue.GetValues() {
				if e.GetMapValue() == nil {
					return nil, fmt.Errorf("%w: element %d of field %s is no map", store.ErrCorrupt, i, name)
				}
				var err error
				if nested[i], err = decodeFields(e.GetMapValue().GetFields()); err != nil {
					return nil, fmt.Errorf("field %s: %w", name, err)
				}
			}
			fields[name] = nested
		default:
			return nil, fmt.Errorf("%w: field %s is a %T", store.ErrCorrupt, name, v.GetValueType())
		}
	}
	return fields, nil
}
