package firestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var _ store.Archiver = (*DB)(nil)

// Archives implements [store.Archiver]: the documents of every target can be kept.
func (d *DB) Archives(t store.Target) error {
	if err := check(t, ""); err != nil {
		return fmt.Errorf("archive %s: %w", t.Kind, err)
	}
	return nil
}

// A whole is a document with all its fields.
type whole struct {
	read bool
	doc  *pb.Document // nil if it does not exist
}

// errEnough ends a stream of which enough was read.
var errEnough = errors.New("enough was read")

// readWhole reads documents, whose names must differ, as they were at an instant, until about CopyBytes are read,
// the first document among them; so many bytes of that are spent already. The zero time is now. It bills a read for
// each.
func (d *DB) readWhole(ctx context.Context, kind string, names []string, when time.Time, spent int) ([]whole, error) {
	all := make([]whole, len(names))
	at := make(map[string]int, len(names))
	for i, name := range names {
		at[name] = i
	}
	reading := d.sizes.Read(kind, len(names))
	reading.Spend(spent)
	for next := reading.Next(); len(next) > 0; next = reading.Next() {
		req := &pb.BatchGetDocumentsRequest{Database: d.database}
		if !when.IsZero() {
			req.ConsistencySelector = &pb.BatchGetDocumentsRequest_ReadTime{
				ReadTime: timestamppb.New(when.Truncate(time.Microsecond))}
		}
		for _, i := range next {
			req.Documents = append(req.Documents, names[i])
		}
		err := d.getBy(ctx, req, func(name string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) error {
			i, ok := at[name]
			if !ok || all[i].read {
				return nil
			}
			all[i] = whole{true, doc}
			size := 0
			if doc != nil {
				size = proto.Size(doc)
			}
			if reading.Got(i, size); reading.Full() {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return nil, err
		}
	}
	return all, nil
}

// copyOf returns a document as an archive gets it.
func (d *DB) copyOf(t store.Target, doc *pb.Document) (store.Copy, error) {
	data, err := google.EncodeJSON(doc)
	if err != nil {
		return store.Copy{}, fmt.Errorf("%s: %w", d.key(doc.GetName()), err)
	}
	c := store.Copy{Key: d.key(doc.GetName()), Data: data, Expiry: fromValue(doc.GetFields()[t.Property])}
	if at := doc.GetCreateTime(); at != nil {
		c.Created = at.AsTime()
	}
	if at := doc.GetUpdateTime(); at != nil {
		c.Updated = at.AsTime()
		c.Version = c.Updated.Format(time.RFC3339Nano)
	}
	return c, nil
}

// keep gives documents to an archive.
func (d *DB) keep(ctx context.Context, archive store.Archive, t store.Target, docs []*pb.Document) error {
	copies := make([]store.Copy, len(docs))
	for i, doc := range docs {
		var err error
		if copies[i], err = d.copyOf(t, doc); err != nil {
			return err
		}
	}
	return google.Keep(ctx, archive, copies)
}

// keepOps gives the documents of those ops that delete theirs to the query's archive, as the scan saw them: the
// write of the op demands that they still are. It returns what is left to write, and the ops of that: all that is
// carried, and what was kept.
func (d *DB) keepOps(
	ctx context.Context, q store.Query, writes []*pb.Write, ops []*store.Op,
) (leftWrites []*pb.Write, left []*store.Op, err error) {
	found, err := d.copies(ctx, q.Target, ops)
	if err != nil {
		return nil, nil, err
	}
	list := make([]store.Copy, 0, len(found))
	for i, o := range ops {
		if c, ok := found[i]; ok {
			list = append(list, c)
		} else if !o.IsCarry() {
			continue
		}
		leftWrites, left = append(leftWrites, writes[i]), append(left, o)
	}
	return leftWrites, left, google.Keep(ctx, q.Archive, list)
}

// copies returns the documents of ops that delete theirs, by the ops' indexes: those that the scan read and, up to
// about CopyBytes in all, others that are still as the scan saw them. Without the others a call of which little is
// held would do little, and the engine would take that for what all calls can do.
func (d *DB) copies(ctx context.Context, t store.Target, ops []*store.Op) (map[int]store.Copy, error) {
	found, bytes := d.scanned.of(ops)
	if bytes >= store.CopyBytes {
		return found, nil
	}
	var names []string
	var at []int
	for i, o := range ops {
		if _, held := found[i]; !held && !o.IsCarry() {
			names, at = append(names, d.name(o.Entry.Key)), append(at, i)
		}
	}
	all, err := d.readWhole(ctx, t.Kind, names, time.Time{}, bytes)
	if err != nil {
		return nil, err
	}
	for n, one := range all {
		if i := at[n]; one.read && isAsScanned(t, ops[i], one.doc) {
			c, err := d.copyOf(t, one.doc)
			if err == nil {
				found[i] = c
			} else if bytes == 0 { // else a call without what is held says it
				return nil, err
			}
		}
	}
	return found, nil
}

// isAsScanned reports whether a document is as the scan of an op saw it; else it sets the outcome of the op.
func isAsScanned(t store.Target, o *store.Op, doc *pb.Document) bool {
	switch {
	case doc == nil:
		o.Outcome = store.Gone
	case !proto.Equal(doc.GetUpdateTime(), o.Entry.Ref.(version).updated):
		o.Outcome, o.Now, o.Known = store.Changed, fromValue(doc.GetFields()[t.Property]), true
	default:
		return true
	}
	return false
}

// keepAll gives the documents with these keys to an archive, about CopyBytes at a time, and returns the writes
// that delete those that exist if they are as they were kept, and by names when they were written.
func (d *DB) keepAll(
	ctx context.Context, t store.Target, keys []string, archive store.Archive,
) (writes []*pb.Write, updated map[string]time.Time, err error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = d.name(key)
	}
	updated = make(map[string]time.Time, len(keys))
	for len(names) > 0 {
		all, err := d.readWhole(ctx, t.Kind+"/", names, time.Time{}, 0) // of other sizes than its own
		if err != nil {
			return nil, nil, err
		}
		var docs []*pb.Document
		var rest []string
		for i, one := range all {
			switch {
			case !one.read:
				rest = append(rest, names[i])
			case one.doc != nil:
				docs, updated[names[i]] = append(docs, one.doc), instant(one.doc.GetUpdateTime())
			}
		}
		if err := d.keep(ctx, archive, t, docs); err != nil {
			return nil, nil, err
		}
		names = rest
	}
	for _, key := range keys {
		if at, ok := updated[d.name(key)]; ok {
			writes = append(writes, &pb.Write{Operation: &pb.Write_Delete{Delete: d.name(key)},
				CurrentDocument: unchanged(timestamppb.New(at))})
		}
	}
	return writes, updated, nil
}

// ExpiryOf returns what the property of target t holds in a copy that was archived for the target from; Missing if the
// document is not of t's. Of a copy without Data nothing is known but its Expiry.
func (d *DB) ExpiryOf(c store.Copy, from, t store.Target) (store.Value, error) {
	switch {
	case !isOf(t, c.Key):
		return store.Value{}, nil
	case t.Property == from.Property:
		return c.Expiry, nil
	case c.Data == nil:
		return store.Value{}, nil
	}
	doc := &pb.Document{}
	if err := google.DecodeJSON(c.Data, doc); err != nil {
		return store.Value{}, err
	}
	return fromValue(doc.GetFields()[t.Property]), nil
}

// Fetch implements [store.Archiver], by look-ups. It bills a read for each document that it looks up.
func (d *DB) Fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) ([]store.Copy, error) {
	op := fmt.Sprintf("fetch %d of %s", len(keys), t.Kind)
	if err := check(t, namespace); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	copies, err := d.fetch(ctx, t, keys, at)
	if whole := at.Truncate(time.Minute); err != nil && !at.IsZero() && !whole.Equal(at) && isRefused(err) {
		// The service keeps old versions of each whole minute only. Its words for that may change: ask.
		if _, again := d.fetch(ctx, t, keys[:1], whole); again == nil {
			err = fmt.Errorf("%w: so long ago, it knows whole minutes only: %w", store.ErrUnsupported, err)
		}
	}
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	return copies, nil
}

