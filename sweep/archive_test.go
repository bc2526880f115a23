package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A safe is an archive in memory.
type safe struct {
	keys  bool          // it keeps keys alone
	takes time.Duration // to write an object
	each  time.Duration // so much more for each entity
	fails atomic.Bool
	heals atomic.Int64 // when it is seen to write again after a call that took too long

	mu       sync.Mutex
	kept     map[string]store.Copy // the newest copies, by key
	fates    map[string]store.Outcome
	calls    int
	reserved int64
	most     int64 // that was reserved at once
	sweeps   map[string]bool
}

var errBucket = errors.New("the bucket is full")

func (s *safe) IsWhole() bool { return !s.keys }

func (s *safe) Reserve(ctx context.Context, bytes int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved += bytes
	s.most = max(s.most, s.reserved)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved -= bytes
	}, ctx.Err()
}

func (s *safe) Keep(ctx context.Context, run, _ string, list []store.Copy) (
	ended func(fate func(key string) store.Outcome), err error,
) {
	if err := throttle.Sleep(ctx, s.takes+time.Duration(len(list))*s.each); err != nil {
		s.heals.Store(time.Now().Add(7 * time.Second).UnixNano()) // as a probe, which is small, is written then
		return nil, err
	}
	if s.fails.Load() {
		return nil, errBucket
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.sweeps[run] = true
	for _, c := range list {
		s.kept[c.Key] = store.Copy{Key: c.Key, Version: c.Version, Expiry: c.Expiry, Data: slices.Clone(c.Data)}
	}
	return func(fate func(key string) store.Outcome) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range list {
			s.fates[c.Key] = fate(c.Key)
		}
	}, nil
}

func (s *safe) Failing() error {
	if s.fails.Load() || time.Now().UnixNano() < s.heals.Load() {
		return errBucket
	}
	return nil
}

// archived gives the world's target an archive, and checks A1 at each call that deletes.
func (w *world) archived(keys bool) *safe {
	s := &safe{keys: keys, kept: map[string]store.Copy{}, fates: map[string]store.Outcome{}, sweeps: map[string]bool{}}
	w.target.Archive = s
	was := w.s.After
	w.s.After = func(ctx context.Context, c modelstore.Call) error {
		s.check(w, c)
		if was != nil {
			return was(ctx, c)
		}
		return nil
	}
	return s
}

func (s *safe) check(w *world, c modelstore.Call) {
	if c.Method != "Dispose" && c.Method != "Settle" && c.Method != "DeleteBelow" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := w.s.Entities("Session", "")
	for _, op := range c.Ops {
		kept, ok := s.kept[op.Entry.Key]
		if _, stands := left[op.Entry.Key]; stands || op.IsCarry() || op.Outcome == store.Gone || c.Method == "DeleteBelow" {
			continue
		}
		if !ok || kept.Data == nil && !s.keys || kept.Data != nil && s.keys {
			w.t.Errorf("%s is gone, and the archive has %v, %+v", op.Entry.Key, ok, kept)
		}
	}
}

func inArchive(t *testing.T, test func(t *testing.T, w *world, s *safe)) {
	for _, keys := range []bool{false, true} {
		t.Run(fmt.Sprint("keys alone ", keys), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				s := w.archived(keys)
				test(t, w, s)
			})
		})
	}
}

// All that goes is in the archive before, which learns that it went, and by which sweep.
func TestArchivesAllThatGoes(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.begin()
		s.takes = 700 * time.Millisecond
		live := w.fill(2000, 48*time.Hour)
		res := w.sweep()
		w.wantLeft(live...)
		if !res.Complete || res.Deleted != 1000 || res.Archived != 1000 || res.ArchivedBytes < 1000 || len(s.kept) != 1000 {
			t.Errorf("%d kept: %+v", len(s.kept), res)
		}
		for key, fate := range s.fates {
			if fate != store.Deleted {
				t.Fatalf("the archive is told %v of %s", fate, key)
			}
		}
		if len(s.fates) != 1000 || s.reserved != 0 || len(s.sweeps) != 1 {
			t.Errorf("told of %d, %d bytes are still reserved, sweeps %v", len(s.fates), s.reserved, s.sweeps)
		}
	})
}

