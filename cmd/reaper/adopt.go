package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// An adoptResult is what adopt and its subcommands print with --json.
type adoptResult struct {
	Store string `json:"store"`
	adopt.Result
	Cost *adoptCost `json:"cost"` // nil but after a complete dry run
}

// An adoptCost is what writing the keys that a dry run found missing will cost.
type adoptCost struct {
	Reads   int64    `json:"reads"`
	Writes  int64    `json:"writes"`
	Seconds *float64 `json:"seconds"` // at the rate; nil if that is unlimited
}

func adoptCommand(a *app) *cobra.Command {
	var f adoptFlags
	cmd := &cobra.Command{
		Use:   "adopt TARGET",
		Short: "Give expiry keys to entities that were written without one",
		Long: `Adopt reads all entities of a target, and gives each that has no expiry key the one that
a rule says: a fixed time after a property (a timestamp, an expiry key, or a text in
RFC 3339), or after it was created. The rule stands in flags, or in the targets file under
adopt; without either, the rule by which the target is being adopted goes on.

Without --apply it writes nothing, and says how many entities would get a key, when they
would be due, and what that costs. What has expired already becomes due spread over
--spread, so that an adoption is no mass expiry.

A key is written only while the entity still is as it was read. No other property changes,
no key is overwritten, and no deleted entity comes back. Until the adoption is finished,
sweeps of the target keep what is due by a key that disagrees with the rule. Several
processes may adopt at once, and each may be killed at any time: the next run goes on. A
run after the last one was done begins a new round, which finds what old writers have
created meanwhile. Each round costs a read for each entity.

With --watch it goes on until it is stopped. If the property that the rule reads is indexed
and rises with the time, as a time of creation does, it follows that index, and stamps what
old writers create within seconds; what they replace without changing that property, only
a round finds. Otherwise, or if --every is given, it begins a round so often, and says
first what that costs.

reaper adopt undo is the way back.`,
		Example: `  reaper adopt sessions --from created --plus 30d
  reaper adopt sessions --apply --percent 5
  reaper adopt verify sessions
  reaper adopt finish sessions --apply`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.watch && cmd.Flags().Changed("every") {
				return wrongUsage("--every needs --watch")
			}
			if f.watch {
				return watchAdoption(a, cmd, args, f)
			}
			return runAdopt(a, cmd, args, f, adopt.Run)
		},
	}
	addAdopt(a, cmd, &f)
	cmd.Flags().StringVar(&f.spread, "spread", "", "expired entities become due over this time"+fromFile)
	cmd.Flags().StringVar(&f.percent, "percent", "", "adopt only this share; it may only rise"+fromFile)
	cmd.Flags().BoolVar(&f.watch, "watch", false, "keep stamping what old writers create, until stopped")
	cmd.Flags().StringVar(&f.every, "every", "24h", "with --watch: from the begin of one round to the next;\n"+
		"while it follows an index, only if it is given")
	addYes(cmd, &f)
	cmd.AddCommand(adoptDualCommand(a), adoptVerifyCommand(a), adoptFinishCommand(a), adoptUndoCommand(a))
	return cmd
}

func adoptDualCommand(a *app) *cobra.Command {
	var f adoptFlags
	cmd := &cobra.Command{
		Use:   "dual TARGET",
		Short: "Note that writers write keys, too, from now on",
		Long: `Dual begins the phase in which writers write both the property that the rule reads and the
key. The adoption goes on. From then on undo cannot tell its own keys from those of
writers, and needs --also-writers.

From the first key of an adoption until reaper adopt finish, sweeps of the target read each
due entity before they delete it, at a read for each, and keep it if its key is earlier
than the rule, or later by more than the spread, or if it has a key and no value that the
rule can read. They count such a mismatch. So neither an old writer that extends an entity
without its key, nor a new one that computes keys wrongly, has live entities deleted.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAdopt(a, cmd, args, f, adopt.Dualize)
		},
	}
	addAdopt(a, cmd, &f)
	return cmd
}

func adoptVerifyCommand(a *app) *cobra.Command {
	f := adoptFlags{verifies: "adopt verify"}
	cmd := &cobra.Command{
		Use:   "verify TARGET",
		Short: "Count what has no expiry key, and keys that disagree with the rule",
		Long: `Verify reads all entities of a target, at a read for each, and writes nothing. It counts
those without a key for which the rule gives one, and mismatches: keys that are earlier
than the rule, or later by more than the spread, and keys of entities without a value that
the rule can read. The exit code is 1 if there are any.

It says first about how many reads that will be, by the last round or a count of the index
of the property that the rule reads. On a terminal it then asks whether to go on.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAdopt(a, cmd, args, f, func(ctx context.Context, c adopt.Config) (adopt.Result, error) {
				res, err := adopt.Run(ctx, c)
				if err == nil && res.Left() > 0 {
					err = fmt.Errorf("verify target %s: %w: %d", res.Target, adopt.ErrUnverified, res.Left())
				}
				return res, err
			})
		},
	}
	addAdopt(a, cmd, &f)
	addYes(cmd, &f)
	return cmd
}

