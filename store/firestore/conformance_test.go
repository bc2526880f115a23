package firestore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	sdk "cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// TestConformance runs the suite of all drivers, on the default database and on
// a named one, and on collections that do not lie at the root.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name, database, parent string
		group                  bool
	}{
		{name: "default"},
		{name: "named", database: "named-db"},
		{name: "nested", parent: "users/u 1"},
		{name: "group", parent: "users/u1/devices/d1", group: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := emulator.Start(t, emulator.Native)
			db, err := Open(t.Context(), Options{Project: e.Project(t), Database: c.database, Emulator: e.Host})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			storetest.Run(t, func(storetest.TB) store.Store { return elsewhere{db, client(t, db, e.Host), c.parent, c.group} }, storetest.Caps{
				Counter: true, Dumper: true, Keyer: true, Adopter: true, Descender: true, Archiver: true, ListsApart: true, TellsGone: true, BillsEntries: true,
				NumbersFirst: true, OrdersByBytes: true, Clock: time.Now,
			})
		})
	}
}

// An elsewhere is a database that has the suite's collections below a document,
// where it finds them by their path or as collection groups.
type elsewhere struct {
	*DB
	app    *sdk.Client // the application's own
	parent string
	group  bool
}

func (d elsewhere) target(t store.Target) store.Target {
	if t.Group = d.group; !t.Group && d.parent != "" {
		t.Kind = d.parent + "/" + t.Kind
	}
	return t
}

func (d elsewhere) query(q store.Query) store.Query {
	q.Target = d.target(q.Target)
	return q
}

func (d elsewhere) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	return d.DB.Scan(ctx, d.query(q), page)
}

func (d elsewhere) Splits(ctx context.Context, t store.Target, ns string, most int) ([]string, error) {
	return d.DB.Splits(ctx, d.target(t), ns, most)
}

func (d elsewhere) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	q.Target = d.target(q.Target)
	return d.DB.Walk(ctx, q, rows)
}

func (d elsewhere) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	q.Target = d.target(q.Target)
	return d.DB.Look(ctx, q, keys, rows)
}

func (d elsewhere) Restamp(ctx context.Context, b *store.Restamping) error {
	moved := *b
	moved.Query.Target = d.target(b.Query.Target)
	return d.DB.Restamp(ctx, &moved) // of the same ops
}

func (d elsewhere) Dispose(ctx context.Context, b *store.Batch) error {
	moved := *b
	moved.Query = d.query(b.Query)
	err := d.DB.Dispose(ctx, &moved) // of the same ops
	b.SteppedOver = moved.SteppedOver
	return err
}

func (d elsewhere) Settle(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
	return d.DB.Settle(ctx, d.query(q), e, decide)
}

func (d elsewhere) Archives(t store.Target) error { return d.DB.Archives(d.target(t)) }

func (d elsewhere) Fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) ([]store.Copy, error) {
	return d.DB.Fetch(ctx, d.target(t), namespace, keys, at)
}

func (d elsewhere) Insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) error {
	return d.DB.Insert(ctx, d.target(t), namespace, list)
}

func (d elsewhere) Count(
	ctx context.Context, t store.Target, namespace string, s store.Span, upTo int64,
) (int64, error) {
	return d.DB.Count(ctx, d.target(t), namespace, s, upTo)
}

func (d elsewhere) Holds(ctx context.Context, t store.Target, namespace string) (bool, error) {
	return d.DB.Holds(ctx, d.target(t), namespace)
}

func (d elsewhere) Put(ctx context.Context, t store.Target, namespace string, entities []store.Entity) error {
	moved := append([]store.Entity(nil), entities...)
	for i := range moved {
		if d.group {
			moved[i].Parent = cmp.Or(moved[i].Parent, d.parent)
		}
	}
	return d.DB.Put(ctx, d.target(t), namespace, moved)
}

func (d elsewhere) Dump(ctx context.Context, t store.Target, namespace string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		for e, err := range d.DB.Dump(ctx, d.target(t), namespace) {
			if e.Parent == d.parent {
				e.Parent = ""
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (d elsewhere) Key(t store.Target, namespace string, e store.Entity) (string, error) {
	if d.group {
		e.Parent = cmp.Or(e.Parent, d.parent)
	}
	return d.DB.Key(d.target(t), namespace, e)
}

func (d elsewhere) Descendants(ctx context.Context, q store.DescendantQuery, page *store.Descendants) error {
	q.Target = d.target(q.Target)
	return d.DB.Descendants(ctx, q, page)
}

func (d elsewhere) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (store.Outcome, error) {
	return d.DB.DeleteBelow(ctx, d.query(q), e, list, isDue)
}

// client returns an application's client of the database.
func client(t *testing.T, d *DB, host string) *sdk.Client {
	t.Helper()
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	_, database := splitPath(d.database)
	app, err := sdk.NewClientWithDatabase(t.Context(), d.project, database, option.WithGRPCConn(conn),
		option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = app.Close() })
	return app
}

// Plant implements storetest.Planter.
func (d elsewhere) Plant(
	ctx context.Context, _ store.Target, _, key string, list []storetest.Plant,
) (keys []string, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer owner")
	err = d.app.RunTransaction(ctx, func(_ context.Context, tx *sdk.Transaction) error {
		keys = nil
		for _, p := range list {
			at := key
			for _, s := range p.Path {
				at += "/" + s.Kind + "/" + cmp.Or(s.Name, fmt.Sprintf("__id%d__", s.Number))
			}
			data := map[string]any{}
			for name, text := range p.Properties {
				if data[name] = nil; text != "" {
					data[name] = text
				}
			}
			keys = append(keys, at)
			if err := tx.Set(d.app.Doc(at), data); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, d.fail(ctx, "plant", err)
	}
	return keys, nil
}
