package datastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// Options say which database to open. Only Project is required.
type Options = google.Options

// DB is an open database. It is safe for concurrent use.
type DB struct {
	client   *sdk.Client
	project  string
	database string // as calls name it: empty for the default one
	endpoint string
	emulated bool
	admin    *google.Admin
	// hasGroups says that the database was found to be in the mode optimistic with
	// entity groups.
	hasGroups atomic.Bool
	sizes     google.Sizes
}

// DB implements the contract of every store and these optional interfaces.
var (
	_ store.Store      = (*DB)(nil)
	_ store.Counter    = (*DB)(nil)
	_ store.Namespacer = (*DB)(nil)
	_ store.Writer     = (*DB)(nil)
	_ store.Dumper     = (*DB)(nil)
	_ store.Keyer      = (*DB)(nil)
	_ store.Guarder    = (*DB)(nil)
	_ store.Descender  = (*DB)(nil)
)

const (
	defaultDatabase = "(default)"
	rpcService      = "google.datastore.v1.Datastore"
)

// Open connects to a database. It sends nothing: only the first call shows whether
// the database exists and may be used.
func Open(ctx context.Context, o Options) (*DB, error) {
	database := o.Database
	if database == defaultDatabase {
		database = sdk.DefaultDatabaseID
	}
	db := &DB{project: o.Project, database: database}
	service := google.Service{Name: "datastore", EmulatorEnv: "DATASTORE_EMULATOR_HOST",
		Method: rpcService, Intercept: db.intercept}
	opts, endpoint, err := service.Connect(o)
	if err != nil {
		return nil, err
	}
	db.endpoint, db.emulated, db.admin = endpoint, service.IsEmulated(o), service.NewAdmin(o, o.Database)
	client, err := sdk.NewClientWithDatabase(ctx, o.Project, database, opts...)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("open datastore:%s at %s: %w: %w", o.Project, db.endpoint, ctx.Err(), err)
		}
		// It connects later, so that only credentials can be at fault here.
		return nil, store.WithHint(fmt.Errorf("open datastore:%s at %s: %w: %w",
			o.Project, db.endpoint, store.ErrDenied, err), google.Credentials)
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

// rollback ends a transaction that was not committed. It frees locks that others may
// wait for; otherwise it changes nothing, so its own failure does not matter. It works
// after the context is done: see intercept.
func rollback(tx *sdk.Transaction) { _ = tx.Rollback() }

// errStopped ends the client's iterator after the first batch; see call.
var errStopped = errors.New("only one batch is wanted")
