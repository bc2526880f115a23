package deploy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/monitoring/apiv3/v2/monitoringpb"
	"cloud.google.com/go/monitoring/dashboard/apiv1/dashboardpb"
	"google.golang.org/api/logging/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

const cloudMonitoring = "cloudrun/monitoring"

// A line is one line of reaper's log, as Cloud Logging has it: severity, and jsonPayload with all else.
type line struct {
	severity string
	payload  map[string]any
}

// field returns the value of a path such as jsonPayload.throttled_seconds.pushback.
func (l line) field(path string) (any, bool) {
	names := strings.Split(path, ".")
	var at any = l.payload
	for _, name := range names[1:] {
		m, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = m[name]; !ok {
			return nil, false
		}
	}
	return at, true
}

var (
	aComparison = regexp.MustCompile(`^([\w.]+)(>=|>|=)(.+)$`)
	severities  = []string{"DEBUG", "INFO", "WARNING", "ERROR"}
)

// matches reports whether a line passes a filter of those parts of the language of Cloud Logging that the metrics
// here use: comparisons, a list of values with OR, one list of comparisons with OR, and one condition a line.
func (l line) matches(t *testing.T, filter string) bool {
	t.Helper()
	for condition := range strings.SplitSeq(filter, "\n") {
		alternatives := []string{condition}
		if list, ok := strings.CutPrefix(condition, "("); ok {
			alternatives = strings.Split(strings.TrimSuffix(list, ")"), " OR ")
		}
		if !slices.ContainsFunc(alternatives, func(c string) bool { return l.passes(t, c) }) {
			return false
		}
	}
	return true
}

func (l line) passes(t *testing.T, condition string) bool {
	t.Helper()
	part := aComparison.FindStringSubmatch(condition)
	if part == nil {
		t.Fatalf("cannot read the condition %q", condition)
	}
	path, op, want := part[1], part[2], part[3]
	switch {
	case strings.HasPrefix(path, "resource."):
		return true // all lines here are of the job
	case path == "severity":
		return slices.Index(severities, l.severity) >= slices.Index(severities, want)
	}
	is, ok := l.field(path)
	if !ok {
		return false
	}
	if op == ">" {
		n, isNumber := is.(float64)
		bound, err := strconv.ParseFloat(want, 64)
		return err == nil && isNumber && n > bound
	}
	for value := range strings.SplitSeq(strings.Trim(want, "()"), " OR ") {
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		if fmt.Sprint(is) == value {
			return true
		}
	}
	return false
}

// logOf runs reaper, and returns its log.
func logOf(t *testing.T, reaper, dir string, code int, stdin string, args ...string) (lines []line) {
	t.Helper()
	cmd := exec.Command(reaper, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "REAPER_STORE=embedded:data", "REAPER_CONFIG=reaper.yaml", "REAPER_LOG_FORMAT=json")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		t.Fatalf("reaper %v: %v, want exit code %d\n%s", args, err, code, &log)
	}
	for s := bufio.NewScanner(&log); s.Scan(); {
		l := line{payload: map[string]any{}}
		if json.Unmarshal(s.Bytes(), &l.payload) != nil {
			continue // what people read, after the log
		}
		l.severity, _ = l.payload["severity"].(string)
		delete(l.payload, "severity") // Cloud Logging takes these two out
		delete(l.payload, "time")
		lines = append(lines, l)
	}
	return lines
}

