package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/twoclocks"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A modelDaemon is a daemon on a store in memory, with a wall clock of its own. It
// lives in a synctest bubble.
type modelDaemon struct {
	*daemon
	t    *testing.T
	s    *modelstore.Store
	jump atomic.Int64 // how far its wall clock is ahead, in nanoseconds
	mu   sync.Mutex
	log  bytes.Buffer
}

func (m *modelDaemon) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.Write(p)
}

// said returns the log since the last call.
func (m *modelDaemon) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.log.Reset()
	return m.log.String()
}

func newModelDaemon(t *testing.T, first bool, every string, targets ...string) *modelDaemon {
	t.Helper()
	plan, err := config.ParseSchedule(every)
	if err != nil {
		t.Fatal(err)
	}
	m := &modelDaemon{t: t, s: modelstore.New(time.Now)}
	began := time.Now()
	now := func() time.Time {
		t := time.Now()
		return twoclocks.At(t.Add(time.Duration(m.jump.Load())), t.Sub(began)+time.Hour)
	}
	log := slog.New(slog.NewTextHandler(m, &slog.HandlerOptions{Level: slog.LevelInfo}))
	s := &session{log: log, db: &database{m.s, func() error { return nil }},
		sweep: sweep.Config{Store: m.s, Apply: true, Workers: 4, Grace: 8 * time.Second, Owner: "daemon",
			Now: now, Log: log}}
	s.Schedule, s.Apply = plan, true
	for _, name := range targets {
		s.targets = append(s.targets, config.Target{Name: name})
		s.sweep.Targets = append(s.sweep.Targets, sweep.Target{
			Target: store.Target{Name: name, Kind: name, Property: "expiry_key", Type: store.Text},
			Layout: "sharded", Shards: 2, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
			Overlap: 10 * time.Second, Page: 50,
			Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true}})
	}
	known := metrics.New(metrics.Options{Targets: targets, Apply: true})
	m.daemon = newDaemon(s, known, first)
	return m
}

