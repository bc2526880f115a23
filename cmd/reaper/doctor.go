package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

func doctorCommand(a *app) *cobra.Command {
	var strict, writers bool
	var wait string
	var sample int
	var o repairOrder
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what keeps targets from being swept rightly, and how to mend it",
		Long:  doctorLong,
		Example: `  reaper doctor
  reaper doctor --target sessions --wait 60s
  reaper doctor --strict --json
  reaper doctor --writers --target sessions --sample 5000
  reaper doctor --repair worker-dead --apply
  reaper doctor --repair target-unconfigured --name old-sessions`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			switch {
			case o.id != "":
				return mend(a, cmd, o)
			case writers:
				return showWriters(a, cmd, sample)
			}
			return examine(a, cmd, wait, strict)
		},
	}
	addSettings(cmd.Flags(), "workers", "schedule")
	o.addFlags(cmd)
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&writers, "writers", false, "show with what entities are stamped, by the hour of their last write")
	cmd.Flags().IntVar(&sample, "sample", defaultSample, "with --writers: most entities to read of each target")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 if there is a warning, too")
	cmd.Flags().StringVar(&wait, "wait", doctor.DefaultWithin.String(), "how long all checks together may take")
	return cmd
}

const doctorLong = `Doctor examines the configuration, the credentials, the database, its indexes, the clock, the
processes and the data, and names what is wrong, with evidence and the command or the step
that mends it. docs/doctor.md explains each finding.

It writes nothing, except with --repair and --apply. All checks are made, whatever others find,
and at the same time; they end within --wait. What could not be checked is listed, with the
reason: an emulator, for example, knows neither permissions nor index definitions.

It reads the records of each target, samples up to 70 entities of each, and otherwise costs
what reaper status --all does, and the first page of reaper list for each reason.

With --writers it makes no checks. It samples entities of each target, in up to 20 places that
are spread over its keys, and counts their keys by generation and by the hour of their last
write: who still stamps the nursery, no key, or one that no rule explains. Each entity costs a
read; --sample says how many are read at most.

With --repair ID it mends one kind of finding, and looks for no others. Without --apply, or
with REAPER_APPLY alone, it only says what it would change. With it, each change is a
compare-and-set, so a process that sweeps at the same time is never overruled, and what has
healed meanwhile stays. It never touches an entity. These can be repaired:

  record-lost          the target record is made again from the index, as the next sweep
  record-malformed     would do without it; what pause and pace have set stays if it can
                       be read, and if it cannot the target is paused
  target-unconfigured  records of a target that nobody uses are removed: name it with
  target-renamed       --name. It must not be in the targets file, paused, held or being
                       adopted; no process may work on it; and no record may show that it
                       was used within --older-than (default 30d, at least 1h)
  worker-dead          heartbeats that were written longer than --older-than ago (default
                       1h) are removed

Exit codes: 0 if there is no error (warnings do not count without --strict), or if all that was
to be mended is right; 1 if there is an error, or something was not mended; 2 for wrong usage
or configuration.`

func examine(a *app, cmd *cobra.Command, wait string, strict bool) error {
	within, err := readPositive("--wait", wait)
	if err != nil {
		return err
	}
	s, err := a.loadTargets(cmd)
	if err != nil {
		return err
	}
	log := s.log
	s.log = slog.New(slog.DiscardHandler) // where the store is stands in the report
	openErr := a.connect(cmd.Context(), s, false)
	switch {
	case errors.Is(openErr, store.ErrLocked): // another process answers
		return openErr
	case openErr != nil:
		log.DebugContext(cmd.Context(), "the store cannot be opened", "error", openErr)
		s.db = &database{close: func() error { return nil }}
		s.sweep = sweepConfig(s, a.now)
	}
	s.fillSchedules()
	setup := doctorSetup(s, openErr)
	setup.Within = within
	report := doctor.Run(cmd.Context(), setup)
	if err := s.db.close(); err != nil {
		log.WarnContext(cmd.Context(), "cannot close the store", "error", err)
	}
	err = a.print(report, func(w io.Writer) error {
		_, err := io.WriteString(w, doctorText(report, cmd.Context().Err() != nil))
		return err
	})
	if err != nil {
		return err
	}
	if cmd.Context().Err() != nil {
		return failed(errors.New("the examination was stopped before its end"))
	}
	if report.Count(doctor.Error) > 0 || strict && report.Count(doctor.Warning) > 0 {
		return &exit{exitFailed, nil}
	}
	return nil
}

// doctorSetup returns what a doctor has to examine. OpenErr is why the store could not be opened.
func doctorSetup(s *session, openErr error) doctor.Setup {
	all := *s
	all.targets = s.Targets
	setup := doctor.Setup{Spec: s.Store.String(), Mode: modeOf(s.Store.Driver), Sweep: s.sweep, OpenErr: openErr,
		All: sweepConfig(&all, s.sweep.Now).Targets, Getenv: os.Getenv}
	if e, ok := s.db.Store.(interface{ Endpoint() string }); ok {
		setup.Endpoint = e.Endpoint()
	}
	return setup
}

// modeOf returns the mode that a database must be in for a driver; empty for an embedded store.
func modeOf(d config.Driver) string {
	switch d {
	case config.Datastore:
		return facts.DatastoreMode
	case config.Firestore:
		return facts.NativeMode
	case config.Embedded:
	}
	return ""
}

