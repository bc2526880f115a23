package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// in runs a test in a bubble of its own, with a fake clock.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// inEachLayout runs a test in a bubble for each layout.
func inEachLayout(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				layout(&w.target)
				test(t, w)
			})
		})
	}
}

func TestDeletesExactlyWhatExpired(t *testing.T) {
	ranges := map[string]int{"generation": 8, "timestamp": 1, "sharded-timestamp": 3}
	inEachLayout(t, func(t *testing.T, w *world) {
		w.begin()
		live := w.fill(2000, 48*time.Hour)
		res := w.sweep()
		w.wantLeft(live...)
		if res.Error != "" || !res.Complete || res.Deleted != 1000 || res.Expired != 1000 || res.Scanned != 1000 || res.Ranges != ranges[string(w.target.Layout)] {
			t.Errorf("result: %+v", res)
		}
		w.checkCursors()
		w.checkLeases()
	})
}

// An idle sweep costs one query per range and two for the records, three if there are
// generations, and writes nothing (P4).
func TestIdleSweepWritesNothing(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.fill(400, 48*time.Hour)
		w.sweep()
		time.Sleep(time.Minute)
		w.forget()
		before := w.s.Writes()
		res := w.sweep()
		if res.Scanned != 0 || res.Error != "" || !res.Complete {
			t.Errorf("result: %+v", res)
		}
		if got := w.s.Writes() - before; got != 0 {
			t.Errorf("%d writes", got)
		}
		loads := 2
		if w.target.Type == store.Text {
			loads = 3
		}
		if w.calls["Load"] != loads || w.calls["Scan"] != res.Ranges {
			t.Errorf("calls: %v, want %d loads and %d scans", w.calls, loads, res.Ranges)
		}
		if res.Operations != (store.Operations{Reads: int64(loads - 1 + len(w.cursors()) + res.Ranges)}) {
			t.Errorf("billed %+v", res.Operations)
		}
	})
}

// A sweep ends when its ranges are done: it does not wait for idle workers.
func TestSweepEndsWithItsLastRange(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 16
		w.fill(400, 48*time.Hour)
		for _, what := range []string{"with work", "idle"} {
			c := w.config()
			c.Workers = 16
			began := time.Now()
			if res := sweep.Run(t.Context(), c); !res.Complete {
				t.Errorf("%s: %+v", what, res)
			}
			if took := time.Since(began); took != 0 { // nothing in this world takes time but waiting
				t.Errorf("%s: a sweep that nothing held back took %v", what, took)
			}
		}
	})
}

// The cursor of a range without work is saved only if its probes are dear, and seldom then.
func TestIdleCursorIsMovedWhenItLags(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		time.Sleep(25 * time.Hour)
		w.forget()
		w.sweep()
		if len(w.saves) != 0 {
			t.Errorf("%d cursors were saved of ranges that are cheap to probe", len(w.saves))
		}
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				return throttle.Sleep(ctx, 150*time.Millisecond)
			}
			return nil
		}
		for range 5 {
			w.sweep()
			time.Sleep(10 * time.Minute)
		}
		if len(w.saves) != 8 {
			t.Errorf("%d cursors saved within an hour, want each of the 8 once", len(w.saves))
		}
		time.Sleep(20 * time.Minute)
		w.forget()
		w.sweep()
		for _, s := range w.saves {
			if s.owner != "" {
				t.Errorf("%s was claimed though there was no work", s.key)
			}
		}
		if len(w.saves) != 8 {
			t.Errorf("%d cursors moved, want each of the 8", len(w.saves))
		}
		for _, c := range w.cursors() {
			if want := time.Now().Add(-w.target.Overlap).UTC().Format("20060102T150405"); !strings.Contains(c.Position.Value.Text, want) {
				t.Errorf("cursor %v stands at %s, want horizon minus overlap, %s", c.ID, c.Position.Value.Text, want)
			}
		}
	})
}

