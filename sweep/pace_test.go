package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/pacecheck"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// paced is a world with entities that are all due, and a trace of the deletes.
type paced struct {
	*world
	mu    sync.Mutex
	trace pacecheck.Trace
	began time.Time
}

// newPaced fills each of four ranges with so many entities that expired an hour ago.
func newPaced(t *testing.T, each int, limits throttle.Limits) *paced {
	p := &paced{world: newWorld(t), began: time.Now()}
	p.target.Generations, p.target.Layout = false, "sharded" // the nursery alone
	p.target.Pace = limits
	p.target.Page = 100
	counts := map[int]int{}
	for i := 0; len(p.expires) < 4*each; i++ {
		name := fmt.Sprintf("e-%06d", i)
		k, err := generation.Stamper{Shards: 4}.Name(name, time.Now().Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if counts[k.Shard]++; counts[k.Shard] <= each {
			p.put(0, 4, name, time.Now().Add(-time.Hour))
		}
	}
	p.trace.Page = p.target.Page
	p.s.Before = p.record
	return p
}

// record writes down what is about to be deleted.
func (p *paced) record(_ context.Context, c modelstore.Call) error {
	if c.Method == "Dispose" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.trace.Commits = append(p.trace.Commits, pacecheck.Commit{Range: c.Query.Lo.Text[:13], At: time.Now(), Count: len(c.Ops)})
	}
	return nil
}

// check looks for windows in which a range or the target got too much.
func (p *paced) check(wantExcess bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trace.Ranges = map[string][]pacecheck.Segment{}
	for shard := range 4 {
		p.trace.Ranges[fmt.Sprintf("00000000.%04d", shard)] = pacecheck.Ramp(p.began, p.target.Pace.Start, p.target.Pace.Max, 24*time.Hour)
	}
	if p.target.Total.PerSecond > 0 {
		p.trace.Total = []pacecheck.Segment{{From: p.began, PerSecond: p.target.Total.PerSecond}}
	}
	excess := pacecheck.Check(p.trace)
	if (len(excess) > 0) != wantExcess {
		p.t.Errorf("%d commits, %d windows with too much; the first: %v", len(p.trace.Commits), len(excess), append(excess, pacecheck.Excess{})[0])
	}
}

// crashLoop runs a sweep that is killed again and again, after a random while.
func (p *paced) crashLoop(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	for ctx.Err() == nil {
		life, kill := context.WithTimeout(ctx, time.Duration(1+rng.IntN(90))*time.Second)
		p.mu.Lock()
		c := p.config()
		p.mu.Unlock()
		m := &mortal{Store: p.s, kill: kill}
		m.left.Store(int64(rng.IntN(400)))
		c.Store = m
		res := sweep.Run(life, c).Targets[0]
		kill()
		if res.Complete {
			return
		}
		time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
	}
}

// TestNoRangeExceedsItsPace records every commit of three workers that crash and
// start again, and looks at every window.
func TestNoRangeExceedsItsPace(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			p := newPaced(t, 2000, throttle.Limits{Start: 5, Max: 15})
			if seed%2 == 1 {
				p.target.Total = throttle.Limit{PerSecond: 12}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
			defer cancel()
			var workers sync.WaitGroup
			for i := range uint64(3) {
				workers.Go(func() { p.crashLoop(ctx, seed*10+i) })
			}
			workers.Wait()
			cancel()
			p.check(false)
			if n := len(p.left()); n > 8000-1800 { // each life is cut short by its calls, too, of which heartbeats are some
				t.Errorf("%d of 8,000 are left after 40 minutes", n)
			}
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// The first page of each range is read before the range has a share of the total. Until it is written, a slow look for
// descendants lets the bucket fill: what it holds may go, and not a page of each range.
func TestFirstPagesDoNotExceedTheTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 300, throttle.Limits{Start: 1000, Max: 1000})
		p.target.Total = throttle.Limit{PerSecond: 4}
		p.target.Descendants = sweep.Descendants{Mode: sweep.DeleteDescendants, Max: 100, Owners: []store.Target{p.target.Target}}
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Descendants" {
				time.Sleep(200 * time.Millisecond)
			}
			return p.record(ctx, c)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		res := sweep.Run(ctx, p.config()).Targets[0]
		if p.check(false); res.Deleted < 100 {
			t.Errorf("%d deleted in three minutes", res.Deleted)
		}
	})
}

