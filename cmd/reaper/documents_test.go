package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// A document is a page whose samples are run.
type document struct {
	page     string
	replaced map[string]string // what a line says, and what is run instead
}

// A sample is one command of a page, and what the page says it prints.
type sample struct {
	line    int
	command string
	prints  []string
}

// TestReadmeRuns runs every sample of the README as a reader would, and compares what it
// prints.
func TestReadmeRuns(t *testing.T) {
	noRaces(t)
	t.Parallel()
	document{"README.md", nil}.run(t)
}

// TestQuickstartRuns does the same with the page about the emulators.
func TestQuickstartRuns(t *testing.T) {
	noRaces(t)
	t.Parallel()
	ds, native := emulator.Start(t, emulator.Datastore), emulator.Start(t, emulator.Native)
	document{"docs/quickstart.md", map[string]string{
		"export DATASTORE_EMULATOR_HOST=127.0.0.1:8081":                 "export DATASTORE_EMULATOR_HOST=" + ds.Host,
		"export FIRESTORE_EMULATOR_HOST=127.0.0.1:8080":                 "export FIRESTORE_EMULATOR_HOST=" + native.Host,
		"export REAPER_STORE=datastore:my-project":                      "export REAPER_STORE=datastore:" + ds.Project(t),
		"export REAPER_STORE=firestore:my-project":                      "export REAPER_STORE=firestore:" + native.Project(t),
		"gcloud emulators firestore start --host-port=127.0.0.1:8080 &": "",
	}}.run(t)
}

// TestAdoptingRuns does the same with the page about existing entities, in both modes.
func TestAdoptingRuns(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	ds, native := emulator.Start(t, emulator.Datastore), emulator.Start(t, emulator.Native)
	for mode, lines := range map[string][2]string{
		"datastore": {"export DATASTORE_EMULATOR_HOST=" + ds.Host, "export REAPER_STORE=datastore:" + ds.Project(t)},
		"native":    {"export FIRESTORE_EMULATOR_HOST=" + native.Host, "export REAPER_STORE=firestore:" + native.Project(t)},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			document{"docs/adopting.md", map[string]string{
				"export FIRESTORE_EMULATOR_HOST=127.0.0.1:8080": lines[0],
				"export REAPER_STORE=firestore:my-project":      lines[1],
			}}.run(t)
		})
	}
}

// run runs all samples in one shell, in a directory with a program of the name reaper.
func (d document) run(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("../..", d.page))
	if err != nil {
		t.Fatal(err)
	}
	script, samples := d.script(t, string(text))
	dir := t.TempDir()
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", asReaper, os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "reaper"), []byte(program), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(script)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, log.String())
	}
	printed := strings.Split(string(out), sampleMark)[1:]
	if len(printed) != len(samples) {
		t.Fatalf("%d samples of %d were run:\n%s\n%s", len(printed), len(samples), out, log.String())
	}
	for i, s := range samples {
		is := strings.Split(strings.TrimRight(printed[i], "\n"), "\n")
		if at, ok := matches(s.prints, is); !ok {
			t.Errorf("%s:%d: %s\nprints something else than the page says, from %q on:\n%s", d.page, s.line, s.command, at, printed[i])
		}
	}
}

const sampleMark = "@@ a sample begins\n"

// script returns what a shell runs: the blocks with commands as they are, and the
// samples of sessions each after a mark.
func (d document) script(t *testing.T, text string) (string, []sample) {
	t.Helper()
	var script strings.Builder
	var samples []sample
	block, used := "", map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if fence, ok := strings.CutPrefix(line, "```"); ok {
			block = fence
			continue
		}
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case block == "sh":
			if to, ok := d.replaced[line]; ok {
				line, used[line] = to, true
			}
			if strings.HasPrefix(line, "go build ") {
				continue
			}
			fmt.Fprintln(&script, line)
		case block == "console" && isCommand:
			command = strings.ReplaceAll(command, "go run ./cmd/reaper", "./reaper")
			fmt.Fprintf(&script, "echo %q\n%s\n", strings.TrimSpace(sampleMark), command)
			samples = append(samples, sample{line: i + 1, command: command})
		case block == "console" && line != "":
			last := &samples[len(samples)-1]
			last.prints = append(last.prints, line)
		}
	}
	if len(used) != len(d.replaced) || len(samples) < 4 {
		t.Fatalf("%s: %d samples, and %d of %d lines that are replaced", d.page, len(samples), len(used), len(d.replaced))
	}
	return script.String(), samples
}

// masks are what differs from run to run.
var masks = []*regexp.Regexp{
	regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`), regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z`),
	regexp.MustCompile(`[\d,]+ (entities|deletes)/s`), regexp.MustCompile(`[\d,.]+/s\b`), regexp.MustCompile(`\d+(\.\d+)? ?m?s\b`),
	regexp.MustCompile(`\b\d+\.\d+\b`),
}

// matches reports whether lines are as a page has them, but for instants, durations and
// rates; three dots stand for any lines. At is the line of the page that is not there.
func matches(page, lines []string) (at string, ok bool) {
	mask := func(line string) string {
		for _, m := range masks {
			line = m.ReplaceAllString(line, "~")
		}
		return strings.Join(strings.Fields(line), " ")
	}
	i, gap := 0, false
	for _, want := range page {
		if want == "..." || strings.TrimSpace(want) == "..." {
			gap = true
			continue
		}
		for i < len(lines) && (strings.TrimSpace(lines[i]) == "" || gap && mask(lines[i]) != mask(want)) {
			i++
		}
		if i == len(lines) || mask(lines[i]) != mask(want) {
			return want, false
		}
		i, gap = i+1, false
	}
	for ; i < len(lines) && !gap; i++ {
		if strings.TrimSpace(lines[i]) != "" {
			return "its end", false
		}
	}
	return "", true
}
