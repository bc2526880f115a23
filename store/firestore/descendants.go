package firestore

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// Descendants implements [store.Descender]. A page is one query of all collections below the document, which
// need not exist. The last page may be an empty one, as in a scan.
func (d *DB) Descendants(ctx context.Context, q store.DescendantQuery, page *store.Descendants) error {
	page.List, page.More = page.List[:0], false
	op := "list what is below " + q.Key
	if err := check(q.Target, q.Namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := google.CheckDescendantQuery(q); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	query := &pb.StructuredQuery{
		From:    []*pb.StructuredQuery_CollectionSelector{{AllDescendants: true}},
		Select:  namesAnd(ownerFields(q.Owners)),
		OrderBy: []*pb.StructuredQuery_Order{ascending(nameField)},
		Limit:   wrapperspb.Int32(int32(q.Limit)),
	}
	if q.After != "" {
		query.StartAt = &pb.Cursor{Values: []*pb.Value{d.reference(q.After)}}
	}
	listed := map[string]bool{}
	err := d.query(ctx, d.name(q.Key), query, func(r *pb.RunQueryResponse) error {
		if doc := r.GetDocument(); doc != nil {
			key := d.key(doc.GetName())
			one := store.Descendant{Key: key, Owner: ownerOf(q.Owners, key, doc)}
			if one.Owner == "" && mayHaveOwner(q.Owners, key) {
				one.Premise = store.FormatTime(instant(doc.GetUpdateTime()))
			}
			if listed[key] = true; one.Owner == "" {
				one.Premise = google.AddBetween(one.Premise, betweenOf(q.Owners, q.Key, key, listed))
			}
			page.List = append(page.List, one)
		}
		return nil
	})
	if err != nil {
		page.List = page.List[:0]
		return d.fail(ctx, op, err)
	}
	google.MarkAbove(page.List)
	page.More = len(page.List) >= q.Limit
	return nil
}

// betweenOf returns what is between a document and its descendant, may get an owner, and was not listed.
func betweenOf(owners []store.Target, above, key string, listed map[string]bool) (list []google.Between) {
	for between := range pathsBetween(above, key) {
		fields := google.PropertiesOf(owners, func(t store.Target) bool { return isOf(t, between) })
		if len(fields) > 0 && !listed[between] {
			list = append(list, google.Between{Key: between, Properties: fields})
		}
	}
	return list
}

// pathsBetween returns the keys of the documents between one and its descendant, outermost first.
func pathsBetween(above, key string) iter.Seq[string] {
	return func(yield func(string) bool) {
		segments := strings.Split(key, "/")
		for n := strings.Count(above, "/") + 3; n < len(segments); n += 2 {
			if !yield(strings.Join(segments[:n], "/")) {
				return
			}
		}
	}
}

// ownerFields returns the fields by which the documents of the owners are known.
func ownerFields(owners []store.Target) []string {
	return google.PropertiesOf(owners, func(store.Target) bool { return true })
}

// namesAnd returns what a query transfers of each document: its name, and some fields.
func namesAnd(fields []string) *pb.StructuredQuery_Projection {
	p := &pb.StructuredQuery_Projection{Fields: []*pb.StructuredQuery_FieldReference{field(nameField)}}
	for _, name := range fields {
		p.Fields = append(p.Fields, field(name))
	}
	return p
}

// isOf reports whether a key is that of a document of a target, if there is one. A target that is not a group
// has only the documents of the one collection that its path names.
func isOf(t store.Target, key string) bool {
	collection, _ := splitPath(key)
	if !t.Group {
		return collection == t.Kind
	}
	_, id := splitPath(collection)
	return id == t.Kind
}

// ownerOf returns the owner of a document.
func ownerOf(owners []store.Target, key string, doc *pb.Document) string {
	for _, t := range owners {
		if isOf(t, key) && fromValue(doc.GetFields()[t.Property]).Type != store.Missing {
			return t.Name
		}
	}
	collection, _ := splitPath(key)
	if _, id := splitPath(collection); store.IsRecordKind(id) {
		return store.OwnerReaper
	}
	return ""
}

// DeleteBelow implements [store.Descender]: a transaction that reads the document's expiry and deletes the
// list, the deepest first. A condition on the update time, as in Settle, would need a write of the document. What
// might get an owner is deleted only as it was listed.
func (d *DB) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (store.Outcome, error) {
	op := fmt.Sprintf("delete %d below %s", len(list), e.Key)
	if err := check(q.Target, q.Namespace); err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	if err := google.CheckBelow(e.Key, list); err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	o, err := d.deleteBelow(ctx, q, e.Key, list, isDue)
	if err != nil {
		return store.Unknown, d.fail(ctx, op, err)
	}
	return o, nil
}

func (d *DB) deleteBelow(
	ctx context.Context, q store.Query, key string, list []store.Descendant, isDue func(store.Value) bool,
) (store.Outcome, error) {
	t := q.Target
	writes, o, err := d.writesBelow(ctx, q, key, list, isDue)
	if err != nil || o != store.Deleted {
		return o, err
	}
	tx, doc, err := d.begin(ctx, t, key)
	committed := false
	defer func() {
		if tx != nil && !committed {
			d.rollback(ctx, tx)
		}
	}()
	switch {
	case err != nil:
		return store.Unknown, err
	case doc == nil:
		return store.Gone, nil
	case !isDue(fromValue(doc.GetFields()[t.Property])):
		return store.Kept, nil
	}
	// A commit fails if what stays changes after this read.
	if _, err := d.checkUpdates(ctx, tx, d.premisesOf(list, true)); err != nil {
		return store.Unknown, err
	}
	if err := d.checkBetween(ctx, tx, google.Betweens(list)); err != nil {
		return store.Unknown, err
	}
	if err := ctx.Err(); err != nil {
		return store.Unknown, err
	}
	if _, err := d.commitIn(ctx, tx, writes); refused(err) {
		return store.Unknown, fmt.Errorf("%w: one changed after it was listed or kept: %w", store.ErrContention, err)
	} else if err != nil {
		return store.Unknown, err
	}
	committed = true
	return store.Deleted, nil
}

// writesBelow returns the writes that delete a list, the deepest first. With an archive they are kept before the
// transaction begins, so that no lock is held meanwhile: what is due is asked once more for that, at a read, and
// each delete demands that the document is as it was kept. The outcome is Deleted unless nothing may be deleted.
func (d *DB) writesBelow(
	ctx context.Context, q store.Query, key string, list []store.Descendant, isDue func(store.Value) bool,
) (writes []*pb.Write, o store.Outcome, err error) {
	keys := make([]string, 0, len(list))
	for _, below := range slices.Backward(list) {
		if !below.Stays {
			keys = append(keys, below.Key)
		}
	}
	premises := d.premisesOf(list, false)
	if q.Archive == nil {
		updated, err := d.checkUpdates(ctx, nil, premises)
		if err != nil {
			return nil, store.Unknown, err
		}
		for _, key := range keys {
			one := &pb.Write{Operation: &pb.Write_Delete{Delete: d.name(key)}}
			if at, exists := updated[d.name(key)]; exists {
				one.CurrentDocument = unchanged(timestamppb.New(at))
			} else if premises[d.name(key)] != "" {
				one.CurrentDocument = absent() // it is gone: another one may get an owner
			}
			writes = append(writes, one)
		}
		return writes, store.Deleted, nil
	}
	o = store.Gone
	err = d.get(ctx, []string{d.name(key)}, []string{q.Target.Property},
		func(_ string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) {
			if doc == nil {
				return
			}
			if o = store.Kept; isDue(fromValue(doc.GetFields()[q.Target.Property])) {
				o = store.Deleted
			}
		})
	if err != nil || o != store.Deleted {
		return nil, o, err
	}
	writes, updated, err := d.keepAll(ctx, q.Target, keys, q.Archive)
	if err == nil {
		err = d.checkPremises(premises, updated)
	}
	if err != nil {
		return nil, store.Unknown, err
	}
	for name := range premises {
		if _, exists := updated[name]; !exists {
			writes = append(writes, &pb.Write{Operation: &pb.Write_Delete{Delete: name}, CurrentDocument: absent()})
		}
	}
	return writes, o, nil
}

// premisesOf returns the premises of those of a list that stay, or of the others, by names.
func (d *DB) premisesOf(list []store.Descendant, stay bool) map[string]string {
	premises := map[string]string{}
	for _, below := range list {
		if own := google.OwnPremise(below.Premise); below.Stays == stay && own != "" {
			premises[d.name(below.Key)] = own
		}
	}
	return premises
}

// checkUpdates fails if a document with a premise has changed since it was listed, at a read for each, in a transaction
// if tx is not nil. It returns when those that exist were last written.
func (d *DB) checkUpdates(
	ctx context.Context, tx []byte, premises map[string]string,
) (updated map[string]time.Time, err error) {
	updated = make(map[string]time.Time, len(premises))
	if len(premises) == 0 {
		return updated, nil
	}
	names := slices.Sorted(maps.Keys(premises))
	err = d.getIn(ctx, tx, names, []string{nameField}, func(name string, doc *pb.Document) error {
		if doc != nil {
			updated[name] = instant(doc.GetUpdateTime())
		}
		return nil
	})
	if err == nil {
		err = d.checkPremises(premises, updated)
	}
	return updated, err
}

// checkBetween fails if a document carries a field that it must not, at a read for each, in a transaction.
func (d *DB) checkBetween(ctx context.Context, tx []byte, list []google.Between) error {
	if len(list) == 0 {
		return nil
	}
	var names, all []string
	fields := map[string][]string{}
	for _, b := range list {
		names = append(names, d.name(b.Key))
		fields[d.name(b.Key)] = b.Properties
		all = append(all, b.Properties...)
	}
	slices.Sort(all)
	return d.getIn(ctx, tx, names, slices.Compact(all), func(name string, doc *pb.Document) error {
		for _, f := range fields[name] {
			if fromValue(doc.GetFields()[f]).Type != store.Missing {
				return fmt.Errorf("%w: %s has an expiry of its own by now", store.ErrContention, d.key(name))
			}
		}
		return nil
	})
}

// checkPremises fails if a document has changed since it was listed. One that is gone is no change.
func (d *DB) checkPremises(premises map[string]string, updated map[string]time.Time) error {
	for name, premise := range premises {
		if at, exists := updated[name]; exists && store.FormatTime(at) != premise {
			return fmt.Errorf("%w: %s changed after it was listed", store.ErrContention, d.key(name))
		}
	}
	return nil
}

// begin begins a read-write transaction by reading the expiry of a document, which is nil if it does not
// exist. The transaction may have begun although reading failed; else it is nil.
func (d *DB) begin(ctx context.Context, t store.Target, key string) (tx []byte, doc *pb.Document, err error) {
	readWrite := &pb.TransactionOptions{Mode: &pb.TransactionOptions_ReadWrite_{
		ReadWrite: &pb.TransactionOptions_ReadWrite{}}}
	streaming, cancel := context.WithCancel(d.owner(ctx))
	defer cancel() // ends a stream that is not read to its end
	s, err := d.client.BatchGetDocuments(streaming, &pb.BatchGetDocumentsRequest{Database: d.database,
		Documents: []string{d.name(key)}, Mask: maskOf([]string{t.Property}),
		ConsistencySelector: &pb.BatchGetDocumentsRequest_NewTransaction{NewTransaction: readWrite}})
	answered := false
	err = each(s, err, func(r *pb.BatchGetDocumentsResponse) error {
		if id := r.GetTransaction(); len(id) > 0 {
			tx = id
		}
		if r.GetFound() != nil || r.GetMissing() != "" {
			store.Bill(ctx, store.Operations{Reads: 1})
			doc, answered = r.GetFound(), true
		}
		return nil
	})
	if err == nil && (!answered || tx == nil) {
		err = fmt.Errorf("%w: the reply holds no document or no transaction", store.ErrUnavailable)
	}
	return tx, doc, err
}

// rollbackTimeout bounds a rollback, which also runs after its context is done.
const rollbackTimeout = 2 * time.Second

// rollback ends a transaction that was not committed. It frees locks that others may wait for; otherwise it
// changes nothing, so its own failure does not matter.
func (d *DB) rollback(ctx context.Context, tx []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = d.client.Rollback(d.owner(ctx), &pb.RollbackRequest{Database: d.database, Transaction: tx})
}
