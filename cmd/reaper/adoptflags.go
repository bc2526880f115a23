package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

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

// fromFile is said of flags that stand for a field of the targets file.
const fromFile = " (default: the targets file)"

// addAdopt registers the flags of adopt and all its subcommands.
func addAdopt(a *app, cmd *cobra.Command, f *adoptFlags) {
	addApply(cmd.Flags(), "change something")
	addSettings(cmd.Flags(), "workers", "shutdown-grace", "actor")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().StringVar(&f.from, "from", "", "the rule begins with this property"+fromFile)
	cmd.Flags().BoolVar(&f.createTime, "create-time", false, "the rule begins with the time of creation")
	cmd.Flags().StringVar(&f.plus, "plus", "", "the rule adds this, such as 30d")
	cmd.Flags().StringVar(&f.rate, "rate", "", "keys a second of all processes together, or unlimited"+fromFile)
}

// addYes registers the flag of commands that ask before they read all entities.
func addYes(cmd *cobra.Command, f *adoptFlags) {
	cmd.Flags().BoolVar(&f.yes, "yes", false, "on a terminal, read all entities without being asked")
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
	rec, exists, err := loadAdoption(ctx, s, target)
	switch {
	case err != nil:
		return adopt.Rule{}, err
	case !exists:
		return adopt.Rule{}, store.WithHint(wrongUsage("target %s has no rule for entities without a key", target),
			"write adopt: {from: {property: created, plus: 30d}} into the targets file, or --from created --plus 30d")
	}
	return rec.Rule, nil
}

// loadAdoption reads the record of an adoption. It repeats a read that fails for a moment.
func loadAdoption(ctx context.Context, s store.Store, target string) (rec adopt.Record, exists bool, err error) {
	err = store.Retry(ctx, recordPatience, func() (err error) {
		rec, _, exists, err = adopt.Load(ctx, s, target)
		return err
	})
	return rec, exists, err
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
