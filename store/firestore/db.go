package firestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	sdk "cloud.google.com/go/firestore/apiv1"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// Options say which database to open. Only Project is required.
type Options = google.Options

// DB is an open database. It is safe for concurrent use.
type DB struct {
	client   *sdk.Client
	project  string
	database string // its full name
	endpoint string
	emulated bool
	admin    *google.Admin
	known    sync.Map // full names of records to the stamp that was seen last
	sizes    google.Sizes
	scanned  scanned
}

// DB implements the contract of every store and these optional interfaces.
var (
	_ store.Store     = (*DB)(nil)
	_ store.Counter   = (*DB)(nil)
	_ store.Writer    = (*DB)(nil)
	_ store.Dumper    = (*DB)(nil)
	_ store.Keyer     = (*DB)(nil)
	_ store.Descender = (*DB)(nil)
)

// Open connects to a database. It sends nothing: only the first call shows whether
// the database exists and may be used.
func Open(ctx context.Context, o Options) (*DB, error) {
	service := google.Service{Name: "firestore", EmulatorEnv: "FIRESTORE_EMULATOR_HOST",
		Method: "google.firestore.v1.Firestore"}
	opts, endpoint, err := service.Connect(o)
	if err != nil {
		return nil, err
	}
	client, err := sdk.NewClient(ctx, opts...)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("open firestore:%s at %s: %w: %w", o.Project, endpoint, ctx.Err(), err)
		}
		// It connects later, so that only credentials can be at fault here.
		return nil, store.WithHint(fmt.Errorf("open firestore:%s at %s: %w: %w",
			o.Project, endpoint, store.ErrDenied, err), google.Credentials)
	}
	client.CallOptions = &sdk.CallOptions{} // no retries of its own
	return &DB{client: client, project: o.Project, endpoint: endpoint, emulated: strings.HasSuffix(endpoint, "(emulator)"),
		admin:    service.NewAdmin(o, o.Database),
		database: fmt.Sprintf("projects/%s/databases/%s", o.Project, cmp.Or(o.Database, "(default)"))}, nil
}

// Endpoint returns where calls go, for people: the service's host and port, or
// the emulator's with a note that it is one.
func (d *DB) Endpoint() string { return d.endpoint }

// Close closes the connections.
func (d *DB) Close() error {
	if err := d.client.Close(); err != nil {
		return fmt.Errorf("close firestore:%s: %w: %w", d.project, store.ErrFailed, err)
	}
	return nil
}

// owner makes the emulator take the caller for an administrator; otherwise it would apply
// its security rules. The service checks the credentials alone.
func (d *DB) owner(ctx context.Context) context.Context {
	if !d.emulated {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer owner")
}

// root is the name that all documents' names begin with, and a slash.
func (d *DB) root() string { return d.database + "/documents" }

// name returns a document's full name, given its key.
func (d *DB) name(key string) string { return d.root() + "/" + key }

// key returns the canonical text of a document's key: its path.
func (d *DB) key(name string) string { return strings.TrimPrefix(name, d.root()+"/") }

// parent returns where a target's collection lies, and its id. A group lies
// everywhere.
func (d *DB) parent(t store.Target) (parent, id string) {
	above, id := splitPath(t.Kind)
	if above == "" {
		return d.root(), id
	}
	return d.name(above), id
}

// splitPath splits off the last segment of a path.
func splitPath(path string) (above, last string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

// check refuses a target or namespace that this store does not support.
func check(t store.Target, namespace string) error {
	switch {
	case namespace != "":
		return fmt.Errorf("%w: namespace %q: Firestore in native mode has none", store.ErrInvalid, namespace)
	case t.Group && strings.Contains(t.Kind, "/"):
		return fmt.Errorf("%w: %s: a collection group is named by its last segment alone", store.ErrInvalid, t.Kind)
	case strings.Count(t.Kind, "/")%2 != 0:
		return fmt.Errorf("%w: %s is the path of a document: a collection's has an odd number of segments",
			store.ErrInvalid, t.Kind)
	case t.Kind == "" || t.Property == "":
		return fmt.Errorf("%w: a target needs a collection and a property", store.ErrInvalid)
	}
	return nil
}

// fail turns an error of the client into one of the contract's: it wraps a
// sentinel or the context's error, or both, keeps the service's own message and
// status, and names the operation and the endpoint.
func (d *DB) fail(ctx context.Context, op string, err error) error {
	if store.IsMapped(err) {
		return fmt.Errorf("%s: %w", op, err)
	}
	st, ok := status.FromError(err)
	if !ok {
		if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
			return fmt.Errorf("%s: %w: %w", op, ctxErr, err)
		} else if ctxErr != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return fmt.Errorf("%s: %w: %w", op, store.ErrFailed, err)
	}
	explained := fmt.Errorf("%s: %w (at %s)", op, google.Explain(ctx, google.Sentinel(st), st), d.endpoint)
	if store.MayHaveHappened(err) { // another write of the call may have
		return store.InDoubt(explained)
	}
	return explained
}

// A stream is what the client returns for queries.
type stream[T any] interface {
	Recv() (T, error)
}

// each receives all messages of a stream whose call returned err.
func each[T any](s stream[T], err error, use func(T) error) error {
	for err == nil {
		var m T
		if m, err = s.Recv(); errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = use(m)
		}
	}
	return err
}

