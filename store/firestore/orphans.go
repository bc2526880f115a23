package firestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var _ store.Orphaner = (*DB)(nil)

// lowestID is the id that comes before all others, as Google's own client for Node uses it.
const lowestID = "__id-9223372036854775808__"

// IsScattered implements [store.Orphaner]: the documents of a group may be anywhere.
func (d *DB) IsScattered(_ context.Context, t store.Target, namespace string) (bool, error) {
	if err := check(t, namespace); err != nil {
		return false, fmt.Errorf("look where %s is: %w", t.Kind, err)
	}
	return t.Group, nil
}

// Lineage implements [store.Orphaner], by a query of all documents, whatever their collection, between
// two names. It bills a read for each.
func (d *DB) Lineage(ctx context.Context, q store.LineageQuery, page *store.Lineage) error {
	*page = store.Lineage{List: page.List[:0], Billed: true}
	op := "list names of " + q.Target.Kind
	query, err := d.lineage(q)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	err = d.query(ctx, d.root(), query, func(r *pb.RunQueryResponse) error {
		if r.GetDocument() != nil {
			page.List = append(page.List, d.relative(q, r.GetDocument()))
		}
		return nil
	})
	if err != nil {
		page.List = page.List[:0]
		return d.fail(ctx, op, err)
	}
	page.More = len(page.List) == q.Limit
	return nil
}

// lineage returns the query of a page.
func (d *DB) lineage(q store.LineageQuery) (*pb.StructuredQuery, error) {
	if err := check(q.Target, q.Namespace); err != nil {
		return nil, err
	}
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return nil, fmt.Errorf("%w: a page of %d names, not of 1 to %d", store.ErrInvalid, q.Limit, store.MaxPage)
	}
	if q.Target.Group && !q.Whole {
		return nil, fmt.Errorf("%w: the documents of the group %s have no span of their own", store.ErrInvalid,
			q.Target.Kind)
	}
	for _, key := range []string{q.After, q.Until} {
		if key != "" && strings.Count(key, "/")%2 == 0 {
			return nil, fmt.Errorf("%w: %q is not the path of a document", store.ErrInvalid, key)
		}
		if key != "" && !q.Whole && !store.IsBelow(key, q.Target.Kind) {
			return nil, fmt.Errorf("%w: %q is not in %s", store.ErrInvalid, key, q.Target.Kind)
		}
	}
	query := &pb.StructuredQuery{
		From:    []*pb.StructuredQuery_CollectionSelector{{AllDescendants: true}},
		OrderBy: []*pb.StructuredQuery_Order{ascending(nameField)},
		Select:  namesAnd(ownerFields(q.Owners)),
		Limit:   wrapperspb.Int32(int32(q.Limit)),
	}
	switch {
	case q.After != "" && q.Behind:
		query.StartAt = &pb.Cursor{Values: []*pb.Value{d.reference(behind(q.After))}, Before: true}
	case q.After != "":
		query.StartAt = &pb.Cursor{Values: []*pb.Value{d.reference(q.After)}}
	case !q.Whole:
		query.StartAt = &pb.Cursor{Values: []*pb.Value{d.reference(q.Target.Kind + "/" + lowestID)}, Before: true}
	}
	switch {
	case q.Until != "":
		query.EndAt = &pb.Cursor{Values: []*pb.Value{d.reference(behind(q.Until))}, Before: true}
	case !q.Whole:
		above, id := splitPath(q.Target.Kind)
		next := store.NextName(id) + "/" + lowestID
		if above != "" {
			next = above + "/" + next
		}
		query.EndAt = &pb.Cursor{Values: []*pb.Value{d.reference(next)}, Before: true}
	}
	return query, nil
}

