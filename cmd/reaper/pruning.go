package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// pruneEvery is how often old objects of a file:// archive are removed.
	pruneEvery = time.Hour
	// pruneAsks bounds how long that waits for the store's time, and pruneEnds how long a command that is done waits
	// for what is being removed, and pruneHangs how much longer for a file system that does not answer.
	pruneAsks, pruneEnds, pruneHangs = 15 * time.Second, 10 * time.Second, 2 * time.Second
)

// keepPruning removes what is old in the archives of targets, at once and every hour, until stop is called. Copies must
// not outlive keep because nothing is archived any more, so it goes by the place, and not by the mode. Stop waits for
// what was begun: a sweep with little to do may be done sooner.
func (s *session) keepPruning(ctx context.Context) (stop func()) {
	repeats, end := context.WithCancel(ctx)
	calls, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, t := range s.targets {
		if s.Apply && strings.HasPrefix(strings.ToLower(t.Archive.To), "file:") {
			all.Go(func() { atOnceAndEvery(repeats, pruneEvery, func() { s.prune(calls, t) }) })
		}
	}
	return func() {
		end()
		done := ended(all.Wait)
		select {
		case <-done:
		case <-time.After(pruneEnds):
		}
		cancel()
		select {
		case <-done:
		case <-time.After(pruneHangs):
			s.log.WarnContext(ctx, "the removal of old objects of an archive does not end: its file system or the store does "+
				"not answer")
		}
	}
}

// prune removes the objects of a target that are older than it keeps them. It goes by the store's time: by that of a
// machine whose clock is far ahead, the whole archive would be old.
func (s *session) prune(ctx context.Context, t config.Target) {
	log, n := s.log.With("target", t.Name), 0
	now, err := storeTime(ctx, s.db.Store, t.Name)
	if err != nil {
		if ctx.Err() == nil {
			log.WarnContext(ctx, "no old objects of the archive are removed: the store does not tell the time", "error", err)
		}
		return
	}
	bucket, err := archive.OpenBucket(ctx, t.Archive.To)
	if err == nil {
		n, err = archive.Prune(ctx, bucket, t.Name, now.Add(-t.Archive.Keep))
	}
	if n > 0 {
		log.InfoContext(ctx, "old objects of the archive are removed", "files", n)
	}
	switch {
	case err != nil && errors.Is(err, ctx.Err()): // of the calls: it failed at nothing else
		log.InfoContext(ctx, "old objects of the archive are left for the next time")
	case err != nil:
		log.WarnContext(ctx, "old objects of the archive cannot be removed", "error", err)
	}
}

// storeTime returns the store's time at some instant during the call. The target need not have a record.
func storeTime(ctx context.Context, s store.Loader, target string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, pruneAsks)
	defer cancel()
	got, err := s.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: target, Keys: []string{target}})
	return got.Now, err
}
