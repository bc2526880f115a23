package firestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

var sessions = store.Target{Name: "sessions", Kind: "sessions", Property: "expires", Type: store.Instant}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func at(i int) store.Value { return store.InstantValue(noon.Add(time.Duration(i) * time.Second)) }

func everything(t store.Target) store.Query {
	return store.Query{Target: t, Lo: at(-1_000_000), Hi: at(1_000_000), Limit: store.MaxPage}
}

// A world is an empty database on the emulator, with faults on its calls.
type world struct {
	*DB
	t      *testing.T
	faults *faultrpc.Injector
}

// openAt opens a database at an emulator that may not exist.
func openAt(t *testing.T, project, host string) *world {
	t.Helper()
	w := &world{t: t, faults: new(faultrpc.Injector)}
	var err error
	w.DB, err = Open(t.Context(), Options{Project: project, Emulator: host, Interceptors: interceptors(w.faults), StreamInterceptors: streamInterceptors(w.faults)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	e := emulator.Start(t, emulator.Native)
	return openAt(t, e.Project(t), e.Host)
}

// row puts n documents that expire a second apart.
func (w *world) row(n int) []store.Entity {
	w.t.Helper()
	var all []store.Entity
	for i := range n {
		all = append(all, store.Entity{Name: fmt.Sprintf("s-%03d", i), Expiry: at(i), Data: []byte(`{"user":"u7"}`)})
	}
	w.put(sessions, all...)
	return all
}

func (w *world) put(t store.Target, all ...store.Entity) {
	w.t.Helper()
	if err := w.Put(w.t.Context(), t, "", all); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) batch(n int) *store.Batch {
	w.t.Helper()
	var page store.Page
	if err := w.Scan(w.t.Context(), everything(sessions), &page); err != nil || len(page.Entries) != n {
		w.t.Fatalf("scan: %d entries, not %d; %v", len(page.Entries), n, err)
	}
	b := &store.Batch{Query: everything(sessions)}
	for _, e := range page.Entries {
		b.Ops = append(b.Ops, store.Op{Entry: e})
	}
	return b
}

func (w *world) left(t store.Target) []string {
	w.t.Helper()
	var names []string
	for e, err := range w.Dump(w.t.Context(), t, "") {
		if err != nil {
			w.t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	return names
}

func outcomes(b *store.Batch) (all []store.Outcome) {
	for _, op := range b.Ops {
		all = append(all, op.Outcome)
	}
	return all
}

// Any change keeps a document, also of a field that nobody scans; the others of
// its batch go.
func TestDisposeLeavesWhatChanged(t *testing.T) {
	w := newWorld(t)
	put := w.row(6)
	b := w.batch(6)
	put[1].Expiry = at(5000)
	put[2].Data = []byte(`{"user":"u8"}`)
	put[3].Expiry = store.Value{}
	put[4].Expiry = store.TextValue("soon")
	w.put(sessions, put[1:5]...)
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c, d := store.Changed, store.Deleted
	if got := outcomes(b); !slices.Equal(got, []store.Outcome{d, c, c, c, c, d}) {
		t.Errorf("outcomes: %v", got)
	}
	for i, want := range []store.Value{{}, at(5000), at(2), {}, store.TextValue("soon"), {}} {
		if op := b.Ops[i]; op.Now != want || op.Known != (op.Outcome == c) {
			t.Errorf("op %d: now %+v, known %v, not %+v", i, op.Now, op.Known, want)
		}
	}
	if got := w.left(sessions); !slices.Equal(got, []string{"s-001", "s-002", "s-003", "s-004"}) {
		t.Errorf("left: %q", got)
	}
}

// Each write of a batch has a status of its own: successful writes keep their
// outcome if others fail. The caller gets push-back rather than another error, and hears of any write that
// may have taken effect.
func TestStatusesOfABatch(t *testing.T) {
	for _, c := range []struct {
		codes  []codes.Code
		want   error
		unsure bool
	}{
		{[]codes.Code{codes.OK, codes.Aborted, codes.OK}, store.ErrContention, false},
		{[]codes.Code{codes.Aborted, codes.OK, codes.Unavailable}, store.ErrContention, true},
		{[]codes.Code{codes.Unavailable, codes.OK, codes.ResourceExhausted}, store.ErrPushback, true},
		{[]codes.Code{codes.ResourceExhausted, codes.OK, codes.Aborted}, store.ErrPushback, false},
		{[]codes.Code{codes.OK, codes.OK, codes.PermissionDenied}, store.ErrDenied, false},
		{[]codes.Code{codes.OK, codes.Unknown, codes.OK}, store.ErrFailed, true},
		{[]codes.Code{codes.OK, codes.DeadlineExceeded, codes.OK}, store.ErrDeadline, true},
		{[]codes.Code{codes.OK, codes.OK}, store.ErrFailed, true}, // one is missing
	} {
		w := newWorld(t)
		w.row(3)
		b := w.batch(3)
		w.faults.Add(faultrpc.Fault{Method: "BatchWrite", Instead: true, Hook: func(_ context.Context, _, reply any) {
			for _, code := range c.codes {
				reply.(*pb.BatchWriteResponse).Status = append(reply.(*pb.BatchWriteResponse).Status, &statuspb.Status{Code: int32(code), Message: "now"})
			}
		}})
		meter := new(store.Meter)
		err := w.Dispose(store.WithMeter(t.Context(), meter), b)
		if !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.codes, err, c.want)
		}
		if store.MayHaveHappened(err) != c.unsure {
			t.Errorf("%v: may have happened: %t", c.codes, !c.unsure)
		}
		if n := strings.Count(fmt.Sprint(err), c.want.Error()); n != 1 {
			t.Errorf("%v: the error says %d times what it is: %v", c.codes, n, err)
		}
		deleted := 0
		for i, code := range c.codes {
			want := store.Unknown
			if code == codes.OK && len(c.codes) == 3 {
				want = store.Deleted
				deleted++
			}
			if b.Ops[i].Outcome != want {
				t.Errorf("%v: op %d is %d, not %d", c.codes, i, b.Ops[i].Outcome, want)
			}
		}
		if o := meter.Operations(); o.Deletes != int64(deleted) {
			t.Errorf("%v: billed %+v", c.codes, o)
		}
	}
}

// After a lost reply nobody knows; the repeated batch finds all gone, and what
// was carried carried.
func TestLostReplies(t *testing.T) {
	w := newWorld(t)
	w.row(4)
	b := w.batch(4)
	b.Ops[2].To, b.Ops[3].To = at(9000), at(9001)
	w.faults.Add(faultrpc.Fault{Method: "BatchWrite", After: true, Code: codes.Unavailable, Message: "connection reset"})
	if err := w.Dispose(t.Context(), b); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("dispose: %v", err)
	}
	if got := outcomes(b); !slices.Equal(got, slices.Repeat([]store.Outcome{store.Unknown}, 4)) {
		t.Errorf("outcomes after a lost reply: %v", got)
	}
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := outcomes(b); !slices.Equal(got, []store.Outcome{store.Gone, store.Gone, store.Carried, store.Carried}) {
		t.Errorf("outcomes of the second try: %v", got)
	}
	// Deleted and created again with the same expiry: that is another document.
	w = newWorld(t)
	put := w.row(1)
	b = w.batch(1)
	w.faults.Add(faultrpc.Fault{Method: "BatchWrite", After: true, Code: codes.Unavailable})
	_ = w.Dispose(t.Context(), b)
	w.put(sessions, put...)
	if err := w.Dispose(t.Context(), b); err != nil || b.Ops[0].Outcome != store.Changed {
		t.Errorf("created again: %d, %v", b.Ops[0].Outcome, err)
	}

	r := store.Record{Sort: store.CursorRecord, Key: "c", Target: "sessions", Revision: "1-a", Fields: store.Fields{"n": int64(1)}}
	for _, prev := range []string{"", "1-a"} {
		if prev != "" {
			r.Revision = "2-b"
		}
		w.faults.Add(faultrpc.Fault{Method: "Commit", After: true, Code: codes.Unavailable})
		if err := w.Save(t.Context(), r, prev); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("save from %q with a lost reply: %v", prev, err)
		}
		if err := w.Save(t.Context(), r, prev); err != nil {
			t.Errorf("the same save from %q again: %v", prev, err)
		}
	}
}

