// Package dsread reads a kind of Firestore in Datastore mode that is spread over
// shards in order of time, as one query would if there were no shards: it runs
// the queries of all shards in parallel and merges their answers.
//
// The invariant is that [Run] yields exactly the entities of one query with the same
// filters, as far as their shard is one of the values, and in its order. That
// query orders by the time and then, in the same direction, by the key. The order
// by key is explicit; without it the emulator uses the same order. Entities whose
// time is not a single timestamp are never yielded. The store sorts integers among
// timestamps, so those are read and discarded.
//
// # Indexes
//
// A composite index with the shard before the time serves it. Newest and oldest
// first need one each, in index.yaml:
//
//	indexes:
//	- kind: Event
//	  properties:
//	  - name: shard
//	  - name: created
//	    direction: desc   # for Newest; without this line for oldest first
//
// Should the service ask for more, its error names the index. Properties of
// further equality filters stand before both, and ancestor: yes belongs to a
// query with an ancestor. The emulator needs none, so a missing index shows only
// in production.
//
// # Costs
//
// Each entity read is billed. A run reads at most Limit + queries × Page
// entities, and usually not half more than Limit. Up to 30 shards share an `in`
// query, so that 16 shards take one query and Limit reads. With PerQuery 1 each
// shard has its own: more entities are read in exchange for smaller pages in
// parallel.
//
// Limits: a run is no snapshot, since each page is read when it is needed; an
// entity that moves to another shard or time meanwhile may appear twice or not
// at all. A query sees one namespace. What the client does not repeat by itself
// ends the run.
package dsread

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/reaper-ttl/reaper/shardread"
)

// MaxPerQuery is how many values Datastore mode takes in one `in` filter.
const MaxPerQuery = 30

// An Equal is a filter: the property has this value.
type Equal struct {
	Property string
	Value    any
}

// A Query says what to read. Kind, Shard, Values and Time are required.
type Query struct {
	Kind      string
	Namespace string         // empty means the default one
	Ancestor  *datastore.Key // only its descendants, and itself; nil means all
	Where     []Equal        // all of them hold

	Shard  string // the property that holds the shard
	Values []any  // all its values, integers or strings; see shardread.Numbers and shardread.Strings

	Time   string    // the property that holds the timestamp
	Newest bool      // newest first, not oldest first
	From   time.Time // the first instant wanted; zero means the first that there is
	Until  time.Time // the first instant not wanted any more; zero means none

	Limit    int // most entities; zero means all
	PerQuery int // most shards in one query, 1 to MaxPerQuery; zero means MaxPerQuery
	Page     int // most entities of one query read ahead; zero means 300
	Parallel int // most queries at the same time; zero means 32
}

// An Item is an entity with its key.
type Item[T any] struct {
	Key   *datastore.Key
	Value T
}

// Run yields the entities, each loaded into a T as the client's Get would: a
// struct, a [datastore.PropertyList], or a type that implements
// [datastore.PropertyLoadSaver] by pointer. An error is yielded once, with the
// zero item, and ends the sequence; an invalid query yields nothing else. Each
// range over the sequence reads again, and leaves nothing running when it ends.
func Run[T any](ctx context.Context, client *datastore.Client, q Query) iter.Seq2[Item[T], error] {
	return func(yield func(Item[T], error) bool) {
		groups, err := q.groups()
		if err != nil {
			yield(Item[T]{}, fmt.Errorf("read shards of %q: %w", q.Kind, err))
			return
		}
		var sources []shardread.Source[*entity[T]]
		for _, group := range groups {
			sources = append(sources, source[T](client, q, q.query(group)))
		}
		compare := func(a, b *entity[T]) int {
			c := cmp.Or(a.at.Compare(b.at), compareKeys(a.key, b.key))
			if q.Newest {
				return -c
			}
			return c
		}
		for e, err := range shardread.Merge(ctx, sources, compare, q.options()) {
			if err != nil {
				yield(Item[T]{}, fmt.Errorf("read %q from %d queries over %d shards: %w", q.Kind, len(sources), len(q.Values), err))
				return
			}
			if !yield(Item[T]{e.key, e.value}, nil) {
				return
			}
		}
	}
}

