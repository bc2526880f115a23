package main

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// httpTimeout bounds every request, so that a hanging client blocks nothing.
	httpTimeout = 10 * time.Second
	// profileTimeout is what one of --pprof may take: 30 s are its tools' default.
	profileTimeout = 2 * time.Minute
	// readyTimeout bounds how long /readyz asks the store.
	readyTimeout = 5 * time.Second
	// readyReads bounds how many records /readyz reads at the same time: hundreds of targets must fit into
	// readyTimeout, whatever --workers is.
	readyReads = 32
	// readyEvery is how often /readyz asks the store at most, however often it is called: each read is billed.
	readyEvery = time.Second
	// lateTick is how late a tick may be before the daemon is not ready any more.
	lateTick = time.Minute
	// stuckAfter is how long a range may have due entities and no progress.
	stuckAfter = 15 * time.Minute
	// remindEvery is how often a daemon without --apply logs that it deletes nothing.
	remindEvery = time.Hour
)

func serveCommand(a *app) *cobra.Command {
	var later, profile bool
	var o pageOrder
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Sweep on a schedule, with metrics and health",
		Long: `Serve sweeps continuously until it is told to stop (SIGTERM, SIGINT, SIGHUP). At each
tick of the schedule every range at rest becomes ready; no range waits for another one.
The first tick is immediate. Several replicas share the ranges, and all targets share
the workers.

It serves /metrics for Prometheus, /healthz (the process is alive) and /readyz (the
store answers, the records are readable, the schedule is on time) on --listen. Without
--apply it deletes nothing, and logs that every hour.

It shows a status page on --ui, which is 127.0.0.1:9465 so that this machine alone reaches
it: the page has no login. It only shows. docs/page.md describes it.

While it has an embedded store open, it answers status, explain, list, history, pause,
resume, pace, breaker, doctor and plan through the socket reaper.sock in the store's
directory, for its own user only.`,
		Example: `  reaper serve --store datastore:my-project --apply
  reaper serve --store embedded:./data --apply --schedule '@every 10s' --listen 127.0.0.1:9464`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.inSession(cmd, func(ctx context.Context, s *session) error { return serve(ctx, s, later, profile, o) })
		},
	}
	addSettings(cmd.Flags(), "apply", "workers", "shutdown-grace", "schedule", "listen", "actor")
	o.addFlags(cmd.Flags())
	a.addTarget(cmd)
	cmd.Flags().BoolVar(&later, "no-first-run", false,
		"wait for the first tick of the schedule instead of sweeping immediately")
	cmd.Flags().BoolVar(&profile, "pprof", false, "also serve /debug/pprof/")
	return cmd
}

// A daemon sweeps on a schedule, and serves metrics, health and a front page.
type daemon struct {
	*session
	metrics   *metrics.Metrics
	collector *sweep.Daemon
	schedules map[string]string // by target, as they were written
	page      string            // where its page is; empty without one
	last      readiness
}

// A readiness is the last answer of /readyz.
type readiness struct {
	mu  sync.Mutex // held while the store is asked, so that requests that come meanwhile get the same answer
	at  time.Time
	err error
}

// newDaemon returns a daemon for the targets of a session. If first is true, the first
// tick is immediate.
func newDaemon(s *session, m *metrics.Metrics, first bool) *daemon {
	d := &daemon{session: s, metrics: m, schedules: map[string]string{}}
	s.sweep.Metrics = m
	for i, t := range s.targets {
		schedule := s.schedule(t)
		d.schedules[t.Name] = schedule.String()
		s.sweep.Targets[i].Next = schedule.Next
		s.sweep.Targets[i].Watchdog = &metrics.Watchdog{Patience: stuckAfter}
	}
	d.collector = sweep.NewDaemon(s.sweep, first)
	return d
}

func serve(ctx context.Context, s *session, later, profile bool, o pageOrder) error {
	signal.Ignore(syscall.SIGPIPE) // what reads the log may end, and the daemon works on
	var names []string
	for _, t := range s.targets {
		names = append(names, t.Name)
	}
	done, err := s.archiveTargets(ctx, true)
	if err != nil {
		return err
	}
	defer done()
	m := metrics.New(metrics.Options{Targets: names, Version: buildVersion(), Apply: s.Apply})
	d := newDaemon(s, m, !later)

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return wrongUsage("--listen: %v", err)
	}
	writing := 2 * httpTimeout
	if profile {
		writing = profileTimeout
	}
	var stopShowing func()
	if d.page, stopShowing, err = d.showPage(ctx, o); err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: d.handler(profile), ReadHeaderTimeout: httpTimeout, ReadTimeout: httpTimeout,
		WriteTimeout: writing, IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stopAnswering := d.answer(ctx)
	address := listener.Addr().String()
	s.log.InfoContext(ctx, "serving", "address", address, "apply", s.Apply, "targets", names, "page", d.page)

	d.work(ctx)
	stopShowing()
	stopAnswering()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err = server.Shutdown(stopping); errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // a connected client must not turn a good end into an error
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	s.log.InfoContext(ctx, "stopped in good order")
	return err
}

