package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// A command whose result cannot be written, as on a full disk, says so and exits with 1: also one
// that has done what it was asked to do.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("this system cannot pretend that a disk is full: %v", err)
	}
	defer func() {
		if err := full.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(keyed(3, time.Now().Add(time.Hour))), "load")
	for _, line := range []string{"explain s-1", "list --kept suspect", "status", "history", "stamp s-1 2026-11-21T00:00:00Z", "version",
		"audit", "pace --max 7", "generation list", "generation advance", "doctor --writers", "doctor --repair worker-dead", "dump",
		"load", "sweep", "breaker show sessions", "pause --reason x", "--help", "version --json"} {
		args := strings.Fields(line)
		var log bytes.Buffer
		code := run(t.Context(), append(args, b.flags(args[0])...), strings.NewReader(`{"id":"a"}`+"\n"), full, &log)
		if code != exitFailed || !strings.Contains(log.String(), "no space left on device") {
			t.Errorf("reaper %s: exit code %d: %s", line, code, log.String())
		}
	}
}

// flags are those by which a command that runs in this process finds the store and the targets file.
func (b *workdir) flags(command string) []string {
	if command == "--help" {
		return nil
	}
	return []string{"--store=embedded:" + b.dir + "/data", "--config=" + b.dir + "/reaper.yaml"}
}