func TestDryRunWritesNothing(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.fill(400, 48*time.Hour)
		before, writes := w.left(), w.s.Writes()
		c := w.config()
		c.Apply = false
		res := sweep.Run(t.Context(), c).Targets[0]
		w.wantLeft(before...)
		if got := w.s.Writes(); got != writes {
			t.Errorf("%d writes", got-writes)
		}
		if res.Expired != 200 || res.Deleted != 0 || !res.Complete {
			t.Errorf("result: %+v", res)
		}
	})
}

// The horizon is inclusive, and retention keeps entities longer (S1).
func TestHorizonIsInclusive(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.target.Retention = time.Hour
		at := time.Now().Add(-time.Hour)
		w.put(1, 4, "at", at)
		w.put(1, 4, "after", at.Add(time.Millisecond))
		w.sweep()
		w.wantLeft("after")
	})
}

// An entity whose expiry changes between scan and delete survives (S3). If it is due by its
// new expiry, too, the same sweep deletes it, after a second look.
func TestChangedBetweenScanAndDelete(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 1
		now := time.Now()
		w.put(1, 1, "extended", now.Add(-time.Hour))
		w.put(1, 1, "removed", now.Add(-time.Hour))
		w.put(1, 1, "still due", now.Add(-time.Hour))
		w.put(1, 1, "broken", now.Add(-time.Hour))
		w.put(1, 1, "forever", now.Add(-time.Hour))
		w.put(1, 1, "foreign", now.Add(-time.Hour))
		w.put(1, 1, "plain", now.Add(-time.Hour))
		var once sync.Once
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				once.Do(func() {
					w.put(1, 1, "extended", now.Add(time.Hour))
					w.s.Remove("Session", "", strconv.Quote("removed"))
					w.put(0, 1, "still due", now.Add(-2*time.Hour))
					w.raw("broken", "tomorrow")
					w.raw("foreign", "00000099.0000.20000101T000000.000Z")
					_ = w.s.Put(t.Context(), w.target.Target, "", []store.Entity{{Name: "forever"}})
				})
			}
			return nil
		}
		res := w.sweep()
		w.wantLeft("extended", "broken", "forever", "foreign")
		if res.Error != "" || !res.Complete || res.Deleted != 2 || res.Malformed != 1 {
			t.Errorf("result: %+v", res)
		}
		if res.Conflicts != 5 {
			t.Errorf("%d conflicts, want the 5 that changed and exist", res.Conflicts)
		}
	})
}

func TestManyAtOneInstant(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Page = 500
		at := time.Now().Add(-time.Hour)
		var kept []string
		for i := range 5000 {
			name := fmt.Sprintf("e-%04d", i)
			key := fmt.Sprintf("00000001.0002.%s", at.UTC().Format("20060102T150405.000Z"))
			if i%5 == 0 {
				kept = append(kept, name)
				key += "?"
			}
			w.raw(name, key)
		}
		res := w.sweep()
		w.wantLeft(kept...)
		if res.Deleted != 4000 || res.Malformed != 1000 || res.Scanned != 5000 || !res.Complete {
			t.Errorf("result: %+v", res)
		}
		if res = w.sweep(); res.Scanned != 0 {
			t.Errorf("the second sweep scanned %d", res.Scanned)
		}
	})
}

func TestSuspectIsKept(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		edge := time.Now().Add(-w.target.MaxAge)
		w.put(1, 4, "1970", time.Unix(0, 0))
		w.put(1, 4, "year 1", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
		w.put(1, 4, "too old", edge.Add(-time.Millisecond))
		w.put(1, 4, "just not", edge)
		w.put(1, 4, "9999", time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
		res := w.sweep()
		w.wantLeft("1970", "year 1", "too old", "9999")
		if res.Suspect != 3 || res.Deleted != 1 {
			t.Errorf("result: %+v", res)
		}
	})
}

