package dsread_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// A world is an empty database on the emulator, with books of what is asked of
// it.
type world struct {
	*datastore.Client
	project string

	mu       sync.Mutex
	queries  []*pb.RunQueryRequest // sent since the last reset
	entities int                   // returned since then
	fail     func(call int) error  // instead of a query, from 1 on; nil means never
}

func newWorld(t *testing.T, database string) *world {
	t.Helper()
	e := emulator.Start(t, emulator.Datastore)
	w := &world{project: e.Project(t)}
	client, err := datastore.NewClientWithDatabase(t.Context(), w.project, database,
		option.WithEndpoint(e.Host), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		option.WithGRPCDialOption(grpc.WithUnaryInterceptor(w.intercept)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	w.Client = client
	return w
}

func (w *world) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if !strings.HasSuffix(method, "/RunQuery") {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	w.mu.Lock()
	w.queries = append(w.queries, proto.CloneOf(req.(*pb.RunQueryRequest)))
	call, fail := len(w.queries), w.fail
	w.mu.Unlock()
	if fail != nil {
		if err := fail(call); err != nil {
			return err
		}
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entities += len(reply.(*pb.RunQueryResponse).GetBatch().GetEntityResults())
	return err
}

// reset starts new books and returns the old ones.
func (w *world) reset() (queries []*pb.RunQueryRequest, entities int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	queries, entities = w.queries, w.entities
	w.queries, w.entities = nil, 0
	return queries, entities
}

var start = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

type event struct {
	Key     *datastore.Key `datastore:"__key__"`
	Shard   int            `datastore:"shard"`
	Kind    string         `datastore:"kind"`
	Created time.Time      `datastore:"created"`
}

func (w *world) put(t *testing.T, keys []*datastore.Key, events []event) {
	t.Helper()
	for len(keys) > 0 {
		n := min(len(keys), 500)
		if _, err := w.PutMulti(t.Context(), keys[:n], events[:n]); err != nil {
			t.Fatal(err)
		}
		keys, events = keys[n:], events[n:]
	}
}

// fill writes n events over 16 shards, several at one instant and most of them
// of one kind.
func (w *world) fill(t *testing.T, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	keys, events := make([]*datastore.Key, n), make([]event, n)
	for i := range n {
		kind := "view"
		if r.IntN(5) == 0 {
			kind = "login"
		}
		keys[i] = datastore.NameKey("Event", fmt.Sprintf("%x-%d", r.Uint32(), i), nil)
		events[i] = event{Shard: r.IntN(16), Kind: kind, Created: start.Add(time.Duration(r.IntN(n/3)) * time.Second)}
	}
	w.put(t, keys, events)
}