// A document that is written between the read and the write of Settle is left
// alone, and the caller asked to try again.
func TestSettleMeetsAChange(t *testing.T) {
	w := newWorld(t)
	put := w.row(1)
	entry := w.batch(1).Ops[0].Entry
	put[0].Expiry = at(9000)
	w.faults.Add(faultrpc.Fault{Method: "Commit", Hook: func(context.Context, any, any) { w.put(sessions, put[0]) }})
	_, err := w.Settle(t.Context(), everything(sessions), entry, func(store.Value) store.Verdict { return store.Delete })
	if !errors.Is(err, store.ErrContention) || len(w.left(sessions)) != 1 {
		t.Errorf("settle: %v; left %q", err, w.left(sessions))
	}
}

// A scan says when each document was last written.
func TestScanSaysWhenItWasWritten(t *testing.T) {
	w := newWorld(t)
	w.row(1)
	if at := w.batch(1).Ops[0].Entry.Written; time.Since(at) > time.Hour || time.Until(at) > time.Hour {
		t.Errorf("written at %v", at)
	}
}

// A filter that is lost would let everything be deleted: every query of a scan
// carries both bounds and the order, whatever the names and values.
func TestEveryScanIsBounded(t *testing.T) {
	w := newWorld(t)
	for i, property := range []string{"expires", "expiry-key", "ünï", "with space", "0", `back\slash`, "quo`te"} {
		target := store.Target{Kind: fmt.Sprintf("k%d", i), Property: property, Type: store.Instant, Group: i%2 == 1}
		if i%3 == 0 {
			target.ShardProperty = "shard " + property
		}
		w.put(target, store.Entity{Name: "due", Expiry: at(0), Shard: shardOf(target)}, store.Entity{Name: "later", Expiry: at(50), Shard: shardOf(target)})
		for _, after := range []store.Position{{}, {Value: at(-3)}, {Value: at(-3), Key: target.Kind + "/x"}} {
			w.faults.Reset()
			q := store.Query{Target: target, Shard: shardOf(target), Lo: at(-5), Hi: at(5), After: after, Limit: 10}
			var page store.Page
			if err := w.Scan(t.Context(), q, &page); err != nil || len(page.Entries) != 1 || page.Entries[0].Key != target.Kind+"/due" {
				t.Errorf("%s after %v: %+v, %v", property, after, page.Entries, err)
			}
			calls := w.faults.Calls("RunQuery")
			if len(calls) != 1 {
				t.Fatalf("%d queries", len(calls))
			}
			sent := calls[0].Req.(*pb.RunQueryRequest).GetStructuredQuery()
			filters := sent.GetWhere().GetCompositeFilter().GetFilters()
			want := 2
			if target.ShardProperty != "" {
				want = 3
			}
			if len(filters) != want || len(sent.GetOrderBy()) != 2 || sent.GetLimit().GetValue() != 10 {
				t.Errorf("%s: the query is %v", property, sent)
			}
		}
	}
	for what, q := range map[string]store.Query{
		"no bounds":            {Target: sessions, Limit: 1},
		"a bound of text":      {Target: sessions, Lo: store.TextValue("a"), Hi: at(5), Limit: 1},
		"a number for a bound": {Target: sessions, Lo: store.IntegerValue(3), Hi: at(5), Limit: 1},
		"no limit":             {Target: sessions, Lo: at(0), Hi: at(5)},
		"a namespace":          {Target: sessions, Namespace: "x", Lo: at(0), Hi: at(5), Limit: 1},
		"a document's path":    {Target: store.Target{Kind: "a/b", Property: "p", Type: store.Instant}, Lo: at(0), Hi: at(5), Limit: 1},
		"a group's path":       {Target: store.Target{Kind: "a/b/c", Group: true, Property: "p", Type: store.Instant}, Lo: at(0), Hi: at(5), Limit: 1},
		"no shard":             {Target: store.Target{Kind: "a", Property: "p", ShardProperty: "s", Type: store.Instant}, Lo: at(0), Hi: at(5), Limit: 1},
	} {
		if err := w.Scan(t.Context(), q, new(store.Page)); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("a scan with %s: %v", what, err)
		}
	}
}

