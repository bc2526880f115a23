package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/sweep"
)

// A keptResult is what list --json prints.
type keptResult struct {
	Store   string             `json:"store"`
	Now     time.Time          `json:"now"`
	Targets []inspect.KeptList `json:"targets"`
}

// defaultLimit is how many entities of a target are listed without --limit.
const defaultLimit = 20

func listCommand(a *app) *cobra.Command {
	var kept string
	var limit int
	cmd := &cobra.Command{
		Use:   "list --kept REASON",
		Short: "Name entities that sweeps keep: malformed, suspect, outside or refused",
		Long: `List names entities of each target that sweeps keep, with the value that they have and a
reason for each:

  malformed  in a range, and the property is not an expiry. A malformed text that sorts
             among keys which have not expired yet is listed once these have
  suspect    expired implausibly long ago (max_age)
  outside    carries the property and lies in no range
  refused    due and behind its range's cursor: the store refused to delete it, or it was
             written late. Of sealed ranges list reads only those whose record says that
             the store refuses entities. For other ranges no record tells the two apart

List writes nothing. It reads at least one page of the index of each range, and each
entity that it names, and logs how many reads that took. It stops at --limit, or after
100,000 index entries of a target (in native mode a read each), and says if there may be
more. For outside it also counts, by a COUNT for each gap between ranges. If it counts
more entities than its queries find, as with numbers and lists, it reads up to 10,000
entities of the target one by one, for half a minute at most.`,
		Example: `  reaper list --kept malformed
  reaper list --kept outside --target sessions --limit 100 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reason := inspect.Kept(kept)
			if !slices.Contains(inspect.KeptReasons(), reason) {
				return wrongUsage("--kept: %q is not a reason: want malformed, suspect, outside or refused", kept)
			}
			if limit < 1 {
				return wrongUsage("--limit: %d is not a positive number", limit)
			}
			return a.inSession(cmd, func(ctx context.Context, s *session) error { return listKept(ctx, s, reason, limit) })
		},
	}
	addSettings(cmd.Flags(), "workers")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().StringVar(&kept, "kept", "", "why they are kept: malformed, suspect, outside or refused")
	cmd.Flags().IntVar(&limit, "limit", defaultLimit, "name at most this many entities of each target")
	return cmd
}

func listKept(ctx context.Context, s *session, kept inspect.Kept, limit int) (err error) {
	res := keptResult{Store: s.Store.String(), Now: s.now().UTC()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (inspect.KeptList, error) {
		list, err := inspect.ListKept(ctx, s.sweep, t, kept, limit)
		if err == nil {
			s.log.InfoContext(ctx, "looked for kept entities", slog.String("target", t.Name),
				slog.String("kept", string(kept)), slog.Int("found", len(list.Entities)),
				slog.Int64("examined", list.Examined), slog.Int64("reads", list.Reads))
		}
		return list, err
	})
	return printTargets(s, res, res.Targets, err, func(w io.Writer, list inspect.KeptList) error {
		printKept(w, list, s.target(list.Name).Property)
		return nil
	})
}

func printKept(w io.Writer, list inspect.KeptList, property string) {
	count := "none"
	if n := len(list.Entities); n > 0 {
		count = grouped(int64(n))
	}
	fmt.Fprintf(w, "%s, kept as %s: %s\n", list.Name, list.Kept, count)
	for _, e := range list.Entities {
		place := "in range " + e.Range
		if e.Range == "outside" {
			place = "outside all ranges"
		}
		if e.Namespace != "" {
			place += ", namespace " + printable(e.Namespace)
		}
		fmt.Fprintf(w, "  %s %s\n", printable(e.Key), place)
		value := shortened(printable(e.Value))
		if e.Type != "text" {
			value += " (" + e.Type + ")"
		}
		fmt.Fprintf(w, "    %s = %s\n    %s\n", property, value, printable(e.Why))
	}
	if list.More {
		fmt.Fprintf(w, "  there may be more: %s\n", printable(list.MoreWhy))
	}
}

// shortened cuts a value that is too long for people.
func shortened(text string) string {
	const longest = 100
	if runes := []rune(text); len(runes) > longest {
		text = strings.TrimSpace(string(runes[:longest-1])) + "…"
	}
	return text
}
