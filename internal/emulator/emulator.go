// Package emulator runs Google's Firestore emulator for tests. One program
// serves Datastore mode and native mode; a test binary starts at most one of
// each, because a start takes about five seconds, and tests are kept apart by
// project ids: the emulator has databases of its own for every project.
//
// The invariant is that no emulator outlives its test binary: it runs in a
// process group of its own, under a shell that ends the whole group as soon as
// the pipe from the test binary closes, be it by [Main], a panic or a kill.
//
// A run of many test binaries can share one of each mode: `go run
// ./internal/emulator/share COMMAND` starts them and runs the command, which finds them by
// the variables of [Share].
//
// It looks for the launcher in the variable FIRESTORE_EMULATOR_LAUNCHER, under
// the SDK root that gcloud names, and in the places where packages put the
// SDK. Without launcher or Java a test skips and says why, unless
// EMULATOR_REQUIRED=1 is set, as in CI: then it fails.
//
// Limits: the emulator mimics neither production locking nor quotas, executes
// queries without an index, has no namespace queries in Datastore mode, and
// its Java heap is held to 1 GiB.
package emulator

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Mode is one of the two interfaces that the emulator can serve.
type Mode string

const (
	Datastore Mode = "datastore-mode"
	Native    Mode = "firestore-native"
)

const (
	launcherEnv = "FIRESTORE_EMULATOR_LAUNCHER"
	requiredEnv = "EMULATOR_REQUIRED"

	startTimeout = 3 * time.Minute // a cold start on a busy machine
	maxHeap      = "-Xmx1g"
	sharedHeap   = "-Xmx4g" // projects pile up in it
)

// An Emulator is a running emulator.
type Emulator struct {
	Host string // "127.0.0.1:port", what DATASTORE_EMULATOR_HOST would hold
}

// Project returns a project id that no other test uses: its databases are
// empty.
func (e *Emulator) Project(t testing.TB) string {
	t.Helper()
	return "test-" + strings.ToLower(rand.Text()[:16])
}

// running is what this test binary has started. It is the one place where
// tests of a package meet, so it has to be a variable of the package.
var running struct {
	sync.Mutex
	main  bool // Main is there to clean up
	procs map[Mode]*process
}

type process struct {
	emulator *Emulator
	err      error
	stop     func()
}

// Main runs the tests and then ends the emulators that they started. A package
// that calls [Start] has it as its TestMain:
//
//	func TestMain(m *testing.M) { emulator.Main(m) }
func Main(m *testing.M) {
	running.Lock()
	running.main = true
	running.procs = map[Mode]*process{}
	running.Unlock()
	code := m.Run()
	running.Lock()
	for _, p := range running.procs {
		if p.stop != nil {
			p.stop()
		}
	}
	running.Unlock()
	os.Exit(code)
}

// Start returns the emulator of the given mode, which it starts if no test of
// this binary has done so before. If no emulator is installed, it skips or fails
// the test.
func Start(t testing.TB, mode Mode) *Emulator {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	if !running.main {
		t.Fatal("emulator: TestMain does not call emulator.Main, so nobody would end the emulator")
	}
	p := running.procs[mode]
	if p == nil {
		p = &process{}
		if host := os.Getenv(shared[mode]); host != "" {
			p.emulator = &Emulator{Host: host}
		} else {
			p.emulator, p.stop, p.err = start(t.Context(), mode, maxHeap)
		}
		running.procs[mode] = p
	}
	if p.err != nil {
		Unavailable(t, "the Firestore emulator cannot be had: %v", p.err)
	}
	return p.emulator
}

// StartOwn starts an emulator for one test alone, which ends with it: for tests that fill
// an emulator until it is slow for everybody. If none is installed, it skips or fails the
// test.
func StartOwn(t testing.TB, mode Mode) *Emulator {
	t.Helper()
	e, stop, err := start(t.Context(), mode, sharedHeap)
	if err != nil {
		Unavailable(t, "the Firestore emulator cannot be had: %v", err)
	}
	t.Cleanup(stop)
	return e
}

// Unavailable skips the test because something that it needs is not there, or
// fails it where EMULATOR_REQUIRED=1 says that everything has to be.
func Unavailable(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv(requiredEnv) == "1" {
		t.Fatalf(format+" ("+requiredEnv+"=1 allows no skips)", args...)
	}
	t.Skipf(format, args...)
}

// shared are the variables that name the emulators of a whole run.
var shared = map[Mode]string{Datastore: "SHARED_DATASTORE_EMULATOR", Native: "SHARED_NATIVE_EMULATOR"}

