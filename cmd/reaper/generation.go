package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

func generationCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generation",
		Short: "List a target's generations, or open the next one",
		Long: `A generation is a range of keys that is filled for a while, sealed, emptied and retired.
No sweep reads it after that. Sweeps do all of this automatically. List shows their
progress. Advance opens the next generation early, optionally with another number of
shards.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return wrongUsage("generation: want the subcommand list or advance (see reaper generation --help)")
		},
	}
	cmd.AddCommand(generationListCommand(a), generationAdvanceCommand(a))
	return cmd
}

// A generationsResult is what generation list --json prints.
type generationsResult struct {
	Store   string              `json:"store"`
	Now     time.Time           `json:"now"`
	Targets []targetGenerations `json:"targets"`
}

type targetGenerations struct {
	Name        string                   `json:"name"`
	Layout      layout.Layout            `json:"layout"`
	Generations []inspect.GenerationLife `json:"generations"`
}

func generationListCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show each live generation, what is left in it, and when it retires",
		Long: `List shows the live generations of each target and how many index entries are left in
each. It also forecasts when the survivors start to be carried to the newest generation,
and when the generation retires at the latest. It writes nothing and costs a COUNT for
each generation.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.inSession(cmd, listGenerations) },
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	return cmd
}

func listGenerations(ctx context.Context, s *session) (err error) {
	res := generationsResult{Store: s.Store.String(), Now: s.now().UTC()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (targetGenerations, error) {
		lives, err := inspect.Lives(ctx, s.sweep, t)
		return targetGenerations{t.Name, t.Layout, lives}, err
	})
	return printTargets(s, res, res.Targets, err, printGenerations)
}

func printGenerations(w io.Writer, t targetGenerations) error {
	fmt.Fprintf(w, "%s (layout %s)\n", t.Name, t.Layout)
	switch {
	case len(t.Generations) == 0 && !t.Layout.Form().HasGenerations():
		fmt.Fprintln(w, "  has timestamps, not generations")
		return nil
	case len(t.Generations) == 0:
		fmt.Fprintln(w, "  nobody has loaded or swept it yet")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  generation\tstate\tshards\topened\tsealed\tleft\tnext due\tdrains from\tretires by")
	for _, g := range t.Generations {
		name, left := fmt.Sprintf("%08d", g.Number), "-"
		if g.Number == expirykey.Nursery {
			name += " (nursery)"
		}
		if g.Left != nil {
			left = grouped(*g.Left)
		}
		fmt.Fprintf(table, "  %s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", name, g.State, g.Shards, instant(&g.Opened),
			instant(g.Sealed), left, instant(g.NextDue), instant(g.Drains), instant(g.Retires))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, g := range t.Generations {
		if g.Refused {
			fmt.Fprintf(w, "  %08d cannot retire: the store refuses to delete or carry entities in it\n", g.Number)
		}
	}
	return nil
}

func instant(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// An advanceResult is what generation advance --json prints.
type advanceResult struct {
	Store   string            `json:"store"`
	Targets []advancedOutcome `json:"targets"`
}

type advancedOutcome struct {
	Name       string    `json:"name"`
	Generation int       `json:"generation"` // the one that was opened
	Shards     int       `json:"shards"`
	Opened     time.Time `json:"opened"`
	RampOver   time.Time `json:"ramp_over"` // when all writers with a fresh copy stamp it
}

func generationAdvanceCommand(a *app) *cobra.Command {
	var shards int
	var force bool
	cmd := &cobra.Command{
		Use:   "advance",
		Short: "Open the next generation now",
		Long: `Advance opens the next generation of each target. Writers move to it during the
configured ramp. With --shards the new generation gets that number of shards instead of
the one in the targets file: this is how to reshard a live target. The generation after
it uses the file's number again.

Advance refuses while writers are still moving to the newest generation: two moves at
once bring load to new key ranges faster than they can be split. --force opens one
anyway.`,
		Example: `  reaper generation advance --target sessions
  reaper generation advance --target sessions --shards 64`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("shards") && (shards < 1 || shards > expirykey.MaxShards) {
				return wrongUsage("--shards: %d is not between 1 and %d", shards, expirykey.MaxShards)
			}
			return a.inSession(cmd, func(ctx context.Context, s *session) error { return advance(ctx, s, shards, force) })
		},
	}
	addSettings(cmd.Flags(), "actor")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().IntVar(&shards, "shards", 0, "number of shards of the new generation (default as in the targets file)")
	cmd.Flags().BoolVar(&force, "force", false, "advance even while writers are still moving to the newest generation")
	return cmd
}

func advance(ctx context.Context, s *session, shards int, force bool) (err error) {
	for _, t := range s.targets { // before any of them is touched
		if !t.Layout.HasSuccession() {
			return wrongUsage("target %s has the layout %s: %v", t.Name, t.Layout, control.ErrNoSuccession)
		}
	}
	res := advanceResult{Store: s.Store.String()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (advancedOutcome, error) {
		rec, err := control.Advance(ctx, s.sweep, t, shards, force)
		switch {
		case errors.Is(err, generation.ErrRamping):
			err = fmt.Errorf("%w: two moves at once bring load to new key ranges faster than they can be split", err)
			return advancedOutcome{}, store.WithHint(err, "wait until then, or use --force with --target "+t.Name)
		case err != nil:
			return advancedOutcome{}, err
		}
		n := len(rec.Generations)
		g := rec.Generations[n-1]
		if force && n > 2 && g.Opened.Before(rec.Generations[n-2].Opened.Add(rec.Generations[n-2].Ramp)) {
			s.log.Warn("forced advance: writers move to two generations at once; load on new key ranges grows faster than "+
				"500/50/5 allows", "target", t.Name)
		}
		if g.Shards != t.Shards {
			s.log.Warn("the next generation will use the targets file's number of shards again", "target", t.Name,
				"shards", g.Shards, "file_shards", t.Shards)
		}
		return advancedOutcome{t.Name, g.Number, g.Shards, g.Opened, g.Opened.Add(g.Ramp)}, nil
	})
	if len(res.Targets) == 0 && errors.Is(err, generation.ErrRamping) {
		return &exit{exitUsage, err} // nothing was touched
	}
	return printTargets(s, res, res.Targets, err, func(w io.Writer, t advancedOutcome) error {
		fmt.Fprintf(w, "%s: generation %08d is open, with %d shards; writers move there until %s\n",
			t.Name, t.Generation, t.Shards, instant(&t.RampOver))
		return nil
	})
}
