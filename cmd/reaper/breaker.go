package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

func breakerCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker",
		Short: "Show, approve or clear what holds a target because too much came to be due at once",
		Long: `Each target has a breaker, unless the targets file says breaker: off. It trips if one
window of expiry holds more than floor entities and more than a fraction of all; if more
than that expired before its range was last swept; or if more than floor are due on ground
that was never swept. Then nothing of the target is deleted until a person approves the
event, or its cause is gone. Sweeps end with exit code 4 meanwhile.

An approval covers that event alone: what expires up to its instant, as much as was counted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(breakerShowCommand(a), breakerApproveCommand(a), breakerClearCommand(a))
	return cmd
}

func breakerShowCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show TARGET",
		Short: "Show the event that holds a target: why, how much, when it expires, some of its entities",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onTarget(a, cmd, args[0], func(s *session, t sweep.Target) error {
				b, err := inspect.Breaker(cmd.Context(), s.sweep, t)
				if err != nil && b.Trip == "" {
					return withoutRecord(s, err)
				}
				printed := s.print(b, func(w io.Writer) error { return printBreaker(w, b, t.Breaker.On) })
				return errors.Join(printed, err) // a person who decides needs the trip at least
			})
		},
	}
	a.addJSON(cmd)
	return cmd
}

func breakerApproveCommand(a *app) *cobra.Command {
	var o switchOrder
	var approval control.Approval
	cmd := &cobra.Command{
		Use:   "approve TARGET TRIP --reason TEXT",
		Short: "Let an event pass: say that it is right to delete that much",
		Long: `Approve lets the event of a trip pass, and nothing else: what expires up to its instant,
as much as was counted. Whatever else comes to be due is judged as before. Running workers
go on within five seconds.

