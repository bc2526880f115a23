package page

import (
	"context"
	"embed"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// requestTimeout bounds what a viewer may take to send a request, and to take a page.
	requestTimeout = 20 * time.Second
	// perRange is how much longer the time between two reads gets for each range: a status costs
	// queries for each, and looking must not cost more than sweeping.
	perRange = 10 * time.Millisecond
	// historyEvery is how often the history is read at most, while somebody looks: a month of it
	// has a record for each hour and process.
	historyEvery = 5 * time.Minute
	// doctorEvery is how often a doctor examines at most, while somebody looks.
	doctorEvery = 5 * time.Minute
	// planEvery is how often a target is planned at most, while somebody looks: its history is read for that.
	planEvery = 5 * time.Minute
	// pricesEvery is how often it is asked at most where the store is.
	pricesEvery = time.Hour
	// explainEvery is for how long an explanation is taken for the present one.
	explainEvery = 15 * time.Second
	// explainWithin bounds one explanation.
	explainWithin = 8 * time.Second
	// mostAnswers bounds how many explanations are asked for, or kept, at the same time.
	mostAnswers = 64
	// month is how far back the history goes, and mostRecords how many of its records are read.
	month       = 30 * 24 * time.Hour
	mostRecords = 20_000
)

//go:embed static
var static embed.FS

// A Server shows the page to any number of viewers.
type Server struct {
	Config
	hosts     []string
	reader    *reader
	looks     *copies[look]
	histories *copies[inspect.TargetHistory]
	doctors   *copies[doctor.Report]
	answers   *copies[inspect.Explanation]
	plans     *copies[Plan]
	prices    *copies[forecast.Prices]
	hub       *hub
	ranges    map[string]*atomic.Int64 // how many each target had when it was last read
}

// A look is what was read of a target: its status and, if its breaker is open, the trip.
type look struct {
	Status inspect.TargetStatus
	Trip   *inspect.BreakerStatus
}

// Serve answers on a listener until ctx is done. Streams of events end first, so that none keeps
// the process. No goroutine outlives it.
func Serve(ctx context.Context, l net.Listener, cfg Config) error {
	ctx, cancel := context.WithCancel(ctx)
	s := newServer(ctx, cfg)
	defer func() {
		cancel()
		s.hub.close()
		s.reader.all.Wait()
	}()
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: requestTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.hub.close()
	stopping, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer done()
	err := server.Shutdown(stopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // a connected viewer must not turn a good end into an error
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// newServer returns a server whose reads end with ctx.
func newServer(ctx context.Context, cfg Config) *Server {
	r := &reader{ctx: ctx, now: cfg.Now, turns: make(chan struct{}, readsAtOnce)}
	n := len(cfg.Targets)
	s := &Server{Config: cfg, hosts: ownHosts(cfg.Hosts), reader: r, looks: newCopies[look](r, n),
		histories: newCopies[inspect.TargetHistory](r, n), doctors: newCopies[doctor.Report](r, 1),
		answers: newCopies[inspect.Explanation](r, mostAnswers), plans: newCopies[Plan](r, n),
		prices: newCopies[forecast.Prices](r, 1), ranges: map[string]*atomic.Int64{}}
	for _, t := range cfg.Targets {
		s.ranges[t.Name] = new(atomic.Int64)
	}
	s.hub = newHub(s.pulse)
	return s
}

// handler answers all requests. Links are relative, so it works behind any prefix that a proxy
// takes away.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	made := shelf{now: s.Now, ended: s.reader.ended.Load, pages: map[string]*sharedPage{}}
	mux.HandleFunc("GET /{$}", made.forViewers(s.showOverview))
	mux.HandleFunc("GET /index.json", s.showOverview)
	mux.HandleFunc("GET /targets/{name}", made.forViewers(s.showTarget))
	mux.HandleFunc("GET /history", s.showHistory)
	mux.HandleFunc("GET /history.json", s.showHistory)
	mux.HandleFunc("GET /doctor", s.showDoctor)
	mux.HandleFunc("GET /doctor.json", s.showDoctor)
	mux.HandleFunc("GET /plan", s.showPlan)
	mux.HandleFunc("GET /plan.json", s.showPlan)
	mux.HandleFunc("GET /explain", s.showExplain)
	mux.HandleFunc("GET /explain.json", s.showExplain)
	mux.HandleFunc("GET /events", s.serveEvents)
	mux.HandleFunc("GET /events.json", s.pollEvents)
	for _, name := range []string{"style.css", "script.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, static, "static/"+name)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, http.StatusNotFound, "there is no such page")
	})
	return s.guarded(mux)
}

