package writers

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// TestFourLanguagesAgree asks one process of each language the same random questions.
//
// A line that is a JSON object has an instant, now, at which a new follower reads the record.
// Each other line has six fields, with tabs between them: the id (its UTF-8 in
// hexadecimal), a number of shards, the seconds and nanoseconds of the expiry, a percent,
// and the milliseconds that have passed since the read. The answer is a line with the
// nursery's key, the same key after it was parsed, in generation 1, "in" or "out" of the
// rollout, and the follower's key.
//
// The first half of the questions has a record with a ramp. In the other half there is a new
// record after every hundred of them, and many of those make no sense.
func TestFourLanguagesAgree(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	languages := map[string]*exec.Cmd{
		"node":   command(t, "node", "node/testdata/pipe.js"),
		"python": command(t, "python3", "python/tests/pipe.py"),
		"java":   command(t, "java", "-cp", compileJava(t), "io.github.reaperttl.writer.Pipe"),
	}
	languages["python"].Env = append(os.Environ(), "PYTHONPATH=python", "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1")

	input, questions, want := ask(t, n)
	var group []func()
	for name, cmd := range languages {
		cmd.Stdin = bytes.NewReader(input)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group = append(group, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, stderr.String())
				return
			}
			compare(t, name, questions, strings.Split(stdout.String(), "\n"), want)
		})
	}
	for _, wait := range group {
		wait()
	}
}

// ask returns random questions, with the records between them, and what Go answers.
func ask(t *testing.T, n int) (input []byte, questions, answers []string) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	now, passed := instant(t, replayBegins), time.Duration(0)
	list := []live{open(6, 12, -48*time.Hour, 0), open(7, 100, -24*time.Hour, time.Hour), open(8, 250, 0, time.Hour)}
	list[0]["closed"] = after(-22 * time.Hour)
	record := but(target(list...), "staleness_ms", time.Hour.Milliseconds())
	var out bytes.Buffer
	var f *Follower
	lowest := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	highest := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
	seen := map[int]int{}
	for i := range n {
		if i >= n/2 && i%100 == 0 {
			record = randomRecord(r)
		}
		if i == 0 || i >= n/2 && i%100 == 0 {
			passed = 0
			f = newFollower(func(context.Context) (map[string]any, error) {
				return fieldsOf(t, mustJSON(record)), nil
			}, Options{Now: func() time.Time { return now.Add(passed) }})
			_ = f.Refresh(t.Context()) // what it makes of the record shows in its keys
			fmt.Fprintf(&out, "%s\n", mustJSON(map[string]any{"now": now.Format(time.RFC3339), "record": record}))
		}
		id, shards := randomID(r), 1+r.IntN(9_999)
		expires := time.Unix(lowest+r.Int64N(highest-lowest), randomNanos(r))
		percent := float64(r.IntN(10_001)) / 100
		passed = time.Duration(r.IntN(3_600_000)) * time.Millisecond
		question := fmt.Sprintf("%x\t%d\t%d\t%d\t%v\t%d",
			id, shards, expires.Unix(), expires.Nanosecond(), percent, passed.Milliseconds())
		fmt.Fprintln(&out, question)
		questions = append(questions, fmt.Sprintf("%s, record %s", question, mustJSON(record)))

		nursery, err := NurseryKey(id, expires, shards)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(nursery.String())
		if err != nil {
			t.Fatal(err)
		}
		back.Generation++
		followed, err := f.Key(id, expires)
		if err != nil {
			t.Fatal(err)
		}
		chosen := map[bool]string{true: "in", false: "out"}[InRollout(id, "compare", percent)]
		answers = append(answers, fmt.Sprintf("%v\t%v\t%s\t%v", nursery, back, chosen, followed))
		if i < n/2 {
			seen[followed.Generation]++
		}
	}
	if seen[7] < n/20 || seen[8] < n/20 || seen[7]+seen[8] != n/2 {
		t.Errorf("a ramp gives these generations: %v", seen)
	}
	return out.Bytes(), questions, answers
}

