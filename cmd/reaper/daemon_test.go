package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/config"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A modelDaemon is a daemon on a store in memory, with a clock of its own. It lives
// in a synctest bubble.
type modelDaemon struct {
	*daemon
	t    *testing.T
	s    *modelstore.Store
	jump atomic.Int64 // how far its clock is ahead, in nanoseconds
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

func newModelDaemon(t *testing.T, every string, targets ...string) *modelDaemon {
	t.Helper()
	plan, err := config.ParseSchedule(every)
	if err != nil {
		t.Fatal(err)
	}
	m := &modelDaemon{t: t, s: modelstore.New(time.Now)}
	now := func() time.Time { return time.Now().Round(0).Add(time.Duration(m.jump.Load())) }
	log := slog.New(slog.NewTextHandler(m, &slog.HandlerOptions{Level: slog.LevelInfo}))
	s := &session{log: log, db: &database{m.s, func() error { return nil }},
		sweep: sweep.Config{Store: m.s, Apply: true, Workers: 4, Grace: 8 * time.Second, Owner: "daemon", Now: now, Log: log}}
	s.Schedule, s.Apply = plan, true
	for _, name := range targets {
		s.targets = append(s.targets, config.Target{Name: name})
		s.sweep.Targets = append(s.sweep.Targets, sweep.Target{
			Target: store.Target{Name: name, Kind: name, Property: "expiry_key", Type: store.Text},
			Layout: "sharded", Shards: 2, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second, Page: 50,
			Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Unlimited: true}})
	}
	m.daemon = newDaemon(&app{now: now, stdout: io.Discard, stderr: io.Discard}, s, metrics.New(metrics.Options{Targets: targets, Apply: true}))
	return m
}

// start lets it work until the test ends it.
func (m *modelDaemon) start() (stop func()) {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.work(ctx, false) }()
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

func (m *modelDaemon) ask(path string) (code int, body string) {
	w := httptest.NewRecorder()
	m.handler(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// A clock that jumps by an hour, either way, stops nothing for longer than the clock
// is wrong: sweeps refuse while it is, and go on once it is right.
func TestServeWhereTheClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		for _, every := range []string{"*/5 * * * *", "@every 5m"} {
			synctest.Test(t, func(t *testing.T) {
				m := newModelDaemon(t, every, "sessions")
				stop := m.start()
				defer stop()
				time.Sleep(12 * time.Minute)
				if got := strings.Count(m.said(), "msg=swept"); got != 3 {
					t.Errorf("%s: %d sweeps within twelve minutes", every, got)
				}
				m.jump.Store(int64(jump))
				m.put("sessions", "due")
				time.Sleep(30 * time.Minute)
				said := m.said()
				if n := strings.Count(said, "sweep failed"); n < 5 || n > 7 || !strings.Contains(said, "clock") || m.left("sessions") != 1 {
					t.Errorf("%s, %v: %d sweeps refused, %d left:\n%s", every, jump, n, m.left("sessions"), said)
				}
				m.jump.Store(0)
				time.Sleep(5*time.Minute + 2*clockEvery)
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

// A store that hangs: every call ends by itself, readiness says so, and nothing piles
// up. Once it answers, everything goes on.
func TestServeWhereTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, "@every 1s", "sessions", "carts")
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
		var most int
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
		if most > 60 {
			t.Errorf("%d goroutines", most)
		}
		if said := m.said(); strings.Count(said, "sweep failed") < 20 {
			t.Errorf("the log:\n%s", said)
		}
		hangs.Store(false)
		time.Sleep(time.Minute)
		if code, body := m.ask("/readyz"); code != http.StatusOK || m.left("sessions") != 0 {
			t.Errorf("%d %s, %d left", code, body, m.left("sessions"))
		}
	})
}

// A panic in one target's sweep ends neither the other's nor its own next one.
func TestServeOutlivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, "@every 10s", "sessions", "carts")
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
		if n := strings.Count(said, "internal error"); n < 5 {
			t.Errorf("said %d times:\n%s", n, said)
		}
		_, text := m.ask("/metrics")
		if !strings.Contains(text, `reaper_sweeps_total{result="failed",target="sessions"} `) || strings.Contains(text, `reaper_sweeps_total{result="failed",target="sessions"} 0`) {
			t.Error("the failures are not in the metrics")
		}
		bad.Store(false)
		time.Sleep(20 * time.Second)
		if m.left("sessions") != 0 {
			t.Error("it is not swept any more")
		}
	})
}

// A sweep that takes longer than its schedule is left to end, and nothing runs beside
// it; a daemon that is told to wait does.
func TestServeLeavesOutWhatIsStillRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelDaemon(t, "@every 10s", "sessions")
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
		m.put("sessions", "s")
		time.Sleep(5 * time.Minute)
		if most.Load() > 2 { // ranges
			t.Errorf("%d at once", most.Load())
		}
		if said := m.said(); !strings.Contains(said, "left out") || m.left("sessions") != 0 {
			t.Errorf("%d left:\n%s", m.left("sessions"), said)
		}
		stop()

		m = newModelDaemon(t, "@every 10m", "sessions")
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
		defer cancel()
		m.work(ctx, true)
		if said := m.said(); said != "" {
			t.Errorf("it did not wait: %s", said)
		}
	})
}
