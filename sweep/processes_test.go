package sweep_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A sweep leaves the ranges that a live process holds to that process. So a sweep next to a
// daemon with a backlog ends soon, and so do the sweeps that another daemon counts.
func TestSweepsLeaveRangesToALiveProcess(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.sweep()
		for i := range 600 { // it takes twenty minutes, in one range
			w.dueIn(1, 0, fmt.Sprintf("backlog-%04d", i), time.Now().Add(-5*time.Second))
		}
		w.serve(w.config())
		time.Sleep(time.Minute)
		w.dueIn(1, 3, "due", time.Now())
		began := time.Now()
		res := w.sweep()
		if took := time.Since(began); !res.Complete || res.Error != "" || took > w.target.Lease {
			t.Errorf("a sweep next to the daemon, after %v: %+v", took, res)
		}
		other := w.serve(w.config())
		time.Sleep(2 * time.Minute)
		if n := other.sweeps("complete"); n < 60 {
			t.Errorf("another daemon completed %d sweeps in two minutes", n)
		}
		if left := len(w.left()); left < 400 {
			t.Errorf("only %d entities are left: there was no backlog", left)
		}
		w.checkLeases()
	})
}

// A daemon that joins others with a backlog works within fifteen seconds. Others take over
// the ranges of one that dies or freezes, soon after its lease. All daemons hold about the
// same number of ranges, and each renews one record, however many it holds.
func TestDaemonsDivideTheRanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const ranges = 12
		w.target.Shards = ranges
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.sweep()
		for i := range 600 * ranges {
			w.dueIn(1, i%ranges, fmt.Sprintf("backlog-%04d", i), time.Now().Add(-5*time.Second))
		}
		one, two, three := w.config(), w.config(), w.config()
		dying := &mortal{Store: w.s, kill: func() {}}
		dying.left.Store(1 << 40)
		one.Store = dying
		var frozen atomic.Bool
		thaw := make(chan struct{})
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if owner, _ := c.Record.Fields["owner"].(string); frozen.Load() && owner == two.Owner {
				<-thaw // so its heartbeat is not renewed, either
			}
			return nil
		}
		held := func() map[string]int {
			n := map[string]int{}
			for _, c := range w.cursors() {
				if c.Generation == 1 {
					n[c.Lease.Owner]++
				}
			}
			return n
		}
		w.serve(one)
		time.Sleep(time.Minute)
		if n := held(); n[one.Owner] != ranges {
			t.Fatalf("one daemon: %v", n)
		}
		w.serve(two)
		time.Sleep(15 * time.Second)
		if n := held(); n[two.Owner] == 0 {
			t.Errorf("fifteen seconds after the second joined: %v", n)
		}
		w.serve(three)
		time.Sleep(2 * time.Minute)
		if n := held(); n[one.Owner] != 4 || n[two.Owner] != 4 || n[three.Owner] != 4 {
			t.Errorf("three daemons: %v", n)
		}
		writes := w.beatsWritten()
		time.Sleep(5 * time.Minute)
		if n := w.beatsWritten() - writes; n < 3*29 || n > 3*31 {
			t.Errorf("three processes wrote %d renewals in five minutes", n)
		}
		frozen.Store(true)
		dying.left.Store(0)
		time.Sleep(w.target.Lease + w.target.Lease/3 + 15*time.Second)
		if n := held(); n[three.Owner] != ranges {
			t.Errorf("one daemon is dead, one is frozen: %v", n)
		}
		close(thaw)
		frozen.Store(false)
		time.Sleep(2 * time.Minute)
		if n := held(); n[two.Owner] < 5 || n[three.Owner] < 5 {
			t.Errorf("the frozen daemon works again: %v", n)
		}
		w.checkLeases()
	})
}

// everyHour is a schedule whose next tick is far away: what a test waits for must not need it.
func everyHour(at time.Time) time.Time { return at.Truncate(time.Hour).Add(time.Hour) }

// Five seconds after a target is paused, and the time that one read takes, each of three daemons
// has said so once, with who, why and until when; and from then on none deletes anything.
func TestDaemonsTellOfAPause(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 1, Max: 1}
		w.sweep()
		for i := range 2400 {
			w.dueIn(1, i%4, fmt.Sprintf("backlog-%04d", i), time.Now().Add(-5*time.Second))
		}
		var all []*service
		logs := make([]syncBuffer, 3)
		for i := range logs {
			cfg := w.config()
			cfg.Log = slog.New(slog.NewTextHandler(&logs[i], nil))
			all = append(all, w.serve(cfg))
		}
		time.Sleep(time.Minute)
		why := control.Order{Actor: "ann", Reason: "a restore"}
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, why, time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Second + 500*time.Millisecond)
		left := len(w.left())
		for i := range logs {
			if !strings.Contains(logs[i].String(), `reason="a restore"`) {
				t.Errorf("five seconds after the pause daemon %d has not said why", i)
			}
		}
		time.Sleep(10 * time.Minute)
		for i := range logs {
			said := strings.Count(logs[i].String(), `msg="target is paused; run reaper resume to continue" target=sessions actor=ann`)
			if said != 1 || !strings.Contains(logs[i].String(), `reason="a restore" until=`) {
				t.Errorf("daemon %d says %d times that the target is paused:\n%s", i, said, logs[i].String())
			}
			if held := all[i].state().Held; held != throttle.ReasonPaused {
				t.Errorf("daemon %d is held by %q", i, held)
			}
		}
		if n := len(w.left()); n != left || n == 0 {
			t.Errorf("%d are left, %d were five seconds after the pause", n, left)
		}
	})
}

