package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

const oneTarget = `targets:
  - name: sessions
    kind: Session
    breaker: off
`

func newEmbedded(t *testing.T, targets string) *workdir {
	b := newWorkdir(t, targets)
	b.env = []string{"REAPER_STORE=embedded:data"}
	return b
}

func TestEmbeddedSweepDeletesExactlyTheExpired(t *testing.T) {
	nightly.Races(t)
	n := nightly.Size(t, 200_000, 20_000)
	b := newEmbedded(t, oneTarget)
	ndjson, live := sessions(n, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	before := b.dumped()

	dry := b.sweep()
	if dry.Expired != int64(n/2) || dry.Deleted != 0 || dry.Operations.Writes+dry.Operations.Deletes != 0 {
		t.Errorf("dry run: %+v", dry)
	}
	if after := b.dumped(); !maps.Equal(before, after) {
		t.Error("the dry run changed something")
	}

	res := b.sweep("--apply")
	if res.Deleted != int64(n/2) || !res.Complete || res.Operations.Deletes != int64(n/2)+1 { // and its heartbeat
		t.Errorf("sweep: %+v", res)
	}
	b.wantLive(live)
	for id, text := range b.dumped() {
		if before[id] != text {
			t.Errorf("%s changed from %s to %s", id, before[id], text)
		}
	}
	second := b.sweep("--apply")
	if second.Scanned != 0 || second.Stepped == nil || *second.Stepped > 100 || second.Operations.Writes > int64(second.Ranges) {
		t.Errorf("second sweep: %+v", second)
	}
}

func TestDumpLoadsAgain(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"é \"quoted\"","expires":"2033-01-01T00:00:00.0001Z","data":{"a":[1,2.5,{"b":null}],"big":9007199254740993}}
{"id":7}
{"id":"never","data":{}}
`), "load")
	first := b.must(nil, "dump").out
	want := `{"id":7}
{"id":"never","data":{}}
{"id":"é \"quoted\"","expires":"2033-01-01T00:00:00.001Z","data":{"a":[1,2.5,{"b":null}],"big":9007199254740993},"key":"00000001.0003.20330101T000000.001Z"}
`
	if shape := func(s string) string { return strings.ReplaceAll(s, `,"data":{}`, "") }; shape(first) != shape(want) {
		t.Errorf("dump:\n%swant:\n%s", first, want)
	}
	b.env = []string{"REAPER_STORE=embedded:copy"}
	b.must(strings.NewReader(first), "load")
	if second := b.must(nil, "dump").out; second != first {
		t.Errorf("the dump, loaded and dumped again:\n%swant:\n%s", second, first)
	}
}

// slowTarget has a pace that makes a sweep take seconds, so that it can be killed.
const slowTarget = `targets:
  - name: sessions
    kind: Session
    breaker: off
    lease: 3s
    page: 50
    pace: {max: 400}
`

func TestKilledOftenEmbedded(t *testing.T) {
	nightly.Races(t)
	b := newEmbedded(t, slowTarget)
	ndjson, live := sessions(40_000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	killOften(b, 10, 2500, 0)
	res := b.sweep("--apply")
	b.wantLive(live)
	if !res.Complete {
		t.Errorf("last sweep: %+v", res)
	}
	if res.Scanned > 15_000 {
		t.Errorf("the last sweep scanned %d of 20000 entries: what was deleted came back", res.Scanned)
	}
}

// killOften starts sweeps and kills each without warning in the middle of its work: once
// it has deleted a random number of entities, up to the given one, and saved some cursors.
func killOften(b *workdir, times, entities, cursors int) {
	b.t.Helper()
	for range times {
		b.killAfter(1+rand.IntN(entities), cursors)
	}
}

// killAfter begins a sweep and kills it once it has deleted so many entities and saved so
// many cursors. It reports whether it did: where locks of an earlier process are in its way,
// or little is left, a sweep ends before.
func (b *workdir) killAfter(entities, cursors int) (killed bool) {
	b.t.Helper()
	cmd, _, _ := b.command(nil, "sweep", "--apply", "--log-level", "debug", "--log-format", "json")
	b.startAndWatch(cmd, entities, cursors)
	_ = cmd.Process.Kill() // one that is done already is told below
	_ = cmd.Wait()         // "signal: killed"
	if cmd.ProcessState.Exited() {
		b.t.Log("the sweep was done before it was killed")
		return false
	}
	return true
}

// sweepToEnd sweeps until a sweep is complete. A busy emulator sometimes keeps the locks of a
// dead process for longer than a sweep waits for them; the next sweep then continues.
func (b *workdir) sweepToEnd() (deleted int64) {
	b.t.Helper()
	for range 20 {
		res := b.sweepOnce()
		deleted += res.Deleted
		if res.Complete {
			return deleted
		}
		b.t.Logf("contended for longer than a sweep waits: %+v", res)
	}
	b.t.Error("twenty sweeps did not come to the end")
	return deleted
}

// startAndWatch starts a sweep that logs JSON at debug level, and returns once it has
// deleted so many entities and saved so many cursors, with what it logs from then on.
func (b *workdir) startAndWatch(cmd *exec.Cmd, entities, cursors int) *bufio.Reader {
	b.t.Helper()
	log := bufio.NewReader(b.start(cmd))
	saved := 0
	for deleted := int64(0); deleted < int64(entities) || saved < cursors; {
		line, err := log.ReadString('\n')
		var l logLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "page" {
			deleted += l.Deleted
		}
		if l.Msg == "cursor saved" && l.Position != "" {
			saved++
		}
		if err != nil {
			break // it is done: the caller finds out
		}
	}
	return log
}

// wantEnd reads the rest of a process's log, and waits for its end with exit code 0.
func (b *workdir) wantEnd(cmd *exec.Cmd, log io.Reader) {
	b.t.Helper()
	rest, _ := io.ReadAll(log)
	if err := cmd.Wait(); err != nil {
		b.t.Fatalf("%v\n%s", err, rest)
	}
}

func TestStopsOnSignal(t *testing.T) {
	b := newEmbedded(t, slowTarget)
	b.env = append(b.env, patientEnd)
	ndjson, _ := sessions(40_000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	cmd, out, _ := b.command(nil, "sweep", "--apply", "--json", "--log-level", "debug", "--log-format", "json")
	pipe := b.startAndWatch(cmd, 500, 0)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.wantEnd(cmd, pipe)
	res := b.result(out.String())
	if res.Complete || res.Targets[0].Error != "" || res.Targets[0].Deleted == 0 || res.Targets[0].Deleted == 20_000 {
		t.Errorf("result: %+v", res)
	}
	b.nobodyHolds()
	r := b.run(nil, "sweep", "--apply", "--max-duration", "500ms", "--fail-incomplete", "--json")
	if r.code != exitIncomplete || b.result(r.out).Complete {
		t.Errorf("--max-duration with --fail-incomplete: exit code %d\n%s", r.code, r.log)
	}
	if r := b.run(nil, "sweep", "--apply", "--max-duration", "300ms"); r.code != exitDone || !strings.Contains(r.out, "stopped before the end, or") {
		t.Errorf("--max-duration: exit code %d\n%s%s", r.code, r.out, r.log)
	}
}

// A second signal ends a process that cannot end in good order, and its code does not say that nothing was touched.
func TestSecondSignal(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(5000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	out, stdout, err := os.Pipe() // nobody takes what dump prints
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd, _, log := b.command(nil, "dump")
	cmd.Stdout = stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = stdout.Close()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the code tells
		close(ended)
	}()
	for over := false; !over; time.Sleep(50 * time.Millisecond) {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
			over = true
		default:
		}
	}
	if cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), log)
	}
}

func (b *workdir) status() inspect.TargetStatus {
	b.t.Helper()
	var st statusResult
	if err := json.Unmarshal([]byte(b.must(nil, "status", "--json").out), &st); err != nil {
		b.t.Fatal(err)
	}
	return st.Targets[0]
}

func TestStatus(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	b.must(strings.NewReader(fmt.Sprintf(`{"id":"a","expires":%q}`, at.Format(time.RFC3339Nano))), "load")
	st := b.status()
	if st.OldestDue == nil || !st.OldestDue.Equal(at) || st.LastSweep != nil || len(st.Generations) != 2 || len(st.Ranges) != 32 {
		t.Errorf("before: %+v", st)
	}
	b.must(nil, "sweep", "--apply")
	st = b.status()
	if st.OldestDue != nil || st.LastSweep == nil {
		t.Errorf("after: %+v", st)
	}
	text := b.must(nil, "status", "--all").out
	for _, want := range []string{"sessions: IDLE, nothing is due", "00000001  ", "nursery", "00000001.0012"} {
		if !strings.Contains(text, want) {
			t.Errorf("status does not say %q:\n%s", want, text)
		}
	}
}

func TestWarnsAboutSilentEmptiness(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a","expires":"2020-01-01T00:00:00Z"}`), "load")
	b.write("reaper.yaml", strings.Replace(oneTarget, "kind: Session", "kind: Session\n    property: expiri_key", 1))
	for range 2 { // it must not be said only once
		r := b.must(nil, "sweep", "--apply")
		if !strings.Contains(r.log, "not one of them has an entry in any range") || !strings.Contains(r.out, "check the property") {
			t.Errorf("no warning:\n%s%s", r.out, r.log)
		}
	}
}

