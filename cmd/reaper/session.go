package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A session is what a command needs to work on the targets of a store.
type session struct {
	*console
	config.Config
	targets []config.Target // those that --target selects
	log     *slog.Logger

	db    *database // nil until the store is open
	sweep sweep.Config
}

// now returns the time of this process, in which results are dated.
func (s *session) now() time.Time { return s.sweep.Now() }

// target returns the selected target of a name.
func (s *session) target(name string) config.Target {
	return s.targets[slices.IndexFunc(s.targets, func(t config.Target) bool { return t.Name == name })]
}

// schedule returns when a target is swept.
func (s *session) schedule(t config.Target) config.Schedule {
	if t.Schedule.IsZero() {
		return s.Schedule
	}
	return t.Schedule
}

// eachTarget calls do for all targets at the same time. It returns the results of those
// that did not fail, in their order, and the errors of the others.
func eachTarget[T any](s *session, do func(sweep.Target) (T, error)) ([]T, error) {
	results, errs := make([]T, len(s.sweep.Targets)), make([]error, len(s.sweep.Targets))
	var group errgroup.Group
	group.SetLimit(s.Workers)
	for i, t := range s.sweep.Targets {
		background.Go(&group, func() (err error) {
			if results[i], err = do(t); err != nil {
				errs[i] = fmt.Errorf("target %s: %w", t.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // only a panic: one target's error must not stop the others
		return nil, err
	}
	done := []T{}
	for i, r := range results {
		if errs[i] == nil {
			done = append(done, r)
		}
	}
	return done, errors.Join(errs...)
}

// printTargets prints a result: with --json as a document, else by text for each of its targets. Err
// is of the targets that failed, and is returned in any case.
func printTargets[T any](s *session, res any, targets []T, err error, text func(io.Writer, T) error) error {
	return errors.Join(s.print(res, func(w io.Writer) error {
		for _, t := range targets {
			if err := text(w, t); err != nil {
				return err
			}
		}
		return nil
	}), err)
}

// closeInto closes the store at the end of a command, and stores its error in err unless
// there is one already.
func (d *database) closeInto(err *error) {
	if cerr := d.close(); *err == nil {
		*err = cerr
	}
}

// sweepConfig returns the configuration of package sweep.
func sweepConfig(s *session, now func() time.Time) sweep.Config {
	sc := sweep.Config{Store: s.db.Store, Apply: s.Apply, Workers: s.Workers, Grace: s.ShutdownGrace, Owner: owner(),
		Version: buildVersion(), Now: now, Log: s.log}
	host, _ := os.Hostname()
	_, adopts := s.db.Store.(store.Adopter)
	_, tells := s.db.Store.(store.Keyer)
	for _, t := range s.targets {
		one := sweepTarget(t)
		one.Descendants = descendants(t, s.Config.Targets)
		if one.Type == store.Text && adopts && tells { // compare keys with the rule while entities are adopted
			one.Compare = (&adopt.Comparer{Store: s.db.Store, Target: one, Now: now}).Compare
		}
		one.History = sweep.History{Keep: t.History.Keep, Actor: actor(s.Config, os.Getenv), Host: host, Settings: t.Lines()}
		sc.Targets = append(sc.Targets, one)
	}
	return sc
}

// owner returns a name for this process in leases, which no other process has.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:6])
}
