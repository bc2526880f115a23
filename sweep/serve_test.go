package sweep_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A service is a running daemon with metrics.
type service struct {
	*sweep.Daemon
	t        *testing.T
	registry *prometheus.Registry
	stop     func() // may be called again
}

// serve runs a daemon with one target until it is stopped, or the test ends.
func (w *world) serve(cfg sweep.Config) *service {
	s := &service{t: w.t, registry: prometheus.NewRegistry()}
	cfg.Targets = slices.Clone(cfg.Targets)
	if cfg.Targets[0].Next == nil {
		cfg.Targets[0].Next = everySecond
	}
	cfg.Metrics = metrics.New(metrics.Options{Registry: s.registry, Targets: []string{"sessions"}, Apply: cfg.Apply})
	s.Daemon = sweep.NewDaemon(cfg, true)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	w.t.Cleanup(s.stop)
	return s
}

func (s *service) state() sweep.State { return s.States()[0] }

// sweeps returns how many sweeps ended with a result, by the metrics.
func (s *service) sweeps(result string) int {
	s.t.Helper()
	return int(s.counter("reaper_sweeps_total", "result", result))
}

// counter returns what the counters of a name and of these labels, in pairs, add up to.
func (s *service) counter(name string, labels ...string) (sum float64) {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	found := false
	for _, f := range families {
		for _, m := range f.GetMetric() {
			has := map[string]string{}
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			fits := f.GetName() == name
			for i := 0; i < len(labels); i += 2 {
				fits = fits && has[labels[i]] == labels[i+1]
			}
			if fits {
				sum, found = sum+m.GetCounter().GetValue(), true
			}
		}
	}
	if !found {
		s.t.Fatalf("nothing is counted of %s %v", name, labels)
	}
	return sum
}

// targetRecord reads the target record.
func (w *world) targetRecord() generation.Record {
	w.t.Helper()
	r, _, err := generation.Load(context.WithoutCancel(w.t.Context()), w.s, "sessions")
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// dueIn writes an entity into a shard of a generation, whatever its name.
func (w *world) dueIn(number, shard int, name string, expires time.Time) {
	w.t.Helper()
	k, err := expirykey.New(number, shard, expires)
	if err != nil {
		w.t.Fatal(err)
	}
	w.raw(name, k.String())
}

func everyMinute(at time.Time) time.Time { return at.Truncate(time.Minute).Add(time.Minute) }

// isTargetLoad reports whether a call reads the target record.
func isTargetLoad(c modelstore.Call) bool {
	return c.Method == "Load" && c.Record.Sort == store.TargetRecord
}

// A daemon that cannot read its target record writes nothing, logs why, counts each tick
// as a failed sweep, and recovers by itself.
func TestDaemonWithoutItsTargetRecord(t *testing.T) {
	for name, trouble := range map[string]func(context.Context) error{
		"unavailable": func(context.Context) error { return store.ErrUnavailable },
		"denied":      func(context.Context) error { return store.ErrDenied },
		"no answer":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaced(t, 1200, throttle.Limits{Start: 20, Max: 20})
				var deaf atomic.Bool
				p.s.Before = func(ctx context.Context, c modelstore.Call) error {
					if isTargetLoad(c) && deaf.Load() {
						return trouble(ctx)
					}
					return p.record(ctx, c)
				}
				s := p.serve(p.config())
				time.Sleep(20*time.Second + 500*time.Millisecond)
				if st := s.state(); st.Held != "" || st.Err != "" || st.Deleted == 0 {
					t.Fatalf("before: %+v", st)
				}
				deaf.Store(true)
				time.Sleep(15*time.Second + 100*time.Millisecond) // the last read was sent before
				left, failed := len(p.left()), s.sweeps("failed")
				time.Sleep(3 * time.Minute)
				writes := p.writes() // what was claimed has been given back
				for range 7 {
					time.Sleep(time.Minute)
					st := s.state()
					if st.Held != throttle.ReasonRecord || !strings.Contains(st.Err, "target record was not read") {
						t.Errorf("held %q, error %q", st.Held, st.Err)
					}
				}
				if n := len(p.left()); n != left || n == 0 {
					t.Errorf("%d of %d entities went by a record that nobody could read", left-n, left)
				}
				if n := p.writes(); n != writes {
					t.Errorf("%d other writes", n-writes)
				}
				if n := s.sweeps("failed") - failed; n < 590 || n > 610 {
					t.Errorf("%d of 600 ticks count as failed sweeps", n)
				}
				deaf.Store(false)
				time.Sleep(20 * time.Second)
				if st := s.state(); st.Held != "" || len(p.left()) == left {
					t.Errorf("twenty seconds after: %d of %d are left: %+v", len(p.left()), left, st)
				}
				time.Sleep(2 * time.Minute)
				if st := s.state(); len(p.left()) > 0 || st.Err != "" || s.sweeps("complete") == 0 {
					t.Errorf("in the end %d are left: %+v", len(p.left()), st)
				}
				p.check(false)
			})
		})
	}
}

