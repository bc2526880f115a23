package bench_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/baseline"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

var (
	entities   = flag.Int("entities", 1_000_000, "entities in the embedded store, half of them expired")
	cloud      = flag.Int("cloud-entities", 20_000, "entities on Google's emulator, half of them expired")
	scaled     = flag.Int("scale-entities", 2_500, "due entities in each range for one process of the scale-out")
	rounds     = flag.Int("rounds", 5, "rounds of each comparison, in turns")
	backlogs   = flag.String("backlogs", "10000,100000,1000000,3000000", "expired entities of which memory is measured")
	plainPages = flag.Int("plain-pages", 400, "most pages of the plain collector, whose work grows with their square")
	foreground = flag.Duration("foreground", 4*time.Second, "how long another client is watched during each sweep")
	pace       = flag.Float64("pace", 500, "entities a second in each range, for the sweep that is held to a pace")
	output     = flag.String("o", "", "write the report, if it is complete, to this file, and plots to plots/ next to it")
)

// A scale says how much is measured: the flags, or the little that a test takes.
type scale struct {
	entities, cloud, rounds, plainPages int
	backlogs                            []int
	foreground, delay                   time.Duration
	pace                                float64
	crews                               []int         // processes on one emulator
	lease                               time.Duration // of each of these
	warm                                bool          // emulators get a round that does not count
	scaleCrews                          []int         // processes on a store that answers like the service
	scaleEach                           int           // due entities in each of its ranges, for one process
	ranges                              []int         // of one target
	rest                                time.Duration // for so long a daemon is watched with so many ranges at rest
}

func fullScale() (scale, error) {
	s := scale{entities: *entities, cloud: *cloud, rounds: *rounds, plainPages: *plainPages, foreground: *foreground, delay: time.Minute, pace: *pace,
		crews: []int{1, 2, 4}, lease: 30 * time.Second, warm: true,
		scaleCrews: []int{1, 2, 4, 8}, scaleEach: *scaled,
		ranges: []int{10_000, 100_000}, rest: 20 * time.Second}
	for text := range strings.SplitSeq(*backlogs, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return scale{}, fmt.Errorf("-backlogs: %w", err)
		}
		s.backlogs = append(s.backlogs, n)
	}
	slices.Sort(s.backlogs)
	if min(s.entities, s.scaleEach, s.cloud, s.rounds, s.plainPages, s.backlogs[0]) < 1 || s.foreground <= 0 || s.pace <= 0 {
		return scale{}, errors.New("sizes, rounds and the pace must be above zero")
	}
	return s, nil
}

const (
	shards  = 16
	workers = 16
)

func TestMain(m *testing.M) {
	if isChild() {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	emulator.Main(m)
}

// target is swept as fast as it goes or, given a pace, at so many entities a
// second in each range.
func target(perSecond ...float64) sweep.Target {
	t := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text, Guard: store.GuardLookup},
		Layout: "generation", Generations: true, Shards: shards, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true},
	}
	for _, n := range perSecond {
		t.Pace = throttle.Limits{Start: n, Max: n}
	}
	return t
}

// sharded is a target of expiry keys without generations.
func sharded() sweep.Target {
	t := target()
	t.Layout, t.Generations = "sharded", false
	return t
}

func config(s store.Store, atOnce int) sweep.Config { return configFor(s, target(), atOnce) }