// A range that failed is tried again soon, not only at the next tick; and work that a pause
// interrupted resumes when the pause ends.
func TestDaemonGoesOnBetweenTicks(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.sweep()
		for i := range 600 {
			w.dueIn(1, i%2, fmt.Sprintf("backlog-%04d", i), time.Now().Add(-5*time.Second))
		}
		var denied atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" && denied.Load() {
				return store.ErrDenied
			}
			return nil
		}
		cfg := w.config()
		cfg.Targets[0].Next = everyHour
		s := w.serve(cfg)
		time.Sleep(4 * time.Minute)
		denied.Store(true)
		time.Sleep(7 * time.Second)
		denied.Store(false)
		before := s.state().Deleted
		time.Sleep(3 * time.Minute)
		if n := s.state().Deleted - before; n < 100 {
			t.Errorf("%d entities were deleted in the three minutes after a failure", n)
		}
		pause := func(paused bool) {
			_, err := control.Change(t.Context(), w.config(), w.target, func(r *generation.Record) { r.Paused = paused })
			if err != nil {
				t.Fatal(err)
			}
		}
		pause(true)
		time.Sleep(5 * time.Minute)
		before = s.state().Deleted
		pause(false)
		time.Sleep(3 * time.Minute)
		if n := s.state().Deleted - before; n < 100 {
			t.Errorf("%d entities were deleted in the three minutes after a pause", n)
		}
	})
}

// A range that has just failed waits until it is tried again, and no sweep is complete
// meanwhile.
func TestSweepWithARangeThatHasJustFailed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && shardOf(c.Query) == "0002" {
				return fmt.Errorf("this shard: %w", store.ErrDenied)
			}
			return nil
		}
		s := w.serve(w.config())
		time.Sleep(time.Minute)
		if done, failed := s.sweeps("complete"), s.sweeps("failed"); done > 0 || failed < 3 {
			t.Errorf("%d complete sweeps and %d failed ones", done, failed)
		}
	})
}

// A store that answers every query slowly gets the time that it needs: reads from the start
// do not shorten their windows again and again.
func TestSlowStoreIsGivenTime(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 1
		live := w.fill(200, 48*time.Hour)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				return throttle.Sleep(ctx, 7*time.Second)
			}
			return nil
		}
		began := time.Now()
		res := w.sweep()
		if w.wantLeft(live...); res.Error != "" || !res.Complete || time.Since(began) > 10*time.Minute {
			t.Errorf("after %v: %+v", time.Since(began), res)
		}
	})
}

// A store that takes heartbeats only after longer than a claim waits for one is slow, and has
// not failed: the sweep waits and goes on. Meanwhile it asks for nothing that it has read.
func TestSlowHeartbeatIsGivenTime(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(200, 48*time.Hour)
		began, scans := time.Now(), atomic.Int64{}
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			switch passed := time.Since(began); {
			case c.Method == "Save" && c.Record.Sort == store.WorkerRecord && passed < 25*time.Second:
				<-ctx.Done()
				return fmt.Errorf("the store is busy: %w", store.ErrDeadline)
			case c.Method == "Scan" && passed > 11*time.Second && passed < 25*time.Second:
				scans.Add(1)
			}
			return nil
		}
		if res := w.sweep(); res.Error != "" || !res.Complete || res.Deleted == 0 {
			t.Errorf("%+v", res)
		}
		if n := scans.Load(); n > 0 {
			t.Errorf("%d queries while the heartbeat was not written", n)
		}
		w.wantLive()
	})
}

// A store that takes no heartbeat for the first seconds of a sweep has all ranges wait at once.
// That is not the end of the sweep: once the store answers, the backlog gets the time that it needs.
func TestBacklogAfterASlowStart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.mustSweep()
		for i := range 4000 {
			w.put(1, 4, fmt.Sprintf("e-%04d", i), time.Now().Add(-time.Minute+time.Duration(i)*time.Millisecond))
		}
		began := time.Now()
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			switch {
			case c.Method == "Save" && c.Record.Sort == store.WorkerRecord && time.Since(began) < 25*time.Second:
				<-ctx.Done()
				return fmt.Errorf("the store is busy: %w", store.ErrDeadline)
			case c.Method == "Dispose":
				return throttle.Sleep(ctx, 8*time.Second)
			}
			return nil
		}
		res := w.sweep()
		if took := time.Since(began); !res.Complete || len(w.left()) > 0 || took < 2*time.Minute {
			t.Errorf("after %v %d are left: %+v", took, len(w.left()), res)
		}
	})
}

