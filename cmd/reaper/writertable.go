package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/sweep"
)

// defaultSample is how many entities of a target doctor --writers reads, and largestSample how many
// at most: each costs a read.
const (
	defaultSample = 1000
	largestSample = 100_000
	// hoursShown is how many hours a table shows to people.
	hoursShown = 24
)

// A writersResult is what doctor --writers --json prints.
type writersResult struct {
	Store   string                `json:"store"`
	Now     time.Time             `json:"now"`
	Targets []inspect.WriterTable `json:"targets"`
}

// showWriters shows with what the entities of each target are stamped.
func showWriters(a *app, cmd *cobra.Command, sample int) error {
	if sample < 1 || sample > largestSample {
		return wrongUsage("--sample: %d is not a number from 1 to %d", sample, largestSample)
	}
	return a.inSession(cmd, func(ctx context.Context, s *session) (err error) {
		res := writersResult{Store: s.Store.String(), Now: s.now().UTC()}
		res.Targets, err = eachTarget(s, func(t sweep.Target) (inspect.WriterTable, error) {
			return inspect.Writers(ctx, s.sweep, t, sample)
		})
		return printTargets(s, res, res.Targets, err, printWriters)
	})
}

// printWriters shows one table to people.
func printWriters(out io.Writer, t inspect.WriterTable) error {
	var b strings.Builder
	more := ""
	if t.More {
		more = " of more"
	}
	fmt.Fprintf(&b, "%s: %s%s sampled, %s\n", printable(t.Name), counted(int64(t.Sampled), "entity", "entities"), more,
		counted(t.Reads, "read", "reads"))
	if t.Note != "" {
		fmt.Fprintf(&b, "  %s\n", t.Note)
	}
	if t.Sampled > 0 {
		writeKeyShares(&b, t)
		writeWriterHours(&b, t)
		writeWriterFaults(&b, t)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeKeyShares shows how many entities have which key.
func writeKeyShares(b *strings.Builder, t inspect.WriterTable) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	row := func(what, state string, n int) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%.1f %%\n", what, state, grouped(int64(n)), 100*float64(n)/float64(t.Sampled))
	}
	fmt.Fprint(w, "  key of\tstate\tentities\tshare\n")
	for _, g := range t.Generations {
		name := fmt.Sprintf("%08d", g.Number)
		if g.Number == 0 {
			name = "nursery"
		}
		row(name, g.State, g.Entities)
	}
	unexplained := 0
	for _, f := range t.Unexplained {
		unexplained += f.Entities
	}
	row("no rule", "unexplained", unexplained)
	row("no key", "never expires", t.WithoutKey)
	_ = w.Flush() // a builder takes everything
}

// writeWriterHours shows what was last written in each hour.
func writeWriterHours(b *strings.Builder, t inspect.WriterTable) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "  last written\tentities\tnewest\tolder\tnursery\tunexplained\tno key\n")
	row := func(when string, h inspect.WriterHour) {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\t%d\n", when, h.Entities, h.Newest, h.Older, h.Nursery, h.Unexplained,
			h.WithoutKey)
	}
	var rest inspect.WriterHour
	for i, h := range t.Hours {
		switch {
		case h.From == nil:
			row("not known", h)
		case i < hoursShown:
			row(h.From.UTC().Format("2006-01-02 15:00"), h)
		default:
			rest.Entities, rest.Newest, rest.Older = rest.Entities+h.Entities, rest.Newest+h.Newest, rest.Older+h.Older
			rest.Nursery, rest.Unexplained = rest.Nursery+h.Nursery, rest.Unexplained+h.Unexplained
			rest.WithoutKey += h.WithoutKey
		}
	}
	if rest.Entities > 0 {
		row("before", rest)
	}
	_ = w.Flush()
}

// writeWriterFaults names keys that no rule explains, and says what the nursery tells.
func writeWriterFaults(b *strings.Builder, t inspect.WriterTable) {
	for _, f := range t.Unexplained {
		last := ""
		if f.Last != nil {
			last = ", last written at " + timeText(*f.Last)
		}
		fmt.Fprintf(b, "  unexplained: %s%s: %s, such as %s\n", counted(int64(f.Entities), "entity", "entities"), last, f.Why,
			printable(strings.Join(f.Examples, ", ")))
	}
	for _, h := range t.Hours { // the latest first
		if h.Nursery > 0 && h.From != nil && len(t.Generations) > 1 {
			fmt.Fprintf(b, "  the nursery was last written in the hour from %s, by a writer that does not follow generations "+
				"or cannot read the record\n", timeText(*h.From))
			return
		}
	}
}
