package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	demoLeast = 1_000
	demoMost  = 5_000_000
	// demoCompared bounds the comparison: the plain collector's work grows with
	// the square of the entities.
	demoCompared = 200_000
)

// demoTargets returns a targets file for a layout. The demo leaves it next to its stores.
func demoTargets(l config.Layout) string {
	lines := append([]string{"name: sessions", "kind: Session"}, l.Sample()...)
	return "targets:\n  - " + strings.Join(lines, "\n    ") + "\n"
}

// demoActor is who does things in the history of a demo.
const demoActor = "reaper demo"

// A demoResult is what demo --json prints.
type demoResult struct {
	Dir        string         `json:"dir"` // empty if it was removed
	Entities   int            `json:"entities"`
	LoadTime   float64        `json:"load_seconds"`
	SweepTime  float64        `json:"sweep_seconds"`
	Deleted    int64          `json:"deleted"`
	Verified   int            `json:"verified"` // entities that are there, all of them live and none missing
	Comparison demoComparison `json:"comparison"`
}

func demoCommand(a *app) *cobra.Command {
	var entities int
	var dir, name, record string
	var live bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Fill an embedded store, sweep it, show what happened",
		Long: `Demo needs no account and no configuration. It fills an embedded store with
sessions, half of them expired, and sweeps it. It verifies, entity by entity, that
exactly the expired ones are gone. Then it compares Reaper with a plain
"ORDER BY expires LIMIT 500" collector: it measures, on the same data, how many points
of the index each steps over.

With --live it shows a daemon at work for a minute and a half: an application that writes
all the time, a backlog, a store that pushes back, generations that follow each other, and
a mistake that the breaker stops. It is on the page, too: see --ui. --record draws what
happened.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"store", "config"} {
				if cmd.Flags().Changed(name) {
					return wrongUsage("demo takes no --%s: it creates its own store; set its directory with --dir", name)
				}
			}
			if entities < demoLeast || entities > demoMost {
				return wrongUsage("--entities: %d is not between %d and %d", entities, demoLeast, demoMost)
			}
			if live {
				return a.demoLive(cmd, dir, record)
			}
			if record != "" {
				return wrongUsage("--record draws what --live shows: give both")
			}
			chosen := config.Layout(name)
			if !slices.Contains(layout.All(), chosen) {
				return wrongUsage("--layout: unknown layout %q (want one of %s)", name, layoutNames())
			}
			d := &demo{console: a.console, clock: a.now, n: entities, now: a.now(),
				log: newLogger(a.stderr, config.Config{LogLevel: slog.LevelWarn})}
			return d.run(cmd.Context(), demoTargets(chosen), dir)
		},
	}
	cmd.Flags().IntVar(&entities, "entities", 200_000, "how many sessions to write, half of them expired")
	cmd.Flags().StringVar(&name, "layout", string(layout.All()[0]),
		"how sessions say when they expire: "+layoutNames())
	cmd.Flags().StringVar(&dir, "dir", "",
		"empty or new directory to work in and to keep (default: a temporary one, removed at the end)")
	addSettings(cmd.Flags(), "ui")
	cmd.Flags().BoolVar(&live, "live", false, "show a daemon at work, until it ends by itself or by ctrl-C")
	cmd.Flags().StringVar(&record, "record", "", "with --live: write a picture of it to this file, as SVG")
	a.addJSON(cmd)
	return cmd
}

// demoLive shows a daemon at work.
func (a *app) demoLive(cmd *cobra.Command, dir, record string) error {
	for _, name := range []string{"entities", "layout", "json"} {
		if cmd.Flags().Changed(name) {
			return wrongUsage("demo --live takes no --%s", name)
		}
	}
	c, _, err := a.load(cmd)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("listen") {
		c.Listen = "127.0.0.1:0" // nobody scrapes a demo
	}
	if c.Schedule, err = config.ParseSchedule("@every 1s"); err != nil {
		return err
	}
	if c.UI, err = freeAddress(cmd.Context(), c.UI); err != nil {
		return err
	}
	return inDemoDir(dir, liveTargets, func(dir string) error {
		d, err := newLiveDemo(c, a.console, a.now, dir, time.Second)
		if err != nil {
			return err
		}
		err = d.run(cmd.Context(), func(ctx context.Context, s *session) error {
			return serve(ctx, s, false, false, pageOrder{ids: true})
		})
		if record != "" {
			err = errors.Join(err, d.record(record))
		}
		return err
	})
}

// freeAddress returns an address for a page: the given one, or if that is taken another one of this machine. Without
// an address it returns none.
func freeAddress(ctx context.Context, address string) (string, error) {
	if address == "" {
		return "", nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return "", wrongUsage("--ui: %v", err)
	}
	return l.Addr().String(), l.Close()
}

// layoutNames lists the layouts for people.
func layoutNames() string {
	var names []string
	for _, l := range layout.All() {
		names = append(names, string(l))
	}
	return strings.Join(names, ", ")
}

// run makes the whole demo, in a directory that it leaves only if dir names it.
func (d *demo) run(ctx context.Context, targets, dir string) error {
	res := demoResult{Dir: dir, Entities: d.n}
	return inDemoDir(dir, targets, func(dir string) error { return d.runIn(ctx, targets, dir, res) })
}

func (d *demo) runIn(ctx context.Context, targets, dir string, res demoResult) (err error) {
	if d.target, err = demoTarget(targets); err != nil {
		return err
	}
	d.say("Writing %s sessions, half of them expired, into an embedded store …\n", grouped(int64(d.n)))
	db, err := d.open(filepath.Join(dir, "store"), false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	began := d.clock()
	if err := d.fill(ctx, db, d.n, d.asTarget); err != nil {
		return err
	}
	res.LoadTime = d.clock().Sub(began).Seconds()
	d.say("  %.1f s, %s entities/s\n\n", res.LoadTime, grouped(int64(float64(d.n)/res.LoadTime)))

	d.say("Sweeping …\n")
	progress := &sweep.Progress{Estimate: d.onTerminal()}
	done := d.watchSweep(progress, true, d.log)
	swept, tripped, err := d.sweep(ctx, d.config(db, 16, progress))
	done()
	if err != nil {
		return err
	}
	if tripped.IsOpen() {
		d.say("  the breaker held the first sweep, as it holds any that finds much on ground that was never swept:\n"+
			"  %s were due; the demo approved them, with a database of yours a person does\n", grouped(tripped.Due))
	}
	res.Deleted, res.SweepTime = swept.Targets[0].Deleted, swept.Duration
	if res.Verified, err = verifyDemo(db.Dump(ctx, d.target.Target, ""), d.n); err != nil {
		return err
	}
	d.say("  %.2f s, %s deletes/s in %d ranges\n", res.SweepTime,
		grouped(int64(float64(res.Deleted)/res.SweepTime)), swept.Targets[0].Ranges)
	d.say("  verified one by one: %s expired sessions are gone, %s live ones are all there\n\n",
		grouped(res.Deleted), grouped(int64(res.Verified)))

	if res.Comparison, err = d.compare(ctx, dir); err != nil {
		return err
	}
	return d.print(res, func(w io.Writer) error {
		printDemo(w, res)
		return nil
	})
}

// printDemo prints what is not printed meanwhile.
func printDemo(w io.Writer, res demoResult) {
	printComparison(w, res.Comparison)
	if res.Dir != "" {
		fmt.Fprintf(w, "\nThe store is in %s: look around with\n  cd %s && reaper status --store embedded:store\n",
			res.Dir, res.Dir)
		return
	}
	fmt.Fprint(w, "\nNext: reaper sweep --help, and the README for a real database.\n")
}

// inDemoDir calls do with the directory to work in. One that the user has named stays, with the targets file, so that
// other commands find what was made.
func inDemoDir(named, targets string, do func(dir string) error) (err error) {
	dir, err := demoDir(named)
	if err != nil {
		return err
	}
	if named == "" {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else if err := os.WriteFile(filepath.Join(dir, "reaper.yaml"), []byte(targets), 0o644); err != nil {
		return err
	}
	return do(dir)
}

// demoDir returns the directory to work in: a new temporary one, or the one
// named, which must be empty or missing.
func demoDir(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "reaper-demo-")
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dir, os.MkdirAll(dir, 0o755)
	case err != nil:
		return "", wrongUsage("--dir: %w", err)
	case len(entries) > 0:
		return "", wrongUsage("--dir: %s is not empty; demo needs an empty or a new directory", dir)
	}
	return dir, nil
}

// demoTarget returns the target that the demo's targets file describes, so that
// other commands find what it made.
func demoTarget(text string) (sweep.Target, error) {
	targets, err := config.ParseTargets("demo", strings.NewReader(text), config.Embedded)
	if err != nil {
		return sweep.Target{}, err
	}
	t := sweepTarget(targets[0])
	t.History = sweep.History{Keep: targets[0].History.Keep, Actor: demoActor, Settings: targets[0].Lines()}
	return t, nil
}

// A demo is one run.
type demo struct {
	*console
	clock  func() time.Time
	target sweep.Target
	n      int
	now    time.Time // when it began: sessions expire before and after it
	log    *slog.Logger
}

func (d *demo) open(dir string, hold bool) (*embedded.DB, error) {
	return embedded.Open(dir, embedded.Options{Create: true, Now: d.clock, HoldCompaction: hold})
}

func (d *demo) config(s store.Store, workers int, p *sweep.Progress) sweep.Config {
	return sweep.Config{Store: s, Targets: []sweep.Target{d.target}, Apply: true, Workers: workers, Grace: time.Second,
		Owner: owner(), Version: buildVersion(), Now: d.clock, Log: d.log, Progress: p}
}

// expires returns when the i-th session expires: every other one within the last
// day, the others within the next days, no sooner than in an hour. Sessions that expire
// one after the other are not written one after the other.
func (d *demo) expires(i int) time.Time {
	part := partOfDay(i)
	if i%2 == 0 {
		return d.now.Add(-time.Minute - part)
	}
	return d.now.Add(time.Hour + 6*part)
}

// partOfDay returns a time of up to a day, spread like a random number, but always the same.
func partOfDay(i int) time.Duration {
	return time.Duration(uint64(i) * 0x9E3779B97F4A7C15 % uint64(24*time.Hour))
}

func demoName(i int) string { return fmt.Sprintf("session-%07d", i) }

// asTarget returns a writer that stamps as an application does: by the target's layout and
// record.
func (d *demo) asTarget(ctx context.Context, db *embedded.DB) (layoutWriter, error) {
	rec, _, err := sweep.EnsureRecord(ctx, d.config(db, 1, nil), d.target)
	return layoutWriter{d.target, always(rec.Stamper())}, err
}

// plainTarget is what the plain collector works on: its keys are in the order of
// time alone, as in a plain index on a timestamp.
func (d *demo) plainTarget() store.Target {
	return store.Target{Name: d.target.Name, Kind: d.target.Kind, Property: "expires", Type: store.Text}
}

func (d *demo) asPlain(context.Context, *embedded.DB) (layoutWriter, error) {
	return layoutWriter{sweep.Target{Target: d.plainTarget()}, always(generation.Stamper{Shards: 1})}, nil
}

// A writerOf says how sessions are stamped in a store.
type writerOf func(context.Context, *embedded.DB) (layoutWriter, error)

// fill writes the first n sessions.
func (d *demo) fill(ctx context.Context, db *embedded.DB, n int, writer writerOf) error {
	w, err := writer(ctx, db)
	if err != nil {
		return err
	}
	batch := make([]store.Entity, 0, store.MaxPage)
	for i := range n {
		e := store.Entity{Name: demoName(i), Data: fmt.Appendf(nil, `{"user":"u%d"}`, i%1000)}
		if err := w.write(&e, new(d.expires(i))); err != nil {
			return err
		}
		batch = append(batch, e)
		if len(batch) == cap(batch) || i == n-1 {
			if err := db.Put(ctx, w.target.Target, "", batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return db.Flush()
}

// sweep sweeps what the demo has written, and approves it if the breaker trips: that half of
// it is due is right.
func (d *demo) sweep(ctx context.Context, cfg sweep.Config) (res sweep.Result, tripped breaker.Trip, err error) {
	quiet := cfg
	quiet.Log = slog.New(slog.DiscardHandler) // the demo itself says that the breaker has tripped
	if res = sweep.Run(ctx, quiet); isTripped(res) {
		if tripped, err = d.approve(ctx, cfg); err != nil {
			return res, tripped, err
		}
		res = sweep.Run(ctx, cfg)
	}
	return res, tripped, demoFailure(ctx, res)
}

// approve lets the event pass that holds the target.
func (d *demo) approve(ctx context.Context, cfg sweep.Config) (breaker.Trip, error) {
	return approveOpen(ctx, cfg, d.target, "half of what the demo has written had expired before")
}

// approveOpen approves what holds a target. If its breaker is closed, it returns a trip that is not open.
func approveOpen(ctx context.Context, cfg sweep.Config, t sweep.Target, reason string) (breaker.Trip, error) {
	open, err := inspect.Breaker(ctx, cfg, t)
	if err != nil || open.Trip == "" {
		return breaker.Trip{}, err
	}
	_, trip, err := control.Approve(ctx, cfg, t, control.Order{Actor: demoActor, Reason: reason},
		control.Approval{ID: open.Trip})
	return trip, err
}

// demoFailure returns why a sweep did not do all it should.
func demoFailure(ctx context.Context, res sweep.Result) error {
	switch {
	case ctx.Err() != nil:
		return errors.New("stopped")
	case res.Failed():
		return sweepError(res)
	case !res.Complete:
		return errors.New("the sweep did not complete")
	}
	return nil
}

// verifyDemo compares what is left with what was written: of n sessions, every other one
// must be there, and nothing else. It returns how many there are.
func verifyDemo(left iter.Seq2[store.Entity, error], n int) (verified int, err error) {
	seen := make([]bool, n)
	for e, err := range left {
		if err != nil {
			return 0, err
		}
		i, err := strconv.Atoi(strings.TrimPrefix(e.Name, "session-"))
		if err != nil || i < 0 || i >= n || demoName(i) != e.Name {
			return 0, fmt.Errorf("verification failed: there is an entity %q, which nobody wrote", e.Name)
		}
		if i%2 == 0 {
			return 0, fmt.Errorf("verification failed: %s has expired and is still there", e.Name)
		}
		if seen[i] {
			return 0, fmt.Errorf("verification failed: %s is there twice", e.Name)
		}
		seen[i] = true
		verified++
	}
	for i := 1; i < n; i += 2 {
		if !seen[i] {
			return 0, fmt.Errorf("verification failed: %s has not expired and is gone", demoName(i))
		}
	}
	return verified, nil
}
