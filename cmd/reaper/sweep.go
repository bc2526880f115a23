package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

func sweepCommand(a *app) *cobra.Command {
	var failIncomplete bool
	var once sweep.Once
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Sweep every target once, then exit",
		Long: `Sweep deletes the expired entities of every target, or of the targets named with
--target, and exits.

Without --apply it writes nothing, and says what it would delete, what lies behind the
cursors and by when that goes, and names a few entities that are kept. It checks one page
of each range as a sweep does, and counts the rest in the index; such a number begins with
a ~. If no more than 10,000 are due, and the pace lets it within two minutes, or with
--exact, it checks every entity, which may cost a read for each. It obeys the pace.

Several processes may sweep at once: they share the ranges. A process may be killed at
any time: the next sweep resumes where it stopped.

A sweep reads each range from its cursor on. What was written behind the cursor it finds
when it reads the range from its start: once the generation is sealed or, in the nursery
and in layouts without generations, once per rewind. With --from-start it reads all ranges
from their start now, sealed ones included. That steps over everything that was deleted
there recently, and waits for ranges that other processes hold.

If more comes to be due at once than is usual, the target's breaker holds it until somebody
approves, and the sweep ends with exit code 4: see reaper breaker show.

An entity is deleted only if its expiry has not changed since it was read. In Datastore
mode the log says how this is checked (guard in the targets file), and what it costs.`,
		Example: `  reaper sweep --store datastore:my-project
  reaper sweep --store datastore:my-project --apply --max-duration 9m
  reaper sweep --store embedded:./data --apply --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.inSession(cmd, func(ctx context.Context, s *session) error {
				return sweepOnce(ctx, s, once, failIncomplete)
			})
		},
	}
	addSettings(cmd.Flags(), "apply", "workers", "max-duration", "shutdown-grace", "pushgateway", "actor")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&once.Yes, "yes", false, "set the targets' limits aside for this sweep, but never the breaker")
	cmd.Flags().BoolVar(&once.FromStart, "from-start", false,
		"read every range from its start now, sealed ones included")
	cmd.Flags().BoolVar(&once.Exact, "exact", false,
		"without --apply: check every entity, though more than 10,000 are due")
	cmd.Flags().BoolVar(&failIncomplete, "fail-incomplete", false,
		"exit with code 3 if the sweep is stopped before its end")
	return cmd
}

func sweepOnce(ctx context.Context, s *session, once sweep.Once, failIncomplete bool) error {
	if once.Exact && s.Apply {
		return wrongUsage("--exact is for dry runs, and --apply or REAPER_APPLY is set")
	}
	if !s.MaxDuration.Unlimited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.MaxDuration.Most)
		defer cancel()
	}
	s.warnSuperseded(ctx, map[string]bool{})
	s.sweep.Once = once
	done, err := s.archiveTargets(ctx, true)
	if err != nil {
		return err
	}
	res := s.runWatched(ctx, s.sweep, 0)
	s.unarchived(&res)
	done()
	res.Store = s.Store.String()
	if !s.Apply {
		lookExactly(ctx, s, &res)
		addOutside(ctx, s, &res)
		s.foreseeArchive(&res)
	}
	if s.Pushgateway != "" {
		push(ctx, s, res)
	}
	err = cmp.Or(s.print(res, func(w io.Writer) error { return printSweep(w, res) }), exitOfSweep(res))
	if err == nil && !res.Complete && failIncomplete {
		return &exit{exitIncomplete, fmt.Errorf("the sweep was stopped before its end")}
	}
	return err
}

// runWatched sweeps, and shows how far that is. Due is how many entities that concerns; if it is 0, nobody
// knows, and on a terminal they are counted.
func (s *session) runWatched(ctx context.Context, cfg sweep.Config, due int64) sweep.Result {
	cfg.Progress = &sweep.Progress{Estimate: due == 0 && s.onTerminal()}
	cfg.Progress.Due.Store(due)
	defer s.watchSweep(cfg.Progress, s.Apply, s.log)()
	return sweep.Run(ctx, cfg)
}

const (
	// mostExact is how many due entities a dry run checks without being asked to: at two reads each, that costs
	// about a cent (docs/costs.md).
	mostExact = 10_000
	// exactWithin bounds how long that takes: it obeys the pace, which may be slow.
	exactWithin = 2 * time.Minute
)

// lookExactly makes the dry run of a target again if few are due by its estimate, and checks every entity. A target of
// which that fails, or takes too long, keeps its estimate. The log has had all that there is to say.
func lookExactly(ctx context.Context, s *session, res *sweep.Result) {
	ctx, cancel := context.WithTimeout(ctx, exactWithin)
	defer cancel()
	cfg := s.sweep
	cfg.Exact, cfg.Targets, cfg.Log = true, nil, slog.New(slog.DiscardHandler)
	var at []int
	var due int64
	for i, t := range res.Targets {
		if t.Estimated && t.Error == "" && t.BehindCursors != nil && t.Expired+*t.BehindCursors <= mostExact {
			cfg.Targets, at = append(cfg.Targets, s.sweep.Targets[i]), append(at, i)
			due += t.Expired
		}
	}
	if len(at) == 0 {
		return
	}
	exact := s.runWatched(ctx, cfg, due)
	for i, t := range exact.Targets {
		if t.Error != "" || !t.Complete {
			continue
		}
		was := res.Targets[at[i]]
		t.Operations.Reads += was.Operations.Reads // a dry run does nothing else
		t.Duration += was.Duration
		res.Targets[at[i]] = t
	}
	res.Duration += exact.Duration
}

// push sends the results of the sweep to a Pushgateway. A failure is logged; it does not
// fail the sweep.
func push(ctx context.Context, s *session, res sweep.Result) {
	runs := make([]metrics.Run, 0, len(res.Targets))
	for _, t := range res.Targets {
		runs = append(runs, metrics.Run{Target: t.Name, Apply: res.Apply, Deleted: t.Deleted, Expired: t.Expired,
			Duration: time.Duration(t.Duration * float64(time.Second)), Ended: s.now(), Result: t.Outcome(),
			Tripped: t.Held == string(throttle.ReasonBreaker)})
	}
	// A signal that ended the sweep must not prevent the push.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
	defer cancel()
	if err := (metrics.Pusher{URL: s.Pushgateway, Task: metrics.Task(os.Getenv)}).Push(ctx, runs...); err != nil {
		s.log.WarnContext(ctx, "cannot push metrics", "error", err)
	}
}

// outsideWithin bounds the look for examples of what lies outside all ranges.
const outsideWithin = 10 * time.Second

// addOutside adds examples of what lies outside all ranges to the result of a dry run. It
// can do without them.
func addOutside(ctx context.Context, s *session, res *sweep.Result) {
	for i := range res.Targets {
		t := &res.Targets[i]
		if t.Outside == 0 || t.Error != "" {
			continue
		}
		within, cancel := context.WithTimeout(ctx, outsideWithin)
		list, err := inspect.OutsideExamples(within, s.sweep, s.sweep.Targets[i], sweep.MostExamples)
		cancel()
		if err != nil {
			s.log.DebugContext(ctx, "cannot name what lies outside all ranges", "target", t.Name, "error", err)
		}
		for _, e := range list.Entities {
			t.Examples = append(t.Examples, sweep.Example{Kept: string(inspect.KeptOutside), Namespace: e.Namespace,
				ID: e.ID, Value: e.Value})
		}
	}
}

// printPreview says what a dry run found beyond the table.
func printPreview(w io.Writer, t sweep.TargetResult) {
	if f := t.WouldTrip; f != nil {
		fmt.Fprintf(w, "%s: with --apply its breaker would trip: %s: %s are due, more than %s\n", t.Name, f.Rule,
			grouped(f.Due), grouped(f.Limit))
		for _, bar := range f.Histogram {
			fmt.Fprintf(w, "%s:   %s: %s in generation %08d\n", t.Name, span(bar), grouped(bar.N), bar.Generation)
		}
	}
	if n := t.BehindCursors; n != nil && *n > 0 {
		by := "once their generation is sealed"
		if t.GoneBy != nil {
			by = "by the first sweep after " + t.GoneBy.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s: behind the cursors: %s, %s\n", t.Name, about(t, *n), by)
	}
	byReason := map[string][]string{}
	for _, x := range t.Examples {
		text := x.ID
		if x.Namespace != "" {
			text += "@" + x.Namespace
		}
		byReason[x.Kept] = append(byReason[x.Kept], printable(text))
	}
	for _, kept := range inspect.KeptReasons() {
		if ids := byReason[string(kept)]; len(ids) > 0 {
			fmt.Fprintf(w, "%s: %s, for example: %s\n", t.Name, kept, strings.Join(ids, ", "))
		}
	}
	if t.Estimated {
		fmt.Fprintf(w, "%s: one page of each range was checked, the rest was counted: --exact checks all\n", t.Name)
	}
}

// about returns a number of a result for people; one that a dry run has estimated begins with a ~.
func about(t sweep.TargetResult, n int64) string {
	if t.Estimated {
		return "~" + grouped(n)
	}
	return grouped(n)
}

// brake says for people what holds a target.
func brake(t sweep.TargetResult) string {
	switch throttle.Reason(t.Held) {
	case throttle.ReasonPaused:
		return "paused" + byAndWhy(t.Actor, t.Reason)
	case throttle.ReasonBreaker, throttle.ReasonLimit, throttle.ReasonArchive, throttle.ReasonRecord:
		return t.Held + " " + printable(t.Reason)
	}
	return t.Held
}

// byAndWhy says who changed a switch, and why, if the record tells.
func byAndWhy(actor, reason string) (text string) {
	if actor != "" {
		text += " by " + printable(actor)
	}
	if reason != "" {
		text += " (" + printable(reason) + ")"
	}
	return text
}

// printable replaces control characters, which a terminal would obey. Reaper writes none
// into a record, but other programs may.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// deletedBefore says how much a sweep deleted before its target was held.
func deletedBefore(t sweep.TargetResult, apply bool) string {
	switch {
	case !apply:
		return "with --apply nothing would be deleted"
	case t.Deleted == 0:
		return "nothing was deleted"
	case t.Deleted == 1:
		return "1 was deleted before"
	}
	return grouped(t.Deleted) + " were deleted before"
}

// pushTimeout bounds how long the end of a sweep waits for a Pushgateway.
const pushTimeout = 10 * time.Second

// sweepError says which targets failed.
func sweepError(res sweep.Result) error {
	var all []error
	for _, t := range res.Targets {
		if t.Err != nil {
			all = append(all, fmt.Errorf("target %s: %w", t.Name, t.Err))
		}
	}
	return errors.Join(all...)
}

// exitOfSweep returns the exit of a sweep or an audit that failed, or that a breaker holds.
func exitOfSweep(res sweep.Result) error {
	switch {
	case res.Failed():
		return &exit{exitFailed, sweepError(res)}
	case isTripped(res):
		return &exit{exitBreaker, errTripped}
	}
	return nil
}

// wasStopped reports whether the sweep of a target ended early, and nothing that holds it says why.
func wasStopped(t sweep.TargetResult) bool { return !t.Complete && t.Held == "" }

func printSweep(w io.Writer, res sweep.Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	third := "deleted"
	if !res.Apply {
		third = "would delete"
	}
	fmt.Fprintf(table, "target\texpired\t%s\tkept\toutside\tranges\tseconds\t\n", third)
	for _, t := range res.Targets {
		if t.Error != "" && t.Ranges == 0 {
			continue // it failed before its ranges were known
		}
		gone := t.Deleted
		if !res.Apply {
			gone = t.Expired
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%.1f\t\n", t.Name, about(t, t.Expired), about(t, gone),
			grouped(t.Suspect+t.Malformed+t.Mismatch), grouped(t.Outside), t.Ranges-t.Incomplete, t.Ranges, res.Duration)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, t := range res.Targets {
		if t.Held != "" {
			fmt.Fprintf(w, "%s: held: %s: %s\n", t.Name, brake(t), deletedBefore(t, res.Apply))
		}
		if t.Suspect+t.Malformed > 0 {
			fmt.Fprintf(w, "%s: kept %s suspect (implausibly old) and %s malformed\n",
				t.Name, grouped(t.Suspect), grouped(t.Malformed))
		}
		if t.Mismatch > 0 {
			fmt.Fprintf(w, "%s: kept %s that are due by a key which disagrees with the rule of their adoption\n",
				t.Name, grouped(t.Mismatch))
		}
		if t.Descendants > 0 {
			fmt.Fprintf(w, "%s: %s descendants %s before what they lay below\n", t.Name, grouped(t.Descendants), went(res.Apply))
		}
		if t.Archived > 0 {
			fmt.Fprintf(w, "%s: the archive %s %s of what %s\n", t.Name, has(res.Apply), about(t, t.Archived), went(res.Apply))
		}
		printPreview(w, t)
		if t.EmptyIndex {
			fmt.Fprintf(w, "%s: holds entities, but none has an entry in any range: "+
				"check the property's name and index\n", t.Name)
		}
		if t.EmptyKind {
			fmt.Fprintf(w, "%s: its kind holds no entity: if there should be some, check how it is spelt\n", t.Name)
		}
	}
	switch {
	case res.Failed(): // the error is printed instead
	case !res.Complete && slices.ContainsFunc(res.Targets, wasStopped):
		fmt.Fprintln(w, "not complete: stopped before the end, or blocked by contention; "+
			"the next sweep resumes from here")
	case !res.Apply:
		fmt.Fprintln(w, "nothing was deleted: this was a dry run. Delete with --apply")
	}
	return nil
}

// went and has say what a sweep did, or a dry run foresees.
func went(apply bool) string {
	if apply {
		return "went"
	}
	return "would go"
}

func has(apply bool) string {
	if apply {
		return "has"
	}
	return "would get"
}
