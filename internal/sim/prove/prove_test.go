package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/twoclocks"
)

// A seed that does not end is named and counts as a violation; the others run, and the ledger knows of it.
func TestSeedsThatDoNotEnd(t *testing.T) {
	dir := t.TempDir()
	bin, file := filepath.Join(dir, "prove"), filepath.Join(dir, "proof.ndjson")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	prove := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), bin, append(args, "-ledger", file, "-workers", "1")...)
		cmd.Dir = "../../.."
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := prove("-first", "7", "-n", "2", "-bound", "1ms")
	for _, want := range []string{"seed 7: does not end within 1ms: go run ./internal/sim/prove -seed 7\n",
		"seed 8: does not end within 1ms", "\n2 seeds, 0 steps, ", " 2 violations\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	if out, _ := prove("-first", "9", "-n", "1"); !strings.Contains(out, "1 seeds, ") || !strings.Contains(out, " 0 violations") {
		t.Errorf("an ordinary seed:\n%s", out)
	}
	if out, _ := prove("-report"); !strings.Contains(out, ": 3 seeds, 2 violations: [7 8]") {
		t.Errorf("the ledger says:\n%s", out)
	}
}

// That the machine slept is said, once.
func TestMachineSleeps(t *testing.T) {
	now := time.Now()
	monotonic := now.Sub(twoclocks.At(now, 0))
	c := clock{began: twoclocks.At(now.Add(-time.Hour), monotonic)}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stderr
	os.Stderr = write
	c.look()
	c.look()
	os.Stderr = was
	write.Close()
	said, err := io.ReadAll(read)
	if text := string(said); err != nil || strings.Count(text, "slept") != 1 || !strings.Contains(text, "1h0m0s") {
		t.Errorf("%q, %v", text, err)
	}
}
