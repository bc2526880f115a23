package bench_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	dssdk "cloud.google.com/go/datastore"
	fssdk "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/baseline"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
)

// expiryKeys fills a store whose ranges are shards without generations.
func expiryKeys(n int) filling {
	return filling{Stamper: generation.Stamper{Shards: shards}, n: n}
}

// lookedAround marks a target as looked at. Once a day a sweep looks around. The
// emulators, which have no index, take seconds for it: that is not compared here.
func lookedAround(tb testing.TB, s store.Store, t sweep.Target) {
	tb.Helper()
	if _, _, err := sweep.EnsureRecord(tb.Context(), configFor(s, t, 1), t); err != nil {
		tb.Fatal(err)
	}
	rec, now, err := generation.Load(tb.Context(), s, t.Name)
	if err != nil {
		tb.Fatal(err)
	}
	rec.Checked = now
	if _, err = generation.Save(tb.Context(), s, rec); err != nil {
		tb.Fatal(err)
	}
}

// expiredNames are those of the entities that a filling has expire, in pages.
func expiredNames(n int) (pages [][]string) {
	for i := 0; i < n; i += 2 {
		if i/2%store.MaxPage == 0 {
			pages = append(pages, nil)
		}
		pages[len(pages)-1] = append(pages[len(pages)-1], name(i))
	}
	return pages
}

// inPages works on pages side by side, as many as a sweep does, and returns how
// much there was in them.
func inPages[T any](pages [][]T, work func([]T) error) (n int, err error) {
	var group errgroup.Group
	group.SetLimit(workers)
	for _, page := range pages {
		n += len(page)
		group.Go(func() error { return work(page) })
	}
	return n, group.Wait()
}

// A dsProject is one on the emulator in Datastore mode.
type dsProject struct {
	*datastore.DB
	client *dssdk.Client
}

// datastoreRates compares in Datastore mode. Layout sharded has the ranges of the
// bare loop and no others: the emulator reads the whole kind for each query, an
// empty range's too.
func datastoreRates(tb testing.TB, r *report) {
	r.section("Google's emulator, Datastore mode", "Guard lookup: each page's entities are read in the transaction that deletes them. The naive loop and DeleteMulti check nothing. "+
		"The emulator has no index and reads the whole kind for each query; a sweep queries each of its ranges, the naive loop all at once.")
	if !emulator.Available(tb.Context()) {
		r.add("rates", "the emulator is not installed here", "")
		return
	}
	e := emulator.Start(tb, emulator.Datastore)
	tb.Setenv("DATASTORE_EMULATOR_HOST", e.Host) // what the client goes by
	type ready = func(context.Context) (int, error)
	list := []*contestant[dsProject]{
		{what: "sweep", ready: func(p dsProject) ready {
			return func(ctx context.Context) (int, error) { return sweeps(ctx, configFor(p.DB, sharded(), workers)) }
		}},
		{what: "bare loop, same scan, guard and concurrency", ready: func(p dsProject) ready {
			return func(ctx context.Context) (int, error) { return bareLoop(ctx, p.DB, 0) }
		}},
		{what: "naive loop, `Order(expires).Limit(500)` and DeleteMulti, again and again", ready: func(p dsProject) ready {
			return p.naive
		}},
		{what: "DeleteMulti of known keys, same concurrency", ready: func(p dsProject) ready {
			pages := expiredNames(r.cloud)
			return func(ctx context.Context) (int, error) {
				return inPages(pages, func(names []string) error {
					keys := make([]*dssdk.Key, len(names))
					for i, name := range names {
						keys[i] = dssdk.NameKey(target().Kind, name, nil)
					}
					return p.client.DeleteMulti(ctx, keys)
				})
			}
		}},
	}
	race(tb, r.rounds, r.cloud/2, r.warm, list, func(*contestant[dsProject]) (dsProject, func()) {
		project := e.Project(tb)
		db, err := datastore.Open(tb.Context(), datastore.Options{Project: project, Emulator: e.Host})
		if err != nil {
			tb.Fatal(err)
		}
		client, err := dssdk.NewClient(tb.Context(), project)
		if err != nil {
			tb.Fatal(err)
		}
		f := expiryKeys(r.cloud)
		f.numbers = true // for the naive loop, and carried by all
		f.into(tb, db)
		lookedAround(tb, db, sharded())
		return dsProject{db, client}, func() {
			closed(tb, client)
			closed(tb, db)
		}
	})
	results(r, list, "at least 0.95", "reported", "reported")
}

// naive is the collector that everybody writes first.
func (p dsProject) naive(ctx context.Context) (deleted int, err error) {
	q := dssdk.NewQuery(target().Kind).FilterField("expires", "<=", time.Now().UnixMicro()).Order("expires").KeysOnly().Limit(500)
	for {
		keys, err := p.client.GetAll(ctx, q, nil)
		if err != nil || len(keys) == 0 {
			return deleted, err
		}
		if err := p.client.DeleteMulti(ctx, keys); err != nil {
			return deleted, err
		}
		deleted += len(keys)
	}
}

// An fsProject is one on the emulator in native mode.
type fsProject struct {
	*firestore.DB
	client *fssdk.Client
	raw    firestorepb.FirestoreClient
	name   string
}

// nativeTarget has a plain timestamp, which is what the loops that everybody
// writes go by. More ranges would not show more: the emulator, which has no
// index, reads the whole collection for each query, one query after the other.
func nativeTarget() sweep.Target {
	t := target()
	t.Layout, t.Generations, t.Shards = "timestamp", false, 0
	t.Property, t.Type = "expires", store.Instant
	return t
}