// start lets it work until the test ends it.
func (m *modelDaemon) start() (stop func()) {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.work(ctx) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

// put writes an entity that expired a moment ago: not behind any cursor.
func (m *modelDaemon) put(target, name string) {
	m.t.Helper()
	key, err := generation.Stamper{Shards: 2}.Name(name, time.Now().Add(-time.Second))
	if err != nil {
		m.t.Fatal(err)
	}
	e := store.Entity{Name: name, Expiry: store.TextValue(key.String())}
	if err := m.s.Put(m.t.Context(), store.Target{Kind: target}, "", []store.Entity{e}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *modelDaemon) left(target string) int { return len(m.s.Entities(target, "")) }

// value returns one sample of the metrics; 0 if it is missing.
func (m *modelDaemon) value(name string) float64 {
	m.t.Helper()
	_, text := m.ask("/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				m.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// sweeps returns how many sweeps of the target ended with a result.
func (m *modelDaemon) sweeps(result string) float64 {
	m.t.Helper()
	return m.value(`reaper_sweeps_total{result="` + result + `",target="sessions"}`)
}

func (m *modelDaemon) ask(path string) (code int, body string) {
	w := httptest.NewRecorder()
	m.handler(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// While a clock is wrong by an hour, either way, nothing is deleted. Once it is right again,
// everything continues.
func TestServeWhereTheClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		for _, every := range []string{"*/5 * * * *", "@every 5m"} {
			synctest.Test(t, func(t *testing.T) {
				m := newModelDaemon(t, true, every, "sessions")
				stop := m.start()
				defer stop()
				time.Sleep(12 * time.Minute)
				if got := m.sweeps("complete"); got != 3 {
					t.Errorf("%s: %v sweeps within twelve minutes", every, got)
				}
				m.said()
				m.jump.Store(int64(jump))
				m.put("sessions", "due")
				time.Sleep(30 * time.Minute)
				said := m.said()
				if n := m.sweeps("complete"); n != 3 || m.left("sessions") != 1 {
					t.Errorf("%s, %v: %v sweeps completed, %d left", every, jump, n, m.left("sessions"))
				}
				if !strings.Contains(said, "the clock cannot be trusted") {
					t.Errorf("%s, %v: the log does not say why:\n%s", every, jump, said)
				}
				m.jump.Store(0)
				time.Sleep(5*time.Minute + 30*time.Second)
				if m.left("sessions") != 0 {
					t.Errorf("%s, %v: nothing was swept after the clock was put right:\n%s", every, jump, m.said())
				}
				if code, body := m.ask("/readyz"); code != http.StatusOK {
					t.Errorf("%s, %v: %d %s", every, jump, code, body)
				}
			})
		}
	}
}

// If the store hangs, every call ends by itself, readiness says so, and nothing piles up.
// Once the store answers, everything continues.
func TestServeWhereTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, true, "@every 1s", "sessions", "carts")
		var hangs atomic.Bool
		var calls atomic.Int64
		m.s.Before = func(ctx context.Context, _ modelstore.Call) error {
			if !hangs.Load() {
				return nil
			}
			calls.Add(1)
			defer calls.Add(-1)
			<-ctx.Done()
			return fmt.Errorf("no answer: %w", ctx.Err())
		}
		stop := m.start()
		defer stop()
		time.Sleep(10 * time.Second)
		if code, body := m.ask("/readyz"); code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
		m.said()
		hangs.Store(true)
		m.put("sessions", "due")
		before, most := runtime.NumGoroutine(), 0
		for range 30 {
			time.Sleep(time.Minute)
			asked := time.Now()
			code, body := m.ask("/readyz")
			if took := time.Since(asked); code != http.StatusServiceUnavailable || took > readyTimeout {
				t.Errorf("%d %s after %v", code, body, took)
			}
			if code, _ := m.ask("/healthz"); code != http.StatusOK {
				t.Error("the process is said to be dead")
			}
			most = max(most, runtime.NumGoroutine())
		}
		if n := calls.Load(); n > 8 {
			t.Errorf("%d calls hang at once", n)
		}
		if most-before > 40 {
			t.Errorf("%d goroutines more than at the beginning", most-before)
		}
		said := m.said()
		for _, want := range []string{"deletes suspended", "cause=deadline"} {
			if !strings.Contains(said, want) {
				t.Errorf("no %q in the log:\n%s", want, said)
			}
		}
		hangs.Store(false)
		time.Sleep(time.Minute)
		if code, body := m.ask("/readyz"); code != http.StatusOK || m.left("sessions") != 0 {
			t.Errorf("%d %s, %d left", code, body, m.left("sessions"))
		}
	})
}

// A panic in one target's work does not stop the other target, nor its own next try.
func TestServeOutlivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, true, "@every 10s", "sessions", "carts")
		var bad atomic.Bool
		m.s.Before = func(_ context.Context, c modelstore.Call) error {
			if bad.Load() && c.Query.Target.Name == "sessions" {
				panic("a bug of ours")
			}
			return nil
		}
		bad.Store(true)
		stop := m.start()
		defer stop()
		m.put("sessions", "s")
		m.put("carts", "c")
		time.Sleep(time.Minute)
		said := m.said()
		if m.left("carts") != 0 || m.left("sessions") != 1 {
			t.Errorf("%d carts and %d sessions are left", m.left("carts"), m.left("sessions"))
		}
		if n := strings.Count(said, "level=ERROR"); n != 1 || !strings.Contains(said, `cause="internal error, please report it: a bug of ours"`) {
			t.Errorf("said %d times:\n%s", n, said)
		}
		if m.sweeps("failed") == 0 {
			t.Error("the failures are not in the metrics")
		}
		if _, text := m.ask("/"); !strings.Contains(text, "a bug of ours") {
			t.Errorf("the front page does not say what failed: %s", text)
		}
		bad.Store(false)
		time.Sleep(20 * time.Second)
		if m.left("sessions") != 0 {
			t.Error("it is not swept any more")
		}
	})
}