// A leap is a clock that can be put forward. To a goroutine in the middle of a call it
// looks as if the whole process had been frozen.
type leap struct{ by atomic.Int64 }

func (l *leap) now() time.Time { return time.Now().Add(time.Duration(l.by.Load())) }

// A process that is frozen for an hour, at any query or claim, obeys the pause that was set
// meanwhile: it deletes nothing by what it knew before.
func TestFrozenDaemonObeysAPause(t *testing.T) {
	for name, c := range map[string]struct {
		pace  throttle.Limits
		page  int // so large that no query is ahead of the writes
		calls int
	}{
		"without a pace": {throttle.Limits{Unlimited: true}, 200, 8},
		"with a pace":    {throttle.Limits{Start: 20, Max: 20}, 50, 30},
	} {
		t.Run(name, func(t *testing.T) {
			kinds := map[string]int{}
			for n := range c.calls {
				synctest.Test(t, func(t *testing.T) {
					p := newPaced(t, 1, c.pace)
					p.target.Page = c.page
					p.sweep() // from now on ranges are claimed after their first query
					time.Sleep(time.Hour)
					for i := range 400 {
						p.dueIn(0, i%4, fmt.Sprint("due-", i), time.Now())
					}
					kinds[p.freeze(n)]++
				})
			}
			if kinds["Scan"] < 4 || kinds["Save"] < 3 {
				t.Errorf("frozen at %v", kinds)
			}
		})
	}
}

// freeze freezes a daemon at its n-th query or claim, and returns which it was.
func (p *paced) freeze(n int) (method string) {
	t, clock := p.t, &leap{}
	p.s.Now = clock.now
	config := func() sweep.Config {
		c := p.config()
		c.Now, c.Workers = clock.now, 1 // so that no write is in flight meanwhile
		return c
	}
	setPaused := func(paused bool) {
		t.Helper()
		_, err := control.Change(t.Context(), config(), p.target, func(r *generation.Record) { r.Paused = paused })
		if err != nil {
			t.Error(err)
		}
	}
	var calls, after, left atomic.Int64
	p.s.Before = func(_ context.Context, c modelstore.Call) error {
		switch {
		case c.Method == "Dispose" && left.Load() > 0:
			after.Add(1)
		case c.Method == "Scan" && len(p.left()) > 0, p.isClaim(c):
			if calls.Add(1) == int64(n+1) {
				setPaused(true)
				clock.by.Add(int64(time.Hour))
				method = c.Method
				left.Store(int64(len(p.left())))
			}
		}
		return nil
	}
	s := p.serve(config())
	time.Sleep(time.Minute)
	if now := int64(len(p.left())); left.Load() == 0 || after.Load() > 0 || now != left.Load() {
		t.Errorf("frozen at call %d, %s: %d tries to delete, %d of %d entities are left", n, method, after.Load(), now,
			left.Load())
	}
	if st := s.state(); st.Held != throttle.ReasonPaused {
		t.Errorf("frozen at call %d, %s: %+v", n, method, st)
	}
	left.Store(0)
	setPaused(false)
	time.Sleep(2 * time.Minute)
	if len(p.left()) > 0 {
		t.Errorf("frozen at call %d, %s: %d entities are left: %+v", n, method, len(p.left()), s.state())
	}
	return method
}

// A diary is what was seen of a target's chores, minute by minute.
type diary struct {
	*world
	opened  map[int]time.Time
	looked  []time.Time
	audits  []time.Time
	emptied map[int]time.Time // when the last range of a generation was
	retired map[int]time.Time
}