// scansSlowly gives the target a total, and lets each page take longer to read than a range counts as wanted.
func (p *paced) scansSlowly() {
	p.target.Total = throttle.Limit{PerSecond: 40}
	p.s.Before = func(ctx context.Context, c modelstore.Call) error {
		if c.Method == "Scan" {
			if err := throttle.Sleep(ctx, 12*time.Second); err != nil {
				return err
			}
		}
		return p.record(ctx, c)
	}
}

// However long a page takes to read, its range has a part of the total when it comes to be written.
func TestSlowPagesHaveAPartOfTheTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 50, throttle.Limits{Start: 1000, Max: 1000})
		p.scansSlowly()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		res := sweep.Run(ctx, p.config()).Targets[0]
		if took := time.Since(began); !res.Complete || res.Deleted != 200 || took > 10*time.Minute {
			t.Errorf("%d deleted in %v; %+v", res.Deleted, took, res)
		}
		p.check(false)
	})
}

// A range that has asked in vain, and then waits long for the worker, keeps its part of the total.
func TestRangesShareATotalAndAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 400, throttle.Limits{Start: 1000, Max: 1000})
		p.scansSlowly()
		cfg := p.config()
		cfg.Workers = 1
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		defer cancel()
		sweep.Run(ctx, cfg)
		ranges := map[string]int{}
		for _, c := range p.trace.Commits {
			ranges[c.Range] += c.Count
		}
		if p.check(false); len(ranges) < 4 {
			t.Errorf("deleted in eight minutes: %v", ranges)
		}
	})
}

// With an archive that is as slow as the reads by which a total is divided, entities are deleted.
func TestSlowArchiveAndSlowShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 300, throttle.Limits{Start: 1000, Max: 1000})
		p.target.Total = throttle.Limit{PerSecond: 100}
		p.archived(true).takes = 7500 * time.Millisecond
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.WorkerRecord {
				if err := throttle.Sleep(ctx, 9*time.Second); err != nil {
					return err
				}
			}
			return p.record(ctx, c)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if res := sweep.Run(ctx, p.config()).Targets[0]; res.Deleted < 200 {
			t.Errorf("%+v", res)
		}
	})
}

// Where the reads by which a total is divided take longer than half of the time for which they are valid, and pages longer
// than what is left of it, entities are deleted nevertheless.
func TestSlowPagesAndSlowShares(t *testing.T) {
	for _, c := range []struct {
		lease, beats, page time.Duration
		jitter             float64
	}{
		{30 * time.Second, 12 * time.Second, 4 * time.Second, 0},
		{10 * time.Second, 4 * time.Second, 2 * time.Second, 0.15},
		{3 * time.Second, 1200 * time.Millisecond, 600 * time.Millisecond, 0},
		{3 * time.Second, 1200 * time.Millisecond, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaced(t, 300, throttle.Limits{Start: 1000, Max: 1000})
			p.target.Total, p.target.Lease = throttle.Limit{PerSecond: 100}, c.lease
			rng := rand.New(rand.NewPCG(7, 7))
			p.s.Before = func(ctx context.Context, call modelstore.Call) error {
				d := map[bool]time.Duration{call.Method == "Scan": c.page,
					call.Method == "Load" && call.Record.Sort == store.WorkerRecord: c.beats}[true]
				p.mu.Lock()
				d = time.Duration(float64(d) * (1 + c.jitter*(2*rng.Float64()-1)))
				p.mu.Unlock()
				if err := throttle.Sleep(ctx, d); err != nil {
					return err
				}
				return p.record(ctx, call)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if res := sweep.Run(ctx, p.config()).Targets[0]; res.Deleted != 1200 {
				t.Errorf("%+v: %d of 1,200 deleted in ten minutes, %q", c, res.Deleted, res.Error)
			}
			p.check(false)
		})
	}
}

