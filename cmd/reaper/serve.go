package main

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/config"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// httpTimeout bounds every request, so that a client that hangs holds nothing.
	httpTimeout = 10 * time.Second
	// profileTimeout is what one of --pprof may take: 30 s are its tools' default.
	profileTimeout = 2 * time.Minute
	// readyTimeout bounds the look at the store that /readyz takes.
	readyTimeout = 5 * time.Second
	// clockEvery is how often a schedule looks at the clock.
	clockEvery = 15 * time.Second
	// stuckAfter is how long a range may have due entities and no progress.
	stuckAfter = 15 * time.Minute
	// sayAgain is how often a daemon without --apply says that it deletes nothing.
	sayAgain = time.Hour
)

func (a *app) serveCommand() *cobra.Command {
	var later, profile bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Sweep on a schedule, with metrics and health",
		Long: `Serve sweeps each target when it starts and then on its schedule, until it is told to
stop (SIGTERM). A sweep that is still running when its next one is due goes on, and that
one is left out. Several replicas share the ranges.

It serves /metrics for Prometheus, /healthz (the process lives) and /readyz (the store
answers, the records are readable, the schedule is alive) on --listen. Without --apply
it deletes nothing, and says so every hour.`,
		Example: `  reaper serve --store datastore:my-project --apply
  reaper serve --store embedded:./data --apply --schedule '@every 10s' --listen 127.0.0.1:9464`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd, later, profile) },
	}
	addSettings(cmd.Flags(), "apply", "workers", "shutdown-grace", "schedule", "listen")
	a.addTarget(cmd)
	cmd.Flags().BoolVar(&later, "no-first-run", false, "wait for the schedule instead of sweeping at once")
	cmd.Flags().BoolVar(&profile, "pprof", false, "serve /debug/pprof/, too")
	return cmd
}

// A daemon sweeps on a schedule.
type daemon struct {
	*app
	*session
	metrics *metrics.Metrics

	runs map[string]*schedule // by target

	mu sync.Mutex // what the schedules say
}

// A schedule is when a target was swept and is to be.
type schedule struct {
	config.Schedule
	began, ended time.Time // of the last run
	due          time.Time // of the next one
	expired      int64     // by the last run
	err          string
}

func newDaemon(a *app, s *session, m *metrics.Metrics) *daemon {
	d := &daemon{app: a, session: s, metrics: m, runs: map[string]*schedule{}}
	s.sweep.Metrics = m
	for _, t := range s.targets {
		plan := &schedule{Schedule: t.Schedule, due: d.clock()}
		if plan.IsZero() {
			plan.Schedule = s.Schedule
		}
		d.runs[t.Name] = plan
	}
	return d
}

func (a *app) serve(cmd *cobra.Command, later, profile bool) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	caution(s.Config, s.targets, s.log)
	ctx := cmd.Context()
	var names []string
	for _, t := range s.targets {
		names = append(names, t.Name)
	}
	d := newDaemon(a, s, metrics.New(metrics.Options{Targets: names, Version: buildVersion(), Apply: s.Apply}))

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return wrongUsage("--listen: %v", err)
	}
	writing := 2 * httpTimeout
	if profile {
		writing = profileTimeout
	}
	server := &http.Server{Handler: d.handler(profile), ReadHeaderTimeout: httpTimeout, ReadTimeout: httpTimeout, WriteTimeout: writing, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.log.InfoContext(ctx, "serving", "address", listener.Addr().String(), "apply", s.Apply, "targets", names)

	d.work(ctx, later)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err = server.Shutdown(stopping); errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // who is still connected has no say in how the sweeps ended
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	s.log.InfoContext(ctx, "stopped in good order")
	return err
}

// work sweeps on schedule until ctx is done, and returns when the last sweep has
// ended.
func (d *daemon) work(ctx context.Context, later bool) {
	var all sync.WaitGroup
	for _, target := range d.session.sweep.Targets {
		target.Watchdog = &metrics.Watchdog{Patience: stuckAfter}
		all.Go(func() { d.keepSweeping(ctx, d.runs[target.Name], target, later) })
	}
	if !d.Apply {
		all.Go(func() { d.remind(ctx) })
	}
	all.Wait()
}

// clock returns the time that schedules go by: the wall's alone.
func (d *daemon) clock() time.Time { return d.now().Round(0) }

