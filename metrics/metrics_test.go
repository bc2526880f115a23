package metrics_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

var at = time.Date(2026, 11, 21, 0, 7, 30, 500e6, time.UTC)

func all(t *testing.T) *metrics.Metrics {
	t.Helper()
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"sessions", "carts"}, Version: "v1", Apply: true})
	m.Counted("sessions", metrics.Counts{Deleted: 3, Scanned: 4, Suspect: 2, Carried: 5, Strays: 6}, metrics.Counts{})
	m.Operations("sessions", metrics.OpDelete, 7)
	m.Error("sessions", metrics.OpScan, store.ErrDenied)
	m.Throttled("sessions", "ramp", 1500*time.Millisecond)
	m.Delay("sessions", time.Second, 3*time.Hour)
	m.Query("sessions", 20*time.Millisecond)
	m.Commit("sessions", 30*time.Millisecond)
	m.ReadyWait("sessions", 2*time.Millisecond)
	m.Swept("sessions", metrics.Complete, 2*time.Second, at)
	m.OldestDue("sessions", at)
	m.Outside("sessions", 8)
	m.Behind("sessions", 7, true)
	m.Rate("sessions", 500)
	m.Generations("sessions", 9, 2)
	m.LeaseHeld("sessions", 1)
	m.EmptyIndex("sessions", true)
	m.Stuck("sessions", 10)
	m.Held("sessions", "gate")
	m.Adoption("sessions", map[string]int64{metrics.Stamped: 300, metrics.Unstamped: 2, metrics.Mismatched: 1})
	return m
}

// The names are promises to the authors of alerts.
var promised = []string{
	"reaper_deleted_entities_total", "reaper_scanned_entries_total", "reaper_kept_entities_total", "reaper_outside_entities",
	"reaper_carried_entities_total", "reaper_stray_entities_total", "reaper_oldest_due_timestamp_seconds",
	"reaper_deletion_delay_seconds", "reaper_sweep_duration_seconds", "reaper_sweeps_total", "reaper_last_success_timestamp_seconds",
	"reaper_page_query_duration_seconds", "reaper_page_commit_duration_seconds", "reaper_rate_limit_entities_per_second",
	"reaper_throttled_seconds_total", "reaper_store_operations_total", "reaper_store_errors_total", "reaper_current_generation",
	"reaper_live_generations", "reaper_leases_held", "reaper_empty_index", "reaper_apply", "reaper_build_info",
	"reaper_stuck_ranges", "reaper_held", "reaper_breaker_open", "reaper_lives_halved", "reaper_ready_wait_seconds", "reaper_behind_entities",
	"reaper_adoption_entities",
	"reaper_breaker_would_trip", "reaper_descendants_deleted_total",
	"reaper_archived_bytes_total", "reaper_archived_entities_total",
}