// stalled looks at a daemon alone with a total of two pages a second and as many workers as ranges, when 600 entities
// come to be due in each range at once. Claims, or looks for descendants, are answered together seconds later.
func stalled(t *testing.T, descends bool) {
	const shards, page, total = 16, 500, 1000
	synctest.Test(t, func(t *testing.T) {
		p := &paced{world: newWorld(t), began: time.Now()}
		p.target.Generations, p.target.Layout, p.target.Shards = false, "sharded", shards
		p.target.Pace, p.target.Page, p.target.Next = throttle.Limits{Start: 1000, Max: 1000}, page, everySecond
		p.target.Total = throttle.Limit{PerSecond: total}
		p.trace.Page, p.trace.Total = page, []pacecheck.Segment{{From: p.began, PerSecond: total}}
		if descends {
			p.target.Descendants = sweep.Descendants{Mode: sweep.DeleteDescendants, Max: 100, Owners: []store.Target{p.target.Target}}
		}
		var stall atomic.Pointer[time.Time] // its end
		var claims atomic.Int64
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			end := stall.Load()
			switch {
			case len(c.Ops) > 0 && c.Ops[0].Entry.Key == `"held"`, c.Method == "Settle" && end == nil:
				return store.ErrContention // keeps a claim, so that the process has a share
			case end == nil:
			case p.isClaim(c):
				if !descends {
					time.Sleep(time.Until(*end))
				}
				time.Sleep(time.Duration(claims.Add(1)) * 5 * time.Millisecond)
			case c.Method == "Descendants":
				time.Sleep(time.Until(*end))
			}
			return p.record(ctx, c)
		}
		cfg := p.config()
		cfg.Workers = shards
		ctx, cancel := context.WithCancel(t.Context())
		var daemon sync.WaitGroup
		daemon.Go(func() { sweep.NewDaemon(cfg, true).Run(ctx) })
		time.Sleep(10 * time.Second)
		if descends {
			p.put(0, shards, "held", time.Now())
		}
		time.Sleep(30*time.Second + 500*time.Millisecond)
		for i, counts, n := 0, map[int]int{}, 0; n < shards*600; i++ {
			name := fmt.Sprintf("e-%06d", i)
			k, err := generation.Stamper{Shards: shards}.Name(name, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if counts[k.Shard]++; counts[k.Shard] <= 600 {
				n++
				p.put(0, shards, name, time.Now())
			}
		}
		end := time.Now().Add(3500 * time.Millisecond)
		stall.Store(&end)
		time.Sleep(20 * time.Second)
		cancel()
		daemon.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if excess := pacecheck.Check(p.trace); len(excess) > 0 || claims.Load() < shards-1 || len(p.trace.Commits) == 0 {
			t.Errorf("%d claims; too much: %v", claims.Load(), excess)
		}
	})
}

// A claim that is on its way has no part of the total yet.
func TestSlowClaimsHaveNoPart(t *testing.T) {
	stalled(t, false)
}

// A part of the total that has shrunk since a range picked its entities is what counts.
func TestShrunkPartOfTheTotal(t *testing.T) {
	stalled(t, true)
}

// The checker sees what a sweep without a pace does.
func TestUnpacedSweepIsCaught(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 500, throttle.Limits{Start: 20, Max: 60})
		c := p.config()
		c.Targets[0].Pace = throttle.Limits{Unlimited: true}
		sweep.Run(t.Context(), c)
		p.check(true)
	})
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 500, throttle.Limits{Start: 20, Max: 60})
		p.target.Total = throttle.Limit{PerSecond: 30}
		c := p.config()
		c.Targets[0].Total = throttle.Limit{Unlimited: true}
		sweep.Run(t.Context(), c)
		p.check(true)
	})
}

