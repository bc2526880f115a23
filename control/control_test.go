package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/cursortest"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A desk is a test of what operators do: a store with one target, in a synctest bubble.
type desk struct {
	*testing.T
	s      *modelstore.Store
	target sweep.Target
}

func at(t *testing.T, test func(d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(&desk{T: t, s: modelstore.New(time.Now), target: sweep.Target{
			Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
			Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
			Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
			Policy: generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute,
				Slack: 10 * time.Minute, Keep: 32},
			Pace: throttle.Limits{Unlimited: true},
		}})
	})
}

func (d *desk) config() sweep.Config {
	return sweep.Config{Store: d.s, Targets: []sweep.Target{d.target}, Workers: 4, Grace: time.Second,
		Owner: "operator", Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func (d *desk) record() generation.Record {
	d.Helper()
	rec, _, err := generation.Load(context.WithoutCancel(d.Context()), d.s, "sessions")
	if err != nil {
		d.Fatal(err)
	}
	return rec
}

func (d *desk) advance(shards int, force bool) (generation.Record, error) {
	return control.Advance(d.Context(), d.config(), d.target, shards, force)
}

func (d *desk) change(change func(*generation.Record)) (generation.Record, error) {
	return control.Change(d.Context(), d.config(), d.target, change)
}

// Advance opens a generation with the given number of shards, or else the configured one.
// It fails during a ramp unless it is forced.
func TestAdvance(t *testing.T) {
	at(t, func(d *desk) {
		rec, err := d.advance(64, false) // of a target that nobody has swept
		if err != nil || len(rec.Generations) != 2 || rec.Generations[1].Shards != 64 {
			d.Fatalf("%+v, %v", rec, err)
		}
		if rec, err := d.advance(0, false); !errors.Is(err, generation.ErrRamping) || len(rec.Generations) != 2 {
			d.Errorf("within the ramp: %+v, %v", rec, err)
		}
		if rec, err := d.advance(0, true); err != nil || len(rec.Generations) != 3 || rec.Generations[2].Shards != 4 {
			d.Errorf("forced within the ramp: %+v, %v", rec, err)
		}
		time.Sleep(time.Hour)
		if rec, err := d.advance(0, false); err != nil || len(rec.Generations) != 4 {
			d.Errorf("after the ramp: %+v, %v", rec, err)
		}
		if got := d.record(); len(got.Generations) != 4 || got.Generations[3].Number != 4 {
			d.Errorf("the store has %+v", got)
		}
	})
}

// A process that goes by a targets file without generations opens none: nobody may have looked for those in
// use, and the next process with generations would take this one for all there are.
func TestAdvanceWithoutGenerations(t *testing.T) {
	at(t, func(d *desk) {
		d.target.Layout, d.target.Generations = "sharded", false
		if rec, err := d.advance(0, true); !errors.Is(err, control.ErrNoSuccession) || rec.Target != "" {
			d.Errorf("%+v, %v", rec, err)
		}
		if _, _, err := generation.Load(d.Context(), d.s, "sessions"); !errors.Is(err, generation.ErrMissing) {
			d.Errorf("it wrote a record: %v", err)
		}
	})
}

// If many operators advance at the same moment, one succeeds. The others are told that
// writers are still moving.
func TestAdvanceAtOnce(t *testing.T) {
	at(t, func(d *desk) {
		if _, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target); err != nil {
			d.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		const operators = 5
		var ready, done sync.WaitGroup
		ready.Add(operators)
		var mu sync.Mutex
		saves, ramping := 0, 0
		d.s.Before = func(_ context.Context, c modelstore.Call) error {
			mu.Lock()
			first := c.Method == "Save" && saves < operators
			if first {
				saves++
			}
			mu.Unlock()
			if first {
				ready.Done()
				ready.Wait() // each has decided by now
			}
			return nil
		}
		for range operators {
			done.Go(func() {
				_, err := d.advance(0, false)
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, generation.ErrRamping) {
					ramping++
				} else if err != nil {
					d.Error(err)
				}
			})
		}
		done.Wait()
		if n := len(d.record().Generations); n != 2 || ramping != operators-1 {
			d.Errorf("%d generations, %d were told of the ramp", n, ramping)
		}
	})
}

// A change without a difference writes nothing. Any other is in the record at once.
func TestChange(t *testing.T) {
	at(t, func(d *desk) {
		pause := func(r *generation.Record) { r.Paused = true }
		if rec, err := d.change(pause); err != nil || !rec.Paused || !d.record().Paused {
			d.Fatalf("%+v, %v", rec, err)
		}
		before := d.s.Writes()
		if rec, err := d.change(pause); err != nil || !rec.Paused || d.s.Writes() != before {
			d.Errorf("a second time: %+v, %v, %d writes", rec, err, d.s.Writes()-before)
		}
		c := d.config()
		c.Apply = true
		res := sweep.Run(d.Context(), c)
		if res.Targets[0].Held != "paused" {
			d.Errorf("a sweep of it: %+v", res)
		}
	})
}

// No change of several operators gets lost, though they make them at once.
func TestChangesAtOnce(t *testing.T) {
	at(t, func(d *desk) {
		var done sync.WaitGroup
		for _, change := range []func(*generation.Record){
			func(r *generation.Record) { r.Paused = true },
			func(r *generation.Record) { r.PaceMax = generation.Rate{Set: true, PerSecond: 7} },
			func(r *generation.Record) { r.PaceTotal = generation.Rate{Set: true, PerSecond: 9} },
		} {
			done.Go(func() {
				if _, err := d.change(change); err != nil {
					d.Error(err)
				}
			})
		}
		done.Go(func() {
			if _, err := d.advance(0, true); err != nil {
				d.Error(err)
			}
		})
		done.Wait()
		rec := d.record()
		if !rec.Paused || rec.PaceMax.PerSecond != 7 || rec.PaceTotal.PerSecond != 9 || len(rec.Generations) != 2 {
			d.Errorf("%+v", rec)
		}
	})
}

// A change fails where a sweep would fail, and then writes nothing.
func TestRefusals(t *testing.T) {
	at(t, func(d *desk) {
		k := cursortest.Start(d, d.s, "sessions", "worker", 30*time.Second)
		id := cursor.ID{Target: "sessions", Generation: 1, Shard: "0000"}
		rec, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target)
		if err != nil {
			d.Fatal(err)
		}
		newer := store.RevisionCount(rec.Revision) + 1
		claim, err := k.Claim(d.Context(), cursor.Cursor{ID: id, TargetRevision: newer})
		if err == nil {
			err = claim.Release(d.Context())
		}
		if err != nil {
			d.Fatal(err)
		}
		before := d.s.Writes()
		for name, do := range map[string]func() error{
			"advance": func() error { _, err := d.advance(0, true); return err },
			"change":  func() error { _, err := d.change(func(r *generation.Record) { r.Paused = true }); return err },
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), "an old copy was put back") {
				d.Errorf("%s: %v", name, err)
			}
		}
		if d.s.Writes() != before {
			d.Error("something was written")
		}
		d.s.Before = func(context.Context, modelstore.Call) error { return fmt.Errorf("no: %w", store.ErrDenied) }
		if _, err := d.change(func(*generation.Record) {}); !errors.Is(err, store.ErrDenied) {
			d.Errorf("a store that refuses: %v", err)
		}
	})
}
