package firestore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

func (w *world) dump(t store.Target) []store.Entity {
	w.t.Helper()
	var all []store.Entity
	for e, err := range w.Dump(w.t.Context(), t, "") {
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func TestPutAndDump(t *testing.T) {
	w := newWorld(t)
	sharded := sessions
	sharded.ShardProperty = "shard"
	data := `{"a":"x<y>&","arr":[1,"b",null,{"c":true}],"big":9223372036854775807,"f":1.5,"huge":1e+300,"long":"` + strings.Repeat("x", 3000) +
		`","n":null,"nested":{"deep":{"é":-1},"list":[{"in":[2]}]},"whole":2.0,"with .dots":1}`
	want := []store.Entity{
		{Number: 3, Expiry: store.TextValue("e"), Shard: store.IntegerValue(-4), Data: []byte(`{}`)},
		{Number: 1 << 60, Shard: store.TextValue("s1"), Data: []byte(data)},
		{Name: "#odd", Expiry: at(5), Data: []byte(`{"k":1}`)},
		{Name: "list", Expiry: store.Value{Type: store.List, Text: `["a",7]`}, Data: []byte(`{}`)},
		{Name: "map", Expiry: store.Value{Type: store.Other, Text: `{"a":7}`}, Data: []byte(`{}`)},
		{Name: "number", Expiry: store.Value{Type: store.Other, Text: `7`}, Data: []byte(`{}`)},
	}
	scrambled := slices.Clone(want)
	slices.Reverse(scrambled)
	w.put(sharded, scrambled...)
	if got := w.dump(sharded); !reflect.DeepEqual(got, want) {
		t.Errorf("dumped\n%+v\nwant\n%+v", got, want)
	}
	// A shard of another type is no shard: it stays in the data.
	fields := map[string]*pb.Value{"shard": {ValueType: &pb.Value_BooleanValue{BooleanValue: true}}}
	doc := &pb.Document{Name: w.name("sessions/zz"), Fields: fields}
	if _, err := w.commit(t.Context(), []*pb.Write{{Operation: &pb.Write_Update{Update: doc}}}); err != nil {
		t.Fatal(err)
	}
	all := w.dump(sharded)
	if last := all[len(all)-1]; string(last.Data) != `{"shard":true}` || last.Shard != (store.Value{}) {
		t.Errorf("a shard of another type: %+v", last)
	}
}

func TestPutRefuses(t *testing.T) {
	w := newWorld(t)
	for what, es := range map[string][]store.Entity{
		"twice":              {{Name: "a"}, {Name: "b"}, {Name: "a"}},
		"no name":            {{}},
		"a negative number":  {{Number: -1}},
		"a numeric name":     {{Name: "__id7__"}},
		"a dot":              {{Name: "."}},
		"two dots":           {{Name: ".."}},
		"a long name":        {{Name: strings.Repeat("ü", 751)}},
		"bytes":              {{Name: "\xff"}},
		"a parent":           {{Name: "a", Parent: "users/u1"}},
		"a shard":            {{Name: "a", Shard: store.TextValue("x")}},
		"data of no object":  {{Name: "a", Data: []byte(`[1]`)}},
		"broken data":        {{Name: "a", Data: []byte(`{"a":`)}},
		"two objects":        {{Name: "a", Data: []byte(`{} {}`)}},
		"an infinite number": {{Name: "a", Data: []byte(`{"a":1e999}`)}},
		"nested arrays":      {{Name: "a", Data: []byte(`{"a":[[1]]}`)}},
		"a reserved field":   {{Name: "a", Data: []byte(`{"a":{"__key__":1}}`)}},
		"the expiry in data": {{Name: "a", Data: []byte(`{"expires":"x"}`)}},
		"a long expiry":      {{Name: "b"}, {Name: "a", Expiry: store.TextValue(strings.Repeat("x", 1501))}},
		"an expiry of bytes": {{Name: "a", Expiry: store.TextValue("\xff")}},
	} {
		if err := w.Put(t.Context(), sessions, "", es); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if err := w.Put(t.Context(), sessions, "tenant", []store.Entity{{Name: "a"}}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a namespace: %v, want ErrInvalid", err)
	}
	if err := w.Put(t.Context(), sessions, "", make([]store.Entity, 501)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("501 documents: %v, want ErrTooLarge", err)
	}
	if calls := w.faults.Methods(); len(calls) != 0 {
		t.Errorf("refused puts were sent: %v", calls)
	}
	w.put(sessions, store.Entity{Name: strings.Repeat("ü", 750), Expiry: store.TextValue(strings.Repeat("x", 1500))})
	if left := w.left(sessions); len(left) != 1 {
		t.Errorf("at the limits: left %q", left)
	}
}

// Ids and texts as long as they may be and of any character survive the whole
// way: scan, resumption, refused write, second look, settling.
func TestOddIDs(t *testing.T) {
	w := newWorld(t)
	texts := sessions
	texts.Type = store.Text
	odd := []string{" ", `"`, "'", "`", `\`, "%", "%2F", "%%", "a.b", "...", "__", "__x", "x__", "#1", "id7", "ü", "😀", "\x00", "\n", "*", "[0]", "~", "(default)", strings.Repeat("é", 750)}
	var put []store.Entity
	for i, id := range odd {
		put = append(put, store.Entity{Name: id, Expiry: store.TextValue(fmt.Sprintf("k%02d %.10q", i, id))})
	}
	put[20].Expiry.Text = "k20 " + strings.Repeat("x", 1496)
	w.put(texts, put...)
	q := store.Query{Target: texts, Lo: store.TextValue("k"), Hi: store.TextValue("l"), Limit: 1}
	b := &store.Batch{Query: q}
	for i := range odd {
		var page store.Page
		if err := w.Scan(t.Context(), q, &page); err != nil || len(page.Entries) != 1 || page.Entries[0].Key != "sessions/"+odd[i] {
			t.Fatalf("entry %d: %+v, %v, want %q", i, page.Entries, err, odd[i])
		}
		q.After = page.Entries[0].Position()
		b.Ops = append(b.Ops, store.Op{Entry: page.Entries[0]})
	}
	for i := range put {
		put[i].Data = []byte(`{"touched":true}`)
	}
	w.put(texts, put...)
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i, o := range b.Ops {
		if o.Outcome != store.Changed || o.Now != put[i].Expiry {
			t.Errorf("%.20q is %d, now %+v", odd[i], o.Outcome, o.Now)
		}
		if got, err := w.Settle(t.Context(), q, o.Entry, func(store.Value) store.Verdict { return store.Delete }); err != nil || got != store.Deleted {
			t.Errorf("settling %.20q: %d, %v", odd[i], got, err)
		}
	}
	if left := w.left(texts); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// A full batch goes in one call, whatever its documents have become.
func TestFullBatch(t *testing.T) {
	w := newWorld(t)
	put := w.row(store.MaxPage)
	b := w.batch(store.MaxPage)
	var changed []store.Entity
	for i := range put {
		switch i % 4 {
		case 1:
			b.Ops[i].To = at(100_000 + i)
		case 2:
			put[i].Expiry = at(50_000 + i)
			changed = append(changed, put[i])
		}
	}
	gone := &store.Batch{Query: b.Query, Ops: slices.Clone(b.Ops[3:4])}
	if err := w.Dispose(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	w.put(sessions, changed...)
	w.faults.Reset()
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	want := []store.Outcome{store.Deleted, store.Carried, store.Changed, store.Deleted}
	for i, o := range b.Ops {
		if expect := want[i%4]; o.Outcome != expect && !(i == 3 && o.Outcome == store.Gone) {
			t.Errorf("op %d is %d, not %d", i, o.Outcome, expect)
		}
	}
	if b.Ops[3].Outcome != store.Gone {
		t.Errorf("what had gone is %d", b.Ops[3].Outcome)
	}
	if calls := w.faults.Methods(); !slices.Equal(calls, []string{"BatchWrite", "BatchGetDocuments"}) {
		t.Errorf("calls: %v", calls)
	}
	if left := w.left(sessions); len(left) != store.MaxPage/2 {
		t.Errorf("%d are left", len(left))
	}
	b.Ops = append(b.Ops, b.Ops[0])
	if err := w.Dispose(t.Context(), b); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("501 ops: %v, want ErrTooLarge", err)
	}
}

// What is no entry of a scan is refused before anything is sent, and what stands
// in a batch twice is written once.
func TestDisposeRefuses(t *testing.T) {
	w := newWorld(t)
	w.row(2)
	b := w.batch(2)
	b.Ops[1].Entry.Ref = nil
	w.faults.Reset()
	if err := w.Dispose(t.Context(), b); !errors.Is(err, store.ErrInvalid) || len(w.faults.Methods()) != 0 {
		t.Errorf("without an update time: %v after %v", err, w.faults.Methods())
	}
	b.Ops[1] = b.Ops[0]
	if err := w.Dispose(t.Context(), b); err != nil || !slices.Equal(outcomes(b), []store.Outcome{store.Deleted, store.Changed}) {
		t.Errorf("twice: %v, %v", outcomes(b), err)
	}
}

func TestDumpOfMany(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		var part []store.Entity
		for n := range dumpPage {
			part = append(part, store.Entity{Name: fmt.Sprintf("s%04d", i*dumpPage+n)})
		}
		w.put(sessions, part...)
	}
	if left := w.left(sessions); len(left) != 3*dumpPage || !slices.IsSorted(left) || len(slices.Compact(left)) != 3*dumpPage {
		t.Errorf("dumped %d of %d, or in disorder", len(left), 3*dumpPage)
	}
	w.faults.Add(faultrpc.Fault{Method: "RunQuery", Skip: 1, Code: codes.ResourceExhausted, Message: "quota", Times: -1})
	n := 0
	for _, err := range w.Dump(t.Context(), sessions, "") {
		if n++; err != nil && (!errors.Is(err, store.ErrPushback) || n != dumpPage+1) {
			t.Errorf("entity %d: %v, want ErrPushback after a page", n, err)
		}
	}
}

// Counts reach across types in the service's order of them, and null is in none.
func TestCount(t *testing.T) {
	w := newWorld(t)
	var writes []*pb.Write
	for id, v := range everyType(w.name("sessions/x")) {
		doc := &pb.Document{Name: w.name("sessions/" + id), Fields: map[string]*pb.Value{"expires": v}}
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: doc}})
	}
	writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{Name: w.name("sessions/without")}}})
	if _, err := w.commit(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	// null, booleans, NaN and numbers, instants, texts, bytes, references,
	// points, arrays, maps
	for _, c := range []struct {
		s    store.Span
		want int64
	}{
		{store.Span{}, 13},
		{store.Span{To: store.Point{Value: at(-5)}}, 6},
		{store.Span{To: store.Point{Value: at(-5), After: true}}, 7},
		{store.Span{From: store.Point{Value: at(-5)}}, 7},
		{store.Span{From: store.Point{Value: at(-5), After: true}}, 6},
		{store.Span{From: store.Point{Value: at(-6)}, To: store.Point{Value: at(-4)}}, 1},
		{store.Between("", "a"), 7},
		{store.Between("a", ""), 6},
		{store.Between("a", "b"), 0},
	} {
		if n, err := w.Count(t.Context(), sessions, "", c.s, 0); err != nil || n != c.want {
			t.Errorf("Count(%+v) = %d, %v, want %d", c.s, n, err, c.want)
		}
	}
	if _, err := w.Count(t.Context(), sessions, "tenant", store.Span{}, 0); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a count in a namespace: %v", err)
	}
}

func TestBilling(t *testing.T) {
	w := newWorld(t)
	bill := func(what string, want store.Operations, do func(context.Context) error) {
		t.Helper()
		var m store.Meter
		if err := do(store.WithMeter(t.Context(), &m)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := m.Operations(); got != want {
			t.Errorf("%s: billed %+v, want %+v", what, got, want)
		}
	}
	scan := func(q store.Query) func(context.Context) error {
		return func(ctx context.Context) error { return w.Scan(ctx, q, new(store.Page)) }
	}
	count := func(t store.Target, upTo int64) func(context.Context) error {
		return func(ctx context.Context) error { _, err := w.Count(ctx, t, "", store.Span{}, upTo); return err }
	}
	other := sessions
	other.Kind = "others"
	bill("scan of nothing", store.Operations{Reads: 1}, scan(everything(sessions)))
	var put []store.Entity
	for part := range 3 {
		put = nil
		for i := range 400 {
			put = append(put, store.Entity{Name: fmt.Sprintf("s%d-%03d", part, i), Expiry: at(part)})
		}
		bill("put", store.Operations{Writes: 400}, func(ctx context.Context) error { return w.Put(ctx, sessions, "", put) })
	}
	bill("count", store.Operations{Reads: 2}, count(sessions, 0))
	bill("count up to a thousand", store.Operations{Reads: 1}, count(sessions, 1000))
	bill("count of nothing", store.Operations{Reads: 1}, count(other, 0))
	bill("holds", store.Operations{Reads: 1}, func(ctx context.Context) error { _, err := w.Holds(ctx, sessions, ""); return err })
	q := everything(sessions)
	q.Limit = 10
	bill("scan", store.Operations{Reads: 10}, scan(q))
	var page store.Page
	if err := w.Scan(t.Context(), q, &page); err != nil {
		t.Fatal(err)
	}
	b := &store.Batch{Query: q}
	for _, e := range page.Entries {
		b.Ops = append(b.Ops, store.Op{Entry: e})
	}
	b.Ops[2].To = at(77)
	w.put(sessions, store.Entity{Name: "s0-004", Expiry: at(5)})
	dry := *b
	dry.DryRun = true
	bill("dry run", store.Operations{Reads: 10}, func(ctx context.Context) error { return w.Dispose(ctx, &dry) })
	bill("dispose", store.Operations{Reads: 1, Deletes: 8, Writes: 1}, func(ctx context.Context) error { return w.Dispose(ctx, b) })
	bill("settle", store.Operations{Reads: 1, Deletes: 1}, func(ctx context.Context) error {
		_, err := w.Settle(ctx, q, b.Ops[4].Entry, func(store.Value) store.Verdict { return store.Delete })
		return err
	})
	r := store.Record{Sort: store.CursorRecord, Key: "k", Target: "t", Revision: "1-a", Fields: store.Fields{"nan": math.Inf(1)}}
	bill("creation of a record", store.Operations{Writes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "") })
	r.Revision = "2-a"
	bill("save of what is known", store.Operations{Writes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "1-a") })
	w.known.Clear()
	r.Revision = "3-a"
	bill("save of what is not", store.Operations{Reads: 1, Writes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "2-a") })
	bill("load", store.Operations{Reads: 1}, func(ctx context.Context) error {
		_, err := w.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: "t"})
		return err
	})
	r.Fields = nil
	bill("removal", store.Operations{Deletes: 1}, func(ctx context.Context) error { return w.Save(ctx, r, "3-a") })
}

// Streams hold goroutines until their context ends: each must have ended when
// its call returns, also where the call failed half way or the caller left.
func TestNoStreamOutlivesItsCall(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	var mu sync.Mutex
	var streams []context.Context
	db, err := Open(t.Context(), Options{Project: e.Project(t), Emulator: e.Host, StreamInterceptors: []grpc.StreamClientInterceptor{
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			mu.Lock()
			streams = append(streams, ctx)
			mu.Unlock()
			return next(ctx, desc, cc, method, opts...)
		}}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var put []store.Entity
	for i := range store.MaxPage {
		put = append(put, store.Entity{Name: fmt.Sprint(i), Expiry: at(i)})
	}
	if err := db.Put(t.Context(), sessions, "", put); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	stop := errors.New("stop")
	parent, query, err := db.page(everything(sessions))
	if err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"scan":  func() error { return db.Scan(ctx, everything(sessions), new(store.Page)) },
		"count": func() error { _, err := db.Count(ctx, sessions, "", store.Span{}, 0); return err },
		"load": func() error {
			_, err := db.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: "x", Keys: []string{"x"}})
			return err
		},
		"dump": func() error {
			for _, err := range db.Dump(ctx, sessions, "") {
				return err
			}
			return nil
		},
		"query that is left": func() error {
			if err := db.query(ctx, parent, query, func(*pb.RunQueryResponse) error { return stop }); !errors.Is(err, stop) {
				return fmt.Errorf("%w, not %w", err, stop)
			}
			return nil
		},
	} {
		streams = nil
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if len(streams) == 0 {
			t.Errorf("%s: no stream was opened", what)
		}
		for _, s := range streams {
			if s.Err() == nil {
				t.Errorf("%s: its stream lives on", what)
			}
		}
	}
}

// A call whose context is done fails with the context's error and writes nothing.
func TestCancelled(t *testing.T) {
	w := newWorld(t)
	w.row(3)
	b := w.batch(3)
	entry := b.Ops[0].Entry
	r := store.Record{Sort: store.CursorRecord, Key: "k", Target: "t", Revision: "1-a", Fields: store.Fields{}}
	calls := map[string]func(context.Context) error{
		"scan":    func(ctx context.Context) error { return w.Scan(ctx, everything(sessions), new(store.Page)) },
		"dispose": func(ctx context.Context) error { return w.Dispose(ctx, b) },
		"settle": func(ctx context.Context) error {
			_, err := w.Settle(ctx, everything(sessions), entry, func(store.Value) store.Verdict { return store.Delete })
			return err
		},
		"put":  func(ctx context.Context) error { return w.Put(ctx, sessions, "", []store.Entity{{Name: "new"}}) },
		"save": func(ctx context.Context) error { return w.Save(ctx, r, "") },
		"load": func(ctx context.Context) error {
			_, err := w.Load(ctx, store.RecordQuery{Sort: store.CursorRecord, Target: "t"})
			return err
		},
		"count": func(ctx context.Context) error { _, err := w.Count(ctx, sessions, "", store.Span{}, 0); return err },
		"holds": func(ctx context.Context) error { _, err := w.Holds(ctx, sessions, ""); return err },
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), noon.AddDate(-10, 0, 0))
	defer cancelLate()
	for what, do := range calls {
		if err := do(ctx); !errors.Is(err, context.Canceled) || store.Transient(err) {
			t.Errorf("%s, cancelled: %v", what, err)
		}
		if err := do(late); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, too late: %v", what, err)
		}
	}
	if left := w.left(sessions); len(left) != 3 {
		t.Errorf("left: %q", left)
	}
	if got, err := w.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "t"}); err != nil || len(got.List) != 0 {
		t.Errorf("records: %+v, %v", got.List, err)
	}
	// In the middle: the batch has been sent, and nobody knows what became of it.
	middle, stop := context.WithCancel(t.Context())
	w.faults.Add(faultrpc.Fault{Method: "BatchWrite", Hook: func(context.Context, any, any) { stop() }})
	if err := w.Dispose(middle, b); !errors.Is(err, context.Canceled) || b.Ops[0].Outcome != store.Unknown {
		t.Errorf("cancelled in the middle: %v, %v", err, outcomes(b))
	}
}
