package firestore

import (
	"context"
	"errors"
	"fmt"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// Dispose implements [store.Store], in one BatchWrite: each document is deleted
// or carried on its own if its update time is the scan's. If only some ops have an
// outcome, the error says why the others are Unknown. With an Archive it reads those
// documents before that which the scan has not, which bills a read for each.
func (d *DB) Dispose(ctx context.Context, b *store.Batch) error {
	t := b.Query.Target
	op := fmt.Sprintf("dispose of %d of %s", len(b.Ops), t.Kind)
	b.SteppedOver = store.UnknownSteps
	for i := range b.Ops {
		b.Ops[i].Outcome, b.Ops[i].Now, b.Ops[i].Known = store.Unknown, store.Value{}, false
	}
	if err := check(t, b.Query.Namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if len(b.Ops) > store.MaxPage {
		return fmt.Errorf("%s: %w: more than %d", op, store.ErrTooLarge, store.MaxPage)
	}
	writes := make([]*pb.Write, 0, len(b.Ops))
	ops := make([]*store.Op, 0, len(b.Ops))
	seen := make(map[string]bool, len(b.Ops))
	for i := range b.Ops {
		o := &b.Ops[i]
		v, ok := o.Entry.Ref.(version)
		if !ok {
			return fmt.Errorf("%s: %w: the entry of %s is not from a scan of this store", op, store.ErrInvalid, o.Entry.Key)
		}
		if seen[o.Entry.Key] { // a batch takes a document once
			o.Outcome = store.Changed
			continue
		}
		seen[o.Entry.Key] = true
		writes, ops = append(writes, d.write(t, o.Entry.Key, o.To, v.updated)), append(ops, o)
	}
	if len(ops) == 0 {
		return nil
	}
	var err error
	if b.DryRun {
		err = d.look(ctx, t, ops, true)
	} else {
		d.scanned.want(t, b.Query.Archive != nil)
		if b.Query.Archive != nil {
			writes, ops, err = d.keepOps(ctx, b.Query, writes, ops)
		}
		if err == nil && len(ops) > 0 {
			err = d.dispose(ctx, t, writes, ops)
		}
		d.scanned.settled(b.Ops)
	}
	if err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// write returns the write that deletes a document or sets its expiry, if it has
// the given update time.
func (d *DB) write(t store.Target, key string, to store.Value, updated *timestamppb.Timestamp) *pb.Write {
	if to.Type == store.Missing {
		return &pb.Write{Operation: &pb.Write_Delete{Delete: d.name(key)}, CurrentDocument: unchanged(updated)}
	}
	return &pb.Write{
		Operation: &pb.Write_Update{Update: &pb.Document{
			Name: d.name(key), Fields: map[string]*pb.Value{t.Property: toValue(to)}}},
		UpdateMask:      &pb.DocumentMask{FieldPaths: []string{fieldPath(t.Property)}},
		CurrentDocument: unchanged(updated),
	}
}

// dispose makes the writes, one for each op. Then it reads the documents of those that
// were refused because something had changed.
func (d *DB) dispose(ctx context.Context, t store.Target, writes []*pb.Write, ops []*store.Op) error {
	var refused []*store.Op
	err := d.writeEach(ctx, writes, func(i int, code codes.Code) bool {
		switch code {
		case codes.OK:
			ops[i].Outcome = carriedOr(ops[i], store.Deleted)
		case codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists:
			refused = append(refused, ops[i])
		default:
			return false
		}
		return true
	})
	if len(refused) > 0 {
		err = worse(d.look(ctx, t, refused, false), err)
	}
	return err
}

// writeEach makes writes that succeed or fail one by one. Take is told the code of each, and says whether that
// settles it; the error is that of one which it does not settle. Those that took effect are billed.
func (d *DB) writeEach(ctx context.Context, writes []*pb.Write, take func(i int, code codes.Code) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	reply, err := d.client.BatchWrite(d.owner(ctx), &pb.BatchWriteRequest{Database: d.database, Writes: writes})
	if err != nil {
		return err
	}
	if len(reply.GetStatus()) != len(writes) {
		err := fmt.Errorf("%w: %d statuses for %d writes", store.ErrFailed, len(reply.GetStatus()), len(writes))
		return store.InDoubt(err)
	}
	var done []*pb.Write
	var why error
	for i, s := range reply.GetStatus() {
		st := status.FromProto(s)
		if st.Code() == codes.OK {
			done = append(done, writes[i])
		}
		if !take(i, st.Code()) {
			why = worse(why, st.Err()) // fail explains it
		}
	}
	store.Bill(ctx, billed(done))
	return why
}

// worse returns the more important of two errors: the pace must learn of push-back, in
// addition to whatever else failed. If a write with either of them may have taken effect, that remains known.
func worse(a, b error) error {
	why := a
	if a == nil || b != nil && errors.Is(google.Sentinel(status.Convert(b)), store.ErrPushback) {
		why = b
	}
	if isUnsure(a) || isUnsure(b) {
		return store.InDoubt(why)
	}
	return why
}

// isUnsure reports whether a write with an error, explained or not, may have taken effect.
func isUnsure(err error) bool {
	if err == nil || store.IsMapped(err) {
		return store.MayHaveHappened(err)
	}
	st := status.Convert(err)
	explained := google.Explain(context.Background(), google.Sentinel(st), st)
	return store.MayHaveHappened(err) || store.MayHaveHappened(explained)
}

// look reads the present documents. A dry run counts a document as writable if it has the
// update time that the scan saw. After a refusal there should be no such document.
func (d *DB) look(ctx context.Context, t store.Target, ops []*store.Op, dry bool) error {
	names := make([]string, len(ops))
	byName := make(map[string]*store.Op, len(ops))
	for i, o := range ops {
		names[i] = d.name(o.Entry.Key)
		byName[names[i]] = o
	}
	same := 0
	err := d.get(ctx, names, []string{t.Property}, func(name string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) {
		o, ok := byName[name]
		if !ok {
			return
		}
		if doc == nil {
			o.Outcome = store.Gone
			return
		}
		now := fromValue(doc.GetFields()[t.Property])
		switch {
		case proto.Equal(doc.GetUpdateTime(), o.Entry.Ref.(version).updated) && dry:
			o.Outcome = carriedOr(o, store.Deleted)
		case proto.Equal(doc.GetUpdateTime(), o.Entry.Ref.(version).updated):
			same++
		case o.To.Type != store.Missing && now == o.To:
			o.Outcome = store.Carried // by an earlier try
		default:
			o.Outcome, o.Now, o.Known = store.Changed, now, true
		}
	})
	if err == nil && same > 0 {
		err = fmt.Errorf("%w: %d documents were refused as changed, but are as they were", store.ErrContention, same)
	}
	return err
}

// carriedOr returns the outcome of an op whose write took effect.
func carriedOr(o *store.Op, deleted store.Outcome) store.Outcome {
	if o.To.Type != store.Missing {
		return store.Carried
	}
	return deleted
}

// Settle implements [store.Store]: a read, and a write on condition that the
// document is still what was read.
func (d *DB) Settle(
	ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
) (store.Outcome, error) {
	op := fmt.Sprintf("settle %s", e.Key)
	if err := check(q.Target, q.Namespace); err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	o, err := d.settle(ctx, q, e.Key, decide)
	if err != nil {
		return store.Unknown, d.fail(ctx, op, err)
	}
	return o, nil
}

func (d *DB) settle(
	ctx context.Context, q store.Query, key string, decide func(store.Value) store.Verdict,
) (store.Outcome, error) {
	var doc *pb.Document
	t, fields := q.Target, []string{q.Target.Property}
	if q.Archive != nil {
		fields = nil
	}
	err := d.get(ctx, []string{d.name(key)}, fields,
		func(_ string, found *pb.Document, _ *pb.BatchGetDocumentsResponse) { doc = found })
	if err != nil {
		return store.Unknown, err
	}
	if doc == nil {
		return store.Gone, nil
	}
	verdict := decide(fromValue(doc.GetFields()[t.Property]))
	to, carry := verdict.To()
	if verdict != store.Delete && !carry {
		return store.Kept, nil
	}
	if q.Archive != nil && !carry {
		if err := d.keep(ctx, q.Archive, t, []*pb.Document{doc}); err != nil {
			return store.Unknown, err
		}
	}
	if err := ctx.Err(); err != nil {
		return store.Unknown, err
	}
	_, err = d.commit(ctx, []*pb.Write{d.write(t, key, to, doc.GetUpdateTime())})
	switch status.Code(err) {
	case codes.OK:
		if carry {
			return store.Carried, nil
		}
		return store.Deleted, nil
	case codes.FailedPrecondition, codes.NotFound:
		if errors.Is(google.Sentinel(status.Convert(err)), store.ErrMissingIndex) {
			return store.Unknown, err
		}
		return store.Unknown, fmt.Errorf("%w: it changed after it was read: %w", store.ErrContention, err)
	}
	return store.Unknown, err
}