// Validate reports what is wrong with the query, as far as can be told without
// the client.
func (q Query) Validate() error {
	_, err := q.groups()
	return err
}

func (q Query) options() shardread.Options {
	return shardread.Options{Limit: q.Limit, Page: q.Page, Parallel: q.Parallel}
}

// groups checks the query and returns the shards of each that is to be sent.
func (q Query) groups() ([][]any, error) {
	perQuery := cmp.Or(q.PerQuery, MaxPerQuery)
	groups, err := shardread.Group(q.Values, min(max(perQuery, 1), MaxPerQuery))
	errs := []error{err, q.options().Validate()}
	if perQuery < 1 || perQuery > MaxPerQuery {
		errs = append(errs, fmt.Errorf("%d shards per query; it takes 1 to %d", perQuery, MaxPerQuery))
	}
	for _, p := range []struct{ what, name string }{
		{"kind", q.Kind}, {"shard property", q.Shard}, {"time property", q.Time},
	} {
		if p.name == "" {
			errs = append(errs, fmt.Errorf("the %s has no name", p.what))
		}
	}
	if q.Time != "" && q.Time == q.Shard {
		errs = append(errs, fmt.Errorf("%q holds both the shard and the time", q.Time))
	}
	if !q.Until.IsZero() && q.Until.Before(q.From) {
		errs = append(errs, fmt.Errorf("the time wanted ends at %v, before it starts at %v", q.Until, q.From))
	}
	for _, e := range q.Where {
		if _, list := e.Value.([]any); list {
			errs = append(errs, fmt.Errorf("filter on %q: %T is not a single value", e.Property, e.Value))
		}
		if e.Property == "" {
			errs = append(errs, errors.New("a filter's property has no name"))
		}
	}
	if a := q.Ancestor; a != nil && a.Namespace != q.Namespace {
		errs = append(errs, fmt.Errorf("the ancestor %v is in namespace %q, the query in %q", a, a.Namespace, q.Namespace))
	}
	return groups, errors.Join(errs...)
}

var lastInstant = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)

// query returns the query for all entities of some shards.
func (q Query) query(group []any) *datastore.Query {
	// The client reads names that begin with a quotation mark as Go literals.
	shard, at := strconv.Quote(q.Shard), strconv.Quote(q.Time)
	query := datastore.NewQuery(q.Kind).Namespace(q.Namespace)
	if q.Ancestor != nil {
		query = query.Ancestor(q.Ancestor)
	}
	for _, e := range q.Where {
		query = query.FilterField(strconv.Quote(e.Property), "=", e.Value)
	}
	if len(group) == 1 {
		query = query.FilterField(shard, "=", group[0])
	} else {
		query = query.FilterField(shard, "in", group)
	}
	// Bounds on both sides leave out most of what is no timestamp. Go's zero
	// time is the first one that the store has.
	query = query.FilterField(at, ">=", q.From)
	if q.Until.IsZero() {
		query = query.FilterField(at, "<=", lastInstant)
	} else {
		query = query.FilterField(at, "<", q.Until)
	}
	if q.Newest {
		return query.Order("-" + at).Order("-__key__")
	}
	return query.Order(at).Order("__key__")
}

// source reads the entities of one query page by page. The store's own cursor
// leads from one to the next: it belongs to the query, which stays the same.
func source[T any](client *datastore.Client, q Query, query *datastore.Query) shardread.Source[*entity[T]] {
	var next datastore.Cursor
	return func(ctx context.Context, n int) ([]*entity[T], bool, error) {
		it := client.Run(ctx, query.Start(next).Limit(n))
		page := make([]*entity[T], 0, n)
		read := 0
		for {
			e := &entity[T]{time: q.Time}
			key, err := it.Next(e)
			if errors.Is(err, iterator.Done) {
				break
			}
			if err != nil && key != nil {
				return nil, false, fmt.Errorf("load %v: %w", key, err)
			}
			if err != nil {
				return nil, false, err
			}
			if read++; e.timed {
				page = append(page, e)
			}
		}
		var err error
		next, err = it.Cursor()
		return page, read == n, err
	}
}
