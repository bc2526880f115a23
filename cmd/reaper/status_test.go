package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
)

// wideStatus is a status with everything that makes lines long.
func wideStatus(now time.Time) statusResult {
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	rate, backlog := 123456.789, int64(1_234_567_890)
	t := inspect.TargetStatus{Name: strings.Repeat("n", 63), Layout: "generation", Verdict: inspect.Paused, Paused: true, Held: "paused",
		Why: "by " + strings.Repeat("a", 300) + "@example.com until 2026-11-21T12:00:00Z", Reason: strings.Repeat("because of it ", 71),
		OldestDue: ago(20 * 24 * time.Hour), SweptTo: ago(20 * 24 * time.Hour), Backlog: &backlog, Rate: rate, GoneAt: ago(-1000 * time.Hour),
		Unread: []string{"what is due in 9,999 of 10,000 ranges: load " + strings.Repeat("x", 200)}}
	t.Behind, t.BehindAtLeast, t.BehindGoneBy = &backlog, true, ago(-1000*time.Hour)
	for i := range 12 {
		t.Workers = append(t.Workers, inspect.WorkerStatus{Owner: fmt.Sprintf("a-rather-long-pod-name-7d4b9c6f5-x2x9q/%d/ABCDEF", i), Ranges: 16, Seen: now, Version: "v1.2.3-0.20261121000000-abcdefabcdef"})
		t.Generations = append(t.Generations, inspect.GenerationStatus{Number: i, State: "draining", Shards: 9999, Opened: now, Closed: &now, Sealed: &now})
		t.Ranges = append(t.Ranges, inspect.RangeStatus{Namespace: strings.Repeat("t", 90), Generation: i, Shard: "0012", Position: "00000001.0012.20261121T000730.855Z",
			Rate: &rate, ThrottledBy: "compaction", Owner: t.Workers[i].Owner, OldestDue: ago(time.Duration(i) * time.Hour), Deleted: backlog, Refused: i == 3})
	}
	return statusResult{Store: "embedded:x", Now: now, Targets: []inspect.TargetStatus{t, t}}
}

// On a terminal no line is longer than 80 characters, and no reason is cut.
func TestStatusFitsATerminal(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, all := range []bool{false, true} {
		text := string(screen{width: 80}.render(wideStatus(now), all))
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%d characters: %s", n, line)
			}
		}
		if n := strings.Count(strings.Join(strings.Fields(text), " "), "because of it"); n != 2*71 {
			t.Errorf("%d of %d words of the reasons are there:\n%s", n, 2*71, text)
		}
		wide := string(screen{}.render(wideStatus(now), all))
		if !strings.Contains(wide, strings.Repeat("a", 300)) || strings.Contains(wide, "…") {
			t.Errorf("into a pipe lines are cut:\n%s", wide)
		}
	}
}

// A status shows the five ranges that have waited for the longest, and all with --all.
func TestStatusShowsTheWorstRanges(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, all := range []bool{false, true} {
		text := string(screen{}.render(wideStatus(now), all))
		for i := range 12 {
			shown := strings.Contains(text, fmt.Sprintf("\n  %08d.0012@", i))
			if shown != (all || i >= 7) {
				t.Errorf("with all %v range %d is shown: %v\n%s", all, i, shown, text)
			}
		}
		if strings.Contains(text, "and 7 more ranges in which something is due") == all || strings.Contains(text, "and 7 more (--all lists them)") == all {
			t.Errorf("with all %v:\n%s", all, text)
		}
	}
}

