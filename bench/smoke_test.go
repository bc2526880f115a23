package bench_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// little is enough for all of the code to run.
func little() *report {
	return newReport(scale{entities: 12_000, cloud: 600, rounds: 1, plainPages: 20, backlogs: []int{500, 2000},
		foreground: 2 * time.Second, delay: 3 * time.Second, pace: 100, crews: []int{1, 2}, scaleCrews: []int{1, 2}, scaleEach: 100, lease: 30 * time.Second,
		ranges: []int{500}, rest: 100 * time.Millisecond})
}

// TestReport writes a report of little, with what needs no emulator.
func TestReport(t *testing.T) {
	if r := little(); measure(t, r, "embedded", "pages", "generations", "foreground", "memory", "ranges", "scaleout", "archives", "viewers") {
		check(t, r, 10, 4)
	}
}

// TestReportOfEmulators does the same with what needs one.
func TestReportOfEmulators(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the emulators take some seconds to start")
	}
	emulator.Start(t, emulator.Datastore) // which skips the test if it is missing
	if r := little(); measure(t, r, "datastore", "native", "delay", "processes", "adoption", "descendants", "archivescloud") {
		check(t, r, 7, 1)
	}
}

// measure reports whether all of the parts were measured: a failure, or the
// caller's -run, may be in the way.
func measure(t *testing.T, r *report, names ...string) bool {
	ran := 0
	for _, part := range parts {
		if slices.Contains(names, part.name) {
			t.Run(part.name, func(t *testing.T) {
				part.measure(t, r)
				ran++
			})
		}
	}
	return ran == len(names)
}

// check wants so many sections and plots, none of them empty.
func check(t *testing.T, r *report, sections, charts int) {
	t.Helper()
	dir := plotsBeside(filepath.Join(t.TempDir(), "report.md"))
	r.draw(t, dir)
	text := r.markdown(t)
	if n := strings.Count(text, "\n## "); n != sections {
		t.Errorf("%d sections, not %d:\n%s", n, sections, text)
	}
	for _, s := range r.sections {
		if len(s.rows) == 0 {
			t.Errorf("%s: nothing was measured", s.title)
		}
	}
	plots, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(plots) != charts {
		t.Errorf("%d plots, not %d: %v", len(plots), charts, err)
	}
	for _, file := range plots {
		svg, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(svg), "<path") || !strings.Contains(text, "plots/"+filepath.Base(file)) {
			t.Errorf("%s is no plot of the report: %v", file, err)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Log(text)
	}
}
