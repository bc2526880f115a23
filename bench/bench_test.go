package bench_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/bench"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

var (
	entities = flag.Int("entities", 1_000_000, "entities in the embedded store, half of them expired")
	cloud    = flag.Int("cloud-entities", 20_000, "entities on Google's emulator, half of them expired")
	rounds   = flag.Int("rounds", 5, "rounds of each comparison, in turns")
	output   = flag.String("o", "", "write the table to this file, too")
)

const (
	shards  = 16
	workers = 16
	// childEnv makes the test binary empty the store in this directory and print
	// its own peak memory; bareEnv has it do so with the bare loop.
	childEnv = "BENCH_EMPTIES"
	bareEnv  = "BENCH_BARE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	emulator.Main(m)
}

func target() sweep.Target {
	return sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text, Guard: store.GuardLookup},
		Layout: "generation", Generations: true, Shards: shards, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true},
	}
}

func config(s store.Store, atOnce int) sweep.Config {
	return sweep.Config{Store: s, Targets: []sweep.Target{target()}, Apply: true, Workers: atOnce, Grace: time.Second,
		Owner: "bench", Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func open(tb testing.TB, hold bool) *embedded.DB {
	tb.Helper()
	db, err := embedded.Open(tb.TempDir(), embedded.Options{Create: true, Now: time.Now, HoldCompaction: hold})
	if err != nil {
		tb.Fatal(err)
	}
	return db
}

func closed(tb testing.TB, db *embedded.DB) {
	tb.Helper()
	if err := db.Close(); err != nil {
		tb.Fatal(err)
	}
}

// fill writes n entities, every other one expired.
func fill(tb testing.TB, w store.Writer, n int, stamp generation.Stamper) {
	tb.Helper()
	now := time.Now()
	var group errgroup.Group
	group.SetLimit(2)
	for first := 0; first < n; first += store.MaxPage {
		group.Go(func() error {
			batch := make([]store.Entity, 0, store.MaxPage)
			for i := first; i < min(n, first+store.MaxPage); i++ {
				part := time.Duration(uint64(i) * 0x9E3779B97F4A7C15 % uint64(24*time.Hour))
				at := now.Add(-time.Minute - part)
				if i%2 == 1 {
					at = now.Add(time.Hour + part)
				}
				name := fmt.Sprintf("session-%07d", i)
				key, err := stamp.Name(name, at)
				if err != nil {
					return err
				}
				batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(key.String()), Data: []byte(`{"user":"u7"}`)})
			}
			return w.Put(tb.Context(), target().Target, "", batch)
		})
	}
	if err := group.Wait(); err != nil {
		tb.Fatal(err)
	}
	if f, ok := w.(*embedded.DB); ok {
		if err := f.Flush(); err != nil {
			tb.Fatal(err)
		}
	}
}

// swept sweeps and returns deletes per second.
func swept(tb testing.TB, c sweep.Config, want int) float64 {
	tb.Helper()
	began := time.Now()
	res := sweep.Run(tb.Context(), c)
	took := time.Since(began)
	if !res.Complete || res.Targets[0].Deleted != int64(want) {
		tb.Fatalf("deleted %d of %d: %s", res.Targets[0].Deleted, want, res.Targets[0].Error)
	}
	return float64(want) / took.Seconds()
}

// bare measures the bare loop over all ranges of a generation.
func bare(tb testing.TB, s store.Store, generation, want int) float64 {
	tb.Helper()
	began := time.Now()
	sum, err := bareLoop(tb.Context(), s, generation)
	if f, ok := s.(*embedded.DB); ok && err == nil {
		err = f.Flush() // the sweep's last records are synced, too
	}
	took := time.Since(began)
	if err != nil || sum != want {
		tb.Fatalf("deleted %d of %d: %v", sum, want, err)
	}
	return float64(want) / took.Seconds()
}

