// Reaper deletes expired entities from Firestore, in native and in Datastore
// mode, and from an embedded store. This is its command line: wiring, output and
// exit codes. The packages next to cmd do the work.
//
// The invariant is that no command deletes anything unless it is told to: by
// --apply, or as demo in the store that it created itself. Also, stdout holds
// results only: logs and progress go to stderr.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// Exit codes, as docs/reference.md documents them.
const (
	exitDone       = 0
	exitFailed     = 1 // something failed; the rest was done
	exitUsage      = 2 // wrong usage or configuration; nothing was touched
	exitIncomplete = 3 // with --fail-incomplete: stopped before the end
	exitBreaker    = 4 // the breaker of a target is open; before exitIncomplete, after exitFailed
)

func main() {
	os.Exit(run(untilSignal(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// untilSignal returns a context that is done when the process is asked to stop: by
// SIGTERM, SIGINT, or a terminal that goes away (SIGHUP), unless nohup has the process
// outlive its terminal.
func untilSignal() context.Context {
	asked := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		asked = append(asked, syscall.SIGHUP)
	}
	ctx, _ := signal.NotifyContext(context.Background(), asked...)
	context.AfterFunc(ctx, func() {
		// A terminal that goes away may send SIGHUP twice: by itself and through the shell.
		signal.Ignore(syscall.SIGHUP)
		// A second signal ends the process at once. The next sweep repeats some work, which is harmless. By the
		// default behaviour the first process of a container would end with 2, which says that nothing was touched.
		time.Sleep(time.Second) // what sends it to the process, and to its group, means one
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		<-again
		os.Exit(exitFailed)
	})
	return ctx
}

// run executes one command and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{console: &console{stdin: stdin, stdout: stdout, stderr: stderr, screen: newScreen(isTerminal(stdout))},
		now: time.Now}
	return a.execute(ctx, args)
}

// execute executes one command and returns its exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	out := &output{w: a.stdout}
	a.stdout = out
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if lost := out.failure(); err == nil && lost != nil {
		err = failed(fmt.Errorf("what was done is not shown: %w", lost))
	}
	code, text := exitOf(err)
	if text != "" {
		fmt.Fprintln(a.stderr, "reaper: "+text)
		for _, hint := range store.Hints(err) {
			fmt.Fprintln(a.stderr, "hint: "+hint)
		}
	}
	return code
}

// An exit is an error with the exit code of the process. If err is nil, nothing is
// printed: the command has printed all there is.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// failed marks an error that a command met while it worked, as opposed to one
// of its usage.
func failed(err error) error {
	if err == nil {
		return nil
	}
	if e := (*exit)(nil); errors.As(err, &e) {
		return err
	}
	code := exitFailed
	if ps := (config.Problems)(nil); errors.As(err, &ps) {
		code = exitUsage
	}
	return &exit{code, err}
}

// wrongUsage marks an error of usage or configuration.
func wrongUsage(format string, args ...any) error {
	return &exit{exitUsage, fmt.Errorf(format, args...)}
}

// exitOf returns the exit code for the error of a command, and the text to print.
// An error that is not an exit comes from the parser of the command line.
func exitOf(err error) (code int, text string) {
	if err == nil {
		return exitDone, ""
	}
	if e := (*exit)(nil); errors.As(err, &e) {
		return e.code, e.Error()
	}
	return exitUsage, err.Error() + " (see reaper --help)"
}
