package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/selftest"
)

// selftests are the checks of the tests of the command: some of each group.
var selftests = []string{"ScanOrdersByValue", "DisposeKeepsWhatWasPushedOut", "RecordsOfATargetInOrder", "dry-run", "sweep",
	"pause", "reshard", "adoption", "commit-times", "query-freshness", "bills", "features"}

func checkFlags(names []string) (flags []string) {
	for _, name := range names {
		flags = append(flags, "--check", name)
	}
	return flags
}

// onEachSelftestStore runs a test on both emulators and on an embedded store, none of which has
// a targets file.
func onEachSelftestStore(t *testing.T, test func(t *testing.T, b *workdir)) {
	t.Run("embedded", func(t *testing.T) {
		b := newEmbedded(t, oneTarget)
		ndjson, _ := sessions(10, time.Now())
		b.must(strings.NewReader(ndjson), "load")
		test(t, b)
	})
	t.Run("datastore", func(t *testing.T) {
		b, _, _ := newDatastore(t, oneTarget)
		test(t, b)
	})
	t.Run("firestore", func(t *testing.T) {
		b, _, _ := newFirestore(t, oneTarget)
		test(t, b)
	})
}

// selftest runs the command with --json, and returns its report.
func (b *workdir) selftest(code int, args ...string) (r selftest.Report) {
	b.t.Helper()
	got := b.run(nil, append([]string{"selftest", "--json"}, args...)...)
	d := json.NewDecoder(strings.NewReader(got.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); got.code != code || err != nil || d.More() {
		b.t.Fatalf("exit code %d, want %d; %v\n%s%s", got.code, code, err, got.out, got.log)
	}
	return r
}

// TestSelftest: a healthy store passes; the report is one document; text and JSON say the same.
func TestSelftest(t *testing.T) {
	noRaces(t)
	t.Parallel()
	onEachSelftestStore(t, func(t *testing.T, b *workdir) {
		args := []string{"--yes", "--skip", "latency", "--skip", "locks"}
		if !nightly.Run() {
			args = append([]string{"--yes"}, checkFlags(selftests)...)
		}
		r := b.selftest(exitDone, args...)
		if r.Count(selftest.Passed) < len(selftests)-1 || !r.Complete || !r.Cleaned.Empty || r.Dollars >= selftest.MostDollars {
			t.Errorf("%+v", r)
		}
		if r.Endpoint != "" && len(r.Differences) > 0 {
			t.Errorf("an emulator differs from itself: %+v", r.Differences)
		}
		text := selftestText(r)
		for _, want := range []string{"contract: ", "sweeps: ", "differences from the emulator", "is empty", "0 failed"} {
			if !strings.Contains(text, want) {
				t.Errorf("the text lacks %q:\n%s", want, text)
			}
		}
	})
}

// TestSelftestIsKilled: wherever the process is killed, another one empties the scratch kind; if
// that is missing, --clean does.
func TestSelftestIsKilled(t *testing.T) {
	noRaces(t)
	t.Parallel()
	kills := nightly.Size(t, 10, 2)
	onEachSelftestStore(t, func(t *testing.T, b *workdir) {
		for i := range kills {
			id := fmt.Sprintf("kill%d", i)
			killAt := selftests[(i*len(selftests)/kills+1+int(time.Now().UnixNano()%2))%len(selftests)]
			b.killAt(id, killAt)
			b.awaitEmpty(id)
		}
	})
}

// killAt starts a self-test, and kills it once it makes a check.
func (b *workdir) killAt(id, check string) {
	b.t.Helper()
	cmd, _, _ := b.command(nil, append([]string{"selftest", "--yes", "--id", id, "--log-level", "debug", "--log-format", "text"},
		checkFlags(selftests)...)...)
	log := bufio.NewScanner(b.start(cmd))
	for log.Scan() {
		if strings.Contains(log.Text(), "name="+check+" ") {
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		b.t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	b.t.Logf("killed at %s", check)
}

// awaitEmpty waits until the guard of a killed self-test has emptied its kinds, and then checks
// that nothing is left.
func (b *workdir) awaitEmpty(id string) {
	b.t.Helper()
	for began := time.Now(); time.Since(began) < selftest.CleanWithin; time.Sleep(100 * time.Millisecond) {
		// A self-test with the id is refused as long as there is anything.
		if r := b.run(nil, "selftest", "--yes", "--id", id, "--check", "latency"); r.code == exitDone {
			break
		}
	}
	var done selftest.Cleaned
	got := b.must(nil, "selftest", "--clean", id, "--json")
	if err := json.Unmarshal([]byte(got.out), &done); err != nil || !done.Empty || done.Entities+done.Records > 0 {
		b.t.Errorf("after the guard: %+v, %v", done, err)
	}
}

// TestSelftestRefuses: wrong usage ends with 2, and nothing is written.
func TestSelftestRefuses(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	if r := b.run(nil, "selftest", "--yes"); r.code != exitUsage || !strings.Contains(r.log, "no embedded store") {
		t.Errorf("without a store: %+v", r)
	}
	ndjson, _ := sessions(10, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	before := b.dumped()
	for _, args := range [][]string{{}, {"--yes", "--check", "swep"}, {"--yes", "--skip", "swep"}, {"--yes", "--id", "A/b"},
		{"--clean", "../x"}, {"--clean", "abcd", "--id", "abcd"}, {"--yes", "--within", "0s"}, {"--guard"}, {"sessions"}} {
		if r := b.run(nil, append([]string{"selftest"}, args...)...); r.code != exitUsage || r.out != "" || r.log == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := b.run(strings.NewReader("n\n"), "selftest"); r.code != exitUsage || !strings.Contains(r.log, "costs nothing") {
		t.Errorf("answered with n: %+v", r)
	}
	if r := b.run(strings.NewReader("y\n"), "selftest", "--check", "sweep"); r.code != exitDone {
		t.Errorf("answered with y: %+v", r)
	}
	if after := b.dumped(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("the self-test changed what a user has")
	}

	b.write("used.yaml", "targets:\n- {name: used, kind: ReaperSelftest_used}\n")
	b.must(strings.NewReader(ndjson), "load", "--config", "used.yaml")
	if r := b.run(nil, "selftest", "--yes", "--id", "used"); r.code != exitUsage || !strings.Contains(r.log, "in use") {
		t.Errorf("a kind that is in use: %+v", r)
	}
	if r := b.run(nil, "selftest", "--clean", "used"); r.code != exitFailed || !strings.Contains(r.out, "keeps what others wrote") {
		t.Errorf("a kind that somebody wrote into: %+v", r)
	}
	if n := len(b.dumped("--config", "used.yaml")); n != 10 {
		t.Errorf("%d of 10 entities are left in a kind that somebody wrote into", n)
	}
}

// TestSelftestWithoutAccess: no credentials are an error that says what to do.
func TestSelftestWithoutAccess(t *testing.T) {
	noRaces(t)
	b := newWorkdir(t, oneTarget)
	b.env = []string{"GOOGLE_APPLICATION_CREDENTIALS=" + os.DevNull}
	for _, store := range []string{"datastore:my-project", "firestore:my-project"} {
		r := b.run(nil, "selftest", "--yes", "--store", store)
		if r.code != exitFailed || !strings.Contains(r.log, "access denied") || !strings.Contains(r.log, "hint: ") {
			t.Errorf("%s: %+v", store, r)
		}
	}
}

// TestGuardedDies: a guard works unless it was told that all is done.
func TestGuardedDies(t *testing.T) {
	for input, dies := range map[string]bool{"": true, ".": false, "x": true} {
		if got := guardedDies(io.NopCloser(strings.NewReader(input))); got != dies {
			t.Errorf("%q: %v", input, got)
		}
	}
}
