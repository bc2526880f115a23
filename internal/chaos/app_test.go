//go:build linux

package chaos

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// The errors of a write that is known to have written nothing.
var (
	errAbsent = errors.New("there is no such entity")
	errExists = errors.New("the entity exists already")
	// errAborted is certain only on a connection without faults. Otherwise it may
	// answer a retry, after a first attempt whose reply was lost.
	errAborted = errors.New("the transaction was aborted")
)

// A doc is an entity as an application writes it.
type doc struct {
	fields   map[string]any // without the expiry property
	property string         // that says when it expires
	expires  any            // a text, a time.Time, or nil: it has none
}

// An app is an application's client of the database.
type app interface {
	// get reads entities; those that do not exist are nil.
	get(ctx context.Context, kind string, ids []string) ([]*found, error)
	// put writes a whole entity, whatever was there.
	put(ctx context.Context, kind, id string, d doc) error
	// create writes an entity that must not be there.
	create(ctx context.Context, kind, id string, d doc) error
	// patch writes everything but the expiry property of an entity that must be there.
	patch(ctx context.Context, kind, id string, d doc) error
	// change reads an entity and writes, or removes, it in one transaction.
	change(ctx context.Context, kind, id string, decide func(*found) verdict) error
	// changeAll does so with several entities, in one transaction: all or none.
	changeAll(ctx context.Context, kind string, ids []string, decide func(i int, is *found) verdict) error
	remove(ctx context.Context, kind, id string) error
	// list reads everything of a kind.
	list(ctx context.Context, kind string) (map[string]found, error)
	close() error
}

// A verdict tells change what to do.
type verdict struct {
	put    *doc
	remove bool
}

// newFields makes properties that no other entity has.
func newFields(r *rand.Rand, n int64) map[string]any {
	blob := make([]byte, 1+r.IntN(200))
	for i := range blob {
		blob[i] = byte(r.Uint32())
	}
	return map[string]any{
		"n": n, "blob": blob, "text": fmt.Sprintf("%d: ä\x00/%x", n, r.Uint32()), "list": []any{n, "x", r.Float64()},
		"at": time.UnixMicro(n * 1_000_003).UTC(), "nothing": nil, "yes": n%2 == 0,
	}
}

// canon prints properties in one form, whatever client they came from.
func canon(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(v)) {
			fmt.Fprintf(&b, "%s=%s;", k, canon(v[k]))
		}
		return b.String()
	case []any:
		var all []string
		for _, e := range v {
			all = append(all, canon(e))
		}
		return "[" + strings.Join(all, ",") + "]"
	case []byte:
		return hex.EncodeToString(v)
	case time.Time:
		return formatInstant(v)
	default:
		return fmt.Sprintf("%T %#v", v, v)
	}
}

func formatInstant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// read takes the expiry property out of what was read.
func read(property string, fields map[string]any) *found {
	f := &found{}
	switch v := fields[property].(type) {
	case nil:
	case string:
		f.expiry = v
	case time.Time:
		f.expiry = formatInstant(v)
	default:
		f.expiry = canon(v)
	}
	delete(fields, property)
	f.body = canon(fields)
	return f
}

// properties are, for each kind, those that hold the expiry.
var properties = map[string]string{keyed: "expiry_key", timed: "expires", massed: "expiry_key", old: "expiry_key"}

// isIndexed reports whether an application has a property indexed. All others are not.
func isIndexed(kind, name string) bool {
	return name == "n" || name == properties[kind] || kind == old && name == ruled
}

// The kinds that the writers write to.
const (
	keyed  = "Session" // with expiry keys
	timed  = "Token"   // with timestamps
	massed = "Event"   // of which many come to be due at once
	old    = "Order"   // whose writers know nothing of expiry, and which are adopted
)

// ruled is the property of an [old] entity that the rule of the adoption reads.
const ruled = "created"

// kinds are all of them, and the targets that sweep them.
var (
	kinds   = []string{keyed, timed, massed, old}
	targets = map[string]string{keyed: "sessions", timed: "tokens", massed: "events", old: "orders"}
)

// opener connects to a database as an application does.
type opener func(t *testing.T, host, project string) app

var openers = map[emulator.Mode]opener{emulator.Datastore: openDatastore, emulator.Native: openNative}