// isRefused reports whether the service refused a read, but not because its instant has not come.
func isRefused(err error) bool {
	st, ok := status.FromError(err)
	return ok && errors.Is(google.Sentinel(st), store.ErrInvalid) && !strings.Contains(st.Message(), "future")
}

func (d *DB) fetch(ctx context.Context, t store.Target, keys []string, at time.Time) (copies []store.Copy, err error) {
	unique, place := google.Unique(keys)
	names := make([]string, len(unique))
	for i, key := range unique {
		names[i] = d.name(key)
	}
	all, err := d.readWhole(ctx, t.Kind, names, at, 0)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		one := all[place[i]]
		if !one.read {
			break
		}
		c := store.Copy{Key: key}
		if one.doc != nil {
			if c, err = d.copyOf(t, one.doc); err != nil {
				return nil, err
			}
		}
		copies = append(copies, c)
	}
	return copies, nil
}

// Insert implements [store.Archiver], in one BatchWrite whose writes demand that the documents do not exist. It
// bills a write for each that did not. The service takes back all that it ever gave, so that nothing is stripped.
func (d *DB) Insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) error {
	op := fmt.Sprintf("insert %d of %s", len(list), t.Kind)
	if err := check(t, namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := google.CheckInsertions(list); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	var writes []*pb.Write
	for i, size := 0, 0; i < len(list); i++ {
		doc, err := d.insertable(t, &list[i])
		if err != nil {
			return fmt.Errorf("%s: %s: %w", op, list[i].Key, err)
		}
		if size += proto.Size(doc); size > store.CopyBytes && i > 0 {
			break
		}
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: doc}, CurrentDocument: absent()})
	}
	if len(writes) == 0 {
		return nil
	}
	if err := d.insert(ctx, writes, list); err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// insert makes the writes, one for each of the first insertions of a list.