func bareLoop(ctx context.Context, s store.Store, generation int) (sum int, err error) {
	var group errgroup.Group
	group.SetLimit(workers)
	var mu sync.Mutex
	for shard := range shards {
		group.Go(func() error {
			n, err := bench.Bare(ctx, s, target().Target, shardquery.Range{Generation: generation, Shard: shard}, time.Now(), 500)
			mu.Lock()
			defer mu.Unlock()
			sum += n
			return err
		})
	}
	err = group.Wait()
	return sum, err
}

// known deletes entries that were looked up before the clock was started.
func known(tb testing.TB, s store.Store, want int) float64 {
	tb.Helper()
	var batches []*store.Batch
	for shard := range shards {
		r := shardquery.Range{Generation: 1, Shard: shard}
		hi, _ := r.UpTo(time.Now())
		q := store.Query{Target: target().Target, Lo: r.Lo(time.Time{}), Hi: hi, Limit: 500}
		for more := true; more; {
			var page store.Page
			if err := s.Scan(tb.Context(), q, &page); err != nil {
				tb.Fatal(err)
			}
			b := &store.Batch{Query: q}
			for _, e := range page.Entries {
				b.Ops = append(b.Ops, store.Op{Entry: e})
				q.After = e.Position()
			}
			if more = page.More; len(b.Ops) > 0 {
				batches = append(batches, b)
			}
		}
	}
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(workers)
	for _, b := range batches {
		group.Go(func() error { return s.Dispose(tb.Context(), b) })
	}
	err := group.Wait()
	if f, ok := s.(*embedded.DB); ok && err == nil {
		err = f.Flush()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return float64(want) / time.Since(began).Seconds()
}

// child is the process whose memory is measured.
func child(dir string) error {
	db, err := embedded.Open(dir, embedded.Options{Now: time.Now})
	if err != nil {
		return err
	}
	if os.Getenv(bareEnv) != "" {
		_, err = bareLoop(context.Background(), db, 1)
	} else if res := sweep.Run(context.Background(), config(db, workers)); !res.Complete {
		err = fmt.Errorf("sweep: %s", res.Targets[0].Error)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			fmt.Println(strings.Fields(text)[0])
		}
	}
	return nil
}

// peak returns the peak memory in MiB of a process that sweeps n entities, or
// deletes them with the bare loop.
func peak(tb testing.TB, n int, bare bool) float64 {
	tb.Helper()
	dir := tb.TempDir()
	db, err := embedded.Open(dir, embedded.Options{Create: true, Now: time.Now})
	if err != nil {
		tb.Fatal(err)
	}
	fill(tb, db, n, generation.Stamper{Generation: 1, Shards: shards})
	closed(tb, db)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	if bare {
		cmd.Env = append(cmd.Env, bareEnv+"=1")
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%v\n%s", err, &errs)
	}
	var kib float64
	if _, err := fmt.Sscan(string(out), &kib); err != nil {
		tb.Fatalf("%q: %v", out, err)
	}
	return kib / 1024
}

// A counted store counts calls.
type counted struct {
	bench.Local
	mu    sync.Mutex
	calls map[string]int
}

func (c *counted) count(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[method]++
}

func (c *counted) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	c.count("scan")
	return c.Local.Scan(ctx, q, p)
}

func (c *counted) Dispose(ctx context.Context, b *store.Batch) error {
	c.count("write")
	return c.Local.Dispose(ctx, b)
}

func (c *counted) Load(ctx context.Context, s store.RecordSort, t string) (store.Records, error) {
	c.count("load")
	return c.Local.Load(ctx, s, t)
}