// dialing makes a client connect again soon after its connections were cut.
func dialing() []option.ClientOption {
	return []option.ClientOption{
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		option.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second}, MinConnectTimeout: 2 * time.Second})),
	}
}

// outcome maps an error to those above.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, datastore.ErrNoSuchEntity), status.Code(err) == codes.NotFound:
		return errAbsent
	case status.Code(err) == codes.AlreadyExists:
		return errExists
	case errors.Is(err, datastore.ErrConcurrentTransaction), status.Code(err) == codes.Aborted:
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	return err
}

type datastoreApp struct{ client *datastore.Client }

func openDatastore(t *testing.T, host, project string) app {
	t.Helper()
	client, err := datastore.NewClient(t.Context(), project, append(dialing(), option.WithEndpoint(host))...)
	if err != nil {
		t.Fatal(err)
	}
	return datastoreApp{client}
}

func (a datastoreApp) close() error { return a.client.Close() }

// key returns the key of an id: a numeric one if the id is a number.
func (a datastoreApp) key(kind, id string) *datastore.Key {
	if n, err := strconv.ParseInt(id, 10, 64); err == nil {
		return datastore.IDKey(kind, n, nil)
	}
	return datastore.NameKey(kind, id, nil)
}

const notIndexed = " (not indexed)"

func (a datastoreApp) properties(kind string, d doc, whole bool) *datastore.PropertyList {
	var list datastore.PropertyList
	for name, v := range d.fields {
		list = append(list, datastore.Property{Name: name, Value: v, NoIndex: !isIndexed(kind, name)})
	}
	if d.expires != nil && whole {
		list = append(list, datastore.Property{Name: d.property, Value: d.expires})
	}
	return &list
}

func (a datastoreApp) found(kind string, list datastore.PropertyList) *found {
	fields := map[string]any{}
	for _, p := range list {
		if p.NoIndex == isIndexed(kind, p.Name) {
			p.Name += notIndexed // as it should not be
		}
		fields[p.Name] = p.Value
	}
	return read(properties[kind], fields)
}

func (a datastoreApp) get(ctx context.Context, kind string, ids []string) ([]*found, error) {
	keys := make([]*datastore.Key, len(ids))
	for i, id := range ids {
		keys[i] = a.key(kind, id)
	}
	lists := make([]datastore.PropertyList, len(ids))
	err := a.client.GetMulti(ctx, keys, lists)
	multi := make(datastore.MultiError, len(ids))
	if err != nil && !errors.As(err, &multi) {
		return nil, err
	}
	all := make([]*found, len(ids))
	for i := range ids {
		if multi[i] == nil {
			all[i] = a.found(kind, lists[i])
		} else if !errors.Is(multi[i], datastore.ErrNoSuchEntity) {
			return nil, multi[i]
		}
	}
	return all, nil
}

func (a datastoreApp) put(ctx context.Context, kind, id string, d doc) error {
	_, err := a.client.Put(ctx, a.key(kind, id), a.properties(kind, d, true))
	return outcome(err)
}

func (a datastoreApp) mutate(ctx context.Context, m *datastore.Mutation) error {
	_, err := a.client.Mutate(ctx, m)
	return outcome(err)
}

func (a datastoreApp) create(ctx context.Context, kind, id string, d doc) error {
	return a.mutate(ctx, datastore.NewInsert(a.key(kind, id), a.properties(kind, d, true)))
}

func (a datastoreApp) patch(ctx context.Context, kind, id string, d doc) error {
	update := datastore.NewUpdate(a.key(kind, id), a.properties(kind, d, false))
	return a.mutate(ctx, update.WithPropertyMask(slices.Sorted(maps.Keys(d.fields))...))
}

func (a datastoreApp) remove(ctx context.Context, kind, id string) error {
	return outcome(a.client.Delete(ctx, a.key(kind, id)))
}

func (a datastoreApp) change(ctx context.Context, kind, id string, decide func(*found) verdict) error {
	return a.changeAll(ctx, kind, []string{id}, func(_ int, is *found) verdict { return decide(is) })
}

