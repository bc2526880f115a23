package fsread_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
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
	*firestore.Client
	project string

	mu      sync.Mutex
	queries []*pb.StructuredQuery // sent since the last reset
	docs    int                   // returned since then
	fail    func(call int) error  // instead of a query, from 1 on; nil means never
}

func newWorld(t *testing.T, database string) *world {
	t.Helper()
	e := emulator.Start(t, emulator.Native)
	w := &world{project: e.Project(t)}
	client, err := firestore.NewClientWithDatabase(t.Context(), w.project, database,
		option.WithEndpoint(e.Host), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		option.WithGRPCDialOption(grpc.WithStreamInterceptor(w.intercept)))
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

func (w *world) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/RunQuery") {
		return s, err
	}
	return &stream{s, w}, nil
}

type stream struct {
	grpc.ClientStream
	w *world
}

func (s *stream) SendMsg(m any) error {
	s.w.mu.Lock()
	s.w.queries = append(s.w.queries, proto.CloneOf(m.(*pb.RunQueryRequest)).GetStructuredQuery())
	call, fail := len(s.w.queries), s.w.fail
	s.w.mu.Unlock()
	if fail != nil {
		if err := fail(call); err != nil {
			return err
		}
	}
	return s.ClientStream.SendMsg(m)
}

func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && m.(*pb.RunQueryResponse).Document != nil {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		s.w.docs++
	}
	return err
}

// reset starts new books and returns the old ones.
func (w *world) reset() (queries []*pb.StructuredQuery, docs int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	queries, docs = w.queries, w.docs
	w.queries, w.docs = nil, 0
	return queries, docs
}

var start = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// put writes documents in large transactions.
func (w *world) put(t *testing.T, docs map[string]map[string]any) {
	t.Helper()
	paths := make([]string, 0, len(docs))
	for path := range docs {
		paths = append(paths, path)
	}
	for len(paths) > 0 {
		batch := paths[:min(len(paths), 500)]
		paths = paths[len(batch):]
		err := w.RunTransaction(t.Context(), func(_ context.Context, tx *firestore.Transaction) error {
			for _, path := range batch {
				if err := tx.Set(w.Doc(path), docs[path]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fill writes n events over 16 shards, several at one instant and most of them
// of one kind.
func (w *world) fill(t *testing.T, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	docs := map[string]map[string]any{}
	for i := range n {
		kind := "view"
		if r.IntN(5) == 0 {
			kind = "login"
		}
		at := start.Add(time.Duration(r.IntN(n/3)) * time.Second)
		docs[fmt.Sprintf("events/%x-%d", r.Uint32(), i)] = map[string]any{"shard": r.IntN(16), "kind": kind, "created": at}
	}
	w.put(t, docs)
}
