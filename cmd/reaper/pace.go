package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A switchResult is what pause, resume and pace --json print.
type switchResult struct {
	Store   string           `json:"store"`
	Targets []switchedTarget `json:"targets"`
}

type switchedTarget struct {
	Name   string     `json:"name"`
	Paused bool       `json:"paused"`
	Until  *time.Time `json:"paused_until"` // nil if it is not paused, or has no end
	Reason string     `json:"reason"`       // of the pause; empty if it is not paused
	Held   string     `json:"held"`         // breaker if that is open, too: to resume does not end it; else empty
	Max    string     `json:"max"`          // of each range, as set; empty if the targets file decides
	Total  string     `json:"total"`        // of the target, likewise
}

func pauseCommand(a *app) *cobra.Command {
	var o switchOrder
	var long string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Stop deleting in a target until it is resumed",
		Long: `Pause sets the target's switch in the store. Workers that are sweeping it stop, usually
within five seconds and at the latest after fifteen; a sweep that waits for longer than one
lease ends. Later sweeps delete nothing there until reaper resume or, with --for, until that
time has passed.

The target's record keeps who paused it, when and why, for status, explain and the log.`,
		Example: `  reaper pause --reason "restoring a backup, ask Ann"
  reaper pause --target sessions --for 2h --reason "sale until noon"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd, true); err != nil {
				return err
			}
			var duration time.Duration
			if cmd.Flags().Changed("for") {
				var err error
				if duration, err = readPositive("--for", long); err != nil {
					return err
				}
			}
			return change(a, cmd, o, func(
				ctx context.Context, c sweep.Config, t sweep.Target, by control.Order,
			) (generation.Record, time.Time, error) {
				return control.Pause(ctx, c, t, by, duration)
			})
		},
	}
	addSwitch(a, cmd, &o)
	cmd.Flags().StringVar(&long, "for", "", "how long, such as 2h or 7d (default until reaper resume)")
	return cmd
}

func resumeCommand(a *app) *cobra.Command {
	var o switchOrder
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume deleting in a paused target",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd, false); err != nil {
				return err
			}
			return change(a, cmd, o, control.Resume)
		},
	}
	addSwitch(a, cmd, &o)
	return cmd
}

// A switchOrder has the flags that say why a target is changed.
type switchOrder struct{ reason string }

// addSwitch registers the flags of commands that change the switches of targets.
func addSwitch(a *app, cmd *cobra.Command, o *switchOrder) {
	a.addTarget(cmd)
	addOrder(a.console, cmd, o)
}

// addOrder registers the flags of commands that change the record of a target.
func addOrder(c *console, cmd *cobra.Command, o *switchOrder) {
	addSettings(cmd.Flags(), "actor")
	c.addJSON(cmd)
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, in one line of at most 1,000 bytes, for the target's record")
}

// by returns who gives an order, and why.
func (o switchOrder) by(c config.Config) control.Order {
	return control.Order{Actor: actor(c, os.Getenv), Reason: o.reason}
}

// check refuses a reason that cannot be kept, before the store is opened.
func (o switchOrder) check(cmd *cobra.Command, required bool) error {
	hasReason := cmd.Flags().Changed("reason")
	switch {
	case required && !hasReason:
		return wrongUsage("--reason is missing: say why, for the next person who finds the target paused: " +
			`--reason "restoring a backup"`)
	case hasReason && strings.TrimSpace(o.reason) == "":
		return wrongUsage("--reason is empty: say why, in one line")
	}
	if err := (control.Order{Reason: o.reason}).Check(); err != nil {
		return wrongUsage("--reason: %v", err)
	}
	return nil
}

// readPositive reads a duration that was given as a flag.
func readPositive(flag, text string) (time.Duration, error) {
	d, err := config.Duration(text)
	switch {
	case err != nil:
		return 0, wrongUsage("%s: %v", flag, err)
	case d <= 0:
		return 0, wrongUsage("%s: %s is not a positive duration, such as 2h", flag, text)
	}
	return d, nil
}

func paceCommand(a *app) *cobra.Command {
	var most, total string
	var reset bool
	var o switchOrder
	cmd := &cobra.Command{
		Use:   "pace",
		Short: "Change a target's pace while workers run",
		Long: `Pace limits how many entities a second are deleted or carried, in each range (--max) and
in the whole target over all workers (--total). These limits override pace.max and
pace.total of the targets file until they are set again or reset. Workers follow, usually
within five seconds and at the latest after fifteen, even in the middle of a sweep. --reset
clears the override. Without flags pace prints the current limits.`,
		Example: `  reaper pace --target sessions --max 200
  reaper pace --target sessions --total 2000 --max unlimited
  reaper pace --target sessions --reset`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			if reset && (flags.Changed("max") || flags.Changed("total")) {
				return wrongUsage("--reset cannot be combined with --max or --total")
			}
			if err := o.check(cmd, false); err != nil {
				return err
			}
			p := control.Pace{Reset: reset}
			var err error
			if p.Max, err = readRate("--max", most, flags.Changed("max")); err != nil {
				return err
			}
			if p.Total, err = readRate("--total", total, flags.Changed("total")); err != nil {
				return err
			}
			return change(a, cmd, o, func(
				ctx context.Context, c sweep.Config, t sweep.Target, by control.Order,
			) (generation.Record, time.Time, error) {
				return control.SetPace(ctx, c, t, by, p)
			})
		},
	}
	addSwitch(a, cmd, &o)
	cmd.Flags().StringVar(&most, "max", "", "entities a second in each range, or unlimited")
	cmd.Flags().StringVar(&total, "total", "", "entities a second in the target over all workers, or unlimited")
	cmd.Flags().BoolVar(&reset, "reset", false, "clear the override and use the targets file")
	return cmd
}

// readRate reads a rate that was given as a flag.
func readRate(flag, text string, given bool) (generation.Rate, error) {
	if !given {
		return generation.Rate{}, nil
	}
	limit, err := config.Rate(text)
	if err != nil {
		return generation.Rate{}, wrongUsage("%s: %v", flag, err)
	}
	return generation.Rate{Set: true, Unlimited: limit.Unlimited, PerSecond: limit.Most}, nil
}

// A changeFunc changes the switches of one target, and returns its record and the store's
// time.
type changeFunc func(context.Context, sweep.Config, sweep.Target, control.Order) (generation.Record, time.Time, error)

// change changes the records of the targets that a command selects.
func change(a *app, cmd *cobra.Command, o switchOrder, change changeFunc) error {
	return a.inSession(cmd, func(ctx context.Context, s *session) error { return changeTargets(ctx, s, o, change) })
}

// changeTargets changes the target records, and prints what they say afterwards.
func changeTargets(ctx context.Context, s *session, o switchOrder, change changeFunc) (err error) {
	res := switchResult{Store: s.Store.String()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (switchedTarget, error) {
		rec, now, err := change(ctx, s.sweep, t, o.by(s.Config))
		one := switchedTarget{Name: t.Name, Max: rec.PaceMax.String(), Total: rec.PaceTotal.String()}
		if t.IsTripped(rec) {
			one.Held = string(throttle.ReasonBreaker)
		}
		if rec.IsHeldByOperator(now) {
			one.Paused, one.Reason = true, rec.PauseNote.Reason
			if !rec.PausedUntil.IsZero() {
				one.Until = &rec.PausedUntil
			}
		}
		return one, hintNoRecord(s, err)
	})
	if len(res.Targets) == 0 && errors.Is(err, control.ErrNoRecord) {
		return &exit{exitUsage, err} // most likely of --store; nothing was touched
	}
	return printTargets(s, res, res.Targets, err, func(w io.Writer, t switchedTarget) error {
		file := s.target(t.Name).Pace
		fmt.Fprintf(w, "%s %s; at most %s in each range, %s in all\n",
			t.Name, t.state(), rateWithSource(t.Max, file.Max), rateWithSource(t.Total, file.Total))
		return nil
	})
}

// hintNoRecord explains the error of an order for a target without a record: most likely this is
// not the store that the operator means.
func hintNoRecord(s *session, err error) error {
	if !errors.Is(err, control.ErrNoRecord) {
		return err
	}
	return store.WithHint(fmt.Errorf("%w, %v: nothing was changed", err, s.Store),
		"check --store, or sweep the target once first")
}

// state says whether a target is paused.
func (t switchedTarget) state() string {
	switch {
	case t.Held != "" && !t.Paused:
		return "is held by its breaker: see reaper breaker show " + t.Name
	case !t.Paused:
		return "is swept"
	case t.Until == nil:
		return "is paused until reaper resume"
	}
	return "is paused until " + instant(t.Until)
}

// rateWithSource shows a rate, and whether reaper pace or the targets file has set it.
func rateWithSource(set string, file config.Limit[float64]) string {
	rate, from := set, ""
	if set == "" {
		rate, from = file.String(), " (targets file)"
	}
	if rate != "unlimited" {
		rate += "/s"
	}
	return rate + from
}