func (a datastoreApp) changeAll(ctx context.Context, kind string, ids []string, decide func(i int, is *found) verdict) error {
	_, err := a.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		keys, lists := make([]*datastore.Key, len(ids)), make([]datastore.PropertyList, len(ids))
		for i, id := range ids {
			keys[i] = a.key(kind, id)
		}
		multi := make(datastore.MultiError, len(ids))
		if err := tx.GetMulti(keys, lists); err != nil && !errors.As(err, &multi) {
			return err
		}
		for i, k := range keys {
			var is *found
			switch {
			case multi[i] == nil:
				is = a.found(kind, lists[i])
			case !errors.Is(multi[i], datastore.ErrNoSuchEntity):
				return multi[i]
			}
			var err error
			if v := decide(i, is); v.remove {
				err = tx.Delete(k)
			} else if v.put != nil {
				_, err = tx.Put(k, a.properties(kind, *v.put, true))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, datastore.MaxAttempts(1))
	return outcome(err)
}

func (a datastoreApp) list(ctx context.Context, kind string) (map[string]found, error) {
	var lists []datastore.PropertyList
	keys, err := a.client.GetAll(ctx, datastore.NewQuery(kind), &lists)
	all := map[string]found{}
	for i, k := range keys {
		id := k.Name
		if id == "" {
			id = strconv.FormatInt(k.ID, 10)
		}
		all[id] = *a.found(kind, lists[i])
	}
	return all, err
}

type nativeApp struct{ client *firestore.Client }

func openNative(t *testing.T, host, project string) app {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), project, append(dialing(), option.WithEndpoint(host))...)
	if err != nil {
		t.Fatal(err)
	}
	return nativeApp{client}
}

func (a nativeApp) close() error { return a.client.Close() }

func (a nativeApp) ref(kind, id string) *firestore.DocumentRef {
	return a.client.Collection(kind).Doc(id)
}

func (a nativeApp) fields(d doc) map[string]any {
	all := maps.Clone(d.fields)
	if d.expires != nil {
		all[d.property] = d.expires
	}
	return all
}

func (a nativeApp) get(ctx context.Context, kind string, ids []string) ([]*found, error) {
	refs := make([]*firestore.DocumentRef, len(ids))
	for i, id := range ids {
		refs[i] = a.ref(kind, id)
	}
	docs, err := a.client.GetAll(ctx, refs)
	if err != nil {
		return nil, err
	}
	all := make([]*found, len(ids))
	for i, d := range docs {
		if d.Exists() {
			all[i] = read(properties[kind], d.Data())
		}
	}
	return all, nil
}

func (a nativeApp) put(ctx context.Context, kind, id string, d doc) error {
	_, err := a.ref(kind, id).Set(ctx, a.fields(d))
	return outcome(err)
}

func (a nativeApp) create(ctx context.Context, kind, id string, d doc) error {
	_, err := a.ref(kind, id).Create(ctx, a.fields(d))
	return outcome(err)
}

func (a nativeApp) patch(ctx context.Context, kind, id string, d doc) error {
	var updates []firestore.Update
	for name, v := range d.fields {
		updates = append(updates, firestore.Update{Path: name, Value: v})
	}
	_, err := a.ref(kind, id).Update(ctx, updates)
	return outcome(err)
}

func (a nativeApp) remove(ctx context.Context, kind, id string) error {
	_, err := a.ref(kind, id).Delete(ctx)
	return outcome(err)
}

func (a nativeApp) change(ctx context.Context, kind, id string, decide func(*found) verdict) error {
	return a.changeAll(ctx, kind, []string{id}, func(_ int, is *found) verdict { return decide(is) })
}

func (a nativeApp) changeAll(ctx context.Context, kind string, ids []string, decide func(i int, is *found) verdict) error {
	return outcome(a.client.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		refs := make([]*firestore.DocumentRef, len(ids))
		for i, id := range ids {
			refs[i] = a.ref(kind, id)
		}
		docs, err := tx.GetAll(refs)
		if err != nil {
			return err
		}
		for i, ref := range refs {
			var is *found
			if docs[i].Exists() {
				is = read(properties[kind], docs[i].Data())
			}
			if v := decide(i, is); v.remove {
				err = tx.Delete(ref)
			} else if v.put != nil {
				err = tx.Set(ref, a.fields(*v.put))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, firestore.MaxAttempts(1)))
}

func (a nativeApp) list(ctx context.Context, kind string) (map[string]found, error) {
	docs, err := a.client.Collection(kind).Documents(ctx).GetAll()
	all := map[string]found{}
	for _, d := range docs {
		all[d.Ref.ID] = *read(properties[kind], d.Data())
	}
	return all, err
}