// A hot entity, always contended in a batch, delays only itself. If no transaction ever
// succeeds on it, the cursor stays before it and the rest is done.
func TestHotEntity(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		in(t, func(t *testing.T, w *world) {
			live := w.fill(800, 48*time.Hour)
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if concern(c.Ops, "e-00100") && (c.Method == "Dispose" || stubborn && c.Method == "Settle") {
					return fmt.Errorf("somebody writes it all the time: %w", store.ErrContention)
				}
				return nil
			}
			res := w.sweep()
			if stubborn {
				w.wantLeft(append(live, "e-00100")...)
				if res.Complete || res.Error != "" || res.Incomplete != 1 {
					t.Errorf("result: %+v", res)
				}
				w.checkCursors()
				w.s.Before = nil
				res = w.sweep()
			}
			w.wantLeft(live...)
			if res.Error != "" || !res.Complete {
				t.Errorf("result: %+v", res)
			}
		})
	}
}

func TestFailingRangeStopsNoOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.fill(800, 48*time.Hour)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && c.Query.Limit > 1 && shardOf(c.Query) == "0002" {
				return fmt.Errorf("this shard: %w", store.ErrDenied)
			}
			if c.Method == "Dispose" && shardOf(c.Query) == "0003" {
				panic("a bug of ours")
			}
			return nil
		}
		res := w.sweep()
		if res.Incomplete != 3 || res.Complete || !strings.Contains(res.Error, "0002") || !strings.Contains(res.Error, "a bug of ours") {
			t.Errorf("result: %+v", res)
		}
		w.checkCursors()
		for _, e := range w.s.Entities("Session", "") {
			if k := e.Expiry.Text; k < "00000001.0002" && k[14:] < time.Now().UTC().Format("20060102T150405") {
				t.Errorf("%s is left in a range that did not fail", k)
			}
		}
	})
}

// What is written behind the cursor is found by the next rewind (L1).
func TestRewindFindsStragglers(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		live := w.fill(400, 2400*time.Hour)
		w.sweep()
		time.Sleep(time.Hour)
		w.touch()
		w.put(1, 4, "straggler", time.Now().Add(-30*time.Minute))
		w.put(0, 4, "in the nursery", time.Now().Add(-30*time.Minute))
		// Just behind the cursor, which stands at horizon minus overlap.
		behind := time.Now().Add(-w.target.Overlap - time.Microsecond)
		if w.target.Type == store.Text {
			behind = time.Now().Add(-w.target.Overlap - time.Millisecond)
		}
		for i := range 9 { // in any shard
			w.put(1, 4, fmt.Sprintf("just behind %d", i), behind)
			live = append(live, fmt.Sprintf("just behind %d", i))
		}
		time.Sleep(time.Minute)
		w.sweep()
		w.wantLeft(append(live, "straggler", "in the nursery")...)
		time.Sleep(24 * time.Hour)
		res := w.sweep()
		w.wantLive()
		if res.Malformed != 0 || res.Error != "" {
			t.Errorf("result: %+v", res)
		}
	})
}

func TestRewindGoesOnWhereItStopped(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 1
		w.begin()
		w.fill(10, 2400*time.Hour)
		w.sweep()
		time.Sleep(12 * time.Hour)
		w.touch()
		time.Sleep(13 * time.Hour)
		at := time.Now().Add(-20 * time.Hour)
		for i := range 1000 { // a long rewind, all behind the cursor
			w.put(1, 1, fmt.Sprintf("straggler-%d", i), at.Add(-time.Duration(i)*time.Millisecond))
		}
		w.target.Pace = throttle.Limits{Start: 50, Max: 50}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		first := sweep.Run(ctx, w.config()).Targets[0]
		c := w.cursors()[cursor.ID{Target: "sessions", Generation: 1, Shard: "0000"}]
		// The range had come to its horizon: a read from the start that was stopped is
		// saved, and does not make the sweep incomplete.
		if !first.Complete || first.Deleted < 400 || c.Rewind.Began.IsZero() || c.Rewind.Position.IsZero() {
			t.Errorf("after the stop: %+v, rewind %+v", first, c.Rewind)
		}
		w.forget()
		second := w.sweep()
		if !second.Complete || first.Deleted+second.Deleted != 1000 || second.Scanned > 1000-first.Deleted+100 {
			t.Errorf("deleted %d and %d, scanned %d the second time", first.Deleted, second.Deleted, second.Scanned)
		}
	})
}

