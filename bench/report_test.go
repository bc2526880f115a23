package bench_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot/plotter"

	graph "github.com/reaper-ttl/reaper/bench/chart"
)

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// A report is some tables, with plots.
type report struct {
	scale
	load     string // of the machine, before anything was measured
	sections []*section
	before   page // that this one is compared with
	reasons  []*reason
}

type section struct {
	title, intro string
	rows         [][3]string
	charts       []chart
}

// A chart is one plot of a few lines.
type chart struct {
	file, title, x, y string
	lines             []line
	logX, logY        bool
}

type line struct {
	name   string
	points plotter.XYs
}

func newReport(s scale) *report {
	load := "unknown"
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(text), " ")
	}
	return &report{scale: s, load: load}
}

func (r *report) section(title, intro string) {
	r.sections = append(r.sections, &section{title: title, intro: intro})
}

func (r *report) last() *section { return r.sections[len(r.sections)-1] }

func (r *report) add(what, figure, wanted string) {
	r.last().rows = append(r.last().rows, [3]string{what, figure, wanted})
}

func (r *report) chart(c chart) { r.last().charts = append(r.last().charts, c) }

func rate(v []float64) string {
	return fmt.Sprintf("%.0f entities/s (%.0f to %.0f)", median(v), slices.Min(v), slices.Max(v))
}

func spread(v []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(v), slices.Min(v), slices.Max(v))
}

func (r *report) ratio(what string, v []float64, wanted string) { r.add(what, spread(v), wanted) }

// results adds the rate of each contestant, and how the first, a sweep, compares
// with the others, for which wanted has the aims.
func results[S any](r *report, list []*contestant[S], wanted ...string) {
	for _, c := range list {
		r.add(c.what, rate(c.rates), "")
	}
	first, _, _ := strings.Cut(list[0].what, ",")
	for i, c := range list[1:] {
		what, _, _ := strings.Cut(c.what, ",")
		r.ratio("**"+first+" / "+what+"**", ratios(list[0].rates, c.rates), wanted[i])
	}
}

// said returns the first line of what a program prints, or why it did not.
func said(program string, args ...string) string {
	out, err := exec.Command(program, args...).CombinedOutput()
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		return "unknown"
	}
	return first
}

// field returns the value of the first line "name: value" or "name : value" of a
// file in /proc, or "unknown" without such a line.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// machine says where the figures come from.
func machine() string {
	cpu, memory := field("/proc/cpuinfo", "model name"), "memory unknown"
	var kib int
	if _, err := fmt.Sscan(field("/proc/meminfo", "MemTotal"), &kib); err == nil {
		memory = fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20))
	}
	versions := []string{runtime.Version()}
	for _, module := range []string{"github.com/cockroachdb/pebble/v2", "cloud.google.com/go/datastore", "cloud.google.com/go/firestore", "google.golang.org/grpc"} {
		versions = append(versions, said("go", "list", "-m", module))
	}
	versions = append(versions, "Google Cloud SDK "+sdkVersion())
	return fmt.Sprintf("- Machine: %s/%s, %d cores (%s), %s\n- Versions: %s\n- Commit: %s, %s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), cpu, memory,
		strings.Join(versions, ", "), said("git", "describe", "--always", "--dirty"), time.Now().UTC().Format("2 January 2006 15:04 UTC"))
}

func (r *report) markdown(tb testing.TB) string {
	tb.Helper()
	var b strings.Builder
	b.WriteString("# Benchmarks\n\nWritten by `make bench`, not by hand.\n\n" + machine())
	fmt.Fprintf(&b, "- Sizes: embedded store %d entities, emulators %d, half of them expired; %d shards, %d workers, pages of 500\n- Load that others put on the machine when it began, over a minute: %s\n", r.entities, r.cloud, shards, workers, r.load)
	b.WriteString(r.pageBefore(b.String()) + "\n")
	fmt.Fprintf(&b, "Rates and ratios are medians of rounds (%d), in which the contestants take turns, each with a fresh store of the same content; in brackets, lowest and highest.\n"+
		"Machines that this runs on are shared, and the emulators' servers share the cores with their clients: trust the ratios, not the rates.\n"+
		"[Scale](scale.md) reckons from some of these figures how far the design goes.\n"+
		"Next to each figure is what it was on the page before. It *differs* if the brackets of both have nothing in common; without brackets, if a number in it differs by more than a quarter.\n", r.rounds)
	for _, s := range r.sections {
		b.WriteString(r.table(s))
	}
	return b.String()
}

// table returns a section with what its figures were on the page before.
func (r *report) table(s *section) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| what | measured | before | aim |\n| --- | --- | --- | --- |\n", s.title, s.intro)
	before := r.before.figures(s)
	for i, row := range s.rows {
		was, aim := r.compared(s.title, row, before[i])
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row[0], row[1], was, aim)
	}
	for _, c := range s.charts {
		fmt.Fprintf(&b, "\n![%s](plots/%s.svg)\n", c.title, c.file)
	}
	return b.String()
}

func plotsBeside(report string) string { return filepath.Join(filepath.Dir(report), "plots") }

// draw writes the plots as SVG. A plot from an earlier run that this one did not
// make is left alone.
func (r *report) draw(tb testing.TB, dir string) {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	for _, s := range r.sections {
		for _, c := range s.charts {
			if err := c.write(filepath.Join(dir, c.file+".svg")); err != nil {
				tb.Fatalf("%s: %v", c.file, err)
			}
		}
	}
}

func (c chart) write(file string) error {
	drawing := graph.Chart{Title: c.title, X: c.x, Y: c.y, LogX: c.logX, LogY: c.logY}
	for _, l := range c.lines {
		drawing.Lines = append(drawing.Lines, graph.Line{Name: l.name, Points: l.points})
	}
	return drawing.Write(file)
}

// sdkVersion returns the version of the SDK that the emulators come with.
func sdkVersion() string {
	for _, root := range []string{"/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk"} {
		if text, err := os.ReadFile(filepath.Join(root, "VERSION")); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return "unknown"
}
