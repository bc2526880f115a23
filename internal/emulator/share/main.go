// Share starts Google's emulator in both modes, runs a command whose tests use them, and
// ends them:
//
//	go run ./internal/emulator/share go test ./...
//
// The invariant is that the command runs in any case: where there is no emulator, its
// tests say so themselves. Its exit code is the command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: share COMMAND [ARGUMENT...]")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	environ, end, err := emulator.Share(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "share:", err)
	} else {
		defer end()
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that go test ends what it started
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(1, exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "share:", err)
		return 1
	}
	return 0
}