// Wherever a process dies, its saved cursor is before all that it did not dispose of (L2),
// and another process finishes the work.
func TestDiesAnywhere(t *testing.T) {
	for seed := range uint64(240) {
		in(t, func(t *testing.T, w *world) {
			rng := rand.New(rand.NewPCG(seed, 7))
			layouts[[]string{"generation", "timestamp", "sharded-timestamp"}[seed%3]](&w.target)
			live := w.fill(600, 48*time.Hour)
			w.target.Page = 1 + rng.IntN(60)
			w.target.Pace = throttle.Limits{Start: 30, Max: 30, Unlimited: rng.IntN(2) == 0}
			for range 1 + rng.IntN(4) {
				ctx, kill := context.WithCancel(t.Context())
				m := &mortal{Store: w.s, kill: kill}
				m.left.Store(int64(rng.IntN(60)))
				c := w.config()
				c.Store = m
				c.Workers = 1 + rng.IntN(5)
				sweep.Run(ctx, c)
				kill()
				w.checkCursors()
			}
			res := w.sweep()
			w.wantLeft(live...)
			if !res.Complete {
				t.Errorf("last result: %+v", res)
			}
			w.checkCursors()
			w.checkLeases()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

func TestDeadHoldersRangesAreTakenOver(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Page = 10 // so that no range is done when its holder dies
		live := w.fill(400, 48*time.Hour)
		ctx, kill := context.WithCancel(t.Context())
		m := &mortal{Store: w.s, kill: kill}
		m.left.Store(1 << 40)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				m.left.Store(0) // dies holding its ranges
			}
			return nil
		}
		c := w.config()
		c.Store = m
		sweep.Run(ctx, c)
		w.s.Before = nil
		began := time.Now()
		res := w.sweep()
		w.wantLeft(live...)
		if took := time.Since(began); took < w.target.Lease || took > 2*w.target.Lease {
			t.Errorf("took over after %v, want about one lease of %v", took, w.target.Lease)
		}
		if res.Throttled["lease"] == 0 || !res.Complete {
			t.Errorf("result: %+v", res)
		}
		w.checkLeases()
	})
}

// Processes that run at once share the ranges: none is held by two (L3).
func TestProcessesShareTheRanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 16
		w.target.Pace = throttle.Limits{Start: 1, Max: 1} // so slow that each has its part before others are done
		live := w.fill(4000, 48*time.Hour)
		w.s.Before = func(ctx context.Context, _ modelstore.Call) error { // as a service takes its time
			return throttle.Sleep(ctx, 10*time.Millisecond)
		}
		var results [3]sweep.TargetResult
		var group sync.WaitGroup
		for i := range results {
			c := w.config()
			group.Go(func() { results[i] = sweep.Run(t.Context(), c).Targets[0] })
		}
		group.Wait()
		w.wantLeft(live...)
		var deleted int64
		for i, res := range results {
			deleted += res.Deleted
			if res.Error != "" || !res.Complete || res.Deleted == 0 {
				t.Errorf("process %d: %+v", i, res)
			}
		}
		if deleted != 2000 {
			t.Errorf("%d deleted by all three, want each of the 2000 once", deleted)
		}
		w.checkLeases()
		w.checkCursors()
	})
}

