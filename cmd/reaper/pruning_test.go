package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A pruner is a session whose targets keep a day of their archives in one directory.
type pruner struct {
	*session
	t   *testing.T
	dir string
	s   *modelstore.Store
	log bytes.Buffer
}

// newPruner returns a pruner of a machine whose clock is ahead of the store's.
func newPruner(t *testing.T, ahead time.Duration, modes ...config.ArchiveMode) *pruner {
	t.Helper()
	p := &pruner{t: t, dir: t.TempDir(), s: modelstore.New(time.Now)}
	log := slog.New(slog.NewTextHandler(&p.log, nil))
	now := func() time.Time { return time.Now().Add(ahead) }
	p.session = &session{log: log, db: &database{p.s, func() error { return nil }},
		sweep: sweep.Config{Store: p.s, Owner: "host/1", Now: now, Log: log}}
	p.Apply = true
	for i, mode := range modes {
		c := config.Target{Name: fmt.Sprintf("t%d", i), Kind: "k"}
		c.Archive = config.Archive{Mode: mode, To: "file://" + p.dir, Keep: 24 * time.Hour,
			Roll: config.ArchiveRoll{Size: archive.MinRollSize, After: time.Second}}
		p.targets = append(p.targets, c)
		p.sweep.Targets = append(p.sweep.Targets, sweep.Target{Target: store.Target{Name: c.Name, Kind: "k"}})
	}
	return p
}

// keep writes one object for each target, begun so long ago by the store's time.
func (p *pruner) keep(ago time.Duration) {
	p.t.Helper()
	for _, t := range p.targets {
		w, err := archive.Open(p.t.Context(), archive.Config{Bucket: p.bucket(), RollAfter: 40 * time.Millisecond,
			Now:    func() time.Time { return time.Now().Add(-ago) },
			Header: archive.Header{Mode: archive.Keys, Target: t.Name, Owner: "host/1"}})
		if err != nil {
			p.t.Fatal(err)
		}
		if _, err := w.Keep(p.t.Context(), "", []store.Copy{{Key: "k"}}); err != nil {
			p.t.Fatal(err)
		}
		if err := w.Close(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pruner) bucket() archive.Bucket {
	p.t.Helper()
	b, err := archive.OpenBucket(p.t.Context(), "file://"+p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// left counts the objects of each target after a command that had nothing to do.
func (p *pruner) left() (n []int) {
	p.t.Helper()
	done, err := p.archiveTargets(p.t.Context(), false)
	if err != nil {
		p.t.Fatal(err)
	}
	done()
	for _, t := range p.targets {
		count := 0
		for _, err := range archive.Objects(p.t.Context(), p.bucket(), t.Name, time.Time{}, time.Time{}) {
			if err != nil {
				p.t.Fatal(err)
			}
			count++
		}
		n = append(n, count)
	}
	return n
}

// Old objects are removed by the store's time: a machine whose clock is far ahead, or that cannot ask the store,
// removes nothing that is to stay.
func TestPruneByTheStoresTime(t *testing.T) {
	p := newPruner(t, 100*24*time.Hour, config.KeysArchive)
	p.keep(0)
	p.keep(48 * time.Hour)
	p.s.Before = func(context.Context, modelstore.Call) error { return store.ErrUnavailable }
	if n := p.left(); n[0] != 2 || !strings.Contains(p.log.String(), "the store does not tell the time") {
		t.Errorf("%d objects are left of 2, and the log has\n%s", n[0], &p.log)
	}
	p.s.Before = nil
	if n := p.left(); n[0] != 1 || !strings.Contains(p.log.String(), "are removed") {
		t.Errorf("%d objects are left, want 1\n%s", n[0], &p.log)
	}
}

// What was archived is removed when it is old, also if nothing is archived any more.
func TestPruneWhileOff(t *testing.T) {
	p := newPruner(t, 0, config.NoArchive, config.KeysArchive, config.NoArchive)
	p.targets[2].Archive.To = "file://" + filepath.Join(p.dir, "nothing-yet")
	p.keep(48 * time.Hour)
	p.keep(0)
	if n := p.left(); !slices.Equal(n, []int{1, 1, 2}) || strings.Contains(p.log.String(), "cannot") {
		t.Errorf("%d objects are left\n%s", n, &p.log)
	}
	for _, one := range p.sweep.Targets {
		if has := one.Archive != nil; has != (one.Name == "t1") {
			t.Errorf("target %s: an archive %t", one.Name, has)
		}
	}
	p.targets[0].Archive.To, p.targets[0].Archive.Keep, p.Apply = "file://"+p.dir, 0, false
	if n := p.left(); n[0] != 1 {
		t.Error("a dry run removes something")
	}
}

// An archive that cannot be written, as on a full disk, ends the command, and keeps nothing old in the others.
func TestPruneBesideAFaultyArchive(t *testing.T) {
	p := newPruner(t, 0, config.KeysArchive, config.NoArchive)
	p.keep(48 * time.Hour)
	p.keep(0)
	file := filepath.Join(p.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.targets[0].Archive.To = "file://" + filepath.Join(file, "archive")
	if _, err := p.archiveTargets(t.Context(), false); err == nil || !strings.Contains(err.Error(), "target t0: its archive") {
		t.Errorf("a file in place of a directory: %v", err)
	}
	p.targets[0].Archive.To = "gs://"
	p.targets[1].Archive.Keep = time.Nanosecond
	var is *exit
	if _, err := p.archiveTargets(t.Context(), false); !errors.As(err, &is) || is.code != exitUsage {
		t.Errorf("a place that cannot be: %v", err)
	}
	p.targets, p.Apply = p.targets[1:], false // so that left removes nothing
	if n := p.left(); n[0] != 1 {
		t.Errorf("%d objects are left of t1, want 1", n[0])
	}
}

// What never answers holds no command up for long.
func TestPruneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPruner(t, 0, config.NoArchive)
		answer := make(chan struct{})
		p.s.Before = func(context.Context, modelstore.Call) error { <-answer; return nil }
		began := time.Now()
		p.keepPruning(t.Context())()
		if took := time.Since(began); took > 20*time.Second || !strings.Contains(p.log.String(), "does not answer") {
			t.Errorf("after %v the log has %s", took, &p.log)
		}
		close(answer)
	})
}
