package metrics

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "write what follows from the table of counters")

// jsonName returns what sweep --json calls the count at a place of the table.
func jsonName(i int) string { return reflect.TypeFor[Counts]().Field(i).Tag.Get("json") }

func TestEachCountHasARow(t *testing.T) {
	if n := reflect.TypeFor[Counts]().NumField(); n != len(counters) {
		t.Fatalf("%d counts, and %d rows", n, len(counters))
	}
	seen := map[string]bool{}
	for i, row := range counters {
		name, series := jsonName(i), row.metric.name+row.reason
		if name == "" || row.about == "" {
			t.Errorf("row %d: the count %q has no name, or its row says nothing of it", i, name)
		}
		if row.metric.name != "" && (seen[series] || row.metric.help == "" || row.metric.panel == "") {
			t.Errorf("%s: its series is another count's, too, or its metric has no help or no panel", name)
		}
		seen[series] = true
	}
}

// What a sweep adds up comes out of Load, and the difference comes out of the metrics.
func TestCounted(t *testing.T) {
	var sums CountsOf[atomic.Int64]
	m := New(Options{Registry: prometheus.NewRegistry(), Targets: []string{"a"}})
	var before Counts
	for range 2 {
		for i := range counters {
			sums.field(i).Add(int64(i + 1))
		}
		now := Load(&sums)
		m.Counted("a", now, before)
		before = now
	}
	m.Counted("a", Counts{}, before) // a process counts on from what it has, and no counter falls
	m.Counted("s-1842", Counts{Deleted: 1}, Counts{})
	for i, row := range counters {
		if row.metric.name == "" {
			continue
		}
		got := value(t, m, row, "a")
		if want := float64(2 * (i + 1)); got != want {
			t.Errorf("%s: %v, want %v", jsonName(i), got, want)
		}
	}
	if got := value(t, m, counters[2], "_other"); got != 1 {
		t.Errorf("%v deleted of a target that is unknown, want 1", got)
	}
}

func value(t *testing.T, m *Metrics, row counter, target string) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.counted[row.metric.name].WithLabelValues(append([]string{target}, row.labels()...)...).Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue()
}

// inPage fails unless a part of a file is as it should be; -update writes it.
func inPage(t *testing.T, page, part, want string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(part).FindSubmatchIndex(text)
	if at == nil {
		t.Fatalf("%s has no part like %s", page, part)
	}
	now := slices.Concat(text[:at[2]], []byte(want), text[at[3]:])
	switch {
	case bytes.Equal(now, text):
	case *update:
		if err := os.WriteFile(page, now, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s should have\n%s\nand has\n%s\ngo test ./metrics -update writes it", page, want, text[at[2]:at[3]])
	}
}

func TestReferenceHasTheCounters(t *testing.T) {
	var rows strings.Builder
	for i, row := range counters {
		fmt.Fprintf(&rows, "| `%s` | %s |\n", jsonName(i), row.about)
	}
	inPage(t, "../docs/reference.md", "(?s)\n(\\| `"+jsonName(0)+"`.*?)\\| `outside` \\|", rows.String())
}

func TestReferenceHasTheMetrics(t *testing.T) {
	m := New(Options{Registry: prometheus.NewRegistry(), Targets: []string{"a"}})
	m.Swept("a", Complete, time.Second, time.Unix(1, 0)) // absent before, as the next one
	m.Behind("a", 1, false)
	m.Adoption("a", map[string]int64{Stamped: 0, Unstamped: 0, Mismatched: 0})
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	runs, err := append(Run{Result: Complete}.gauges(), Run{}.breakerGauge()...).registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	rows := "| metric | labels | |\n| --- | --- | --- |\n"
	for _, f := range append(families, runs...) {
		if row := describe(f); !strings.Contains(rows, "| `"+f.GetName()+"`") {
			rows += row
		}
	}
	inPage(t, "../docs/reference.md", "(?s)## Metrics\n\n[^|]*(\\|.*?)\n## ", rows)
}

// describe returns the row of a metric.
func describe(f *dto.MetricFamily) string {
	words := map[string][]string{}
	var labels []string
	for _, one := range f.GetMetric() {
		for _, l := range one.GetLabel() {
			name, word := l.GetName(), l.GetValue()
			if !slices.Contains(labels, name) {
				labels = append(labels, name)
			}
			if !slices.Contains(words[name], word) {
				words[name] = append(words[name], word)
			}
		}
	}
	for i, name := range labels {
		if list := words[name]; len(list) > 1 {
			labels[i] = fmt.Sprintf("`%s`: %s", name, strings.Join(list, ", "))
		} else {
			labels[i] = "`" + name + "`"
		}
	}
	return fmt.Sprintf("| `%s` | %s | %s: %s |\n", f.GetName(), strings.Join(labels, "; "),
		strings.ToLower(f.GetType().String()), f.GetHelp())
}

// Each panel of counters shows those of the table, in its order.
func TestDashboardHasTheCounters(t *testing.T) {
	type source struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	type query struct {
		Ref    string `json:"refId"`
		Source source `json:"datasource"`
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	}
	panels, shown := map[string][]query{}, map[string]bool{}
	for _, row := range counters {
		f := row.metric
		if f.name == "" || shown[f.name] {
			continue
		}
		shown[f.name] = true
		by, function, window := "target", "rate", "$__rate_interval"
		if row.reason != "" {
			by += ", reason"
		}
		if strings.HasSuffix(f.panel, "per hour") {
			function, window = "increase", "1h"
		}
		panels[f.panel] = append(panels[f.panel], query{
			Ref: string(rune('A' + len(panels[f.panel]))), Source: source{"prometheus", "${datasource}"},
			Expr: fmt.Sprintf(`sum by (%s) (%s(%s_%s{job=~"$job", target=~"$target"}[%s]))`,
				by, function, namespace, f.name, window),
			Legend: "{{target}} " + f.shown,
		})
	}
	for title, queries := range panels {
		text, err := json.MarshalIndent(queries, "   ", " ")
		if err != nil {
			t.Fatal(err)
		}
		inPage(t, "../deploy/prometheus/dashboard.json",
			`(?s)"title": "`+regexp.QuoteMeta(title)+`".*?"targets": (\[.*?\n   \])`, string(text))
	}
}
