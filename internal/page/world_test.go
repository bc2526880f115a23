package page

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A world is a model store with a target that was swept, and counts its reads.
type world struct {
	t      *testing.T
	s      *modelstore.Store
	target sweep.Target
	reads  atomic.Int64
	hang   atomic.Bool // the store does not answer
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, s: modelstore.New(time.Now)}
	w.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true}, History: sweep.History{Keep: 90 * 24 * time.Hour, Actor: "ann@example.com"},
	}
	w.s.Before = func(ctx context.Context, _ modelstore.Call) error {
		w.reads.Add(1)
		if w.hang.Load() {
			<-ctx.Done()
			return fmt.Errorf("%w: no answer", store.ErrUnavailable)
		}
		return nil
	}
	return w
}

func (w *world) config() sweep.Config {
	return sweep.Config{Store: w.s, Targets: []sweep.Target{w.target}, Apply: true, Workers: 4, Grace: time.Second,
		Owner: "host/1/ABCDEF", Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// fill writes entities that are due, and some that are not.
func (w *world) fill(n int) {
	w.t.Helper()
	_, now, err := sweep.EnsureRecord(w.t.Context(), w.config(), w.target)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range n {
		e := store.Entity{Name: fmt.Sprintf("s-%d", i)}
		key, err := expirykey.New(1, i%w.target.Shards, now.Add(time.Duration(i%2*2-1)*time.Hour))
		if err != nil {
			w.t.Fatal(err)
		}
		e.Expiry = store.TextValue(key.String())
		if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) sweep() {
	w.t.Helper()
	if res := sweep.Run(w.t.Context(), w.config()).Targets[0]; res.Error != "" {
		w.t.Fatalf("%+v", res)
	}
}

// collect runs a daemon with a tick each so often, which the page then belongs to, until stop.
func (w *world) collect(page *Config, every time.Duration) (d *sweep.Daemon, stop func()) {
	cfg := w.config()
	cfg.Targets[0].Next = func(at time.Time) time.Time { return at.Add(every) }
	d = sweep.NewDaemon(cfg, true)
	page.Mode, page.States, page.Own = Deletes, d.States, d.Own
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { d.Run(ctx); close(ended) }()
	return d, func() { cancel(); <-ended }
}

// page returns what a page of this world shows.
func (w *world) page() Config {
	return Config{Store: "model:world", Version: "v1.2.3", Mode: Shows, IDs: true, Source: worldSource{w}, Now: time.Now,
		Targets: []Target{{Name: w.target.Name, Kind: w.target.Kind, Layout: string(w.target.Layout)}},
		Log:     slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// A worldSource reads a world.
type worldSource struct{ *world }

func (s worldSource) Status(
	ctx context.Context, _ string, last inspect.BehindCount,
) (inspect.TargetStatus, error) {
	return inspect.StatusWith(ctx, s.config(), s.target, inspect.Look{Last: last})
}

func (s worldSource) Breaker(ctx context.Context, _ string) (inspect.BreakerStatus, error) {
	return inspect.Breaker(ctx, s.config(), s.target)
}

func (s worldSource) History(
	ctx context.Context, _ string, since time.Time, limit int,
) (inspect.TargetHistory, error) {
	return inspect.ReadHistory(ctx, s.config(), s.target, inspect.HistoryQuery{Since: since, Limit: limit})
}

func (s worldSource) Prices(context.Context) (forecast.Prices, error) { return forecast.Prices{}, nil }

func (s worldSource) Plan(_ context.Context, target string, due int64) (Plan, error) {
	return Plan{Text: fmt.Sprintf("%s\n  due now         %d\n", target, due), Document: map[string]int64{"due": due}}, nil
}

func (s worldSource) Doctor(ctx context.Context) (doctor.Report, error) {
	return doctor.Run(ctx, doctor.Setup{Spec: "model:world", Sweep: s.config(), All: []sweep.Target{s.target}}), nil
}

func (s worldSource) Explain(ctx context.Context, q Question) (inspect.Explanation, error) {
	return inspect.Explain(ctx, s.config(), s.target, q.Namespace, q.ID)
}

// A said is a source that says what a test wants it to.
type said struct {
	status  func(context.Context) (inspect.TargetStatus, error)
	trip    inspect.BreakerStatus
	history inspect.TargetHistory
	report  doctor.Report
	answer  inspect.Explanation
	prices  forecast.Prices
	err     error
}

func (s said) Prices(context.Context) (forecast.Prices, error) { return s.prices, s.err }

func (s said) Status(ctx context.Context, _ string, _ inspect.BehindCount) (inspect.TargetStatus, error) {
	return s.status(ctx)
}

func (s said) Breaker(context.Context, string) (inspect.BreakerStatus, error) { return s.trip, s.err }

func (s said) History(context.Context, string, time.Time, int) (inspect.TargetHistory, error) {
	return s.history, s.err
}
func (s said) Plan(_ context.Context, target string, due int64) (Plan, error) {
	text := fmt.Sprintf("%s\n  workload        2.6/s written\n  due now         %d\n  delay           p50 2m30s, p99 4m57s; %s\n", target, due,
		strings.Repeat("the busiest ranges work 1% of the time; ", 4))
	return Plan{Text: text, Document: map[string]int64{"due": due}}, s.err
}

func (s said) Doctor(context.Context) (doctor.Report, error)                  { return s.report, s.err }
func (s said) Explain(context.Context, Question) (inspect.Explanation, error) { return s.answer, s.err }

// always returns a source of one status.
func sayingAlways(st inspect.TargetStatus) said {
	return said{status: func(context.Context) (inspect.TargetStatus, error) { return st, nil }}
}

// A site is a page that is served.
type site struct {
	t   *testing.T
	url string
}

// serve shows a page until the test ends.
func serve(t *testing.T, cfg Config) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the page ended with %v", err)
		}
	})
	return &site{t, "http://" + l.Addr().String() + "/"}
}

// get returns the answer to a request, read to its end.
func (s *site) get(path string) (*http.Response, string) {
	s.t.Helper()
	res, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res, string(text)
}

// want holds that a page has all of these texts.
func (s *site) want(path string, texts ...string) string {
	s.t.Helper()
	res, body := s.get(path)
	if res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s: %.500s", path, res.Status, body)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			s.t.Errorf("%s does not say %q:\n%s", path, text, body)
		}
	}
	return body
}

// until asks for a page until it has a text: what it shows is read in the background.
func (s *site) until(path, text string) string {
	s.t.Helper()
	for range 300 {
		if _, body := s.get(path); strings.Contains(body, text) {
			return body
		}
		time.Sleep(20 * time.Millisecond) // a real server
	}
	_, body := s.get(path)
	s.t.Fatalf("%s never says %q:\n%s", path, text, body)
	return ""
}
