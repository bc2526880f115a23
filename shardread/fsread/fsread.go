// Package fsread reads a Firestore collection that is spread over shards in
// order of time, as one query would if there were no shards: it runs the
// queries of all shards in parallel and merges their answers.
//
// The invariant is that [Query.Run] yields exactly the documents, in exactly
// the order, of
//
//	base.Where(time, ">=", from).Where(time, "<", until).OrderBy(time, dir).OrderBy(firestore.DocumentID, dir)
//
// as far as their shard is one of the values, and of no other query: what a
// filter that the client refused would lead to is an error instead. Documents
// whose time is not a timestamp are in no answer.
//
// # Indexes
//
// A composite index with the shard before the time serves it, for a collection
// group one of that scope. Newest and oldest first need one each:
//
//	shard ASC, created DESC   for Newest
//	shard ASC, created ASC    for oldest first
//
// Equality filters of the base stand before both, (kind, shard, created), or
// in an index with the time alone, (kind, created), that Firestore combines
// with this one. The emulator needs none, so a missing index shows only in
// production, by an error with a link that creates it. Switch the single-field
// indexes of shard and time off: the one of the time is what held writes to
// 500 a second.
//
// # Costs
//
// Each document read is billed, and each query as one read at least. A run
// reads at most Limit + queries × Page documents, and usually not half more than
// Limit. Up to 30 shards share an `in` query, so that 16 shards take one query
// and Limit reads. With PerQuery 1 each shard has its own: more documents are
// read in exchange for smaller pages in parallel.
//
// Limits: pages are read when they are needed, so that a document that moves to
// another shard or time meanwhile may appear twice or not at all. A base with a
// read time, *q.WithReadOptions(firestore.ReadTime(t)), makes the run a
// snapshot. What the client does not repeat by itself ends the run.
package fsread

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"cloud.google.com/go/firestore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/shardread"
)

// MaxPerQuery is how many values Firestore takes in one `in` filter.
const MaxPerQuery = 30

// A Query says what to read. Base, Shard, Values and Time are required.
type Query struct {
	// Base is a collection or collection group, optionally with equality filters
	// and a selection of fields (the time among them):
	//
	//	client.Collection("events").Where("kind", "==", "login")
	Base firestore.Query

	Shard  string // the field that holds the shard; dots lead into maps
	Values []any  // all its values, integers or strings; see shardread.Numbers and shardread.Strings

	Time   string    // the field that holds the timestamp; dots lead into maps
	Newest bool      // newest first, not oldest first
	From   time.Time // the first instant wanted; zero means the first that there is
	Until  time.Time // the first instant not wanted any more; zero means none

	Limit    int // most documents; zero means all
	PerQuery int // most shards in one query, 1 to MaxPerQuery; zero means MaxPerQuery
	Page     int // most documents of one query read ahead; zero means 300
	Parallel int // most queries at the same time; zero means 32
}

// Validate reports what is wrong with the query. It sends nothing.
func (q Query) Validate() error {
	_, _, err := q.plan()
	return err
}

// Run yields the documents. An error is yielded once, with a nil document, and
// ends the sequence; an invalid query yields nothing else. Each range over the
// sequence reads again, and leaves nothing running when it ends.
func (q Query) Run(ctx context.Context) iter.Seq2[*firestore.DocumentSnapshot, error] {
	return func(yield func(*firestore.DocumentSnapshot, error) bool) {
		sources, collection, err := q.plan()
		if err != nil {
			yield(nil, fmt.Errorf("read shards: %w", err))
			return
		}
		for d, err := range shardread.Merge(ctx, sources, q.compare, q.options()) {
			if err != nil {
				yield(nil, fmt.Errorf("read %s from %d queries over %d shards: %w", collection, len(sources), len(q.Values), err))
				return
			}
			if !yield(d.snapshot, nil) {
				return
			}
		}
	}
}

func (q Query) options() shardread.Options {
	return shardread.Options{Limit: q.Limit, Page: q.Page, Parallel: q.Parallel}
}

// plan checks the query and returns a source for each group of shards, and the
// collection's name.
func (q Query) plan() (sources []shardread.Source[document], collection string, err error) {
	perQuery := cmp.Or(q.PerQuery, MaxPerQuery)
	groups, err := shardread.Group(q.Values, min(max(perQuery, 1), MaxPerQuery))
	errs := []error{err, q.options().Validate()}
	if perQuery < 1 || perQuery > MaxPerQuery {
		errs = append(errs, fmt.Errorf("%d shards per query; it takes 1 to %d", perQuery, MaxPerQuery))
	}
	if q.Time != "" && q.Time == q.Shard {
		errs = append(errs, fmt.Errorf("%q holds both the shard and the time", q.Time))
	}
	if !q.Until.IsZero() && q.Until.Before(q.From) {
		errs = append(errs, fmt.Errorf("the time wanted ends at %v, before it starts at %v", q.Until, q.From))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, "", err
	}
	base, err := structured(q.Base)
	if err != nil {
		return nil, "", fmt.Errorf("base query: %w", err)
	}
	if err := q.checkBase(base); err != nil {
		return nil, "", fmt.Errorf("base query: %w", err)
	}
	for _, group := range groups {
		// The page queries differ from this one in their start and limit alone,
		// so that whatever the client refuses shows here.
		if _, err := structured(q.page(group, nil)); err != nil {
			return nil, "", err
		}
		sources = append(sources, q.source(group))
	}
	return sources, base.From[0].CollectionId, nil
}