// A worker that was frozen for longer than its lease cannot move the cursor.
func TestFrozenWorkerLosesItsRange(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 1
		live := w.fill(200, 48*time.Hour)
		var frozen sync.Once
		var stands atomic.Bool
		thaw := make(chan struct{})
		slow := w.config()
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			var first bool
			if c.Method == "Dispose" {
				frozen.Do(func() { first = true; stands.Store(true) })
			}
			if owner, _ := c.Record.Fields["owner"].(string); first || owner == slow.Owner && stands.Load() {
				<-thaw // the whole process stands still, its heartbeat too
			}
			return nil
		}
		done := make(chan sweep.TargetResult)
		go func() { done <- sweep.Run(t.Context(), slow).Targets[0] }()
		time.Sleep(time.Second)
		res := w.sweep()
		if !res.Complete {
			t.Errorf("the second process: %+v", res)
		}
		w.wantLeft(live...)
		after := w.cursors()
		close(thaw)
		lost := <-done
		// It may find out at the end, or before, and then that the other one has swept the range meanwhile.
		if lost.Error != "" || lost.Complete == (lost.Incomplete == 1) {
			t.Errorf("the frozen process: %+v", lost)
		}
		for id, c := range w.cursors() {
			if c.Position != after[id].Position || c.Lease.Token != after[id].Lease.Token {
				t.Errorf("cursor %v moved from %+v to %+v", id, after[id], c)
			}
		}
	})
}

// A reply that is lost after the delete took effect still counts.
func TestLostRepliesCountOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		live := w.fill(800, 48*time.Hour)
		rng := rand.New(rand.NewPCG(1, 2))
		w.s.After = func(ctx context.Context, c modelstore.Call) error {
			w.mu.Lock()
			lose := rng.IntN(3) == 0 && c.Method != "Load"
			w.mu.Unlock()
			if lose {
				return fmt.Errorf("the reply was lost: %w", store.ErrUnavailable)
			}
			return w.trace(ctx, c)
		}
		res := w.sweep()
		w.wantLeft(live...)
		if res.Deleted != 400 || res.Error != "" || !res.Complete {
			t.Errorf("result: %+v", res)
		}
	})
}

func TestPushbackIsSatOut(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		live := w.fill(800, 48*time.Hour)
		began := time.Now()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if time.Since(began) < time.Minute && c.Method != "Load" && c.Record.Sort != store.TargetRecord && c.Query.Limit != 1 {
				return fmt.Errorf("quota: %w", store.ErrPushback)
			}
			return nil
		}
		res := w.sweep()
		if len(w.left()) != len(live) || res.Error != "" || !res.Complete || res.Deleted != 400 {
			t.Errorf("%d left, result: %+v", len(w.left()), res)
		}
	})
}

func TestPagesShrink(t *testing.T) {
	for _, why := range []error{store.ErrTooLarge, store.ErrDeadline} {
		in(t, func(t *testing.T, w *world) {
			w.target.Page = 500
			w.target.Shards = 1
			live := w.fill(2000, 48*time.Hour)
			refused := 0
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Dispose" && len(c.Ops) > 64 {
					refused++
					return fmt.Errorf("%d at once: %w", len(c.Ops), why)
				}
				return nil
			}
			res := w.sweep()
			w.wantLeft(live...)
			if res.Deleted != 1000 || refused < 2 || refused > 7 || !res.Complete {
				t.Errorf("%d tries refused, result: %+v", refused, res)
			}
		})
	}
}

// No more than the pace is deleted in any window (P2), and no record is written
// more often than about once a second.
func TestPaceAndCheckpoints(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 2
		w.target.Page = 500
		w.target.Pace = throttle.Limits{Start: 20, Max: 20}
		w.fill(2000, 48*time.Hour)
		type commit struct {
			at time.Time
			n  int
		}
		commits := map[string][]commit{}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				w.mu.Lock()
				commits[shardOf(c.Query)] = append(commits[shardOf(c.Query)], commit{time.Now(), len(c.Ops)})
				w.mu.Unlock()
			}
			return nil
		}
		res := w.sweep()
		for shard, list := range commits {
			for i := range list {
				sum := 0
				for _, c := range list[i:] {
					sum += c.n
					if window := c.at.Sub(list[i].at).Seconds(); float64(sum) > 20*window+20+1e-6 {
						t.Fatalf("shard %s: %d deleted in %.2f s", shard, sum, window)
					}
				}
			}
		}
		if res.Deleted != 1000 || res.Throttled["max"] < 40 {
			t.Errorf("result: %+v", res)
		}
		last := map[string]save{}
		for _, s := range w.saves {
			if p, ok := last[s.key]; ok && s.owner != "" && s.at.Sub(p.at) < 900*time.Millisecond {
				t.Errorf("%s was written after %v", s.key, s.at.Sub(p.at))
			}
			last[s.key] = s
		}
	})
}