func TestNames(t *testing.T) {
	families, err := all(t).Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
	want := slices.Sorted(slices.Values(promised))
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(all(t).Registry())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestValues(t *testing.T) {
	const want = `
# HELP reaper_apply 1 if sweeps delete for real, 0 if they only count.
# TYPE reaper_apply gauge
reaper_apply 1
# HELP reaper_current_generation The newest generation.
# TYPE reaper_current_generation gauge
reaper_current_generation{target="carts"} 0
reaper_current_generation{target="sessions"} 9
# HELP reaper_deleted_entities_total Entities whose deletion the store acknowledged.
# TYPE reaper_deleted_entities_total counter
reaper_deleted_entities_total{target="carts"} 0
reaper_deleted_entities_total{target="sessions"} 3
# HELP reaper_kept_entities_total Entities in a range that were due or unreadable and kept, by reason.
# TYPE reaper_kept_entities_total counter
reaper_kept_entities_total{reason="conflict",target="carts"} 0
reaper_kept_entities_total{reason="conflict",target="sessions"} 0
reaper_kept_entities_total{reason="malformed",target="carts"} 0
reaper_kept_entities_total{reason="malformed",target="sessions"} 0
reaper_kept_entities_total{reason="mismatch",target="carts"} 0
reaper_kept_entities_total{reason="mismatch",target="sessions"} 0
reaper_kept_entities_total{reason="refused",target="carts"} 0
reaper_kept_entities_total{reason="refused",target="sessions"} 0
reaper_kept_entities_total{reason="suspect",target="carts"} 0
reaper_kept_entities_total{reason="suspect",target="sessions"} 2
reaper_kept_entities_total{reason="waiting",target="carts"} 0
reaper_kept_entities_total{reason="waiting",target="sessions"} 0
# HELP reaper_last_success_timestamp_seconds When a sweep last ended without a failure; absent before the first.
# TYPE reaper_last_success_timestamp_seconds gauge
reaper_last_success_timestamp_seconds{target="sessions"} 1.7952196505e+09
# HELP reaper_leases_held Ranges that this process holds.
# TYPE reaper_leases_held gauge
reaper_leases_held{target="carts"} 0
reaper_leases_held{target="sessions"} 1
# HELP reaper_oldest_due_timestamp_seconds When the oldest entity that is still there became due; 0 if nothing is due.
# TYPE reaper_oldest_due_timestamp_seconds gauge
reaper_oldest_due_timestamp_seconds{target="carts"} 0
reaper_oldest_due_timestamp_seconds{target="sessions"} 1.7952196505e+09
# HELP reaper_sweeps_total Sweeps that ended, by result.
# TYPE reaper_sweeps_total counter
reaper_sweeps_total{result="complete",target="carts"} 0
reaper_sweeps_total{result="complete",target="sessions"} 1
reaper_sweeps_total{result="failed",target="carts"} 0
reaper_sweeps_total{result="failed",target="sessions"} 0
reaper_sweeps_total{result="incomplete",target="carts"} 0
reaper_sweeps_total{result="incomplete",target="sessions"} 0
`
	if err := testutil.GatherAndCompare(all(t).Registry(), strings.NewReader(want), "reaper_apply", "reaper_current_generation", "reaper_deleted_entities_total",
		"reaper_kept_entities_total", "reaper_last_success_timestamp_seconds", "reaper_leases_held", "reaper_oldest_due_timestamp_seconds", "reaper_sweeps_total"); err != nil {
		t.Error(err)
	}
}

func TestNothingIsDue(t *testing.T) {
	m := all(t)
	m.OldestDue("sessions", time.Time{})
	const want = `
# HELP reaper_oldest_due_timestamp_seconds When the oldest entity that is still there became due; 0 if nothing is due.
# TYPE reaper_oldest_due_timestamp_seconds gauge
reaper_oldest_due_timestamp_seconds{target="carts"} 0
reaper_oldest_due_timestamp_seconds{target="sessions"} 0
`
	if err := testutil.GatherAndCompare(m.Registry(), strings.NewReader(want), "reaper_oldest_due_timestamp_seconds"); err != nil {
		t.Error(err)
	}
}

func TestFailureLeavesLastSuccess(t *testing.T) {
	m := all(t)
	m.Swept("sessions", metrics.Failed, time.Second, at.Add(time.Hour))
	if got := value(t, m, "reaper_last_success_timestamp_seconds", "sessions"); got != float64(at.UnixMilli())/1000 {
		t.Errorf("after a failure the last success is at %f", got)
	}
	m.Swept("sessions", metrics.Incomplete, time.Second, at.Add(time.Hour))
	if got := value(t, m, "reaper_last_success_timestamp_seconds", "sessions"); got != float64(at.Add(time.Hour).UnixMilli())/1000 {
		t.Errorf("a sweep that stopped in good order is no success: %f", got)
	}
}

func value(t *testing.T, m *metrics.Metrics, name, target string) float64 {
	t.Helper()
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			if f.GetName() == name && s.GetLabel()[0].GetValue() == target {
				return s.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %s", name, target)
	return 0
}

// Both forms of histogram, so that rules work whatever the server takes.
func TestHistogramsAreNativeAndClassic(t *testing.T) {
	families, err := all(t).Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		for _, s := range f.GetMetric() {
			h := s.GetHistogram()
			if h == nil || s.GetLabel()[0].GetValue() != "sessions" {
				continue
			}
			seen++
			if len(h.GetBucket()) == 0 {
				t.Errorf("%s has no classic buckets", f.GetName())
			}
			if len(h.GetPositiveSpan()) == 0 {
				t.Errorf("%s has no native buckets", f.GetName())
			}
		}
	}
	if seen != 5 {
		t.Errorf("%d histograms, want 5", seen)
	}
}

// Whatever a caller passes, labels hold only what was configured and fixed words.
func TestNoLabelHoldsAnID(t *testing.T) {
	const id = "s-1842/secret"
	m := all(t)
	m.Counted(id, metrics.Counts{Deleted: 1, Scanned: 1, Suspect: 1, Carried: 1, Strays: 1}, metrics.Counts{})
	m.Operations(id, id, 1)
	m.Error(id, id, errors.New(id))
	m.Throttled(id, id, 1)
	m.Delay(id, 1)
	m.Query(id, 1)
	m.Commit(id, 1)
	m.Swept(id, metrics.Result(id), 1, at)
	m.Swept(id, metrics.Complete, 1, at)
	m.OldestDue(id, at)
	m.Outside(id, 1)
	m.Rate(id, 1)
	m.Generations(id, 1, 1)
	m.LeaseHeld(id, 1)
	m.EmptyIndex(id, true)
	m.Stuck(id, 1)
	m.Held(id, id)
	text, count := scrape(t, m), 0
	if strings.Contains(text, "secret") {
		t.Error("an id is in the metrics")
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, `target="_other"`) {
			count++
		}
	}
	if count < len(promised)-2 { // all but apply and build_info
		t.Errorf("only %d series count what was not announced", count)
	}
}