func configFor(s store.Store, t sweep.Target, atOnce int) sweep.Config {
	return sweep.Config{Store: s, Targets: []sweep.Target{t}, Apply: true, Workers: atOnce, Grace: time.Second,
		Owner: fmt.Sprintf("bench-%d", os.Getpid()), Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func open(tb testing.TB, hold bool) *embedded.DB {
	tb.Helper()
	return openIn(tb, tb.TempDir(), hold)
}

func openIn(tb testing.TB, dir string, hold bool) *embedded.DB {
	tb.Helper()
	db, err := embedded.Open(dir, embedded.Options{Create: true, Now: time.Now, HoldCompaction: hold})
	if err != nil {
		tb.Fatal(err)
	}
	return db
}

func closed(tb testing.TB, s io.Closer) {
	tb.Helper()
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
}

// A filling is what is written into a store.
type filling struct {
	generation.Stamper
	n       int
	all     bool // have expired, not just every other one
	size    int  // of the data of each; zero: the least
	numbers bool // `expires` holds the expiry in microseconds, too, for loops that know no expiry keys
}

// page returns how many entities are written at once: emulators take 4 MiB.
func (f filling) page() int { return min(store.MaxPage, 3<<20/max(f.size, 1)) }

func (f filling) into(tb testing.TB, w store.Writer) {
	tb.Helper()
	now, t := time.Now(), target().Target
	if s, ok := w.(store.Store); ok && f.Generation > 0 { // as writers meet it: else generation 1 would seem to be an old one
		if _, _, err := sweep.EnsureRecord(tb.Context(), config(s, 1), target()); err != nil {
			tb.Fatal(err)
		}
	}
	if f.numbers {
		t.ShardProperty = "expires" // which makes it an indexed property
	}
	var group errgroup.Group
	group.SetLimit(2)
	for first := 0; first < f.n; first += f.page() {
		group.Go(func() error {
			batch := make([]store.Entity, 0, f.page())
			for i := first; i < min(f.n, first+f.page()); i++ {
				part := time.Duration(uint64(i) * 0x9E3779B97F4A7C15 % uint64(24*time.Hour))
				at := now.Add(-time.Minute - part)
				if i%2 == 1 && !f.all {
					at = now.Add(time.Hour + part)
				}
				key, err := f.Name(name(i), at)
				if err != nil {
					return err
				}
				e := store.Entity{Name: name(i), Expiry: store.TextValue(key.String()), Data: payload(i, f.size)}
				if f.numbers {
					e.Shard = store.IntegerValue(at.UnixMicro())
				}
				batch = append(batch, e)
			}
			return w.Put(tb.Context(), t, "", batch)
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

func name(i int) string { return fmt.Sprintf("session-%07d", i) }

// sweeps returns what a sweep deleted.
func sweeps(ctx context.Context, c sweep.Config) (deleted int, err error) {
	res := sweep.Run(ctx, c)
	if err = res.Targets[0].Err; err == nil && !res.Complete {
		err = errors.New("the sweep is not complete")
	}
	return int(res.Targets[0].Deleted), err
}

// bareLoop runs the bare loop over all ranges of a generation.
func bareLoop(ctx context.Context, s store.Store, generation int) (sum int, err error) {
	var group errgroup.Group
	group.SetLimit(workers)
	var mu sync.Mutex
	for shard := range shards {
		group.Go(func() error {
			n, err := baseline.Bare(ctx, s, target().Target, shardquery.Range{Generation: generation, Shard: shard}, time.Now(), 500)
			mu.Lock()
			defer mu.Unlock()
			sum += n
			return err
		})
	}
	err = group.Wait()
	return sum, err
}

// A contestant empties stores of one sort in its own way. What it has to know
// before it finds out in ready, whose result is then timed.
type contestant[S any] struct {
	what  string
	ready func(S) (work func(context.Context) (deleted int, err error))
	some  bool      // it may stop early
	rates []float64 // deletes per second, by round
	cheap []float64 // deletes per second of CPU time, by round: what others do to the machine changes it little
}

// race has the contestants take turns, each time with a store of its own, and
// each round begins with another of them. With warm there is one round more,
// that does not count.
func race[S any](tb testing.TB, rounds, want int, warm bool, list []*contestant[S], open func(*contestant[S]) (s S, done func())) {
	tb.Helper()
	first := 0
	if warm {
		first = -1
	}
	for round := first; round < rounds; round++ {
		for i := range list {
			c := list[(i+round+1)%len(list)]
			s, done := open(c)
			work := c.ready(s)
			began, before := time.Now(), used()
			deleted, err := work(tb.Context())
			took, cpu := time.Since(began), used()-before
			if err != nil || deleted != want && (!c.some || deleted == 0) {
				tb.Fatalf("%s: deleted %d of %d: %v", c.what, deleted, want, err)
			}
			done()
			if round >= 0 {
				c.rates = append(c.rates, float64(deleted)/took.Seconds())
				c.cheap = append(c.cheap, float64(deleted)/cpu.Seconds())
			}
		}
	}
}

// BenchmarkTable measures everything side by side and writes one report; its
// parts can be had by name. No figure makes it fail: these are times, on machines
// that others use, too.
func BenchmarkTable(b *testing.B) {
	s, err := fullScale()
	if err != nil {
		b.Fatal(err)
	}
	r, ran := newReport(s), 0
	if r.reasons, err = readReasons(reasonsFile); err != nil {
		b.Fatal(err)
	}
	if *output != "" {
		r.before = readPage(*output, os.Stderr)
	}
	for _, part := range parts {
		b.Run(part.name, func(b *testing.B) {
			before := len(r.sections)
			part.measure(b, r)
			ran++
			for _, s := range r.sections[before:] { // a long run shows what it has
				fmt.Println("\n" + r.table(s))
			}
		})
	}
	if *output == "" || b.Failed() {
		return
	}
	if ran < len(parts) {
		fmt.Printf("%s was not written: only some parts were measured\n", *output)
		return
	}
	if err := os.WriteFile(*output, []byte(r.markdown(b)), 0o644); err != nil {
		b.Fatal(err)
	}
	r.unused(os.Stderr)
	r.draw(b, plotsBeside(*output))
}

var parts = []struct {
	name    string
	measure func(testing.TB, *report)
}{
	{"embedded", embeddedRates},
	{"pages", latencies},
	{"generations", generations},
	{"foreground", foregrounds},
	{"memory", memory},
	{"ranges", ranges},
	{"datastore", datastoreRates},
	{"native", nativeRates},
	{"delay", delay},
	{"processes", processes},
	{"scaleout", scaleOut},
	{"adoption", adoption},
	{"descendants", descendants},
	{"archives", archivesEmbedded},
	{"archivescloud", archivesEmulated},
	{"viewers", viewing},
}
