package datastore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

func TestMain(m *testing.M) { emulator.Main(m) }

const (
	kind     = "Session"
	property = "expiry_key"
)

func target(g store.Guard) store.Target {
	return store.Target{Name: "sessions", Kind: kind, Property: property, Type: store.Text, Guard: g, SingleValued: g == store.GuardQuery}
}

func query(g store.Guard, lo, hi string) store.Query {
	return store.Query{Target: target(g), Lo: store.TextValue(lo), Hi: store.TextValue(hi), Limit: store.MaxPage}
}

// openAt opens a database of a fresh name at an emulator that may not exist.
func openAt(t *testing.T, host string, faults ...*faultrpc.Injector) *DB {
	t.Helper()
	return openWith(t, Options{Project: "p", Emulator: host}, faults...)
}

func openWith(t *testing.T, o Options, faults ...*faultrpc.Injector) *DB {
	t.Helper()
	for _, f := range faults {
		o.Interceptors = append(o.Interceptors, f.Intercept)
	}
	db, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// A world is an empty database on the emulator, seen by the driver and by an
// application of its own.
type world struct {
	*DB
	t      *testing.T
	app    *sdk.Client
	faults *faultrpc.Injector
}

func newWorld(t *testing.T, database string) *world {
	t.Helper()
	e := emulator.Start(t, emulator.Datastore)
	project := e.Project(t)
	w := &world{t: t, faults: &faultrpc.Injector{}}
	w.DB = openWith(t, Options{Project: project, Database: database, Emulator: e.Host}, w.faults)
	w.app = application(t, project, database, e.Host)
	return w
}

// application returns an application's own client of a database.
func application(t *testing.T, project, database, host string) *sdk.Client {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if database == defaultDatabase {
		database = ""
	}
	app, err := sdk.NewClientWithDatabase(t.Context(), project, database, option.WithGRPCConn(conn), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { app.Close() })
	return app
}

// put writes entities as an application would: with an expiry of any type and
// another property.
func (w *world) put(expiry any, keys ...*sdk.Key) {
	w.t.Helper()
	for len(keys) > 0 {
		n := min(len(keys), store.MaxPage)
		lists := make([]sdk.PropertyList, n)
		for i := range lists {
			lists[i] = sdk.PropertyList{{Name: property, Value: expiry}, {Name: "user", Value: "u7"}}
		}
		if _, err := w.app.PutMulti(context.Background(), keys[:n], lists); err != nil {
			w.t.Fatal(err)
		}
		keys = keys[n:]
	}
}

// left returns the texts of the keys that exist in a namespace.
func (w *world) left(namespace string) map[string]bool {
	w.t.Helper()
	keys, err := w.app.GetAll(context.Background(), sdk.NewQuery(kind).Namespace(namespace).KeysOnly(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]bool{}
	for _, k := range keys {
		out[FormatKey(k)] = true
	}
	return out
}

// page scans one page.
func (w *world) page(q store.Query) store.Page {
	w.t.Helper()
	var p store.Page
	if err := w.Scan(w.t.Context(), q, &p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func batch(q store.Query, p store.Page) *store.Batch {
	b := &store.Batch{Query: q}
	for _, e := range p.Entries {
		b.Ops = append(b.Ops, store.Op{Entry: e})
	}
	return b
}

func outcomes(b *store.Batch) map[string]store.Outcome {
	out := map[string]store.Outcome{}
	for _, op := range b.Ops {
		out[op.Entry.Key] = op.Outcome
	}
	return out
}

func name(s string) *sdk.Key { return sdk.NameKey(kind, s, nil) }

func names(prefix string, n int) []*sdk.Key {
	keys := make([]*sdk.Key, n)
	for i := range keys {
		keys[i] = name(fmt.Sprintf("%s%05d", prefix, i))
	}
	return keys
}

// A reply that lacks something tells nothing: the call is worth another try.
func TestReplyThatLacksSomething(t *testing.T) {
	w := newWorld(t, "")
	tgt := target(store.GuardLookup)
	if err := w.Put(t.Context(), tgt, "", []store.Entity{{Name: "s-000"}}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"RunAggregationQuery": func() error {
			_, err := w.Count(t.Context(), tgt, "", store.Span{}, 0)
			return err
		},
		"RunQuery": func() error {
			var page store.Page
			return w.Scan(t.Context(), query(store.GuardLookup, "", "9"), &page)
		},
		"Lookup": func() error {
			_, err := w.Fetch(t.Context(), tgt, "", []string{"Session/s-000"}, time.Time{})
			return err
		},
	}
	for method, call := range calls {
		if err := call(); err != nil {
			t.Fatal(err)
		}
		w.faults.Add(faultrpc.Fault{Method: method, After: true, Hook: func(_ context.Context, _, reply any) {
			proto.Reset(reply.(proto.Message))
		}})
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", method, err)
		}
	}
	for text, want := range map[string]error{"wrong number of entities": store.ErrUnavailable, "invalid key": store.ErrFailed} {
		err := errors.New("datastore: internal error: server returned the " + text)
		if got := w.fail(t.Context(), "look", err); !errors.Is(got, want) {
			t.Errorf("%s: %v", text, got)
		}
	}
}
