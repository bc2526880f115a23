package bench_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
)

// childEnv makes the test binary do a job of these and print what came of it.
const childEnv = "BENCH_CHILD"

// A job is what a child process does: empty the embedded store in Dir, with the
// bare loop or a sweep, adopt what is in it, or sweep a project on an emulator.
type job struct {
	Dir   string
	Bare  bool
	Adopt bool

	Mode          emulator.Mode
	Host, Project string
	Lease         time.Duration

	Remote string // the address of a store behind gRPC; empty for any other

	Ranges int           // of a store that is made up; 0 for any other
	Serve  time.Duration // for so long, once all of them are at rest; 0 for one sweep
}

// An outcome is what a child says at its end.
type outcome struct {
	Deleted, Scanned, Conflicts, Stamped int64
	Last                                 time.Time // when it was done with its last write
	PeakKiB                              float64   // of its memory

	First, Took time.Duration // of many ranges: until the first delete, and until all are at rest
	PerSecond   float64       // and of one core, then
}

func isChild() bool { return os.Getenv(childEnv) != "" }

// child opens the store, says so, and begins once it is told to: what processes
// do at the same time is to be compared, not how they start.
func child() (err error) {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &j); err != nil {
		return err
	}
	if j.Ranges > 0 {
		return childOfMany(j)
	}
	ctx := context.Background()
	s, t, err := j.open(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	var o outcome
	switch {
	case j.Adopt:
		n, err := adopts(ctx, s)
		if err != nil {
			return err
		}
		o.Stamped = int64(n)
	case j.Remote != "":
		if o, err = childOfScaleOut(ctx, s, j); err != nil {
			return err
		}
	case j.Bare:
		n, err := bareLoop(ctx, s, 1)
		if err != nil {
			return err
		}
		o.Deleted = int64(n)
	default:
		if j.Lease > 0 {
			t.Lease = j.Lease
		}
		c, d := configFor(s, t, workers), &dated{Store: s}
		if j.Mode != "" { // the embedded store is more than a Store, and a process has it for itself
			c.Store = d
		}
		res := sweep.Run(ctx, c)
		if err := incomplete(res); err != nil {
			return err
		}
		o = outcome{Deleted: res.Targets[0].Deleted, Scanned: res.Targets[0].Scanned, Conflicts: res.Targets[0].Conflicts,
			Last: time.Unix(0, d.last.Load())}
	}
	if err := s.Close(); err != nil {
		return err
	}
	_, _ = fmt.Sscan(field("/proc/self/status", "VmHWM"), &o.PeakKiB) // where there is no /proc it stays zero
	return json.NewEncoder(os.Stdout).Encode(o)
}

// incomplete returns why a sweep has not done all of its work; nil if it has.
func incomplete(res sweep.Result) error {
	t := res.Targets[0]
	if res.Complete && t.Error == "" {
		return nil
	}
	return fmt.Errorf("the sweep is incomplete after %.1f s: %d of %d ranges are left, held %q (%s), throttled %v s, "+
		"%d deleted, operations %+v: %w", t.Duration, t.Incomplete, t.Ranges, t.Held, t.Reason, t.Throttled, t.Deleted,
		t.Operations, cmp.Or(t.Err, errors.New("nothing failed")))
}

// A dated store knows when it was last written to.
type dated struct {
	store.Store
	last atomic.Int64
}

func (d *dated) Dispose(ctx context.Context, b *store.Batch) error {
	err := d.Store.Dispose(ctx, b)
	for now := time.Now().UnixNano(); ; {
		if last := d.last.Load(); last >= now || d.last.CompareAndSwap(last, now) {
			return err
		}
	}
}

type closer interface {
	store.Store
	io.Closer
}

func (j job) open(ctx context.Context) (closer, sweep.Target, error) {
	if j.Remote != "" {
		s, err := dial(j.Remote)
		return s, scaleTarget(), err
	}
	switch j.Mode {
	case emulator.Datastore:
		db, err := datastore.Open(ctx, datastore.Options{Project: j.Project, Emulator: j.Host})
		return db, sharded(), err
	case emulator.Native:
		db, err := firestore.Open(ctx, firestore.Options{Project: j.Project, Emulator: j.Host})
		return db, sharded(), err
	}
	db, err := embedded.Open(j.Dir, embedded.Options{Now: time.Now})
	return db, target(), err
}

// A process is a child that was started.
type process struct {
	tb   testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer
}

// begin starts a child, and returns once it is ready.
func begin(tb testing.TB, j job) *process {
	tb.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		tb.Fatal(err)
	}
	p := &process{tb: tb, cmd: exec.CommandContext(tb.Context(), os.Args[0])}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = &p.errs
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	if line, err := p.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
		_ = p.cmd.Wait() // it has said on standard error what is wrong
		tb.Fatalf("%q, %v: %s", line, err, &p.errs)
	}
	return p
}

// release has the child begin.
func (p *process) release() {
	p.tb.Helper()
	if _, err := io.WriteString(p.in, "go\n"); err != nil {
		p.tb.Fatal(err)
	}
}

// end waits for what came of it.
func (p *process) end() (o outcome) {
	p.tb.Helper()
	err := json.NewDecoder(p.out).Decode(&o)
	if ended := p.cmd.Wait(); err != nil || ended != nil {
		p.tb.Fatalf("%v, %v: %s", err, ended, &p.errs)
	}
	return o
}

// cpu returns what the process used, once it has ended.
func (p *process) cpu() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}
