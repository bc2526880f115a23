package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/measure"
)

// planFormat is the form of a plan in a file. It grows when an older program would misread a newer plan.
const planFormat = 1

// A planResult is what plan --json prints, and what --out keeps.
type planResult struct {
	Format  int             `json:"format"`
	Made    time.Time       `json:"made"`
	Store   string          `json:"store"` // empty if the plan is for none
	Prices  forecast.Prices `json:"prices"`
	Targets []planTarget    `json:"targets"`
	// Stale says why the plan in the file that was compared is not right any more; empty if it is.
	Stale []string `json:"stale"`
}

// newPlan returns a plan without targets.
func newPlan(now time.Time, store string, prices forecast.Prices) planResult {
	return planResult{Format: planFormat, Made: now.UTC(), Store: store, Prices: prices, Targets: []planTarget{},
		Stale: []string{}}
}

// A planTarget is the plan for one target.
type planTarget struct {
	Name     string            `json:"name"`
	Live     bool              `json:"live"`     // the workload was counted; else somebody named it
	Known    []string          `json:"known"`    // where the numbers of the workload come from
	Settings []string          `json:"settings"` // those that the forecast depends on, as path: value
	Workload forecast.Workload `json:"workload"`
	forecast.Forecast
	Past    *planPast `json:"past"` // nil if there is no history
	Stanza  string    `json:"stanza"`
	Changed *planNext `json:"with_stanza"` // nil if the stanza changes nothing
}

// A planNext is what the settings of the stanza change.
type planNext struct {
	Seconds *float64            `json:"drain_seconds"`
	Delay   forecast.Delay      `json:"delay"`
	Month   forecast.Bill       `json:"month"`
	Carries float64             `json:"carries_per_entity"`
	Shards  forecast.Shards     `json:"shards"`
	Changes config.StanzaChange `json:"-"`
}

// A planPast compares the history with a forecast for the same deletes in the same time.
type planPast struct {
	measure.Past
	Forecast forecast.Operations `json:"forecast"`
	Carries  float64             `json:"forecast_carries"`
}

func planCommand(a *app) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan [TARGET]",
		Short: "Forecast time to drain, delay, cost, shards and generations for a workload",
		Long: `Plan reckons what a target will do: when a backlog is gone, how long entities wait to be
deleted, what a month costs with each guard, with the built-in TTL policy and with a
naive query, whether shards and generations suffice, and whether the breaker would trip.
It ends with a stanza for the targets file. docs/plan.md has the formulas.

The workload comes from flags, or from a live target:

  --writes, --backlog   for the targets of the targets file or, if there is no such
                        file, for a target with the defaults. The store is not opened.
  neither of them       for live targets: plan counts what there is, and takes rate and
                        lives from history and budget. It says before what the COUNTs
                        cost, and compares the last month with a forecast of it.

Prices are never guessed. --location names one whose prices are proven; for all others
give --price, in dollars for 100,000 operations, and for a GiB and month of storage.
Without either, or if one is missing, plan shows operations and no money.

Plan writes nothing to the store. --out keeps the plan in a file, as JSON or as a picture
that holds the JSON, too. --compare says whether such a file is still right.`,
		Example: `  reaper plan --writes 20000/s --ttl 1h:80%,30d:20% --size 2KiB --location us-central1
  reaper plan sessions --backlog 500M --price reads=0.03,writes=0.09,deletes=0.01,storage=0.15
  reaper plan sessions --out sessions.svg
  reaper plan sessions --compare sessions.svg`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if len(a.targets) > 0 {
					return wrongUsage("%q: name a target once, here or with --target", args[0])
				}
				a.targets = args
			}
			if err := f.read(cmd, a.now()); err != nil {
				return err
			}
			if a.served != nil && (f.out != "" || f.compare != "") {
				return wrongUsage("--out and --compare: reaper serve has the store open, and would read and write the file " +
					"where it runs; use --json")
			}
			if err := f.readFiles(); err != nil {
				return err
			}
			if f.isLive() {
				return a.inSession(cmd, func(ctx context.Context, s *session) error { return planLive(ctx, s, &f) })
			}
			return planNumbers(a, cmd, &f)
		},
	}
	addSettings(cmd.Flags(), "schedule", "workers")
	a.addTarget(cmd)
	a.addJSON(cmd)
	f.add(cmd)
	return cmd
}

// planNumbers plans for a workload that somebody has named.
func planNumbers(a *app, cmd *cobra.Command, f *planFlags) error {
	c, _, err := a.load(cmd)
	if err != nil {
		return err
	}
	if f.mode != "" && !c.Store.IsZero() && f.mode != modeName(c.Store.Driver) {
		return wrongUsage("--mode %s: the store %s has another one", f.mode, c.Store)
	}
	targets, err := c.Select(a.targets)
	if err == nil && len(c.Targets) == 0 {
		targets, err = config.ParseTargets("", newPlanned(), driverOf(f.mode, c.Store.Driver))
	}
	if err != nil {
		return err
	}
	res := newPlan(a.now(), "", f.prices)
	if !c.Store.IsZero() {
		res.Store = c.Store.String()
	}
	mode := forecast.Mode(f.mode)
	if f.mode == "" && !c.Store.IsZero() {
		mode = forecast.Mode(modeName(c.Store.Driver))
	}
	for _, t := range targets {
		p := planner{flags: f, target: t, mode: mode, schedule: scheduleOf(c, t), prices: f.prices}
		one, err := p.plan(f.workload)
		if err != nil {
			return wrongUsage("target %s: %v", t.Name, err)
		}
		one.Known = []string{"as the flags say"}
		res.Targets = append(res.Targets, one)
	}
	return f.finish(a.console, res)
}

// readFiles reads the earlier plans in the files that the flags name, before anything is counted, which costs money.
// Anything else in the file of --out is left alone.
func (f *planFlags) readFiles() (err error) {
	if f.compare != "" {
		if f.compared, err = readPlan(f.compare); err != nil {
			return &exit{exitUsage, fmt.Errorf("--compare: %w", err)}
		}
	}
	if f.out == "" || f.out == f.compare {
		return nil
	}
	old, err := readPlan(f.out)
	if err == nil {
		f.replaced = &old
		return nil
	}
	if !errors.Is(err, errNoFile) {
		return &exit{exitUsage, fmt.Errorf("--out: %w; it is not overwritten", err)}
	}
	if _, err := os.Stat(filepath.Dir(f.out)); err != nil {
		return &exit{exitUsage, fmt.Errorf("--out: %w", err)}
	}
	return nil
}

// finish compares, keeps and prints a plan.
func (f *planFlags) finish(c *console, res planResult) error {
	if f.compare != "" {
		res.Stale = staleBecause(f.compared, res)
		reportStale(c.stderr, f.compare, res.Stale)
	}
	if f.out != "" {
		if f.replaced != nil {
			stale := staleBecause(*f.replaced, res)
			reportStale(c.stderr, f.out, stale)
			if f.compare == "" {
				res.Stale = stale
			}
		}
		if err := writePlan(f.out, res); err != nil {
			return err
		}
	}
	return c.print(res, func(w io.Writer) error {
		_, err := w.Write(c.screen.plan(res))
		return err
	})
}

// reportStale says on stderr what became of a plan in a file.
func reportStale(w io.Writer, file string, stale []string) {
	if len(stale) == 0 {
		fmt.Fprintf(w, "the plan in %s is still right\n", file)
		return
	}
	fmt.Fprintf(w, "the plan in %s is stale:\n", file)
	for _, why := range stale {
		fmt.Fprintf(w, "  %s\n", printable(why))
	}
}