func adoptFinishCommand(a *app) *cobra.Command {
	f := adoptFlags{verifies: "adopt finish"}
	cmd := &cobra.Command{
		Use:   "finish TARGET",
		Short: "Verify an adoption, and mark it as finished",
		Long: `Finish verifies an adoption, as reaper adopt verify does. It refuses if anything is left,
or more than --accept. With --apply it marks the adoption as finished, and prints the
target as it is swept from then on. The breaker lets its first sweep pass; with another
kind, property or layout, or a shorter retention, it trips as before.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.accept < 0 {
				return wrongUsage("--accept: %d is negative", f.accept)
			}
			return runAdopt(a, cmd, args, f, func(ctx context.Context, c adopt.Config) (adopt.Result, error) {
				res, err := adopt.Finish(ctx, c, f.accept)
				if err == nil && res.Apply && res.Phase == adopt.Finished {
					err = approveSwitch(ctx, c)
				}
				return res, err
			})
		},
	}
	addAdopt(a, cmd, &f)
	addYes(cmd, &f)
	cmd.Flags().Int64Var(&f.accept, "accept", 0, "finish although so many entities are left")
	return cmd
}

// approveSwitch lets sweeps go by the keys of a finished adoption. It was verified, so what
// is due by them is known.
func approveSwitch(ctx context.Context, c adopt.Config) error {
	err := control.ApproveGround(ctx, c.Sweep, c.Target, control.Order{Actor: c.Actor, Reason: "the adoption is finished"})
	if err != nil {
		return fmt.Errorf("the adoption of target %s is finished, but its breaker was not told: run the command "+
			"again: %w", c.Target.Name, err)
	}
	return nil
}

func adoptUndoCommand(a *app) *cobra.Command {
	var f adoptFlags
	cmd := &cobra.Command{
		Use:   "undo TARGET",
		Short: "Remove the expiry keys that an adoption gave",
		Long: `Undo reads all entities of a target, and removes a key if its instant is one that the rule
gave: all other keys stay. Then it removes the records of the adoption. Without --apply it
counts. A property that held null before the adoption is missing afterwards, which means
the same.

Once the phase dual has begun, writers may have given keys by the same rule. --also-writers
removes those, too.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAdopt(a, cmd, args, f, func(ctx context.Context, c adopt.Config) (adopt.Result, error) {
				c.Order, c.AlsoWriters = adopt.Undo, f.alsoWriters
				return adopt.Run(ctx, c)
			})
		},
	}
	addAdopt(a, cmd, &f)
	cmd.Flags().BoolVar(&f.alsoWriters, "also-writers", false, "undo although writers give keys, too")
	return cmd
}

// recordPatience is how long a command tries to read the record of an adoption.
const recordPatience = 20 * time.Second

// coldRate is where a rate begins that is above it, as the services recommend.
const coldRate = 500

// An adoption is one run of adopt, or of one of its subcommands.
type adoption struct {
	*session
	cfg adopt.Config
	yes bool // nobody is asked
}

// An adoptOrder is what such a command has done.
type adoptOrder func(context.Context, adopt.Config) (adopt.Result, error)

// beginAdopt reads the configuration of the one target, and opens the store.
func beginAdopt(a *app, cmd *cobra.Command, args []string, f adoptFlags) (*adoption, error) {
	if len(args) == 1 {
		a.targets = append(a.targets, args[0])
	}
	s, err := a.loadTargets(cmd)
	if err != nil {
		return nil, err
	}
	if len(s.targets) != 1 {
		return nil, wrongUsage("adopt works on one target: name it")
	}
	t := s.targets[0]
	if t.StoreTarget().Type != store.Text {
		return nil, wrongUsage("target %s has no expiry keys in the layout %s: describe the target that "+
			"they are for, with a layout such as generation and a property of its own", t.Name, t.Layout)
	}
	rule, err := f.rule(cmd, t)
	if err == nil {
		err = f.numbers(cmd, &t.Adopt)
	}
	if err != nil {
		return nil, err
	}
	if err := a.connect(cmd.Context(), s, false); err != nil {
		return nil, err
	}
	s.targets[0] = t // with the flags
	if rule == (adopt.Rule{}) {
		if rule, err = recordedRule(cmd.Context(), s.db.Store, t.Name); err != nil {
			s.db.closeInto(&err)
			return nil, err
		}
	}
	rate := t.Adopt.Rate
	ad := &adoption{session: s, yes: f.yes, cfg: adopt.Config{Sweep: s.sweep, Target: s.sweep.Targets[0], Rule: rule,
		Spread: t.Adopt.Spread, Percent: t.Adopt.Percent, Actor: actor(s.Config, os.Getenv), Progress: new(adopt.Progress),
		Rate: throttle.Limits{Start: min(coldRate, rate.Most), Max: rate.Most, Unlimited: rate.Unlimited}}}
	if f.verifies != "" {
		ad.cfg.Order = adopt.Verify
	}
	if !t.Breaker.Off {
		ad.cfg.Announce = announcer(s)
	}
	return ad, nil
}

