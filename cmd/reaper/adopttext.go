package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
)

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

// printAdopt prints what became of an order for a target.
func printAdopt(w io.Writer, res adoptResult, t config.Target) {
	fmt.Fprintf(w, "%s by %s: round %d, %v%% of the entities\n", res.Target, res.Rule, res.Round, res.Percent)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\t%s\t  read\n", grouped(res.Scanned))
	for _, o := range adoptTexts {
		if n := res.Counts[o.outcome]; n > 0 || o.outcome == adopt.Unstamped {
			fmt.Fprintf(table, "\t%s\t  %s\n", grouped(n), o.text)
		}
	}
	_ = table.Flush() // stdout: nothing to be done about it
	printSamples(w, res.Result)
	if res.Counts[adopt.Unstamped] > 0 {
		printHistogram(w, res.Result)
	}
	for _, warning := range res.Warnings {
		fmt.Fprintln(w, "warning: "+warning)
	}
	printAdoptEnd(w, res, t)
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

func printHistogram(w io.Writer, res adopt.Result) {
	when := "at once"
	if res.SpreadSeconds > 0 {
		when = "within " + config.FormatDuration(time.Duration(res.SpreadSeconds*float64(time.Second)))
	}
	fmt.Fprintf(w, "expired already: %s, which will be due %s\n", grouped(res.DueAlready), when)
	fmt.Fprint(w, "due")
	for _, b := range res.Histogram {
		name := "within " + b.Within
		switch b.Within {
		case "now":
			name = "at once"
		case "":
			name = "later"
		}
		fmt.Fprintf(w, "  %s: %s", name, grouped(b.Entities))
	}
	fmt.Fprintln(w)
}

// printAdoptEnd says what was done, or what it would cost.
func printAdoptEnd(w io.Writer, res adoptResult, t config.Target) {
	written := counted(res.Stamped, "key was", "keys were") + " written"
	if res.Order == adopt.Undo {
		written = counted(res.Removed, "key was", "keys were") + " removed"
	}
	switch {
	case res.Held != "" && !res.Complete:
		fmt.Fprintf(w, "%s; then the target was held: %s. Run the command again to go on\n", written, res.Held)
	case !res.Complete && res.Apply:
		fmt.Fprintf(w, "%s; not complete: run the command again to go on\n", written)
	case !res.Complete:
		fmt.Fprintln(w, "not complete: stopped before the end")
	case res.Order == adopt.Verify && res.Phase == adopt.Finished && res.Apply:
		fmt.Fprintf(w, "the adoption is finished. From now on sweep the target by its keys, and remove from the\n"+
			"targets file what sweeps %s by another property:\n%s", t.Kind, t.Stanza())
	case res.Order == adopt.Verify:
		fmt.Fprintf(w, "%s left without a key, or with one that disagrees; nothing was changed\n",
			counted(res.Left(), "entity is", "entities are"))
	case res.Apply && res.Order == adopt.Undo:
		fmt.Fprintln(w, written+", and then the records of the adoption")
	case res.Apply:
		fmt.Fprintln(w, written)
	case res.Order == adopt.Undo:
		fmt.Fprintf(w, "%s the rule's. Nothing was changed: remove with --apply\n",
			counted(res.Removable, "key is", "keys are"))
	default:
		printAdoptCost(w, *res.Cost)
	}
}

func printAdoptCost(w io.Writer, c adoptCost) {
	fmt.Fprintf(w, "stamping costs %s and %s", counted(c.Reads, "read", "reads"),
		counted(c.Writes, "write", "writes"))
	if c.Seconds != nil {
		fmt.Fprintf(w, ", and takes about %s", time.Duration(*c.Seconds*float64(time.Second)).Round(time.Second))
	}
	fmt.Fprintln(w, ". Functions and listeners fire for each write")
	fmt.Fprintln(w, "nothing was changed: write keys with --apply")
}
