//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/badproxy"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/sweep"
)

// build builds reaper from this source, and returns the program's path.
func build(dir string) (string, error) {
	args := append([]string{"build", "-o", dir}, strings.Fields(*buildFlags)...)
	out, err := exec.Command("go", append(args, "github.com/reaper-ttl/reaper/cmd/reaper")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build reaper: %w\n%s", err, out)
	}
	return filepath.Join(dir, "reaper"), nil
}

// A process runs reaper again and again, on a bad network.
type process struct {
	*world
	name  string
	args  []string
	proxy *badproxy.Proxy
	pause time.Duration // between two runs, at most

	mu     sync.Mutex
	cmd    *exec.Cmd // nil where none runs
	doomed bool      // it was killed, or told to end
	tail   []string  // the last lines that it logged
	part   []byte    // of a line
	log    *os.File
	pages  map[string][]pageLine // what it logged of each run, by target and owner
}

// A pageLine says that entities were deleted.
type pageLine struct {
	at      time.Time
	deleted int64
}

const tailLength = 400

// openLog opens a file for the log of a process, if the test is asked to keep one.
func openLog(t *testing.T, name string) *os.File {
	t.Helper()
	if *logs == "" {
		return nil
	}
	if err := os.MkdirAll(*logs, 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(*logs, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Write takes what a process logs.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part = append(p.part, text...)
	for {
		line, rest, ok := bytes.Cut(p.part, []byte("\n"))
		if !ok {
			break
		}
		p.tail = append(p.tail, string(line))
		p.part = bytes.Clone(rest)
		p.read(line)
	}
	if n := len(p.tail) - tailLength; n > 0 {
		p.tail = p.tail[n:]
	}
	if p.log == nil {
		return len(text), nil
	}
	return p.log.Write(text)
}

// read counts what a line says was done: a run that is killed prints no result.
func (p *process) read(line []byte) {
	var l struct {
		Message, Range, Owner string
		Time                  time.Time
		Deleted, Carried      int64
	}
	if json.Unmarshal(line, &l) != nil {
		return
	}
	switch l.Message {
	case "page":
		p.swept.Add(l.Deleted)
		target, _, _ := strings.Cut(l.Range, ".")
		run := target + "@" + l.Owner
		p.pages[run] = append(p.pages[run], pageLine{l.Time, l.Deleted})
		p.carried.Add(l.Carried)
	case "generation retired":
		p.retirements.Add(1)
	}
}

// say adds an event of the test to the log of the process.
func (p *process) say(format string, args ...any) {
	if p != nil {
		fmt.Fprintf(p, "{\"time\":%q,\"message\":%q}\n", time.Now().UTC().Format(time.RFC3339Nano), "chaos: "+fmt.Sprintf(format, args...))
	}
}

// last returns the last lines that the process logged.
func (p *process) last(n int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.tail[max(0, len(p.tail)-n):], "\n")
}

// command prepares a run of the program that finds its database at the given host.
func (w *world) command(host string, args ...string) *exec.Cmd {
	cmd := exec.Command(w.program, args...)
	cmd.Dir = w.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "REAPER_") && !strings.Contains(v, "EMULATOR_HOST") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	driver, variable := "datastore", "DATASTORE_EMULATOR_HOST"
	if w.mode == emulator.Native {
		driver, variable = "firestore", "FIRESTORE_EMULATOR_HOST"
	}
	cmd.Env = append(cmd.Env, variable+"="+host, "REAPER_STORE="+driver+":"+w.project,
		"REAPER_LOG_LEVEL=debug", "REAPER_LOG_FORMAT=json", "REAPER_WORKERS=6")
	return cmd
}

// run runs the program until ctx is done, and then ends it in good order.
func (p *process) run(ctx context.Context, wait func(time.Duration) time.Duration) {
	// The kernel ends a child with the thread that it was started from, and must not
	// do so before the whole test ends.
	runtime.LockOSThread()
	for ctx.Err() == nil {
		cmd := p.command(p.proxy.Addr(), p.args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, p
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		p.mu.Lock()
		err := cmd.Start()
		p.cmd, p.doomed = cmd, false
		p.mu.Unlock()
		if err != nil {
			p.violation(nil, fmt.Sprintf("start %s: %v", p.name, err))
			return
		}
		stop := context.AfterFunc(ctx, func() { p.signal(syscall.SIGTERM) })
		err = cmd.Wait()
		stop()
		p.mu.Lock()
		doomed := p.doomed
		p.cmd = nil
		p.mu.Unlock()
		p.ended(err, doomed, cmd.ProcessState.ExitCode(), out.Bytes())
		sleep(ctx, wait(p.pause))
	}
}

// ended checks exit code and log of a run.
func (p *process) ended(err error, doomed bool, code int, out []byte) {
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.violation(nil, fmt.Sprintf("run %s: %v", p.name, err))
	}
	for _, bad := range []string{"internal error", "panic:", "fatal error:", "DATA RACE"} {
		if strings.Contains(p.last(tailLength), bad) {
			p.violation(nil, fmt.Sprintf("%s logged %q", p.name, bad))
		}
	}
	key := fmt.Sprint(code)
	switch {
	case code < 0 && doomed, code == 1 && doomed && len(out) == 0: // by SIGKILL, a first SIGTERM or a second one
		key = "killed"
	case code != 0 && code != 1 && code != 4: // 4 is the breaker
		p.violation(nil, fmt.Sprintf("%s ended with code %d: %v", p.name, code, err))
	case p.args[0] == "sweep":
		var res sweep.Result
		d := json.NewDecoder(bytes.NewReader(out))
		d.DisallowUnknownFields()
		if err := d.Decode(&res); err != nil {
			p.violation(nil, fmt.Sprintf("%s printed no JSON document: %v: %s", p.name, err, out))
		}
		if code == 0 && !res.Complete {
			key = "0, incomplete"
		}
		for _, t := range res.Targets {
			p.strays.Add(t.Strays)
		}
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.codes[key]++
}

// signal sends a signal to the present run, and reports whether there is one.
func (p *process) signal(s syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process == nil {
		return false
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM { // which may come before it is told what to do then
		p.doomed = true
	}
	return p.cmd.Process.Signal(s) == nil
}

// output runs the program on a good network once, and returns what it prints.
func (w *world) output(args ...string) ([]byte, error) { return w.command(w.host, args...).Output() }

// must runs the program on a good network until it succeeds.
func (w *world) must(t *testing.T, args ...string) (stdout []byte) {
	t.Helper()
	for try := 1; ; try++ {
		cmd := w.command(w.host, args...)
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &log
		err := cmd.Run()
		if err == nil {
			return out.Bytes()
		}
		if try == 5 {
			t.Fatalf("reaper %s: %v\n%s", strings.Join(args, " "), err, log.String())
		}
		sleep(t.Context(), 2*time.Second)
	}
}
