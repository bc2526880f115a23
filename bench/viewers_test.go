package bench_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/forecast"
	looks "github.com/reaper-ttl/reaper/internal/page"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// viewers is how many people look at the page: as many as get events.
	viewers = 64
	// viewEvery is how often a browser reads the page again, if something on it changes all the time.
	viewEvery = 5 * time.Second
)

// viewing has many people look at the page of a daemon while it deletes.
func viewing(tb testing.TB, r *report) {
	r.section("A daemon whose page people look at", fmt.Sprintf("Embedded store, compaction on: a daemon deletes what is due, "+
		"with nobody and with %d viewers in the same process, each of which takes all events and reads the page of the target every %v. "+
		"What the viewers themselves need counts, too.", viewers, viewEvery))
	t := newTemplate(tb, false, generational(r.entities))
	contestantOf := func(what string, n int) *contestant[*embedded.DB] {
		return &contestant[*embedded.DB]{what: what, ready: func(db *embedded.DB) func(context.Context) (int, error) {
			return durably(db, func(ctx context.Context) (int, error) { return collectFor(ctx, db, n) })
		}}
	}
	list := []*contestant[*embedded.DB]{
		contestantOf(fmt.Sprintf("%d viewers", viewers), viewers), contestantOf("no viewer", 0)}
	race(tb, r.rounds, r.entities/2, false, list, func(*contestant[*embedded.DB]) (*embedded.DB, func()) { return t.open(tb, false) })
	results(r, list, "at least 0.98")
	r.ratio("the same, entities a second of CPU time", ratios(list[0].cheap, list[1].cheap), "reported")
}

// collectFor runs a daemon until it has swept once, while so many people look at its page.
func collectFor(ctx context.Context, db *embedded.DB, viewers int) (deleted int, err error) {
	cfg := configFor(db, target(), workers)
	cfg.Progress = new(sweep.Progress)
	cfg.Targets[0].Next = func(at time.Time) time.Time { return at.Add(time.Hour) }
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	d := sweep.NewDaemon(cfg, true)
	var all sync.WaitGroup
	all.Go(func() { d.Run(ctx) })
	all.Go(func() {
		_ = looks.Serve(ctx, l, looks.Config{Store: "embedded:bench", Mode: looks.Deletes, Source: benchSource{cfg},
			Targets: []looks.Target{{Name: cfg.Targets[0].Name, Kind: cfg.Targets[0].Kind, Layout: string(cfg.Targets[0].Layout)}},
			States:  d.States, Own: d.Own, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	})
	for range viewers {
		all.Go(func() { view(ctx, "http://"+l.Addr().String()+"/", cfg.Targets[0].Name) })
	}
	for d.States()[0].Swept.IsZero() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	st := d.States()[0]
	cancel()
	all.Wait()
	if st.Err != "" {
		return 0, fmt.Errorf("the sweep failed: %s", st.Err)
	}
	return int(cfg.Progress.Deleted.Load()), nil
}

// view is one person's browser: it takes events, and reads the page again and again.
func view(ctx context.Context, root, target string) {
	get := func(path string, each func(*bufio.Reader) error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, root+path, nil)
		if err != nil {
			return
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return
		}
		defer res.Body.Close()
		for in := bufio.NewReader(res.Body); err == nil; {
			err = each(in)
		}
	}
	var all sync.WaitGroup
	all.Go(func() {
		get("events?target="+target, func(in *bufio.Reader) error {
			_, err := in.ReadSlice('\n')
			return err
		})
	})
	for ctx.Err() == nil {
		get("targets/"+target, func(in *bufio.Reader) error {
			_, err := io.Copy(io.Discard, in)
			if err == nil {
				err = io.EOF
			}
			return err
		})
		select {
		case <-time.After(viewEvery):
		case <-ctx.Done():
		}
	}
	all.Wait()
}

// A benchSource reads what a page shows of one target.
type benchSource struct{ cfg sweep.Config }

// Status implements [page.Source].
func (s benchSource) Status(ctx context.Context, _ string, last inspect.BehindCount) (inspect.TargetStatus, error) {
	return inspect.StatusWith(ctx, s.cfg, s.cfg.Targets[0], inspect.Look{Last: last})
}

// Breaker implements [page.Source].
func (s benchSource) Breaker(ctx context.Context, _ string) (inspect.BreakerStatus, error) {
	return inspect.Breaker(ctx, s.cfg, s.cfg.Targets[0])
}

// History implements [page.Source].
func (s benchSource) History(ctx context.Context, _ string, since time.Time, limit int) (inspect.TargetHistory, error) {
	return inspect.ReadHistory(ctx, s.cfg, s.cfg.Targets[0], inspect.HistoryQuery{Since: since, Limit: limit})
}

// Prices implements [page.Source].
func (s benchSource) Prices(context.Context) (forecast.Prices, error) { return forecast.Prices{}, nil }

// Plan implements [page.Source].
func (s benchSource) Plan(context.Context, string, int64) (looks.Plan, error) {
	return looks.Plan{}, nil
}

// Doctor implements [page.Source].
func (s benchSource) Doctor(context.Context) (doctor.Report, error) { return doctor.Report{}, nil }

// Explain implements [page.Source].
func (s benchSource) Explain(context.Context, looks.Question) (inspect.Explanation, error) {
	return inspect.Explanation{}, nil
}