// Stopping in good order finishes the page in flight, saves and releases.
func TestStops(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 10, Max: 10}
		w.fill(4000, 48*time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		res := sweep.Run(ctx, w.config()).Targets[0]
		if took := time.Since(began); took > 21*time.Second {
			t.Errorf("stopped after %v", took)
		}
		busy := res.Ranges
		if w.target.Type == store.Text {
			busy = w.target.Shards // the nursery's are empty, and complete
		}
		if res.Complete || res.Error != "" || res.Deleted < 100 || res.Deleted > 1000 || res.Incomplete != busy {
			t.Errorf("result: %+v", res)
		}
		w.checkCursors()
		moved := 0
		for _, c := range w.cursors() {
			if c.Lease.Owner != "" {
				t.Errorf("%v is still held by %s", c.ID, c.Lease.Owner)
			}
			if !c.Position.IsZero() {
				moved++
			}
		}
		if moved < 4 {
			t.Errorf("%d cursors moved", moved)
		}
	})
}

// A page in flight that does not come back is given up after the grace.
func TestStopsAfterItsGrace(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(400, 48*time.Hour)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		res := sweep.Run(ctx, w.config()).Targets[0]
		if took := time.Since(began); took != 13*time.Second {
			t.Errorf("stopped after %v, want 5s and a grace of 8s", took)
		}
		if res.Complete || res.Error != "" {
			t.Errorf("result: %+v", res)
		}
		w.checkCursors()
	})
}

func TestClockIsRefused(t *testing.T) {
	for _, skew := range []time.Duration{11 * time.Second, -11 * time.Second} {
		in(t, func(t *testing.T, w *world) {
			w.fill(40, 48*time.Hour)
			before := w.left()
			w.s.Now = func() time.Time { return time.Now().Add(skew) }
			res := w.sweep()
			w.wantLeft(before...)
			if !strings.Contains(res.Error, "clock") {
				t.Errorf("result: %+v", res)
			}
		})
	}
}

func TestTargetRecordIsRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(40, 48*time.Hour)
		w.sweep()
		got, _ := w.s.Load(t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
		rec := got.List[0]
		live := w.left()
		w.put(1, 4, "due", time.Now())
		time.Sleep(time.Second)

		if err := w.s.Save(t.Context(), store.Record{Sort: rec.Sort, Key: rec.Key, Target: rec.Target}, rec.Revision); err != nil {
			t.Fatal(err)
		}
		old := rec
		old.Revision = "0-old"
		if err := w.s.Save(t.Context(), old, ""); err != nil {
			t.Fatal(err)
		}
		if res := w.sweep(); !strings.Contains(res.Error, "old copy") {
			t.Errorf("with an old record: %+v", res)
		}
		w.wantLeft(append(live, "due")...)
		// What the message advises.
		if err := w.s.Save(t.Context(), store.Record{Sort: rec.Sort, Key: rec.Key, Target: rec.Target}, old.Revision); err != nil {
			t.Fatal(err)
		}
		if res := w.sweep(); res.Error != "" || !res.Complete || res.Deleted != 1 {
			t.Errorf("without a record: %+v", res)
		}
		w.wantLeft(live...)
	})
}

// A range that nobody swept for longer than max_age goes on where its timestamps
// now begin.
func TestCursorOlderThanMaxAge(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		layouts["timestamp"](&w.target)
		w.target.MaxAge = 100 * time.Hour
		w.fill(100, 48*time.Hour)
		w.sweep()
		time.Sleep(500 * time.Hour)
		w.put(1, 4, "forgotten", time.Now().Add(-101*time.Hour))
		w.put(1, 4, "due", time.Now().Add(-99*time.Hour))
		res := w.sweep()
		if left := w.left(); slices.Contains(left, "due") || !slices.Contains(left, "forgotten") || res.Error != "" || !res.Complete {
			t.Errorf("%d left, result: %+v", len(left), res)
		}
	})
}