func shardOf(t store.Target) store.Value {
	if t.ShardProperty == "" {
		return store.Value{}
	}
	return store.TextValue("x")
}

// A collection is not its namesakes elsewhere, and a group is all of them.
func TestPathsAndGroups(t *testing.T) {
	w := newWorld(t)
	root := store.Target{Kind: "items", Property: "expires", Type: store.Instant}
	nested := store.Target{Kind: "users/u1/items", Property: "expires", Type: store.Instant}
	group := root
	group.Group = true
	w.put(root, store.Entity{Name: "a", Expiry: at(0)})
	w.put(nested, store.Entity{Name: "b", Expiry: at(1)})
	w.put(group, store.Entity{Name: "c", Parent: "users/u2", Expiry: at(2)}, store.Entity{Name: "d", Parent: "users/u2/more/m", Expiry: at(3)})
	for _, c := range []struct {
		target store.Target
		want   string
	}{
		{root, "items/a"},
		{nested, "users/u1/items/b"},
		{group, "items/a users/u1/items/b users/u2/items/c users/u2/more/m/items/d"},
	} {
		var page store.Page
		if err := w.Scan(t.Context(), everything(c.target), &page); err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		if got := strings.Join(keys, " "); got != c.want {
			t.Errorf("%+v: %s, not %s", c.target, got, c.want)
		}
		if n, err := w.Count(t.Context(), c.target, "", store.Span{}, 0); err != nil || n != int64(len(keys)) {
			t.Errorf("%+v: counted %d, %v", c.target, n, err)
		}
	}
	for e, err := range w.Dump(t.Context(), group, "") {
		if err != nil || e.Name == "d" && e.Parent != "users/u2/more/m" {
			t.Errorf("dump: %+v, %v", e, err)
		}
	}
	for what, e := range map[string]store.Entity{
		"a parent that is a collection": {Name: "x", Parent: "users"},
		"an empty segment":              {Name: "x", Parent: "users/"},
		"a slash in its id":             {Name: "x/y"},
		"a reserved id":                 {Name: "__x__"},
		"a long expiry":                 {Name: "x", Expiry: store.TextValue(strings.Repeat("x", 1501))},
	} {
		if err := w.Put(t.Context(), group, "", []store.Entity{e}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("put with %s: %v", what, err)
		}
	}
}