// randomRecord returns a target record with up to four generations, some of which open in the
// future of the clock. In many, something has a value that makes no sense.
func randomRecord(r *rand.Rand) map[string]any {
	n := r.IntN(5)
	var list []live
	number, at := 0, -time.Duration(r.IntN(10))*time.Hour
	for i := range n {
		number += 1 + r.IntN(3)
		ramp := []time.Duration{0, time.Millisecond, time.Hour, 3 * time.Hour, 1000 * time.Hour}[r.IntN(5)]
		g := open(number, 1+r.IntN(100), at, ramp)
		if i < n-1 && r.IntN(2) == 0 {
			g["closed"] = after(at + time.Duration(r.IntN(3_600_000_000))*time.Microsecond)
		}
		list = append(list, g)
		at += time.Duration(r.IntN(4*3_600_000_000)) * time.Microsecond
	}
	record := but(target(list...), "staleness_ms", []int{0, 1000, 60_000, 3_600_000}[r.IntN(4)])
	for range r.IntN(3) {
		odd := oddValues[r.IntN(len(oddValues))]
		if n > 0 && r.IntN(3) > 0 {
			list[r.IntN(n)][[]string{"number", "shards", "opened", "ramp_ms", "closed"}[r.IntN(5)]] = odd
		} else {
			record = but(record, []string{"schema", "generations", "nursery_shards", "staleness_ms"}[r.IntN(4)], odd)
		}
	}
	return record
}

// oddValues are what the fields of a record may be set to by mistake.
var oddValues = []any{
	nil, "", "1", "x", true, false, 1.5, -1, 0, 1, 2, 3, 16, 9_999, 10_000, 10_001, 99_999_999, 100_000_000, 1 << 32, 1 << 53,
	1<<53 + 1, 9_223_372_036_854, 9_223_372_036_855, 1 << 62, []any{}, []any{1}, []any{nil}, []any{map[string]any{}}, map[string]any{},
	"2026-11-20T23:00:00.000000Z", "2024-02-29T00:00:00.000000Z", "2023-02-29T00:00:00.000000Z", "1582-10-10T00:00:00.000000Z",
	"0002-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", "2026-13-01T00:00:00.000000Z", "2026-11-20T23:60:00.000000Z",
	"2026-11-20T23:59:60.000000Z", "2026-11-20T24:00:00.000000Z", "2026-11-20T23:00:00,000000Z", "2026-11-20 23:00:00.000000Z",
	"2026-11-20t23:00:00.000000z", "2026-11-20T23:00:00.0000000Z", "2026-11-20T23:00:00.000000Z ", "+2026-11-20T23:00:00.000000Z",
	"2026-11-20T23:00:00.000000+00:00", "٢026-11-20T23:00:00.000000Z",
}

func randomNanos(r *rand.Rand) int64 {
	nanos := r.Int64N(1_000_000_000)
	unit := []int64{1, 1_000, 1_000_000, 1_000_000_000}[r.IntN(4)]
	return nanos / unit * unit
}

// randomID returns a name of any script, a numeric id, or one as native mode writes it.
func randomID(r *rand.Rand) string {
	switch r.IntN(5) {
	case 0:
		return fmt.Sprint(r.Int64())
	case 1:
		return fmt.Sprintf("__id%d__", r.Int64()>>r.IntN(63))
	case 2:
		return fmt.Sprintf("session-%d", r.IntN(1_000_000))
	}
	var id strings.Builder
	for range r.IntN(30) {
		c := rune(r.IntN([]int{0x80, 0x800, 0x10000, 0x110000}[r.IntN(4)]))
		if c < 0xD800 || c > 0xDFFF {
			id.WriteRune(c)
		}
	}
	return id.String()
}

func compare(t *testing.T, name string, questions, got, want []string) {
	t.Helper()
	wrong := 0
	for i, w := range want {
		if i >= len(got) || got[i] != w {
			if wrong++; wrong > 5 {
				break
			}
			answer := "nothing"
			if i < len(got) {
				answer = got[i]
			}
			t.Errorf("%s: %s\n gives %s,\n  want %s", name, questions[i], answer, w)
		}
	}
}

// command returns a process, or skips the test if its program is missing.
func command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		emulator.Unavailable(t, "%s is not installed: writers in it cannot be compared", program)
	}
	return exec.Command(path, args...) // each ends with its input
}

// compileJava returns the directory of the compiled package and its tests.
func compileJava(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sources, err := filepath.Glob("java/src/*/java/io/github/reaperttl/writer/*.java")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no Java sources: %v", err)
	}
	sources = slices.DeleteFunc(sources, func(s string) bool { return filepath.Base(s) == "JUnitTest.java" })
	cmd := command(t, "javac", append([]string{"--release", "17", "-encoding", "UTF-8", "-d", dir}, sources...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("javac: %v\n%s", err, out)
	}
	return dir
}
