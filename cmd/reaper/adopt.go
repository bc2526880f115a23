package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/adopt"
	"github.com/reaper-ttl/reaper/config"
	"github.com/reaper-ttl/reaper/control"
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

// adoptFlags are the flags that stand for fields of the targets file's section adopt, and
// those of single commands.
type adoptFlags struct {
	from, plus, spread, percent, rate string
	createTime                        bool
	watch                             bool
	every                             string
	accept                            int64
	alsoWriters                       bool
	yes                               bool
	verifies                          string // what a command that verifies is called: it says first what that costs
}

func (a *app) adoptCommand() *cobra.Command {
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
			if f.watch {
				return a.adoptWatch(cmd, args, f)
			}
			return a.adopt(cmd, args, f, adopt.Run)
		},
	}
	a.addAdopt(cmd, &f)
	cmd.Flags().StringVar(&f.spread, "spread", "", "expired entities become due over this time"+fromFile)
	cmd.Flags().StringVar(&f.percent, "percent", "", "adopt only this share; it may only rise"+fromFile)
	cmd.Flags().BoolVar(&f.watch, "watch", false, "keep stamping what old writers create, until stopped")
	cmd.Flags().StringVar(&f.every, "every", "24h", "with --watch: from the begin of one round to the next;\n"+
		"while it follows an index, only if it is given")
	addYes(cmd, &f)
	cmd.AddCommand(a.adoptDualCommand(), a.adoptVerifyCommand(), a.adoptFinishCommand(), a.adoptUndoCommand())
	return cmd
}

// fromFile is said of flags that stand for a field of the targets file.
const fromFile = " (default: the targets file)"

// addAdopt registers the flags of adopt and all its subcommands.
func (a *app) addAdopt(cmd *cobra.Command, f *adoptFlags) {
	addSettings(cmd.Flags(), "apply", "workers", "shutdown-grace", "actor")
	cmd.Flags().Lookup("apply").Usage = "change something; without it nothing is written, whatever REAPER_APPLY says"
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().StringVar(&f.from, "from", "", "the rule begins with this property"+fromFile)
	cmd.Flags().BoolVar(&f.createTime, "create-time", false, "the rule begins with the time of creation")
	cmd.Flags().StringVar(&f.plus, "plus", "", "the rule adds this, such as 30d")
	cmd.Flags().StringVar(&f.rate, "rate", "", "keys a second of all processes together, or unlimited"+fromFile)
}

func (a *app) adoptDualCommand() *cobra.Command {
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
			return a.adopt(cmd, args, f, adopt.Dualize)
		},
	}
	a.addAdopt(cmd, &f)
	return cmd
}

// addYes registers the flag of commands that ask before they read all entities.
func addYes(cmd *cobra.Command, f *adoptFlags) {
	cmd.Flags().BoolVar(&f.yes, "yes", false, "on a terminal, read all entities without being asked")
}

func (a *app) adoptVerifyCommand() *cobra.Command {
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
			return a.adopt(cmd, args, f, func(ctx context.Context, c adopt.Config) (adopt.Result, error) {
				c.Order = adopt.Verify
				res, err := adopt.Run(ctx, c)
				if err == nil && res.Left() > 0 {
					err = fmt.Errorf("verify target %s: %w: %d", res.Target, adopt.ErrUnverified, res.Left())
				}
				return res, err
			})
		},
	}
	a.addAdopt(cmd, &f)
	addYes(cmd, &f)
	return cmd
}

func (a *app) adoptFinishCommand() *cobra.Command {
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
			return a.adopt(cmd, args, f, func(ctx context.Context, c adopt.Config) (adopt.Result, error) {
				res, err := adopt.Finish(ctx, c, f.accept)
				if err == nil && res.Apply && res.Phase == adopt.Finished {
					err = approveSwitch(ctx, c)
				}
				return res, err
			})
		},
	}
	a.addAdopt(cmd, &f)
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

