package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/orphans"
)

// printOrphans prints what became of a run.
func printOrphans(w io.Writer, res orphansResult) {
	fmt.Fprintf(w, "%s: %s below %s\n", res.Target, counted(res.Orphans, "orphan", "orphans"),
		counted(res.Missing, "entity that does not exist", "entities that do not exist"))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, k := range res.Kinds {
		name := printable(k.Kind)
		if k.Kind == "" {
			name = "other kinds"
		}
		if k.Owned > 0 {
			name += fmt.Sprintf(", and %s that stay", grouped(k.Owned))
		}
		fmt.Fprintf(table, "\t%s\t  %s\n", grouped(k.Orphans), name)
	}
	_ = table.Flush() // stdout: nothing to be done about it
	printAges(w, res.Result)
	for _, one := range res.Samples {
		fmt.Fprintf(w, "  %s, below %s", printable(one.Key), printable(one.Below))
		if one.Namespace != "" {
			fmt.Fprintf(w, ", namespace %s", printable(one.Namespace))
		}
		if one.Written != nil {
			fmt.Fprintf(w, ", written %s", one.Written.UTC().Format(time.RFC3339))
		}
		fmt.Fprintln(w)
	}
	if res.Owned > 0 {
		fmt.Fprintf(w, "%s: with an expiry of their own, or below such ones\n", counted(res.Owned, "entity stays",
			"entities stay"))
	}
	if res.Saved > 0 {
		fmt.Fprintf(w, "%s into being meanwhile: what is left below stays\n", counted(res.Saved, "missing entity came",
			"missing entities came"))
	}
	if res.Refused > 0 {
		fmt.Fprintf(w, "%s\n", counted(res.Refused, "orphan was refused by the store: it stays",
			"orphans were refused by the store: they stay"))
	}
	for _, warning := range res.Warnings {
		fmt.Fprintln(w, "warning: "+warning)
	}
	printOrphansEnd(w, res)
}

// printAges says how old orphans are.
func printAges(w io.Writer, res orphans.Result) {
	switch {
	case res.Orphans == 0:
		return
	case res.Written == nil:
		fmt.Fprintln(w, "when they were written is not known: the store does not say it of keys")
		return
	}
	fmt.Fprintf(w, "written from %s to %s\n ", res.Written.Oldest.Format(time.RFC3339),
		res.Written.Newest.Format(time.RFC3339))
	for _, b := range res.Written.Histogram {
		name := "within " + b.Within
		if b.Within == "" {
			name = "longer ago"
		}
		fmt.Fprintf(w, " %s: %s ", name, grouped(b.Orphans))
	}
	fmt.Fprintln(w)
}

// printOrphansEnd says what was done, or what it would cost.
func printOrphansEnd(w io.Writer, res orphansResult) {
	looked := fmt.Sprintf("%s read, at %s: %s", counted(res.Read, "name was", "names were"),
		counted(res.Operations.Reads, "read", "reads"),
		dollars(float64(res.Operations.Reads)*dollarsPer(forecast.Reads)))
	fmt.Fprintln(w, looked)
	done := counted(res.Deleted, "orphan was", "orphans were") + " deleted"
	switch {
	case res.Held != "":
		fmt.Fprintf(w, "%s; then the target was held: %s. Run the command again to go on\n", done, printable(res.Held))
	case !res.Complete && res.Apply:
		fmt.Fprintf(w, "%s; not complete: run the command again to go on%s\n", done, goOn(res.StoppedAt))
	case !res.Complete:
		fmt.Fprintf(w, "not complete: stopped before the end%s\n", goOn(res.StoppedAt))
	case res.Apply:
		fmt.Fprintln(w, done)
	default:
		printOrphansCost(w, res)
	}
}

// goOn says how a run can skip what an earlier one has read.
func goOn(at *orphans.Place) string {
	var flags strings.Builder
	if at != nil && at.Namespace != "" {
		fmt.Fprintf(&flags, " --from-namespace %s", quoteShell(at.Namespace))
	}
	if at != nil && at.Key != "" {
		fmt.Fprintf(&flags, " --from %s", quoteShell(at.Key))
	}
	if flags.Len() == 0 {
		return ""
	}
	return ", or behind what was read, with" + flags.String()
}

// quoteShell quotes a text as a word of a shell, unless it needs no quotes.
func quoteShell(text string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-%", r)
	}
	if text != "" && strings.IndexFunc(text, special) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func printOrphansCost(w io.Writer, res orphansResult) {
	if res.Orphans > 0 {
		c := res.Cost
		fmt.Fprintf(w, "deleting costs %s and %s", counted(c.Reads, "read", "reads"), counted(c.Deletes, "delete", "deletes"))
		fmt.Fprintf(w, ": %s", dollars(c.Dollars))
		if c.Seconds != nil {
			fmt.Fprintf(w, ", and takes about %s", time.Duration(*c.Seconds*float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintln(w, "\nfunctions and listeners fire for each delete")
	}
	fmt.Fprintln(w, "nothing was changed: delete with --apply")
}
