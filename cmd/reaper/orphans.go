package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/orphans"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// An orphansResult is what orphans prints with --json.
type orphansResult struct {
	Store string `json:"store"`
	orphans.Result
	Cost *orphansCost `json:"cost"` // nil but after a complete dry run
}

// An orphansCost is what a run with --apply costs that finds the same.
type orphansCost struct {
	Reads   int64    `json:"reads"`
	Deletes int64    `json:"deletes"`
	Dollars float64  `json:"dollars"` // in us-central1
	Seconds *float64 `json:"seconds"` // of the deletes, at the rate; nil if that is unlimited
}

// orphansFlags are the flags of orphans.
type orphansFlags struct {
	max, rate  string
	from       orphans.Place
	everywhere bool
}

func orphansCommand(a *app) *cobra.Command {
	var f orphansFlags
	cmd := &cobra.Command{
		Use:   "orphans TARGET",
		Short: "Find what lies below entities that do not exist, and delete it",
		Long: `Orphans are documents in subcollections below a document of the target that does not
exist (Datastore mode: entities below one of the target's kind that does not exist), at any
depth. Deletes leave them behind: those of Firestore, of its built-in TTL policy, and those
of a tool that took the document first and died.

Orphans reads the names of the target, and of what lies below, in the order of keys. In
native mode each name costs a read, and what lies below a document that exists is skipped;
in Datastore mode 500 names cost one. Without --apply it writes nothing, and says how many
orphans there are, of which kinds, how old, and what that costs.

With --apply it deletes them, what lies below first, in commits that check that the entity
above is missing: one that comes into being keeps all that is left below it. Entities with
an expiry of their own, by any target of the targets file, stay with all that lies below
them, and so do entities of the target. A run stops after --max deletes. It may be killed
at any time: the next one finds what is left.

A collection group may have documents anywhere, so that orphans reads the whole database:
--everywhere allows that. In Datastore mode a kind whose entities have ancestors of other
kinds has its whole namespaces read, and --everywhere does so with any kind.`,
		Example: `  reaper orphans users
  reaper orphans users --apply
  reaper orphans users --apply --max unlimited --rate 1000
  reaper orphans users --from users/u-1842 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runOrphans(a, cmd, args, f) },
	}
	addApply(cmd.Flags(), "delete")
	addSettings(cmd.Flags(), "workers", "shutdown-grace", "actor")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().StringVar(&f.max, "max", strconv.Itoa(orphans.DefaultMax), "stop after so many deletes, or unlimited")
	cmd.Flags().StringVar(&f.rate, "rate", "", "deletes a second of this process, or unlimited (default:\n"+
		"adopt.rate of the targets file)")
	cmd.Flags().StringVar(&f.from.Key, "from", "", "go on behind this key, where an earlier run stopped")
	cmd.Flags().StringVar(&f.from.Namespace, "from-namespace", "", "the namespace of --from; those before it are skipped")
	cmd.Flags().BoolVar(&f.everywhere, "everywhere", false, "read whole namespaces, or the whole database")
	return cmd
}

// config returns what the flags ask for.
func (f orphansFlags) config(s *session) (cfg orphans.Config, err error) {
	t := s.targets[0]
	rate := t.Adopt.Rate
	if f.rate != "" {
		if rate, err = config.Rate(f.rate); err != nil {
			return cfg, wrongUsage("--rate: %v", err)
		}
	}
	cfg = orphans.Config{From: f.from, Everywhere: f.everywhere, Progress: new(orphans.Progress),
		Rate: throttle.Limits{Start: min(coldRate, rate.Most), Max: rate.Most, Unlimited: rate.Unlimited}}
	if cfg.Unlimited = f.max == "unlimited"; !cfg.Unlimited {
		if cfg.Max, err = strconv.ParseInt(f.max, 10, 64); err != nil || cfg.Max < 1 {
			return cfg, wrongUsage("--max: %s is not valid: want a number above 0, or unlimited", shortened(f.max))
		}
	}
	for _, one := range s.Targets {
		cfg.Owners = append(cfg.Owners, one.StoreTarget())
	}
	return cfg, nil
}

func runOrphans(a *app, cmd *cobra.Command, args []string, f orphansFlags) (err error) {
	if len(args) == 1 {
		a.targets = append(a.targets, args[0])
	}
	s, err := a.loadTargets(cmd)
	if err != nil {
		return err
	}
	if len(s.targets) != 1 {
		return wrongUsage("orphans works on one target: name it")
	}
	if s.Store.Driver == config.Embedded {
		return wrongUsage("target %s: an embedded store has no descendants", s.targets[0].Name)
	}
	cfg, err := f.config(s)
	if err != nil {
		return err
	}
	if err := a.connect(cmd.Context(), s, false); err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	archived, err := s.archiveTargets(cmd.Context(), false)
	if err != nil {
		return err
	}
	cfg.Sweep, cfg.Target = s.sweep, s.sweep.Targets[0]
	shown := showOrphans(cmd.Context(), s, cfg)
	res, err := orphans.Run(cmd.Context(), cfg)
	shown()
	archived()
	return reportOrphans(s, cfg, res, err)
}

// reportOrphans prints what became of a run, and returns its error as that of the command.
func reportOrphans(s *session, cfg orphans.Config, res orphans.Result, err error) error {
	if unfit := unfitSearch(cfg, res, err); unfit != nil {
		return unfit
	}
	if errors.Is(err, orphans.ErrMax) {
		err = store.WithHint(err, "look at what they are, and why there are so many; then go on with --max N, or "+
			"--max unlimited")
	}
	out := orphansResult{s.Store.String(), res, costOfOrphans(cfg, res)}
	err = errors.Join(s.print(out, func(w io.Writer) error {
		printOrphans(w, out)
		return nil
	}), err)
	if err == nil && res.Tripped {
		return &exit{exitBreaker, errTripped}
	}
	return err
}

// unfitSearch returns an error of usage, with advice, if the order cannot be carried out; else nil. That may show late:
// what was deleted by then must be told, and is no error of usage.
func unfitSearch(cfg orphans.Config, res orphans.Result, err error) error {
	switch {
	case res.Deleted > 0:
		return nil
	case errors.Is(err, orphans.ErrScattered):
		return store.WithHint(&exit{exitUsage, err}, "--everywhere allows that, at a read for each document")
	case errors.Is(err, orphans.ErrUnsupported), errors.Is(err, orphans.ErrNamespace),
		errors.Is(err, orphans.ErrMidst):
		return &exit{exitUsage, err}
	case errors.Is(err, store.ErrInvalid) && cfg.From.Key != "" && res.Read == 0:
		return &exit{exitUsage, err}
	}
	return nil
}

// costOfOrphans returns what it costs to delete what a dry run found; nil for any other run.
func costOfOrphans(cfg orphans.Config, res orphans.Result) *orphansCost {
	if res.Apply || !res.Complete {
		return nil
	}
	const mostBelow = store.MaxPage - 1
	// It is looked for again, and each transaction reads the missing entity.
	c := &orphansCost{Reads: res.Operations.Reads, Deletes: res.Orphans}
	if res.Orphans > 0 {
		c.Reads += res.Missing + res.Orphans/mostBelow
	}
	c.Dollars = float64(c.Reads)*dollarsPer(forecast.Reads) + float64(c.Deletes)*dollarsPer(forecast.Deletes)
	if !cfg.Rate.Unlimited {
		seconds := float64(c.Deletes) / cfg.Rate.Max
		c.Seconds = &seconds
	}
	return c
}

// showOrphans shows how far a run has come, as watchSweep does for a sweep.
func showOrphans(ctx context.Context, s *session, cfg orphans.Config) (done func()) {
	p, target := cfg.Progress, cfg.Target.Name
	if s.onTerminal() {
		return drawProgress(s.stderr, func() string { return "looking for orphans of " + target }, "parts", &p.PartsDone,
			&p.Parts)
	}
	return every(logEvery, func() {
		s.log.InfoContext(ctx, "looking for orphans", slog.String("target", target), slog.Bool("apply", cfg.Sweep.Apply),
			slog.Int64("parts", p.Parts.Load()), slog.Int64("parts_done", p.PartsDone.Load()),
			slog.Int64("read", p.Read.Load()), slog.Int64("orphans", p.Orphans.Load()),
			slog.Int64("deleted", p.Deleted.Load()))
	})
}
