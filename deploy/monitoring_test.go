// Package deploy_test checks what is deployed against the programs that will
// read it, and against reaper itself. It is a module of its own, so that the
// types of Kubernetes and Prometheus stay out of what users of reaper download.
package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"github.com/reaper-ttl/reaper/metrics"
)

// series are the names that reaper gives to Prometheus, those that it pushes
// included, with the labels that it puts on them.
func series(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"sessions"}})
	m.Swept("sessions", metrics.Complete, time.Second, time.Unix(1, 0))
	m.Behind("sessions", 1, true)
	m.Held("sessions", "")
	m.Adoption("sessions", map[string]int64{metrics.Stamped: 1})
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		names[f.GetName()] = labels
		if f.GetMetric()[0].GetHistogram() != nil {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[f.GetName()+suffix] = append(slices.Clone(labels), "le")
			}
		}
	}
	gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, name := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllSubmatch(text, -1) {
			names[string(name[1])] = append(names[string(name[1])], "target", "task")
		}
	}))
	defer gateway.Close()
	if err := (metrics.Pusher{URL: gateway.URL}).Push(context.Background(), metrics.Run{Target: "sessions", Result: metrics.Complete}); err != nil {
		t.Fatal(err)
	}
	if len(names) < 30 {
		t.Fatalf("only %d names: %v", len(names), names)
	}
	return names
}

// words returns the values that a label of a series has, if they are words of a fixed list; nil if not.
func words(t *testing.T, name, label string) (values []string) {
	t.Helper()
	if label != "why" && label != "reason" && label != "result" {
		return nil
	}
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"sessions"}})
	m.Held("sessions", "")
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if f.GetName() == name && l.GetName() == label {
					values = append(values, l.GetValue())
				}
			}
		}
	}
	return values
}

func readRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("prometheus/rules.yaml", false, model.UTF8Validation)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// Labels that do not come from reaper but from how it is scraped.
var scraped = []string{"job", "instance", "namespace", "pod", "container", "endpoint"}

// checkQuery reports whether a query parses and names series that exist, and
// labels that they may have.
func checkQuery(t *testing.T, where, query string, known map[string][]string) {
	t.Helper()
	expr, err := parser.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	selectors := 0
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		v, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		selectors++
		labels, ok := known[v.Name]
		if !ok {
			t.Errorf("%s names %q, which does not exist", where, v.Name)
		}
		for _, m := range v.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(labels, m.Name) && !slices.Contains(scraped, m.Name) {
				t.Errorf("%s: %s has no label %q", where, v.Name, m.Name)
			}
			if known := words(t, v.Name, m.Name); known != nil && !slices.ContainsFunc(known, m.Matches) {
				t.Errorf("%s: %s is never %s; it is one of %q", where, m.Name, m, known)
			}
		}
		return nil
	})
	if selectors == 0 {
		t.Errorf("%s asks for nothing: %s", where, query)
	}
}

// withRecorded adds what the recording rules record, with the labels of any.
func withRecorded(t *testing.T, names map[string][]string) map[string][]string {
	t.Helper()
	for _, r := range readRules(t) {
		if r.Record != "" {
			names[r.Record] = []string{"target"}
		}
	}
	// Of the process collector, on Linux alone.
	names["process_start_time_seconds"] = nil
	// Of kube-state-metrics.
	for _, name := range []string{"status_last_successful_time", "created", "spec_suspend"} {
		names["kube_cronjob_"+name] = []string{"cronjob"}
	}
	return names
}

