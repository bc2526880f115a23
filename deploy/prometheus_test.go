package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/badproxy"
	"github.com/reaper-ttl/reaper/internal/emulator"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// program builds reaper, and returns a function that makes a command of it.
func program(t *testing.T, env ...string) func(args ...string) *exec.Cmd {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "reaper")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/reaper")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	targets := "targets:\n  - {name: sessions, kind: Session, shards: 4, lease: 10s}\n"
	if err := os.WriteFile(filepath.Join(dir, "reaper.yaml"), []byte(targets), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		return cmd
	}
}

// output runs a command to its end.
func output(t *testing.T, cmd *exec.Cmd, stdin string) string {
	t.Helper()
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// background starts a command that is ended with the test.
func background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var said buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args, said.tail())
		}
	})
}

// A buffer takes what a process says.
type buffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *buffer) tail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.all.String()
	return all[max(0, len(all)-4000):]
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// fetch returns what an address answers, or nothing.
func fetch(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}

// eventually waits for something that another process has to do.
func eventually(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for ; time.Since(began) < 6*time.Minute; time.Sleep(200 * time.Millisecond) { // real processes, a busy machine
		if ok() {
			return time.Since(began)
		}
	}
	t.Fatalf("%s did not happen", what)
	return 0
}

func needs(t *testing.T, program string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed here", program)
	}
}