// While the store does not even answer for the target record, no range is read: what is asked
// for in vain keeps a slow store from getting well.
func TestSilentStoreIsLeftAlone(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		var scans atomic.Int64
		var silent atomic.Pointer[time.Time]
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			since := silent.Load()
			switch {
			case since == nil || time.Since(*since) > 2*time.Minute:
			case c.Method == "Load" && c.Record.Sort == store.TargetRecord:
				<-ctx.Done()
				return fmt.Errorf("the store is busy: %w", store.ErrDeadline)
			case c.Method == "Scan" && time.Since(*since) > 25*time.Second:
				scans.Add(1)
			}
			return nil
		}
		w.serve(w.config())
		time.Sleep(time.Minute)
		now := time.Now()
		silent.Store(&now)
		w.put(1, 4, "due", now.Add(30*time.Second))
		time.Sleep(2 * time.Minute)
		if n := scans.Load(); n > 0 || len(w.left()) != 1 {
			t.Errorf("%d queries of a store that does not answer; left: %v", n, w.left())
		}
		time.Sleep(2 * time.Minute)
		w.wantLeft()
	})
}

// A target with unlimited ranges in work has an infinite rate.
func TestRateOfUnlimitedRanges(t *testing.T) {
	for want, pace := range map[float64]throttle.Limits{
		math.Inf(1): {Unlimited: true}, 8: {Start: 2, Max: 2},
	} {
		in(t, func(t *testing.T, w *world) {
			w.sweep()
			w.target.Pace = pace
			for i := range 400 {
				w.dueIn(1, i%4, fmt.Sprintf("due-%04d", i), time.Now())
			}
			w.s.Before = func(ctx context.Context, c modelstore.Call) error {
				if c.Method == "Dispose" {
					return throttle.Sleep(ctx, 3*time.Second)
				}
				return nil
			}
			s := w.serve(w.config())
			time.Sleep(5 * time.Second)
			if st := s.state(); math.Abs(st.Rate-want) > 0.01 && st.Rate != want {
				t.Errorf("%+v has the rate %v, not %v", pace, st.Rate, want)
			}
		})
	}
}

// Three processes share a total, one is killed, and one joins. A joiner works within 15 s,
// the ranges of the dead process are taken over a lease later, and the total holds
// throughout. Each process writes one renewal every third of a lease, whatever it holds.
func TestTotalAsProcessesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 0, throttle.Limits{Start: 1000, Max: 1000})
		p.target.Total, p.target.Page = throttle.Limit{PerSecond: 9}, 9
		p.trace.Page = p.target.Page
		first := func(shard int, since time.Time) time.Duration {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, c := range p.trace.Commits {
				if c.Range == fmt.Sprintf("00000000.%04d", shard) && c.At.After(since) {
					return c.At.Sub(since)
				}
			}
			return time.Hour
		}
		start := func(shard int) *mortal { // with a backlog that outlasts the test
			for i := range 2500 {
				p.dueIn(0, shard, fmt.Sprintf("%d-%05d", shard, i), time.Now())
			}
			cfg := p.config()
			cfg.Targets[0].Next = everyHour
			m := &mortal{Store: p.s, kill: func() {}}
			m.left.Store(1 << 40)
			cfg.Store = m
			p.serve(cfg)
			return m
		}
		var procs []*mortal
		for shard := range 3 {
			began := time.Now()
			procs = append(procs, start(shard))
			time.Sleep(20 * time.Second)
			if took := first(shard, began); took > 15*time.Second {
				t.Errorf("process %d began to delete after %v", shard+1, took)
			}
		}
		time.Sleep(time.Minute)
		p.world.mu.Lock()
		before := p.beats
		p.world.mu.Unlock()
		time.Sleep(5 * time.Minute)
		p.world.mu.Lock()
		if n := p.beats - before; n > 3*31 || n < 3*29 {
			t.Errorf("three processes wrote %d heartbeats in five minutes", n)
		}
		p.world.mu.Unlock()
		died := time.Now()
		procs[1].left.Store(0)
		time.Sleep(time.Second)
		began := time.Now()
		start(3)
		time.Sleep(2 * time.Minute)
		if took := first(3, began); took > p.target.Lease/2+5*time.Second {
			t.Errorf("a process that joined next to a dead one began to delete after %v", took)
		}
		if took := first(1, died.Add(time.Second)); took > p.target.Lease+10*time.Second {
			t.Errorf("the dead process's range was taken over after %v", took)
		}
		p.mu.Lock()
		n := 0
		for _, c := range p.trace.Commits {
			if time.Since(c.At) < time.Minute {
				n += c.Count
			}
		}
		p.mu.Unlock()
		if n < 9*60*3/4 {
			t.Errorf("%d entities were deleted in the last minute, of %d", n, 9*60)
		}
		p.check(false)
		p.checkLeases()
	})
}