// behind returns the first key behind a document and all that lies below it.
func behind(key string) string {
	above, id := splitPath(key)
	m := numericID.FindStringSubmatch(id)
	if m == nil {
		return above + "/" + store.NextName(id)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || n == math.MaxInt64 {
		return above + "/" + store.NextName("") // names come behind all numbers
	}
	return fmt.Sprintf("%s/__id%d__", above, n+1)
}

// relative returns a document as a lineage shows it.
func (d *DB) relative(q store.LineageQuery, doc *pb.Document) store.Relative {
	key := d.key(doc.GetName())
	segments := strings.Split(key, "/")
	r := store.Relative{Key: key, Kind: segments[len(segments)-2], Written: instant(doc.GetUpdateTime()),
		Own: isOf(q.Target, key)}
	r.Root = rootOf(q, key)
	for n := len(segments) - 2; n > 0 && r.Of == ""; n -= 2 {
		if above := strings.Join(segments[:n], "/"); isOf(q.Target, above) {
			r.Of = above
		}
	}
	r.Owner = ownerOf(q.Owners, key, doc)
	return r
}

// rootOf returns the key of the first document that a lineage may show on the way to one.
func rootOf(q store.LineageQuery, key string) string {
	most := 2
	if !q.Whole {
		most = strings.Count(q.Target.Kind, "/") + 2
	}
	segments := strings.Split(key, "/")
	return strings.Join(segments[:min(most, len(segments))], "/")
}

// Roots implements [store.Orphaner].
func (d *DB) Roots(ctx context.Context, q store.LineageQuery, most int) ([]string, error) {
	op := "part the names of " + q.Target.Kind
	q.Limit = 1
	if _, err := d.lineage(q); err != nil { // it checks the query
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	keys, err := d.Splits(ctx, q.Target, q.Namespace, most)
	if err != nil {
		return nil, err
	}
	// Documents that exist are where the splits are. What lies below missing ones may be elsewhere.
	_, err = google.SampleKeys(ctx, most, func(ctx context.Context, path []string) ([]string, error) {
		at := q
		at.After, at.Behind = cmp.Or(strings.Join(path, "/"), q.After), len(path) == 0 && q.Behind
		if !d.isPlace(at) {
			return nil, nil
		}
		var page store.Lineage
		if err := d.Lineage(ctx, at, &page); err != nil || len(page.List) == 0 {
			return nil, err
		}
		keys = append(keys, page.List[0].Root)
		return strings.Split(page.List[0].Root, "/"), nil
	})
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	var roots []string
	for _, key := range keys {
		root := rootOf(q, key)
		if (q.After == "" || compareNames(root, q.After) > 0 && !store.IsBelow(root, q.After)) &&
			(q.Until == "" || compareNames(root, q.Until) < 0) {
			roots = append(roots, root)
		}
	}
	slices.SortFunc(roots, compareNames)
	return store.Evenly(slices.Compact(roots), most), nil
}

// isPlace reports whether a query may begin at its key: replaced letters may make a path of elsewhere.
func (d *DB) isPlace(q store.LineageQuery) bool {
	_, err := d.lineage(q)
	return err == nil
}

// Claim implements [store.Orphaner]: a lineage of this store is sure of all owners.
func (d *DB) Claim(context.Context, store.LineageQuery, []store.Relative) error { return nil }

// DeleteOrphans implements [store.Orphaner], in one commit. Its first write deletes the document above on
// condition that it does not exist: no document can come into being between the check and the deletes, and
// a process that is killed leaves no transaction whose locks others would wait for. A document that may
// have an owner is deleted on condition that it is as it was read. Only what is between the document above and
// those of the list, and may have an owner, needs a transaction, which reads it.
func (d *DB) DeleteOrphans(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative,
) (store.Outcome, error) {
	op := fmt.Sprintf("delete %d below %s", len(list), above)
	if err := check(q.Target, q.Namespace); err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	if len(list) >= store.MaxPage {
		return store.Unknown, fmt.Errorf("%s: %w: more than %d", op, store.ErrTooLarge, store.MaxPage-1)
	}
	o, err := d.deleteOrphans(ctx, q, above, list)
	if err != nil {
		return store.Unknown, d.fail(ctx, op, err)
	}
	return o, nil
}

func (d *DB) deleteOrphans(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative,
) (store.Outcome, error) {
	if len(list) == 0 {
		return d.lookAgain(ctx, q, above, nil)
	}
	writes, err := d.writesOfOrphans(ctx, q, list)
	if errors.Is(err, errSinceListed) {
		return d.changedOrphans(ctx, q, above, list, err)
	}
	if err != nil {
		return store.Unknown, err
	}
	first := &pb.Write{Operation: &pb.Write_Delete{Delete: d.name(above)}, CurrentDocument: absent()}
	writes = append([]*pb.Write{first}, writes...)
	if err := ctx.Err(); err != nil {
		return store.Unknown, err
	}
	tx, claimed, err := d.claimBetween(ctx, q, above, list)
	committed := false
	defer func() {
		if tx != nil && !committed {
			d.rollback(ctx, tx)
		}
	}()
	switch {
	case err != nil:
		return store.Unknown, err
	case claimed:
		return store.Changed, nil
	}
	_, err = d.commitIn(ctx, tx, writes)
	switch status.Code(err) {
	case codes.OK:
		committed = true
		return store.Deleted, nil
	case codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists:
		if errors.Is(google.Sentinel(status.Convert(err)), store.ErrMissingIndex) {
			return store.Unknown, err
		}
		return d.changedOrphans(ctx, q, above, list, err)
	}
	return store.Unknown, err
}

// claimBetween reads what is between a document and those of a list, is not in the list, and may have an owner, in a
// transaction that it begins for that. What lies below a document that got an owner goes with that owner: of such
// it sets the owner, too.
func (d *DB) claimBetween(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative,
) (tx []byte, claimed bool, err error) {
	seen := map[string]bool{}
	for _, r := range list {
		seen[r.Key] = true
	}
	var names []string
	for _, r := range list {
		for key := range pathsBetween(above, r.Key) {
			if !seen[key] && mayHaveOwner(q.Owners, key) {
				seen[key] = true
				names = append(names, d.name(key))
			}
		}
	}
	if len(names) == 0 {
		return nil, false, nil
	}
	if tx, _, err = d.begin(ctx, q.Target, above); err != nil {
		return tx, false, err
	}
	err = d.getIn(ctx, tx, names, ownerFields(q.Owners), func(name string, doc *pb.Document) error {
		if key := d.key(name); doc != nil {
			claimed = google.ClaimBelow(list, key, ownerOf(q.Owners, key, doc)) || claimed
		}
		return nil
	})
	return tx, claimed, err
}

// errSinceListed says that a document is not as the list has it.
var errSinceListed = errors.New("a document is not as it was listed")

// changedOrphans returns what speaks against deleting a list after err said that something does.
func (d *DB) changedOrphans(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative, err error,
) (store.Outcome, error) {
	o, why := d.lookAgain(ctx, q, above, list)
	if why == nil && o == store.Deleted { // the list is as it is now: the next try goes by that
		return store.Unknown, fmt.Errorf("%w: it changed after it was read: %w", store.ErrContention, err)
	}
	return o, why
}

func absent() *pb.Precondition {
	return &pb.Precondition{ConditionType: &pb.Precondition_Exists{Exists: false}}
}

// writesOfOrphans returns the writes that delete a list. With an archive it gives the documents to it before, and
// deletes them on condition that they are as they were kept.
func (d *DB) writesOfOrphans(
	ctx context.Context, q store.LineageQuery, list []store.Relative,
) (writes []*pb.Write, err error) {
	if q.Archive == nil {
		for _, r := range list {
			w := &pb.Write{Operation: &pb.Write_Delete{Delete: d.name(r.Key)}}
			switch {
			case !mayHaveOwner(q.Owners, r.Key):
			case r.Written.IsZero():
				w.CurrentDocument = absent() // lookAgain has found it gone
			default:
				w.CurrentDocument = unchanged(timestamppb.New(r.Written))
			}
			writes = append(writes, w)
		}
		return writes, nil
	}
	keys := make([]string, len(list))
	for i, r := range list {
		keys[i] = r.Key
	}
	writes, kept, err := d.keepAll(ctx, q.Target, keys, q.Archive)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if mayHaveOwner(q.Owners, r.Key) && !kept[d.name(r.Key)].Equal(r.Written) {
			return nil, errSinceListed
		}
	}
	return writes, nil
}

func mayHaveOwner(owners []store.Target, key string) bool {
	return slices.ContainsFunc(owners, func(t store.Target) bool { return isOf(t, key) })
}

// lookAgain reads the document above a list, and those of the list that may have an owner, and sets their
// owners and when they were written. The outcome is Deleted if nothing speaks against it.
func (d *DB) lookAgain(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative,
) (o store.Outcome, err error) {
	names := []string{d.name(above)}
	at := map[string]*store.Relative{}
	for i := range list {
		if mayHaveOwner(q.Owners, list[i].Key) {
			name := d.name(list[i].Key)
			names, at[name] = append(names, name), &list[i]
		}
	}
	o = store.Deleted
	err = d.get(ctx, names, append(ownerFields(q.Owners), nameField),
		func(name string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) {
			r := at[name]
			switch {
			case r == nil && doc != nil:
				o = store.Kept
			case r != nil && doc == nil:
				r.Written = time.Time{}
			case r != nil:
				r.Written, r.Owner = instant(doc.GetUpdateTime()), ownerOf(q.Owners, r.Key, doc)
				if r.Owner != "" && o == store.Deleted {
					o = store.Changed
				}
			}
		})
	return o, err
}
