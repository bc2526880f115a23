package sweep_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A replica is a process that keeps running: it has metrics and a watchdog.
type replica struct {
	*epoch
	registry *prometheus.Registry
	c        sweep.Config
}

func (e *epoch) replica() *replica {
	r := &replica{epoch: e, registry: prometheus.NewRegistry(), c: e.config()}
	r.c.Metrics = metrics.New(metrics.Options{Registry: r.registry, Targets: []string{"sessions"}, Apply: true})
	r.c.Targets = slices.Clone(r.c.Targets)
	r.c.Targets[0].Watchdog = &metrics.Watchdog{Patience: 15 * time.Minute}
	return r
}

func (r *replica) sweepOnce() sweep.TargetResult {
	return sweep.Run(r.t.Context(), r.c).Targets[0]
}

// gauge returns the value of a gauge, or of a counter, without the prefix of its name.
func (r *replica) gauge(name string) (sum float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "reaper_"+name {
			for _, m := range f.GetMetric() { // one for each value of its other label, if it has one
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			return sum
		}
	}
	r.t.Fatalf("there is no %s", name)
	return 0
}

// wantOldest checks that the gauge says when something became due; the zero time stands for
// nothing due.
func (r *replica) wantOldest(when string, at time.Time) {
	r.t.Helper()
	want := 0.0
	if !at.IsZero() {
		want = float64(at.UnixMilli()) / 1000
	}
	if got := r.gauge("oldest_due_timestamp_seconds"); got != want {
		r.t.Errorf("%s the oldest due entity is of %v, want %v", when, time.UnixMilli(int64(got*1000)).UTC(), at)
	}
}

// The gauge of the oldest due instant is right when nothing is due, while a range fails,
// while the target is paused, in a dry run, and when another replica did the work.
func TestOldestDueIsTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly
		p.Keep = 30
		e := newEpoch(t, p)
		r := e.replica()
		r.sweepOnce()
		r.wantOldest("at first", time.Time{})

		old := time.Now().Add(time.Minute)
		e.stamped(1, 4, "old", old)
		e.stamped(1, 4, "new", old.Add(30*time.Second))
		time.Sleep(2 * time.Minute)
		broken := true
		e.s.Before = func(_ context.Context, c modelstore.Call) error {
			if broken && c.Method == "Dispose" {
				return fmt.Errorf("not today: %w", store.ErrDenied)
			}
			return nil
		}
		r.sweepOnce()
		r.wantOldest("where deletes fail", old)
		change := func(f func(*generation.Record)) {
			if _, err := control.Change(t.Context(), r.c, r.c.Targets[0], f); err != nil {
				t.Fatal(err)
			}
		}
		change(func(rec *generation.Record) { rec.Paused = true })
		fresh := e.replica() // one that has seen nothing yet
		for _, q := range []*replica{r, fresh} {
			q.sweepOnce()
			q.wantOldest("while it is paused", old)
			if q.gauge("held") != 1 {
				t.Error("it is not said to be paused")
			}
		}
		change(func(rec *generation.Record) { rec.Paused = false })
		dry := e.replica()
		dry.c.Apply = false
		dry.sweepOnce()
		dry.wantOldest("in a dry run", old)
		broken = false
		fresh.sweepOnce()
		fresh.wantOldest("after its own sweep", time.Time{})
		if fresh.gauge("held") != 0 {
			t.Error("it is still said to be paused")
		}
		r.sweepOnce()
		r.wantOldest("after another's sweep", time.Time{})

		// What one replica has seen and another one disposed of, in a generation that is
		// left alone from then on, and in the end is no more.
		for _, gone := range []bool{false, true} {
			rec := e.record()
			number := rec.Generations[len(rec.Generations)-1].Number
			at := time.Now().Add(3 * time.Hour)
			name := fmt.Sprint("late-", number)
			e.stamped(number, 4, name, at)
			for time.Now().Before(at.Add(time.Minute)) {
				fresh.sweepOnce()
				time.Sleep(every)
			}
			e.stamped(number, 4, name+"-again", at.Add(time.Second))
			broken = true
			r.sweepOnce()
			broken = false
			for range 3 {
				fresh.sweepOnce()
				time.Sleep(every)
			}
			for gone && slices.ContainsFunc(e.record().Generations, func(g generation.Generation) bool { return g.Number == number }) {
				fresh.sweepOnce()
				time.Sleep(every)
			}
			r.sweepOnce()
			r.wantOldest(fmt.Sprintf("where another replica did the work (retired: %v)", gone), time.Time{})
		}
	})
}