func (d *DB) insert(ctx context.Context, writes []*pb.Write, list []store.Insertion) error {
	return d.writeEach(ctx, writes, func(i int, code codes.Code) bool {
		switch code {
		case codes.OK:
			list[i].Outcome = store.Inserted
		case codes.AlreadyExists, codes.FailedPrecondition:
			list[i].Outcome = store.Kept
		default:
			return false
		}
		return true
	})
}

// insertable returns the document that an insertion is to become.
func (d *DB) insertable(t store.Target, in *store.Insertion) (*pb.Document, error) {
	doc := &pb.Document{}
	if err := google.DecodeJSON(in.Data, doc); err != nil {
		return nil, err
	}
	// Neither a project nor a database has a slash in its name.
	if _, own, _ := strings.Cut(doc.GetName(), "/documents/"); own != in.Key {
		return nil, fmt.Errorf("%w: it holds the document %.200q", store.ErrInvalid, own)
	}
	doc.Name, doc.CreateTime, doc.UpdateTime = d.name(in.Key), nil, nil
	if in.AsIs || !isOf(t, in.Key) || in.To == fromValue(doc.GetFields()[t.Property]) {
		return doc, nil
	}
	if doc.Fields == nil {
		doc.Fields = map[string]*pb.Value{}
	}
	switch in.To.Type {
	case store.Missing:
		delete(doc.Fields, t.Property)
	case store.Text, store.Instant:
		doc.Fields[t.Property] = toValue(in.To)
	default:
		return nil, fmt.Errorf("%w: its expiry cannot become %s", store.ErrInvalid, in.To)
	}
	return doc, nil
}
