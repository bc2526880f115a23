package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/measure"
	"github.com/reaper-ttl/reaper/internal/page"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// pageQueries bounds how many queries one look at a target has under way: looking must not take
// from what sweeps need.
const pageQueries = 8

// A pageOrder has the flags of commands that show the page.
type pageOrder struct {
	ids   bool
	hosts []string
}

func (o *pageOrder) addFlags(flags *pflag.FlagSet) {
	addSettings(flags, "ui")
	flags.BoolVar(&o.ids, "ui-ids", false, "the page shows ids of entities, and explains one")
	flags.StringArrayVar(&o.hosts, "ui-host", nil,
		"a name under which the page is reached, such as that of a proxy; may be repeated")
}

func pageCommand(a *app) *cobra.Command {
	var o pageOrder
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Show the status page without collecting",
		Long: `Page shows what reaper serve shows on its page, and does not sweep: for targets that are
swept by jobs. It reads the records, the index and the history, only while somebody looks,
and writes nothing.

The page has no login. It is on 127.0.0.1:9465, so that this machine alone reaches it; --ui
changes that. It shows no ids of entities without --ui-ids. An embedded store is opened for
each look, so that sweeps can have it in between.`,
		Example: `  reaper page --store datastore:my-project
  reaper page --store embedded:./data --ui 127.0.0.1:8080 --ui-ids`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return showPage(a, cmd, o) },
	}
	addSettings(cmd.Flags(), "schedule")
	o.addFlags(cmd.Flags())
	a.addTarget(cmd)
	return cmd
}

func showPage(a *app, cmd *cobra.Command, o pageOrder) (err error) {
	ctx := cmd.Context()
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	open := func() (*session, error) {
		s, err := a.begin(cmd)
		if err != nil {
			return nil, err
		}
		return s.forLooking(a.now), nil
	}
	lent := &lender{first: s.forLooking(a.now), open: open, keep: s.Store.Driver != config.Embedded}
	if !lent.keep {
		s.db.closeInto(&err)
		lent.first = nil
	}
	if err != nil {
		return err
	}
	defer lent.closeInto(&err)
	if s.UI == "" {
		return wrongUsage("--ui: off leaves nothing to show")
	}
	l, err := s.listenUI(ctx, o)
	if err != nil {
		return err
	}
	s.log.InfoContext(ctx, "showing the page", "page", pageURL(l))
	return page.Serve(ctx, l, s.pageConfig(o, pageSource{lent}))
}

// listenUI listens for viewers, and warns of those that others may be.
func (s *session) listenUI(ctx context.Context, o pageOrder) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.UI)
	if err != nil {
		return nil, wrongUsage("--ui: %v", err)
	}
	if addr, ok := l.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		readable := "targets, kinds, namespaces, backlog, processes, the history with names and reasons, " +
			"findings of the doctor"
		if o.ids {
			readable += ", and ids of entities with their expiry"
		}
		s.log.WarnContext(ctx, "the page has no login: others on the network can read it", "page", addr.String(),
			"readable", readable)
	}
	return l, nil
}

// pageURL returns where a page is.
func pageURL(l net.Listener) string { return "http://" + l.Addr().String() + "/" }

// pageConfig returns what a page shows.
func (s *session) pageConfig(o pageOrder, source page.Source) page.Config {
	c := page.Config{Store: s.Store.String(), Version: buildVersion(), Mode: page.Shows, IDs: o.ids, Hosts: o.hosts,
		Source: source, Now: s.sweep.Now, Log: s.log}
	if host, _, err := net.SplitHostPort(s.UI); err == nil && host != "" {
		c.Hosts = append([]string{host}, c.Hosts...)
	}
	for _, t := range s.targets {
		c.Targets = append(c.Targets, page.Target{Name: t.Name, Kind: t.Kind, Layout: string(t.Layout)})
	}
	return c
}

// showPage serves the page of a daemon until ctx is done; stop waits until it has ended. A daemon
// collects even if the usual address is taken, as by another one on the same machine.
func (d *daemon) showPage(ctx context.Context, o pageOrder) (url string, stop func(), err error) {
	if d.UI == "" {
		return "", func() {}, nil
	}
	l, err := d.listenUI(ctx, o)
	if err != nil && d.UI == config.DefaultUI {
		d.log.WarnContext(ctx, "no page: --ui sets another address, or off", "error", err)
		return "", func() {}, nil
	}
	if err != nil {
		return "", nil, err
	}
	looks := *d.session
	c := looks.pageConfig(o, pageSource{&lender{first: looks.forLooking(d.now), keep: true}})
	c.Mode, c.States, c.Own = page.DryRuns, d.collector.States, d.collector.Own
	if d.Apply {
		c.Mode = page.Deletes
	}
	for i, t := range c.Targets {
		c.Targets[i].Schedule = d.schedules[t.Name]
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := page.Serve(ctx, l, c); err != nil {
			d.log.WarnContext(ctx, "the page has ended", "error", err)
		}
	}()
	return pageURL(l), func() { cancel(); <-ended }, nil
}

// forLooking returns a session that reads what the same targets are like, and has no part in what
// this process collects.
func (s session) forLooking(now func() time.Time) *session {
	s.sweep = sweepConfig(&s, now)
	s.sweep.Workers = min(pageQueries, s.Workers)
	s.fillSchedules()
	return &s
}

