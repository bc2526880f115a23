package fsread_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/shardread"
	"github.com/reaper-ttl/reaper/shardread/fsread"
)

// names returns the documents' names within the database.
func names(t *testing.T, seq iter.Seq2[*firestore.DocumentSnapshot, error]) []string {
	t.Helper()
	var out []string
	for doc, err := range seq {
		if err != nil {
			t.Fatalf("after %d documents: %v", len(out), err)
		}
		_, name, _ := strings.Cut(doc.Ref.Path, "/documents/")
		out = append(out, name)
	}
	return out
}

// single returns what one query over all shards says.
func single(t *testing.T, q firestore.Query, time string, dir firestore.Direction, limit int) []string {
	t.Helper()
	q = q.OrderBy(time, dir).OrderBy(firestore.DocumentID, dir)
	if limit > 0 {
		q = q.Limit(limit)
	}
	docs, err := q.Documents(t.Context()).GetAll()
	if err != nil {
		t.Fatal(err)
	}
	return names(t, func(yield func(*firestore.DocumentSnapshot, error) bool) {
		for _, d := range docs {
			if !yield(d, nil) {
				return
			}
		}
	})
}

func TestSameAsASingleQuery(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	n := nightly.Size(t, 10_000, 2_000) // the emulator reads all of them for each page
	w.fill(t, n)
	events := w.Collection("events").Query
	from, until := start.Add(time.Duration(n/20)*time.Second), start.Add(time.Duration(n*3/20)*time.Second)
	for _, c := range []struct {
		name  string
		q     fsread.Query
		plain firestore.Query // the same without shards
		reads int             // most documents
		least int             // queries
	}{
		{"newest 100, one query", fsread.Query{Base: events, Newest: true, Limit: 100}, events, 100, 1},
		{"newest 100, a query per shard", fsread.Query{Base: events, Newest: true, Limit: 100, PerQuery: 1}, events, 100 + 16*9, 16},
		{"newest 100, a query per shard, pages of 4", fsread.Query{Base: events, Newest: true, Limit: 100, PerQuery: 1, Page: 4}, events, 100 + 16*4, 16},
		{"oldest 100, three shards per query", fsread.Query{Base: events, Limit: 100, PerQuery: 3}, events, 100 + 6*25, 6},
		{"oldest first, all", fsread.Query{Base: events, Page: n * 2 / 5}, events, n, 3}, // the emulator sorts again for each page
		{"newest first, all, a query per shard", fsread.Query{Base: events, Newest: true, PerQuery: 1, Page: n / 34}, events, n, 34},
		{"within a time", fsread.Query{Base: events, PerQuery: 5, From: from, Until: until},
			events.Where("created", ">=", from).Where("created", "<", until), n, 4},
		{"newest within a time", fsread.Query{Base: events, Newest: true, Limit: 200, From: from, Until: until},
			events.Where("created", ">=", from).Where("created", "<", until), 200, 1},
		{"of one kind", fsread.Query{Base: events.Where("kind", "==", "login"), Newest: true, PerQuery: 4, Limit: n / 20},
			events.Where("kind", "==", "login"), n/20 + 4*n*16/1000, 4},
		{"of two equalities and selected fields", fsread.Query{Base: events.Where("kind", "==", "login").Where("shard", "==", 3).Select("created"), Limit: 50},
			events.Where("kind", "==", "login").Where("shard", "==", 3), 50, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := firestore.Asc
			if c.q.Newest {
				dir = firestore.Desc
			}
			want := single(t, c.plain, "created", dir, c.q.Limit)
			if len(want) == 0 {
				t.Fatal("the single query finds nothing")
			}
			w.reset()
			c.q.Shard, c.q.Values, c.q.Time = "shard", shardread.Numbers(16), "created"
			got := names(t, c.q.Run(t.Context()))
			queries, reads := w.reset()
			if !slices.Equal(got, want) {
				t.Errorf("got %d documents, want the %d of the single query in their order:\n%.300v\n%.300v", len(got), len(want), got, want)
			}
			if reads > c.reads || len(queries) < c.least {
				t.Errorf("%d documents were read in %d queries, want at most %d, in %d or more", reads, len(queries), c.reads, c.least)
			}
			t.Logf("%d documents yielded, %d read in %d queries", len(got), reads, len(queries))
		})
	}
}

