package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// archiveAgain is how soon an archive is tried again that could not be written.
	archiveAgain = 5 * time.Second
	// archiveProbe bounds such a try, and archiveEnds the last writes of a process.
	archiveProbe, archiveEnds = 15 * time.Second, 10 * time.Second
)

// An archiving is the archive of one target in this process: [sweep.Archive]. If it cannot be written, it is
// opened again in the background, until it can.
type archiving struct {
	cfg    archive.Config
	whole  bool
	memory *archive.Memory
	sweep  atomic.Value // string: the id of the run that kept something last

	mu     sync.Mutex
	writer *archive.Writer // nil if it was never opened
	fault  error           // of the last try to open it
	tried  time.Time
	trying bool
	ended  bool
	tries  sync.WaitGroup
}

// openArchive returns the archive of a target, once an object was written as a probe. With later, one that cannot
// be written now is tried again, and holds the target until then.
func openArchive(
	ctx context.Context, s *session, t config.Target, bucket archive.Bucket, memory *archive.Memory, later bool,
) (*archiving, error) {
	a := &archiving{whole: t.Archive.Mode == config.FullArchive, memory: memory}
	a.cfg = archive.Config{Bucket: bucket, RollSize: t.Archive.Roll.Size, RollAfter: t.Archive.Roll.After,
		Now: s.sweep.Now, Log: s.log.With("target", t.Name),
		Sweep: func() string { id, _ := a.sweep.Load().(string); return id },
		Header: archive.Header{Mode: archive.Mode(t.Archive.Mode), Store: s.Store.String(), Target: t.Name, Kind: t.Kind,
			Property: t.Property, Version: buildVersion(), Owner: s.sweep.Owner}}
	ctx, cancel := context.WithTimeout(ctx, archiveProbe)
	defer cancel()
	a.writer, a.fault = archive.Open(ctx, a.cfg)
	if a.tried = a.cfg.Now(); later {
		return a, nil
	}
	return a, a.fault
}

// IsWhole implements [sweep.Archive].
func (a *archiving) IsWhole() bool { return a.whole }

// Reserve implements [sweep.Archive].
func (a *archiving) Reserve(ctx context.Context, bytes int64) (release func(), err error) {
	if err := a.memory.Acquire(ctx, bytes); err != nil {
		return nil, err
	}
	return func() { a.memory.Release(bytes) }, nil
}

// Keep implements [sweep.Archive].
func (a *archiving) Keep(ctx context.Context, run, namespace string, list []store.Copy) (
	ended func(fate func(key string) store.Outcome), err error,
) {
	w, err := a.current()
	if err != nil {
		return nil, err
	}
	a.sweep.Store(run)
	r, err := w.Keep(ctx, namespace, list)
	if err != nil {
		return nil, err
	}
	return func(fate func(key string) store.Outcome) {
		r.Done(func(key string) archive.State {
			switch fate(key) {
			case store.Deleted:
				return archive.Deleted
			case store.Unknown:
				return archive.Unconfirmed
			}
			return archive.Kept
		})
	}, nil
}

// current returns the writer, or why it does not exist.
func (a *archiving) current() (*archive.Writer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writer == nil {
		return nil, cmp.Or(a.fault, archive.ErrClosed)
	}
	return a.writer, nil
}

// Failing implements [sweep.Archive].
func (a *archiving) Failing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return archive.ErrClosed
	}
	err := a.fault
	if a.writer != nil {
		if err = a.writer.Failing(); err == nil {
			return nil
		}
	}
	if now := a.cfg.Now(); !a.trying && now.Sub(a.tried) >= archiveAgain {
		a.trying, a.tried = true, now
		a.tries.Go(a.reopen)
	}
	return err
}

// reopen replaces a writer that fails, if another one does not.
func (a *archiving) reopen() {
	ctx, cancel := context.WithTimeout(context.Background(), archiveProbe)
	defer cancel()
	w, err := archive.Open(ctx, a.cfg)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trying, a.fault = false, err
	switch {
	case err != nil:
	case a.ended:
		a.tries.Go(func() { closeArchive(a.cfg, w) })
	default:
		old := a.writer
		a.writer = w
		a.tries.Go(func() { closeArchive(a.cfg, old) })
	}
}

// close ends the archive: what is known of the fate of entities is written.
func (a *archiving) close() {
	a.mu.Lock()
	w := a.writer
	a.writer, a.ended = nil, true
	a.mu.Unlock()
	closeArchive(a.cfg, w)
	a.tries.Wait()
}

func closeArchive(cfg archive.Config, w *archive.Writer) {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), archiveEnds)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		cfg.Log.Warn("some entities of the archive are unconfirmed", "error", err)
	}
}

// archiveTargets opens the archives of all targets that have one, as the session really deletes, and removes what is
// old. Done ends that. With later, what cannot be written now is tried again.
func (s *session) archiveTargets(ctx context.Context, later bool) (done func(), err error) {
	var open []*archiving
	closeAll := func() {
		var all sync.WaitGroup
		for _, a := range open {
			all.Go(a.close)
		}
		all.Wait()
	}
	buckets, memory := map[string]archive.Bucket{}, archive.NewMemory(archive.DefaultMemory)
	for i, t := range s.targets {
		if t.Archive.Mode == config.NoArchive || !s.Apply {
			continue
		}
		if err := s.mayArchive(t, i); err != nil {
			closeAll()
			return nil, &exit{exitUsage, fmt.Errorf("target %s: %w", t.Name, err)}
		}
		bucket, ok := buckets[t.Archive.To]
		if !ok {
			if bucket, err = archive.OpenBucket(ctx, t.Archive.To); err != nil {
				closeAll()
				return nil, &exit{exitUsage, fmt.Errorf("target %s: its archive: %w", t.Name, err)}
			}
			buckets[t.Archive.To] = bucket
		}
		a, err := openArchive(ctx, s, t, bucket, memory, later)
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("target %s: its archive cannot be written, so nothing is deleted: %w", t.Name, err)
		}
		if a.fault != nil {
			s.log.ErrorContext(ctx, "the archive cannot be written, so nothing is deleted", "target", t.Name, "error", a.fault)
		}
		open = append(open, a)
		s.sweep.Targets[i].Archive = a
	}
	stop := s.keepPruning(ctx)
	return func() { closeAll(); stop() }, nil // what was deleted is noted first
}

// mayArchive returns why the store cannot show whole entities of a target that is to keep them.
func (s *session) mayArchive(t config.Target, i int) error {
	if t.Archive.Mode != config.FullArchive {
		return nil
	}
	from, ok := s.db.Store.(store.Archiver)
	if !ok {
		return fmt.Errorf("archive.mode full: %w", store.ErrUnsupported)
	}
	return from.Archives(s.sweep.Targets[i].Target)
}

// foreseeArchive adds to the result of a dry run what the archive would get.
func (s *session) foreseeArchive(res *sweep.Result) {
	for i := range res.Targets {
		if t := &res.Targets[i]; s.target(t.Name).Archive.Mode != config.NoArchive {
			t.Archived = t.Expired + t.Descendants
		}
	}
}