// One-shot sweeps every five minutes continue the ramp at the rate of the last one.
func TestOneShotsGoOnRamping(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 2400, throttle.Limits{Start: 1, Max: 1000})
		rates := []float64{}
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			sweep.Run(ctx, p.config())
			cancel()
			for _, c := range p.cursors() {
				if c.Shard == "0001" {
					rates = append(rates, c.Rate)
				}
			}
			time.Sleep(time.Minute)
		}
		p.check(false)
		for i := 1; i < len(rates); i++ {
			if rates[i] < rates[i-1]*1.2 || rates[i] > rates[i-1]*1.6 {
				t.Errorf("rates after each run: %.1f", rates)
				break
			}
		}
		if last := rates[len(rates)-1]; last < 3 {
			t.Errorf("after 4 runs of 4 minutes the rate is %.1f/s: %v", last, rates)
		}
	})
}

// When a store pushes back for a minute, the rate halves at once, deletes continue without
// an error, and the rate then grows by half every five minutes.
func TestPushbackHalvesTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 3000, throttle.Limits{Start: 8, Max: 8})
		var deleted, tries, refused atomic.Int64
		from, until := p.began.Add(2*time.Minute), p.began.Add(3*time.Minute)
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				if now := time.Now(); now.After(from) && now.Before(until) && tries.Add(1)%2 == 1 {
					refused.Add(1)
					return fmt.Errorf("quota: %w", store.ErrPushback)
				}
				deleted.Add(int64(len(c.Ops)))
			}
			return p.record(ctx, c)
		}
		done := make(chan sweep.TargetResult)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- sweep.Run(ctx, p.config()).Targets[0] }()
		status := func() (rate float64, why string) {
			st, err := inspect.Status(t.Context(), p.config(), p.target)
			if err != nil {
				t.Fatal(err)
			}
			return *st.Ranges[1].Rate, st.Ranges[1].ThrottledBy
		}
		time.Sleep(110 * time.Second)
		full, why := status()
		if full != 8*0.9 && full != 8 || why != "max" {
			t.Errorf("before: %.1f/s, %s", full, why)
		}
		time.Sleep(30 * time.Second) // twenty seconds into it, and saved
		if rate, why := status(); rate > full/2+0.1 || why != "pushback" {
			t.Errorf("twenty seconds into it: %.1f/s, %s", rate, why)
		}
		time.Sleep(45 * time.Second)
		low, _ := status()
		at := deleted.Load()
		time.Sleep(5 * time.Minute)
		if rate, _ := status(); rate < low*1.3 || rate > low*1.6 {
			t.Errorf("five minutes later the rate is %.1f/s, and was %.1f/s", rate, low)
		}
		if n := deleted.Load() - at; n < 60 {
			t.Errorf("only %d deletes in five minutes after it", n)
		}
		cancel()
		res := <-done
		if res.Error != "" || refused.Load() < 4 {
			t.Errorf("%d refusals: %+v", refused.Load(), res)
		}
		if left := len(p.left()); int64(left)+res.Deleted != 12_000 {
			t.Errorf("%d are left, %d are said to be deleted", left, res.Deleted)
		}
		p.check(false)
	})
}