// Control characters in a record do not reach the terminal.
func TestStatusPrintsNoControlCharacters(t *testing.T) {
	res := wideStatus(time.Now())
	const evil = "\x1b[2J\x07"
	res.Targets[0].Reason, res.Targets[0].Why = "\x1b[2Jgone", "by \x07\x1b]0;x"
	r := &res.Targets[0].Ranges[11]
	r.Position, r.Owner, r.ThrottledBy = evil, evil, evil
	if text := (screen{width: 80}).render(res, true); bytes.ContainsAny(text, "\x1b\x07") {
		t.Errorf("%q", text)
	}
	var text bytes.Buffer
	printExplanation(&text, screen{}, inspect.Explanation{Target: "sessions", Key: evil, Namespace: evil, Expiry: evil, Why: evil,
		Reason: evil, Held: "paused", Verdict: "malformed", Range: &inspect.RangeStatus{Position: evil, Owner: evil, Shard: evil}},
		config.Target{Name: "sessions", Property: "expiry_key"})
	if bytes.ContainsAny(text.Bytes(), "\x1b\x07") {
		t.Errorf("explain: %q", text.Bytes())
	}
}

// A watch shows one status after the other. In a pipe an empty line separates them, and
// there are no escape codes; on a terminal each replaces the last one. A watch ends with the
// context, and does not show an interrupted status.
func TestWatchRepeats(t *testing.T) {
	for _, to := range []screen{{}, {80, true}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var out bytes.Buffer
			n := 0
			began := time.Now()
			err := to.repeat(ctx, &out, 5*time.Second, func(context.Context) []byte {
				if n++; n == 4 {
					cancel()
				}
				return []byte(fmt.Sprintf("status %d\n", n))
			})
			want := "status 1\n\nstatus 2\n\nstatus 3\n"
			if to.redraw {
				want = "\x1b[H\x1b[J"
				for i := 1; i <= 3; i++ {
					want += fmt.Sprintf("\x1b[Hstatus %d\x1b[K\n\x1b[J", i)
				}
			}
			if err != nil || out.String() != want || time.Since(began) != 15*time.Second {
				t.Errorf("%q, %v, after %v", out.String(), err, time.Since(began))
			}
		})
	}
	broken := errors.New("the pipe is closed")
	if err := (screen{}).repeat(t.Context(), failingWriter{broken}, time.Hour, func(context.Context) []byte { return nil }); !errors.Is(err, broken) {
		t.Errorf("a pipe that nobody reads: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// If a store accepts connections and never answers, status says so and exits with 1.
func TestStatusOfAStoreThatNeverAnswers(t *testing.T) {
	noRaces(t)
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b := newWorkdir(t, oneTarget)
	b.env = []string{"DATASTORE_EMULATOR_HOST=" + silent.Addr().String(), "REAPER_STORE=datastore:my-project"}
	r := b.run(nil, "status")
	if r.code != exitFailed || !strings.HasPrefix(r.out, "sessions: UNKNOWN, the store has not answered within 3s\n") ||
		!strings.Contains(r.out, "not read     the target's records: load seal records") || !strings.Contains(r.log, "check that the endpoint can be reached") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
}

// A watch ends with 0 when it is interrupted, and keeps no embedded store open meanwhile.
func TestWatchIsInterrupted(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a","expires":"2026-01-01T00:00:00Z"}`), "load")
	for _, wrong := range [][]string{{"status", "--watch", "--json"}, {"status", "--watch", "--interval", "0s"}, {"status", "--watch", "--interval", "-5s"},
		{"status", "--watch", "--interval", "10ms"}, {"status", "--interval", "5s"}, {"status", "--watch", "--interval", "5"}} {
		if r := b.run(nil, wrong...); r.code != exitUsage {
			t.Errorf("reaper %s: exit code %d: %s%s", strings.Join(wrong, " "), r.code, r.out, r.log)
		}
	}
	cmd, _, log := b.command(nil, "status", "--watch", "--interval", "1h")
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("sessions: DRY RUN"))
	if _, err := out.Read(first); err != nil || string(first) != "sessions: DRY RUN" {
		t.Errorf("%q, %v", first, err)
	}
	for tries := 0; ; tries++ { // until it has closed the store
		if r := b.run(nil, "sweep", "--apply"); r.code == exitDone {
			break
		} else if tries == 50 {
			t.Fatalf("a sweep while somebody watches: exit code %d: %s%s", r.code, r.out, r.log)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, log.String())
	}
}