// work sweeps until ctx is done, and returns when all cursors are saved and all claims are
// released.
func (d *daemon) work(ctx context.Context) {
	if !d.Apply {
		defer every(remindEvery, func() { d.remind(ctx) })()
	}
	warned := map[string]bool{}
	var all sync.WaitGroup
	// An adoption may be finished at any time.
	all.Go(func() { atOnceAndEvery(ctx, supersededEvery, func() { d.warnSuperseded(ctx, warned) }) })
	all.Go(func() { atOnceAndEvery(ctx, adoptionsEvery, func() { d.readAdoptions(ctx) }) })
	d.collector.Run(ctx)
	all.Wait()
}

// clock returns the time that schedules use: the wall clock's, without a monotonic reading.
func (d *daemon) clock() time.Time { return d.now().Round(0) }

// remind logs that nothing is deleted.
func (d *daemon) remind(ctx context.Context) {
	for _, st := range d.collector.States() {
		d.log.WarnContext(ctx, "nothing is deleted without --apply", "target", st.Target, "would_delete", st.Expired)
	}
}

// handler serves metrics, health, readiness and the front page.
func (d *daemon) handler(profile bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.metrics.Handler(httpTimeout))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := d.lastReady(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = front.Execute(w, map[string]any{"Store": d.Store.String(), "Apply": d.Apply, "Version": buildVersion(),
			"Rows": d.rows(), "Pprof": profile, "Page": d.page})
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

// lastReady returns what ready returned last. If that was longer than readyEvery ago, it calls ready again.
func (d *daemon) lastReady(ctx context.Context) error {
	d.last.mu.Lock()
	defer d.last.mu.Unlock()
	if d.now().Sub(d.last.at) >= readyEvery {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout) // others wait for it, too
		defer cancel()
		d.last.err = d.ready(ctx)
		d.last.at = d.now()
	}
	return d.last.err
}

// ready returns why the daemon is not ready; nil if it is.
func (d *daemon) ready(ctx context.Context) error {
	reading := *d.session
	reading.Workers = readyReads
	_, err := eachTarget(&reading, func(t sweep.Target) (r generation.Record, err error) {
		if r, _, err = generation.Load(ctx, d.db.Store, t.Name); errors.Is(err, generation.ErrMissing) {
			err = nil
		}
		return r, err
	})
	all := []error{err}
	for _, st := range d.collector.States() {
		if d.clock().Sub(st.Next) > lateTick {
			all = append(all, fmt.Errorf("target %s: missed its tick of %s%s",
				st.Target, timeText(st.Next), afterColon(st.Err)))
		}
	}
	return errors.Join(all...)
}

// afterColon returns a text to add to a sentence: after a colon, or nothing if it is empty.
func afterColon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// A row is the line of one target on the front page.
type row struct {
	Target, Schedule, SweptTo, OldestDue, Behind, Rate string
	Working                                            int
	Gone, Held, Tick, Next, Err                        string
}

// rows describes the targets for the front page.
func (d *daemon) rows() (list []row) {
	for _, st := range d.collector.States() {
		one := row{Target: st.Target, Schedule: d.schedules[st.Target], SweptTo: timeText(st.SweptTo),
			OldestDue: "nothing is due", Rate: fmt.Sprintf("%.4g/s", st.Rate), Working: st.Working,
			Gone: grouped(st.Deleted), Held: string(st.Held),
			Tick: timeText(st.Tick), Next: timeText(st.Next), Err: st.Err}
		if !st.OldestDue.IsZero() {
			one.OldestDue, one.Behind = timeText(st.OldestDue), inspect.Age(d.clock().Sub(st.OldestDue))
		}
		if math.IsInf(st.Rate, 1) {
			one.Rate = "unlimited"
		}
		if !d.Apply {
			one.Gone = grouped(st.Expired)
		}
		list = append(list, one)
	}
	return list
}

// timeText shows an instant on the front page.
func timeText(t time.Time) string {
	if t.IsZero() {
		return "not yet"
	}
	return t.UTC().Format(time.RFC3339)
}

var front = template.Must(template.New("front").Parse(`<!DOCTYPE html>
<html lang="en"><title>Reaper</title><h1>Reaper {{.Version}}</h1>
<p>{{.Store}}, {{if .Apply}}deletes for real{{else}}deletes nothing (no --apply){{end}}</p>
<table><tr><th>target<th>schedule (UTC)<th>swept up to<th>oldest due<th>behind<th>rate<th>working ranges
<th>{{if .Apply}}deleted{{else}}would be deleted{{end}}<th>held<th>last tick<th>next tick<th>error</tr>
{{range .Rows}}<tr><td>{{.Target}}<td>{{.Schedule}}<td>{{.SweptTo}}<td>{{.OldestDue}}<td>{{.Behind}}<td>{{.Rate}}
<td>{{.Working}}
<td>{{.Gone}}<td>{{.Held}}<td>{{.Tick}}<td>{{.Next}}<td>{{.Err}}</tr>
{{end}}</table>
<p><a href="/metrics">metrics</a> <a href="/healthz">health</a> <a href="/readyz">readiness</a>
{{if .Pprof}}<a href="/debug/pprof/">profiles</a>{{end}}</p>
{{if .Page}}<p>The status page, with ranges, charts and history: <a href="{{.Page}}">{{.Page}}</a></p>{{end}}</html>
`))
