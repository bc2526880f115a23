package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
)

// slowPace takes a minute for what is due.
const slowPace = `targets:
  - name: sessions
    kind: Session
    shards: 4
    page: 20
    lease: 3s
    pace: {max: 10}
    breaker: off
`

// An operator changes the pace, pauses and resumes, while a sweep runs.
func TestPaceWhileASweepRuns(t *testing.T) {
	t.Parallel() // most of it is waiting
	b, _, _ := newDatastore(t, slowPace)
	ndjson, live := sessions(4000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	cmd, out, _ := b.command(nil, "sweep", "--apply", "--json", "--log-level", "debug", "--log-format", "json")
	log := b.startAndWatch(cmd, 20, 0)
	go func() { // else the process waits for its log to be read
		for {
			if _, err := log.ReadString('\n'); err != nil {
				return
			}
		}
	}()
	if r := b.must(nil, "pace", "--max", "5", "--total", "unlimited"); !strings.Contains(r.out, "at most 5/s in each range, unlimited in all") {
		t.Errorf("pace: %s", r.out)
	}
	if st := b.status(); slices.ContainsFunc(st.Ranges, func(r inspect.RangeStatus) bool { return r.Rate == nil || *r.Rate > 5 }) {
		t.Errorf("a range is faster than --max 5: %+v", st.Ranges)
	}
	if r := b.must(nil, "pause", "--reason", "a test"); !strings.Contains(r.out, "is paused until reaper resume") {
		t.Errorf("pause: %s", r.out)
	}
	// After five seconds nothing is deleted any more, and after one lease the sweep ends.
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	res := b.result(out.String())
	if res.Complete || res.Failed() || res.Targets[0].Deleted == 0 || res.Targets[0].Deleted == 2000 {
		t.Errorf("the paused sweep: %+v", res)
	}
	if st := b.status(); !st.Paused {
		t.Errorf("status: %+v", st)
	}
	if r := b.run(nil, "sweep", "--apply", "--fail-incomplete"); r.code != exitIncomplete || !strings.Contains(r.log, "paused") {
		t.Errorf("a sweep of what is paused: exit code %d, %s%s", r.code, r.out, r.log)
	}
	var changed switchResult
	if err := json.Unmarshal([]byte(b.must(nil, "resume", "--json").out), &changed); err != nil || changed.Targets[0].Paused || changed.Targets[0].Max != "5" {
		t.Errorf("resume: %+v, %v", changed, err)
	}
	if r := b.must(nil, "pace", "--reset"); !strings.Contains(r.out, "at most 10/s (targets file) in each range") {
		t.Errorf("--reset: %s", r.out)
	}
	b.must(nil, "pace", "--max", "unlimited")
	// On a busy machine three seconds may pass without a renewal: then the next sweep goes on.
	for tries := 1; ; tries++ {
		res := b.sweep("--apply")
		if res.Complete {
			break
		}
		if tries == 20 {
			t.Fatalf("resumed: %+v", res)
		}
	}
	b.wantLive(live)
}

func TestLimitsHoldATarget(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, oneTarget+"    limits: {per_day: 30}\n")
	ndjson, live := sessions(200, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	before := b.dumped()
	r := b.must(nil, "sweep", "--apply", "--json")
	if !strings.Contains(r.out, `"held": "limit"`) || !strings.Contains(r.out, `"complete": false`) {
		t.Errorf("used up: %+v", r)
	}
	if after := b.dumped(); len(after) != len(before)-30 {
		t.Errorf("%d of %d are left", len(after), len(before))
	}
	if st := b.status(); st.Held != "limit" || st.Verdict != inspect.Held || !strings.Contains(st.Why, "limit") {
		t.Errorf("status: %+v", st)
	}
	if r := b.run(nil, "sweep", "--apply", "--fail-incomplete"); r.code != exitIncomplete {
		t.Errorf("with --fail-incomplete: exit code %d", r.code)
	}
	if res := b.sweep("--apply", "--yes"); res.Deleted != 70 {
		t.Errorf("with --yes: %+v", res)
	}
	b.wantLive(live)
	for old, want := range map[string]string{"max_deletes: 99": "per_hour", "max_fraction: 0.4": "breaker: {fraction: 25%}"} {
		b.write("reaper.yaml", oneTarget+"    limits: {"+old+"}\n")
		if r := b.run(nil, "sweep", "--apply"); r.code != exitUsage || !strings.Contains(r.log, "reaper.yaml:5:14") || !strings.Contains(r.log, want) {
			t.Errorf("%s: exit code %d, %s", old, r.code, r.log)
		}
	}
}

func TestBadPace(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a"}`), "load")
	for _, wrong := range [][]string{
		{"pace", "--max", "0"}, {"pace", "--max", "-5"}, {"pace", "--total", "fast"}, {"pace", "--max", ""}, {"pace", "--reset", "--max", "5"},
		{"pace", "--max", "1e9"}, {"pause", "now"}, {"resume", "--target", "nobody"},
		{"pause"}, {"pause", "--reason", ""}, {"pause", "--reason", " "}, {"pause", "--reason", strings.Repeat("x", 10<<10)},
		{"pause", "--reason", "a\nb"}, {"pause", "--reason", "x", "--for", "0s"}, {"pause", "--reason", "x", "--for", "-2h"},
		{"pause", "--reason", "x", "--for", ""}, {"pause", "--reason", "x", "--for", "2"}, {"pause", "--reason", "x", "--actor", "a\nb"},
		{"resume", "--reason", ""}, {"pace", "--reason", "\x1b[2J"},
	} {
		if r := b.run(nil, wrong...); r.code != exitUsage {
			t.Errorf("reaper %s: exit code %d: %s%s", strings.Join(wrong, " "), r.code, r.out, r.log)
		}
	}
	for _, pace := range []string{"pace: {max: -1}", "pace: {max: 0}", "pace: {total: 0}", "pace: {start: 600, max: 500}", "limits: {per_hour: 1.5}", "limits: {per_day: -2}"} {
		b.write("reaper.yaml", oneTarget+"    "+pace+"\n")
		if r := b.run(nil, "sweep"); r.code != exitUsage || !strings.Contains(r.log, "reaper.yaml:5") {
			t.Errorf("%s: exit code %d: %s", pace, r.code, r.log)
		}
	}
	// An unreachable gate counts as closed: the sweep waits, logs it, and ends in good order.
	b.write("reaper.yaml", oneTarget+"    lease: 3s\n    pace: {gate: \"http://127.0.0.1:1/\"}\n")
	ndjson, _ := sessions(20, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	if r := b.run(nil, "sweep", "--apply", "--json"); r.code != exitDone || !strings.Contains(r.log, "gate closed") || b.result(r.out).Complete || b.result(r.out).Targets[0].Deleted > 0 {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
}

// The record, status, explain and a sweep say who paused the target, why and until when.
func TestPauseSaysWhy(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a","expires":"2026-01-01T00:00:00Z"}`), "load")
	r := b.must(nil, "pause", "--for", "2h", "--reason", "a restore; ask Ann", "--actor", "ann@example.com", "--json")
	var changed switchResult
	if err := json.Unmarshal([]byte(r.out), &changed); err != nil || !changed.Targets[0].Paused || changed.Targets[0].Until == nil || changed.Targets[0].Reason != "a restore; ask Ann" {
		t.Errorf("%s, %v", r.out, err)
	}
	if r := b.must(nil, "resume", "--reason", "done"); !strings.Contains(r.out, "is swept") {
		t.Errorf("resume: %s", r.out)
	}
	if r := b.must(nil, "pause", "--for", "2h", "--reason", "a restore; ask Ann", "--actor", "ann@example.com"); !strings.Contains(r.out, "is paused until 20") {
		t.Errorf("pause: %s", r.out)
	}
	r = b.must(nil, "sweep", "--apply")
	if !strings.Contains(r.out, "sessions: held: paused by ann@example.com (a restore; ask Ann): nothing was deleted") ||
		!strings.Contains(r.log, "ann@example.com") || !strings.Contains(r.log, "a restore; ask Ann") {
		t.Errorf("sweep: %s%s", r.out, r.log)
	}
	if r := b.must(nil, "status"); !strings.HasPrefix(r.out, "sessions: PAUSED, by ann@example.com until 20") || !strings.Contains(r.out, "a restore; ask Ann") {
		t.Errorf("status: %s", r.out)
	}
	if r := b.must(nil, "explain", "a"); strings.Contains(r.out, "is due, and the next sweep deletes it\n") && !strings.Contains(r.out, "paused, by ann@example.com") {
		t.Errorf("explain: %s", r.out)
	}
	if st := b.status(); st.Verdict != inspect.Paused || st.Held != "paused" || st.Reason != "a restore; ask Ann" || st.PausedUntil == nil {
		t.Errorf("status --json: %+v", st)
	}
	if res := b.sweep(); res.Held != "paused" || res.Reason != "a restore; ask Ann" || res.Actor != "ann@example.com" || res.Expired != 1 {
		t.Errorf("a dry run: %+v", res)
	}
}

// A store without a record of the target is most likely the wrong one: the commands write
// nothing there, and the error names the store.
func TestPauseInTheWrongStore(t *testing.T) {
	noRaces(t)
	b, _, _ := newDatastore(t, oneTarget)
	for _, args := range [][]string{{"pause", "--reason", "x"}, {"resume"}, {"pace"}, {"pace", "--max", "5"}} {
		r := b.run(nil, args...)
		if r.code != exitUsage || r.out != "" || !strings.Contains(r.log, "no record of this target, datastore:") || !strings.Contains(r.log, "check --store") {
			t.Errorf("reaper %s: exit code %d: %s%s", strings.Join(args, " "), r.code, r.out, r.log)
		}
	}
	if r := b.must(nil, "status"); strings.Contains(strings.ToLower(r.out), "paused") {
		t.Errorf("status: %s", r.out)
	}
}

// The actor comes from the flag, the key file or the machine.
func TestActor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, []byte(`{"type": "service_account", "client_email": "reaper@my-project.iam.gserviceaccount.com"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": file, "USER": "ann"}
	getenv := func(name string) string { return env[name] }
	cloud := config.Config{Store: config.Store{Driver: config.Datastore, Project: "p"}}
	if got := actor(cloud, getenv); got != "reaper@my-project.iam.gserviceaccount.com" {
		t.Errorf("by the key file: %s", got)
	}
	local := config.Config{Store: config.Store{Driver: config.Embedded, Dir: "x"}}
	if got := actor(local, getenv); !strings.Contains(got, "@") || strings.Contains(got, "gserviceaccount") {
		t.Errorf("on a machine: %s", got)
	}
	cloud.Actor = "bob@example.com"
	if got := actor(cloud, getenv); got != "bob@example.com" {
		t.Errorf("as configured: %s", got)
	}
	env["GOOGLE_APPLICATION_CREDENTIALS"] = filepath.Dir(file)
	cloud.Actor = ""
	if got := actor(cloud, getenv); !strings.Contains(got, "@") || strings.Contains(got, "gserviceaccount") {
		t.Errorf("with a broken key file: %s", got)
	}
}
