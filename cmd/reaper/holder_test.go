package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
)

// While reaper serve has an embedded store open, other processes can look at it and change
// its switches; what they print and how they end is as if the store were theirs.
func TestCommandsWhileServing(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson+`{"id":"far","expires":"2999-01-01T00:00:00Z"}`+"\n"+`{"id":"odd","expires":"1950-01-01T00:00:00Z"}`+"\n"), "load")
	d := b.serve("--apply", "--schedule", "@every 1s")
	d.until("the deletes", func() bool { return d.value(`reaper_deleted_entities_total{target="sessions"}`) > 0 })
	info, err := os.Stat(filepath.Join(b.dir, "data", socketName))
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}

	if st := b.status(); st.Verdict != inspect.Idle && st.Verdict != inspect.OK || len(st.Workers) != 1 {
		t.Errorf("%+v", st)
	}
	asked := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"pause", "--reason", "a drill: who, why? it's ours", "--actor", "ann"}, 0, "sessions is paused until reaper resume"},
		{[]string{"status"}, 0, "sessions: PAUSED, by ann"},
		{[]string{"explain", "far"}, 0, `"far" of target sessions`},
		{[]string{"explain", "--target", "sessions", "--", "-odd"}, 0, "there is no such entity"},
		{[]string{"list", "--kept", "suspect", "--json"}, 0, `"kept": "suspect"`},
		{[]string{"history", "--actions"}, 0, "pause, by ann"},
		{[]string{"resume"}, 0, "sessions is swept"},
		{[]string{"pace", "--max", "7"}, 0, "at most 7/s in each range"},
		{[]string{"pace", "--reset"}, 0, "at most unlimited (targets file) in each range"},
	}
	var while []reply
	for _, c := range asked {
		r := b.run(nil, c.args...)
		if r.code != c.code || !strings.Contains(r.out, c.want) {
			t.Errorf("%v: %+v", c.args, r)
		}
		while = append(while, r)
	}
	if r := b.run(nil, "status", "--target", "nobody"); r.code != 2 {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"load"}, {"sweep"}} {
		r := b.run(strings.NewReader(""), args...)
		if r.code != 1 || !strings.Contains(r.log, "in use by another process: reaper serve") ||
			!strings.Contains(r.log, "Stop it first for "+args[0]) {
			t.Errorf("%v: %+v", args, r)
		}
	}
	d.stop()
	if _, err := os.Lstat(filepath.Join(b.dir, "data", socketName)); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	for i, c := range asked {
		r := b.run(nil, c.args...)
		if c.args[0] == "status" || c.args[0] == "list" || c.args[0] == "history" { // they tell the time
			continue
		}
		if r.code != while[i].code || r.out != while[i].out || r.log != while[i].log {
			t.Errorf("%v: while serving %+v, after it %+v", c.args, while[i], r)
		}
	}
}

// A socket that a killed process has left is replaced, as is what one has left that died
// while it made its own; a path may be longer than the address of a socket.
func TestSocketOfAKilledProcessIsReplaced(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	long := strings.Repeat("a-long-name/", 12) + "data"
	b.env = []string{"REAPER_STORE=embedded:" + filepath.Join(b.dir, long)}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(b.dir, long)), 0o755); err != nil {
		t.Fatal(err)
	}
	ndjson, _ := sessions(30, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	d := b.serve()
	first := b.status()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-d.gone; err == nil {
		t.Error("it was not killed")
	}
	dir := filepath.Join(b.dir, long)
	if _, err := os.Lstat(filepath.Join(dir, socketName)); err != nil {
		t.Fatal(err)
	}
	if again := b.status(); again.Backlog == nil || first.Backlog == nil || *again.Backlog != *first.Backlog {
		t.Errorf("with the socket left: %+v, before %+v", again, first)
	}
	left := filepath.Join(dir, socketName+".123")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	d = b.serve()
	b.status()
	if r := b.run(nil, "sweep"); !strings.Contains(r.log, "reaper serve") {
		t.Errorf("it is not the daemon that answers: %+v", r)
	}
	if _, err := os.Lstat(left); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", left, err)
	}
	d.stop()
}

// A process that has the store and does not answer is named within five seconds; one that
// serves no commands is, too.
func TestHolderThatDoesNotAnswer(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, slowerTarget)
	ndjson, _ := sessions(4000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	d := b.serve()
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r := b.run(nil, "status")
	if r.code != 1 || !strings.Contains(r.log, "which did not answer on ") || !strings.Contains(r.log, "timeout") {
		t.Errorf("%+v", r)
	}
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	d.stop()

	cmd, _, _ := b.command(nil, "sweep", "--apply", "--log-level", "debug", "--log-format", "json")
	log := b.startAndWatch(cmd, 10, 0)
	r = b.run(nil, "status")
	if r.code != 1 || !strings.Contains(r.log, "another reaper command") {
		t.Errorf("%+v", r)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.wantEnd(cmd, log)
}

// A file in the place of the socket is not removed; the daemon works without a socket.
func TestNoSocketIsNoFailure(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(30, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	b.write("data/"+socketName, "precious")
	d := b.serve("--apply", "--schedule", "@every 1s")
	d.until("the deletes", func() bool { return d.value(`reaper_deleted_entities_total{target="sessions"}`) > 0 })
	d.stop()
	if text, err := os.ReadFile(filepath.Join(b.dir, "data", socketName)); string(text) != "precious" {
		t.Errorf("%s, %v", text, err)
	}
	if !strings.Contains(d.said(), "no socket") || !strings.Contains(d.said(), "is not a socket") {
		t.Errorf("%s", d.said())
	}
}

// A status that is repeated goes on through the daemon, and ends as a person ends it.
func TestWatchWhileServing(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(30, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	d := b.serve("--apply")
	cmd, _, log := b.command(nil, "status", "--watch", "--interval", "1s")
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told, buffer := "", make([]byte, 4096)
	for strings.Count(told, "sessions: ") < 3 {
		n, err := out.Read(buffer)
		if told += string(buffer[:n]); err != nil {
			t.Fatalf("%v: %s%s", err, told, log)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, log)
	}
	d.stop()
}