// A real Prometheus scrapes a real daemon on the emulator and evaluates the rules,
// with shorter times. The store goes away: the alert is pending, then firing. The
// store comes back: the alert ends.
func TestPrometheusSeesTheStoreGo(t *testing.T) {
	needs(t, "prometheus")
	em := emulator.Start(t, emulator.Datastore)
	proxy, err := badproxy.New(em.Host, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	reaper := program(t, "DATASTORE_EMULATOR_HOST="+proxy.Addr(), "REAPER_STORE=datastore:"+em.Project(t))
	output(t, reaper("load"), `{"id":"a","expires":"2026-01-01T00:00:00Z"}`+"\n")
	served, address := freeAddress(t), freeAddress(t)
	background(t, reaper("serve", "--apply", "--schedule", "@every 1s", "--listen", served, "--ui", "off"))

	dir := t.TempDir()
	rules := read(t, "prometheus/rules.yaml")
	rules = regexp.MustCompile(`\[(5m|15m|30m|3h|25h)\]`).ReplaceAllString(rules, "[40s]")
	rules = regexp.MustCompile(`for: \d+[mhd]`).ReplaceAllString(rules, "for: 5s")
	conf := fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs: [{job_name: reaper, static_configs: [{targets: [%q]}]}]
`, served)
	for name, text := range map[string]string{"rules.yaml": rules, "prometheus.yaml": conf} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	background(t, exec.CommandContext(t.Context(), "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--enable-feature=native-histograms"))

	query := func(expr string) string {
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		text := fetch(t, "http://"+address+"/api/v1/query?query="+url.QueryEscape(expr))
		if text == "" || json.Unmarshal([]byte(text), &answer) != nil || len(answer.Data.Result) == 0 {
			return ""
		}
		return fmt.Sprint(answer.Data.Result[0].Value[1])
	}
	const alert = `{alertname="ReaperSweepsFailing",target="sessions",alertstate=%q}`
	state := func(s string) bool { return query("ALERTS"+fmt.Sprintf(alert, s)) == "1" }
	eventually(t, "a scrape after the first sweep", func() bool { return query(`reaper_deleted_entities_total{target="sessions"}`) == "1" })
	for _, expr := range []string{
		`target:reaper_last_success_timestamp_seconds:max{target="sessions"}`,
		`histogram_count(reaper_deletion_delay_seconds{target="sessions"})`, // a native histogram
	} {
		eventually(t, expr, func() bool { return query(expr) != "" })
	}
	eventually(t, "no alert while all is well", func() bool { // a scrape may have come before it could be answered
		return query(`ALERTS{alertname=~"ReaperSweepsFailing|ReaperDown|ReaperNoSuccess|ReaperStuck"}`) == ""
	})

	proxy.Hold(badproxy.Both)
	proxy.Cut()
	pending := eventually(t, "pending", func() bool { return state("pending") })
	firing := eventually(t, "firing", func() bool { return state("firing") })
	if fetch(t, "http://"+served+"/readyz") != "" || fetch(t, "http://"+served+"/healthz") == "" {
		t.Error("the daemon is to be alive, and not ready")
	}
	proxy.Heal()
	ended := eventually(t, "the end of the alert", func() bool { return !state("firing") && !state("pending") })
	if fetch(t, "http://"+served+"/readyz") == "" {
		t.Error("the daemon is not ready again")
	}
	t.Logf("pending %v after the store went, firing %v later, over %v after it came back", pending.Round(time.Second), firing.Round(time.Second), ended.Round(time.Second))
}

// A real Pushgateway takes what one-shot runs push, each task in its own group; a
// failed run leaves the time of the last success alone.
func TestPushgatewayTakesARun(t *testing.T) {
	needs(t, "prometheus-pushgateway")
	address := freeAddress(t)
	background(t, exec.CommandContext(t.Context(), "prometheus-pushgateway", "--web.listen-address="+address))
	eventually(t, "the Pushgateway's start", func() bool { return fetch(t, "http://"+address+"/-/ready") != "" })
	dir := filepath.Join(t.TempDir(), "data")
	reaper := program(t, "REAPER_STORE=embedded:"+dir, "REAPER_PUSHGATEWAY=http://"+address)
	output(t, reaper("load"), `{"id":"a","expires":"2026-01-01T00:00:00Z"}`+"\n")

	open := func() string {
		for line := range strings.Lines(fetch(t, "http://"+address+"/metrics")) {
			if strings.HasPrefix(line, "reaper_last_sweep_breaker_open{") && !strings.Contains(line, "task=") {
				return strings.Fields(line)[1]
			}
		}
		return ""
	}
	sample := func(name, task string) string {
		for line := range strings.Lines(fetch(t, "http://"+address+"/metrics")) {
			if strings.HasPrefix(line, name+"{") && strings.Contains(line, `job="reaper"`) && strings.Contains(line, `target="sessions"`) && strings.Contains(line, `task="`+task+`"`) {
				return strings.Fields(line)[1]
			}
		}
		return ""
	}
	output(t, reaper("sweep", "--apply"), "")
	if got := open(); got != "0" {
		t.Errorf("the breaker is open: %q", got)
	}
	for name, want := range map[string]string{"reaper_last_sweep_deleted": "1", "reaper_last_sweep_expired": "1", "reaper_last_sweep_complete": "1"} {
		if got := sample(name, "0"); got != want {
			t.Errorf("%s = %q, want %s", name, got, want)
		}
	}
	success := sample("reaper_last_success_timestamp_seconds", "0")
	other := reaper("sweep", "--apply")
	other.Env = append(other.Env, "CLOUD_RUN_TASK_INDEX=1")
	output(t, other, "")
	if got := sample("reaper_last_sweep_deleted", "1"); got != "0" || sample("reaper_last_sweep_deleted", "0") != "1" {
		t.Errorf("the second task says %q, and the first one %q", got, sample("reaper_last_sweep_deleted", "0"))
	}
	broken := reaper("sweep", "--apply", "--store", "datastore:none")
	broken.Env = append(broken.Env, "DATASTORE_EMULATOR_HOST="+freeAddress(t)) // where nobody listens
	if out, err := broken.CombinedOutput(); err == nil {
		t.Errorf("it swept:\n%s", out)
	}
	if got := sample("reaper_last_success_timestamp_seconds", "0"); got != success || success == "" {
		t.Errorf("the last success was at %q, and after a failure it is at %q", success, got)
	}
	if got := sample("reaper_last_sweep_complete", "0"); got != "0" {
		t.Errorf("a failed run is pushed as complete: %q", got)
	}
}
