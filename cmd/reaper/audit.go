package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/sweep"
)

func auditCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Audit retired generations for strays now",
		Long: `Audit reads the retired generations, and the key ranges of sealed ones that should be
empty, from start to end. Entities found there (put back from old copies or backups, or
written very late) are strays. With --apply audit deletes strays that are due and moves
the others to the nursery, where later sweeps find them. Without it, audit counts them.

Sweeps do the same once a day, in the background. Audit fails if another worker is
already running one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.inSession(cmd, audit) },
	}
	addApply(cmd.Flags(), "delete and move strays")
	addSettings(cmd.Flags(), "shutdown-grace", "actor")
	a.addTarget(cmd)
	a.addJSON(cmd)
	return cmd
}

func audit(ctx context.Context, s *session) error {
	done, err := s.archiveTargets(ctx, true)
	if err != nil {
		return err
	}
	res := sweep.Audit(ctx, s.sweep)
	s.unarchived(&res)
	done()
	res.Store = s.Store.String()
	return cmp.Or(s.print(res, func(w io.Writer) error {
		printAudit(w, res)
		return nil
	}), exitOfSweep(res))
}

func printAudit(w io.Writer, res sweep.Result) {
	for _, t := range res.Targets {
		if t.Error != "" {
			continue // the error is printed instead
		}
		gone := "deleted"
		if !res.Apply {
			gone = "would be deleted"
		}
		fmt.Fprintf(w, "%s: read %s entries in %s pages; %s strays are due (%s), %s more move to the nursery\n",
			t.Name, grouped(t.Scanned), grouped(t.Pages), grouped(t.Expired), gone, grouped(t.Strays-t.Expired))
	}
	switch {
	case res.Failed():
	case !res.Complete:
		fmt.Fprintln(w, "not complete: stopped before the end")
	case !res.Apply:
		fmt.Fprintln(w, "nothing was changed: this was a dry run. Delete and move strays with --apply")
	}
}
