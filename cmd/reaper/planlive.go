package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/measure"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// planLive plans for live targets, by what the store shows of them.
func planLive(ctx context.Context, s *session, f *planFlags) error {
	res := newPlan(s.now(), s.Store.String(), s.livePrices(ctx, f))
	for _, t := range s.sweep.Targets {
		one, err := s.planLiveTarget(ctx, f, t, res.Prices)
		if err != nil {
			return fmt.Errorf("target %s: %w", t.Name, err)
		}
		res.Targets = append(res.Targets, one)
	}
	return f.finish(s.console, res)
}

// A described is a store whose administration says where its database is.
type described interface {
	Describe(ctx context.Context) (facts.Database, error)
}

// livePrices returns the prices of the database's own location, unless the flags name others. An edition that
// bills otherwise has none.
func (s *session) livePrices(ctx context.Context, f *planFlags) forecast.Prices {
	d, ok := s.db.Store.(described)
	if f.prices.Location != "" || !ok {
		return f.prices
	}
	db, err := d.Describe(ctx)
	if err != nil || db.Location == "" {
		return f.prices
	}
	own := forecast.Prices{Location: db.Location}
	if db.Edition != facts.Enterprise {
		own, _ = forecast.ProvenPrices(db.Location)
	}
	own.List = maps.Clone(own.List)
	if own.List == nil {
		own.List = map[forecast.PriceName]forecast.Price{}
	}
	maps.Copy(own.List, f.prices.List)
	return own
}

func (s *session) planLiveTarget(
	ctx context.Context, f *planFlags, t sweep.Target, prices forecast.Prices,
) (planTarget, error) {
	m, err := measure.Read(ctx, s.sweep, t)
	if err != nil {
		return planTarget{}, err
	}
	if err := s.announceCount(ctx, f, t.Name, m, prices); err != nil {
		return planTarget{}, err
	}
	counts, ok, err := m.Count(ctx)
	if err != nil {
		return planTarget{}, err
	}
	if !ok {
		return planTarget{}, fmt.Errorf("%w: the store cannot count; give --writes, --ttl and --backlog",
			store.ErrUnsupported)
	}
	counting := fmt.Sprintf("counted: %s entities; %s due from the cursors on, in %s", grouped(counts.Entities),
		grouped(counts.Due), counted(int64(counts.Ranges), "range", "ranges"))
	return s.planBy(f, t.Name, m, counts, counting, prices)
}

// planBy plans for a target by its records and counts of its entities.
func (s *session) planBy(
	f *planFlags, target string, m *measure.Target, counts measure.Counts, counting string, prices forecast.Prices,
) (planTarget, error) {
	w, known := m.Workload(counts)
	known = append([]string{counting}, known...)
	if len(f.workload.Lives) > 0 {
		w.Lives, known = f.workload.Lives, append(known, "lives: by --ttl instead")
	}
	w.Size = f.workload.Size
	c := s.target(target)
	p := planner{flags: f, target: c, mode: forecast.Mode(modeName(s.Store.Driver)), schedule: s.schedule(c),
		namespaces: m.Namespaces, job: 2*m.Past.Jobs > m.Past.Runs, prices: prices}
	one, err := p.plan(w)
	if err != nil {
		return one, err
	}
	one.Live, one.Known = true, known
	one.Past = p.past(m.Past, w)
	return one, nil
}

// past returns the forecast for what the history has. A job costs its ticks; of serve only the hours count in
// which it had something to do, as the others leave no record.
func (p planner) past(past measure.Past, w forecast.Workload) *planPast {
	if past.Runs == 0 {
		return nil
	}
	s := p.settings(p.target)
	seconds := past.Working
	if s.Job {
		seconds = float64(past.Runs) * s.Tick.Seconds()
	}
	deletes := float64(past.Counts.Deleted)
	if seconds <= 0 {
		seconds = s.Tick.Seconds()
	}
	w.Writes = deletes / seconds
	return &planPast{Past: past, Forecast: s.SpanOf(w, s.Ways()[0], seconds, deletes),
		Carries: s.GenerationsOf(w).Carries * deletes}
}

// announceCount says what the COUNTs cost before they are made. On a terminal it asks whether to go on.
func (s *session) announceCount(
	ctx context.Context, f *planFlags, target string, m *measure.Target, prices forecast.Prices,
) error {
	if s.Store.Driver == config.Embedded {
		return nil // nothing is billed
	}
	reads, ok := m.Reads()
	text := fmt.Sprintf("at most %s reads, and one more for each 1,000 entries, whose number is not known", grouped(reads))
	if ok {
		text = fmt.Sprintf("about %s reads, by the breaker's last count of all entities", grouped(reads))
	}
	each, known := prices.OfOne(forecast.Reads)
	cost := "; the money is not known without --location or --price"
	if known {
		sum := float64(reads) * each
		cost = fmt.Sprintf("; %s in %s", moneyText(&sum), cmp.Or(prices.Location, "by --price"))
	}
	if !s.onTerminal() {
		s.log.InfoContext(ctx, "counting entities", slog.String("target", target), slog.String("expected", text+cost))
		return nil
	}
	fmt.Fprintf(s.stderr, "counting %s: %s%s\n", target, text, cost)
	if f.yes {
		return nil
	}
	return s.confirm("count?")
}
