package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/sweep"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "A full round over retired ground now",
		Long: `Audit reads the generations that have retired, and what should be empty of those that
are sealed, from the beginning to the end. Entities that turn up there (put back from
old copies or backups, or written very late) are strays: with --apply those that are due
are deleted and the others move to the nursery, where sweeps find them in their time.
Without it, audit counts them.

Sweeps do the same once a day, in the background. Where one is at it, audit fails.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.audit(cmd) },
	}
	addSettings(cmd.Flags(), "apply", "shutdown-grace")
	a.addTarget(cmd)
	a.addJSON(cmd)
	return cmd
}

func (a *app) audit(cmd *cobra.Command) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	res := sweep.Audit(cmd.Context(), s.sweep)
	res.Store = s.Store.String()
	if a.json {
		err = a.printJSON(res)
	} else {
		a.printAudit(res)
	}
	if err == nil && res.Failed() {
		return &exit{exitFailed, sweepError(res)}
	}
	return err
}

func (a *app) printAudit(res sweep.Result) {
	for _, t := range res.Targets {
		if t.Error != "" {
			continue // said by the error
		}
		gone := "deleted"
		if !res.Apply {
			gone = "would be deleted"
		}
		fmt.Fprintf(a.stdout, "%s: read %s entries in %s pages; %s strays are due (%s), %s more move to the nursery\n",
			t.Name, grouped(t.Scanned), grouped(t.Pages), grouped(t.Expired), gone, grouped(t.Strays-t.Expired))
	}
	switch {
	case res.Failed():
	case !res.Complete:
		fmt.Fprintln(a.stdout, "not complete: stopped before the end")
	case !res.Apply:
		fmt.Fprintln(a.stdout, "nothing was changed: this was a dry run. Mend with --apply")
	}
}