// Work that takes longer than the schedule's interval continues from tick to tick: no range
// has two holders, none waits for another one, and none is left out.
func TestServeGoesOnFromTickToTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, true, "@every 10s", "sessions")
		var at, most atomic.Int64
		m.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Dispose" {
				return nil
			}
			most.Store(max(most.Load(), at.Add(1)))
			time.Sleep(12 * time.Second)
			at.Add(-1)
			return nil
		}
		stop := m.start()
		defer stop()
		for i := range 10 {
			m.put("sessions", fmt.Sprint("s", i))
			time.Sleep(10 * time.Second)
		}
		time.Sleep(time.Minute)
		if most.Load() > 2 || m.left("sessions") != 0 { // ranges
			t.Errorf("%d at once, %d left:\n%s", most.Load(), m.left("sessions"), m.said())
		}
		if code, body := m.ask("/readyz"); code != http.StatusOK {
			t.Errorf("%d %s", code, body)
		}
	})
}

// With --no-first-run a daemon waits for its first tick.
func TestServeWithoutFirstRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, false, "@every 10m", "sessions")
		stop := m.start()
		defer stop()
		m.put("sessions", "s")
		time.Sleep(9 * time.Minute)
		if m.left("sessions") != 1 {
			t.Error("it did not wait")
		}
		tick := time.Now().UTC().Add(time.Minute).Format(time.RFC3339)
		if _, text := m.ask("/"); !strings.Contains(text, "<td>not yet<td>"+tick) {
			t.Errorf("the front page: %s", text)
		}
		time.Sleep(2 * time.Minute)
		if m.left("sessions") != 0 {
			t.Errorf("the first tick did not come: %s", m.said())
		}
	})
}

// The front page shows the state of each target.
func TestFrontPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, true, "@every 10s", "sessions", "carts")
		stop := m.start()
		defer stop()
		m.put("carts", "c")
		time.Sleep(35 * time.Second) // between two ticks
		_, text := m.ask("/")
		for _, want := range []string{
			"<td>carts<td>@every 10s<td>", "<td>nothing is due<td><td>", "<td>0\n<td>1<td><td>", "<td>0\n<td>0<td><td>",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
	})
}

// A daemon that misses a tick is not ready.
func TestReadyWithoutTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, true, "@every 10s", "sessions")
		if code, body := m.ask("/readyz"); code != http.StatusOK {
			t.Errorf("before it works: %d %s", code, body)
		}
		time.Sleep(2 * time.Minute)
		code, body := m.ask("/readyz")
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "missed its tick") {
			t.Errorf("without a tick: %d %s", code, body)
		}
	})
}

// A daemon with many targets is ready although each read takes a while.
func TestReadyOfManyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprint("t", i))
		}
		m := newModelDaemon(t, true, "@every 10s", names...)
		var reads, most atomic.Int64
		m.s.Before = func(ctx context.Context, _ modelstore.Call) error {
			most.Store(max(most.Load(), reads.Add(1)))
			defer reads.Add(-1)
			time.Sleep(25 * time.Millisecond)
			return ctx.Err()
		}
		asked := time.Now()
		code, body := m.ask("/readyz")
		if took := time.Since(asked); code != http.StatusOK || took > time.Second {
			t.Errorf("%d %s after %v", code, body, took)
		}
		if most.Load() > readyReads {
			t.Errorf("%d reads at the same time", most.Load())
		}
	})
}

// Requests within a second share one answer of the store, also if the one that asked for it leaves meanwhile.
func TestReadyIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, true, "@every 10s", "sessions", "carts")
		var reads atomic.Int64
		answer := make(chan struct{})
		m.s.Before = func(ctx context.Context, _ modelstore.Call) error {
			reads.Add(1)
			<-answer
			return ctx.Err()
		}
		leaving, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			m.handler(false).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(leaving, http.MethodGet, "/readyz", nil))
		})
		synctest.Wait() // for its reads
		leave()
		for range 10 {
			all.Go(func() {
				if code, body := m.ask("/readyz"); code != http.StatusOK {
					t.Errorf("%d %s", code, body)
				}
			})
		}
		close(answer)
		all.Wait()
		want := func(n int64, when string) {
			t.Helper()
			if reads.Load() != n {
				t.Errorf("%s: %d reads, want %d", when, reads.Load(), n)
			}
		}
		want(2, "at the same time")
		time.Sleep(readyEvery - time.Millisecond)
		m.ask("/readyz")
		want(2, "within a second")
		time.Sleep(time.Millisecond)
		m.ask("/readyz")
		want(4, "a second later")
	})
}
