package bench_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	native "cloud.google.com/go/firestore"
	"github.com/reaper-ttl/reaper/bench"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
)

// nativeTarget has a plain timestamp, which is what the loops that everybody
// writes go by. More ranges would not show more: the emulator, which has no
// index, reads the whole collection for each query, one query after the other.
func nativeTarget() sweep.Target {
	t := target()
	t.Layout, t.Generations, t.Shards = "timestamp", false, 0
	t.Property, t.Type = "expires", store.Instant
	return t
}

// fillNative writes n documents, every other one expired.
func fillNative(b *testing.B, db *firestore.DB, n int) {
	b.Helper()
	now := time.Now()
	batch := make([]store.Entity, 0, store.MaxPage)
	for i := range n {
		at := now.Add(-time.Minute - time.Duration(i)*time.Second)
		if i%2 == 1 {
			at = now.Add(time.Hour + time.Duration(i)*time.Second)
		}
		batch = append(batch, store.Entity{Name: fmt.Sprintf("session-%07d", i), Expiry: store.InstantValue(at), Data: []byte(`{"user":"u7"}`)})
		if len(batch) == cap(batch) || i == n-1 {
			if err := db.Put(b.Context(), nativeTarget().Target, "", batch); err != nil {
				b.Fatal(err)
			}
			batch = batch[:0]
		}
	}
}

// A nativeContestant empties a database of what has expired, in its own way.
type nativeContestant struct {
	what  string
	rates []float64
	run   func(ctx context.Context, db *firestore.DB, client *native.Client) (deleted int, err error)
}

func nativeRates(b *testing.B, r *report) {
	if !emulator.Available(b.Context()) {
		r.add("Google's emulator, native mode", "not installed here", "")
		return
	}
	e := emulator.Start(b, emulator.Native)
	b.Setenv("FIRESTORE_EMULATOR_HOST", e.Host) // what the client goes by
	contestants := []*nativeContestant{
		{what: "sweep", run: nativeSweep},
		{what: "bare loop, same scan, conditions and concurrency", run: nativeBare},
		{what: "`orderBy(expires).limit(500)` and batch delete, again and again", run: nativePlain},
		{what: "BulkWriter on names already known", run: nativeBulk},
	}
	for i := range *rounds + 1 { // the first warms the emulator up
		for _, c := range contestants {
			project := e.Project(b)
			db, err := firestore.Open(b.Context(), firestore.Options{Project: project, Emulator: e.Host})
			if err != nil {
				b.Fatal(err)
			}
			client, err := native.NewClient(b.Context(), project)
			if err != nil {
				b.Fatal(err)
			}
			fillNative(b, db, *cloud)
			if c.what == "sweep" { // as for the other emulator: the daily look around is not compared
				if _, err := sweep.EnsureRecord(b.Context(), nativeConfig(db), nativeTarget()); err != nil {
					b.Fatal(err)
				}
				if err := lookedAround(b.Context(), db); err != nil {
					b.Fatal(err)
				}
			}
			began := time.Now()
			deleted, err := c.run(b.Context(), db, client)
			took := time.Since(began)
			if err != nil {
				b.Fatalf("%s: %v", c.what, err)
			}
			if want := *cloud / 2; deleted != want {
				b.Fatalf("%s: deleted %d of %d", c.what, deleted, want)
			}
			if i > 0 {
				c.rates = append(c.rates, float64(*cloud/2)/took.Seconds())
			}
			if err := client.Close(); err != nil {
				b.Fatal(err)
			}
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, c := range contestants {
		r.add("native emulator: "+c.what, rate(c.rates), "")
	}
	r.ratio("**native emulator: sweep / bare loop**", ratios(contestants[0].rates, contestants[1].rates), "at least 0.9")
	r.ratio("**native emulator: sweep / orderBy loop**", ratios(contestants[0].rates, contestants[2].rates), "above 1")
	r.ratio("**native emulator: sweep / BulkWriter**", ratios(contestants[0].rates, contestants[3].rates), "above 1")
}

func nativeConfig(db *firestore.DB) sweep.Config {
	c := config(db, workers)
	c.Targets[0] = nativeTarget()
	return c
}

func nativeSweep(ctx context.Context, db *firestore.DB, _ *native.Client) (int, error) {
	res := sweep.Run(ctx, nativeConfig(db)).Targets[0]
	return int(res.Deleted), res.Err
}

func nativeBare(ctx context.Context, db *firestore.DB, _ *native.Client) (int, error) {
	return bench.Bare(ctx, db, nativeTarget().Target, shardquery.Range{Instants: true}, time.Now(), 500)
}

// nativePlain is the collector that everybody writes first.
func nativePlain(ctx context.Context, _ *firestore.DB, client *native.Client) (deleted int, err error) {
	q := client.Collection("Session").Where("expires", "<=", time.Now()).OrderBy("expires", native.Asc).Limit(500)
	for {
		docs, err := q.Documents(ctx).GetAll()
		if err != nil || len(docs) == 0 {
			return deleted, err
		}
		batch := client.Batch() //nolint:staticcheck // it is deprecated, and it is what everybody uses
		for _, d := range docs {
			batch.Delete(d.Ref)
		}
		if _, err := batch.Commit(ctx); err != nil {
			return deleted, err
		}
		deleted += len(docs)
	}
}

// nativeBulk deletes documents whose names it need not look for.
func nativeBulk(ctx context.Context, _ *firestore.DB, client *native.Client) (int, error) {
	w := client.BulkWriter(ctx)
	var jobs []*native.BulkWriterJob
	for i := 0; i < *cloud; i += 2 {
		job, err := w.Delete(client.Collection("Session").Doc(fmt.Sprintf("session-%07d", i)))
		if err != nil {
			return 0, err
		}
		jobs = append(jobs, job)
	}
	w.End()
	for _, j := range jobs {
		if _, err := j.Results(); err != nil {
			return 0, err
		}
	}
	return len(jobs), nil
}

// BenchmarkNative measures the native emulator alone.
func BenchmarkNative(b *testing.B) {
	for b.Loop() {
		r := &report{}
		nativeRates(b, r)
		fmt.Printf("\n%s\n", r.markdown())
	}
}