// What is carried, or changes meanwhile, is not taken for deleted.
func TestArchiveOfWhatStays(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.put(1, 4, "extended", time.Now())
		w.put(1, 4, "goes", time.Now())
		w.put(1, 4, "touched", time.Now())
		time.Sleep(time.Second)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			// Its own delete, since the three may go at once.
			if c.Method == "Dispose" && concern(c.Ops, "extended") {
				w.put(1, 4, "extended", time.Now().Add(time.Hour))
			}
			return nil
		}
		res := w.sweep()
		w.wantLeft("extended")
		if res.Deleted != 2 || res.Archived != 2 || s.fates[keyOf("extended")] == store.Deleted {
			t.Errorf("%v: %+v", s.fates, res)
		}
	})
}

// A call that can show only some of its entities leaves the others to the next ones.
func TestArchiveOfLargeEntities(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		s := w.archived(false)
		w.begin()
		w.s.CopyBytes = 700 // about three
		for i := range 200 {
			w.put(1, 4, fmt.Sprint("e-", i), time.Now())
		}
		time.Sleep(time.Second)
		if res := w.sweep(); !res.Complete || res.Deleted != 200 || res.Archived != 200 || len(s.kept) != 200 {
			t.Errorf("%d kept: %+v", len(s.kept), res)
		}
		if s.calls < 40 {
			t.Errorf("%d calls", s.calls)
		}
	})
}

// While the archive cannot be written nothing goes, and it is said why; a sweep ends after a while. Once it can be
// written, all goes.
func TestArchiveFails(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.begin()
		live := w.fill(400, 48*time.Hour)
		s.fails.Store(true)
		began := time.Now()
		res := w.sweep()
		if res.Deleted != 0 || res.Held != string(throttle.ReasonArchive) || !strings.Contains(res.Reason, errBucket.Error()) {
			t.Errorf("%+v", res)
		}
		if took := time.Since(began); took > 10*time.Minute {
			t.Errorf("the sweep took %v", took)
		}
		s.fails.Store(false)
		w.sweep()
		w.wantLeft(live...)
	})
}

// An archive that takes longer than a write may is given less at a time. If that does not help it is an error: it
// neither holds a sweep for ever, nor says nothing.
func TestArchiveIsSlow(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.begin()
		live := w.fill(400, 48*time.Hour)
		s.takes = time.Minute
		began := time.Now()
		res := w.sweep()
		if res.Deleted != 0 || res.Complete || !strings.Contains(res.Error, "the archive is too slow") {
			t.Errorf("%+v", res)
		}
		if took := time.Since(began); took > 10*time.Minute {
			t.Errorf("the sweep took %v", took)
		}
		time.Sleep(time.Minute)
		s.takes, s.each = 0, time.Second
		if res := w.sweep(); !res.Complete {
			t.Errorf("%+v", res)
		}
		w.wantLeft(live...)
	})
}

// An archive that fails in the middle holds what is left, for as long as it fails.
func TestArchiveFailsInADaemon(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.target.Next = everyMinute
		s.takes = 100 * time.Millisecond
		daemon := w.serve(w.config())
		for i := range 60 {
			w.put(1, 4, fmt.Sprint("e-", i), time.Now().Add(time.Duration(i)*time.Minute))
		}
		time.Sleep(20 * time.Minute)
		before := len(w.left())
		s.fails.Store(true)
		time.Sleep(20 * time.Minute)
		if now := len(w.left()); before-now > 1 || now < 30 {
			t.Errorf("%d were left as the archive failed, and %d are 20 minutes later", before, now)
		}
		s.fails.Store(false)
		time.Sleep(25 * time.Minute)
		daemon.stop()
		w.wantLeft()
		if len(s.kept) != 60 {
			t.Errorf("the archive has %d", len(s.kept))
		}
	})
}