// cloudLog is the log of sweeps that end in each way: swept, stopped, failed, held by the breaker, a dry run.
func cloudLog(t *testing.T) (lines []line) {
	t.Helper()
	dir := t.TempDir()
	reaper := filepath.Join(dir, "reaper")
	build := exec.Command("go", "build", "-o", reaper, "./cmd/reaper")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	targets := func(format string, args ...any) {
		if err := os.WriteFile(filepath.Join(dir, "reaper.yaml"), fmt.Appendf(nil, format, args...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(code int, stdin string, args ...string) {
		lines = append(lines, logOf(t, reaper, dir, code, stdin, args...)...)
	}
	var due strings.Builder
	for i := range 300 {
		fmt.Fprintf(&due, "{\"id\": \"s-%d\", \"expires\": \"2026-01-01T00:00:00Z\"}\n", i)
	}
	const target = "targets:\n- name: sessions\n  kind: Session\n  shards: 1\n  breaker: %s\n  max_age: 87600h\n  pace: {max: %d}\n"
	targets(target, "off", 50)
	run(0, due.String(), "load", "--target", "sessions")
	run(0, "", "sweep")
	run(0, "", "sweep", "--apply", "--max-duration", "1s")
	targets(target, "off", 100_000)
	run(0, "", "sweep", "--apply")
	targets(target, "{floor: 100}", 100_000)
	run(0, due.String(), "load", "--target", "sessions")
	run(4, "", "sweep", "--apply", "--from-start")
	return lines
}

func decodeCloud(t *testing.T, file string, into proto.Message) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		text, err = yaml.YAMLToJSONStrict(text)
	}
	if err == nil {
		err = protojson.Unmarshal(text, into) // which refuses unknown fields
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// An extraction takes one field of a line.
var anExtraction = regexp.MustCompile(`^(?:EXTRACT\((jsonPayload[\w.]+)\)|REGEXP_EXTRACT\((jsonPayload[\w.]+), ("(?:[^"\\]|\\.)*")\))$`)

// checkMetric checks one metric from logs, and returns the names and labels that it has in PromQL.
func checkMetric(t *testing.T, file string, lines []line) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var m logging.LogMetric
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if want := "reaper_" + strings.TrimSuffix(filepath.Base(file), ".yaml"); m.Name != want || m.Description == "" {
		t.Errorf("%s: the name %q, want %q; the description %q", file, m.Name, want, m.Description)
	}
	labels := []string{"monitored_resource", "job_name", "location"}
	extractors := []string{}
	for _, l := range m.MetricDescriptor.Labels {
		labels = append(labels, l.Key)
		if m.LabelExtractors[l.Key] == "" {
			t.Errorf("%s: the label %s is taken from nowhere", m.Name, l.Key)
		}
	}
	for _, e := range m.LabelExtractors {
		extractors = append(extractors, e)
	}
	if len(m.LabelExtractors) != len(m.MetricDescriptor.Labels) {
		t.Errorf("%s: %d labels, %d extractors", m.Name, len(m.MetricDescriptor.Labels), len(m.LabelExtractors))
	}
	names := []string{""}
	if m.MetricDescriptor.ValueType == "DISTRIBUTION" {
		names, extractors = []string{"_sum", "_count", "_bucket"}, append(extractors, m.ValueExtractor)
		if m.BucketOptions == nil {
			t.Errorf("%s: a distribution without buckets", m.Name)
		}
	}
	checkFields(t, m, extractors, lines)
	known := map[string][]string{}
	for _, suffix := range names {
		known["logging_googleapis_com:user_"+m.Name+suffix] = labels
	}
	return known
}

// rare are the fields that no line of cloudLog has: what the store answers, and that it pushes back.
var rare = []string{"jsonPayload.error", "jsonPayload.throttled_seconds.pushback"}

// checkFields checks that the filter lets some lines pass and not all, and that these have what is taken from them.
func checkFields(t *testing.T, m logging.LogMetric, extractors []string, lines []line) {
	t.Helper()
	var fields []string
	for _, e := range extractors {
		part := anExtraction.FindStringSubmatch(e)
		if part == nil {
			t.Errorf("%s: cannot read the extractor %s", m.Name, e)
			continue
		}
		fields = append(fields, part[1]+part[2])
		if part[3] == "" {
			continue
		}
		if pattern, err := strconv.Unquote(part[3]); err != nil {
			t.Errorf("%s: %s: %v", m.Name, e, err)
		} else if re, err := regexp.Compile(pattern); err != nil || re.NumSubexp() != 1 {
			t.Errorf("%s: %s: %v, want one group", m.Name, e, err)
		}
	}
	passed := 0
	for _, l := range lines {
		if !l.matches(t, m.Filter) {
			continue
		}
		passed++
		for _, f := range fields {
			if _, ok := l.field(f); !ok && !slices.Contains(rare, f) {
				t.Errorf("%s: no %s in %v", m.Name, f, l.payload)
			}
		}
	}
	needsRare := strings.Contains(m.Filter, "pushback") || strings.Contains(m.Filter, "malformed")
	if passed == len(lines) || passed == 0 && !needsRare {
		t.Errorf("%s: the filter lets %d of %d lines pass", m.Name, passed, len(lines))
	}
	for _, f := range regexp.MustCompile(`jsonPayload\.(\w+)`).FindAllStringSubmatch(m.Filter, -1) {
		if !slices.ContainsFunc(lines, func(l line) bool { _, ok := l.payload[f[1]]; return ok }) {
			t.Errorf("%s: no line has %s", m.Name, f[0])
		}
	}
}

// What watches a Cloud Run job by its log names what the log has: each metric is tried on the log of real sweeps, and
// dashboard and policies ask for these metrics, and are what the service takes.
func TestCloudMonitoring(t *testing.T) {
	lines := cloudLog(t)
	ends := map[string]bool{}
	for _, l := range lines {
		ends[fmt.Sprint(l.payload["message"])] = true
	}
	for _, want := range []string{"swept", "sweep stopped before its end"} {
		if !ends[want] {
			t.Fatalf("no line says %q: %v", want, ends)
		}
	}
	known := map[string][]string{"run_googleapis_com:job_completed_execution_count": {"monitored_resource", "job_name", "result"}}
	files, err := filepath.Glob(cloudMonitoring + "/metrics/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d metrics: %v", len(files), err)
	}
	for _, file := range files {
		for name, labels := range checkMetric(t, file, lines) {
			known[name] = labels
		}
	}
	asked := ""
	var board dashboardpb.Dashboard
	decodeCloud(t, cloudMonitoring+"/dashboard.yaml", &board)
	for _, tile := range board.GetMosaicLayout().GetTiles() {
		for _, set := range tile.GetWidget().GetXyChart().GetDataSets() {
			query := set.GetTimeSeriesQuery().GetPrometheusQuery()
			checkQuery(t, tile.GetWidget().GetTitle(), query, known)
			asked += query
		}
		if tile.GetXPos()+tile.GetWidth() > board.GetMosaicLayout().GetColumns() {
			t.Errorf("%s lies outside the board", tile.GetWidget().GetTitle())
		}
	}
	for name := range known {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if !strings.Contains(asked, base) {
			t.Errorf("no tile shows %s", base)
		}
	}
	checkPolicies(t, known)
}

func checkPolicies(t *testing.T, known map[string][]string) {
	t.Helper()
	severities := map[string]string{"critical": "CRITICAL", "warning": "WARNING", "info": "WARNING"}
	rules := map[string]string{}
	for _, r := range readRules(t) {
		rules[r.Alert] = severities[r.Labels["severity"]]
	}
	files, err := filepath.Glob(cloudMonitoring + "/policies/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d policies: %v", len(files), err)
	}
	for _, file := range files {
		var p monitoringpb.AlertPolicy
		decodeCloud(t, file, &p)
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if severity, ok := rules[name]; !ok || p.GetDisplayName() != name || p.GetSeverity().String() != severity {
			t.Errorf("%s: %q with severity %v; the rule for Prometheus has %q", file, p.GetDisplayName(), p.GetSeverity(), severity)
		}
		if !strings.HasSuffix(p.GetDocumentation().GetContent(), "/docs/runbook.md#"+strings.ToLower(name)+")") {
			t.Errorf("%s does not lead to its section of the runbook", file)
		}
		if len(p.GetConditions()) == 0 {
			t.Errorf("%s has no condition", file)
		}
		for _, c := range p.GetConditions() {
			q := c.GetConditionPrometheusQueryLanguage()
			checkQuery(t, name, q.GetQuery(), known)
			if every := q.GetEvaluationInterval().AsDuration().Seconds(); every <= 0 || int(every)%30 != 0 {
				t.Errorf("%s is evaluated every %v seconds, want a multiple of 30", name, every)
			}
		}
	}
}
