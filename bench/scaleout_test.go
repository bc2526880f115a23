package bench_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	scaleShards  = 64 // more than all workers of the largest crew, several times
	scaleWorkers = 2  // of each process: what bounds a process is its workers, not the cores
)

// A remote is the model store behind gRPC, as a client in another process sees it: the
// service's latencies without its cores. The server holds each call back for as long as the service
// takes: a query for 5 to 30 ms, a commit for 20 to 60 ms.
type remote struct{ conn *grpc.ClientConn }

// A saving is what Save is called with.
type saving struct {
	Record store.Record
	Prev   string
}

// asGob is a codec for messages that no protocol describes.
type asGob struct{}

func (asGob) Name() string { return "gob" }

func (asGob) Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (asGob) Unmarshal(data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

// useGob registers the codec, and the types that values of fields have behind interfaces.
var useGob = sync.OnceFunc(func() {
	encoding.RegisterCodec(asGob{})
	gob.Register([]store.Fields{})
	gob.Register(store.Fields{})
})

// call makes one call. A conflict is told by its code, since callers act on it.
func call[Q, A any](ctx context.Context, r remote, method string, q *Q) (*A, error) {
	a := new(A)
	err := r.conn.Invoke(ctx, "/model.Store/"+method, q, a, grpc.CallContentSubtype("gob"))
	switch status.Code(err) {
	case codes.OK:
		return a, nil
	case codes.FailedPrecondition:
		return nil, fmt.Errorf("%w: %w", store.ErrConflict, err)
	case codes.Canceled, codes.DeadlineExceeded:
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// Scan implements store.Store.
func (r remote) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	got, err := call[store.Query, store.Page](ctx, r, "Scan", &q)
	if err == nil {
		page.Entries, page.More, page.Next, page.SteppedOver = append(page.Entries[:0], got.Entries...), got.More, nil, 0
	}
	return err
}

// Dispose implements store.Store.
func (r remote) Dispose(ctx context.Context, b *store.Batch) error {
	got, err := call[store.Batch, store.Batch](ctx, r, "Dispose", b)
	if err == nil {
		copy(b.Ops, got.Ops)
	}
	return err
}

// Settle implements store.Store. Nothing here is contended.
func (r remote) Settle(context.Context, store.Query, store.Entry, func(store.Value) store.Verdict) (store.Outcome, error) {
	return store.Unknown, errors.ErrUnsupported
}

// Load implements store.Store.
func (r remote) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	got, err := call[store.RecordQuery, store.Records](ctx, r, "Load", &q)
	if err != nil {
		return store.Records{}, err
	}
	return *got, nil
}

// Save implements store.Store.
func (r remote) Save(ctx context.Context, rec store.Record, prev string) error {
	_, err := call[saving, store.Record](ctx, r, "Save", &saving{rec, prev})
	return err
}

// Close implements io.Closer.
func (r remote) Close() error { return r.conn.Close() }

// dial connects to the model store of another process.
func dial(address string) (closer, error) {
	useGob()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return remote{conn}, nil
}

// answers returns the handler of one method.
func answers[Q, A any](name string, do func(context.Context, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error,
		_ grpc.UnaryServerInterceptor,
	) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, err
		}
		a, err := do(ctx, q)
		if errors.Is(err, store.ErrConflict) {
			err = status.Error(codes.FailedPrecondition, err.Error())
		}
		return a, err
	}}
}

// serveModel serves a model store, with the latencies of the service from now on, and returns
// its address.
func serveModel(tb testing.TB, m *modelstore.Store) (address string, done func()) {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	m.Before = func(ctx context.Context, c modelstore.Call) error {
		least, most := 5*time.Millisecond, 30*time.Millisecond
		if c.Method == "Dispose" || c.Method == "Save" {
			least, most = 20*time.Millisecond, 60*time.Millisecond
		}
		return throttle.Sleep(ctx, least+rand.N(most-least))
	}
	useGob()
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "model.Store", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		answers("Scan", func(ctx context.Context, q *store.Query) (*store.Page, error) {
			var page store.Page
			err := m.Scan(ctx, *q, &page)
			return &page, err
		}),
		answers("Dispose", func(ctx context.Context, b *store.Batch) (*store.Batch, error) { return b, m.Dispose(ctx, b) }),
		answers("Load", func(ctx context.Context, q *store.RecordQuery) (*store.Records, error) {
			got, err := m.Load(ctx, *q)
			return &got, err
		}),
		answers("Save", func(ctx context.Context, q *saving) (*store.Record, error) {
			return &store.Record{}, m.Save(ctx, q.Record, q.Prev)
		}),
	}}, nil)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return l.Addr().String(), func() {
		s.Stop()
		if err := <-ended; err != nil {
			tb.Fatal(err)
		}
	}
}