func (a *app) adoptUndoCommand() *cobra.Command {
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
			return a.adopt(cmd, args, f, func(ctx context.Context, c adopt.Config) (adopt.Result, error) {
				c.Order, c.AlsoWriters = adopt.Undo, f.alsoWriters
				return adopt.Run(ctx, c)
			})
		},
	}
	a.addAdopt(cmd, &f)
	cmd.Flags().BoolVar(&f.alsoWriters, "also-writers", false, "undo although writers give keys, too")
	return cmd
}

// rule returns the rule of the flags or, without them, of the targets file. It is zero if
// neither has one.
func (f adoptFlags) rule(cmd *cobra.Command, t config.Target) (adopt.Rule, error) {
	given := cmd.Flags().Changed
	from := t.Adopt.From
	switch {
	case f.createTime && given("from"):
		return adopt.Rule{}, wrongUsage("--from and --create-time are two rules: write one of them")
	case f.createTime && !given("plus"):
		return adopt.Rule{}, wrongUsage("--create-time needs --plus, such as --plus 30d")
	case given("from") && f.from == "":
		return adopt.Rule{}, wrongUsage("--from is empty: name a property")
	case given("from") && f.from == t.Property:
		return adopt.Rule{}, wrongUsage("--from: %s is the property that adoption writes", f.from)
	case given("from"):
		if err := config.PropertyName(f.from); err != nil {
			return adopt.Rule{}, wrongUsage("--from: %v", err)
		}
		from = config.AdoptFrom{Property: f.from}
	case f.createTime:
		from = config.AdoptFrom{CreateTime: true}
	case given("plus") && from.IsZero():
		return adopt.Rule{}, wrongUsage("--plus needs --from or --create-time")
	}
	if given("plus") {
		plus, err := config.Duration(f.plus)
		if err != nil {
			return adopt.Rule{}, wrongUsage("--plus: %v", err)
		}
		if from.CreateTime && plus == 0 {
			return adopt.Rule{}, wrongUsage("--plus: %s after their creation all entities have expired", f.plus)
		}
		from.Plus = plus
	}
	return ruleOf(from), nil
}

// recordedRule returns the rule by which a target is being adopted. Flags may have given it, and
// after the end the targets file needs none.
func recordedRule(ctx context.Context, s store.Store, target string) (adopt.Rule, error) {
	var rec adopt.Record
	var exists bool
	err := store.Retry(ctx, recordPatience, func() (err error) {
		rec, _, exists, err = adopt.Load(ctx, s, target)
		return err
	})
	switch {
	case err != nil:
		return adopt.Rule{}, err
	case !exists:
		return adopt.Rule{}, store.WithHint(wrongUsage("target %s has no rule for entities without a key", target),
			"write adopt: {from: {property: created, plus: 30d}} into the targets file, or --from created --plus 30d")
	}
	return rec.Rule, nil
}

func ruleOf(from config.AdoptFrom) adopt.Rule {
	return adopt.Rule{Property: from.Property, CreateTime: from.CreateTime, Plus: from.Plus}
}

// numbers reads the other flags into the settings of the target.
func (f adoptFlags) numbers(cmd *cobra.Command, s *config.Adopt) (err error) {
	given := cmd.Flags().Changed
	if given("spread") {
		if s.Spread, err = config.Spread(f.spread); err != nil {
			return wrongUsage("--spread: %v", err)
		}
	}
	if given("percent") {
		if s.Percent, err = config.Percent(f.percent); err != nil {
			return wrongUsage("--percent: %v", err)
		}
	}
	if given("rate") {
		if s.Rate, err = config.Rate(f.rate); err != nil {
			return wrongUsage("--rate: %v", err)
		}
	}
	return nil
}

// recordPatience is how long a command tries to read the record of an adoption.
const recordPatience = 20 * time.Second

// coldRate is where a rate begins that is above it, as the services recommend.
const coldRate = 500

