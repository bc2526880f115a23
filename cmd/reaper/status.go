package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A statusResult is what status --json prints.
type statusResult struct {
	Store   string                 `json:"store"`
	Now     time.Time              `json:"now"`
	Targets []inspect.TargetStatus `json:"targets"`
}

func (a *app) statusCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show generations, ranges, cursors and delays",
		Long: `Status shows up to when each target is swept, how long its oldest due entity has been
waiting, its workers and its generations. For each range it shows the cursor and the
worker that holds it. It writes nothing and costs a query for each range.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd, all) },
	}
	addSettings(cmd.Flags(), "workers")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "also list idle ranges, one by one")
	return cmd
}

func (a *app) status(cmd *cobra.Command, all bool) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	res := statusResult{Store: s.Store.String(), Now: a.now().UTC()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (inspect.TargetStatus, error) {
		return inspect.Status(cmd.Context(), s.sweep, t)
	})
	if a.json {
		return errors.Join(a.printJSON(res), err)
	}
	for i, t := range res.Targets {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := a.printStatus(t, res.Now, all); err != nil {
			return err
		}
	}
	return err
}

func (a *app) printStatus(t inspect.TargetStatus, now time.Time, all bool) error {
	fmt.Fprintf(a.stdout, "%s (layout %s)\n", t.Name, t.Layout)
	if len(t.Ranges) == 0 {
		fmt.Fprintln(a.stdout, "  nobody has loaded or swept it yet")
		printHeld(a.stdout, t)
		return nil
	}
	printWork(a.stdout, t, now)
	if err := printGenerationStates(a.stdout, t); err != nil {
		return err
	}
	return printRanges(a.stdout, t, all)
}

// printWork prints what is left to do in a target, and its workers.
func printWork(w io.Writer, t inspect.TargetStatus, now time.Time) {
	var deleted int64
	for _, r := range t.Ranges {
		deleted += r.Deleted
	}
	fmt.Fprintf(w, "  swept up to %s\n", when(t.SweptTo, now, "-"))
	fmt.Fprintf(w, "  oldest due: %s\n", when(t.OldestDue, now, "nothing is due"))
	if t.OldestDue != nil {
		fmt.Fprintf(w, "  behind:     %s\n", age(now.Sub(*t.OldestDue)))
	}
	printHeld(w, t)
	rate := fmt.Sprintf("%.4g/s", t.Rate)
	if t.Unlimited {
		rate = "unlimited"
	}
	fmt.Fprintf(w, "  rate now:   %s\n", rate)
	if len(t.Workers) == 0 {
		fmt.Fprintln(w, "  at work:    nobody is at work now")
	}
	for i, worker := range t.Workers {
		label := "at work:"
		if i > 0 {
			label = ""
		}
		seen := age(now.Sub(worker.Seen))
		fmt.Fprintf(w, "  %-12s%s (ranges: %d, seen %s ago, version %s)\n", label, worker.Owner, worker.Ranges, seen,
			orDash(worker.Version))
	}
	fmt.Fprintf(w, "  deleted:    %s since the records began\n", grouped(deleted))
}

// printHeld says why nothing is deleted at present.
func printHeld(w io.Writer, t inspect.TargetStatus) {
	switch throttle.Reason(t.Held) {
	case "":
	case throttle.ReasonPaused:
		fmt.Fprintln(w, "  held:       by pause, until reaper resume")
	case throttle.ReasonGate:
		fmt.Fprintln(w, "  held:       by its gate, until that opens")
	default:
		fmt.Fprintf(w, "  held:       by %s\n", t.Held)
	}
}

func printGenerationStates(out io.Writer, t inspect.TargetStatus) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(t.Generations) > 0 { // not of timestamps
		fmt.Fprintln(w, "  generation\tstate\tshards\topened\tsealed")
	}
	for _, g := range t.Generations {
		name := fmt.Sprintf("%08d", g.Number)
		if g.Number == 0 {
			name += " (nursery)"
		}
		fmt.Fprintf(w, "  %s\t%s\t%d\t%s\t%s\n", name, g.State, g.Shards, instant(&g.Opened), instant(g.Sealed))
	}
	return w.Flush()
}

// printRanges lists the ranges that are held or were worked on, or all of them.
func printRanges(out io.Writer, t inspect.TargetStatus, all bool) error {
	idle := 0
	shown := slices.DeleteFunc(slices.Clone(t.Ranges), func(r inspect.RangeStatus) bool {
		hide := !all && r.Owner == "" && r.Deleted == 0
		if hide {
			idle++
		}
		return hide
	})
	if len(shown) > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "  namespace\trange\tposition\tdeleted\trate\theld back by\theld by")
		for _, r := range shown {
			rate := "unlimited"
			if r.Rate != nil {
				rate = fmt.Sprintf("%.4g/s", *r.Rate)
			}
			name := fmt.Sprintf("%08d.%s", r.Generation, r.Shard)
			if len(t.Generations) == 0 {
				name = orDash(r.Shard)
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", orDash(r.Namespace), name, orDash(r.Position),
				grouped(r.Deleted), rate, orDash(r.ThrottledBy), orDash(r.Owner))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if idle > 0 {
		fmt.Fprintf(out, "  and %d ranges that nobody holds and nothing was deleted from (--all lists them)\n", idle)
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func when(t *time.Time, now time.Time, none string) string {
	if t == nil {
		return none
	}
	return fmt.Sprintf("%s (%s ago)", instant(t), age(now.Sub(*t)))
}

// age shows how long ago something was.
func age(d time.Duration) string {
	d = max(0, d.Round(time.Second)) // what the store's clock says may lie ahead a little
	if days := int(d.Hours() / 24); days >= 2 {
		return fmt.Sprintf("%d days", days)
	}
	return d.String()
}
