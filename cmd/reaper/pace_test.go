package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
)

// slowPace takes a minute for what is due.
const slowPace = `targets:
  - name: sessions
    kind: Session
    shards: 4
    page: 20
    lease: 3s
    pace: {max: 10}
`

// An operator changes the pace, pauses and resumes, while a sweep runs.
func TestPaceWhileASweepRuns(t *testing.T) {
	t.Parallel() // most of it is waiting
	b, _, _ := newDatastore(t, slowPace)
	ndjson, live := sessions(4000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	cmd, out, _ := b.command(nil, "sweep", "--apply", "--json", "--log-level", "debug", "--log-format", "json")
	log := b.startAndWatch(cmd, 20)
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
	if r := b.must(nil, "pause"); !strings.Contains(r.out, "is paused") {
		t.Errorf("pause: %s", r.out)
	}
	// Within five seconds nothing goes any more, and after one lease the sweep ends.
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

func TestLimitsStopASweep(t *testing.T) {
	noRaces(t)
	for name, limits := range map[string]string{"max_deletes": "max_deletes: 99", "max_fraction": "max_fraction: 0.4"} {
		b := newEmbedded(t, oneTarget+"    limits: {"+limits+"}\n")
		ndjson, live := sessions(200, time.Now())
		b.must(strings.NewReader(ndjson), "load")
		before := b.dumped()
		r := b.run(nil, "sweep", "--apply")
		if r.code != exitFailed || !strings.Contains(r.log, "--yes") || !strings.Contains(r.log, name) || !strings.Contains(r.log, "100 entities are due") {
			t.Errorf("%s: exit code %d, %s", limits, r.code, r.log)
		}
		if after := b.dumped(); len(after) != len(before) {
			t.Errorf("%s: %d of %d are left", limits, len(after), len(before))
		}
		if r := b.must(nil, "sweep"); !strings.Contains(r.log, "with --apply this sweep would refuse") {
			t.Errorf("%s, dry: %s", limits, r.log)
		}
		if res := b.sweep("--apply", "--yes"); res.Deleted != 100 {
			t.Errorf("%s with --yes: %+v", limits, res)
		}
		b.wantLive(live)
	}
}

func TestBadPace(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a"}`), "load")
	for _, wrong := range [][]string{
		{"pace", "--max", "0"}, {"pace", "--max", "-5"}, {"pace", "--total", "fast"}, {"pace", "--max", ""}, {"pace", "--reset", "--max", "5"},
		{"pace", "--max", "1e9"}, {"pause", "now"}, {"resume", "--target", "nobody"},
	} {
		if r := b.run(nil, wrong...); r.code != exitUsage {
			t.Errorf("reaper %s: exit code %d: %s%s", strings.Join(wrong, " "), r.code, r.out, r.log)
		}
	}
	for _, pace := range []string{"pace: {max: -1}", "pace: {max: 0}", "pace: {total: 0}", "pace: {start: 600, max: 500}", "limits: {max_fraction: 1.5}", "limits: {max_deletes: -2}"} {
		b.write("reaper.yaml", oneTarget+"    "+pace+"\n")
		if r := b.run(nil, "sweep"); r.code != exitUsage || !strings.Contains(r.log, "reaper.yaml:4") {
			t.Errorf("%s: exit code %d: %s", pace, r.code, r.log)
		}
	}
	// A gate that cannot be asked is shut: the sweep waits, says so, and ends in good order.
	b.write("reaper.yaml", oneTarget+"    lease: 3s\n    pace: {gate: \"http://127.0.0.1:1/\"}\n")
	ndjson, _ := sessions(20, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	if r := b.run(nil, "sweep", "--apply", "--json"); r.code != exitDone || !strings.Contains(r.log, "gate closed") || b.result(r.out).Complete || b.result(r.out).Targets[0].Deleted > 0 {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
}