// TestErrorTable sends real codes through the client: each must come out as one
// sentinel, after exactly one call.
func TestErrorTable(t *testing.T) {
	w := openAt(t, "p", "127.0.0.1:1") // nothing gets that far, but for streams, which fail by themselves
	ref := version{}
	calls := map[string]func() error{
		"Commit": func() error { return w.Put(t.Context(), sessions, "", []store.Entity{{Name: "a", Expiry: at(0)}}) },
		"BatchWrite": func() error {
			return w.Dispose(t.Context(), &store.Batch{Query: everything(sessions), Ops: []store.Op{{Entry: store.Entry{Key: "sessions/a", Ref: ref}}}})
		},
	}
	live := newWorld(t)
	streams := map[string]func() error{
		"RunQuery":            func() error { return live.Scan(t.Context(), everything(sessions), new(store.Page)) },
		"RunAggregationQuery": func() error { _, err := live.Count(t.Context(), sessions, "", store.Span{}, 0); return err },
		"BatchGetDocuments": func() error {
			_, err := live.Load(t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "x", Keys: []string{"x"}})
			return err
		},
	}
	for _, c := range []struct {
		code    codes.Code
		message string
		want    error
	}{
		{codes.ResourceExhausted, "Quota exceeded.", store.ErrPushback},
		{codes.Unavailable, "The service is currently unavailable.", store.ErrUnavailable},
		{codes.Aborted, "Too much contention on these documents.", store.ErrContention},
		{codes.DeadlineExceeded, "The operation timed out.", store.ErrDeadline},
		{codes.PermissionDenied, "Missing or insufficient permissions.", store.ErrDenied},
		{codes.NotFound, "The database (default) does not exist for project p.", store.ErrNotFound},
		{codes.FailedPrecondition, "The Cloud Firestore API is not available for Firestore in Datastore Mode database.", store.ErrNotFound},
		{codes.FailedPrecondition, "The query requires an index. You can create it here: https://console.firebase.google.com/…", store.ErrMissingIndex},
		{codes.InvalidArgument, "Request payload size exceeds the limit: 10485760 bytes.", store.ErrTooLarge},
		{codes.InvalidArgument, "bad", store.ErrInvalid},
		{codes.DataLoss, "?", store.ErrFailed},
	} {
		check := func(w *world, method string, do func() error) {
			w.faults.Reset()
			w.faults.Add(faultrpc.Fault{Method: method, Code: c.code, Message: c.message, Times: -1})
			err := do()
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.message) || !strings.Contains(fmt.Sprint(err), w.Endpoint()) {
				t.Errorf("%s: %v %q becomes %v", method, c.code, c.message, err)
			}
			if status.Code(err) != c.code {
				t.Errorf("%s: the code %v is lost in %v", method, c.code, err)
			}
			if n := len(w.faults.Calls(method)); n != 1 {
				t.Errorf("%s: %d calls after %v, want 1: somebody retries", method, n, c.code)
			}
		}
		for method, do := range calls {
			check(w, method, do)
		}
		for method, do := range streams {
			check(live, method, do)
		}
	}
	if err := w.Scan(t.Context(), everything(sessions), new(store.Page)); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a scan at a closed port: %v", err)
	}
}