// An operator's change takes effect within five seconds, in the middle of a sweep.
func TestOperatorInTheMiddleOfASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 3000, throttle.Limits{Start: 20, Max: 20})
		p.target.Policy = generation.Policy{Staleness: time.Minute, Slack: time.Minute}
		change := func(f func(*generation.Record)) {
			t.Helper()
			if _, err := control.Change(t.Context(), p.config(), p.target, f); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan sweep.TargetResult)
		go func() { done <- sweep.Run(t.Context(), p.config()).Targets[0] }()
		perSecond := func(d time.Duration) float64 {
			p.mu.Lock()
			before := len(p.trace.Commits)
			p.mu.Unlock()
			time.Sleep(d)
			p.mu.Lock()
			defer p.mu.Unlock()
			n := 0
			for _, c := range p.trace.Commits[before:] {
				n += c.Count
			}
			return float64(n) / d.Seconds()
		}
		time.Sleep(20 * time.Second)
		if r := perSecond(20 * time.Second); r < 60 || r > 84 { // each range's burst is one second's
			t.Errorf("at first %.0f/s", r)
		}
		change(func(r *generation.Record) { r.PaceMax = generation.Rate{Set: true, PerSecond: 5} })
		time.Sleep(6 * time.Second)
		if r := perSecond(20 * time.Second); r > 21 || r < 10 {
			t.Errorf("with --max 5: %.0f/s in four ranges", r)
		}
		change(func(r *generation.Record) {
			r.PaceMax, r.PaceTotal = generation.Rate{}, generation.Rate{Set: true, PerSecond: 30}
		})
		time.Sleep(40 * time.Second)
		if r := perSecond(60 * time.Second); r > 31 || r < 20 {
			t.Errorf("with --total 30: %.0f/s", r)
		}
		change(func(r *generation.Record) { r.PaceTotal = generation.Rate{} })
		time.Sleep(6 * time.Second)
		change(func(r *generation.Record) { r.Paused = true })
		time.Sleep(6 * time.Second)
		if r := perSecond(20 * time.Second); r > 0 {
			t.Errorf("paused: %.0f/s", r)
		}
		// Longer than one lease: the sweep ends, saved and released.
		res := <-done
		if res.Complete || res.Error != "" || res.Deleted == 0 {
			t.Errorf("%+v", res)
		}
		p.checkCursors()
		for _, c := range p.cursors() {
			if c.Lease.Owner != "" {
				t.Errorf("%v is still held", c.ID)
			}
		}
		st, err := inspect.Status(t.Context(), p.config(), p.target)
		if err != nil || !st.Paused || st.Ranges[0].ThrottledBy != "paused" {
			t.Errorf("%+v, %v", st, err)
		}
		if res := p.sweep(); res.Complete || res.Error != "" || res.Scanned > 0 {
			t.Errorf("a sweep of what is paused: %+v", res)
		}
		change(func(r *generation.Record) { r.Paused = false; r.PaceMax = generation.Rate{Set: true, Unlimited: true} })
		if res := p.sweep(); !res.Complete || len(p.left()) > 0 {
			t.Errorf("resumed: %+v", res)
		}
	})
}

// A worker that cannot read the target record stops writing within seconds.
func TestDeafSweepStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 3000, throttle.Limits{Start: 20, Max: 20})
		var deaf atomic.Bool
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.TargetRecord && deaf.Load() {
				return store.ErrUnavailable
			}
			return p.record(ctx, c)
		}
		done := make(chan sweep.TargetResult)
		go func() { done <- sweep.Run(t.Context(), p.config()).Targets[0] }()
		time.Sleep(11 * time.Second) // the next read comes at 15 s
		if _, err := control.Change(t.Context(), p.config(), p.target, func(r *generation.Record) { r.Paused = true }); err != nil {
			t.Fatal(err)
		}
		deaf.Store(true)
		time.Sleep(16 * time.Second)
		before := len(p.left())
		time.Sleep(time.Minute)
		if n := len(p.left()); n != before || n == 0 {
			t.Errorf("of %d entities %d went while nobody knew of the pause", before, before-n)
		}
		deaf.Store(false)
		res := <-done
		if res.Complete || res.Deleted == 0 || len(p.left()) != before {
			t.Errorf("%+v; %d of %d are left", res, len(p.left()), before)
		}
	})
}

