package main

import (
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/sweep"
)

// A statusResult is what status --json prints.
type statusResult struct {
	Store   string               `json:"store"`
	Now     time.Time            `json:"now"`
	Targets []sweep.TargetStatus `json:"targets"`
}

func (a *app) statusCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Generations, ranges, cursors, delays",
		Long: `Status shows where each target stands: its generations, how long its oldest due
entity has been waiting, and for each range where its cursor stands and who holds
it. It writes nothing and costs a query for each range.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd, all) },
	}
	addSettings(cmd.Flags(), "workers")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "list idle ranges one by one, too")
	return cmd
}

func (a *app) status(cmd *cobra.Command, all bool) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	res := statusResult{Store: s.Store.String(), Now: a.now().UTC()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (sweep.TargetStatus, error) { return sweep.Status(cmd.Context(), s.sweep, t) })
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

func (a *app) printStatus(t sweep.TargetStatus, now time.Time, all bool) error {
	var deleted int64
	for _, r := range t.Ranges {
		deleted += r.Deleted
	}
	fmt.Fprintf(a.stdout, "%s (layout %s)\n", t.Name, t.Layout)
	if len(t.Ranges) == 0 {
		fmt.Fprintln(a.stdout, "  nobody has loaded or swept it yet")
		return nil
	}
	fmt.Fprintf(a.stdout, "  oldest due:  %s\n", when(t.OldestDue, now, "nothing is due"))
	fmt.Fprintf(a.stdout, "  last sweep:  %s\n", when(t.LastSweep, now, "none came to its end in every range yet"))
	fmt.Fprintf(a.stdout, "  deleted:     %s since the records began\n", grouped(deleted))
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
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
	if err := w.Flush(); err != nil {
		return err
	}
	idle := 0
	shown := slices.DeleteFunc(slices.Clone(t.Ranges), func(r sweep.RangeStatus) bool {
		hide := !all && r.Owner == "" && r.Deleted == 0
		if hide {
			idle++
		}
		return hide
	})
	if len(shown) > 0 {
		w = tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
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
		fmt.Fprintf(a.stdout, "  and %d ranges that nobody holds and nothing was deleted from (--all lists them)\n", idle)
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
	age := now.Sub(*t).Round(time.Second)
	if days := int(age.Hours() / 24); days >= 2 {
		return fmt.Sprintf("%s (%d days ago)", t.Format(time.RFC3339), days)
	}
	return fmt.Sprintf("%s (%v ago)", t.Format(time.RFC3339), age)
}