// A target that is moved to another layout starts again, and keeps its tokens.
func TestLayoutsFollowEachOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		generation := w.target
		for round, layout := range []string{"generation", "timestamp", "sharded-timestamp", "timestamp", "generation"} {
			w.target = generation
			layouts[layout](&w.target)
			w.put(1, 4, fmt.Sprint("behind ", round), time.Now().Add(-time.Hour))
			if round > 2 { // its cursors are there from before, and the next rewind finds it
				time.Sleep(25 * time.Hour)
			}
			if res := w.sweep(); res.Deleted != 1 || res.Error != "" {
				t.Errorf("round %d, %s: %+v", round, layout, res)
			}
			if _, err := inspect.Status(t.Context(), w.config(), w.target); err != nil {
				t.Errorf("round %d, %s: %v", round, layout, err)
			}
		}
	})
}

func TestPositionsOfAnotherKindAreDiscarded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(40, 48*time.Hour)
		w.sweep()
		w.put(1, 4, "behind", time.Now().Add(-time.Hour))
		w.target.Property = "expires_at"
		tokens := map[cursor.ID]int64{}
		for id, c := range w.cursors() {
			tokens[id] = c.Lease.Token
		}
		if res := w.sweep(); res.Deleted != 1 {
			t.Errorf("result: %+v", res)
		}
		for id, c := range w.cursors() {
			if c.Lease.Token < tokens[id] {
				t.Errorf("%v: token %d after %d", id, c.Lease.Token, tokens[id])
			}
		}
	})
}

// The next page is read while one is written, and no further ahead; a write that
// hangs until the sweep is stopped leaves no reader behind.
func TestReadsOnePageAhead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		layouts["timestamp"](&w.target)
		w.target.Page = 10
		w.put(1, 1, "first", time.Now())
		w.sweep() // a first read goes over all there is, in windows, and its first page is in another lane
		for i := range 100 {
			w.put(1, 1, fmt.Sprintf("e-%03d", i), time.Now().Add(time.Duration(i+1)*time.Second))
		}
		time.Sleep(10 * time.Minute)
		before := w.calls["Scan"]
		stop := make(chan struct{})
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				<-stop
			}
			return nil
		}
		done := make(chan sweep.TargetResult)
		go func() { done <- w.sweep() }()
		synctest.Wait()
		w.mu.Lock()
		scans := w.calls["Scan"]
		w.mu.Unlock()
		if scans != before+2 {
			t.Errorf("%d scans while the first page is written, want 2", scans-before)
		}
		close(stop)
		if res := <-done; res.Deleted != 100 || res.Scanned != 100 || !res.Complete {
			t.Errorf("result: %+v", res)
		}
	})
}

// Behind the last page nothing is read, also where the page before it had nothing
// to write.
func TestReadsNothingBehindTheLastPage(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards, w.target.Page = 1, 5
		w.sweep() // a first read goes over all there is, in windows
		time.Sleep(15 * time.Minute)
		w.sweep() // a new target's index is probed once more
		at := time.Now().Add(time.Minute).UTC().Format("20060102T150405.000Z")
		for i := range 5 {
			w.raw(fmt.Sprint("kept ", i), "00000001.0000."+at+"!")
		}
		w.put(1, 1, "due", time.Now().Add(2*time.Minute))
		time.Sleep(10 * time.Minute)
		before := w.calls["Scan"]
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				synctest.Wait() // concurrent reads are done now
			}
			return nil
		}
		res := w.sweep()
		w.mu.Lock()
		defer w.mu.Unlock()
		if scans := w.calls["Scan"] - before; res.Deleted != 1 || res.Malformed != 5 || scans != 3 { // one of the nursery
			t.Errorf("%d scans, result: %+v", scans, res)
		}
	})
}