// mostTargets bounds how many targets one finding, or one check that was not made, names.
const mostTargets = 5

// doctorText shows a report to people: by group, and what several targets have in common once.
func doctorText(r doctor.Report, stopped bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n", printable(r.Store), endpointText(r))
	if r.Database != nil {
		fmt.Fprintf(&b, "%s\n", databaseText(*r.Database))
	}
	for _, g := range doctor.Groups() {
		writeGroup(&b, g, r.Findings)
	}
	writeUnchecked(&b, r.Unchecked)
	fmt.Fprintf(&b, "\n%s\n", summaryText(r, stopped))
	return b.String()
}

func endpointText(r doctor.Report) string {
	if r.Endpoint == "" {
		return ""
	}
	return " at " + printable(r.Endpoint)
}

func databaseText(d facts.Database) string {
	parts := []string{d.Mode + " mode", d.Edition + " edition", d.Location, d.Concurrency}
	switch {
	case d.Recovery == nil:
	case *d.Recovery && !d.Earliest.IsZero():
		parts = append(parts, "recovery since "+timeText(d.Earliest))
	case *d.Recovery:
		parts = append(parts, "point-in-time recovery on")
	}
	var known []string
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" && p != "mode" && p != "edition" {
			known = append(known, printable(p))
		}
	}
	return strings.Join(known, ", ")
}

// writeGroup shows the findings of a group. Those of one id that differ in their target alone, or
// of more targets than fit on a screen, are shown once.
func writeGroup(b *strings.Builder, g doctor.Group, findings []doctor.Finding) {
	byID, ids := map[string][]doctor.Finding{}, []string{}
	for _, f := range findings {
		if f.Group != g {
			continue
		}
		if byID[f.ID] == nil {
			ids = append(ids, f.ID)
		}
		byID[f.ID] = append(byID[f.ID], f)
	}
	if len(ids) > 0 {
		fmt.Fprintf(b, "\n%s\n", g)
	}
	for _, id := range ids {
		list := byID[id]
		for i, f := range list {
			if i == mostTargets {
				writeMore(b, list[i:])
				break
			}
			writeFinding(b, f)
		}
	}
}

func writeFinding(b *strings.Builder, f doctor.Finding) {
	target := ""
	if f.Target != "" {
		target = printable(f.Target) + ": "
	}
	fmt.Fprintf(b, "  %-7s %s%s [%s]\n", f.Severity, target, printable(f.What), f.ID)
	for _, e := range f.Evidence {
		fmt.Fprintf(b, "          %s\n", printable(e))
	}
	if f.Mend != "" {
		fmt.Fprintf(b, "          -> %s\n", printable(f.Mend))
	}
}

// writeMore names the targets of findings that are not shown.
func writeMore(b *strings.Builder, list []doctor.Finding) {
	var names []string
	for _, f := range list {
		names = append(names, f.Target)
	}
	fmt.Fprintf(b, "  %-7s likewise %s [%s]\n", list[0].Severity, someOf(names), list[0].ID)
}

// someOf names some of a list, and says how many there are more.
func someOf(names []string) string {
	more := ""
	if n := len(names) - mostTargets; n > 0 {
		names, more = names[:mostTargets], fmt.Sprintf(" and %s more", grouped(int64(n)))
	}
	return printable(strings.Join(names, ", ")) + more
}

func writeUnchecked(b *strings.Builder, list []doctor.Unchecked) {
	type reason struct{ id, why string }
	targets, order := map[reason][]string{}, []reason{}
	for _, u := range list {
		r := reason{u.ID, u.Why}
		if _, ok := targets[r]; !ok {
			order = append(order, r)
		}
		targets[r] = append(targets[r], u.Target)
	}
	if len(order) > 0 {
		fmt.Fprint(b, "\nunchecked\n")
	}
	for _, r := range order {
		of := ""
		if names := targets[r]; names[0] != "" {
			of = " of " + someOf(names)
		}
		fmt.Fprintf(b, "  %s%s: %s\n", r.id, of, printable(r.why))
	}
}

func summaryText(r doctor.Report, stopped bool) string {
	parts := []string{}
	for _, p := range []struct {
		severity  doctor.Severity
		one, more string
	}{{doctor.Error, "error", "errors"}, {doctor.Warning, "warning", "warnings"}, {doctor.Info, "note", "notes"}} {
		if n := r.Count(p.severity); n > 0 {
			parts = append(parts, counted(int64(n), p.one, p.more))
		}
	}
	switch {
	case stopped:
		parts = append(parts, "stopped before its end")
	case len(parts) == 0:
		parts = []string{"healthy"}
	}
	text := fmt.Sprintf("%s: %s of %s in %.1f s", strings.Join(parts, ", "), counted(int64(r.Checks), "check", "checks"),
		counted(int64(len(r.Targets)), "target", "targets"), r.Duration)
	if n := len(r.Unchecked); n > 0 {
		text += fmt.Sprintf("; %s not checked", grouped(int64(n)))
	}
	if len(r.Findings) > 0 {
		text += ". " + doctor.Page + " explains each [finding]"
	}
	return text
}

// fillSchedules gives each target the schedule that it is swept by: its own, or the process's.
func (s *session) fillSchedules() {
	for i, t := range s.targets {
		s.sweep.Targets[i].Next = s.schedule(t).Next
	}
}
