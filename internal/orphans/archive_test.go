package orphans_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/orphans"
	"github.com/reaper-ttl/reaper/store"
)

// A slowArchive takes its time for each entity, and keeps what became of it.
type slowArchive struct {
	whole bool
	each  time.Duration

	mu    sync.Mutex
	late  int // calls of Keep that took too long
	fates map[store.Outcome]int
}

func (a *slowArchive) IsWhole() bool { return a.whole }

func (a *slowArchive) Reserve(context.Context, int64) (release func(), err error) {
	return func() {}, nil
}

func (a *slowArchive) Failing() error { return nil }

func (a *slowArchive) Keep(ctx context.Context, _, _ string, list []store.Copy) (
	ended func(fate func(key string) store.Outcome), err error,
) {
	select {
	case <-time.After(time.Duration(len(list)) * a.each):
	case <-ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		a.late++
		return nil, context.Cause(ctx)
	}
	return func(fate func(key string) store.Outcome) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.fates == nil {
			a.fates = map[store.Outcome]int{}
		}
		for _, c := range list {
			a.fates[fate(c.Key)]++
		}
	}, nil
}

// With an archive that is slow, calls get as small as it needs, and stay so for a while: a run that gets on does not
// fail, however long that takes.
func TestSlowArchive(t *testing.T) {
	for _, whole := range []bool{true, false} {
		in(t, func(t *testing.T, w *world) {
			for i := range 3000 {
				w.below("gone", fmt.Sprintf("n/%05d", i))
			}
			a := &slowArchive{whole: whole, each: callTimeout / 200}
			cfg := w.config()
			cfg.Target.Archive = a
			if res := w.run(cfg); res.Deleted != 3000 || a.fates[store.Deleted] != 3000 {
				t.Errorf("%+v, %v", res.Counts, a.fates)
			}
			// two until 125 are few enough, and then one for each four calls of that size
			if most := 2 + 3000/125/4; a.late > most {
				t.Errorf("%d calls took too long, want at most %d", a.late, most)
			}
		})
	}
}

// callTimeout is how long a call of a run may take.
const callTimeout = 30 * time.Second

// An archive that keeps nothing in time ends a run after two minutes.
func TestArchiveKeepsNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.below("gone", "n/1", "n/2", "n/3")
		cfg := w.config()
		cfg.Target.Archive = &slowArchive{each: time.Hour}
		began := time.Now()
		_, err := orphans.Run(t.Context(), cfg)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		w.wants(w.left("gone"), []string{"gone/n/1", "gone/n/2", "gone/n/3"})
	})
}

// The archive names its objects by the clock of the process, and old ones are removed by that of the store: a clock that
// is too far off, be it only since the run began, deletes nothing.
func TestArchiveByAWrongClock(t *testing.T) {
	for _, late := range []time.Duration{0, 10 * time.Second} {
		in(t, func(t *testing.T, w *world) {
			w.below("gone", "n/1", "n/2", "n/3")
			a, began := &slowArchive{each: 20 * time.Second}, time.Now()
			cfg := w.config()
			cfg.Sweep.Now = func() time.Time {
				if now := time.Now(); now.Sub(began) < late {
					return now
				}
				return time.Now().Add(25 * time.Hour)
			}
			if _, err := orphans.Run(t.Context(), cfg); err != nil {
				t.Errorf("without an archive: %v", err)
			}
			w.below("gone", "n/4")
			cfg.Target.Archive, began = a, time.Now()
			if res, err := orphans.Run(t.Context(), cfg); !errors.Is(err, storeclock.ErrWrong) || res.Deleted != 0 {
				t.Errorf("%v: %+v, %v", late, res.Counts, err)
			}
			w.wants(w.left("gone"), []string{"gone/n/4"})
		})
	}
}

// What holds the target while the archive is written holds what is kept, too.
func TestHeldWhileKeeping(t *testing.T) {
	for _, whole := range []bool{true, false} {
		for _, forever := range []bool{true, false} {
			in(t, func(t *testing.T, w *world) {
				w.below("gone", "n/1")
				a := &slowArchive{whole: whole, each: 10 * time.Second}
				cfg := w.config()
				cfg.Target.Archive = a
				began := time.Now()
				cfg.Target.Gate = func(context.Context) error {
					if at := time.Since(began); at > time.Second && (forever || at < 15*time.Second) {
						return errors.New("gate closed")
					}
					return nil
				}
				res, err := orphans.Run(t.Context(), cfg)
				took := time.Since(began)
				switch {
				case forever && (err != nil || res.Deleted != 0 || res.Held != "gate closed" || len(a.fates) != 1):
					t.Errorf("held: %+v, %v, %v", res, a.fates, err)
				case !forever && (err != nil || res.Deleted != 1 || a.fates[store.Deleted] != 1 || took < 25*time.Second):
					t.Errorf("%+v after %v, %v, %v", res, took, a.fates, err)
				case a.fates[store.Kept] != 1:
					t.Errorf("the archive is not told that nothing was deleted: %v", a.fates)
				}
			})
		}
	}
}