// beginAdopt reads the configuration of the one target, and opens the store.
func (a *app) beginAdopt(cmd *cobra.Command, args []string, f adoptFlags) (*session, adopt.Config, error) {
	if len(args) == 1 {
		a.targets = append(a.targets, args[0])
	}
	if apply := cmd.Flags().Lookup("apply"); !apply.Changed {
		// REAPER_APPLY is for sweeps: who looks around where they run must not begin an adoption.
		if err := cmd.Flags().Set(apply.Name, "false"); err != nil {
			return nil, adopt.Config{}, err
		}
	}
	c, targets, _, err := a.loadTargets(cmd)
	if err != nil {
		return nil, adopt.Config{}, err
	}
	if len(targets) != 1 {
		return nil, adopt.Config{}, wrongUsage("adopt works on one target: name it")
	}
	t := targets[0]
	if t.StoreTarget().Type != store.Text {
		return nil, adopt.Config{}, wrongUsage("target %s has no expiry keys in the layout %s: describe the target that "+
			"they are for, with a layout such as generation and a property of its own", t.Name, t.Layout)
	}
	rule, err := f.rule(cmd, t)
	if err == nil {
		err = f.numbers(cmd, &t.Adopt)
	}
	if err != nil {
		return nil, adopt.Config{}, err
	}
	s, err := a.begin(cmd)
	if err != nil {
		return nil, adopt.Config{}, err
	}
	s.targets[0] = t // with the flags
	if rule == (adopt.Rule{}) {
		if rule, err = recordedRule(cmd.Context(), s.db.Store, t.Name); err != nil {
			s.db.closeInto(&err)
			return nil, adopt.Config{}, err
		}
	}
	rate := t.Adopt.Rate
	var one sync.Mutex // workers would only contend for the budget's one record
	announce := func(ctx context.Context, expiries []time.Time) error {
		one.Lock()
		defer one.Unlock()
		stamped := map[time.Time]int64{}
		for _, at := range expiries {
			stamped[at]++
		}
		return control.Announce(ctx, s.sweep, s.sweep.Targets[0], stamped)
	}
	if t.Breaker.Off {
		announce = nil
	}
	return s, adopt.Config{Announce: announce, Sweep: s.sweep, Target: s.sweep.Targets[0], Rule: rule,
		Spread:  t.Adopt.Spread,
		Percent: t.Adopt.Percent, Actor: actor(c, os.Getenv), Progress: new(adopt.Progress),
		Rate: throttle.Limits{Start: min(coldRate, rate.Most), Max: rate.Most, Unlimited: rate.Unlimited}}, nil
}

// adopt runs one order, and prints what became of it.
func (a *app) adopt(
	cmd *cobra.Command, args []string, f adoptFlags, run func(context.Context, adopt.Config) (adopt.Result, error),
) (err error) {
	s, cfg, err := a.beginAdopt(cmd, args, f)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	if f.verifies != "" {
		verify := cfg
		verify.Order = adopt.Verify
		if err := a.announceReading(cmd.Context(), s, verify, f.verifies, f.yes); err != nil {
			return err
		}
	}
	res, err := a.runAdopt(cmd.Context(), s, cfg, run)
	if err = a.reportAdopt(s, res, err); err == nil && res.Tripped {
		return &exit{exitBreaker, errTripped}
	}
	return err
}

// runAdopt runs one order, and shows meanwhile how far it has come.
func (a *app) runAdopt(
	ctx context.Context, s *session, cfg adopt.Config, run func(context.Context, adopt.Config) (adopt.Result, error),
) (adopt.Result, error) {
	done := a.watchAdoption(ctx, s, cfg)
	defer done()
	return run(ctx, cfg)
}

