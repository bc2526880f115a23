package dsread_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/shardread"
	"github.com/reaper-ttl/reaper/shardread/dsread"
)

func keys[T any](t *testing.T, seq iter.Seq2[dsread.Item[T], error]) []string {
	t.Helper()
	var out []string
	for item, err := range seq {
		if err != nil {
			t.Fatalf("after %d entities: %v", len(out), err)
		}
		out = append(out, name(item.Key))
	}
	return out
}

// name tells ids from names, as Key.String does not.
func name(k *datastore.Key) string {
	if k == nil {
		return ""
	}
	if k.Name == "" {
		return fmt.Sprintf("%s/%s:#%d", name(k.Parent), k.Kind, k.ID)
	}
	return fmt.Sprintf("%s/%s:%q", name(k.Parent), k.Kind, k.Name)
}

// single returns what one query over all shards says.
func single(t *testing.T, w *world, q *datastore.Query, newest bool, limit int) []string {
	t.Helper()
	if newest {
		q = q.Order("-created").Order("-__key__")
	} else {
		q = q.Order("created").Order("__key__")
	}
	if limit > 0 {
		q = q.Limit(limit)
	}
	found, err := w.GetAll(t.Context(), q.KeysOnly(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, k := range found {
		out = append(out, name(k))
	}
	return out
}

func TestSameAsASingleQuery(t *testing.T) {
	w := newWorld(t, "")
	n := nightly.Size(t, 10_000, 2_000) // the emulator reads all of them for each page
	w.fill(t, n)
	events := datastore.NewQuery("Event")
	from, until := start.Add(time.Duration(n/20)*time.Second), start.Add(time.Duration(n*3/20)*time.Second)
	within := events.FilterField("created", ">=", from).FilterField("created", "<", until)
	login := []dsread.Equal{{Property: "kind", Value: "login"}}
	for _, c := range []struct {
		name  string
		q     dsread.Query
		plain *datastore.Query // the same without shards
		reads int              // most entities
		least int              // queries
	}{
		{"newest 100, one query", dsread.Query{Newest: true, Limit: 100}, events, 100, 1},
		{"newest 100, a query per shard", dsread.Query{Newest: true, Limit: 100, PerQuery: 1}, events, 100 + 16*9, 16},
		{"newest 100, a query per shard, pages of 4", dsread.Query{Newest: true, Limit: 100, PerQuery: 1, Page: 4}, events, 100 + 16*4, 16},
		{"oldest 100, three shards per query", dsread.Query{Limit: 100, PerQuery: 3}, events, 100 + 6*25, 6},
		{"oldest first, all", dsread.Query{Page: n * 2 / 5}, events, n, 3}, // the emulator sorts again for each page
		{"newest first, all, a query per shard", dsread.Query{Newest: true, PerQuery: 1, Page: n / 34}, events, n, 34},
		{"within a time", dsread.Query{PerQuery: 5, From: from, Until: until}, within, n, 4},
		{"newest within a time", dsread.Query{Newest: true, Limit: 200, From: from, Until: until}, within, 200, 1},
		{"of one kind", dsread.Query{Where: login, Newest: true, PerQuery: 4, Limit: n / 20}, events.FilterField("kind", "=", "login"), n/20 + 4*n*16/1000, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := single(t, w, c.plain, c.q.Newest, c.q.Limit)
			if len(want) == 0 {
				t.Fatal("the single query finds nothing")
			}
			w.reset()
			c.q.Kind, c.q.Shard, c.q.Values, c.q.Time = "Event", "shard", shardread.Numbers(16), "created"
			got := keys(t, dsread.Run[event](t.Context(), w.Client, c.q))
			queries, reads := w.reset()
			if !slices.Equal(got, want) {
				t.Errorf("got %d entities, want the %d of the single query in their order:\n%.300v\n%.300v", len(got), len(want), got, want)
			}
			if reads > c.reads || len(queries) < c.least {
				t.Errorf("%d entities were read in %d queries, want at most %d, in %d or more", reads, len(queries), c.reads, c.least)
			}
			t.Logf("%d entities yielded, %d read in %d queries", len(got), reads, len(queries))
		})
	}
}

// TestTiesInEveryKindOfKey holds the order of keys to the store's: all entities
// have the same time, so that keys alone decide.
func TestTiesInEveryKindOfKey(t *testing.T) {
	w := newWorld(t, "named-db")
	user, other := datastore.NameKey("User", "u", nil), datastore.IDKey("User", 3, nil)
	for _, k := range []*datastore.Key{user, other} {
		k.Namespace = "tenant-1"
	}
	var all []*datastore.Key
	for _, k := range []*datastore.Key{
		datastore.IDKey("E", 7, nil), datastore.IDKey("E", 12, nil), datastore.IDKey("E", 1<<62, nil), datastore.IDKey("E", -5, nil),
		datastore.NameKey("E", "7", nil), datastore.NameKey("E", "12", nil), datastore.NameKey("E", "a", nil), datastore.NameKey("E", "aa", nil),
		datastore.NameKey("E", "a\x01", nil), datastore.NameKey("E", "a/b", nil), datastore.NameKey("E", "B", nil), datastore.NameKey("E", "é", nil),
		datastore.NameKey("E", "\uff61", nil), datastore.NameKey("E", "\U00010000", nil), // UTF-16 would swap these two
		datastore.NameKey("E", "a", user), datastore.IDKey("E", 1, user), datastore.NameKey("E", "a", other),
	} {
		all = append(all, k, datastore.NameKey("E", "x", k), datastore.NameKey("E", "x", datastore.NameKey("A", "y", k)))
	}
	events := make([]event, len(all))
	for i, k := range all {
		for k := k; k != nil; k = k.Parent {
			k.Namespace = "tenant-1"
		}
		events[i] = event{Shard: i % 5, Created: start}
	}
	w.put(t, all, events)
	for _, ancestor := range []*datastore.Key{nil, user, all[0]} {
		for _, newest := range []bool{false, true} {
			for _, perQuery := range []int{1, 2, 30} {
				plain := datastore.NewQuery("E").Namespace("tenant-1")
				if ancestor != nil {
					plain = plain.Ancestor(ancestor)
				}
				want := single(t, w, plain, newest, 0)
				q := dsread.Query{Kind: "E", Namespace: "tenant-1", Ancestor: ancestor, Shard: "shard", Values: shardread.Numbers(5), Time: "created",
					Newest: newest, PerQuery: perQuery, Page: 2}
				if got := keys(t, dsread.Run[event](t.Context(), w.Client, q)); len(want) == 0 || !slices.Equal(got, want) {
					t.Errorf("ancestor %v, newest %v, %d per query: got\n%v, want\n%v", ancestor, newest, perQuery, got, want)
				}
			}
			if ancestor != nil {
				continue
			}
			t.Run(fmt.Sprint("Node, newest ", newest), func(t *testing.T) {
				o := w.reader(t, nodewriter.ReadOptions{Database: "named-db", Namespace: "tenant-1", Newest: newest, Limit: 20, PerQuery: 2, Page: 2})
				o.Kind, o.Shards = "E", 5
				if got, want := slices.Concat(nodewriter.ReadAll(t, o)...), single(t, w, datastore.NewQuery("E").Namespace("tenant-1"), newest, 0); !slices.Equal(got, want) {
					t.Errorf("got\n%v, want\n%v", got, want)
				}
			})
		}
	}
}

// TestKeyOrderIsTheDefaultOne is a fact about the emulator that the package
// documents: without an order by key, ties follow the direction of the time.
func TestKeyOrderIsTheDefaultOne(t *testing.T) {
	w := newWorld(t, "")
	w.fill(t, 600)
	for _, order := range []string{"created", "-created"} {
		found, err := w.GetAll(t.Context(), datastore.NewQuery("Event").Order(order).KeysOnly(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range found {
			got = append(got, name(k))
		}
		if want := single(t, w, datastore.NewQuery("Event"), order == "-created", 0); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", order, got, want)
		}
	}
}

func TestOnlyTimestampsAndKnownShards(t *testing.T) {
	w := newWorld(t, "")
	shard := func(v any) datastore.Property { return datastore.Property{Name: `odd "shard"`, Value: v} }
	at := func(v any) datastore.Property { return datastore.Property{Name: "-time", Value: v} }
	for id, ps := range map[string]datastore.PropertyList{
		"good":    {shard("p"), at(start)},
		"first":   {shard("p"), at(time.Time{})},
		"last":    {shard("p"), at(time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC))},
		"null":    {shard("p"), at(nil)},
		"number":  {shard("p"), at(int64(5))},
		"larger":  {shard("p"), at(start.UnixMicro() + 5)},
		"bool":    {shard("p"), at(true)},
		"text":    {shard("p"), at("2026-11-21")},
		"list":    {shard("p"), at([]any{start, start.Add(1e9)})},
		"without": {shard("p")},
		"unknown": {shard("q"), at(start)},
		"integer": {shard(int64(1)), at(start)},
	} {
		if _, err := w.Put(t.Context(), datastore.NameKey("E", id, nil), &ps); err != nil {
			t.Fatal(id, err)
		}
	}
	for _, newest := range []bool{false, true} {
		want := []string{`/E:"first"`, `/E:"good"`, `/E:"last"`}
		if newest {
			slices.Reverse(want)
		}
		q := dsread.Query{Kind: "E", Shard: `odd "shard"`, Values: shardread.Strings("p"), Time: "-time", Newest: newest, Page: 1}
		if got := keys(t, dsread.Run[datastore.PropertyList](t.Context(), w.Client, q)); !slices.Equal(got, want) {
			t.Errorf("newest %v: got %v, want %v", newest, got, want)
		}
		t.Run(fmt.Sprint("Node, newest ", newest), func(t *testing.T) {
			o := w.reader(t, nodewriter.ReadOptions{Newest: newest, Limit: 2, Page: 1})
			o.Kind, o.Shard, o.Values, o.Time = "E", q.Shard, []string{"p"}, q.Time
			if got := slices.Concat(nodewriter.ReadAll(t, o)...); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// A custom value loads itself.
type custom struct {
	key        *datastore.Key
	properties int
}

func (c *custom) LoadKey(k *datastore.Key) error                 { c.key = k; return nil }
func (c *custom) Load(ps []datastore.Property) error             { c.properties = len(ps); return nil }
func (c *custom) Save() (ps []datastore.Property, errNone error) { return nil, nil }

func first[T any](t *testing.T, w *world, q dsread.Query) dsread.Item[T] {
	t.Helper()
	var found dsread.Item[T]
	for item, err := range dsread.Run[T](t.Context(), w.Client, q) {
		if err != nil {
			t.Fatal(err)
		}
		found = item
		break
	}
	return found
}

func TestValuesAreLoadedAsTheClientDoes(t *testing.T) {
	w := newWorld(t, "")
	key := datastore.NameKey("Event", "e", nil)
	want := event{Key: key, Shard: 3, Kind: "login", Created: start}
	w.put(t, []*datastore.Key{key}, []event{want})
	q := dsread.Query{Kind: "Event", Shard: "shard", Values: shardread.Numbers(16), Time: "created"}

	item := first[event](t, w, q)
	if got := item.Value; !item.Key.Equal(key) || !got.Key.Equal(key) || got.Shard != 3 || got.Kind != "login" || !got.Created.Equal(start) {
		t.Errorf("struct: got %+v with key %v", got, item.Key)
	}
	if got := first[datastore.PropertyList](t, w, q).Value; len(got) != 3 {
		t.Errorf("property list: got %v", got)
	}
	if got := first[custom](t, w, q).Value; !got.key.Equal(key) || got.properties != 3 {
		t.Errorf("value that loads itself: got %+v", got)
	}
	type narrow struct {
		Created time.Time `datastore:"created"`
	}
	var mismatch *datastore.ErrFieldMismatch
	if err := failure(t, dsread.Run[narrow](t.Context(), w.Client, q)); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "/Event,e") {
		t.Errorf("struct without the properties: got %v", err)
	}
	if err := failure(t, dsread.Run[*event](t.Context(), w.Client, q)); !errors.Is(err, datastore.ErrInvalidEntityType) {
		t.Errorf("pointer: got %v", err)
	}
}

// failure returns the error of a sequence that has nothing else.
func failure[T any](t *testing.T, seq iter.Seq2[dsread.Item[T], error]) error {
	t.Helper()
	var errs []error
	for item, err := range seq {
		if errs = append(errs, err); item.Key != nil {
			t.Errorf("got %v", item)
		}
	}
	if len(errs) != 1 || errs[0] == nil {
		t.Fatalf("got %v, want one error alone", errs)
	}
	return errs[0]
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, "")
	w.put(t, []*datastore.Key{datastore.NameKey("E", "1", nil)}, []event{{Created: start}})
	for name, c := range map[string]struct {
		change func(*dsread.Query)
		want   string
	}{
		"no kind":         {func(q *dsread.Query) { q.Kind = "" }, "the kind has no name"},
		"no shard":        {func(q *dsread.Query) { q.Shard = "" }, "the shard property has no name"},
		"no time":         {func(q *dsread.Query) { q.Time = "" }, "the time property has no name"},
		"one for both":    {func(q *dsread.Query) { q.Time = q.Shard }, `"shard" holds both the shard and the time`},
		"no values":       {func(q *dsread.Query) { q.Values = nil }, "there are no shard values"},
		"value twice":     {func(q *dsread.Query) { q.Values = []any{1, 1} }, "1 is there twice"},
		"too many values": {func(q *dsread.Query) { q.Values = shardread.Numbers(10_000) }, "at most 9999"},
		"mixed values":    {func(q *dsread.Query) { q.Values = []any{1, "1"} }, "mixed types"},
		"negative limit":  {func(q *dsread.Query) { q.Limit = -1 }, "limit is -1"},
		"per query 31":    {func(q *dsread.Query) { q.PerQuery = 31 }, "31 shards per query; it takes 1 to 30"},
		"per query -1":    {func(q *dsread.Query) { q.PerQuery = -1 }, "-1 shards per query; it takes 1 to 30"},
		"times":           {func(q *dsread.Query) { q.From, q.Until = start, start.Add(-1) }, "before it starts"},
		"filter name":     {func(q *dsread.Query) { q.Where = []dsread.Equal{{Value: 1}} }, "a filter's property has no name"},
		"filter list":     {func(q *dsread.Query) { q.Where = []dsread.Equal{{"a", []any{1}}} }, `filter on "a": []interface {} is not a single value`},
		"ancestor":        {func(q *dsread.Query) { q.Ancestor = &datastore.Key{Kind: "U", Name: "u", Namespace: "x"} }, `is in namespace "x", the query in ""`},
	} {
		t.Run(name, func(t *testing.T) {
			q := dsread.Query{Kind: "E", Shard: "shard", Values: shardread.Numbers(2), Time: "created"}
			c.change(&q)
			check(t, w, q, c.want)
			if err := q.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate() = %v", err)
			}
		})
	}
	t.Run("what only the client knows", func(t *testing.T) {
		q := dsread.Query{Kind: "E", Shard: "shard", Values: shardread.Numbers(2), Time: "created", Where: []dsread.Equal{{"a", make(chan int)}}}
		check(t, w, q, "bad query filter value type")
	})
}

// check runs a query that is to be refused before anything is sent.
func check(t *testing.T, w *world, q dsread.Query, want string) {
	t.Helper()
	w.reset()
	if err := failure(t, dsread.Run[event](t.Context(), w.Client, q)); !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with: %s", err, want)
	}
	if queries, _ := w.reset(); len(queries) != 0 {
		t.Errorf("%d queries were sent", len(queries))
	}
}

// TestEveryPageIsFiltered looks at what is sent.
func TestEveryPageIsFiltered(t *testing.T) {
	w := newWorld(t, "")
	w.fill(t, 900)
	w.reset()
	q := dsread.Query{Kind: "Event", Shard: "shard", Values: shardread.Numbers(16), Time: "created", Where: []dsread.Equal{{"kind", "view"}}, PerQuery: 8, Page: 20}
	keys(t, dsread.Run[event](t.Context(), w.Client, q))
	queries, _ := w.reset()
	if len(queries) < 20 {
		t.Fatalf("only %d queries were sent", len(queries))
	}
	begun := map[string]bool{}
	for _, req := range queries {
		sent := req.GetQuery()
		var filters []string
		for _, f := range sent.Filter.GetCompositeFilter().GetFilters() {
			pf := f.GetPropertyFilter()
			filters = append(filters, fmt.Sprint(pf.Property.Name, " ", pf.Op))
			if pf.Op == pb.PropertyFilter_IN {
				group := fmt.Sprint(pf.Value)
				if begun[group] != (len(sent.StartCursor) > 0) {
					t.Errorf("a page has the cursor %q, though pages of its shards were read before: %v", sent.StartCursor, begun[group])
				}
				begun[group] = true
			}
		}
		if want := []string{"kind EQUAL", "shard IN", "created GREATER_THAN_OR_EQUAL", "created LESS_THAN_OR_EQUAL"}; !slices.Equal(filters, want) {
			t.Errorf("filters: got %v, want %v", filters, want)
		}
		if sent.Limit.GetValue() < 1 || sent.Limit.GetValue() > 20 || len(sent.Order) != 2 || sent.Offset != 0 {
			t.Errorf("limit %v, order %v, offset %d", sent.Limit, sent.Order, sent.Offset)
		}
	}
	if len(begun) != 2 {
		t.Errorf("%d groups of shards, want 2", len(begun))
	}
}

func TestAFailedQueryEndsTheRun(t *testing.T) {
	w := newWorld(t, "")
	w.fill(t, 900)
	want := single(t, w, datastore.NewQuery("Event"), false, 0)
	w.reset()
	w.fail = func(call int) error {
		if call > 3 {
			return status.Error(codes.FailedPrecondition, "no matching index found. recommended index is: - kind: Event")
		}
		return nil
	}
	q := dsread.Query{Kind: "Event", Shard: "shard", Values: shardread.Numbers(16), Time: "created", PerQuery: 8, Page: 50}
	var got []string
	var errs []error
	for item, err := range dsread.Run[event](t.Context(), w.Client, q) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		got = append(got, name(item.Key))
	}
	if len(errs) != 1 || status.Code(errs[0]) != codes.FailedPrecondition || !strings.Contains(errs[0].Error(), "recommended index") {
		t.Errorf("got %v, want the service's error, once", errs)
	}
	if len(got) == 0 || !slices.Equal(got, want[:len(got)]) {
		t.Errorf("got %d entities before the error, want the first ones in order", len(got))
	}
}

func TestCancellation(t *testing.T) {
	w := newWorld(t, "")
	w.fill(t, 900)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q := dsread.Query{Kind: "Event", Shard: "shard", Values: shardread.Numbers(16), Time: "created", PerQuery: 1, Page: 5}
	entities := 0
	var errs []error
	for _, err := range dsread.Run[event](ctx, w.Client, q) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if entities++; entities == 100 {
			cancel()
		}
	}
	if entities != 100 || len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("%d entities and %v, want 100 and that it was cancelled", entities, errs)
	}
}