// Share starts an emulator of each mode for a run of many test binaries, and returns the
// variables by which they find them, and what ends both.
func Share(ctx context.Context) (environ []string, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for mode, name := range shared {
		e, end, err := start(ctx, mode, sharedHeap)
		if err != nil {
			stop()
			return nil, nil, err
		}
		stops, environ = append(stops, end), append(environ, name+"="+e.Host)
	}
	return environ, stop, nil
}

// Alone takes the variables of a shared emulator out of an environment.
func Alone(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(slices.Collect(maps.Values(shared)), name)
	})
}

// start tries a few ports: between finding a free one and the emulator's
// listening there somebody else may take it.
func start(ctx context.Context, mode Mode, heap string) (*Emulator, func(), error) {
	launcher, err := findLauncher(ctx)
	if err != nil {
		return nil, nil, err
	}
	if os.Getenv("JAVA") == "" { // the launcher's own override
		if _, err := exec.LookPath("java"); err != nil {
			return nil, nil, fmt.Errorf("its launcher is %s, but it needs Java 11 or later: %w", launcher, err)
		}
	}
	var errs []error
	for range 3 {
		host, err := freePort()
		if err != nil {
			return nil, nil, err
		}
		stop, err := launch(launcher, host, mode, heap)
		if err == nil {
			return &Emulator{Host: host}, stop, nil
		}
		errs = append(errs, err)
	}
	return nil, nil, errors.Join(errs...)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Available reports whether there is an emulator to start.
func Available(ctx context.Context) bool {
	_, err := findLauncher(ctx)
	return err == nil
}

func findLauncher(ctx context.Context) (string, error) {
	if path := os.Getenv(launcherEnv); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", launcherEnv, err)
		}
		return path, nil
	}
	roots := []string{"/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk",
		"/google-cloud-sdk"}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, "google-cloud-sdk"))
	}
	for _, root := range roots { // first, because asking gcloud takes a second
		if path, ok := launcherUnder(root); ok {
			return path, nil
		}
	}
	if gcloud, err := exec.LookPath("gcloud"); err == nil {
		out, err := exec.CommandContext(ctx, gcloud, "info", "--format=value(installation.sdk_root)").Output()
		if err == nil {
			if path, ok := launcherUnder(string(bytes.TrimSpace(out))); ok {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("no launcher under %s: "+
		"install the Google Cloud CLI's component cloud-firestore-emulator, or set %s",
		strings.Join(roots, ", "), launcherEnv)
}

func launcherUnder(root string) (string, bool) {
	path := filepath.Join(root, "platform", "cloud-firestore-emulator", "cloud_firestore_emulator")
	_, err := os.Stat(path)
	return path, err == nil
}

// watchdog starts the launcher ("$0" "$@") and ends its own process group when
// the launcher is through or when standard input ends, which it does when the
// test binary closes the pipe or dies.
const watchdog = `{ "$0" "$@"; kill -9 0; } & read -r _; kill -9 0`

// launch returns once the emulator answers.
func launch(launcher, host string, mode Mode, heap string) (stop func(), err error) {
	addr, port, err := net.SplitHostPort(host)
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp("", "firestore-emulator-*.log")
	if err != nil {
		return nil, err
	}
	defer os.Remove(log.Name())
	cmd := exec.Command("/bin/sh", "-c", watchdog, launcher,
		"start", "--host="+addr, "--port="+port, "--database-mode="+string(mode))
	// Of two heaps the last counts, which may come from outside.
	cmd.Env = append(os.Environ(), "JAVA_TOOL_OPTIONS="+strings.TrimSpace(heap+" "+os.Getenv("JAVA_TOOL_OPTIONS")))
	cmd.Stdout, cmd.Stderr = log, log // a file, so that Wait waits for no pipe
	if err := ownGroup(cmd); err != nil {
		return nil, err
	}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // always "killed": the watchdog kills its own group
		close(ended)
	}()
	stop = func() {
		pipe.Close()
		<-ended
		log.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := awaitAnswer(ctx, "http://"+host+"/", ended); err != nil {
		stop()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("start %s at %s: %w; it said: %s", launcher, host, err, bytes.TrimSpace(text))
	}
	return stop, nil
}

// awaitAnswer polls the emulator's root, which answers as soon as it serves.
func awaitAnswer(ctx context.Context, url string, ended <-chan struct{}) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ended:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", startTimeout, ctx.Err())
		case <-tick.C:
		}
	}
}