func TestLoadWarnsAboutStragglers(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	line := `{"id":"a","expires":"2020-01-01T00:00:00Z"}`
	r := b.must(strings.NewReader(line), "load")
	if strings.Contains(r.log, "expired entities were written") {
		t.Errorf("a warning before anything was swept:\n%s", r.log)
	}
	b.must(nil, "sweep", "--apply")
	r = b.must(strings.NewReader(line), "load")
	if !strings.Contains(r.log, "expired entities were written") {
		t.Errorf("no word about an entity that had expired already:\n%s", r.log)
	}
}

func TestBadLoads(t *testing.T) {
	noRaces(t)
	t.Parallel()
	good := `{"id":"good","expires":"2033-01-01T00:00:00Z"}` + "\n"
	for name, c := range map[string]struct{ line, want string }{
		"broken":          {`{"id":`, "line 2: it is not a JSON object"},
		"not an object":   {`[1]`, "line 2: it is not a JSON object"},
		"two objects":     {`{"id":"a"}{"id":"b"}`, "line 2: there is something after"},
		"unknown field":   {`{"id":"a","expire":"x"}`, `unknown field "expire"`},
		"no id":           {`{"expires":"2033-01-01T00:00:00Z"}`, "line 2: id: it is missing"},
		"empty id":        {`{"id":""}`, "line 2: id: it is empty"},
		"zero id":         {`{"id":0}`, "line 2: id: 0 is neither"},
		"negative id":     {`{"id":-1}`, "line 2: id: -1 is neither"},
		"fractional id":   {`{"id":1.5}`, "line 2: id: 1.5 is neither"},
		"huge id":         {`{"id":9223372036854775808}`, "is neither a string nor a positive integer"},
		"reserved id":     {`{"id":"__a__"}`, "is reserved"},
		"long id":         {`{"id":"` + strings.Repeat("x", 1501) + `"}`, "1501 bytes"},
		"empty instant":   {`{"id":"a","expires":""}`, `expires: ""`},
		"bad instant":     {`{"id":"a","expires":"tomorrow"}`, `expires: "tomorrow"`},
		"year 10000":      {`{"id":"a","expires":"9999-12-31T23:59:59.9999Z"}`, "year 10000"},
		"data no object":  {`{"id":"a","data":[]}`, "data: it is not an object"},
		"expiry in data":  {`{"id":"a","data":{"expiry_key":"x"}}`, "only expires may set"},
		"two ids":         {`{"id":"a","id":"b"}`, `line 2: the key "id" appears twice`},
		"two keys":        {`{"id":"a","data":{"l":[{"k":1,"k":2}]}}`, `line 2: the key "data.l.k" appears twice`},
		"duplicate":       {`{"id":"good"}`, "line 1 has the same one"},
		"not UTF-8":       {"{\"id\":\"\xff\"}", "not UTF-8"},
		"2 MiB":           {`{"id":"` + strings.Repeat("x", 2<<20) + `"}`, "line 2: it is longer than"},
		"wrong namespace": {`{"id":"a","namespace":"n"}`, "is not one of the target's"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newEmbedded(t, oneTarget)
			in := good + c.line + "\n" + `{"id":"after"}` + "\n"
			r := b.run(strings.NewReader(in), "load")
			if r.code != exitUsage || !strings.Contains(r.log, c.want) || !strings.Contains(r.log, "1 entities were written before") {
				t.Errorf("exit code %d, %q; want 2 and %q", r.code, r.log, c.want)
			}
			if got := b.dumped(); len(got) != 1 || got[`"good"`] == "" {
				t.Errorf("what came before the bad line should be there, and only that: %v", got)
			}
			r = b.must(strings.NewReader(in), "load", "--skip-bad", "--json")
			if !strings.Contains(r.out, `"written": 2`) || !strings.Contains(r.out, `"skipped": 1`) {
				t.Errorf("--skip-bad: %s", r.out)
			}
		})
	}
}

