package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/reaper-ttl/reaper/internal/restore"
)

// printRestore prints what became of a run.
func printRestore(w io.Writer, res restoreResult) {
	fmt.Fprintf(w, "%s: %s in %s of %s\n", res.Target, counted(res.Restorable, "entity", "entities"),
		counted(res.Objects, "object", "objects"), printable(res.Archive))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range []struct {
		n    int64
		text string
	}{
		{res.Unconfirmed, "of them unconfirmed: it is not known whether they were deleted"},
		{res.Exist, "exist already: they stay as they are"},
		{res.Superseded, "older copies, left out"},
		{res.NotDeleted, "archived and then not deleted, left out"},
		{res.NotFound, "not restorable: point-in-time recovery does not have what was deleted"},
		{res.Stripped, "restored without something that the store refuses"},
		{res.Refused, "refused by the store"},
		{res.Vanished, "gone again when they were read back: somebody has deleted them"},
		{res.BadObjects, "objects damaged or missing: what they held behind that is not restored"},
	} {
		if c.n > 0 {
			fmt.Fprintf(table, "\t%s\t  %s\n", grouped(c.n), c.text)
		}
	}
	_ = table.Flush() // stdout: nothing to be done about it
	for _, list := range [][]restore.Sample{res.NotFoundOf, res.StrippedOf, res.RefusedOf} {
		for _, one := range list {
			fmt.Fprintf(w, "  %s", printable(one.Key))
			if one.Namespace != "" {
				fmt.Fprintf(w, ", namespace %s", printable(one.Namespace))
			}
			fmt.Fprintf(w, ": %s\n", shortened(printable(one.Why)))
		}
	}
	for _, p := range res.Problems {
		fmt.Fprintf(w, "  %s: %s\n", printable(p.Object), printable(p.Why))
	}
	printRestoreExpiries(w, res.Result)
	for _, warning := range res.Warnings {
		fmt.Fprintln(w, "warning: "+printable(warning))
	}
	printRestoreEnd(w, res)
}

// printRestoreExpiries says when they expire.
func printRestoreExpiries(w io.Writer, res restore.Result) {
	switch {
	case res.Restorable == 0:
	case res.FirstExpiry == nil:
		fmt.Fprintln(w, "none of them expires")
	case res.FirstExpiry.Equal(*res.LastExpiry):
		fmt.Fprintf(w, "%s: %s\n", counted(res.Expiring, "expires", "expire"), res.FirstExpiry.Format(time.RFC3339))
	default:
		fmt.Fprintf(w, "%s: from %s to %s\n", counted(res.Expiring, "expires", "expire"),
			res.FirstExpiry.Format(time.RFC3339), res.LastExpiry.Format(time.RFC3339))
	}
}

// printRestoreEnd says what was done, or what it would cost.
func printRestoreEnd(w io.Writer, res restoreResult) {
	done := fmt.Sprintf("%s restored, %s read back", counted(res.Restored, "entity was", "entities were"),
		counted(res.Verified, "was", "were"))
	if res.Continued {
		done += " (with what earlier runs did)"
	}
	again := "run the command again"
	if res.abandons && res.Inserts {
		again += ", without --abandon,"
	}
	switch {
	case res.Held != "" && res.Apply:
		fmt.Fprintf(w, "%s; the target is held: %s. To go on, %s\n", done, printable(res.Held), again)
	case !res.Complete && res.Apply:
		fmt.Fprintf(w, "%s; not complete: %s to go on\n", done, again)
	case !res.Complete:
		fmt.Fprintln(w, "not complete: stopped before the end")
	case res.Apply:
		fmt.Fprintln(w, done)
	default:
		printRestoreCost(w, *res.Cost)
	}
}

func printRestoreCost(w io.Writer, c restoreCost) {
	if c.Writes > 0 {
		fmt.Fprintf(w, "restoring costs %s and %s: %s", counted(c.Reads, "read", "reads"),
			counted(c.Writes, "write", "writes"), dollars(c.Dollars))
		if c.Seconds != nil {
			fmt.Fprintf(w, ", and takes about %s", time.Duration(*c.Seconds*float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintln(w, "\nfunctions and listeners fire for each write")
	}
	fmt.Fprintln(w, "nothing was changed: restore with --apply --reason TEXT")
}