// structured returns the query as it is sent, or what the client holds against
// it. A query of the client remembers its error until a start position
// overwrites it, and would then run without the filter that was wrong.
func structured(q firestore.Query) (*pb.StructuredQuery, error) {
	text, err := q.Serialize()
	if err != nil {
		return nil, err
	}
	var req pb.RunQueryRequest
	if err := proto.Unmarshal(text, &req); err != nil {
		return nil, err
	}
	if req.ExplainOptions != nil {
		return nil, errors.New("it is to be explained, and a run yields documents alone")
	}
	return req.GetStructuredQuery(), nil
}

// checkBase refuses what would not mean the same in the queries of single
// shards as in one over all.
func (q Query) checkBase(base *pb.StructuredQuery) error {
	var errs []error
	for _, c := range []struct {
		has  bool
		what string
	}{
		{len(base.OrderBy) > 0, "an order; Time and Newest give it"},
		{base.Limit != nil, "a limit; Limit gives it"},
		{base.Offset != 0, "an offset, which is billed like what it skips"},
		{base.StartAt != nil || base.EndAt != nil, "a start or end position; From and Until bound the time"},
		{base.FindNearest != nil, "a vector search"},
		{!equalities(base.Where), "a filter that is not an equality"},
	} {
		if c.has {
			errs = append(errs, fmt.Errorf("it has %s", c.what))
		}
	}
	if fields := base.GetSelect().GetFields(); len(fields) > 0 {
		want, err := structured(q.Base.Select(q.Time))
		if err != nil {
			return fmt.Errorf("time field: %w", err)
		}
		found := false
		for _, f := range fields {
			found = found || f.FieldPath == want.Select.Fields[0].FieldPath
		}
		if !found {
			errs = append(errs, fmt.Errorf("it selects fields, but not %q", q.Time))
		}
	}
	return errors.Join(errs...)
}

// equalities reports whether the filter, which may be nil, only compares fields
// with values for equality.
func equalities(f *pb.StructuredQuery_Filter) bool {
	switch f := f.GetFilterType().(type) {
	case nil:
		return true
	case *pb.StructuredQuery_Filter_FieldFilter:
		return f.FieldFilter.Op == pb.StructuredQuery_FieldFilter_EQUAL
	case *pb.StructuredQuery_Filter_UnaryFilter:
		op := f.UnaryFilter.Op
		return op == pb.StructuredQuery_UnaryFilter_IS_NULL || op == pb.StructuredQuery_UnaryFilter_IS_NAN
	case *pb.StructuredQuery_Filter_CompositeFilter:
		for _, g := range f.CompositeFilter.Filters {
			if !equalities(g) {
				return false
			}
		}
		return f.CompositeFilter.Op == pb.StructuredQuery_CompositeFilter_AND
	}
	return false
}

// page returns the query for what follows the last document read, nil at the
// start. The filters come last: see structured.
func (q Query) page(group []any, last *firestore.DocumentSnapshot) firestore.Query {
	dir := firestore.Asc
	if q.Newest {
		dir = firestore.Desc
	}
	page := q.Base.OrderBy(q.Time, dir).OrderBy(firestore.DocumentID, dir)
	if last != nil {
		page = page.StartAfter(last)
	}
	if len(group) == 1 {
		page = page.Where(q.Shard, "==", group[0])
	} else {
		page = page.Where(q.Shard, "in", group)
	}
	// Go's zero time is the first instant that Firestore has. The filter also
	// leaves out what is no timestamp.
	page = page.Where(q.Time, ">=", q.From)
	if !q.Until.IsZero() {
		page = page.Where(q.Time, "<", q.Until)
	}
	return page
}

// source reads the documents of some shards page by page.
func (q Query) source(group []any) shardread.Source[document] {
	var last *firestore.DocumentSnapshot
	return func(ctx context.Context, n int) ([]document, bool, error) {
		it := q.page(group, last).Limit(n).Documents(ctx)
		defer it.Stop()
		docs := make([]document, 0, n)
		for {
			snapshot, err := it.Next()
			if errors.Is(err, iterator.Done) {
				return docs, len(docs) == n, nil
			}
			if err != nil {
				return nil, false, err
			}
			d, err := q.document(snapshot)
			if err != nil {
				return nil, false, err
			}
			docs = append(docs, d)
			last = snapshot
		}
	}
}

// A document is one with its place in the order.
type document struct {
	at       time.Time
	snapshot *firestore.DocumentSnapshot
}

func (q Query) document(snapshot *firestore.DocumentSnapshot) (document, error) {
	value, err := snapshot.DataAt(q.Time)
	if err != nil {
		return document{}, fmt.Errorf("document %s: %w", snapshot.Ref.ID, err)
	}
	at, ok := value.(time.Time)
	if !ok {
		return document{}, fmt.Errorf("document %s: %s is %T, not a timestamp", snapshot.Ref.ID, q.Time, value)
	}
	return document{at, snapshot}, nil
}

func (q Query) compare(a, b document) int {
	c := cmp.Or(a.at.Compare(b.at), compareNames(a.snapshot.Ref.Path, b.snapshot.Ref.Path))
	if q.Newest {
		return -c
	}
	return c
}