// A worker that was asleep learns of a lower pace when it is about to write. It obeys that
// pace, also for tokens that were granted before.
func TestPaceLoweredWhileAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 5, throttle.Limits{Unlimited: true})
		p.target.Page = 7
		var deaf, slept atomic.Bool
		tries := map[string][]time.Time{} // to delete, by shard
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			switch {
			case c.Method == "Load" && c.Record.Sort == store.TargetRecord && deaf.Load():
				return store.ErrUnavailable
			case c.Method == "Scan" && c.Query.Limit == p.target.Page && !slept.Swap(true):
				_, err := control.Change(t.Context(), p.config(), p.target, func(r *generation.Record) {
					r.PaceMax = generation.Rate{Set: true, PerSecond: 0.5}
				})
				deaf.Store(true)
				time.Sleep(time.Minute - 2500*time.Millisecond) // between two looks at the record
				deaf.Store(false)
				return err
			case c.Method == "Dispose":
				for range c.Ops {
					tries[shardOf(c.Query)] = append(tries[shardOf(c.Query)], time.Now())
				}
			}
			return nil
		}
		c := p.config()
		c.Workers = 1
		if res := sweep.Run(t.Context(), c).Targets[0]; !res.Complete || len(p.left()) > 0 {
			t.Errorf("%+v; %d are left", res, len(p.left()))
		}
		for shard, at := range tries {
			for i := range at[1:] {
				if at[i+1].Sub(at[i]) < 2*time.Second {
					t.Errorf("shard %s: entities went at %v, at half an entity a second", shard, at)
				}
			}
		}
		if len(tries) == 0 {
			t.Error("nothing was deleted")
		}
	})
}

// An acknowledged is a store whose first Dispose takes effect, takes its time, and fails
// anyway.
type acknowledged struct {
	*modelstore.Store
	meanwhile func()
	done      atomic.Bool
}

func (s *acknowledged) Dispose(ctx context.Context, b *store.Batch) error {
	err := s.Store.Dispose(ctx, b)
	if !s.done.Swap(true) {
		s.meanwhile()
		return store.ErrUnavailable
	}
	return err
}

// A failed batch of which nothing is left does not wait for the end of a pause.
func TestNothingLeftWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 50, throttle.Limits{Start: 20, Max: 20})
		c := p.config()
		c.Store = &acknowledged{Store: p.s, meanwhile: func() {
			if _, err := control.Change(t.Context(), p.config(), p.target, func(r *generation.Record) { r.Paused = true }); err != nil {
				t.Error(err)
			}
			time.Sleep(6 * time.Second) // all know
		}}
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Complete || res.Error != "" || res.Deleted == 0 || int(res.Deleted)+len(p.left()) != 200 {
			t.Errorf("%+v; %d are left", res, len(p.left()))
		}
	})
}

// A closed gate suspends deletes and logs why. After a while it ends the sweep.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 2000, throttle.Limits{Start: 50, Max: 50})
		shut := atomic.Bool{}
		p.target.Gate = func(context.Context) error {
			if shut.Load() {
				return errors.New("the shop is full")
			}
			return nil
		}
		done := make(chan sweep.TargetResult)
		go func() { done <- sweep.Run(t.Context(), p.config()).Targets[0] }()
		time.Sleep(10 * time.Second)
		shut.Store(true)
		time.Sleep(4 * time.Second)
		before := len(p.left())
		time.Sleep(15 * time.Second)
		if n := len(p.left()); n != before {
			t.Errorf("%d entities went while the gate was shut", before-n)
		}
		shut.Store(false)
		res := <-done
		if !res.Complete || res.Error != "" || res.Throttled["gate"] < 10 || len(p.left()) > 0 {
			t.Errorf("%+v", res)
		}
	})
}

func TestOpenGate(t *testing.T) {
	if pace.OpenGate("") != nil {
		t.Error("no gate is a gate")
	}
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	gate := pace.OpenGate(server.URL)
	if err := gate(t.Context()); err != nil {
		t.Errorf("200: %v", err)
	}
	for _, code = range []int{http.StatusNoContent, http.StatusServiceUnavailable, http.StatusNotFound} {
		if err := gate(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprint(code)) {
			t.Errorf("%d: %v", code, err)
		}
	}
	server.Close()
	if err := gate(t.Context()); err == nil {
		t.Error("a gate that is down is open")
	}
	file := filepath.Join(t.TempDir(), "busy")
	gate = pace.OpenGate(file)
	if err := gate(t.Context()); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := gate(t.Context()); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a file: %v", err)
	}
	if err := pace.OpenGate(filepath.Join(file, "below"))(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be told") {
		t.Errorf("a path that cannot be read: %v", err)
	}
}