// A daemon that cannot read the records of its target counts failed sweeps, and does not wait for the ticks of a slow
// schedule with that: alerts go by it. Nor does a bug of ours end its work.
func TestUnreadableRecordsAreFailedSweeps(t *testing.T) {
	t.Run("the store fails", func(t *testing.T) {
		unreadable(t, func() error { return store.ErrUnavailable })
	})
	t.Run("a panic", func(t *testing.T) { unreadable(t, func() error { panic("our bug") }) })
}

func unreadable(t *testing.T, load func() error) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" {
				return load()
			}
			return nil
		}
		r := e.replica()
		r.c.Targets[0].Next = func(at time.Time) time.Time { return at.Truncate(24 * time.Hour).Add(24 * time.Hour) }
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		sweep.NewDaemon(r.c, true).Run(ctx)
		if n := r.gauge("sweeps_total"); n < 10 || n > 13 {
			t.Errorf("%v failed sweeps in an hour, want one every five minutes", n)
		}
	})
}

// A range that was given to another process is that one's to report: the first one would go on saying how old it was then.
func TestGivenRangesAreNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 1800, throttle.Limits{Start: 1, Max: 1})
		e := &epoch{world: p.world}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		replicas := []*replica{e.replica(), e.replica()}
		var daemons sync.WaitGroup
		for _, r := range replicas {
			r.c.Targets[0].Next = everySecond
			daemons.Go(func() { sweep.NewDaemon(r.c, true).Run(ctx) })
			time.Sleep(5 * time.Minute)
		}
		holders := map[string]string{}
		for _, c := range p.cursors() {
			holders[c.ID.Key()] = c.Lease.Owner
		}
		held := map[string]int{}
		for _, r := range replicas {
			for _, name := range r.c.Targets[0].Watchdog.Names() {
				if held[r.c.Owner]++; !strings.Contains(holders[name], r.c.Owner) {
					t.Errorf("%s still watches %s, which %s holds", r.c.Owner, name, holders[name])
				}
			}
		}
		if held[replicas[0].c.Owner] != 2 || held[replicas[1].c.Owner] != 2 {
			t.Errorf("watched: %v; held: %v", held, holders)
		}
		stop()
		daemons.Wait()
	})
}

// A process whose heartbeat cannot be written loses its ranges to nobody: it goes on saying how old they are, and that they
// get nowhere.
func TestRangesLostToNobodyAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 1800, throttle.Limits{Start: 1, Max: 1})
		e := &epoch{world: p.world}
		r := e.replica()
		r.c.Targets[0].Next = everySecond
		p.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.WorkerRecord && time.Since(p.began) > 2*time.Minute {
				return store.ErrUnavailable
			}
			return nil
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		time.AfterFunc(50*time.Minute, func() {
			if stuck, oldest := r.gauge("stuck_ranges"), r.gauge("oldest_due_timestamp_seconds"); stuck != 4 || oldest == 0 {
				t.Errorf("%v ranges are stuck, the oldest of %v", stuck, oldest)
			}
		})
		sweep.NewDaemon(r.c, true).Run(ctx)
	})
}