// A carry changes one field of a document with every type of field, and nothing
// else.
func TestCarryKeepsEveryType(t *testing.T) {
	w := newWorld(t)
	fields := everyType(w.name("sessions/other"))
	fields["expires"] = toValue(at(0))
	doc := &pb.Document{Name: w.name("sessions/all"), Fields: fields}
	if _, err := w.commit(t.Context(), []*pb.Write{{Operation: &pb.Write_Update{Update: doc}}}); err != nil {
		t.Fatal(err)
	}
	b := w.batch(1)
	b.Ops[0].To = at(7)
	if err := w.Dispose(t.Context(), b); err != nil || b.Ops[0].Outcome != store.Carried {
		t.Fatalf("carry: %d, %v", b.Ops[0].Outcome, err)
	}
	fields["expires"] = toValue(at(7))
	err := w.get(t.Context(), []string{doc.Name}, nil, func(_ string, got *pb.Document, _ *pb.BatchGetDocumentsResponse) {
		for name, want := range fields {
			if !proto.Equal(got.GetFields()[name], want) {
				t.Errorf("field %s is %v, not %v", name, got.GetFields()[name], want)
			}
		}
		if len(got.GetFields()) != len(fields) {
			t.Errorf("%d fields, not %d", len(got.GetFields()), len(fields))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range w.Dump(t.Context(), sessions, "") {
		if err != nil || !strings.Contains(string(e.Data), `"nan":"NaN"`) || !strings.Contains(string(e.Data), `"whole":3.0`) {
			t.Errorf("dump: %s, %v", e.Data, err)
		}
	}
}

// A record that another process writes between the read and the write of Save,
// or after this process has seen it, is left as it is.
func TestSaveMeetsAnotherProcess(t *testing.T) {
	for _, knows := range []bool{true, false} {
		w := newWorld(t)
		other := &world{DB: &DB{client: w.client, project: w.project, database: w.database, endpoint: w.endpoint, emulated: w.emulated}, t: t}
		r := store.Record{Sort: store.CursorRecord, Key: "c", Target: "sessions", Revision: "1-a", Fields: store.Fields{"n": int64(1)}}
		if err := w.Save(t.Context(), r, ""); err != nil {
			t.Fatal(err)
		}
		if !knows {
			w.known.Clear()
		}
		theirs, ours := r, r
		theirs.Revision, ours.Revision = "2-theirs", "2-ours"
		w.faults.Add(faultrpc.Fault{Method: "Commit", Hook: func(context.Context, any, any) {
			if err := other.Save(t.Context(), theirs, "1-a"); err != nil {
				t.Error(err)
			}
		}})
		err := store.Retry(t.Context(), time.Minute, func() error { return w.Save(t.Context(), ours, "1-a") })
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("knows %v: %v, want ErrConflict", knows, err)
		}
		if got, err := w.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"}); err != nil || len(got.List) != 1 || got.List[0].Revision != theirs.Revision {
			t.Errorf("knows %v: %+v, %v", knows, got.List, err)
		}
	}
}
