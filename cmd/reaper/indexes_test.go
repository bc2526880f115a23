package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dpb "cloud.google.com/go/datastore/apiv1/datastorepb"
	fpb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/internal/indexcheck"
	"github.com/reaper-ttl/reaper/internal/indexes"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
)

// indexedTargets has one target for each way in which an index is used.
const indexedTargets = `targets:
- {name: keys, kind: Keys, shards: 2}
- {name: times, kind: Times, layout: timestamp, property: expires}
- {name: texts, kind: Texts, layout: sharded-timestamp, property: expires, shard_values: [x, y]}
- {name: numbers, kind: Numbers, layout: sharded-timestamp, property: at, shard_property: s, shard_values: [1, 2]}
`

const nativeTargets = indexedTargets + `- {name: nested, kind: users/u1/nested, shards: 2}
- {name: group, kind: group, group: true, shards: 2}
- {name: group-times, kind: group-times, group: true, layout: timestamp, property: expires}
- {name: group-shards, kind: group-shards, group: true, layout: sharded-timestamp, property: expires, shard_values: [x]}
`

// A recorder keeps what the drivers ask the services.
type recorder struct {
	faultrpc.Injector
}

// queries returns every query that was sent, in the words of package indexes.
func (r *recorder) queries(t *testing.T) []indexcheck.Query {
	t.Helper()
	var all []indexcheck.Query
	for _, c := range r.Calls("") {
		switch req := c.Req.(type) {
		case *dpb.RunQueryRequest:
			all = append(all, datastoreQuery(t, req.GetQuery()))
		case *dpb.RunAggregationQueryRequest:
			all = append(all, datastoreQuery(t, req.GetAggregationQuery().GetNestedQuery()))
		case *fpb.RunQueryRequest:
			all = append(all, firestoreQuery(t, req.GetStructuredQuery()))
		case *fpb.RunAggregationQueryRequest:
			all = append(all, firestoreQuery(t, req.GetStructuredAggregationQuery().GetStructuredQuery()))
		}
	}
	return all
}