// fillNative writes documents, every other one expired.
func fillNative(tb testing.TB, db *firestore.DB, f filling) {
	tb.Helper()
	now := time.Now()
	batch := make([]store.Entity, 0, f.page())
	for i := range f.n {
		at := now.Add(-time.Minute - time.Duration(i)*time.Second)
		if i%2 == 1 {
			at = now.Add(time.Hour + time.Duration(i)*time.Second)
		}
		batch = append(batch, store.Entity{Name: name(i), Expiry: store.InstantValue(at), Data: payload(i, f.size)})
		if len(batch) == cap(batch) || i == f.n-1 {
			if err := db.Put(tb.Context(), nativeTarget().Target, "", batch); err != nil {
				tb.Fatal(err)
			}
			batch = batch[:0]
		}
	}
}

// nativeRates compares in native mode.
func nativeRates(tb testing.TB, r *report) {
	r.section("Google's emulator, native mode", "A plain timestamp, in one range. The sweep and the bare loop delete each document on the condition that it is as it was at the scan; the others check nothing.")
	if !emulator.Available(tb.Context()) {
		r.add("rates", "the emulator is not installed here", "")
		return
	}
	e := emulator.Start(tb, emulator.Native)
	tb.Setenv("FIRESTORE_EMULATOR_HOST", e.Host) // what the client goes by
	conn, err := grpc.NewClient(e.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	defer closed(tb, conn)
	type ready = func(context.Context) (int, error)
	list := []*contestant[fsProject]{
		{what: "sweep", ready: func(p fsProject) ready {
			return func(ctx context.Context) (int, error) { return sweeps(ctx, configFor(p.DB, nativeTarget(), workers)) }
		}},
		{what: "bare loop, same scan, conditions and concurrency", ready: func(p fsProject) ready {
			return func(ctx context.Context) (int, error) {
				return baseline.Bare(ctx, p.DB, nativeTarget().Target, shardquery.Range{Form: layout.Instants}, time.Now(), 500)
			}
		}},
		{what: "naive loop, `orderBy(expires).limit(500)` and batch delete, again and again", ready: func(p fsProject) ready { return p.naive }},
		{what: "BatchWrite of known names, one call after the other", ready: func(p fsProject) ready {
			return func(ctx context.Context) (int, error) { return p.batchWrite(ctx, expiredNames(r.cloud)) }
		}},
		{what: "BulkWriter of known names, as it comes", ready: func(p fsProject) ready {
			return func(ctx context.Context) (int, error) { return p.bulk(ctx, expiredNames(r.cloud)) }
		}},
	}
	race(tb, r.rounds, r.cloud/2, r.warm, list, func(*contestant[fsProject]) (fsProject, func()) {
		p := fsProject{raw: firestorepb.NewFirestoreClient(conn), name: e.Project(tb)}
		var err error
		if p.DB, err = firestore.Open(tb.Context(), firestore.Options{Project: p.name, Emulator: e.Host}); err != nil {
			tb.Fatal(err)
		}
		if p.client, err = fssdk.NewClient(tb.Context(), p.name); err != nil {
			tb.Fatal(err)
		}
		fillNative(tb, p.DB, filling{n: r.cloud})
		lookedAround(tb, p.DB, nativeTarget())
		return p, func() {
			closed(tb, p.client)
			closed(tb, p.DB)
		}
	})
	results(r, list, "at least 0.95", "above 1", "reported", "above 1")
}

// naive is the collector that everybody writes first.
func (p fsProject) naive(ctx context.Context) (deleted int, err error) {
	q := p.client.Collection(target().Kind).Where("expires", "<=", time.Now()).OrderBy("expires", fssdk.Asc).Limit(500)
	for {
		docs, err := q.Documents(ctx).GetAll()
		if err != nil || len(docs) == 0 {
			return deleted, err
		}
		batch := p.client.Batch() //nolint:staticcheck // it is deprecated, and it is what everybody uses
		for _, d := range docs {
			batch.Delete(d.Ref)
		}
		if _, err := batch.Commit(ctx); err != nil {
			return deleted, err
		}
		deleted += len(docs)
	}
}

// batchWrite deletes without a condition what it need not look for. One call
// follows the other, as in the one range that the sweep has.
func (p fsProject) batchWrite(ctx context.Context, pages [][]string) (deleted int, err error) {
	database := "projects/" + p.name + "/databases/(default)"
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer owner", "google-cloud-resource-prefix", database)
	for _, names := range pages {
		req := &firestorepb.BatchWriteRequest{Database: database}
		for _, name := range names {
			req.Writes = append(req.Writes, &firestorepb.Write{Operation: &firestorepb.Write_Delete{Delete: database + "/documents/" + target().Kind + "/" + name}})
		}
		reply, err := p.raw.BatchWrite(ctx, req)
		if err != nil {
			return deleted, err
		}
		for _, s := range reply.GetStatus() {
			if s.GetCode() != int32(code.Code_OK) {
				return deleted, fmt.Errorf("batch write: %v", s)
			}
			deleted++
		}
	}
	return deleted, nil
}

func (p fsProject) bulk(ctx context.Context, pages [][]string) (deleted int, err error) {
	w := p.client.BulkWriter(ctx)
	var jobs []*fssdk.BulkWriterJob
	for _, names := range pages {
		for _, name := range names {
			job, err := w.Delete(p.client.Collection(target().Kind).Doc(name))
			if err != nil {
				return 0, err
			}
			jobs = append(jobs, job)
		}
	}
	w.End()
	for _, j := range jobs {
		if _, err := j.Results(); err != nil {
			return deleted, err
		}
		deleted++
	}
	return deleted, nil
}
