package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/metrics"
)

// history runs reaper history --json, for the one target.
func (b *workdir) history(args ...string) inspect.TargetHistory {
	b.t.Helper()
	var res historyResult
	out := b.must(nil, append([]string{"history", "--json"}, args...)...).out
	if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.Targets) != 1 {
		b.t.Fatalf("%v: %s", err, out)
	}
	return res.Targets[0]
}

// Afterwards anybody can say what was deleted, when and by whom, and the sums agree with what
// the ranges count for themselves: on every store.
func TestHistoryOfAStore(t *testing.T) {
	noRaces(t)
	settings := strings.ReplaceAll(oneTarget, "    breaker: off\n", "")
	for name, open := range map[string]func(*testing.T) *workdir{
		"embedded": func(t *testing.T) *workdir { return newEmbedded(t, settings) },
		"datastore": func(t *testing.T) *workdir {
			b, _, _ := newDatastore(t, settings)
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			ndjson, _ := sessions(200, time.Now())
			b.must(strings.NewReader(ndjson), "load")
			if got := b.must(nil, "history", "--check").out; !strings.Contains(got, "not compared: no process") {
				t.Errorf("before the first sweep:\n%s", got)
			}
			b.must(nil, "sweep") // a dry run leaves no trace
			b.sweep("--apply", "--actor", "nightly@example.com")
			b.must(nil, "pause", "--actor", "ann", "--reason", "a restore")
			b.sweep("--apply")
			b.must(nil, "resume", "--actor", "bob")
			b.write("reaper.yaml", settings+"    page: 77\n")
			b.sweep("--apply")
			h := b.history("--check")
			if h.Check.Verdict != inspect.Agrees || h.Check.Deleted != 100 || h.Check.Budget.Verdict != inspect.Agrees ||
				h.Check.Budget.Reported != 100 || h.Sums.Runs != 3 || h.Sums.Deleted != 100 || h.Malformed+h.Newer != 0 {
				t.Errorf("%+v, %+v", h.Sums, h.Check)
			}
			var runs []string
			for _, r := range h.Records {
				if r.Run != nil {
					runs = append(runs, string(r.Run.End))
				}
				if r.Run != nil && r.Run.Deleted > 0 && r.Actor != "nightly@example.com" {
					t.Errorf("%+v", r)
				}
			}
			if got := strings.Join(runs, " "); got != "done paused idle" {
				t.Errorf("runs ended %s", got)
			}
			text := b.must(nil, "history", "--actions").out
			says(t, "the actions", text, `pause, by ann\n +not paused -> paused\n +reason: a restore`, `resume, by bob`,
				`configuration, by .*\n +page: 500 -> page: 77`, `generation 00000001 opened, by`)
			if strings.Contains(text, "deleted") {
				t.Errorf("--actions shows runs:\n%s", text)
			}
			if got := b.must(nil, "history", "--failed").out; !strings.Contains(got, ": nothing\n") {
				t.Errorf("--failed:\n%s", got)
			}
			if got := b.history("--limit", "1"); len(got.Records) != 1 || got.More != len(h.Records)-1 || got.Sums.Deleted != 100 {
				t.Errorf("--limit 1: %+v", got)
			}
		})
	}
}

// A sweep that is killed leaves its numbers, marked "at least". The history never has more
// than was deleted.
func TestHistoryOfAKilledSweep(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, slowPace)
	ndjson, _ := sessions(4000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	cmd, _, _ := b.command(nil, "sweep", "--apply", "--json", "--log-level", "debug", "--log-format", "json")
	b.startAndWatch(cmd, 100, 0) // at 10/s in each range: its record is there since the first second
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	h := b.history()
	if !h.Sums.AtLeast || h.Sums.Runs != 1 || h.Sums.Deleted > int64(4000-len(b.dumped())) {
		t.Errorf("%+v", h)
	}
	says(t, "history", b.must(nil, "history", "--check").out, `deleted at least `, `check: at-least|check: agrees`)
	b.write("reaper.yaml", oneTarget)
	b.sweep("--apply")
	var ends []string
	for _, r := range b.history().Records {
		if r.Run != nil {
			ends = append(ends, string(r.Run.End))
		}
	}
	if got := strings.Join(ends, " "); got != "lost done" {
		t.Errorf("the killed sweep and the next one: %s", got)
	}
}

func TestBadHistory(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a"}`), "load")
	for _, wrong := range [][]string{
		{"--since", "2999-01-01T00:00:00Z"}, {"--since", "tomorrow"}, {"--since", "-24h"}, {"--since", "0s"}, {"--since", ""},
		{"--target", "nobody"}, {"--limit", "0"}, {"--limit", "-1"}, {"--actions", "--failed"}, {"everything"},
	} {
		if r := b.run(nil, append([]string{"history"}, wrong...)...); r.code != exitUsage || r.out != "" {
			t.Errorf("history %s: exit code %d: %s%s", strings.Join(wrong, " "), r.code, r.out, r.log)
		}
	}
}

// Every line fits on a terminal, whatever the records say, and obeys none of their control
// characters.
func TestHistoryFitsOnAScreen(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	long := strings.Repeat("a-very-long-word", 20) + "\x1b[2J"
	run := &inspect.HistoryRun{Task: "serve", Updated: at.Add(90 * time.Minute), End: history.Lost, Ended: &at, AtLeast: true,
		Counts: metrics.Counts{Deleted: 1_234_567_890_123, Suspect: 7, Refused: 1_000_000, Conflicts: 12}, Failures: 123,
		Held: []string{"breaker", "compaction", "latency", "limit", "pushback"}, Error: long, Missed: 9}
	silent := *run
	silent.End, silent.Ended, silent.Silent, silent.Error = history.Open, nil, true, ""
	text := string(screen{width: terminalWidth}.history(inspect.TargetHistory{Name: strings.Repeat("n", 63), Since: at, More: 3, Newer: 2,
		Malformed: 1, Sums: inspect.HistorySums{Runs: 2, AtLeast: true, Counts: metrics.Counts{Deleted: 1 << 60}},
		Records: []inspect.HistoryRecord{
			{Kind: history.KindRun, At: at, Actor: long, Run: run},
			{Kind: history.KindRun, At: at, Owner: "host/1/ABC", Run: &silent},
			{Kind: history.KindAction, At: at, Actor: "ann", Change: &inspect.HistoryChange{What: "pause", Before: long, After: long, Reason: long}},
			{Kind: history.KindGeneration, At: at, Change: &inspect.HistoryChange{What: "retired", Generation: 7}},
		},
		Check: &inspect.HistoryCheck{Since: at, Verdict: inspect.AtLeast, Deleted: 1 << 60, Counted: 1 << 60, Why: long,
			Budget: inspect.BudgetCheck{Since: &at, Verdict: inspect.Differs, Deleted: 1 << 60, Reported: 1 << 60, Why: long}},
	}))
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > terminalWidth {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("the terminal is told what to do")
	}
	says(t, "the text", strings.Join(strings.Fields(text), " "), `deleted at least 1,234,567,890,123 in 1h30m0s, lost, by `,
		`7 suspect; `, `no sign of life since 2026-11-23T13:30:00Z, by host/1/ABC`, `generation 00000007 retired`,
		`held back by breaker, compaction, latency, limit, pushback`, `skipped: 2 records of a later version`,
		`who did it is as claimed`, `skipped: 1 record with contents that`, `not shown \(--limit\): 3 older records`)
}