func TestRules(t *testing.T) {
	known := withRecorded(t, series(t))
	book, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	const base = "https://github.com/reaper-ttl/reaper/blob/main/docs/runbook.md#"
	alerts := 0
	for _, r := range readRules(t) {
		checkQuery(t, r.Record+r.Alert, r.Expr, known)
		if r.Alert == "" {
			continue
		}
		alerts++
		if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		atOnce := r.Alert == "ReaperBreakerOpen" // no bad scrape shows a trip that is not there
		if time.Duration(r.For) < 5*time.Minute && !atOnce {
			t.Errorf("%s fires after %v: one bad scrape would wake somebody", r.Alert, r.For)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Annotations["runbook_url"] != base+strings.ToLower(r.Alert) {
			t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
		}
		if !bytes.Contains(book, []byte("\n## "+r.Alert+"\n")) {
			t.Errorf("the runbook has no section %s", r.Alert)
		}
	}
	if sections := bytes.Count(book, []byte("\n## Reaper")); alerts != sections || alerts < 10 {
		t.Errorf("%d alerts and %d sections in the runbook", alerts, sections)
	}
}

// Each alert has a case in which it fires, and one in which it does not.
func TestEveryAlertHasCases(t *testing.T) {
	text, err := os.ReadFile("prometheus/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Cases []struct {
				Alert string `json:"alertname"`
				Want  []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		fired := map[string]bool{}
		for _, c := range test.Cases {
			fired[c.Alert] = fired[c.Alert] || len(c.Want) > 0
		}
		for alert, f := range fired { // pending at first is not what quiet means
			fires[alert] = fires[alert] || f
			quiet[alert] = quiet[alert] || !f
		}
	}
	for _, r := range readRules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !quiet[r.Alert]) {
			t.Errorf("%s: a case in which it fires: %v; one in which it stays quiet: %v", r.Alert, fires[r.Alert], quiet[r.Alert])
		}
	}
}

func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed; the Debian package prometheus has it")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// Grafana replaces these before it asks.
var grafana = strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$target", ".*")

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID    string `json:"uid"`
		Title  string `json:"title"`
		Panels []struct {
			ID      int    `json:"id"`
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Expr   string `json:"expr"`
				Legend string `json:"legendFormat"`
			} `json:"targets"`
			Pos    struct{ X, Y, W, H int } `json:"gridPos"`
			Fields struct {
				Defaults struct {
					NoValue string `json:"noValue"`
				} `json:"defaults"`
			} `json:"fieldConfig"`
		} `json:"panels"`
		Annotations struct {
			List []struct {
				Name  string `json:"name"`
				Expr  string `json:"expr"`
				Title string `json:"titleFormat"`
			} `json:"list"`
		} `json:"annotations"`
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Query any    `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	known := withRecorded(t, series(t))
	ids, queries := map[int]bool{}, 0
	asked := ""
	for i, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, other := range board.Panels[:i] {
			if p.Pos.X < other.Pos.X+other.Pos.W && other.Pos.X < p.Pos.X+p.Pos.W && p.Pos.Y < other.Pos.Y+other.Pos.H && other.Pos.Y < p.Pos.Y+p.Pos.H {
				t.Errorf("%q lies over %q", p.Title, other.Title)
			}
		}
		if p.Type == "stat" && p.Fields.Defaults.NoValue == "" {
			t.Errorf("%s does not tell no data from nothing to show", p.Title)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			queries++
			asked += q.Expr + "\n"
			checkQuery(t, p.Title, grafana.Replace(q.Expr), known)
			if strings.Contains(grafana.Replace(q.Expr), "$") {
				t.Errorf("%s: an unknown variable in %s", p.Title, q.Expr)
			}
		}
	}
	if board.UID == "" || board.Title == "" || queries < 20 {
		t.Errorf("uid %q, title %q, %d queries", board.UID, board.Title, queries)
	}
	for _, a := range board.Annotations.List {
		checkQuery(t, a.Name, grafana.Replace(a.Expr), known)
		if a.Title == "" {
			t.Errorf("the mark %s says nothing", a.Name)
		}
	}
	if len(board.Annotations.List) < 4 {
		t.Errorf("%d kinds of marks", len(board.Annotations.List))
	}
	for _, v := range board.Templating.List { // label_values(SELECTOR, LABEL)
		q, ok := v.Query.(map[string]any)
		if !ok {
			continue
		}
		for _, name := range regexp.MustCompile(`reaper_\w+`).FindAllString(q["query"].(string), -1) {
			if _, ok := known[name]; !ok {
				t.Errorf("the variable %s asks for %s, which does not exist", v.Name, name)
			}
		}
	}
	// Whatever reaper shows has a place on the board.
	for name := range series(t) {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if !strings.Contains(asked, base) && base != "reaper_oldest_due_timestamp_seconds" && base != "reaper_last_success_timestamp_seconds" {
			t.Errorf("no panel shows %s", base)
		}
	}
}