// order adds the properties of inequalities that the query does not order by:
// the index must order by them anyway, and first.
func order(explicit, inequalities []string) []string {
	var all []string
	for _, p := range inequalities {
		if !slices.Contains(explicit, p) && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return append(all, explicit...)
}

func datastoreQuery(t *testing.T, q *dpb.Query) indexcheck.Query {
	t.Helper()
	out := indexcheck.Query{Scope: indexes.Collection}
	if len(q.GetKind()) > 0 {
		out.Collection = q.GetKind()[0].GetName()
	}
	var explicit, inequalities []string
	filters := []*dpb.Filter{q.GetFilter()}
	if c := q.GetFilter().GetCompositeFilter(); c != nil {
		filters = c.GetFilters()
	}
	for _, f := range filters {
		p := f.GetPropertyFilter()
		switch name := p.GetProperty().GetName(); {
		case p == nil || name == "__key__":
		case p.GetOp() == dpb.PropertyFilter_EQUAL:
			out.Equal = append(out.Equal, name)
		default:
			inequalities = append(inequalities, name)
		}
	}
	for _, o := range q.GetOrder() {
		if o.GetDirection() == dpb.PropertyOrder_DESCENDING {
			t.Errorf("a query in descending order: %v", q)
		}
		if o.GetProperty().GetName() != "__key__" {
			explicit = append(explicit, o.GetProperty().GetName())
		}
	}
	for _, p := range q.GetProjection() {
		if name := p.GetProperty().GetName(); name != "__key__" {
			inequalities = append(inequalities, name) // it must be in the index
		}
	}
	out.Order = order(explicit, inequalities)
	return out
}

func firestoreQuery(t *testing.T, q *fpb.StructuredQuery) indexcheck.Query {
	t.Helper()
	from := q.GetFrom()[0]
	out := indexcheck.Query{Collection: from.GetCollectionId(), Scope: indexes.Collection}
	if from.GetAllDescendants() {
		out.Scope = indexes.CollectionGroup
	}
	var explicit, inequalities []string
	filters := []*fpb.StructuredQuery_Filter{q.GetWhere()}
	if c := q.GetWhere().GetCompositeFilter(); c != nil {
		filters = c.GetFilters()
	}
	for _, f := range filters {
		switch {
		case f.GetUnaryFilter() != nil:
			inequalities = append(inequalities, f.GetUnaryFilter().GetField().GetFieldPath())
		case f.GetFieldFilter().GetOp() == fpb.StructuredQuery_FieldFilter_EQUAL:
			out.Equal = append(out.Equal, f.GetFieldFilter().GetField().GetFieldPath())
		case f.GetFieldFilter() != nil:
			inequalities = append(inequalities, f.GetFieldFilter().GetField().GetFieldPath())
		}
	}
	for _, o := range q.GetOrderBy() {
		if o.GetDirection() == fpb.StructuredQuery_DESCENDING {
			t.Errorf("a query in descending order: %v", q)
		}
		if o.GetField().GetFieldPath() != "__name__" {
			explicit = append(explicit, o.GetField().GetFieldPath())
		}
	}
	out.Order = order(explicit, inequalities)
	return out
}

// sweepAll fills every target and sweeps it in every way that sends queries of
// its own: from the start, from positions among ties, past the last shard, around
// all ranges; and asks for the status.
func sweepAll(t *testing.T, db interface {
	store.Store
	store.Writer
	store.Dumper
}, targets []config.Target) {
	t.Helper()
	now := time.Now()
	for _, target := range targets {
		st := sweepTarget(target)
		st.Page, st.Lease = 3, 2*time.Second // a claim that is cut off stands for a lease
		c := sweep.Config{Store: db, Targets: []sweep.Target{st}, Apply: true, Workers: 2, Grace: time.Second, Owner: "test",
			Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Progress: &sweep.Progress{Estimate: true}}
		rec, _, err := sweep.EnsureRecord(t.Context(), c, st)
		if err != nil {
			t.Fatalf("target %s: %v", target.Name, err)
		}
		w := layoutWriter{st, always(rec.Stamper())}
		var all []store.Entity
		for i := range 20 {
			e := store.Entity{Number: int64(i + 1)}
			at := now.Add(-time.Hour)
			if i == 0 {
				at = now.Add(time.Hour)
			}
			if err := w.write(&e, &at); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		if err := db.Put(t.Context(), st.Target, "", all); err != nil {
			t.Fatalf("target %s: %v", target.Name, err)
		}
		// One page, then a position in the middle of the tie.
		stopped, stop := context.WithCancel(t.Context())
		c.Store = stopping{db, stop}
		c.Targets[0].Breaker = breaker.Rules{} // it could not count in a store that only stops
		sweep.Run(stopped, c)
		c.Store, c.Targets[0].Breaker = db, st.Breaker
		if _, err := inspect.Status(t.Context(), c, st); err != nil {
			t.Fatalf("target %s: %v", target.Name, err)
		}
		c.Targets[0].Rewind = time.Nanosecond // every range is read from its start, too
		if res := sweep.Run(t.Context(), c); res.Failed() {
			t.Fatalf("target %s: %s", target.Name, res.Targets[0].Error)
		}
		left := 0
		for _, err := range db.Dump(t.Context(), st.Target, "") {
			if err != nil {
				t.Fatal(err)
			}
			left++
		}
		if left != 1 {
			t.Errorf("target %s: %d left", target.Name, left)
		}
	}
}

// A stopping store stops the sweep with its first write.
type stopping struct {
	store.Store
	stop context.CancelFunc
}

func (s stopping) Dispose(ctx context.Context, b *store.Batch) error {
	s.stop()
	return s.Store.Dispose(ctx, b)
}

func parseTargets(t *testing.T, text string, d config.Driver) (targets []config.Target, stored []store.Target) {
	t.Helper()
	targets, err := config.ParseTargets("test", strings.NewReader(text), d)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		stored = append(stored, target.StoreTarget())
	}
	return targets, stored
}

// printed returns the definitions that the printed file holds.
func printed(t *testing.T, defs indexes.Definitions) (back indexes.Definitions) {
	t.Helper()
	text, _, err := defs.JSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Indexes []struct {
			CollectionGroup string
			QueryScope      indexes.Scope
			Fields          []struct{ FieldPath, Order string }
		}
		FieldOverrides []struct {
			CollectionGroup, FieldPath string
			Indexes                    []struct {
				Order, ArrayConfig string
				QueryScope         indexes.Scope
			}
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, i := range file.Indexes {
		c := indexes.Composite{Collection: i.CollectionGroup, Scope: i.QueryScope}
		for _, f := range i.Fields {
			if f.Order != "ASCENDING" {
				t.Errorf("%s is in the order %q", f.FieldPath, f.Order)
			}
			c.Fields = append(c.Fields, f.FieldPath)
		}
		back.Composites = append(back.Composites, c)
	}
	for _, o := range file.FieldOverrides {
		f := indexes.Field{Collection: o.CollectionGroup, Path: o.FieldPath}
		for _, i := range o.Indexes {
			f.Singles = append(f.Singles, indexes.Single{Array: i.ArrayConfig != "", Descending: i.Order == "DESCENDING", Scope: i.QueryScope})
		}
		back.Fields = append(back.Fields, f)
	}
	return back
}

// The emulator runs any query without an index, and the services refuse it: every
// query that the drivers send must be served by what reaper indexes prints.
func TestDefinitionsServeEveryQuery(t *testing.T) {
	nightly.Races(t)
	check := func(t *testing.T, r *recorder, defs indexes.Definitions) {
		t.Helper()
		used := map[string]bool{}
		queries := r.queries(t)
		for _, q := range queries {
			if !indexcheck.Serves(defs, q) {
				t.Errorf("no definition serves %+v", q)
			}
			for i := range defs.Composites { // the checker bites: without this index it fails
				less := defs
				less.Composites = slices.Delete(slices.Clone(defs.Composites), i, i+1)
				if !indexcheck.Serves(less, q) {
					used[defs.Composites[i].Collection] = true
				}
			}
			for i, f := range defs.Fields {
				less := defs
				less.Fields = slices.Clone(defs.Fields)
				less.Fields[i].Singles = nil
				if !indexcheck.Serves(less, q) {
					used[f.Collection] = true
				}
			}
		}
		for _, c := range defs.Composites {
			if !used[c.Collection] {
				t.Errorf("nobody uses the index on %v of %s", c.Fields, c.Collection)
			}
		}
		for _, f := range defs.Fields {
			if len(f.Singles) > 0 && !used[f.Collection] {
				t.Errorf("nobody uses an index on %s of %s", f.Path, f.Collection)
			}
		}
		if len(queries) < 50 {
			t.Errorf("only %d queries were seen", len(queries))
		}
	}
	t.Run("datastore", func(t *testing.T) {
		e := emulator.Start(t, emulator.Datastore)
		r := &recorder{}
		db, err := datastore.Open(t.Context(), datastore.Options{Project: e.Project(t), Emulator: e.Host, Interceptors: []grpc.UnaryClientInterceptor{r.Intercept}})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		targets, stored := parseTargets(t, indexedTargets, config.Datastore)
		targets[0].Guard, targets[0].SingleValued = store.GuardQuery, true
		sweepAll(t, db, targets)
		check(t, r, indexes.ForDatastore(stored))
	})
	t.Run("firestore", func(t *testing.T) {
		e := emulator.Start(t, emulator.Native)
		r := &recorder{}
		db, err := firestore.Open(t.Context(), firestore.Options{Project: e.Project(t), Emulator: e.Host,
			Interceptors: []grpc.UnaryClientInterceptor{r.Intercept}, StreamInterceptors: []grpc.StreamClientInterceptor{r.InterceptStream}})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		targets, stored := parseTargets(t, nativeTargets, config.Firestore)
		sweepAll(t, db, targets)
		check(t, r, printed(t, indexes.ForFirestore(stored)))
	})
}

// A missing index names the target and the command that prints the definition.
func TestMissingIndexSaysWhatToDo(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	var faults faultrpc.Injector
	faults.Add(faultrpc.Fault{Method: "RunQuery", Times: -1, Code: codes.FailedPrecondition, Message: "The query requires an index. You can create it here: …",
		Match: func(req any) bool {
			return req.(*fpb.RunQueryRequest).GetStructuredQuery().GetFrom()[0].GetCollectionId() == "Texts"
		}})
	db, err := firestore.Open(t.Context(), firestore.Options{Project: e.Project(t), Emulator: e.Host, StreamInterceptors: []grpc.StreamClientInterceptor{faults.InterceptStream}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	targets, _ := parseTargets(t, indexedTargets, config.Firestore)
	res := sweep.Run(t.Context(), sweep.Config{Store: db, Targets: []sweep.Target{sweepTarget(targets[2])}, Workers: 2, Owner: "test", Now: time.Now,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	text := strings.Join(append(store.Hints(sweepError(res)), sweepError(res).Error()), "\n")
	for _, want := range []string{"texts", "requires an index", "reaper indexes"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in: %s", want, text)
		}
	}
}

func TestIndexesCommand(t *testing.T) {
	noRaces(t)
	b := newWorkdir(t, indexedTargets)
	b.env = []string{"FIRESTORE_EMULATOR_HOST=127.0.0.1:1"}
	whole := b.must(nil, "indexes", "--store", "firestore:my-project")
	if !strings.HasPrefix(whole.out, "{\n") || !strings.HasSuffix(whole.out, "}\n") || !strings.Contains(whole.log, "not counted as outside") {
		t.Errorf("%s\n%s", whole.out, whole.log)
	}
	b.write("there.json", whole.out)
	if again := b.must(nil, "indexes", "--format", "firestore", "--merge", "there.json"); again.out != whole.out {
		t.Errorf("merged with itself:\n%s", again.out)
	}
	if one := b.must(nil, "indexes", "--format", "firestore", "--target", "times"); strings.Contains(one.out, "Texts") || !strings.Contains(one.out, `"indexes": []`) {
		t.Errorf("of one target:\n%s", one.out)
	}
	yaml := b.must(nil, "indexes", "--store", "datastore:my-project")
	if !strings.Contains(yaml.out, "- kind: Numbers\n") {
		t.Errorf("index.yaml:\n%s", yaml.out)
	}
	b.write("index.yaml", yaml.out)
	if again := b.must(nil, "indexes", "--format", "datastore", "--merge", "index.yaml"); again.out != yaml.out {
		t.Errorf("merged with itself:\n%s", again.out)
	}
	if text := b.must(nil, "indexes", "--format", "gcloud", "--store", "firestore:my-project/second").out; !strings.Contains(text, " --project=my-project --database=second ") {
		t.Errorf("commands:\n%s", text)
	}
	b.write("broken.json", "{\n\n  oops")
	b.write("empty.json", "\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "no store and no format"},
		{[]string{"--store", "embedded:data"}, "makes its own indexes"},
		{[]string{"--format", "xml"}, `unknown format "xml"`},
		{[]string{"--format", "datastore", "--store", "firestore:my-project"}, "of the other mode"},
		{[]string{"--format", "gcloud", "--merge", "there.json"}, "--merge"},
		{[]string{"--format", "gcloud", "--store", "datastore:my-project"}, "index.yaml"},
		{[]string{"--format", "firestore", "--merge", "missing.json"}, "missing.json"},
		{[]string{"--format", "firestore", "--merge", "broken.json"}, "broken.json: "},
		{[]string{"--format", "firestore", "--merge", "broken.json"}, "line 3"},
		{[]string{"--format", "datastore", "--merge", "broken.json"}, "broken.json: "},
		{[]string{"--format", "firestore", "--merge", "empty.json"}, "empty.json is empty"},
		{[]string{"--format", "datastore", "--merge", "empty.json"}, "empty.json is empty"},
		{[]string{"--format", "firestore", "--target", "nobody"}, "no target is named"},
	} {
		if r := b.run(nil, append([]string{"indexes"}, c.args...)...); r.code != exitUsage || !strings.Contains(r.log, c.want) || r.out != "" {
			t.Errorf("%v: exit code %d, %s", c.args, r.code, r.log)
		}
	}
	if _, err := os.Stat(filepath.Join(b.dir, "data")); err == nil {
		t.Error("the command made a store")
	}
}
