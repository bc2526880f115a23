package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/reaper-ttl/reaper/store"
)

func TestInvalidCalls(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	ctx := t.Context()
	mustPut(t, db, entities(0, 2)...)
	put := func(e store.Entity) error { return db.Put(ctx, sessions, "", append(entities(10, 1), e)) }
	other := func(text string) store.Entity {
		return store.Entity{Name: "x", Expiry: store.Value{Type: store.Other, Text: text}}
	}
	scan := func(change func(*store.Query)) error {
		q := everything()
		change(&q)
		return db.Scan(ctx, q, new(store.Page))
	}
	record := func(change func(*store.Record)) error {
		r := cursor(1, "")
		change(&r)
		return db.Save(ctx, r, "")
	}
	long := strings.Repeat("x", maxIndexed+1)
	for what, err := range map[string]error{
		"put: a namespace":         db.Put(ctx, sessions, "tenant", entities(10, 1)),
		"put: no kind":             db.Put(ctx, store.Target{Property: "p"}, "", entities(10, 1)),
		"put: no property":         db.Put(ctx, store.Target{Kind: "K"}, "", entities(10, 1)),
		"put: no id":               put(store.Entity{}),
		"put: id and name":         put(store.Entity{Name: "x", Number: 3}),
		"put: negative id":         put(store.Entity{Number: -3}),
		"put: long id":             put(store.Entity{Name: long}),
		"put: id of broken UTF-8":  put(store.Entity{Name: "a\xff"}),
		"put: a parent":            put(store.Entity{Name: "x", Parent: "User/1"}),
		"put: data no object":      put(store.Entity{Name: "x", Data: []byte("[1]")}),
		"put: data no JSON":        put(store.Entity{Name: "x", Data: []byte("{")}),
		"put: empty data":          put(store.Entity{Name: "x", Data: []byte{}}),
		"put: long expiry":         put(store.Entity{Name: "x", Expiry: store.TextValue(long)}),
		"put: broken expiry":       put(store.Entity{Name: "x", Expiry: store.TextValue("a\xff")}),
		"put: year 10000":          put(store.Entity{Name: "x", Expiry: store.Value{Type: store.Instant, Time: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}),
		"put: year 0":              put(store.Entity{Name: "x", Expiry: store.Value{Type: store.Instant, Time: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}}),
		"put: expiry no JSON":      put(other("{")),
		"put: expiry a string":     put(other(`"x"`)),
		"put: expiry nothing":      put(other("")),
		"put: list no list":        put(store.Entity{Name: "x", Expiry: store.Value{Type: store.List, Text: "1"}}),
		"put: long element":        put(store.Entity{Name: "x", Expiry: store.Value{Type: store.List, Text: fmt.Sprintf("[%q]", long)}}),
		"put: unknown type":        put(store.Entity{Name: "x", Expiry: store.Value{Type: 77}}),
		"scan: limit 0":            scan(func(q *store.Query) { q.Limit = 0 }),
		"scan: limit 501":          scan(func(q *store.Query) { q.Limit = store.MaxPage + 1 }),
		"scan: a namespace":        scan(func(q *store.Query) { q.Namespace = "tenant" }),
		"scan: a list as bound":    scan(func(q *store.Query) { q.Lo = store.Value{Type: store.List, Text: "[]"} }),
		"scan: nonsense as bound":  scan(func(q *store.Query) { q.Hi = store.Value{Type: store.Other, Text: "x"} }),
		"scan: position of no key": scan(func(q *store.Query) { q.After = store.Position{Value: expiry(0), Key: "x"} }),
		"scan: position of a list": scan(func(q *store.Query) { q.After = store.Position{Value: store.Value{Type: store.List}, Key: "1"} }),
		"dispose: no key":          db.Dispose(ctx, batchOf(store.Entry{Key: "x", Value: expiry(0)})),
		"dispose: no value":        db.Dispose(ctx, batchOf(store.Entry{Key: `"x"`})),
		"dispose: 501":             db.Dispose(ctx, batchOf(make([]store.Entry, store.MaxPage+1)...)),
		"save: no sort":            record(func(r *store.Record) { r.Sort = "" }),
		"save: no key":             record(func(r *store.Record) { r.Key = "" }),
		"save: no target":          record(func(r *store.Record) { r.Target = "" }),
		"save: no revision":        record(func(r *store.Record) { r.Revision = "" }),
		"save: an int":             record(func(r *store.Record) { r.Fields["n"] = 1 }),
		"save: a nil":              record(func(r *store.Record) { r.Fields["n"] = nil }),
		"save: broken UTF-8":       record(func(r *store.Record) { r.Fields["s"] = "\xff" }),
		"save: not finite":         record(func(r *store.Record) { r.Fields["f"] = 1 / zero }),
		"drop: empty span":         db.Drop(ctx, sessions, "b", "a"),
	} {
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := db.Put(ctx, sessions, "", entities(10, store.MaxPage+1)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("put of 501: %v", err)
	}
	big := entities(10, 2)
	for i := range big {
		big[i].Data = []byte(`{"x":"` + strings.Repeat("y", maxPut/2) + `"}`)
	}
	if err := db.Put(ctx, sessions, "", big); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("put of more bytes than one call takes: %v", err)
	}
	if got := scanAll(t, db); len(got) != 2 {
		t.Errorf("%d entities are there, not the 2 from before", len(got))
	}
	if len(load(t, db)) != 0 {
		t.Error("a record was saved")
	}
	checkRows(t, db)
}

var zero float64

// TestLargeEntities go through the engine's path for batches that no memtable
// takes.
func TestLargeEntities(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	put := entities(0, 4)
	for i := range put {
		put[i].Data = []byte(`{"x":"` + strings.Repeat("y", 2<<20) + `"}`)
	}
	mustPut(t, db, put...)
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	b := batchOf(scanAll(t, db)[:2]...)
	if err := db.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range db.Dump(t.Context(), sessions, "") {
		if err != nil || len(e.Data) != len(put[0].Data) {
			t.Errorf("%s has %d bytes; %v", e.Name, len(e.Data), err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d are left, not 2", n)
	}
}

// TestSaveWaitsForTheDiskAlone: while one waits for the disk, others write.
func TestSaveWaitsForTheDiskAlone(t *testing.T) {
	var armed atomic.Bool
	syncing, goOn := make(chan struct{}, 100), make(chan struct{})
	fsys := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		isSync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		if armed.Load() && isSync && strings.HasSuffix(op.Path, ".log") {
			syncing <- struct{}{}
			<-goOn
		}
		return nil
	}))
	db := openIn(t, fsys)
	defer closeDB(t, db)
	mustPut(t, db, entities(0, 10)...)
	armed.Store(true)
	saved := make(chan error, 1)
	go func() { saved <- db.Save(t.Context(), cursor(1, ""), "") }()
	within(t, "the sync", func() { <-syncing })
	within(t, "a dispose during a save", func() {
		if err := db.Dispose(t.Context(), batchOf(scanAll(t, db)[:5]...)); err != nil {
			t.Error(err)
		}
	})
	select {
	case err := <-saved:
		t.Errorf("save did not wait for the disk: %v", err)
	default:
	}
	armed.Store(false)
	close(goOn)
	within(t, "the save", func() {
		if err := <-saved; err != nil {
			t.Error(err)
		}
	})
}