// announcer returns what tells the breaker of the target what an adoption makes due.
func announcer(s *session) func(context.Context, []time.Time) error {
	var one sync.Mutex // workers would only contend for the budget's one record
	return func(ctx context.Context, expiries []time.Time) error {
		one.Lock()
		defer one.Unlock()
		stamped := map[time.Time]int64{}
		for _, at := range expiries {
			stamped[at]++
		}
		return control.Announce(ctx, s.sweep, s.sweep.Targets[0], stamped)
	}
}

// runAdopt runs one order, and prints what became of it.
func runAdopt(a *app, cmd *cobra.Command, args []string, f adoptFlags, order adoptOrder) (err error) {
	ad, err := beginAdopt(a, cmd, args, f)
	if err != nil {
		return err
	}
	defer ad.db.closeInto(&err)
	if f.verifies != "" {
		if err := ad.announceReading(cmd.Context(), f.verifies); err != nil {
			return err
		}
	}
	res, err := ad.run(cmd.Context(), order)
	if err = ad.report(res, err); err == nil && res.Tripped {
		return &exit{exitBreaker, errTripped}
	}
	return err
}

// run runs one order, and shows meanwhile how far it has come.
func (ad *adoption) run(ctx context.Context, order adoptOrder) (adopt.Result, error) {
	done := ad.showProgress(ctx)
	defer done()
	return order(ctx, ad.cfg)
}

// report prints what became of an order, and returns its error as that of a command. An order that
// does not fit what was adopted before has no result.
func (ad *adoption) report(res adopt.Result, err error) error {
	if unfit := unfitOrder(err); unfit != nil {
		return unfit
	}
	t := ad.targets[0]
	out := adoptResult{ad.Store.String(), res, costOf(ad.Store.Driver, t.Adopt.Rate, res)}
	return errors.Join(ad.print(out, func(w io.Writer) error {
		switch {
		case res.Round == 0: // it failed before it read anything
		case res.Order != "dual":
			printAdopt(w, out, t)
		case err == nil && res.Phase == adopt.Dual:
			fmt.Fprintf(w, "%s: writers write keys, too; sweeps compare them with the rule until reaper adopt finish\n",
				res.Target)
		case err == nil:
			fmt.Fprintf(w, "%s: nothing was changed: --apply begins the phase dual\n", res.Target)
		}
		return nil
	}), err)
}

// unfitOrder returns the error of an order that does not fit what was adopted before, as
// one of usage, with advice; nil for any other error.
func unfitOrder(err error) error {
	for _, c := range []struct {
		err  error
		hint string
	}{
		{adopt.ErrOtherRule, "go on with that rule, or take its keys back: reaper adopt undo, with its --from and --plus"},
		{adopt.ErrPercent, "write the percentage of before, or more; reaper adopt undo takes all keys back"},
		{adopt.ErrPhase, "reaper adopt undo takes keys back; --also-writers once writers give keys, too"},
		{adopt.ErrNotAdopted, "reaper adopt TARGET --apply begins one"},
		{adopt.ErrForeign, "choose a property for expiry keys that nothing else uses"},
		{adopt.ErrUnsupported, ""},
	} {
		if errors.Is(err, c.err) {
			return store.WithHint(&exit{exitUsage, err}, c.hint)
		}
	}
	return nil
}

// showProgress shows how far an adoption has come, as watchSweep does for a sweep.
func (ad *adoption) showProgress(ctx context.Context) (done func()) {
	p, target := ad.cfg.Progress, ad.cfg.Target.Name
	if !ad.onTerminal() {
		return every(logEvery, func() {
			ad.log.InfoContext(ctx, "adopting", slog.String("target", target), slog.Bool("apply", ad.Apply),
				slog.Int64("parts", p.Parts.Load()), slog.Int64("parts_done", p.PartsDone.Load()),
				slog.Int64("scanned", p.Scanned.Load()), slog.Int64("written", p.Written.Load()))
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	if p.Expected.Load() == 0 { // else it was found out for the price
		group.Go(func() { _, _ = adopt.Expect(ctx, ad.cfg) }) // counting may take longer than the run
	}
	stop := drawProgress(ad.stderr, func() string { return "adopting " + target }, "entities", &p.Scanned, &p.Expected)
	return func() {
		cancel()
		group.Wait()
		stop()
	}
}

// costOf returns what it costs to write the keys that a dry run found missing; nil for any
// other run.
func costOf(driver config.Driver, rate config.Limit[float64], res adopt.Result) *adoptCost {
	if res.Order != adopt.Stamp || res.Apply || !res.Complete {
		return nil
	}
	c := &adoptCost{Reads: res.Scanned, Writes: res.Counts[adopt.Unstamped]}
	if driver == config.Datastore {
		c.Reads += c.Writes // each is read again in the transaction that stamps it
	}
	if !rate.Unlimited {
		seconds := float64(c.Writes) / rate.Most
		c.Seconds = &seconds
	}
	return c
}