// look reads the records.
func (d *diary) look() {
	now, rec, table := time.Now(), d.targetRecord(), d.cursors()
	live := map[int]bool{}
	for _, g := range rec.Generations {
		live[g.Number] = true
		d.opened[g.Number] = g.Opened
		var last time.Time
		for shard := range g.Shards {
			at := table[cursor.ID{Target: "sessions", Generation: g.Number, Shard: fmt.Sprintf("%04d", shard)}].Stock.Emptied
			if at.IsZero() {
				last = at
				break
			}
			if at.After(last) {
				last = at
			}
		}
		d.emptied[g.Number] = last
	}
	for number := range d.opened {
		if _, ok := d.retired[number]; !ok && !live[number] {
			d.retired[number] = now
		}
	}
	if n := len(d.looked); !rec.Checked.IsZero() && (n == 0 || rec.Checked.After(d.looked[n-1])) {
		d.looked = append(d.looked, rec.Checked)
	}
	round := table[cursor.ID{Target: "sessions", Shard: plan.AuditShard}].Rewind.Done
	if n := len(d.audits); !round.IsZero() && (n == 0 || round.After(d.audits[n-1])) {
		d.audits = append(d.audits, round)
	}
}

// While one range of each generation is busy for a day and more, the chores keep
// their times: generations open, are drained and retire, the look around and the
// audit come once a period (L5).
func TestChoresKeepTheirTimesBesideABacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("a day or half of one, which others go through as well")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := generation.Policy{Every: 4 * time.Hour, Ramp: 10 * time.Minute, Staleness: time.Minute, Slack: 5 * time.Minute,
			Keep: 1}
		w.target.Policy, w.target.Shards = p, 2
		w.target.Rewind = 5 * time.Hour
		w.target.Pace = throttle.Limits{Start: 0.03, Max: 0.03}
		w.target.Next = everyMinute
		began := time.Now()
		s := w.serve(w.config())
		d := &diary{world: w, opened: map[int]time.Time{}, emptied: map[int]time.Time{}, retired: map[int]time.Time{}}
		time.Sleep(time.Second)
		idle := 0
		const hours = 30
		for m := range hours * 60 {
			list := w.targetRecord().Generations
			for i := range 3 { // twice of what the pace lets go
				w.dueIn(list[len(list)-1].Number, 0, fmt.Sprintf("e-%d-%d", m, i), time.Now())
			}
			if m%60 == 0 {
				w.dueIn(list[len(list)-1].Number, 1, fmt.Sprint("survivor-", m), time.Now().Add(1000*time.Hour))
			}
			time.Sleep(time.Minute)
			d.look()
			if s.state().Working == 0 {
				idle++
			}
		}
		if idle > 10 {
			t.Errorf("in %d of %d minutes nothing was being done", idle, hours*60)
		}
		for n := 2; n <= len(d.opened); n++ {
			if late := d.opened[n].Sub(d.opened[n-1]) - p.Every; late < 0 || late > 10*time.Second {
				t.Errorf("generation %d was opened %v late", n, late)
			}
		}
		if len(d.opened) != 1+hours/4 {
			t.Errorf("%d generations were opened", len(d.opened))
		}
		last := began
		for _, at := range append(d.looked, time.Now()) {
			if gap := at.Sub(last); gap > w.target.Rewind+time.Minute {
				t.Errorf("nobody looked around for %v: %v", gap, d.looked)
			}
			last = at
		}
		first := time.Now()
		for n, at := range d.retired {
			if after := at.Sub(d.emptied[n]); after > p.Slack+4*time.Minute {
				t.Errorf("generation %d retired %v after it was empty", n, after)
			}
			if at.Before(first) {
				first = at
			}
		}
		if len(d.retired) < len(d.opened)-4 {
			t.Errorf("%d of %d generations retired", len(d.retired), len(d.opened))
		}
		switch {
		case len(d.audits) != 2:
			t.Errorf("rounds of the audit: %v", d.audits)
		case d.audits[0].Sub(first) > 2*time.Minute:
			t.Errorf("the audit began %v after the first generation retired", d.audits[0].Sub(first))
		case d.audits[1].Sub(d.audits[0]) > plan.AuditEvery+2*time.Minute:
			t.Errorf("rounds of the audit: %v", d.audits)
		}
		survivors := 0
		for _, name := range w.left() {
			if strings.HasPrefix(name, "survivor") {
				survivors++
			}
		}
		if survivors != hours {
			t.Errorf("%d of %d survivors are left", survivors, hours)
		}
		t.Logf("%d generations, %d retired, %d looks, %d entities are left", len(d.opened), len(d.retired), len(d.looked),
			len(w.left()))
	})
}

