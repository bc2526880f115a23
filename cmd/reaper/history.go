package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/sweep"
)

// A historyResult is what history --json prints.
type historyResult struct {
	Store   string                  `json:"store"`
	Now     time.Time               `json:"now"`
	Targets []inspect.TargetHistory `json:"targets"`
}

func historyCommand(a *app) *cobra.Command {
	var since string
	var q inspect.HistoryQuery
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show what was deleted, kept, changed and held, when and by whom",
		Long: `History shows the records that processes and operators leave in the store: one for each
run of sweep or audit, one for each hour in which serve had something to do, one for each
pause, resume, pace and advance, for each trip of the breaker, its approval or clear, for
each step of an adoption, for the begin and the end of orphans and restore that changed
anything, for each target record that doctor has repaired, for each generation that was
opened, sealed, drained or retired, and for each change of a target's settings or of the
program's version.

A run that was killed keeps the numbers that it had at most half a minute before. They are
marked "at least", and the process that takes its ranges over marks it as lost.

Who did it is what the process claims: --actor, REAPER_ACTOR, the credentials' e-mail, or
user@host. The audit log of the cloud is the proof.

With --check history adds up the deletes of all runs, compares the sum with what the cursor
records of the ranges count for themselves and with what processes reported to the budget of
the breaker and the limits, and says what it compared. It exits with 1 if they differ and no
run that was lost or goes on, lost lease or lost reply explains that.

History writes nothing. It costs a read for each record since then and of the day before it,
in which a run may have begun that went on, and one for each of 16 queries; --check reads all
records, and all cursor records.`,
		Example: `  reaper history
  reaper history --target sessions --since 24h --actions
  reaper history --since 2026-11-23T00:00:00Z --failed --json
  reaper history --check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if q.Since, err = readSince(since, a.now()); err != nil {
				return err
			}
			if q.Limit < 1 {
				return wrongUsage("--limit: %d is not a positive number", q.Limit)
			}
			if q.Actions && q.Failed {
				return wrongUsage("--actions cannot be combined with --failed: only runs fail")
			}
			return a.inSession(cmd, func(ctx context.Context, s *session) error { return showHistory(ctx, s, q) })
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().StringVar(&since, "since", "7d", "only what happened since then: a duration such as 24h, or an instant "+
		"such as 2026-11-23T00:00:00Z")
	cmd.Flags().IntVar(&q.Limit, "limit", defaultHistory, "show at most this many records of each target, the newest")
	cmd.Flags().BoolVar(&q.Actions, "actions", false, "only what operators, breaker and generations did, and changes "+
		"of settings and version")
	cmd.Flags().BoolVar(&q.Failed, "failed", false, "only runs that failed, were lost, or had failures")
	cmd.Flags().BoolVar(&q.Check, "check", false, "compare the sums with the counters of the ranges and with the budget")
	return cmd
}

// defaultHistory is how many records of a target are shown without --limit.
const defaultHistory = 50

// readSince reads the flag --since: an instant, or how long ago it was.
func readSince(text string, now time.Time) (time.Time, error) { return readPast("--since", text, now) }

// readPast reads a flag that is an instant, or how long ago it was.
func readPast(flag, text string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		d, derr := config.Duration(text)
		if derr != nil {
			return at, wrongUsage("%s: %q is neither a duration, such as 24h, nor an instant, such as "+
				"2026-11-23T00:00:00Z", flag, text)
		}
		if d <= 0 {
			return at, wrongUsage("%s: %s is not a positive duration, such as 24h", flag, text)
		}
		at = now.Add(-d)
	}
	if at.After(now) {
		return at, wrongUsage("%s: %s is in the future: it is %s now", flag, text, now.UTC().Format(time.RFC3339))
	}
	return at.UTC().Round(0), nil
}

func showHistory(ctx context.Context, s *session, q inspect.HistoryQuery) (err error) {
	res := historyResult{Store: s.Store.String(), Now: s.now().UTC()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (inspect.TargetHistory, error) {
		return inspect.ReadHistory(ctx, s.sweep, t, q)
	})
	for _, t := range res.Targets {
		if t.Check == nil {
			continue
		}
		if t.Check.Verdict == inspect.Differs {
			err = errors.Join(err, fmt.Errorf("target %s: the history has %d deletes, the cursor records have %d", t.Name,
				t.Check.Deleted, t.Check.Counted))
		}
		if b := t.Check.Budget; b.Verdict == inspect.Differs {
			err = errors.Join(err, fmt.Errorf("target %s: by its budget the history has %d deletes, and %d were reported to it",
				t.Name, b.Deleted, b.Reported))
		}
	}
	return printTargets(s, res, res.Targets, err, func(w io.Writer, t inspect.TargetHistory) error {
		_, err := w.Write(screen{width: terminalWidth}.history(t))
		return err
	})
}

// history shows the history of a target, in lines of at most 80 characters.
func (to screen) history(t inspect.TargetHistory) []byte {
	var b bytes.Buffer
	b.WriteString(to.wrapped("", historyTitle(t)))
	if t.More > 0 {
		fmt.Fprintf(&b, "  not shown (--limit): %s\n", counted(int64(t.More), "older record", "older records"))
	}
	for _, r := range t.Records {
		if r.Run != nil {
			to.historyRun(&b, r)
		} else {
			to.historyChange(&b, r)
		}
	}
	if len(t.Records) > 0 {
		b.WriteString(to.wrapped("  ", "who did it is as claimed: the audit log of the cloud is the proof"))
	}
	if n := t.Newer; n > 0 {
		fmt.Fprintf(&b, "  skipped: %s of a later version of reaper\n", counted(int64(n), "record", "records"))
	}
	if n := t.Malformed; n > 0 {
		fmt.Fprintf(&b, "  skipped: %s with contents that make no sense\n", counted(int64(n), "record", "records"))
	}
	if c := t.Check; c != nil {
		b.WriteString(to.wrapped("  check: ", historyCheck(*c)))
		b.WriteString(to.wrapped("  budget: ", budgetCheck(c.Budget)))
	}
	return b.Bytes()
}

func historyTitle(t inspect.TargetHistory) string {
	title := fmt.Sprintf("%s since %s: ", t.Name, instant(&t.Since))
	if len(t.Records) == 0 {
		return title + "nothing"
	}
	title += counted(int64(len(t.Records)+t.More), "record", "records")
	if t.Sums.Runs == 0 {
		return title
	}
	return title + fmt.Sprintf(", %s that deleted %s", counted(int64(t.Sums.Runs), "run", "runs"), atLeast(t.Sums.Deleted,
		t.Sums.AtLeast))
}

// atLeast shows a number that may be too low.
func atLeast(n int64, isAtLeast bool) string {
	if isAtLeast {
		return "at least " + grouped(n)
	}
	return grouped(n)
}

// historyRun shows a run: a line with what counts, and one with what else happened.
func (to screen) historyRun(b *bytes.Buffer, r inspect.HistoryRecord) {
	run := r.Run
	end := endText(run.End)
	if run.Silent {
		end = "no sign of life since " + instant(&run.Updated)
	}
	b.WriteString(to.wrapped(fmt.Sprintf("  %s  ", instant(&r.At)), fmt.Sprintf("%s deleted %s in %s, %s, by %s",
		run.Task, atLeast(run.Deleted, run.AtLeast), inspect.Age(run.Updated.Sub(r.At)), end, who(r))))
	var also []string
	for _, c := range []struct {
		n         int64
		one, many string
	}{{run.Carried, "carried", "carried"}, {run.Strays, "stray", "strays"}, {run.Conflicts, "conflict", "conflicts"},
		{run.Suspect, "suspect", "suspect"}, {run.Malformed, "malformed", "malformed"}, {run.Refused, "refused", "refused"},
		{run.Mismatch, "mismatch", "mismatches"}, {run.Failures, "failure", "failures"},
		{run.Missed, "failed write of history", "failed writes of history"}} {
		switch c.n {
		case 0:
		case 1:
			also = append(also, "1 "+c.one)
		default:
			also = append(also, grouped(c.n)+" "+c.many)
		}
	}
	if len(run.Held) > 0 {
		also = append(also, "held back by "+strings.Join(run.Held, ", "))
	}
	if len(also) > 0 {
		b.WriteString(to.wrapped(historyIndent, strings.Join(also, "; ")))
	}
	if run.Error != "" {
		b.WriteString(to.wrapped(historyIndent+"error: ", run.Error))
	}
}

// endText says why a run ended.
func endText(end history.End) string {
	switch end {
	case history.Open:
		return "goes on"
	case history.Deadline:
		return "out of time"
	case history.Signal:
		return "stopped by a signal"
	case history.Gate:
		return "held by its gate"
	case history.Breaker:
		return "held by its breaker"
	case history.Limit:
		return "held by its limits"
	}
	return string(end)
}

// historyIndent is where the second line of a record begins.
const historyIndent = "                        "

// historyChange shows a change: what, by whom, from what to what, and why.
func (to screen) historyChange(b *bytes.Buffer, r inspect.HistoryRecord) {
	c := r.Change
	what := c.What
	switch {
	case r.Kind == history.KindGeneration:
		what = fmt.Sprintf("generation %08d %s", c.Generation, c.What)
	case c.Generation > 0:
		what += fmt.Sprintf(" to generation %08d", c.Generation)
	}
	b.WriteString(to.wrapped(fmt.Sprintf("  %s  ", instant(&r.At)), what+", by "+who(r)))
	switch {
	case c.Before != "" && c.After != "":
		b.WriteString(to.wrapped(historyIndent, c.Before+" -> "+c.After))
	case c.Before+c.After != "":
		b.WriteString(to.wrapped(historyIndent, c.Before+c.After))
	}
	if c.Reason != "" {
		b.WriteString(to.wrapped(historyIndent+"reason: ", c.Reason))
	}
}

// who says who wrote a record.
func who(r inspect.HistoryRecord) string {
	if r.Actor == "" {
		return r.Owner
	}
	return r.Actor
}

// historyCheck says what was compared, and how it came out.
func historyCheck(c inspect.HistoryCheck) string {
	if c.Verdict == inspect.NotCompared {
		return "not compared: " + c.Why
	}
	return fmt.Sprintf("%s: %s. Deleted since %s: %s by the history (%s), %s by %s and %s",
		c.Verdict, c.Why, instant(&c.Since), grouped(c.Deleted), counted(int64(c.Runs), "run", "runs"), grouped(c.Counted),
		counted(int64(c.Ranges), "cursor record", "cursor records"),
		counted(int64(c.Retired), "retired generation", "retired generations"))
}

// budgetCheck says how the account of the budget came out.
func budgetCheck(b inspect.BudgetCheck) string {
	switch {
	case b.Verdict == inspect.NotCompared:
		return "not compared: " + b.Why
	case b.Since == nil:
		return fmt.Sprintf("%s: %s", b.Verdict, b.Why)
	}
	return fmt.Sprintf("%s: %s. Deleted by the budget since %s: %s by the history, %s as reported to it", b.Verdict, b.Why,
		instant(b.Since), grouped(b.Deleted), grouped(b.Reported))
}