// After its clock was put forward, a daemon says that it does not know whether it may
// delete. It names no error, because no read has failed.
func TestClockPutForward(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(20, 2*time.Hour)
		var ahead atomic.Int64
		var log strings.Builder
		c := w.config()
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Targets[0].MaxClockSkew = time.Minute
		c.Targets[0].Next = func(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		time.AfterFunc(8*time.Second, func() { ahead.Store(int64(30 * time.Second)) })
		sweep.NewDaemon(c, true).Run(ctx)
		said := slices.DeleteFunc(strings.Split(log.String(), "\n"), func(line string) bool {
			return !strings.Contains(line, "not read for 15s")
		})
		if len(said) == 0 || strings.Contains(strings.Join(said, "\n"), "error=") {
			t.Errorf("said %q", said)
		}
	})
}

// The line that a daemon logs every five minutes shows the state before a tick, even if the
// two coincide: an idle target has no ranges in work. It is logged at INFO once, until there
// is work again: an idle daemon is silent.
func TestToldBeforeATick(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var log strings.Builder
		c := w.config()
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Targets[0].Next = func(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }
		ctx, stop := context.WithTimeout(t.Context(), 31*time.Minute)
		defer stop()
		time.AfterFunc(17*time.Minute, func() { w.dueIn(1, 0, "due", time.Now()) })
		sweep.NewDaemon(c, true).Run(ctx)
		told := strings.Count(log.String(), "nothing is due")
		if idle := strings.Count(log.String(), "ranges_in_work=0"); told != 6 || idle != told {
			t.Errorf("told %d times, and %d times of no range in work: %s", told, idle, log.String())
		}
		if n := strings.Count(log.String(), `level=INFO msg="nothing is due"`); n != 2 { // at first, and after the work
			t.Errorf("%d of them at INFO: %s", n, log.String())
		}
	})
}

// Each target of a sweep has a duration of its own, in its result, its log line and its
// metrics: a slow one next to it adds nothing.
func TestDurationOfEachTarget(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		c := w.config()
		quick, slow := w.target, w.target
		slow.Name, slow.Kind = "slow", "Slow"
		slow.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		c.Targets = []sweep.Target{quick, slow}
		var log strings.Builder
		c.Log = slog.New(slog.NewJSONHandler(&log, nil))
		registry := prometheus.NewRegistry()
		c.Metrics = metrics.New(metrics.Options{Registry: registry, Targets: []string{"sessions", "slow"}, Apply: true})
		sweep.Run(t.Context(), c) // makes the records
		log.Reset()
		for i := range 100 { // each range has one pace: this takes minutes
			e := store.Entity{Name: fmt.Sprint(i), Expiry: store.TextValue(fmt.Sprintf("00000001.000%d.20000101T000000.000Z", i%2))}
			if err := w.s.Put(t.Context(), slow.Target, "", []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		res := sweep.Run(t.Context(), c)
		if q, s := res.Targets[0].Duration, res.Targets[1].Duration; q > 10 || s < 60 || s > res.Duration || res.Targets[1].Deleted != 100 {
			t.Errorf("the quick target took %v s, the slow one %v, all %v; %+v", q, s, res.Duration, res.Targets[1])
		}
		for _, want := range res.Targets {
			line := struct {
				Msg, Target string
				Seconds     float64
			}{}
			for text := range strings.Lines(log.String()) {
				if strings.Contains(text, `"swept"`) && strings.Contains(text, `"target":"`+want.Name+`"`) {
					if err := json.Unmarshal([]byte(text), &line); err != nil {
						t.Fatal(err)
					}
				}
			}
			if line.Msg != "swept" || line.Seconds != want.Duration {
				t.Errorf("%s took %v s: %+v\n%s", want.Name, want.Duration, line, &log)
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "reaper_sweep_duration_seconds" && m.GetLabel()[0].GetValue() == "sessions" && m.GetHistogram().GetSampleSum() > 20 {
					t.Errorf("the histogram of the quick target: %v", m)
				}
			}
		}
	})
}
