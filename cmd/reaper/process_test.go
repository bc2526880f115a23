package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// asReaper makes the test binary behave as the program, so that tests have real
// processes to kill.
const asReaper = "TEST_BINARY_IS_REAPER"

func TestMain(m *testing.M) {
	if os.Getenv(agesRecords) != "" {
		os.Unsetenv(agesRecords)
		os.Unsetenv(asReaper)
		if err := ageTheRecords(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		os.Exit(exitDone)
	}
	if os.Getenv(asReaper) != "" {
		if len(os.Args) < 2 || os.Args[1] != "selftest" { // which starts a second process of itself
			os.Unsetenv(asReaper)
		}
		os.Exit(run(untilSignal(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	waiting()
	emulator.Main(m)
}

// waiting lets more tests run in parallel than there are CPUs: they wait for processes,
// leases and locks.
func waiting() {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err)
		}
	}
}

// A workdir is a working directory with a targets file, and the environment of
// the processes that run in it.
type workdir struct {
	t   *testing.T
	dir string
	env []string
}

func newWorkdir(t *testing.T, targets string) *workdir {
	b := &workdir{t: t, dir: t.TempDir()}
	b.write("reaper.yaml", targets)
	return b
}

func (b *workdir) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// noRaces leaves a test out under the race detector. Such a test runs one process after the
// other, so it has no races, and processes that are built for the detector take seconds to
// start.
func noRaces(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing for the race detector here")
	}
}

// A reply is the exit code and the output of a process.
type reply struct {
	out, log string
	code     int
}

// command prepares a process without starting it.
func (b *workdir) command(stdin io.Reader, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	b.t.Helper()
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Dir, cmd.Stdin = b.dir, stdin
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "REAPER_") && !strings.Contains(v, "EMULATOR_HOST") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, asReaper+"=1"), b.env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	return cmd, &out, &log
}

// start starts a prepared process, and returns the log that it writes.
func (b *workdir) start(cmd *exec.Cmd) (log io.Reader) {
	b.t.Helper()
	cmd.Stderr = nil
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return log
}

// run runs a process to its end.
func (b *workdir) run(stdin io.Reader, args ...string) reply {
	b.t.Helper()
	cmd, out, log := b.command(stdin, args...)
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return reply{out.String(), log.String(), cmd.ProcessState.ExitCode()}
}

// lateStatus matches a status that could not read everything in its five seconds, as on a busy machine.
var lateStatus = regexp.MustCompile(`"unread": \[\s*"|has not answered within|(?i)deadline`)

// must runs a process that has to succeed.
func (b *workdir) must(stdin io.Reader, args ...string) reply {
	b.t.Helper()
	r := b.run(stdin, args...)
	for tries := 1; tries < 5 && args[0] == "status" && lateStatus.MatchString(r.out+r.log); tries++ {
		r = b.run(stdin, args...)
	}
	if r.code != exitDone {
		b.t.Fatalf("reaper %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.log)
	}
	return r
}

// sweep sweeps and returns the one target's result.
func (b *workdir) sweep(args ...string) sweep.TargetResult {
	b.t.Helper()
	r := b.must(nil, append([]string{"sweep", "--json"}, args...)...)
	return b.result(r.out).Targets[0]
}

// sweepOnce sweeps a store whose locks of a killed process may outlast a sweep's patience: it may fail for these.
func (b *workdir) sweepOnce() sweep.TargetResult {
	b.t.Helper()
	r := b.run(nil, "sweep", "--apply", "--json")
	if r.code != exitDone && r.code != exitFailed {
		b.t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.log)
	}
	res := b.result(r.out).Targets[0]
	if res.Error != "" && !strings.Contains(res.Error, store.ErrContention.Error()) && !strings.Contains(res.Error, store.ErrDeadline.Error()) {
		b.t.Errorf("sweep: %+v", res)
	}
	return res
}

func (b *workdir) result(out string) sweep.Result {
	b.t.Helper()
	var res sweep.Result
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&res); err != nil {
		b.t.Fatalf("stdout is not one JSON document: %v\n%s", err, out)
	}
	if d.More() {
		b.t.Fatalf("stdout has more than one JSON document:\n%s", out)
	}
	return res
}

// sessions returns NDJSON of n entities, every other one expired within the last
// day, the others in the next one but no sooner than in an hour; and the ids of
// the live ones.
func sessions(n int, now time.Time) (ndjson string, live map[string]bool) {
	live = map[string]bool{}
	var b strings.Builder
	for i := range n {
		id := fmt.Sprintf(`"s-%d"`, i)
		if i%3 == 0 {
			id = fmt.Sprint(i + 1)
		}
		part := time.Duration(i) * (24 * time.Hour / time.Duration(n))
		at := now.Add(-time.Minute - part)
		if i%2 == 1 {
			at = now.Add(time.Hour + part)
			live[id] = true
		}
		fmt.Fprintf(&b, `{"id":%s,"expires":%q,"data":{"user":"u%d","n":%d}}`+"\n", id, at.UTC().Format(time.RFC3339Nano), i%7, i)
	}
	return b.String(), live
}

// dumped returns the lines of a dump by id.
func (b *workdir) dumped(args ...string) map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for text := range strings.Lines(b.must(nil, append([]string{"dump"}, args...)...).out) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			b.t.Fatalf("dump printed %q: %v", text, err)
		}
		all[l.Namespace+l.Parent+string(l.ID)] = text
	}
	return all
}

// wantLive compares what is left with what should be.
func (b *workdir) wantLive(live map[string]bool, args ...string) {
	b.t.Helper()
	got := b.dumped(args...)
	for id := range live {
		if got[id] == "" {
			b.t.Fatalf("%s is live and gone; %d left, want %d", id, len(got), len(live))
		}
	}
	for id, text := range got {
		if !live[id] {
			b.t.Errorf("%s has expired and is still there: %s", id, text)
		}
	}
	if len(got) != len(live) {
		b.t.Fatalf("%d entities left, want %d", len(got), len(live))
	}
}