func (c *counted) Save(ctx context.Context, r store.Record, prev string) error {
	c.count("write")
	return c.Local.Save(ctx, r, prev)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// A report is one table.
type report struct{ rows [][3]string }

func (r *report) add(what, figure, wanted string) {
	r.rows = append(r.rows, [3]string{what, figure, wanted})
}

func rate(v []float64) string { return fmt.Sprintf("%.0f deletes/s", median(v)) }

func (r *report) ratio(what string, v []float64, wanted string) {
	r.add(what, fmt.Sprintf("%.2f (%.2f to %.2f)", median(v), slices.Min(v), slices.Max(v)), wanted)
}

func (r *report) markdown() string {
	commit := "unknown"
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\nWritten by `make bench` on %s: %s/%s, %d cores, %s, commit %s.\n\n", time.Now().UTC().Format("2 January 2006"),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), commit)
	fmt.Fprintf(&b, "Embedded: %d entities, half of them expired, %d shards, %d workers, pages of 500. Emulator: %d entities.\nRates and ratios are medians of %d rounds, in which the contestants take turns; in brackets, lowest and highest.\nThe machines that this runs on are shared: trust the ratios, not the rates.\n\n", *entities, shards, workers, *cloud, *rounds)
	b.WriteString("| what | measured | aim |\n| --- | --- | --- |\n")
	for _, row := range r.rows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row[0], row[1], row[2])
	}
	return b.String()
}