// A lender lends a session whose store is open. If it does not keep the store, it opens it for the
// first borrower, and closes it after the last one: other processes may wait for it.
type lender struct {
	open func() (*session, error)
	keep bool

	mu        sync.Mutex
	first     *session // nil while the store is not open
	borrowers int
}

func (l *lender) lend() (s *session, done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		s, err := l.open()
		if err != nil {
			return nil, nil, err
		}
		l.first = s
	}
	l.borrowers++
	return l.first, l.takeBack, nil
}

func (l *lender) takeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.borrowers--; l.borrowers > 0 || l.keep {
		return
	}
	var err error
	if l.first.db.closeInto(&err); err != nil {
		l.first.log.Warn("cannot close the store", "error", err)
	}
	l.first = nil
}

// closeInto closes the store, if it is open, at the end of a command.
func (l *lender) closeInto(err *error) {
	if l.first != nil {
		l.first.db.closeInto(err)
	}
}

// A pageSource reads what the page shows.
type pageSource struct{ *lender }

// on calls do with the target of a name while the store is open.
func (p pageSource) on(name string, do func(*session, config.Target, sweep.Target) error) error {
	s, done, err := p.lend()
	if err != nil {
		return err
	}
	defer done()
	for i, t := range s.targets {
		if t.Name == name {
			return do(s, t, s.sweep.Targets[i])
		}
	}
	return errors.New("the target is no longer in the targets file: start reaper again")
}

// Status implements [page.Source].
func (p pageSource) Status(
	ctx context.Context, target string, last inspect.BehindCount,
) (st inspect.TargetStatus, err error) {
	err = p.on(target, func(s *session, _ config.Target, t sweep.Target) (err error) {
		st, err = s.statusOf(ctx, t, inspect.Look{Last: last})
		return err
	})
	return st, err
}

// Breaker implements [page.Source].
func (p pageSource) Breaker(ctx context.Context, target string) (b inspect.BreakerStatus, err error) {
	err = p.on(target, func(s *session, _ config.Target, t sweep.Target) (err error) {
		b, err = inspect.Breaker(ctx, s.sweep, t)
		return err
	})
	return b, err
}

// History implements [page.Source].
func (p pageSource) History(
	ctx context.Context, target string, since time.Time, limit int,
) (h inspect.TargetHistory, err error) {
	err = p.on(target, func(s *session, _ config.Target, t sweep.Target) (err error) {
		h, err = inspect.ReadHistory(ctx, s.sweep, t, inspect.HistoryQuery{Since: since, Limit: limit})
		return err
	})
	return h, err
}

// Doctor implements [page.Source].
func (p pageSource) Doctor(ctx context.Context) (r doctor.Report, err error) {
	s, done, err := p.lend()
	if err != nil {
		return r, err
	}
	defer done()
	quiet := *s
	quiet.log = slog.New(slog.DiscardHandler) // what it finds stands in the report
	quiet.sweep.Log = quiet.log
	return doctor.Run(ctx, doctorSetup(&quiet, nil)), ctx.Err()
}

// Prices implements [page.Source].
func (p pageSource) Prices(ctx context.Context) (prices forecast.Prices, err error) {
	s, done, err := p.lend()
	if err != nil {
		return prices, err
	}
	defer done()
	return s.livePrices(ctx, &planFlags{}), nil
}

// Plan implements [page.Source].
func (p pageSource) Plan(ctx context.Context, target string, due int64) (plan page.Plan, err error) {
	err = p.on(target, func(s *session, _ config.Target, t sweep.Target) error {
		m, err := measure.Read(ctx, s.sweep, t)
		if err != nil {
			return err
		}
		f := &planFlags{}
		prices := s.livePrices(ctx, f)
		one, err := s.planBy(f, target, m, measure.Counts{Entities: max(m.Known, due), Due: due},
			fmt.Sprintf("not counted: %s entities by the breaker's last count, %s seen to be due", grouped(m.Known),
				grouped(due)), prices)
		if err != nil {
			return err
		}
		res := newPlan(s.now(), s.Store.String(), prices)
		res.Targets = append(res.Targets, one)
		plan = page.Plan{Text: string(screen{width: pagePlanWidth}.plan(res)), Document: res}
		return nil
	})
	return plan, err
}

// pagePlanWidth is how wide a plan is on the page.
const pagePlanWidth = 100

// Explain implements [page.Source].
func (p pageSource) Explain(ctx context.Context, q page.Question) (x inspect.Explanation, err error) {
	if q.ID.Name != "" {
		if err := checkName(q.ID.Name); err != nil {
			return x, errors.Join(inspect.ErrUnknownEntity, err)
		}
	}
	err = p.on(q.Target, func(s *session, c config.Target, t sweep.Target) (err error) {
		if q.Namespace != "" && s.Store.Driver != config.Datastore {
			return errors.Join(inspect.ErrUnknownEntity, errors.New("namespaces exist in datastore stores only"))
		}
		if x, err = inspect.Explain(ctx, s.sweep, t, q.Namespace, store.Entity{Name: q.ID.Name, Number: q.ID.Number,
			Parent: q.ID.Parent}); err != nil {
			return err
		}
		return addArchived(ctx, s, c, &x)
	})
	return x, err
}