// reportAdopt prints what became of an order, and returns its error as that of a command. An order that
// does not fit what was adopted before has no result.
func (a *app) reportAdopt(s *session, res adopt.Result, err error) error {
	unfit := unfitOrder(err)
	switch {
	case unfit != nil:
		return unfit
	case a.json:
		return errors.Join(a.printJSON(adoptResult{s.Store.String(), res, costOf(s, res)}), err)
	case res.Round == 0: // it failed before it read anything
	case res.Order != "dual":
		a.printAdopt(s, res)
	case err == nil && res.Phase == adopt.Dual:
		fmt.Fprintf(a.stdout, "%s: writers write keys, too; sweeps compare them with the rule until reaper adopt finish\n",
			res.Target)
	case err == nil:
		fmt.Fprintf(a.stdout, "%s: nothing was changed: --apply begins the phase dual\n", res.Target)
	}
	return err
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

// watchAdoption shows how far an adoption has come, as watch does for a sweep.
func (a *app) watchAdoption(ctx context.Context, s *session, cfg adopt.Config) (done func()) {
	p := cfg.Progress
	if !a.onTerminal() {
		return every(logEvery, func() {
			s.log.InfoContext(ctx, "adopting", slog.String("target", cfg.Target.Name), slog.Bool("apply", s.Apply),
				slog.Int64("parts", p.Parts.Load()), slog.Int64("parts_done", p.PartsDone.Load()),
				slog.Int64("scanned", p.Scanned.Load()), slog.Int64("written", p.Written.Load()))
		})
	}
	bar := a.bar("adopting " + cfg.Target.Name)
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	if p.Expected.Load() == 0 { // else it was found out for the price
		group.Go(func() { _, _ = adopt.Expect(ctx, cfg) }) // counting may take longer than the run
	}
	stop := every(barEvery, func() {
		n := p.Scanned.Load()
		if most := p.Expected.Load(); most > 0 { // else nobody knows how long it takes
			bar.ChangeMax64(max(most, n+1)) // not full before the end: there may be more
		}
		_ = bar.Set64(n)
	})
	return func() {
		stop()
		cancel()
		group.Wait()
		_ = bar.Clear()
	}
}

// adoptTexts says what each outcome is, in the order of the report.
var adoptTexts = []struct {
	outcome adopt.Outcome
	text    string
}{
	{adopt.Unstamped, "without a key, and the rule gives one"},
	{adopt.Keyed, "with a key"},
	{adopt.Mismatch, "with a key that disagrees with the rule"},
	{adopt.Later, "not in the share yet"},
	{adopt.Suspect, "expired longer ago than max_age by the rule: left alone"},
	{adopt.NoSource, "without the value that the rule reads: left alone"},
	{adopt.Mistyped, "with a value that the rule cannot read: left alone"},
	{adopt.Foreign, "with something else in the key property: left alone"},
	{adopt.Gone, "deleted meanwhile"},
	{adopt.Overtaken, "changed by their writers meanwhile"},
	{adopt.Contended, "changed again and again: the next round tries again"},
	{adopt.Refused, "refused by the store: left alone"},
}

func (a *app) printAdopt(s *session, res adopt.Result) {
	fmt.Fprintf(a.stdout, "%s by %s: round %d, %v%% of the entities\n", res.Target, res.Rule, res.Round, res.Percent)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t%s\t  read\n", grouped(res.Scanned))
	for _, o := range adoptTexts {
		if n := res.Counts[o.outcome]; n > 0 || o.outcome == adopt.Unstamped {
			fmt.Fprintf(w, "\t%s\t  %s\n", grouped(n), o.text)
		}
	}
	_ = w.Flush() // stdout: nothing to be done about it
	printSamples(a.stdout, res)
	if res.Counts[adopt.Unstamped] > 0 {
		a.printHistogram(res)
	}
	for _, warning := range res.Warnings {
		fmt.Fprintln(a.stdout, "warning: "+warning)
	}
	a.printAdoptEnd(s, res)
}

// printSamples names some entities of each outcome.
func printSamples(w io.Writer, res adopt.Result) {
	expected := []adopt.Outcome{adopt.Unstamped, adopt.Keyed, adopt.Later}
	for _, o := range adoptTexts {
		if (res.Apply || res.Order != adopt.Stamp) && slices.Contains(expected, o.outcome) {
			continue // they were looked at in the dry run
		}
		for _, one := range res.Samples[o.outcome] {
			fmt.Fprintf(w, "  %s %s", o.outcome, printable(one.Key))
			if one.Namespace != "" {
				fmt.Fprintf(w, ", namespace %s", printable(one.Namespace))
			}
			if one.Source != "" {
				fmt.Fprintf(w, ", from %s", shortened(printable(one.Source)))
			}
			if one.Expires != nil {
				fmt.Fprintf(w, ", expires %s", one.Expires.Format(time.RFC3339))
			}
			if one.Why != "" {
				fmt.Fprintf(w, ": %s", shortened(printable(one.Why)))
			}
			fmt.Fprintln(w)
		}
	}
}

func (a *app) printHistogram(res adopt.Result) {
	when := "at once"
	if res.SpreadSeconds > 0 {
		when = "within " + config.FormatDuration(time.Duration(res.SpreadSeconds*float64(time.Second)))
	}
	fmt.Fprintf(a.stdout, "expired already: %s, which will be due %s\n", grouped(res.DueAlready), when)
	fmt.Fprint(a.stdout, "due")
	for _, b := range res.Histogram {
		name := "within " + b.Within
		switch b.Within {
		case "now":
			name = "at once"
		case "":
			name = "later"
		}
		fmt.Fprintf(a.stdout, "  %s: %s", name, grouped(b.Entities))
	}
	fmt.Fprintln(a.stdout)
}

// printAdoptEnd says what was done, or what it would cost.
func (a *app) printAdoptEnd(s *session, res adopt.Result) {
	written := counted(res.Stamped, "key was", "keys were") + " written"
	if res.Order == adopt.Undo {
		written = counted(res.Removed, "key was", "keys were") + " removed"
	}
	switch {
	case res.Held != "" && !res.Complete:
		fmt.Fprintf(a.stdout, "%s; then the target was held: %s. Run the command again to go on\n", written, res.Held)
	case !res.Complete && res.Apply:
		fmt.Fprintf(a.stdout, "%s; not complete: run the command again to go on\n", written)
	case !res.Complete:
		fmt.Fprintln(a.stdout, "not complete: stopped before the end")
	case res.Order == adopt.Verify && res.Phase == adopt.Finished && res.Apply:
		t := s.targets[0]
		fmt.Fprintf(a.stdout, "the adoption is finished. From now on sweep the target by its keys, and remove from the\n"+
			"targets file what sweeps %s by another property:\n%s", t.Kind, t.Stanza())
	case res.Order == adopt.Verify:
		fmt.Fprintf(a.stdout, "%s left without a key, or with one that disagrees; nothing was changed\n",
			counted(res.Left(), "entity is", "entities are"))
	case res.Apply && res.Order == adopt.Undo:
		fmt.Fprintln(a.stdout, written+", and then the records of the adoption")
	case res.Apply:
		fmt.Fprintln(a.stdout, written)
	case res.Order == adopt.Undo:
		fmt.Fprintf(a.stdout, "%s the rule's. Nothing was changed: remove with --apply\n",
			counted(res.Removable, "key is", "keys are"))
	default:
		a.printAdoptCost(s, res)
	}
}

// costOf returns what it costs to write the keys that a dry run found missing; nil for any
// other run.
func costOf(s *session, res adopt.Result) *adoptCost {
	if res.Order != adopt.Stamp || res.Apply || !res.Complete {
		return nil
	}
	c := &adoptCost{Reads: res.Scanned, Writes: res.Counts[adopt.Unstamped]}
	if s.Store.Driver == config.Datastore {
		c.Reads += c.Writes // each is read again in the transaction that stamps it
	}
	if rate := s.targets[0].Adopt.Rate; !rate.Unlimited {
		seconds := float64(c.Writes) / rate.Most
		c.Seconds = &seconds
	}
	return c
}

func (a *app) printAdoptCost(s *session, res adopt.Result) {
	c := costOf(s, res)
	fmt.Fprintf(a.stdout, "stamping costs %s and %s", counted(c.Reads, "read", "reads"),
		counted(c.Writes, "write", "writes"))
	if c.Seconds != nil {
		fmt.Fprintf(a.stdout, ", and takes about %s", time.Duration(*c.Seconds*float64(time.Second)).Round(time.Second))
	}
	fmt.Fprintln(a.stdout, ". Functions and listeners fire for each write")
	fmt.Fprintln(a.stdout, "nothing was changed: write keys with --apply")
}