With --count a part of it goes first, and the breaker trips again after it.`,
		Example: `  reaper breaker approve sessions 20261121t120000-burst-ABCDEF --reason "campaign ended" --count 100
  reaper breaker approve sessions 20261121t120000-burst-ABCDEF --reason "campaign ended"`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("count") && approval.Count < 1 {
				return wrongUsage("--count: %d is less than 1", approval.Count)
			}
			if !cmd.Flags().Changed("reason") {
				return wrongUsage("--reason is missing: say why this may be deleted")
			}
			if err := o.check(cmd, false); err != nil {
				return err
			}
			return onTarget(a, cmd, args[0], func(s *session, t sweep.Target) error {
				approval.ID = args[1]
				_, trip, err := control.Approve(cmd.Context(), s.sweep, t, o.by(s.Config), approval)
				if err != nil {
					return withoutRecord(s, err)
				}
				if approval.Normal && trip.Rule != breaker.Burst {
					s.log.Warn("--normal has no effect: only what one window holds is learnt", "target", t.Name,
						"rule", string(trip.Rule))
				}
				ended := endedTrip{t.Name, trip.ID, "approved", allowed(approval.Count, trip)}
				return s.print(ended, ended.print)
			})
		},
	}
	addOrder(a.console, cmd, &o)
	cmd.Flags().Int64Var(&approval.Count, "count", 0, "let only so many go, to try a part first (default all of it)")
	cmd.Flags().BoolVar(&approval.Normal, "normal", false, "after a burst: windows of that size are usual from now on")
	return cmd
}

func breakerClearCommand(a *app) *cobra.Command {
	var o switchOrder
	cmd := &cobra.Command{
		Use:   "clear TARGET",
		Short: "End a trip whose cause is gone: counts again, and refuses while too much is still due",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd, false); err != nil {
				return err
			}
			return onTarget(a, cmd, args[0], func(s *session, t sweep.Target) error {
				_, trip, err := control.Clear(cmd.Context(), s.sweep, t, o.by(s.Config), func(trip breaker.Trip) (int64, error) {
					return sweep.CountTrip(cmd.Context(), s.sweep, t, trip)
				})
				if err != nil {
					return withoutRecord(s, err)
				}
				ended := endedTrip{t.Name, trip.ID, "cleared", 0}
				return s.print(ended, ended.print)
			})
		},
	}
	addOrder(a.console, cmd, &o)
	return cmd
}

// onTarget opens the store, and calls do with the target of a name.
func onTarget(a *app, cmd *cobra.Command, name string, do func(*session, sweep.Target) error) error {
	a.targets = []string{name}
	return a.inSession(cmd, func(_ context.Context, s *session) error { return do(s, s.sweep.Targets[0]) })
}

// withoutRecord returns the error for a target without a record, and for an order about
// another trip than the open one, as one of usage: neither changes anything.
func withoutRecord(s *session, err error) error {
	if errors.Is(err, control.ErrNoTrip) || errors.Is(err, control.ErrNoRecord) {
		return &exit{exitUsage, hintNoRecord(s, err)}
	}
	return err
}

// An endedTrip is what breaker approve and clear --json print.
type endedTrip struct {
	Target string `json:"target"`
	Trip   string `json:"trip"`
	Ended  string `json:"ended"` // approved or cleared
	Count  int64  `json:"count"` // how much of it may go
}

// allowed returns how much of an event may go by an approval of so many; 0 stands for all of it. If
// it took too long to count all of it, more of it may go.
func allowed(count int64, trip breaker.Trip) int64 {
	if count == 0 || count > trip.Due && !trip.More {
		return trip.Due
	}
	return count
}

func (e endedTrip) print(w io.Writer) error {
	fmt.Fprintf(w, "%s: trip %s is %s", e.Target, e.Trip, e.Ended)
	if e.Count > 0 {
		fmt.Fprintf(w, ": %s entities may go", grouped(e.Count))
	}
	fmt.Fprintln(w)
	return nil
}

func printBreaker(w io.Writer, b inspect.BreakerStatus, isOn bool) error {
	if b.Trip == "" {
		state := "closed"
		switch {
		case !isOn:
			state = "off"
		case b.Counting != nil && *b.Counting == 1:
			state = "closed, and counting: 1 range waits until it knows how much is due"
		case b.Counting != nil && *b.Counting > 1:
			state = fmt.Sprintf("closed, and counting: %d ranges wait until it knows how much is due", *b.Counting)
		}
		_, err := fmt.Fprintf(w, "%s: the breaker is %s%s\n", b.Target, state, after(b.Note))
		return err
	}
	fmt.Fprintf(w, "%s: the breaker is open since %s\n", b.Target, instant(b.At))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "  trip\t%s\n  rule\t%s\n", b.Trip, ruleText(b))
	due := grouped(b.Due)
	if b.DueAtLeast {
		due += " or more"
	}
	fmt.Fprintf(table, "  due\t%s, limit %s\n", due, grouped(b.Limit))
	if b.Share != nil {
		fmt.Fprintf(table, "  all\t%s or more; the event is at most %.0f%% of them\n", grouped(b.All), 100**b.Share)
	}
	fmt.Fprintf(table, "  deleted\t%s of it, before it tripped\n", grouped(b.Deleted))
	for _, bar := range b.Histogram {
		fmt.Fprintf(table, "  %s\t%s in generation %08d\n", span(breaker.Bar(bar)), grouped(bar.N), bar.Generation)
	}
	if len(b.Samples) > 0 {
		ids := slices.Clone(b.Samples)
		for i := range ids {
			ids[i] = printable(ids[i])
		}
		fmt.Fprintf(table, "  such as\t%s\n", strings.Join(ids, ", "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "If that is right: reaper breaker approve %s %s --reason \"...\"\n", b.Target, b.Trip)
	return err
}

// span says when a part of an event expires.
func span(b breaker.Bar) string {
	return b.From.UTC().Format(time.RFC3339) + " to " + b.To.UTC().Format(time.RFC3339)
}

// ruleText says what a rule means.
func ruleText(b inspect.BreakerStatus) string {
	switch b.Rule {
	case breaker.Burst:
		return fmt.Sprintf("%s: too much expires within one window, from %s on", b.Rule, instant(b.Hour))
	case breaker.LateOnes:
		return fmt.Sprintf("%s: too much expired before its range was last swept", b.Rule)
	case breaker.NewGround:
		return fmt.Sprintf("%s: much is due, and this was never swept in this way", b.Rule)
	}
	return string(b.Rule)
}

// after says how the last trip ended.
func after(n inspect.BreakerNote) string {
	if n.At == nil {
		return ""
	}
	return fmt.Sprintf("; its last trip ended %s%s", instant(n.At), byAndWhy(n.Actor, n.Reason))
}

// isTripped reports whether the breaker of a target is open.
func isTripped(res sweep.Result) bool {
	return slices.ContainsFunc(res.Targets, func(t sweep.TargetResult) bool {
		return t.Held == string(throttle.ReasonBreaker)
	})
}

// errTripped is why a sweep ends with exit code 4.
var errTripped = store.WithHint(errors.New("the breaker of a target is open: deletes are suspended"),
	"reaper breaker show TARGET says why")

// breakerRules converts the settings for package breaker.
func breakerRules(t config.Target) breaker.Rules {
	return breaker.Rules{On: !t.Breaker.Off, Floor: int64(t.Breaker.Floor), Fraction: t.Breaker.Fraction,
		Window: t.Breaker.Window, Learn: t.Breaker.Learn}
}
