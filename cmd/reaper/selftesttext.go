package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/selftest"
)

// selftestText shows a report to people: what passed in numbers, all else in full.
func selftestText(r selftest.Report) string {
	var b strings.Builder
	at := ""
	if r.Endpoint != "" {
		at = " at " + printable(r.Endpoint)
	}
	fmt.Fprintf(&b, "%s%s, self-test %s\n", printable(r.Store), at, r.ID)
	for _, g := range selftest.Groups() {
		writeChecks(&b, g, r.Results)
	}
	writeReasons(&b, r.Results)
	writeLatencies(&b, r.Latencies)
	fmt.Fprint(&b, "\ndifferences from the emulator\n")
	for _, d := range r.Differences {
		fmt.Fprintf(&b, "  %s: %s; the emulator: %s\n", d.What, d.Here, d.Emulator)
	}
	if len(r.Differences) == 0 {
		fmt.Fprint(&b, "  none was seen\n")
	}
	fmt.Fprintln(&b)
	for _, c := range r.Earlier {
		fmt.Fprintf(&b, "an earlier self-test: %s\n", cleanedText(c))
	}
	fmt.Fprintf(&b, "%s\n\n", cleanedText(r.Cleaned))
	if r.Stopped != "" {
		fmt.Fprintf(&b, "stopped before its end: %s\n", printable(r.Stopped))
	}
	cost := ""
	if r.Dollars > 0 {
		cost = fmt.Sprintf(", at most $%.4f", r.Dollars)
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d not checked in %.1f s; %s, %s, %s%s. %s explains each [check]\n",
		r.Count(selftest.Passed), r.Count(selftest.Failed), r.Count(selftest.Unchecked), r.Duration,
		counted(r.Operations.Reads, "read", "reads"), counted(r.Operations.Writes, "write", "writes"),
		counted(r.Operations.Deletes, "delete", "deletes"), cost, selftest.Page)
	return b.String()
}

// writeChecks shows the checks of a group: those that failed, those of few that passed with what
// was seen, and of many that passed their number.
func writeChecks(b *strings.Builder, g selftest.Group, all []selftest.Result) {
	passed, any := 0, false
	var failed, seen strings.Builder
	for _, c := range all {
		if c.Group != g {
			continue
		}
		any = true
		switch c.Status {
		case selftest.Passed:
			passed++
			if len(c.Evidence) > 0 {
				fmt.Fprintf(&seen, "  passed  %s\n", c.Name)
				writeEvidence(&seen, c.Evidence)
			}
		case selftest.Failed:
			fmt.Fprintf(&failed, "  FAILED  %s [%s]\n", printable(c.What), c.Name)
			writeEvidence(&failed, c.Evidence)
		case selftest.Unchecked:
		}
	}
	if any {
		fmt.Fprintf(b, "\n%s: %d passed\n%s%s", g, passed, failed.String(), seen.String())
	}
}

func writeEvidence(b *strings.Builder, list []string) {
	for _, e := range list {
		for line := range strings.Lines(e) {
			fmt.Fprintf(b, "          %s\n", printable(strings.TrimRight(line, "\n")))
		}
	}
}

// writeReasons shows what could not be checked, by its reason.
func writeReasons(b *strings.Builder, all []selftest.Result) {
	names, reasons := map[string][]string{}, []string{}
	for _, c := range all {
		if c.Status == selftest.Unchecked {
			if names[c.Why] == nil {
				reasons = append(reasons, c.Why)
			}
			names[c.Why] = append(names[c.Why], c.Name)
		}
	}
	if len(reasons) > 0 {
		fmt.Fprint(b, "\nnot checked\n")
	}
	for _, why := range reasons {
		fmt.Fprintf(b, "  %s: %s\n", someOf(names[why]), printable(why))
	}
}

func writeLatencies(b *strings.Builder, list []selftest.Latency) {
	fmt.Fprintf(b, "\n%-11s %7s %7s %10s %10s %10s\n", "calls", "number", "failed", "median", "95 %", "longest")
	ms := func(seconds float64) string {
		return fmt.Sprintf("%.1f ms", float64(time.Duration(seconds*float64(time.Second)).Microseconds())/1000)
	}
	for _, l := range list {
		fmt.Fprintf(b, "  %-9s %7d %7d %10s %10s %10s\n", l.Call, l.Count, l.Failed, ms(l.Median), ms(l.P95), ms(l.Longest))
	}
}

// cleanedText says what cleaning up has done.
func cleanedText(c selftest.Cleaned) string {
	state := fmt.Sprintf("%s%s is empty", selftest.KindPrefix, c.ID)
	switch {
	case len(c.Foreign) > 0:
		state = fmt.Sprintf("%s%s is NOT empty: the self-test did not write %s, and keeps what others wrote",
			selftest.KindPrefix, c.ID, printable(strings.Join(c.Foreign, ", ")))
	case c.Error != "":
		state = fmt.Sprintf("NOT everything is removed: %s. Repeat: reaper selftest --clean %s", printable(c.Error), c.ID)
	}
	return fmt.Sprintf("cleaned up %s: %s and %s removed in %.1f s; %s", c.ID, counted(c.Entities, "entity", "entities"),
		counted(c.Records, "record", "records"), c.Duration, state)
}
