package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// archiveAgain is how soon an archive is tried again that could not be written.
	archiveAgain = 5 * time.Second
	// archiveProbe bounds such a try, and archiveEnds the last writes of a process. ArchiveHangs is how much longer a
	// process waits for either: a file system that does not answer does not end them.
	archiveProbe, archiveEnds, archiveHangs = 15 * time.Second, 10 * time.Second, 2 * time.Second
)

// errUnanswered is the fault of an archive whose first try has not ended.
var errUnanswered = errors.New("it has not answered yet")

// An archiving is the archive of one target in this process: [sweep.Archive]. If it cannot be written, it is
// opened again in the background, until it can.
type archiving struct {
	cfg    archive.Config
	whole  bool
	memory *archive.Memory
	work   context.Context // of tries; ended once nobody waits for them
	end    context.CancelFunc
	// stopped says that the process was to end before the first try did.
	stopped bool
	sweep   atomic.Value // string: the id of the run that kept something last

	mu     sync.Mutex
	writer *archive.Writer // nil if it was never opened
	fault  error           // of the last try to open it
	tried  time.Time
	trying bool
	ended  bool
	tries  sync.WaitGroup
}

// newArchiving returns the archive of a target, which is not open yet.
func newArchiving(s *session, t config.Target, bucket archive.Bucket, memory *archive.Memory) *archiving {
	a := &archiving{whole: t.Archive.Mode == config.FullArchive, memory: memory}
	a.work, a.end = context.WithCancel(context.Background())
	a.cfg = archive.Config{Bucket: bucket, RollSize: t.Archive.Roll.Size, RollAfter: t.Archive.Roll.After,
		Now: s.sweep.Now, Log: s.log.With("target", t.Name),
		Sweep: func() string { id, _ := a.sweep.Load().(string); return id },
		Header: archive.Header{Mode: archive.Mode(t.Archive.Mode), Store: s.Store.String(), Target: t.Name, Kind: t.Kind,
			Property: t.Property, Version: buildVersion(), Owner: s.sweep.Owner}}
	return a
}

// open writes an object as a probe. It waits for that as long as the context allows, and leaves the others three
// quarters of its time. An archive that cannot be written holds the target until it can.
func (a *archiving) open(stop context.Context) {
	a.trying, a.tried, a.fault = true, a.cfg.Now(), errUnanswered
	most := archiveProbe + archiveHangs
	if end, ok := stop.Deadline(); ok {
		most = min(most, time.Until(end)/4)
	}
	tried := make(chan struct{})
	a.tries.Go(func() { defer close(tried); a.reopen() })
	select {
	case <-tried:
	case <-time.After(most):
	case <-stop.Done():
		a.stopped = true
	}
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
	ctx, cancel := context.WithTimeout(a.work, archiveProbe)
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
	a.end()
	select {
	case <-ended(func() { closeArchive(a.cfg, w); a.tries.Wait() }):
	case <-time.After(archiveEnds + archiveHangs):
		a.cfg.Log.Warn("the archive does not answer: its file system may hang")
	}
}

// ended returns what is closed once wait returns, for those who do not wait that long.
func ended(wait func()) <-chan struct{} {
	is := make(chan struct{})
	go func() { wait(); close(is) }()
	return is
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
	buckets, err := s.archiveBuckets(ctx)
	if err != nil {
		return nil, err
	}
	var open []*archiving
	stop := s.keepPruning(ctx) // also if an archive cannot be written, be it for lack of space
	closeAll := func() {
		var all sync.WaitGroup
		for _, a := range open {
			all.Go(a.close)
		}
		all.Wait() // what was deleted is noted first
		stop()
	}
	memory := archive.NewMemory(archive.DefaultMemory)
	var probes sync.WaitGroup // all at once: each may take long
	for i, t := range s.targets {
		if bucket := buckets[t.Archive.To]; t.Archive.Mode != config.NoArchive && bucket != nil {
			a := newArchiving(s, t, bucket, memory)
			open = append(open, a)
			s.sweep.Targets[i].Archive = a
			probes.Go(func() { a.open(ctx) })
		}
	}
	probes.Wait()
	for _, a := range open {
		name := a.cfg.Header.Target
		switch _, fault := a.current(); {
		case fault == nil, a.stopped:
		case later:
			s.log.ErrorContext(ctx, "the archive cannot be written, so nothing is deleted", "target", name, "error", fault)
		default:
			closeAll()
			return nil, fmt.Errorf("target %s: its archive cannot be written, so nothing is deleted: %w", name, fault)
		}
	}
	return closeAll, nil
}

// unarchived notes in a result which targets were held because their archives could not be written, but those whose
// probe was stopped.
func (s *session) unarchived(res *sweep.Result) {
	for i := range res.Targets {
		t := &res.Targets[i]
		at := slices.IndexFunc(s.sweep.Targets, func(c sweep.Target) bool { return c.Name == t.Name })
		if at < 0 || t.Err != nil {
			continue
		}
		a, ok := s.sweep.Targets[at].Archive.(*archiving)
		if !ok || a.stopped {
			continue
		}
		_, err := a.current()
		if err == nil && t.Held == string(throttle.ReasonArchive) { // it can be by now, or fails at each object
			err = errors.New(t.Reason)
		}
		if err != nil {
			t.Err = fmt.Errorf("its archive cannot be written, so nothing more is deleted: %w", err)
			t.Error, t.Complete, res.Complete = t.Err.Error(), false, false
		}
	}
}

// archiveBuckets opens the places of all targets that archive, by their URLs; none if nothing is deleted.
func (s *session) archiveBuckets(ctx context.Context) (map[string]archive.Bucket, error) {
	buckets := map[string]archive.Bucket{}
	for i, t := range s.targets {
		if t.Archive.Mode == config.NoArchive || !s.Apply {
			continue
		}
		if err := s.mayArchive(t, i); err != nil {
			return nil, &exit{exitUsage, fmt.Errorf("target %s: %w", t.Name, err)}
		}
		if buckets[t.Archive.To] != nil {
			continue
		}
		bucket, err := archive.OpenBucket(ctx, t.Archive.To)
		if err != nil {
			return nil, &exit{exitUsage, fmt.Errorf("target %s: its archive: %w", t.Name, err)}
		}
		buckets[t.Archive.To] = bucket
	}
	return buckets, nil
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