// Whenever it is asked to stop, in whatever call, that is no failure.
func TestStopsAnywhere(t *testing.T) {
	for seed := range uint64(80) {
		in(t, func(t *testing.T, w *world) {
			rng := rand.New(rand.NewPCG(seed, 9))
			w.fill(600, 48*time.Hour)
			w.target.Page = 10
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			calls := rng.IntN(60)
			w.s.Before = func(callCtx context.Context, _ modelstore.Call) error {
				w.mu.Lock()
				calls--
				now := calls == 0
				w.mu.Unlock()
				if now {
					cancel(errors.New("a signal arrived"))
				}
				return callCtx.Err()
			}
			res := sweep.Run(ctx, w.config()).Targets[0]
			if res.Error != "" || res.Complete && ctx.Err() != nil && res.Incomplete == res.Ranges {
				t.Fatalf("seed %d: %+v", seed, res)
			}
			if ctx.Err() != nil && res.Ranges > 0 && res.Deleted < 300 && res.Incomplete == 0 {
				t.Fatalf("seed %d: stopped, and every range is said to be complete: %+v", seed, res)
			}
			w.checkCursors()
			for _, c := range w.cursors() {
				if c.Lease.Owner != "" {
					t.Errorf("seed %d: %v is still held", seed, c.ID)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// The transaction of a process that died keeps a cursor record locked for a
// minute: the range waits for its turn, and the others go on.
func TestBlockedRecordIsWaitedFor(t *testing.T) {
	for _, minutes := range []int{1, 10} {
		in(t, func(t *testing.T, w *world) {
			live := w.fill(400, 48*time.Hour)
			began := time.Now()
			w.s.Before = func(ctx context.Context, c modelstore.Call) error {
				if c.Method == "Save" && strings.HasSuffix(c.Record.Key, ".0002") && time.Since(began) < time.Duration(minutes)*time.Minute {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			res := w.sweep()
			if minutes == 1 {
				w.wantLeft(live...)
				if !res.Complete || res.Error != "" {
					t.Errorf("result: %+v", res)
				}
				return
			}
			if res.Complete || !strings.Contains(res.Error, "it cannot be claimed yet: claim ") || time.Since(began) > 4*time.Minute {
				t.Errorf("after %v: %+v", time.Since(began), res)
			}
		})
	}
}

// A sweep ends though what holds its target comes and goes, so that a range whose record is locked is
// looked at, and tried again, in turns.
func TestSweepEndsThoughItsGateFlaps(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		live := w.fill(400, 48*time.Hour)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Save" && strings.HasSuffix(c.Record.Key, ".0002") {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		began := time.Now()
		w.target.Gate = func(context.Context) error {
			if since := time.Since(began); since < time.Hour && since/(20*time.Second)%2 == 1 {
				return errors.New("the shop is full")
			}
			return nil
		}
		res := w.sweep()
		if took := time.Since(began); res.Complete || took > 6*time.Minute || res.Throttled["gate"] == 0 ||
			!strings.Contains(res.Error, "cannot be claimed") {
			t.Errorf("after %v: %+v", took, res)
		}
		if left := len(w.left()); left == len(live) || left > len(live)+60 {
			t.Errorf("%d are left, of which %d are not due", left, len(live))
		}
	})
}

// A process that was killed leaves its heartbeat. Another one under the same name says what it waits for.
func TestNameIsStillInUse(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Lease = 10 * time.Minute // a sweep does not wait for that long
		w.putEvery(400, 10*time.Second)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.WorkerRecord && c.Record.Fields == nil {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		c := w.config()
		if res := sweep.Run(t.Context(), c).Targets[0]; !res.Complete {
			t.Fatalf("%+v", res)
		}
		w.s.Before = nil
		time.Sleep(time.Minute)
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Complete || !strings.Contains(res.Error, cursor.ErrTwin.Error()) {
			t.Errorf("%+v", res)
		}
	})
}