// A clock that went back must neither panic nor show nonsense.
func TestNegative(t *testing.T) {
	m := all(t)
	m.Throttled("sessions", "ramp", -time.Hour)
	m.Counted("sessions", metrics.Counts{}, metrics.Counts{Deleted: 1})
	m.Delay("carts", -time.Hour)
	text := scrape(t, m)
	for _, want := range []string{
		`reaper_throttled_seconds_total{reason="ramp",target="sessions"} 1.5`,
		`reaper_deleted_entities_total{target="sessions"} 3`,
		`reaper_deletion_delay_seconds_sum{target="carts"} 0`,
		`reaper_deletion_delay_seconds_count{target="carts"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
}

func TestUnlimitedRate(t *testing.T) {
	m := all(t)
	m.Rate("carts", math.Inf(1))
	if text := scrape(t, m); !strings.Contains(text, `reaper_rate_limit_entities_per_second{target="carts"} +Inf`) {
		t.Error("an unlimited rate does not show as +Inf")
	}
}

func TestOwnRegistryHasRuntime(t *testing.T) {
	m := metrics.New(metrics.Options{})
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if !strings.Contains(scrape(t, m), name) {
			t.Errorf("no %s", name)
		}
	}
}

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(time.Minute).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("scrape: %d %v", w.Code, err)
	}
	return string(text)
}

// Words are those of the packages that use them; here, of the documentation.
func TestVocabulary(t *testing.T) {
	text := scrape(t, all(t))
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		if _, rest, ok := strings.Cut(line, `reason="`); ok {
			word, _, _ := strings.Cut(rest, `"`)
			seen[word] = true
		}
	}
	got := slices.Sorted(maps.Keys(seen))
	want := []string{"archive", "breaker", "compaction", "conflict", "gate", "latency", "lease", "limit", "malformed", "max",
		"mismatch", "paused", "pushback", "ramp", "record", "refused", "suspect", "total", "waiting"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestScrapeSize(t *testing.T) {
	// Five targets fit into one scrape of some hundred kilobytes.
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"a", "b", "c", "d", "e"}})
	if n := len(scrape(t, m)); n > 200_000 {
		t.Errorf("%d bytes", n)
	}
}

func BenchmarkDelay(b *testing.B) {
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"sessions"}})
	page := slices.Repeat([]time.Duration{3 * time.Second}, 500)
	for b.Loop() {
		m.Delay("sessions", page...)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/entity")
}

func ExampleMetrics() {
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"sessions"}, Version: "v0.1.0", Apply: true})
	m.Counted("sessions", metrics.Counts{Deleted: 500}, metrics.Counts{})
	m.Delay("sessions", 900*time.Millisecond, 1100*time.Millisecond)
	m.Operations("s-1842", "user u7", 1) // mistaken arguments do not become labels

	var page bytes.Buffer
	w := httptest.NewRecorder()
	m.Handler(time.Second).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	_, _ = page.ReadFrom(w.Body)
	for line := range strings.Lines(page.String()) {
		if strings.HasPrefix(line, "reaper_deleted") || strings.HasPrefix(line, "reaper_deletion_delay_seconds_sum") || strings.Contains(line, "other") {
			_, _ = io.WriteString(os.Stdout, line)
		}
	}
	// Output:
	// reaper_deleted_entities_total{target="sessions"} 500
	// reaper_deletion_delay_seconds_sum{target="sessions"} 2
	// reaper_store_operations_total{op="other",target="_other"} 1
}

// A target without an adoption has none of its series, also after it had one.
func TestAdoption(t *testing.T) {
	m := metrics.New(metrics.Options{Registry: prometheus.NewRegistry(), Targets: []string{"sessions"}})
	count := func() int {
		n, err := testutil.GatherAndCount(m.Registry(), "reaper_adoption_entities")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d series before an adoption", n)
	}
	m.Adoption("sessions", map[string]int64{metrics.Stamped: 0, metrics.Unstamped: 2})
	if n := count(); n != 2 {
		t.Errorf("%d series, not two", n)
	}
	m.Adoption("sessions", nil)
	if n := count(); n != 0 {
		t.Errorf("%d series after an adoption", n)
	}
}

// Each reason of a throttle is a word of the metrics: one that is missing counts as "other", and no alert finds it.
func TestEveryReasonIsAWord(t *testing.T) {
	text, err := os.ReadFile("../throttle/throttle.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`\bReason\w+\s+Reason = "(\w+)"`).FindAllSubmatch(text, -1)
	if len(reasons) < 13 {
		t.Fatalf("only %d reasons: %q", len(reasons), reasons)
	}
	registry := prometheus.NewRegistry()
	m := metrics.New(metrics.Options{Registry: registry, Targets: []string{"sessions"}})
	for _, r := range reasons {
		m.Throttled("sessions", string(r[1]), time.Second)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetValue() == "other" {
					t.Errorf("%s counts a reason of %q as other", f.GetName(), reasons)
				}
			}
		}
	}
}
