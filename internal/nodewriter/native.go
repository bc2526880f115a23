package nodewriter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	sdk "cloud.google.com/go/firestore/apiv1"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// NativeOptions say what to write into a database in native mode. Collections are
// by layout, with "group" for a collection group below fifty parents.
type NativeOptions struct {
	Host        string            `json:"-"` // of the emulator
	Project     string            `json:"project"`
	Database    string            `json:"database"` // empty for the default one
	Collections map[string]string `json:"collections"`
	Generation  int               `json:"generation"`
	Shards      int               `json:"shards"`

	// Both lists together are the values of the field "shard" in the layout
	// "sharded-timestamp".
	ShardValues  []string `json:"shardValues"`
	ShardNumbers []int64  `json:"shardNumbers"` // below 2^53

	Documents int       `json:"documents"` // over all collections; half expired by Now, the others live an hour at least
	Now       time.Time `json:"now"`
}

// More roles of documents.
const (
	OtherCollection Role = "other collection"
	Elsewhere       Role = "elsewhere" // of a collection of the same name, or below a document that goes
	Parent          Role = "parent"
)

// A Document is one that was written.
type Document struct {
	Path   string // below the database
	Layout string
	Role   Role
}

// RunNative writes the documents and returns all of them, by-standers included.
func RunNative(t testing.TB, o NativeOptions) []Document {
	t.Helper()
	out := run(t, "firestore", "FIRESTORE_EMULATOR_HOST="+o.Host, func(vectors string) any {
		return struct {
			NativeOptions
			Vectors string `json:"vectors"`
		}{o, vectors}
	})
	var m struct {
		Vectors   int
		Documents []Document
	}
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatalf("the Node writer's manifest: %v", err)
	}
	if m.Vectors < 16 {
		t.Fatalf("only %d test vectors were checked", m.Vectors)
	}
	return m.Documents
}

// NativeClient returns Google's own client of an emulator in native mode, which may do everything
// there. It is closed with the test.
func NativeClient(t testing.TB, host string) *sdk.Client {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(owner{}), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		t.Fatal(err)
	}
	client, err := sdk.NewClient(t.Context(), option.WithGRPCConn(conn), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// An owner sends the token of the emulator's owner.
type owner struct{}

func (owner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}

func (owner) RequireTransportSecurity() bool { return false }

// Snapshot returns every document of a native database, by its path, as the bytes
// of its fields and its update time: two that are equal are the same document,
// unchanged. It reads the default database only.
func Snapshot(t testing.TB, host, project string) map[string]string {
	t.Helper()
	root := fmt.Sprintf("projects/%s/databases/(default)/documents", project)
	stream, err := NativeClient(t, host).RunQuery(t.Context(), &pb.RunQueryRequest{Parent: root,
		QueryType: &pb.RunQueryRequest_StructuredQuery{StructuredQuery: &pb.StructuredQuery{
			From: []*pb.StructuredQuery_CollectionSelector{{AllDescendants: true}}}}})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("read all documents: %v", err)
		}
		doc := r.GetDocument()
		if doc == nil {
			continue
		}
		path := doc.GetName()[len(root)+1:]
		doc.Name = ""
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(text)
	}
}