// A pause that comes while an object is written stops what waits for it.
func TestPausedWhileItArchives(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.target.Next = everyMinute
		s.takes = 25 * time.Second // longer than a process trusts what it knows of a pause
		w.put(1, 4, "e", time.Now())
		daemon := w.serve(w.config())
		time.Sleep(3 * time.Second)
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, control.Order{Actor: "ann"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		w.wantLeft("e")
		if s.fates[keyOf("e")] == store.Deleted {
			t.Error("the archive is told that it is deleted")
		}
		daemon.stop()
	})
}

// Killed at each of its calls, a process leaves nothing that is gone and not in the archive.
func TestKilledWhileItArchives(t *testing.T) {
	for kill := int64(1); ; kill++ {
		var killed atomic.Bool
		inArchive(t, func(t *testing.T, w *world, s *safe) {
			s.takes = 50 * time.Millisecond
			w.begin()
			w.target.Page = 4
			for i := range 20 {
				w.put(1, 2, fmt.Sprint("e-", i), time.Now())
			}
			time.Sleep(time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int64
			w.s.Before = func(context.Context, modelstore.Call) error {
				if calls.Add(1) >= kill && ctx.Err() == nil {
					killed.Store(true)
					cancel()
				}
				return ctx.Err()
			}
			cfg := w.config()
			cfg.Grace = 0
			sweep.Run(ctx, cfg)
			w.s.Before = nil
			cancel()
			time.Sleep(5 * time.Minute)
			w.sweep()
			w.wantLeft()
			if len(s.kept) != 20 {
				t.Errorf("killed at call %d: the archive has %d", kill, len(s.kept))
			}
		})
		if !killed.Load() || t.Failed() {
			t.Logf("%d calls", kill)
			break
		}
	}
}

// Descendants are archived like the entity above them.
func TestArchivesChildren(t *testing.T) {
	for _, keys := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFamily(t)
			s := f.archived(keys)
			all := 0
			for i := range 10 {
				f.put(1, 4, fmt.Sprint("e-", i), time.Now())
				f.bear(fmt.Sprint("e-", i), 3*i)
				all += len(f.below(fmt.Sprint("e-", i)))
			}
			time.Sleep(time.Second)
			if res := f.sweep(); !res.Complete || res.Archived != int64(10+all) || len(s.kept) != 10+all {
				t.Errorf("%d of %d kept: %+v", len(s.kept), 10+all, res)
			}
			for key, c := range s.kept { // the expiry above is not theirs: a restore compares it with what they held
				if strings.Contains(key, "/") && c.Expiry != (store.Value{}) {
					t.Errorf("%s is kept with the expiry %v", key, c.Expiry)
				}
			}
		})
	}
}

// What lies below an entity, and takes longer to archive than a write may, goes in smaller parts.
func TestArchivesManyChildrenSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t)
		s := f.archived(false)
		f.target.Page, s.each = 500, 300*time.Millisecond
		f.put(1, 4, "e", time.Now())
		f.bear("e", 200)
		time.Sleep(time.Second)
		began := time.Now()
		if res := f.sweep(); !res.Complete || res.Deleted != 1 || time.Since(began) > 10*time.Minute {
			t.Errorf("after %v: %+v", time.Since(began), res)
		}
	})
}

// Without Apply nothing is archived.
func TestDryRunArchivesNothing(t *testing.T) {
	inArchive(t, func(t *testing.T, w *world, s *safe) {
		w.begin()
		w.fill(100, 48*time.Hour)
		s.fails.Store(true)
		if res := w.dryRun(exactly); res.Expired != 50 || res.Held != "" || len(s.kept) > 0 {
			t.Errorf("%d kept: %+v", len(s.kept), res)
		}
	})
}
