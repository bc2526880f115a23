package sweep_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A range without a position is read from its very start, even if this process had found it
// empty further on: its release was lost, and with it the position.
func TestUnreadRangeIsReadFromItsStart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		written := map[int64]int64{} // into each shard of generation 1: the token of the lost release
		began := time.Now()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Save" || c.Record.Sort != store.CursorRecord || time.Since(began) > 20*time.Second {
				return nil
			}
			f := c.Record.Fields
			if f["owner"] != "" || f["generation"] != int64(1) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			shard, token := int64(len(written)), f["token"].(int64)
			written[shard] = token
			return store.ErrDenied
		}
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprint("first-", shard), began.Add(-time.Minute))
		}
		s := w.serve(w.config())
		time.Sleep(10 * time.Second)
		mu.Lock()
		lost := len(written)
		mu.Unlock()
		if lost < 4 {
			t.Fatalf("%d releases were lost", lost)
		}
		for id, c := range w.cursors() {
			if id.Generation == 1 && !c.Position.IsZero() {
				t.Fatalf("%v has been read: %+v", id, c)
			}
		}
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprint("behind-", shard), began.Add(-time.Hour))
		}
		time.Sleep(2 * time.Minute)
		w.wantLeft()
		if st := s.state(); st.Deleted != 8 {
			t.Errorf("%+v", st)
		}
	})
}

// Entities written behind the cursor of a range are found at the next rewind, also while
// the range has a backlog that never ends.
func TestRewindBesideABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Shards, w.target.Rewind = 1, 10*time.Minute
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.touch()
		for i := range 2500 { // it takes 83 minutes
			w.dueIn(0, 0, fmt.Sprintf("backlog-%05d", i), time.Now().Add(time.Duration(i)*time.Millisecond))
		}
		w.serve(w.config())
		time.Sleep(5 * time.Minute)
		for round := range 3 {
			name := fmt.Sprintf("straggler-%d", round)
			w.dueIn(0, 0, name, time.Now().Add(-time.Hour))
			time.Sleep(2*w.target.Rewind + time.Minute)
			if left := w.left(); slices.Contains(left, name) || len(left) < 100 {
				t.Fatalf("round %d: of %d entities left one was behind the cursor, and two rewinds were due since", round, len(left))
			}
		}
	})
}

// An entity that waits aside for one reading of a range, and gets a later expiry meanwhile,
// holds back the other reading, too: the cursor does not pass it.
func TestExtendedWhileItWaitsAside(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 1
		w.sweep()
		time.Sleep(25 * time.Hour)                           // rewinds are due
		w.dueIn(1, 0, "held", time.Now().Add(-26*time.Hour)) // behind the cursor
		var free atomic.Bool
		var tries atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			held := c.Method == "Settle" || concern(c.Ops, "held")
			if !held || free.Load() {
				return nil
			}
			tries.Add(1)
			return store.ErrContention
		}
		w.serve(w.config())
		time.Sleep(10 * time.Second)
		w.dueIn(1, 0, "held", time.Now().Add(time.Second))
		for range 60 {
			time.Sleep(time.Second)
			w.checkCursors()
		}
		if n := tries.Load(); n < 3 {
			t.Errorf("it was tried %d times", n)
		}
		free.Store(true)
		time.Sleep(time.Minute)
		w.wantLeft()
	})
}

// A daemon has found a range without a record empty up to an instant. An entity that is then
// written before that instant is found when a rewind would be due.
func TestStragglerInARangeWithoutARecord(t *testing.T) {
	nightly.Races(t)
	in(t, func(t *testing.T, w *world) {
		w.target.Next = func(at time.Time) time.Time { return at.Truncate(time.Minute).Add(time.Minute) }
		w.serve(w.config())
		time.Sleep(2 * time.Hour)
		w.dueIn(1, 2, "straggler", time.Now().Add(-time.Hour))
		time.Sleep(10 * time.Hour)
		if len(w.left()) == 0 {
			t.Error("the daemon reads the range from its start at each tick")
		}
		if _, ok := w.cursors()[cursor.ID{Target: "sessions", Generation: 1, Shard: "0002"}]; ok {
			t.Error("a range without work has a record")
		}
		time.Sleep(13 * time.Hour)
		w.wantLeft()
	})
}
