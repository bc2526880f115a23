package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/reaper-ttl/reaper/internal/selftest"
)

// A guard is a second process, which cleans up after a self-test if that is killed. It waits
// for the end of its input, and works only if the last byte of it is not allDone.
type guard struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

const allDone = '.'

// startGuard starts the guard of a self-test. Without one, the self-test works anyway.
func startGuard(s selftest.Setup, log *slog.Logger) (*guard, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	// It outlives the context of this process.
	cmd := exec.CommandContext(context.Background(), self, "selftest", "--store", s.Spec, "--clean", s.ID, "--guard")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", self, err)
	}
	log.Debug("a second process cleans up if this one is killed", "pid", cmd.Process.Pid)
	return &guard{cmd, in}, nil
}

// dismiss tells the guard that nothing is left to do, and waits for its end.
func (g *guard) dismiss() {
	if g == nil {
		return
	}
	_, _ = g.stdin.Write([]byte{allDone}) // if it is gone, there is nobody to tell
	_ = g.stdin.Close()
	_ = g.cmd.Wait()
}

// ignoreSignals leaves the signals that a terminal or a container sends to both processes to
// the one that is guarded.
func ignoreSignals() { signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) }

// guardedDies waits for the process that started this one, and reports whether it died before
// it could say that all is done.
func guardedDies(stdin io.Reader) bool {
	text, _ := io.ReadAll(stdin) // a pipe that breaks is one that ends
	return len(text) == 0 || text[len(text)-1] != allDone
}
