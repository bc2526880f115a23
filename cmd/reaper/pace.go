package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/config"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/sweep"
)

// A switchResult is what pause, resume and pace --json print.
type switchResult struct {
	Store   string           `json:"store"`
	Targets []switchedTarget `json:"targets"`
}

type switchedTarget struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
	Max    string `json:"max"`   // of each range, as set; empty if the targets file decides
	Total  string `json:"total"` // of the target, likewise
}

func (a *app) pauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Stop deleting in a target until it is resumed",
		Long: `Pause sets the target's switch in the store. Workers that are sweeping it stop within
five seconds; a sweep that waits for longer than one lease ends. Later sweeps do nothing
there until reaper resume.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.change(cmd, func(r *generation.Record) { r.Paused = true })
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume deleting in a paused target",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.change(cmd, func(r *generation.Record) { r.Paused = false })
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	return cmd
}

func (a *app) paceCommand() *cobra.Command {
	var most, total string
	var reset bool
	cmd := &cobra.Command{
		Use:   "pace",
		Short: "Change a target's pace while workers run",
		Long: `Pace limits how many entities a second are deleted or carried, in each range (--max) and
in the whole target over all workers (--total). These limits override pace.max and
pace.total of the targets file until they are set again or reset. Workers follow within
five seconds, even in the middle of a sweep. --reset clears the override. Without flags
pace prints the current limits.`,
		Example: `  reaper pace --target sessions --max 200
  reaper pace --target sessions --total 2000 --max unlimited
  reaper pace --target sessions --reset`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			if reset && (flags.Changed("max") || flags.Changed("total")) {
				return wrongUsage("--reset cannot be combined with --max or --total")
			}
			max, err := readRate("--max", most, flags.Changed("max"))
			if err != nil {
				return err
			}
			all, err := readRate("--total", total, flags.Changed("total"))
			if err != nil {
				return err
			}
			return a.change(cmd, func(r *generation.Record) {
				if reset {
					r.PaceMax, r.PaceTotal = generation.Rate{}, generation.Rate{}
				}
				if max.Set {
					r.PaceMax = max
				}
				if all.Set {
					r.PaceTotal = all
				}
			})
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
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

// change changes the target records, and shows what they say then.
func (a *app) change(cmd *cobra.Command, change func(*generation.Record)) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	res := switchResult{Store: s.Store.String()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (switchedTarget, error) {
		rec, err := control.Change(cmd.Context(), s.sweep, t, change)
		return switchedTarget{t.Name, rec.Paused, rec.PaceMax.String(), rec.PaceTotal.String()}, err
	})
	if a.json {
		return errors.Join(a.printJSON(res), err)
	}
	for _, t := range res.Targets {
		state := "is swept"
		if t.Paused {
			state = "is paused"
		}
		i := slices.IndexFunc(s.targets, func(c config.Target) bool { return c.Name == t.Name })
		file := s.targets[i].Pace
		fmt.Fprintf(a.stdout, "%s %s; at most %s in each range, %s in all\n",
			t.Name, state, said(t.Max, file.Max), said(t.Total, file.Total))
	}
	return err
}

// said shows a rate with where it comes from.
func said(set string, file config.Limit[float64]) string {
	rate, from := set, ""
	if set == "" {
		rate, from = file.String(), " (targets file)"
	}
	if rate != "unlimited" {
		rate += "/s"
	}
	return rate + from
}