// TestWritersWaitForRoom: with many sublevels a writer waits, but not longer than
// its context, a compaction or a fault.
func TestWritersWaitForRoom(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer func() { _ = db.Close() }()
	crowd := func() {
		db.stale.Store(false)
		db.sublevels.Store(crowded)
	}
	ctx, cancel := context.WithCancel(t.Context())
	wait := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() { done <- db.room(ctx) }()
		return done
	}
	crowd()
	first, second := wait(ctx), wait(t.Context())
	cancel()
	within(t, "a writer whose context is done", func() {
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
	db.roomier() // of which the engine finds that there is room
	within(t, "a writer when there is room", func() {
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
	crowd()
	third := wait(t.Context())
	db.fault.set(classify("test", syscall.EIO))
	within(t, "a writer when the store fails", func() {
		if err := <-third; !errors.Is(err, store.ErrFailed) {
			t.Error(err)
		}
	})
}

// TestCancelInTheMiddle: a long scan or count ends soon after its context.
func TestCancelInTheMiddle(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	defer closeDB(t, db)
	for i := range 4 {
		mustPut(t, db, entities(i*500, 500)...)
	}
	looks := 0
	ctx := &lookingContext{Context: t.Context(), look: func() error {
		if looks++; looks > 2 {
			return context.Canceled
		}
		return nil
	}}
	if n, err := db.Count(ctx, sessions, "", store.Span{}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("count: %d, %v", n, err)
	}
	looks = 0
	if err := db.Drop(ctx, store.Target{Kind: sessions.Kind, Property: "none"}, "a", "b"); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("drop: %v", err)
	}
	b := batchOf(scanAll(t, db)[:100]...)
	looks = 1
	if err := db.Dispose(ctx, b); !errors.Is(err, context.Canceled) {
		t.Errorf("dispose: %v", err)
	}
	for i := range b.Ops {
		if b.Ops[i].Outcome != store.Unknown {
			t.Fatalf("op %d of a cancelled batch: outcome %d", i, b.Ops[i].Outcome)
		}
	}
	if got := len(scanAll(t, db)); got != 2000 {
		t.Errorf("%d entities after a cancelled batch", got)
	}
}

// A lookingContext is done when look says so.
type lookingContext struct {
	context.Context
	look func() error
}

func (c *lookingContext) Err() error { return c.look() }
