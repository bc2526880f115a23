package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/reaper-ttl/reaper/store"
)

// Options say which database to open. Only Project is required.
type Options struct {
	Project  string
	Database string // empty or "(default)" for the default database

	// Emulator is host:port of an emulator; empty means what the variable
	// DATASTORE_EMULATOR_HOST says.
	Emulator string
	// Endpoint is host:port of the service where it is not the public one.
	// It has no effect where an emulator is used.
	Endpoint string
	// ClientOptions are passed on to Google's client, for credentials. They
	// have no effect where an emulator is used.
	ClientOptions []option.ClientOption
	// Interceptors see every call as it goes to the service and every reply as
	// it comes from there, before this driver interprets it.
	Interceptors []grpc.UnaryClientInterceptor
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	client   *sdk.Client
	project  string
	endpoint string
}

// The powers that DB has beside those of every store.
var (
	_ store.Store      = (*DB)(nil)
	_ store.Counter    = (*DB)(nil)
	_ store.Namespacer = (*DB)(nil)
	_ store.Writer     = (*DB)(nil)
	_ store.Dumper     = (*DB)(nil)
)

const (
	emulatorEnv     = "DATASTORE_EMULATOR_HOST"
	universeEnv     = "GOOGLE_CLOUD_UNIVERSE_DOMAIN"
	defaultDatabase = "(default)"

	// connections in the pool: each carries 100 calls at once.
	connections = 4
	// maxReply is far above what the service sends; gRPC's own limit of 4 MiB
	// is below it.
	maxReply = 64 << 20

	// serviceConfig replaces the client's, which retries refused calls and
	// waits, silently, for a connection. The time limit of a call is the
	// service's own.
	serviceConfig = `{"methodConfig": [{"name": [{"service": "google.datastore.v1.Datastore"}], "timeout": "60s"}]}`
)

var schemes = regexp.MustCompile(`^(http://|https://|passthrough:///)`)

// Open connects to a database. It sends nothing: whether the database exists
// and may be used shows at the first call.
func Open(ctx context.Context, o Options) (*DB, error) {
	if o.Project == "" {
		return nil, fmt.Errorf("open datastore: no project: %w", store.ErrInvalid)
	}
	database := o.Database
	if database == defaultDatabase {
		database = sdk.DefaultDatabaseID
	}
	db := &DB{project: o.Project}
	dial := []grpc.DialOption{
		grpc.WithDisableRetry(),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithChainUnaryInterceptor(append([]grpc.UnaryClientInterceptor{db.intercept}, o.Interceptors...)...),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 20 * time.Second, PermitWithoutStream: true}),
	}
	var opts []option.ClientOption
	if emulator := cmp.Or(o.Emulator, os.Getenv(emulatorEnv)); emulator != "" {
		db.endpoint = emulator + " (emulator)"
		if !strings.Contains(emulator, "://") || strings.HasPrefix(emulator, "http") {
			emulator = "passthrough:///" + schemes.ReplaceAllString(emulator, "")
		}
		conn, err := grpc.NewClient(emulator, append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return nil, fmt.Errorf("open datastore at emulator %s: %w: %w", emulator, store.ErrInvalid, err)
		}
		opts = append(opts, option.WithGRPCConn(conn), option.WithoutAuthentication())
	} else {
		db.endpoint = cmp.Or(o.Endpoint, "datastore."+cmp.Or(os.Getenv(universeEnv), "googleapis.com")+":443")
		opts = append(opts, option.WithGRPCConnectionPool(connections))
		for _, d := range dial {
			opts = append(opts, option.WithGRPCDialOption(d))
		}
		if o.Endpoint != "" {
			opts = append(opts, option.WithEndpoint(o.Endpoint))
		}
		opts = append(opts, o.ClientOptions...)
	}
	client, err := sdk.NewClientWithDatabase(ctx, o.Project, database, opts...)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("open datastore:%s at %s: %w: %w", o.Project, db.endpoint, ctx.Err(), err)
		}
		// It connects later, so that only credentials can be at fault here.
		return nil, fmt.Errorf("open datastore:%s at %s: %w: %w (set GOOGLE_APPLICATION_CREDENTIALS, run gcloud auth application-default login, or attach a service account)",
			o.Project, db.endpoint, store.ErrDenied, err)
	}
	db.client = client
	return db, nil
}

// Endpoint returns where calls go, for people: the service's host and port, or
// the emulator's with a note that it is one.
func (d *DB) Endpoint() string { return d.endpoint }

// Close closes the connections.
func (d *DB) Close() error {
	if err := d.client.Close(); err != nil {
		return fmt.Errorf("close datastore:%s: %w: %w", d.project, store.ErrFailed, err)
	}
	return nil
}

// Namespaces implements [store.Namespacer]. Google's Firestore emulator does
// not know such queries and answers ErrInvalid.
func (d *DB) Namespaces(ctx context.Context) ([]string, error) {
	const op = "list namespaces"
	keys, err := d.client.GetAll(ctx, sdk.NewQuery("__namespace__").KeysOnly(), nil)
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name // the default namespace has a number instead, and is called ""
	}
	slices.Sort(names)
	return names, nil
}

// Holds implements [store.Counter].
func (d *DB) Holds(ctx context.Context, t store.Target, namespace string) (bool, error) {
	keys, err := d.client.GetAll(ctx, sdk.NewQuery(t.Kind).Namespace(namespace).KeysOnly().Limit(1), nil)
	if err != nil {
		return false, d.fail(ctx, "look for any "+where(t, namespace), err)
	}
	return len(keys) > 0, nil
}

// where names a kind and namespace in errors.
func where(t store.Target, namespace string) string {
	if namespace == "" {
		return t.Kind
	}
	return fmt.Sprintf("%s in namespace %q", t.Kind, namespace)
}

// begin starts a read-write transaction. Its context also carries the later
// calls, so whatever they need of it must be there already. It begins at once:
// transactions that begin with their first read fail each other on the
// emulator as soon as two run at the same time.
func (d *DB) begin(ctx context.Context) (*sdk.Transaction, error) {
	return d.client.NewTransaction(ctx)
}

// rollback ends a transaction that was not committed. It frees what others may
// be waiting for and is otherwise of no consequence, so that its own failure
// does not matter. It works after the context is done: see intercept.
func rollback(tx *sdk.Transaction) { _ = tx.Rollback() }

// errStopped ends the client's iterator after the first batch; see call.
var errStopped = errors.New("only one batch is wanted")