// target returns what is configured of a target; ok is false if no target has this name.
func (s *Server) target(name string) (t Target, ok bool) {
	for _, t := range s.Targets {
		if t.Name == name {
			return t, true
		}
	}
	return t, false
}

// every returns how often a target may be read: less often if there are many ranges.
func (s *Server) every() time.Duration {
	var ranges int64
	for _, n := range s.ranges {
		ranges += n.Load()
	}
	return max(readEvery, time.Duration(ranges)*perRange)
}

// lookAt returns the copy of a target.
func (s *Server) lookAt(ctx context.Context, target string) copied[look] {
	return s.looks.get(ctx, target, s.every(), s.readTarget(target))
}

// readTarget returns what reads a target.
func (s *Server) readTarget(target string) func(context.Context, look) (look, error) {
	return func(ctx context.Context, last look) (next look, err error) {
		next.Status, err = s.Source.Status(ctx, target, last.Status.BehindCount)
		if err == nil && next.Status.Held == "" && next.Status.Err != nil {
			err = next.Status.Err // the store did not answer in time: what was read before is better
		}
		if err != nil {
			return last, err
		}
		if next.Status.Held == "breaker" {
			if trip, err := s.Source.Breaker(ctx, target); trip.Trip != "" {
				if !s.IDs {
					trip.Samples = []string{}
				}
				next.Trip = &trip
			} else if err != nil {
				next.Status.Unread = append(next.Status.Unread, "the trip of its breaker: "+err.Error())
			}
		}
		s.ranges[target].Store(int64(len(next.Status.Ranges)))
		return s.withoutIDs(next), nil
	}
}

// withoutIDs returns what was read without what may be an id, unless ids are shown.
func (s *Server) withoutIDs(l look) look {
	if !s.IDs {
		for i, text := range l.Status.Unread {
			l.Status.Unread[i] = draw.WithoutIDs(text)
		}
		if l.Status.Held != "paused" { // else it is what an operator wrote
			l.Status.Reason = draw.WithoutIDs(l.Status.Reason)
		}
	}
	return l
}

// states returns what this process knows of its targets, by name.
func (s *Server) states() map[string]sweep.State {
	byName := map[string]sweep.State{}
	if s.States != nil {
		for _, st := range s.States() {
			byName[st.Target] = st
		}
	}
	return byName
}

// history returns the copy of the history of a target.
func (s *Server) history(ctx context.Context, target string) copied[inspect.TargetHistory] {
	return s.histories.get(ctx, target, historyEvery, s.readHistory(target))
}

func (s *Server) readHistory(
	target string,
) func(context.Context, inspect.TargetHistory) (inspect.TargetHistory, error) {
	return func(ctx context.Context, _ inspect.TargetHistory) (inspect.TargetHistory, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		h, err := s.Source.History(ctx, target, s.Now().Add(-month), mostRecords)
		if !s.IDs {
			for _, r := range h.Records {
				if r.Run != nil {
					r.Run.Error = draw.WithoutIDs(r.Run.Error)
				}
			}
		}
		return h, err
	}
}

// pricesNow returns the copy of the prices.
func (s *Server) pricesNow(ctx context.Context) forecast.Prices {
	return s.prices.get(ctx, "", pricesEvery, func(ctx context.Context, _ forecast.Prices) (forecast.Prices, error) {
		return s.Source.Prices(ctx)
	}).Value
}

// wantsJSON reports whether a request asks for the document of a page.
func wantsJSON(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ".json") }
