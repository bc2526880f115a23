package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// The environment variables by which this test binary sweeps once and dies on the way.
const (
	sweepsIn  = "TEST_SWEEPS_IN"  // the embedded store's directory
	sweepsAt  = "TEST_SWEEPS_AT"  // the time at which its clock begins
	diesAfter = "TEST_DIES_AFTER" // how many halves of writes it lives for: each write has one before and one after
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(sweepsIn); dir != "" {
		if err := shortLife(dir, os.Getenv(sweepsAt), os.Getenv(diesAfter)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	emulator.Main(m)
}

// A doomed store kills its process, which so cannot tidy up.
type doomed struct {
	*embedded.DB
	left atomic.Int64 // halves of writes until the kill
}

func (d *doomed) end() {
	if d.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // wait for the signal
	}
}

func (d *doomed) Dispose(ctx context.Context, b *store.Batch) error {
	d.end()
	defer d.end()
	return d.DB.Dispose(ctx, b)
}

func (d *doomed) Save(ctx context.Context, r store.Record, prev string) error {
	d.end()
	defer d.end()
	return d.DB.Save(ctx, r, prev)
}

func (d *doomed) Drop(ctx context.Context, t store.Target, from, to string) error {
	d.end()
	defer d.end()
	return d.DB.Drop(ctx, t, from, to)
}

// shortLife sweeps once, or is killed on the way.
func shortLife(dir, at, after string) error {
	now, err1 := time.Parse(time.RFC3339, at)
	writes, err2 := strconv.Atoi(after)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	began := time.Now()
	clock := func() time.Time { return now.Add(time.Since(began)) }
	db, err := embedded.Open(dir, embedded.Options{Now: clock})
	if err != nil {
		return err
	}
	d := &doomed{DB: db}
	d.left.Store(int64(writes))
	return errors.Join(sweptOnce(d, clock), db.Close())
}

// mortalTarget returns a small target with short generations.
func mortalTarget() sweep.Target {
	return sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 2, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
		Page: 20, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true},
		Policy: generation.Policy{Every: time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 1},
	}
}

func sweptOnce(s store.Store, now func() time.Time) error {
	res := sweep.Run(context.Background(), sweep.Config{Store: s, Targets: []sweep.Target{mortalTarget()}, Apply: true, Workers: 2,
		Grace: time.Second, Owner: "mortal", Now: now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	return res.Targets[0].Err
}

// TestDiesAtEachStepOfALife kills real processes again and again, before or after any of
// their writes, while a generation is opened, sealed, drained, carried and retired. The
// next process finishes the work, and nothing is lost.
func TestDiesAtEachStepOfALife(t *testing.T) {
	nightly.Races(t)
	seeds := nightly.Size(t, uint64(6), 1)
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			dir := t.TempDir()
			began := time.Now().Add(-1000 * time.Hour).UTC().Truncate(time.Second)
			now := began
			db, err := embedded.Open(dir, embedded.Options{Now: func() time.Time { return now }, Create: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := sweptOnce(db, func() time.Time { return now }); err != nil {
				t.Fatal(err)
			}
			expires := map[string]time.Time{}
			var batch []store.Entity
			put := func(name string, k expirykey.Key, err error) {
				if err != nil {
					t.Fatal(err)
				}
				expires[name] = k.Expires
				batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(k.String()), Data: []byte(`{"kept": true}`)})
			}
			for i := range 150 { // some are due before the generation drains, some after
				name := fmt.Sprintf("e-%03d", i)
				k, err := generation.Stamper{Generation: 1, Shards: 2}.Name(name, now.Add(time.Duration(i)*6*time.Minute+time.Minute))
				put(name, k, err)
			}
			k, err := expirykey.New(1, 0, began.AddDate(-30, 0, 0))
			put("suspect", k, err)
			k, err = expirykey.New(1, 7, began.Add(90*time.Minute)) // past the last shard
			put("beyond", k, err)
			batch = append(batch, store.Entity{Name: "malformed", Expiry: store.TextValue("00000001.0001.soon")})
			if err := errors.Join(db.Put(t.Context(), mortalTarget().Target, "", batch), db.Close()); err != nil {
				t.Fatal(err)
			}

			deaths := 0
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			for now.Before(began.Add(4 * time.Hour)) {
				now = now.Add(10 * time.Minute)
				for finished := false; !finished; {
					cmd := exec.Command(self)
					cmd.Env = append(os.Environ(), sweepsIn+"="+dir, sweepsAt+"="+now.Format(time.RFC3339), fmt.Sprintf("%s=%d", diesAfter, 1+rng.IntN(24)))
					out, err := cmd.CombinedOutput()
					var died *exec.ExitError
					switch {
					case err == nil:
						finished = true
					case errors.As(err, &died) && died.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
						deaths++
					default:
						t.Fatalf("%v\n%s", err, out)
					}
				}
			}
			db, err = embedded.Open(dir, embedded.Options{Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			r, _, err := generation.Load(t.Context(), db, "sessions")
			if err != nil {
				t.Fatal(err)
			}
			live := map[int]bool{0: true}
			for _, g := range r.Generations {
				live[g.Number] = true
			}
			if live[1] || len(r.Generations) > 3 {
				t.Errorf("live generations: %+v", r.Generations)
			}
			table, err := cursor.Reader{Store: db, Target: "sessions", Now: time.Now}.All(t.Context(), cursor.Table{})
			if err != nil {
				t.Fatal(err)
			}
			for id := range table.All() {
				if !live[id.Generation] {
					t.Errorf("cursor %v outlived its generation", id)
				}
			}
			there := map[string]bool{}
			for e, err := range db.Dump(t.Context(), mortalTarget().Target, "") {
				if err != nil {
					t.Fatal(err)
				}
				there[e.Name] = true
				if e.Name == "malformed" {
					continue
				}
				k, err := expirykey.Parse(e.Expiry.Text)
				if err != nil || !k.Expires.Equal(expires[e.Name]) || !live[k.Generation] || string(e.Data) != `{"kept":true}` && string(e.Data) != `{"kept": true}` {
					t.Errorf("%s is %s %s, %v", e.Name, e.Expiry.Text, e.Data, err)
				}
			}
			for name, at := range expires {
				if due := !at.After(now) && name != "suspect"; due == there[name] {
					t.Errorf("%s expires at %v, it is %v now, and it is there: %v", name, at, now, there[name])
				}
			}
			if !there["malformed"] || deaths < 20 {
				t.Errorf("malformed kept: %v; %d deaths", there["malformed"], deaths)
			}
			t.Logf("%d deaths, %d entities left, generations %v", deaths, len(there), r.Generations[0].Number)
		})
	}
}
