package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
)

// A repairOrder is what the flags of doctor say of a repair.
type repairOrder struct {
	id, olderThan string
	names         []string
}

func (o *repairOrder) addFlags(cmd *cobra.Command) {
	addApply(cmd.Flags(), "with --repair: change something")
	addSettings(cmd.Flags(), "actor")
	cmd.Flags().StringVar(&o.id, "repair", "", "mend findings of this id: "+strings.Join(repair.IDs(), ", "))
	cmd.Flags().StringArrayVar(&o.names, "name", nil,
		"with --repair: a target, not in the targets file, whose records are removed; may be repeated")
	cmd.Flags().StringVar(&o.olderThan, "older-than", "",
		"with --repair: how long nothing must have been heard of a process (1h) or a target (30d)")
}

// check refuses flags that do not go together.
func (o *repairOrder) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if given("repair") {
		for _, name := range []string{"wait", "strict", "writers", "sample"} {
			if given(name) {
				return wrongUsage("--%s goes with no --repair: leave one of them out", name)
			}
		}
		if o.id == "" {
			return wrongUsage("--repair is empty: want %s", strings.Join(repair.IDs(), ", "))
		}
	} else {
		for _, name := range []string{"apply", "name", "older-than"} {
			if given(name) {
				return wrongUsage("--%s is for --repair only", name)
			}
		}
	}
	for _, name := range []string{"wait", "strict"} {
		if given("writers") && given(name) {
			return wrongUsage("--%s is for an examination: leave it out with --writers", name)
		}
	}
	if given("sample") && !given("writers") {
		return wrongUsage("--sample is for --writers only")
	}
	return o.checkNames()
}

// checkNames refuses names that no target can have: nothing would be found of them, as if that were right.
func (o *repairOrder) checkNames() error {
	for _, name := range o.names {
		if err := config.TargetName(name); err != nil {
			return wrongUsage("--name %q %v", name, err)
		}
	}
	return nil
}

// config returns what is to be repaired; the store is not open yet.
func (o *repairOrder) config(s *session, now func() time.Time) (c repair.Config, err error) {
	c = repair.Config{ID: o.id, Spec: s.Store.String(), Names: o.names, Apply: s.Apply}
	if o.olderThan != "" {
		if c.OlderThan, err = readPositive("--older-than", o.olderThan); err != nil {
			return c, err
		}
	}
	all := *s
	all.targets, all.db = s.Targets, &database{}
	c.All = sweepConfig(&all, now).Targets
	if err := c.Check(); err != nil {
		return c, &exit{exitUsage, err}
	}
	return c, nil
}

// mend makes one repair.
func mend(a *app, cmd *cobra.Command, o repairOrder) (err error) {
	s, err := a.loadTargets(cmd)
	if err != nil {
		return err
	}
	c, err := o.config(s, a.now)
	if err != nil {
		return err
	}
	if repair.TakesNames(c.ID) && len(a.targets) > 0 {
		return wrongUsage("--target selects from the targets file: name a target that is not there with --name")
	}
	a.quiet = !s.Apply
	if err := a.connect(cmd.Context(), s, false); err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	c.Sweep = s.sweep
	res, runErr := repair.Run(cmd.Context(), c)
	if err := a.print(res, func(w io.Writer) error {
		_, err := io.WriteString(w, repairText(res, runErr))
		return err
	}); err != nil {
		return errors.Join(err, runErr)
	}
	if runErr != nil {
		return interrupted(cmd.Context(), runErr)
	}
	if res.Failed() {
		return &exit{exitFailed, nil}
	}
	return nil
}

// interrupted returns what a person who has ended a repair should know.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("the repair was interrupted, and the same command completes it: %w", err)
}

// mostShown bounds how many lines of a kind a repair shows to people.
const mostShown = 20

// repairText shows a repair to people.
func repairText(r repair.Result, err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", printable(r.Store))
	more := 0
	for i, c := range r.Changes {
		if i >= mostShown {
			more++
			continue
		}
		fmt.Fprintf(&b, "  %-8s %s: %s\n", c.Action, printable(c.Target), changeText(r, c))
		for _, e := range c.Evidence {
			fmt.Fprintf(&b, "           %s\n", printable(e))
		}
	}
	writeMoreLines(&b, more)
	writeLeft(&b, r.Left)
	fmt.Fprintf(&b, "%s\n", repairSummary(r, err))
	return b.String()
}

// writeLeft shows what stays, and what several targets have in common once.
func writeLeft(b *strings.Builder, list []repair.Left) {
	type reason struct{ record, key, why string }
	targets, order := map[reason][]string{}, []reason{}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b repair.Left) int { // what is not right is shown in any case
		switch {
		case a.Failed == b.Failed:
			return 0
		case a.Failed:
			return -1
		}
		return 1
	})
	for _, l := range list {
		one := reason{l.Record, l.Key, l.Why}
		if l.Key == l.Target {
			one.key = ""
		}
		if targets[one] == nil {
			order = append(order, one)
		}
		targets[one] = append(targets[one], l.Target)
	}
	for i, one := range order {
		if i == mostShown {
			writeMoreLines(b, len(order)-i)
			return
		}
		record := ""
		if one.record != "" {
			record = strings.TrimSpace(one.record+" "+printable(one.key)) + ": "
		}
		fmt.Fprintf(b, "  %-8s %s: %s%s\n", "left", someOf(targets[one]), record, printable(one.why))
	}
}

func writeMoreLines(b *strings.Builder, more int) {
	if more > 0 {
		fmt.Fprintf(b, "  and %s more (--json has all)\n", grouped(int64(more)))
	}
}

// changeText says what is changed of what, and how far that is.
func changeText(r repair.Result, c repair.Change) string {
	what := c.Record + " " + printable(c.Key)
	if c.Key == "" {
		what = counted(int64(c.Count), "record", "records") + " " + c.Record
	}
	if r.Apply && c.Done < c.Count {
		what += fmt.Sprintf(", of which %s done", grouped(int64(c.Done)))
	}
	return what
}

func repairSummary(r repair.Result, err error) string {
	done, planned := 0, 0
	for _, c := range r.Changes {
		done, planned = done+c.Done, planned+c.Count
	}
	var text string
	switch {
	case planned == 0 && err != nil, planned == 0 && r.Failed():
		text = "nothing was changed"
	case planned == 0 && len(r.Left) > 0:
		text = "nothing to repair: what was examined is right, or stays for the reason given"
	case planned == 0:
		text = "nothing to repair: no " + r.Repair + " that this can mend"
	case !r.Apply:
		text = "nothing was changed: with --apply " + counted(int64(planned), "record", "records") + " would be"
		if repair.TakesNames(r.Repair) {
			text += ", of those targets that --name names"
		}
	default:
		text = counted(int64(done), "record was", "records were") + " changed"
	}
	if r.Kept != "" && slices.ContainsFunc(r.Changes, func(c repair.Change) bool { return c.Count > 0 }) {
		text += "; " + r.Kept
	}
	return text
}