// Daemons that share a total, and hear of each other's claims late, while they claim
// and release: nothing is torn (under the race detector), and the total holds.
func TestLateAnswersAboutClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 100, throttle.Limits{Start: 20, Max: 20})
		p.target.Total = throttle.Limit{PerSecond: 12}
		late := func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.CursorRecord {
				return throttle.Sleep(ctx, time.Duration(rand.IntN(3000))*time.Millisecond)
			}
			return nil
		}
		p.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if err := late(ctx, c); err != nil { // on its way there
				return err
			}
			return p.record(ctx, c)
		}
		p.s.After = func(ctx context.Context, c modelstore.Call) error {
			_ = p.world.trace(ctx, c)
			return late(ctx, c) // on its way back
		}
		daemons := []*service{}
		for i := range 3 { // which take turns to look first
			p.target.Next = func(at time.Time) time.Time {
				return at.Truncate(3 * time.Second).Add(3*time.Second + time.Duration(i)*time.Second)
			}
			daemons = append(daemons, p.serve(p.config()))
			time.Sleep(5 * time.Second)
		}
		for i := range 600 { // short visits, so that claims come and go
			p.put(0, 4, fmt.Sprint("late-", i), time.Now())
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(3 * time.Minute)
		claims := map[string]int{}
		for _, one := range p.saves {
			if one.owner != "" && one.claim {
				claims[one.owner]++
			}
		}
		for _, d := range daemons {
			if st := d.state(); st.Err != "" {
				t.Errorf("%+v", st)
			}
			d.stop()
		}
		t.Logf("claims: %v", claims)
		if len(p.left()) > 0 {
			t.Errorf("%d are left", len(p.left()))
		}
		p.check(false)
		p.checkLeases()
	})
}

// An idle daemon knows the cursors that it has moved itself: it reads all of them when
// it begins and when it looks around, and those that it lacks when it counts what is behind them.
func TestIdleDaemonReadsItsCursorsSeldom(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.sweep()
		var loads, moves atomic.Int64
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			switch {
			case c.Method == "Load" && c.Record.Sort == store.CursorRecord:
				loads.Add(1)
			case c.Method == "Save" && c.Record.Sort == store.CursorRecord:
				moves.Add(1)
			}
			return nil
		}
		s := w.serve(w.config())
		time.Sleep(2 * time.Hour)
		s.stop()
		ranges := int64(len(w.cursors()))
		const counts = 13 // one after a minute, and one in each ten
		if loads.Load() > 2+counts || moves.Load() > ranges*(2*60/10+2) || moves.Load() < ranges {
			t.Errorf("%d ranges: cursors were read %d times in two hours, and %d cursors were moved", ranges, loads.Load(), moves.Load())
		}
	})
}

// Many records take many reads. Each read has a timeout, but all together have none.
func TestManyPagesOfRecordsTakeTheirTime(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const records = 3500
		w.sweep()
		w.fill(400, 2*time.Hour)
		time.Sleep(time.Hour)
		other := &cursor.Keeper{Store: w.s, Owner: "other", Lease: time.Minute, Now: time.Now, StoreNow: time.Now, Log: slog.New(slog.DiscardHandler)}
		for i := range records {
			c := cursor.Cursor{ID: cursor.ID{Target: "sessions", Namespace: fmt.Sprintf("tenant-%04d", i), Shard: "0000"}}
			if _, moved, err := other.Move(t.Context(), c, func(*cursor.Cursor) {}); err != nil || !moved {
				t.Fatalf("record %d: %v, %v", i, moved, err)
			}
		}
		pages := 0
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.CursorRecord {
				pages++
				return throttle.Sleep(ctx, 9*time.Second)
			}
			return nil
		}
		began := time.Now()
		res := w.sweep()
		if res.Deleted == 0 || !res.Complete || res.Error != "" {
			t.Errorf("%+v", res)
		}
		if took := time.Since(began); pages < records/store.MaxRecords || took < time.Minute {
			t.Errorf("%d pages in %v", pages, took)
		}
	})
}

// A daemon with many queries a tick logs what they cost; one with few does not.
func TestDaemonTellsWhatLookingCosts(t *testing.T) {
	for namespaces, want := range map[int]bool{1: false, 300: true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.target.Namespaces = nil
			for i := range namespaces {
				w.target.Namespaces = append(w.target.Namespaces, fmt.Sprintf("tenant-%d", i))
			}
			var said syncBuffer
			cfg := w.config()
			cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
			s := w.serve(cfg)
			time.Sleep(3 * time.Second)
			s.stop()
			if got := strings.Count(said.String(), "reads_per_hour=8640000"); got != map[bool]int{true: 1}[want] {
				t.Errorf("%d namespaces: it is said %d times:\n%s", namespaces, got, said.String())
			}
			if strings.Contains(said.String(), "dollars_per_hour_in_us_central1=2.59") != want {
				t.Errorf("%d namespaces:\n%s", namespaces, said.String())
			}
		})
	}
}