func TestLoadTakesWhatFilesLookLike(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	r := b.must(strings.NewReader("\xef\xbb\xbf{\"id\":\"a\"}\r\n\r\n{\"id\":\"b\"}"), "load", "--json")
	if !strings.Contains(r.out, `"written": 2`) {
		t.Errorf("BOM, CRLF and no last line end: %s", r.out)
	}
	if r = b.must(nil, "load"); !strings.Contains(r.log, "empty") {
		t.Errorf("an empty file: %s", r.log)
	}
}

func TestWrongUsage(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(nil, "load")
	b.write("five.yaml", `targets:
  - name: Sessions
    kind: __x__
    shards: 0
    retentoin: 1d
    rewind: 24
`)
	b.write("brakes.yaml", oneTarget+"    limits: {per_hour: 0}\n")
	b.write("gate.yaml", oneTarget+"    pace: {gate: \"htps://gate.internal/may/I\"}\n")
	b.write("none.yaml", "targets: []\n")
	for _, c := range []struct {
		name string
		env  string
		args []string
		want []string
	}{
		{"flag", "", []string{"sweep", "--aply"}, []string{"--aply"}},
		{"command", "", []string{"swep"}, []string{"swep", "sweep"}},
		{"argument", "", []string{"sweep", "now"}, []string{"now"}},
		{"variable", "REAPER_WORKER=3", []string{"sweep"}, []string{"REAPER_WORKER", "REAPER_WORKERS"}},
		{"unit", "REAPER_MAX_DURATION=5", []string{"sweep"}, []string{"REAPER_MAX_DURATION"}},
		{"workers", "", []string{"sweep", "--workers", "10001"}, []string{"--workers", "between 1 and 10000:"}},
		{"schedule", "", []string{"serve", "--schedule", "@every 500ms"}, []string{"--schedule", "at least one", "@every 5m"}},
		{"store", "", []string{"sweep", "--store", "nothing"}, []string{"nothing", "embedded:DIR"}},
		{"no directory", "", []string{"sweep", "--store", "embedded:nowhere"}, []string{"no embedded store in nowhere", "reaper load"}},
		{"foreign directory", "", []string{"sweep", "--store", "embedded:/etc"}, []string{"/etc", "not made by this program"}},
		{"target", "", []string{"sweep", "--target", "session"}, []string{"session", "sessions"}},
		{"file", "", []string{"sweep", "--config", "nofile.yaml"}, []string{"nofile.yaml"}},
		{"no targets", "", []string{"sweep", "--config", "none.yaml"}, []string{"targets"}},
		{"gate", "", []string{"sweep", "--apply", "--config", "gate.yaml"}, []string{"gate.yaml:5:18", `"htps://gate.internal/may/I"`, "write an http:// or https:// URL"}},
		{"five mistakes", "", []string{"sweep", "--config", "five.yaml"}, []string{"five.yaml:2:11", "five.yaml:3:11", "five.yaml:4:13", "five.yaml:5:5", "retention", "five.yaml:6:13"}},

		{"stamp", "", []string{"stamp", "a", "soon"}, []string{"soon"}},
		{"stamp shards", "", []string{"stamp", "--shards", "0", "a", "1h"}, []string{"0 shards"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := *b
			if c.env != "" {
				o.env = append(append([]string{}, b.env...), c.env)
			}
			r := o.run(nil, c.args...)
			if r.code != exitUsage || r.out != "" {
				t.Errorf("exit code %d, stdout %q", r.code, r.out)
			}
			for _, want := range c.want {
				if !strings.Contains(r.log, want) {
					t.Errorf("%q is not in: %s", want, r.log)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(b.dir, "nowhere")); err == nil {
		t.Error("sweep created a directory")
	}
}

func TestStamp(t *testing.T) {
	noRaces(t)
	b := newWorkdir(t, oneTarget)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"s-1842", "2026-11-21T00:07:30.855Z"}, "00000000.0006.20261121T000730.855Z\n"},
		{[]string{"1842", "2026-11-21T01:07:30.8541+01:00"}, "00000000.0014.20261121T000730.855Z\n"},
		{[]string{"--generation", "42", "--shards", "9999", "s-1842", "2026-11-21T00:07:30.855Z"}, "00000042.6390.20261121T000730.855Z\n"},
	} {
		if r := b.must(nil, append([]string{"stamp"}, c.args...)...); r.out != c.want {
			t.Errorf("stamp %v = %q, want %q", c.args, r.out, c.want)
		}
	}
	b.env = []string{"REAPER_STORE=embedded:data"}
	b.must(nil, "load")
	if r := b.must(nil, "stamp", "s-1842", "2026-11-21T00:07:30.855Z"); r.out != "00000001.0006.20261121T000730.855Z\n" {
		t.Errorf("with a store: %q, want generation 1", r.out)
	}
	r := b.must(nil, "stamp", "--json", "s-1842", "2026-11-21T00:07:30.855Z")
	if want := `"generation": 1`; !strings.Contains(r.out, want) {
		t.Errorf("--json: %s", r.out)
	}
}

func TestVersionAndHelp(t *testing.T) {
	b := newWorkdir(t, oneTarget)
	if r := b.must(nil, "help", "targets-file"); !strings.Contains(r.out, config.Sample()) {
		t.Errorf("help targets-file: %+v", r)
	}
	if r := b.must(nil, "version"); !strings.HasPrefix(r.out, "reaper ") {
		t.Errorf("version: %q", r.out)
	}
	help := b.must(nil, "--help").out
	for _, built := range []string{"demo", "sweep", "status", "doctor", "load", "dump", "stamp", "explain", "list", "history", "breaker", "adopt", "orphans", "restore", "generation", "audit", "pause", "resume", "pace", "version"} {
		if !strings.Contains(help, "\n  "+built+" ") {
			t.Errorf("--help does not list %s", built)
		}
	}
}

func TestSecondProcessOnOneDirectory(t *testing.T) {
	nightly.Races(t)
	b := newEmbedded(t, slowTarget)
	ndjson, _ := sessions(20_000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	cmd, _, _ := b.command(nil, "sweep", "--apply", "--log-level", "debug", "--log-format", "json")
	b.startAndWatch(cmd, 1, 0)
	r := b.run(nil, "sweep", "--apply")
	if r.code != exitFailed || !strings.Contains(r.log, "in use by another process") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