// TestTiesInEveryKindOfName holds the order of names to the store's: all
// documents have the same time, so that names alone decide.
func TestTiesInEveryKindOfName(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	docs := map[string]map[string]any{}
	for i, name := range []string{
		"E/__id7__", "E/__id12__", "E/__id-5__", "E/__id9223372036854775807__", "E/_id7_", "E/7", "E/12",
		"E/!", "E/~", "E/a", "E/aa", "E/a\x01", "E/B", "E/é", "E/\uff61", "E/\U00010000", // UTF-16 would swap the last two
		"E/a/E/x", "E/a!/E/x", "A/x/E/a", "F/x/E/a", "U/u/E/a", "U/__id3__/E/a", "U/__id20__/E/a", "E/a/U/b/E/c",
	} {
		docs[name] = map[string]any{"shard": string('p' + rune(i%5)), "created": start}
	}
	w.put(t, docs)
	for _, base := range []firestore.Query{w.Collection("E").Query, w.CollectionGroup("E").Query, w.Collection("E/a/E").Query} {
		for _, newest := range []bool{false, true} {
			for _, perQuery := range []int{1, 2, 30} {
				dir := firestore.Asc
				if newest {
					dir = firestore.Desc
				}
				want := single(t, base, "created", dir, 0)
				q := fsread.Query{Base: base, Shard: "shard", Values: shardread.Strings("p", "q", "r", "s", "t"), Time: "created",
					Newest: newest, PerQuery: perQuery, Page: 2}
				if got := names(t, q.Run(t.Context())); len(want) == 0 || !slices.Equal(got, want) {
					t.Errorf("newest %v, %d per query: got\n%+q, want\n%+q", newest, perQuery, got, want)
				}
			}
		}
	}
	for _, newest := range []bool{false, true} {
		t.Run(fmt.Sprint("Node, newest ", newest), func(t *testing.T) {
			o := w.reader(t, nodewriter.ReadOptions{Newest: newest, Limit: 9, PerQuery: 2, Page: 2})
			o.Kind, o.Group, o.Values = "E", true, []string{"p", "q", "r", "s", "t"}
			dir := map[bool]firestore.Direction{false: firestore.Asc, true: firestore.Desc}[newest]
			got, want := slices.Concat(nodewriter.ReadAll(t, o)...), single(t, w.CollectionGroup("E").Query, "created", dir, 0)
			if !slices.Equal(got, want) {
				t.Errorf("got\n%+q, want\n%+q", got, want)
			}
		})
	}
}