// query runs a query and calls use for each answer; one may hold no document. It fails without any: the service
// answers a query that finds nothing with the time at which it was read.
func (d *DB) query(
	ctx context.Context, parent string, q *pb.StructuredQuery, use func(*pb.RunQueryResponse) error,
) error {
	ctx, cancel := context.WithCancel(d.owner(ctx))
	defer cancel() // ends a stream that is not read to its end
	s, err := d.client.RunQuery(ctx, &pb.RunQueryRequest{Parent: parent, ExplainOptions: explain(ctx),
		QueryType: &pb.RunQueryRequest_StructuredQuery{StructuredQuery: q}})
	read, answered := int64(0), false
	err = each(s, err, func(r *pb.RunQueryResponse) error {
		answered = true
		if r.GetDocument() != nil {
			read++
		}
		noteExplained(ctx, r.GetExplainMetrics())
		return use(r)
	})
	if err == nil && !answered {
		err = fmt.Errorf("%w: the reply from %s is empty", store.ErrUnavailable, d.endpoint)
	}
	if err == nil || read > 0 {
		store.Bill(ctx, store.Operations{Reads: max(1, read)})
	}
	return err
}

// get looks documents up, with one field of each or all, and calls use for each, in any
// order. A document that does not exist is nil.
func (d *DB) get(
	ctx context.Context, names []string, fields []string,
	use func(name string, doc *pb.Document, r *pb.BatchGetDocumentsResponse),
) error {
	req := &pb.BatchGetDocumentsRequest{Database: d.database, Documents: names, Mask: maskOf(fields)}
	return d.getBy(ctx, req, func(name string, doc *pb.Document, r *pb.BatchGetDocumentsResponse) error {
		use(name, doc, r)
		return nil
	})
}

// getIn looks documents up, with some fields, in a transaction if tx is not nil, and stops where use returns an error.
func (d *DB) getIn(
	ctx context.Context, tx []byte, names []string, fields []string, use func(name string, doc *pb.Document) error,
) error {
	req := &pb.BatchGetDocumentsRequest{Database: d.database, Documents: names, Mask: maskOf(fields)}
	if tx != nil {
		req.ConsistencySelector = &pb.BatchGetDocumentsRequest_Transaction{Transaction: tx}
	}
	return d.getBy(ctx, req, func(name string, doc *pb.Document, _ *pb.BatchGetDocumentsResponse) error {
		return use(name, doc)
	})
}

// getBy makes a look-up, and stops where use returns an error. It fails if it was not told of each document that it
// asks for: one that nobody told of would count as missing.
func (d *DB) getBy(
	ctx context.Context, req *pb.BatchGetDocumentsRequest,
	use func(name string, doc *pb.Document, r *pb.BatchGetDocumentsResponse) error,
) error {
	ctx, cancel := context.WithCancel(d.owner(ctx))
	defer cancel() // ends a stream that is not read to its end
	untold := make(map[string]bool, len(req.GetDocuments()))
	for _, name := range req.GetDocuments() {
		untold[name] = true
	}
	asked := len(untold)
	s, err := d.client.BatchGetDocuments(ctx, req)
	err = each(s, err, func(r *pb.BatchGetDocumentsResponse) error {
		name := cmp.Or(r.GetFound().GetName(), r.GetMissing())
		if name == "" {
			return nil
		}
		store.Bill(ctx, store.Operations{Reads: 1})
		delete(untold, name)
		return use(name, r.GetFound(), r)
	})
	if err == nil && len(untold) > 0 {
		err = fmt.Errorf("%w: the reply from %s tells of %d of %d documents",
			store.ErrUnavailable, d.endpoint, asked-len(untold), asked)
	}
	return err
}

// maskOf returns the mask that lets a look-up transfer some fields only; of none, it lets all pass.
func maskOf(fields []string) (mask *pb.DocumentMask) {
	for _, f := range fields {
		if mask == nil {
			mask = &pb.DocumentMask{}
		}
		mask.FieldPaths = append(mask.FieldPaths, fieldPath(f))
	}
	return mask
}

// commit makes all writes or none. It returns the update time of the last write.
func (d *DB) commit(ctx context.Context, writes []*pb.Write) (*timestamppb.Timestamp, error) {
	return d.commitIn(ctx, nil, writes)
}

// commitIn is commit, as the end of a transaction if tx is not nil.
func (d *DB) commitIn(ctx context.Context, tx []byte, writes []*pb.Write) (*timestamppb.Timestamp, error) {
	req := &pb.CommitRequest{Database: d.database, Writes: writes, Transaction: tx}
	reply, err := d.client.Commit(d.owner(ctx), req)
	if err != nil {
		return nil, err
	}
	store.Bill(ctx, billed(writes))
	if n := len(reply.GetWriteResults()); n > 0 {
		return reply.GetWriteResults()[n-1].GetUpdateTime(), nil
	}
	return nil, nil
}

func billed(writes []*pb.Write) (o store.Operations) {
	for _, w := range writes {
		if w.GetDelete() != "" {
			o.Deletes++
		} else {
			o.Writes++
		}
	}
	return o
}