// scaleTarget has a backlog in each of many ranges.
func scaleTarget() sweep.Target {
	t := sharded()
	t.Shards = scaleShards
	return t
}

// backlog returns a model store whose ranges have records, and so many due entities each.
func backlog(tb testing.TB, each int) *modelstore.Store {
	tb.Helper()
	m, t := modelstore.New(time.Now), scaleTarget()
	fill := func(n int, what string, at time.Time) {
		for shard := range scaleShards {
			for first := 0; first < n; first += store.MaxPage {
				var batch []store.Entity
				for i := first; i < min(n, first+store.MaxPage); i++ {
					k, err := expirykey.New(expirykey.Nursery, shard, at.Add(time.Duration(i)*time.Millisecond/10))
					if err != nil {
						tb.Fatal(err)
					}
					batch = append(batch, store.Entity{Name: fmt.Sprintf("%s-%02d-%07d", what, shard, i), Expiry: store.TextValue(k.String())})
				}
				if err := m.Put(tb.Context(), t.Target, "", batch); err != nil {
					tb.Fatal(err)
				}
			}
		}
	}
	lookedAround(tb, m, t)
	fill(1, "first", time.Now().Add(-2*time.Hour)) // an unread range is read in the slow lane
	if _, err := sweeps(tb.Context(), configFor(m, t, workers)); err != nil {
		tb.Fatal(err)
	}
	fill(each, "due", time.Now().Add(-5*time.Second)) // behind the overlap of the cursors
	return m
}

// scaleOut has one, two, four and eight processes empty a store that none of them makes busy.
func scaleOut(tb testing.TB, r *report) {
	r.section("Scale-out: one to eight processes on a store that answers like the service", fmt.Sprintf("A store in memory behind gRPC, which each process calls: a query takes 5 to 30 ms, a commit 20 to 60 ms, however many ask. "+
		"One target with a backlog in each of %d ranges, pages of 500, %d workers in each process; the backlog is larger with more processes, so that each has as much to do. "+
		"The rate is from the start of all to the last delete, the ratio that to as many times the rate of one.", scaleShards, scaleWorkers))
	alone := make([]float64, r.rounds)
	for _, n := range r.scaleCrews {
		c := &crew{n: n}
		var scanned int64
		for range r.rounds {
			m := backlog(tb, n*r.scaleEach)
			address, done := serveModel(tb, m)
			members := make([]*process, n)
			for i := range members {
				members[i] = begin(tb, job{Remote: address, Lease: r.lease})
			}
			if want := n * r.scaleEach * scaleShards; c.sweep(members, "none") != want {
				tb.Fatalf("%d processes deleted %d of %d", n, c.sum.Deleted, want)
			}
			scanned = c.sum.Scanned
			done()
		}
		if n == 1 {
			copy(alone, c.rates)
		}
		what := fmt.Sprintf("%d processes", n)
		if n == 1 {
			what = "1 process"
		}
		r.add(what, rate(c.rates), "")
		if n > 1 {
			linear := ratios(c.rates, alone)
			for i := range linear {
				linear[i] /= float64(n)
			}
			r.ratio(fmt.Sprintf("**%s / %d times 1**", what, n), linear, "0.9")
		}
		r.add("deleted by each; entries read for each deleted", fmt.Sprintf("%s; %.2f", strings.Join(c.deleted, " + "),
			float64(scanned)/float64(c.sum.Deleted)), "about the same; 1.2")
		r.add("cores busy with these processes", fmt.Sprintf("%.1f of %d", median(c.busy[1]), runtime.NumCPU()), "")
	}
}

// childOfScaleOut sweeps a store behind gRPC once.
func childOfScaleOut(ctx context.Context, s closer, j job) (o outcome, err error) {
	d, t := &dated{Store: s}, scaleTarget()
	t.Lease = j.Lease
	c := configFor(d, t, scaleWorkers)
	res := sweep.Run(ctx, c)
	if err := incomplete(res); err != nil {
		return o, err
	}
	return outcome{Deleted: res.Targets[0].Deleted, Scanned: res.Targets[0].Scanned, Last: time.Unix(0, d.last.Load())}, nil
}