func TestOnlyTimestampsAndKnownShards(t *testing.T) {
	w := newWorld(t, "named-db")
	w.put(t, map[string]map[string]any{
		"e/good":    {"at": map[string]any{"shard": 1, "time": start}},
		"e/first":   {"at": map[string]any{"shard": 1, "time": time.Time{}}},
		"e/null":    {"at": map[string]any{"shard": 1, "time": nil}},
		"e/number":  {"at": map[string]any{"shard": 1, "time": 5}},
		"e/text":    {"at": map[string]any{"shard": 1, "time": "2026-11-21"}},
		"e/without": {"at": map[string]any{"shard": 1}},
		"e/list":    {"at": map[string]any{"shard": 1, "time": []any{start}}},
		"e/unknown": {"at": map[string]any{"shard": 2, "time": start}},
		"e/string":  {"at": map[string]any{"shard": "1", "time": start}},
	})
	for _, newest := range []bool{false, true} {
		q := fsread.Query{Base: w.Collection("e").Query, Shard: "at.shard", Values: []any{1}, Time: "at.time", Newest: newest}
		want := []string{"e/first", "e/good"}
		if newest {
			slices.Reverse(want)
		}
		if got := names(t, q.Run(t.Context())); !slices.Equal(got, want) {
			t.Errorf("newest %v: got %v, want %v", newest, got, want)
		}
		t.Run(fmt.Sprint("Node, newest ", newest), func(t *testing.T) {
			o := w.reader(t, nodewriter.ReadOptions{Database: "named-db", Newest: newest, Limit: 1, Page: 1})
			o.Kind, o.Shard, o.Shards, o.Time = "e", q.Shard, 2, q.Time
			if got := slices.Concat(nodewriter.ReadAll(t, o)...); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestARunCanBeASnapshot reads as of a time before half of the documents were
// written, twice from one sequence.
func TestARunCanBeASnapshot(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	ref := w.Collection("e").Doc("old")
	result, err := ref.Set(t.Context(), map[string]any{"shard": 0, "created": start})
	if err != nil {
		t.Fatal(err)
	}
	w.put(t, map[string]map[string]any{"e/new": {"shard": 1, "created": start}})
	base := w.Collection("e").Query
	q := fsread.Query{Base: *base.WithReadOptions(firestore.ReadTime(result.UpdateTime)), Shard: "shard", Values: shardread.Numbers(2), Time: "created"}
	seq := q.Run(t.Context())
	for range 2 {
		if got := names(t, seq); !slices.Equal(got, []string{"e/old"}) {
			t.Errorf("got %v, want what was there before", got)
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	w.put(t, map[string]map[string]any{"e/1": {"shard": 0, "created": start}})
	e := w.Collection("e").Query
	good := func() fsread.Query {
		return fsread.Query{Base: e, Shard: "shard", Values: shardread.Numbers(2), Time: "created"}
	}
	for name, c := range map[string]struct {
		change func(*fsread.Query)
		want   string
	}{
		"no collection":   {func(q *fsread.Query) { q.Base = firestore.Query{} }, "base query: firestore: query created without CollectionRef"},
		"no shard":        {func(q *fsread.Query) { q.Shard = "" }, "empty"},
		"no time":         {func(q *fsread.Query) { q.Time = "" }, "empty"},
		"bad shard":       {func(q *fsread.Query) { q.Shard = "a*b" }, "invalid rune"},
		"bad time":        {func(q *fsread.Query) { q.Time = "a/b" }, "invalid rune"},
		"one for both":    {func(q *fsread.Query) { q.Time = q.Shard }, `"shard" holds both the shard and the time`},
		"no values":       {func(q *fsread.Query) { q.Values = nil }, "there are no shard values"},
		"value twice":     {func(q *fsread.Query) { q.Values = []any{1, 1} }, "1 is there twice"},
		"too many values": {func(q *fsread.Query) { q.Values = shardread.Numbers(10_000) }, "at most 9999"},
		"mixed values":    {func(q *fsread.Query) { q.Values = []any{1, "1"} }, "mixed types"},
		"negative limit":  {func(q *fsread.Query) { q.Limit = -1 }, "limit is -1"},
		"per query 31":    {func(q *fsread.Query) { q.PerQuery = 31 }, "31 shards per query; it takes 1 to 30"},
		"per query -1":    {func(q *fsread.Query) { q.PerQuery = -1 }, "-1 shards per query; it takes 1 to 30"},
		"times":           {func(q *fsread.Query) { q.From, q.Until = start, start.Add(-1) }, "before it starts"},
		// The client would drop the first error, with the filter, at StartAfter.
		"bad filter":        {func(q *fsread.Query) { q.Base = e.Where("a", "=", 1) }, `invalid operator "="`},
		"bad path":          {func(q *fsread.Query) { q.Base = e.Where("a[1]", "==", 1) }, "invalid rune"},
		"bad value":         {func(q *fsread.Query) { q.Base = e.Where("a", "==", make(chan int)) }, "cannot convert type chan int"},
		"inequality":        {func(q *fsread.Query) { q.Base = e.Where("a", ">", 1) }, "a filter that is not an equality"},
		"in":                {func(q *fsread.Query) { q.Base = e.Where("a", "in", []int{1}) }, "a filter that is not an equality"},
		"not null":          {func(q *fsread.Query) { q.Base = e.Where("a", "!=", nil) }, "a filter that is not an equality"},
		"or":                {func(q *fsread.Query) { q.Base = e.WhereEntity(or("a", "b")) }, "a filter that is not an equality"},
		"nested":            {func(q *fsread.Query) { q.Base = e.Where("a", "==", 1).Where("b", "<", 1) }, "a filter that is not an equality"},
		"order":             {func(q *fsread.Query) { q.Base = e.OrderBy("created", firestore.Asc) }, "it has an order"},
		"limit":             {func(q *fsread.Query) { q.Base = e.Limit(5) }, "it has a limit"},
		"limit to last":     {func(q *fsread.Query) { q.Base = e.OrderBy("a", firestore.Asc).LimitToLast(5) }, "it has a limit"},
		"offset":            {func(q *fsread.Query) { q.Base = e.Offset(5) }, "it has an offset"},
		"start":             {func(q *fsread.Query) { q.Base = e.OrderBy("a", firestore.Asc).StartAt(5) }, "it has a start or end position"},
		"explained":         {func(q *fsread.Query) { q.Base = e.WithRunOptions(firestore.ExplainOptions{}) }, "it is to be explained"},
		"time not selected": {func(q *fsread.Query) { q.Base = e.Select("shard", "created_by") }, `it selects fields, but not "created"`},
	} {
		t.Run(name, func(t *testing.T) {
			q := good()
			c.change(&q)
			docs, errs := 0, []error(nil)
			w.reset()
			for doc, err := range q.Run(t.Context()) {
				if err != nil {
					errs = append(errs, err)
				}
				if doc != nil {
					docs++
				}
			}
			if len(errs) != 1 || docs != 0 || !strings.Contains(errs[0].Error(), c.want) {
				t.Errorf("%d documents and %v, want only an error with: %s", docs, errs, c.want)
			}
			if queries, _ := w.reset(); len(queries) != 0 {
				t.Errorf("%d queries were sent", len(queries))
			}
			if err := q.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate() = %v", err)
			}
		})
	}
	q := good()
	q.Base = e.Where("a", "==", nil).WhereEntity(firestore.AndFilter{Filters: []firestore.EntityFilter{
		firestore.PropertyFilter{Path: "b", Operator: "==", Value: 1}, firestore.PropertyFilter{Path: "c", Operator: "==", Value: 2}}}).Select("a", "created")
	if err := q.Validate(); err != nil {
		t.Errorf("equalities in every form, and a selection with the time: %v", err)
	}
}

func or(fields ...string) firestore.OrFilter {
	var f firestore.OrFilter
	for _, name := range fields {
		f.Filters = append(f.Filters, firestore.PropertyFilter{Path: name, Operator: "==", Value: 1})
	}
	return f
}

// TestEveryPageIsFiltered looks at what is sent: each page has the base's filter,
// the shards and the time, and each but the first of its shards a start.
func TestEveryPageIsFiltered(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	w.fill(t, 900)
	w.reset()
	q := fsread.Query{Base: w.Collection("events").Where("kind", "==", "view"), Shard: "shard", Values: shardread.Numbers(16), Time: "created",
		PerQuery: 8, Page: 20, Until: start.Add(time.Hour)}
	names(t, q.Run(t.Context()))
	queries, _ := w.reset()
	if len(queries) < 20 {
		t.Fatalf("only %d queries were sent", len(queries))
	}
	begun := map[string]bool{}
	for _, sent := range queries {
		var filters []string
		for _, f := range sent.Where.GetCompositeFilter().GetFilters() {
			ff := f.GetFieldFilter()
			filters = append(filters, fmt.Sprint(ff.Field.FieldPath, " ", ff.Op))
			if ff.Op == pb.StructuredQuery_FieldFilter_IN {
				key := fmt.Sprint(ff.Value)
				if begun[key] != (len(sent.StartAt.GetValues()) == 2) {
					t.Errorf("a page starts at %v, though pages of its shards were read before: %v", sent.StartAt, begun[key])
				}
				begun[key] = true
			}
		}
		want := []string{"kind EQUAL", "shard IN", "created GREATER_THAN_OR_EQUAL", "created LESS_THAN"}
		if !slices.Equal(filters, want) {
			t.Errorf("filters: got %v, want %v", filters, want)
		}
		if sent.Limit.GetValue() < 1 || sent.Limit.GetValue() > 20 || len(sent.OrderBy) != 2 {
			t.Errorf("limit %v, order %v", sent.Limit, sent.OrderBy)
		}
	}
	if len(begun) != 2 {
		t.Errorf("%d groups of shards, want 2", len(begun))
	}
}

// TestAFailedQueryEndsTheRun also holds that the service's own words, such as
// the link that creates a missing index, reach the caller.
func TestAFailedQueryEndsTheRun(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	w.fill(t, 900)
	want := single(t, w.Collection("events").Query, "created", firestore.Asc, 0)
	w.reset()
	w.fail = func(call int) error {
		if call > 3 {
			return status.Error(codes.FailedPrecondition, "The query requires an index. You can create it here: https://example")
		}
		return nil
	}
	q := fsread.Query{Base: w.Collection("events").Query, Shard: "shard", Values: shardread.Numbers(16), Time: "created", PerQuery: 8, Page: 50}
	var got []string
	var errs []error
	for doc, err := range q.Run(t.Context()) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		got = append(got, "events/"+doc.Ref.ID)
	}
	if len(errs) != 1 || status.Code(errs[0]) != codes.FailedPrecondition || !strings.Contains(errs[0].Error(), "create it here") {
		t.Errorf("got %v, want the service's error, once", errs)
	}
	if len(got) == 0 || !slices.Equal(got, want[:len(got)]) {
		t.Errorf("got %d documents before the error, want the first ones in order", len(got))
	}
}

func TestCancellation(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	w.fill(t, 900)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q := fsread.Query{Base: w.Collection("events").Query, Shard: "shard", Values: shardread.Numbers(16), Time: "created", PerQuery: 1, Page: 5}
	docs := 0
	var errs []error
	for _, err := range q.Run(ctx) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if docs++; docs == 100 {
			cancel()
		}
	}
	if docs != 100 || len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("%d documents and %v, want 100 and that it was cancelled", docs, errs)
	}
}