// BenchmarkTable measures everything side by side and prints one table. No
// figure makes it fail: these are times, on machines that others use, too.
func BenchmarkTable(b *testing.B) {
	for b.Loop() {
		r := &report{}
		embeddedRates(b, r)
		latencies(b, r)
		generations(b, r)
		idle(b, r)
		memory(b, r)
		emulatorRates(b, r)
		nativeRates(b, r)
		text := r.markdown()
		fmt.Printf("\n%s\n", text)
		if *output != "" {
			if err := os.WriteFile(*output, []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func embeddedRates(b *testing.B, r *report) {
	var ours, loop, keys []float64
	for range *rounds {
		for _, contestant := range []struct {
			into *[]float64
			run  func(*embedded.DB) float64
		}{
			{&ours, func(db *embedded.DB) float64 { return swept(b, config(db, workers), *entities/2) }},
			{&loop, func(db *embedded.DB) float64 { return bare(b, db, 1, *entities/2) }},
			{&keys, func(db *embedded.DB) float64 { return known(b, db, *entities/2) }},
		} {
			db := open(b, false)
			fill(b, db, *entities, generation.Stamper{Generation: 1, Shards: shards})
			runtime.GC()
			*contestant.into = append(*contestant.into, contestant.run(db))
			closed(b, db)
		}
	}
	r.add("embedded: sweep", rate(ours), "")
	r.add("embedded: bare loop, same pages, check and durability", rate(loop), "")
	r.add("embedded: deletes of keys already known, same check", rate(keys), "")
	r.ratio("**embedded: sweep / bare loop**", ratios(ours, loop), "at least 0.8")
	r.ratio("embedded: sweep / known keys", ratios(ours, keys), "reported")
}

func latencies(b *testing.B, r *report) {
	var growth [2][]float64
	var last [2][]int64
	const most = 400 // pages of the plain collector, whose work grows with their square
	plainPages := 0
	for range min(3, *rounds) {
		for i := range growth {
			var pages bench.Pages
			db := open(b, true)
			if i == 0 {
				fill(b, db, *entities, generation.Stamper{Generation: 1, Shards: shards})
				swept(b, config(bench.Watched{Local: db, Now: time.Now, Pages: &pages}, 1), *entities/2)
			} else {
				fill(b, db, *entities, generation.Stamper{Shards: 1})
				if _, err := bench.Plain(b.Context(), db, target().Target, time.Now, most, &pages); err != nil {
					b.Fatal(err)
				}
				plainPages = pages.Count()
			}
			closed(b, db)
			stepped, latency := pages.Tenths()
			growth[i] = append(growth[i], latency[len(latency)-1]/math.Max(latency[0], 0.001))
			last[i] = append(last[i], stepped[len(stepped)-1])
		}
	}
	r.ratio("**compaction held back: page latency, last tenth / first tenth, sweep**", growth[0], "at most 1.5")
	r.ratio(fmt.Sprintf("the same, plain `ORDER BY expires LIMIT 500` (its first %d pages)", plainPages), growth[1], "reported")
	r.add("points stepped over per page in the last tenth, sweep / plain", fmt.Sprintf("%d / %d", last[0][0], last[1][0]), "does not grow")
}

func idle(b *testing.B, r *report) {
	db := open(b, false)
	defer closed(b, db)
	fill(b, db, 10_000, generation.Stamper{Generation: 1, Shards: shards})
	swept(b, config(db, workers), 5_000)
	c := &counted{Local: db, calls: map[string]int{}}
	swept(b, config(c, workers), 0)
	r.add("an idle sweep of 32 ranges", fmt.Sprintf("%d queries, %d record loads, %d writes", c.calls["scan"], c.calls["load"], c.calls["write"]), "32, 2, 0")
}

func memory(b *testing.B, r *report) {
	sizes := []int{*entities / 10, *entities, 3 * *entities}
	var ours, engine []string
	for _, n := range sizes {
		ours = append(ours, fmt.Sprintf("%.0f", peak(b, n, false)))
		engine = append(engine, fmt.Sprintf("%.0f", peak(b, n, true)))
	}
	r.add(fmt.Sprintf("**peak memory of a sweep of %d, %d and %d entities**", sizes[0], sizes[1], sizes[2]), strings.Join(ours, ", ")+" MiB", "under 300 MiB")
	r.add("the same for the bare loop: what the store itself takes", strings.Join(engine, ", ")+" MiB", "sweep no more than this")
}

func emulatorRates(b *testing.B, r *report) {
	if !emulator.Available(b.Context()) {
		r.add("Google's emulator, Datastore mode", "not installed here", "")
		return
	}
	e := emulator.Start(b, emulator.Datastore)
	// Layout sharded has the ranges of the bare loop and no others: the emulator
	// reads the whole kind for each query, an empty range's too.
	sharded := func(db *datastore.DB) sweep.Config {
		c := config(db, workers)
		c.Targets[0].Layout, c.Targets[0].Generations = "sharded", false
		return c
	}
	var ours, loop []float64
	for i := range *rounds + 1 { // the first warms the emulator up
		for _, contestant := range []struct {
			into *[]float64
			run  func(*datastore.DB) float64
		}{
			{&ours, func(db *datastore.DB) float64 { return swept(b, sharded(db), *cloud/2) }},
			{&loop, func(db *datastore.DB) float64 { return bare(b, db, 0, *cloud/2) }},
		} {
			db, err := datastore.Open(b.Context(), datastore.Options{Project: e.Project(b), Emulator: e.Host})
			if err != nil {
				b.Fatal(err)
			}
			fill(b, db, *cloud, generation.Stamper{Shards: shards})
			// Once a day a sweep looks around. The emulator, which has no index,
			// takes seconds for it: that is not what is compared here.
			if _, err := sweep.EnsureRecord(b.Context(), sharded(db), sharded(db).Targets[0]); err != nil {
				b.Fatal(err)
			}
			if err := lookedAround(b.Context(), db); err != nil {
				b.Fatal(err)
			}
			if rate := contestant.run(db); i > 0 {
				*contestant.into = append(*contestant.into, rate)
			}
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	r.add("emulator, guard lookup: sweep", rate(ours), "")
	r.add("emulator, guard lookup: bare loop, same scan, guard and concurrency", rate(loop), "")
	r.ratio("**emulator: sweep / bare loop**", ratios(ours, loop), "at least 0.9")
}

// lookedAround marks the target as looked at.
func lookedAround(ctx context.Context, s store.Store) error {
	rec, now, err := generation.Load(ctx, s, target().Name)
	if err != nil {
		return err
	}
	rec.Checked = now
	_, err = generation.Save(ctx, s, rec)
	return err
}
