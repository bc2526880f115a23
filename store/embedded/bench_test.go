package embedded_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

var benchTarget = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}

const benchShards = 16

// fillBench puts n entities, every other one expired at noon, and returns noon.
func fillBench(tb testing.TB, db *embedded.DB, n int) time.Time {
	tb.Helper()
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	batch := make([]store.Entity, 0, store.MaxPage)
	for i := range n {
		name := fmt.Sprintf("s-%07d", i)
		at := noon.Add(-time.Duration(i%86_400_000) * time.Millisecond)
		if i%2 == 1 {
			at = noon.Add(time.Duration(i%86_400_000+1) * time.Millisecond)
		}
		key, err := expirykey.New(1, expirykey.ShardOfName(name, benchShards), at)
		if err != nil {
			tb.Fatal(err)
		}
		batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(key.String()), Data: []byte(`{"user":"u7"}`)})
		if len(batch) == cap(batch) || i == n-1 {
			if err := db.Put(context.Background(), benchTarget, "", batch); err != nil {
				tb.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	if err := db.Flush(); err != nil {
		tb.Fatal(err)
	}
	return noon
}

// sweepBench scans and disposes of one range, page by page.
func sweepBench(db *embedded.DB, shard int, noon time.Time, archive store.Archive) (deleted int, err error) {
	last, _ := expirykey.UpTo(1, shard, noon)
	q := store.Query{Target: benchTarget, Lo: store.TextValue(expirykey.Prefix(1, shard)), Hi: store.TextValue(last), Limit: store.MaxPage,
		Archive: archive}
	var page store.Page
	var batch store.Batch
	for {
		if err := db.Scan(context.Background(), q, &page); err != nil {
			return deleted, err
		}
		batch.Query, batch.Ops = q, batch.Ops[:0]
		for _, e := range page.Entries {
			batch.Ops = append(batch.Ops, store.Op{Entry: e})
		}
		if err := db.Dispose(context.Background(), &batch); err != nil {
			return deleted, err
		}
		for i := range batch.Ops {
			if batch.Ops[i].Outcome == store.Deleted {
				deleted++
			}
		}
		if !page.More {
			return deleted, nil
		}
		q.After = page.Entries[len(page.Entries)-1].Position()
	}
}

// BenchmarkSweep scans and deletes the expired half of 1,000,000 entities in 16
// ranges at once, in pages of 500.
func BenchmarkSweep(b *testing.B) {
	const entities = 1_000_000
	for _, hold := range []bool{false, true} {
		b.Run(fmt.Sprintf("hold=%v", hold), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				db, err := embedded.Open(b.TempDir(), embedded.Options{Now: time.Now, Create: true, HoldCompaction: hold})
				if err != nil {
					b.Fatal(err)
				}
				loading := time.Now()
				noon := fillBench(b, db, entities)
				b.ReportMetric(entities/time.Since(loading).Seconds(), "loads/s")
				b.StartTimer()
				start := time.Now()
				var wait sync.WaitGroup
				var total atomic.Int64
				for shard := range benchShards {
					wait.Go(func() {
						n, err := sweepBench(db, shard, noon, nil)
						if err != nil {
							b.Error(err)
						}
						total.Add(int64(n))
					})
				}
				wait.Wait()
				if err := db.Flush(); err != nil {
					b.Fatal(err)
				}
				if total.Load() != entities/2 {
					b.Fatalf("deleted %d, not %d", total.Load(), entities/2)
				}
				b.ReportMetric(float64(total.Load())/time.Since(start).Seconds(), "deletes/s")
				b.StopTimer()
				if err := db.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A discarding Archive keeps nothing.
type discarding struct{ bytes int64 }

func (d *discarding) Keep(_ context.Context, list []store.Copy) error {
	for _, c := range list {
		d.bytes += int64(len(c.Data))
	}
	return nil
}

// BenchmarkArchive deletes the expired half of 100,000 entities with and without an Archive that discards, in turns.
func BenchmarkArchive(b *testing.B) {
	const entities = 100_000
	sweep := func(archive store.Archive) time.Duration {
		db, err := embedded.Open(b.TempDir(), embedded.Options{Now: time.Now, Create: true})
		if err != nil {
			b.Fatal(err)
		}
		noon, start := fillBench(b, db, entities), time.Now()
		for shard := range benchShards {
			if _, err := sweepBench(db, shard, noon, archive); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(start)
		if err := db.Close(); err != nil {
			b.Fatal(err)
		}
		return took
	}
	var plain, archived time.Duration
	into := new(discarding)
	for range b.N {
		plain += sweep(nil)
		archived += sweep(into)
	}
	deleted := float64(b.N) * entities / 2
	b.ReportMetric(deleted/plain.Seconds(), "deletes/s")
	b.ReportMetric(deleted/archived.Seconds(), "archived/s")
	b.ReportMetric(archived.Seconds()/plain.Seconds(), "ratio")
	b.ReportMetric(float64(into.bytes)/deleted, "bytes/copy")
}
