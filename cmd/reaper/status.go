package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A statusResult is what status --json prints.
type statusResult struct {
	Store   string                 `json:"store"`
	Now     time.Time              `json:"now"`
	Targets []inspect.TargetStatus `json:"targets"`
}

func statusCommand(a *app) *cobra.Command {
	var all, watch bool
	var interval string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each target's verdict, delay, backlog, workers and ranges",
		Long: `Status begins with a verdict for each target, the first of these that holds:

  HELD     its breaker is open, its gate is closed, its limits are used up, its archive
           cannot be written, or a record cannot be read or written
  PAUSED   an operator has paused it
  FAILING  something has been due for as long as with BEHIND, and nobody works on it
  DRY RUN  likewise, and nobody has ever swept it with --apply
  BEHIND   something has been due for longer than two ticks of its schedule and a minute
  UNKNOWN  the store did not answer in time
  IDLE     nothing is due
  OK       something is due, and not for long

Then it shows how long the oldest due entity has waited, how many entities are due, when
they will be gone, which processes work on the target, and the five ranges that have waited
for the longest. It answers within five seconds, and names what it could not read by then.
If it could not read the target's records, it exits with 1.

The backlog includes the due entities behind the cursors: those written late, and those
that the store refused to delete. A later read of the range from its start handles them;
status says by when. With --all it also counts what is due in ranges at rest, and looks
for keys of generations that have retired. Of a range that it could not read in time it
goes by its record, if that is at most a minute old.

Status writes nothing. It costs a query for each range, and a COUNT for each range in which
something is due; and another query for each range that does not rest, or with --all for
each. Where that finds something behind the cursor, it reads up to 101 entries there, and
counts if there are more. --watch looks there every ten minutes only. A dry run leaves
nothing in the store that status could show.`,
		Example: `  reaper status
  reaper status --target sessions --all
  reaper status --watch --interval 10s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			every, err := readInterval(cmd, interval)
			switch {
			case err != nil:
				return err
			case watch && a.json:
				return wrongUsage("--watch cannot be combined with --json: that is exactly one document")
			case watch:
				return watchStatus(a, cmd, every, all)
			}
			return a.inSession(cmd, func(ctx context.Context, s *session) error { return showStatus(ctx, s, all) })
		},
	}
	addSettings(cmd.Flags(), "workers", "schedule")
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "list all ranges and workers, and count what is due in ranges at rest")
	cmd.Flags().BoolVar(&watch, "watch", false, "repeat until interrupted")
	cmd.Flags().StringVar(&interval, "interval", "5s", "with --watch: how long from one status to the next, at least 1s")
	return cmd
}

// readInterval reads how often a status is repeated.
func readInterval(cmd *cobra.Command, text string) (time.Duration, error) {
	d, err := readPositive("--interval", text)
	switch {
	case err != nil:
		return 0, err
	case d < time.Second:
		return 0, wrongUsage("--interval: %s is less than 1s: a status costs a query for each range", text)
	case cmd.Flags().Changed("interval") && !cmd.Flags().Changed("watch"):
		return 0, wrongUsage("--interval is for --watch only")
	}
	return d, nil
}

func showStatus(ctx context.Context, s *session, all bool) error {
	res, err := readStatus(ctx, s, all, statusResult{})
	return errors.Join(s.print(res, func(w io.Writer) error {
		_, werr := w.Write(s.screen.render(res, all))
		return werr
	}), err)
}

// readStatus reads the status of all targets at the same time, within the same five seconds. What the last
// one has counted behind the cursors is not counted again for a while.
func readStatus(ctx context.Context, s *session, all bool, last statusResult) (res statusResult, err error) {
	behind := map[string]inspect.BehindCount{}
	for _, t := range last.Targets {
		behind[t.Name] = t.BehindCount
	}
	s.Workers = max(s.Workers, len(s.targets))
	s.fillSchedules()
	res = statusResult{Store: s.Store.String(), Now: s.now().UTC()}
	res.Targets, err = eachTarget(s, func(t sweep.Target) (st inspect.TargetStatus, err error) {
		return s.statusOf(ctx, t, inspect.Look{All: all, Last: behind[t.Name]})
	})
	for _, t := range res.Targets {
		if t.Err != nil {
			err = errors.Join(err, fmt.Errorf("target %s: %w", t.Name, t.Err))
		}
	}
	return res, err
}

// statusOf reads the status of a target, and which target replaces it.
func (s *session) statusOf(ctx context.Context, t sweep.Target, l inspect.Look) (st inspect.TargetStatus, err error) {
	var by supersession
	var group errgroup.Group
	background.Go(&group, func() error {
		by = s.supersession(ctx, t)
		return nil
	})
	st, err = inspect.StatusWith(ctx, s.sweep, t, l)
	if perr := group.Wait(); perr != nil { // a panic
		return st, perr
	}
	by.fill(&st)
	return st, err
}

// A screen is what a status is shown on.
type screen struct {
	width  int  // most characters in a line; 0 means no limit
	redraw bool // each status replaces the one before
}

// terminalWidth is how wide a status is on a terminal.
const terminalWidth = 80

func newScreen(isTerminal bool) screen {
	if isTerminal {
		return screen{terminalWidth, true}
	}
	return screen{}
}

// watchStatus shows the status of the targets again and again, until it is interrupted. If
// one fails, it shows the error and goes on: the next one may succeed.
func watchStatus(a *app, cmd *cobra.Command, every time.Duration, all bool) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer func() {
		if s != nil {
			s.db.closeInto(&err)
		}
	}()
	to := a.screen
	var last statusResult
	return to.repeat(cmd.Context(), a.stdout, every, func(ctx context.Context) []byte {
		if s == nil {
			if s, err = a.begin(cmd); err != nil {
				return to.failure(err)
			}
		}
		res, err := readStatus(ctx, s, all, last)
		last = res
		text := to.render(res, all)
		if err != nil {
			text = append(text, to.failure(err)...)
		}
		if s.Store.Driver == config.Embedded { // another process may wait for its directory
			s.db.closeInto(&err)
			s = nil
		}
		return text
	})
}

// failure shows why a status could not be read.
func (to screen) failure(err error) []byte { return []byte(to.wrapped("", "reaper: "+err.Error())) }

// repeat calls look again and again, and shows what it returns, until ctx is done. That is
// not an error: a person ends it so. What an interrupted look returns is not shown.
func (to screen) repeat(
	ctx context.Context, out io.Writer, every time.Duration, look func(context.Context) []byte,
) error {
	const home, clearBelow, clearRight = "\x1b[H", "\x1b[J", "\x1b[K"
	for first := true; ctx.Err() == nil; first = false {
		text := look(ctx)
		if ctx.Err() != nil {
			break
		}
		switch {
		case to.redraw: // line by line over the status before, so that nothing flickers
			text = bytes.ReplaceAll(text, []byte("\n"), []byte(clearRight+"\n"))
			text = append(append([]byte(home), text...), clearBelow...)
			if first {
				text = append([]byte(home+clearBelow), text...)
			}
		case !first:
			text = append([]byte("\n"), text...)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
		_ = throttle.Sleep(ctx, every) // it fails once ctx is done
	}
	return nil //nolint:nilerr // a person has ended it
}