// keepSweeping sweeps one target, on its schedule. A sweep that is still running
// when the next one is due goes on, and that one is left out.
func (d *daemon) keepSweeping(ctx context.Context, plan *schedule, t sweep.Target, later bool) {
	log := d.log.With("target", t.Name)
	job := cron.Recover(cronLog{log})(cron.FuncJob(func() { d.sweepOne(ctx, plan, t) }))
	for first := !later; ctx.Err() == nil; first = false {
		if first || d.awaitTurn(ctx, plan) {
			job.Run()
			if missed := plan.Next(plan.began); missed.Before(plan.ended) {
				log.WarnContext(ctx, "a sweep is left out: the one before it was still running", "due", missed)
			}
		}
	}
}

// awaitTurn waits until the next sweep is due, and reports whether it is. It looks
// at the clock again and again: one that is put back by an hour must not cost an
// hour of sweeps, as it would where the wait is reckoned once.
func (d *daemon) awaitTurn(ctx context.Context, plan *schedule) bool {
	now := d.clock()
	for due := plan.Next(now); now.Before(due); {
		d.mu.Lock()
		plan.due = due
		d.mu.Unlock()
		if throttle.Sleep(ctx, min(due.Sub(now), clockEvery)) != nil {
			return false
		}
		before := now
		if now = d.clock(); now.Before(before) {
			due = plan.Next(now)
		}
	}
	return true
}

// sweepOne sweeps one target.
func (d *daemon) sweepOne(ctx context.Context, plan *schedule, t sweep.Target) {
	d.mu.Lock()
	plan.began = d.clock()
	d.mu.Unlock()
	c := d.session.sweep
	c.Targets = []sweep.Target{t}
	res := sweep.Run(ctx, c)
	d.mu.Lock()
	defer d.mu.Unlock()
	plan.ended = d.clock()
	plan.expired, plan.err = res.Targets[0].Expired, res.Targets[0].Error
}

// remind says again and again that nothing is deleted.
func (d *daemon) remind(ctx context.Context) {
	tick := time.NewTicker(sayAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d.mu.Lock()
		for name, plan := range d.runs {
			d.log.WarnContext(ctx, "nothing is deleted without --apply", "target", name, "would_delete", plan.expired)
		}
		d.mu.Unlock()
	}
}

// handler serves what the daemon has to say.
func (d *daemon) handler(profile bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.metrics.Handler(httpTimeout))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if err := d.ready(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = front.Execute(w, map[string]any{"Store": d.Store.String(), "Apply": d.Apply, "Version": buildVersion(), "Runs": d.runs, "Pprof": profile})
	})
	if profile {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// ready returns what keeps the daemon from its work.
func (d *daemon) ready(ctx context.Context) error {
	var all []error
	for _, t := range d.session.targets {
		_, _, err := generation.Load(ctx, d.db.Store, t.Name)
		if err != nil && !errors.Is(err, generation.ErrMissing) {
			all = append(all, fmt.Errorf("target %s: %w", t.Name, err))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock()
	for name, plan := range d.runs {
		if idle := !plan.began.After(plan.ended); idle && now.Sub(plan.due) > time.Minute {
			all = append(all, fmt.Errorf("target %s: its sweep was due at %s and did not begin", name, plan.due.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(all...)
}

var front = template.Must(template.New("front").Parse(`<!DOCTYPE html>
<html lang="en"><title>Reaper</title><h1>Reaper {{.Version}}</h1>
<p>{{.Store}}, {{if .Apply}}deletes for real{{else}}deletes nothing (no --apply){{end}}</p>
<table><tr><th>target<th>schedule (UTC)<th>last sweep ended<th>found due<th>error</tr>
{{range $name, $run := .Runs}}<tr><td>{{$name}}<td>{{$run.Schedule}}<td>{{$run.Ended}}<td>{{$run.Expired}}<td>{{$run.Err}}</tr>
{{end}}</table>
<p><a href="/metrics">metrics</a> <a href="/healthz">health</a> <a href="/readyz">readiness</a>{{if .Pprof}} <a href="/debug/pprof/">profiles</a>{{end}}</p></html>
`))

// Ended, Expired and Err are for the front page.
func (s *schedule) Ended() string {
	if s.ended.IsZero() {
		return "not yet"
	}
	return s.ended.UTC().Format(time.RFC3339)
}

// Expired is how many entities the last run found due.
func (s *schedule) Expired() string { return grouped(s.expired) }

// Err is why the last run failed.
func (s *schedule) Err() string { return s.err }

// cronLog passes on what the scheduler's library has to say.
type cronLog struct{ log *slog.Logger }

func (c cronLog) Info(msg string, pairs ...any) { c.log.Debug(msg, pairs...) }

func (c cronLog) Error(err error, msg string, pairs ...any) {
	c.log.Error("a sweep ended in an internal error, please report it: "+msg, append(pairs, "error", err)...)
}
