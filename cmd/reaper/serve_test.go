package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
)

// servedTarget has leases that are longer than any call on a busy emulator.
const servedTarget = `targets:
  - name: sessions
    kind: Session
    shards: 8
    lease: 10s
    page: 50
    pace: {max: 100}
`

// A daemonProcess is a reaper serve that has logged its address.
type daemonProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	mu   sync.Mutex
	log  bytes.Buffer
	gone chan error
}

// serve starts a daemon on a free port, and waits until it logs its address.
func (b *workdir) serve(args ...string) *daemonProcess {
	b.t.Helper()
	cmd, _, _ := b.command(nil, append([]string{"serve", "--listen", "127.0.0.1:0", "--ui", "off", "--log-format", "json"}, args...)...)
	log := b.start(cmd)
	d := &daemonProcess{t: b.t, cmd: cmd, gone: make(chan error, 1)}
	address := make(chan string, 1)
	go func() {
		for in := bufio.NewScanner(log); in.Scan(); {
			var line struct{ Message, Address, Severity string }
			if err := json.Unmarshal(in.Bytes(), &line); err != nil || line.Severity == "" || line.Message == "" {
				b.t.Errorf("a log line that Cloud Logging does not understand: %s, %v", in.Text(), err)
			}
			d.mu.Lock()
			d.log.WriteString(in.Text() + "\n")
			d.mu.Unlock()
			if line.Address != "" {
				address <- line.Address
			}
		}
		d.gone <- cmd.Wait()
		close(address)
	}()
	b.t.Cleanup(func() { _ = cmd.Process.Kill() })
	at, ok := <-address
	if !ok {
		b.t.Fatalf("it did not start: %s", d.said())
	}
	d.url = "http://" + at
	return d
}

func (d *daemonProcess) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

func (d *daemonProcess) get(path string) (code int, body string) {
	d.t.Helper()
	res, err := http.Get(d.url + path) //nolint:noctx // a test's own loopback
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// value returns one sample of the metrics.
func (d *daemonProcess) value(name string) float64 {
	d.t.Helper()
	_, text := d.get("/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				d.t.Fatal(err)
			}
			return v
		}
	}
	d.t.Fatalf("no %s in\n%s", name, text)
	return 0
}

// until waits for something to become true, on a busy machine until just before the whole
// test binary would run out of time.
func (d *daemonProcess) until(what string, ok func() bool) {
	d.t.Helper()
	deadline, bounded := d.t.Deadline()
	for began := time.Now(); time.Since(began) < 20*time.Minute && (!bounded || time.Until(deadline) > 30*time.Second); {
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond) // a real process
	}
	d.t.Fatalf("%s did not happen:\n%s", what, d.said())
}

// stop ends the daemon in good order.
func (d *daemonProcess) stop() {
	d.t.Helper()
	d.stopBy(syscall.SIGTERM)
}

func (d *daemonProcess) stopBy(signals ...syscall.Signal) {
	d.t.Helper()
	for _, s := range signals {
		if err := d.cmd.Process.Signal(s); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := <-d.gone; err != nil {
		d.t.Errorf("%v: %v\n%s", signals, err, d.said())
	}
}

// What reads the log of a daemon may end: the daemon works on.
func TestServeOutlivesItsLog(t *testing.T) {
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(lapsed("s", 4)), "load")
	cmd, _, _ := b.command(nil, "serve", "--apply", "--listen", "127.0.0.1:0", "--ui", "off", "--log-format", "json",
		"--log-level", "debug", "--schedule", "@every 1s")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	write.Close()
	d := &daemonProcess{t: t, cmd: cmd, gone: make(chan error, 1)}
	for in := bufio.NewScanner(read); d.url == "" && in.Scan(); {
		var line struct{ Address string }
		if err := json.Unmarshal(in.Bytes(), &line); err == nil && line.Address != "" {
			d.url = "http://" + line.Address
		}
	}
	read.Close()
	go func() { d.gone <- cmd.Wait() }()
	const swept = `reaper_last_success_timestamp_seconds{target="sessions"}`
	began := float64(time.Now().Unix())
	d.until("a sweep two seconds later", func() bool {
		_, text := d.get("/metrics")
		return strings.Contains(text, swept) && d.value(swept) > began+2
	})
	d.stop()
}

// nobodyHolds holds that no process has kept a range.
func (b *workdir) nobodyHolds() {
	b.t.Helper()
	for _, r := range b.status().Ranges {
		if r.Owner != "" {
			b.t.Errorf("range %d.%s is still held by %s", r.Generation, r.Shard, r.Owner)
		}
	}
}

// patientEnd lets a process that is stopped on a busy machine release what it holds.
const patientEnd = "REAPER_SHUTDOWN_GRACE=10m"

// A daemon sweeps what is loaded while it runs, says so in its metrics, and stops in
// good order in the middle of its work.
func TestServe(t *testing.T) {
	t.Parallel() // most of it is waiting
	// No lease is lost on a busy machine.
	patient := strings.Replace(servedTarget, "lease: 10s", "lease: 60s", 1)
	b, _, _ := newDatastore(t, patient)
	b.env = append(b.env, patientEnd)
	ndjson, live := sessions(600, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	d := b.serve("--apply", "--schedule", "@every 1s")
	for _, path := range []string{"/healthz", "/readyz", "/", "/metrics"} {
		if code, body := d.get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, _ := d.get("/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles are served unasked: %d", code)
	}
	deleted := func() float64 { return d.value(`reaper_deleted_entities_total{target="sessions"}`) }
	d.until("the first sweep", func() bool { return deleted() == 300 })
	b.wantLive(live)
	// An entity that expires while the daemon runs is deleted soon after, never before.
	var soon strings.Builder
	for i := range 200 {
		fmt.Fprintf(&soon, `{"id":"soon-%d","expires":%q}`+"\n", i, time.Now().Add(3*time.Second+time.Duration(i)*20*time.Millisecond).UTC().Format(time.RFC3339Nano))
	}
	b.must(strings.NewReader(soon.String()), "load")
	d.until("what is loaded while it runs", func() bool { return deleted() == 500 })
	b.wantLive(live)
	d.until("nothing being due", func() bool { return d.value(`reaper_oldest_due_timestamp_seconds{target="sessions"}`) == 0 })
	if n := d.value(`reaper_deletion_delay_seconds_count{target="sessions"}`); n != 500 {
		t.Errorf("%v delays were measured", n)
	}
	for name, want := range map[string]float64{
		`reaper_apply`: 1, `reaper_live_generations{target="sessions"}`: 1, `reaper_current_generation{target="sessions"}`: 1,
		`reaper_stuck_ranges{target="sessions"}`: 0, `reaper_leases_held{target="sessions"}`: 0, `reaper_held{target="sessions",why="paused"}`: 0,
	} {
		if got := d.value(name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	// Stopped in the middle of its work: cursors are saved, leases released.
	var more strings.Builder
	due := time.Now().Add(20 * time.Second)
	const backlog = 4000 // several seconds of work
	for i := range backlog {
		fmt.Fprintf(&more, `{"id":"more-%d","expires":%q}`+"\n", i, due.UTC().Format(time.RFC3339Nano))
	}
	b.must(strings.NewReader(more.String()), "load")
	d.until("more work", func() bool { return deleted() > 500 })
	d.stop()
	left := len(b.dumped()) - len(live)
	t.Logf("stopped with %d of %d left", left, backlog)
	b.nobodyHolds()
	if !strings.Contains(d.said(), "stopped in good order") {
		t.Errorf("log:\n%s", d.said())
	}
}

// A pageLine is what a daemon says of a page at the log level debug.
type pageLine struct {
	Time                  time.Time
	Message, Range, Owner string
	Token                 int64
	Deleted               int
}

// pages returns the pages that it has written so far.
func (d *daemonProcess) pages() (list []pageLine) {
	for line := range strings.Lines(d.said()) {
		var p pageLine
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			d.t.Fatal(err)
		}
		if p.Message == "page" {
			list = append(list, p)
		}
	}
	return list
}

// Two daemons share a target. When one is killed, the other takes its ranges over, and no
// range ever has two holders.
func TestServeTakesOver(t *testing.T) {
	noRaces(t)
	t.Parallel()
	b, _, _ := newDatastore(t, strings.ReplaceAll(servedTarget, "max: 100", "max: 10")) // so that both find work
	ndjson, live := sessions(200, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	args := []string{"--apply", "--schedule", "@every 1s", "--log-level", "debug"}
	first, second := b.serve(args...), b.serve(args...)
	for _, d := range []*daemonProcess{first, second} {
		d.until("its first sweep", func() bool {
			return d.value(`reaper_sweeps_total{result="complete",target="sessions"}`) > 0
		})
	}
	// More than the pace allows falls due once both are there: they race for the ranges,
	// and one of them may get them all.
	var soon strings.Builder
	due := time.Now().Add(20 * time.Second)
	for i := range nightly.Size(t, 4_000, 700) {
		due = due.Add(4 * time.Millisecond)
		fmt.Fprintf(&soon, `{"id":"soon-%d","expires":%q}`+"\n", i, due.UTC().Format(time.RFC3339Nano))
	}
	b.must(strings.NewReader(soon.String()), "load")
	loaded := time.Now()
	work := func(d *daemonProcess) (deletes int) {
		for _, p := range d.pages() {
			if p.Time.After(loaded) {
				deletes += p.Deleted
			}
		}
		return deletes
	}
	// By then every range has a backlog, and stays with its holder.
	first.until("at work", func() bool { return work(first)+work(second) >= 300 })
	if work(first) < work(second) { // who does more is killed
		first, second = second, first
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second.until("the end", func() bool {
		// Its metrics cost nothing, and may be older than the last entity.
		return time.Now().After(due) && second.value(`reaper_oldest_due_timestamp_seconds{target="sessions"}`) == 0 &&
			b.status().OldestDue == nil
	})
	b.wantLive(live)
	second.stop()
	if err := <-first.gone; err == nil {
		t.Error("a killed process ended well")
	}

	all := append(first.pages(), second.pages()...)
	slices.SortStableFunc(all, func(a, b pageLine) int { return a.Time.Compare(b.Time) })
	last := map[string]pageLine{}
	taken, slowest := 0, time.Duration(0)
	for _, p := range all {
		before, ok := last[p.Range]
		last[p.Range] = p
		switch {
		case !ok:
		case p.Token < before.Token, p.Token == before.Token && p.Owner != before.Owner:
			t.Errorf("range %s went from %s (token %d) to %s (token %d)", p.Range, before.Owner, before.Token, p.Owner, p.Token)
		case p.Owner != before.Owner && p.Time.After(killed):
			taken++
			slowest = max(slowest, p.Time.Sub(killed))
		}
	}
	if taken == 0 {
		t.Error("nothing was taken over")
	}
	t.Logf("%d pages; %d ranges were taken over, the last one %v after the kill, with leases of 10 s", len(all), taken, slowest.Round(100*time.Millisecond))
}

// A daemon without --apply logs that it deletes nothing, and a paused target waits.
func TestServeWithoutApply(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(100, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	d := b.serve("--schedule", "@every 1s", "--pprof")
	d.until("a sweep", func() bool {
		_, text := d.get("/")
		return strings.Contains(text, "would be deleted") && strings.Contains(text, "<td>50<td>")
	})
	if n := d.value(`reaper_deleted_entities_total{target="sessions"}`); n != 0 || d.value("reaper_apply") != 0 {
		t.Errorf("%v were deleted", n)
	}
	if v := d.value(`reaper_oldest_due_timestamp_seconds{target="sessions"}`); v == 0 {
		t.Error("nothing is said to be due")
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1"} {
		if code, body := d.get(path); code != http.StatusOK {
			t.Errorf("--pprof, %s: %d %s", path, code, body)
		}
	}
	silent, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://")) //nolint:noctx // a test's own loopback
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // a probe that has connected, and says nothing
	d.get("/healthz")    // by then it is accepted
	d.stop()
	if n := len(b.dumped()); n != 100 {
		t.Errorf("%d are left", n)
	}
	for _, wrong := range [][]string{{"serve", "--schedule", "@every -5m"}, {"serve", "--schedule", "* * 31 2 *"}, {"serve", "--listen", "nowhere:http"}, {"serve", "now"}} {
		if r := b.run(nil, wrong...); r.code != exitUsage {
			t.Errorf("reaper %s: exit code %d: %s", strings.Join(wrong, " "), r.code, r.log)
		}
	}
}

// A one-shot sweep pushes its results to a Pushgateway, and whether the breaker is open. If it
// cannot, it does not fail.
func TestSweepPushes(t *testing.T) {
	noRaces(t)
	var mu sync.Mutex
	pushed := map[string]string{}
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		group := strings.Replace(r.URL.Path, "/task/0/target/sessions", "/target/sessions/task/0", 1) // in any order
		if pushed[r.Method+" "+group] = string(body); err != nil {
			t.Error(err)
		}
	}))
	const run, breaker = "POST /metrics/job/reaper/target/sessions/task/0", "POST /metrics/job/reaper/target/sessions"
	b := newEmbedded(t, brokenTarget)
	ndjson, _ := sessions(150, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	if r := b.run(nil, "sweep", "--apply", "--pushgateway", gateway.URL); r.code != exitBreaker ||
		!strings.Contains(pushed[breaker], "reaper_last_sweep_breaker_open 1") {
		t.Errorf("with an open breaker: %+v pushed %v", r, pushed)
	}
	b.must(nil, "breaker", "approve", "sessions", b.breaker().Trip, "--reason", "it is old")
	b.must(nil, "sweep", "--apply", "--pushgateway", gateway.URL)
	if len(pushed) != 2 || !strings.Contains(pushed[run], "reaper_last_sweep_deleted 75") ||
		!strings.Contains(pushed[breaker], "reaper_last_sweep_breaker_open 0") {
		t.Errorf("pushed %v", pushed)
	}
	gateway.Close()
	if r := b.must(nil, "sweep", "--apply", "--pushgateway", gateway.URL); !strings.Contains(r.log, "cannot push metrics") {
		t.Errorf("a gateway that is down: %s", r.log)
	}
}

// The program accepts the arguments in the manifests.
func TestDeployedArguments(t *testing.T) {
	noRaces(t)
	text, err := os.ReadFile("../../deploy/args.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string][]string
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) < 4 {
		t.Fatalf("only %d manifests", len(all))
	}
	b := newEmbedded(t, oneTarget)
	for name, args := range all {
		// An unknown flag or command is refused before the store is.
		r := b.run(nil, append(args, "--store", "embedded:nowhere")...)
		if !strings.Contains(r.log, "no embedded store in nowhere") {
			t.Errorf("%s: reaper %s: %s", name, strings.Join(args, " "), r.log)
		}
	}
}

var (
	delayFor  = flag.Duration("delay-for", 0, "how long TestServeDelay goes on loading")
	delayRate = flag.Int("delay-rate", 100, "entities that it loads in a second")
)

// TestServeDelay loads entities that expire a few seconds later, and says how late
// they were deleted. With -delay-for 2m -delay-rate 500 it is what docs/operations.md
// reports.
func TestServeDelay(t *testing.T) {
	noRaces(t)
	t.Parallel()                                                                             // most of it is waiting
	b, _, _ := newDatastore(t, "targets:\n  - {name: sessions, kind: Session, shards: 2}\n") // one for 500 a second would do
	b.must(strings.NewReader(""), "load")                                                    // the target record
	d := b.serve("--apply", "--schedule", "@every 1s")
	length := cmp.Or(*delayFor, nightly.Size(t, 15*time.Second, 5*time.Second))
	lines, in := io.Pipe()
	loaded := make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for began := time.Now(); time.Since(began) < length; <-tick.C {
			var text strings.Builder
			for i := range *delayRate {
				due := time.Now().Add(5*time.Second + time.Duration(i)*time.Second/time.Duration(*delayRate))
				fmt.Fprintf(&text, `{"id":"d-%d","expires":%q}`+"\n", n, due.UTC().Format(time.RFC3339Nano))
				n++
			}
			if _, err := io.WriteString(in, text.String()); err != nil {
				t.Error(err)
				break
			}
		}
		in.Close()
		loaded <- n
	}()
	b.must(lines, "load")
	n := <-loaded
	d.until("the last deletion", func() bool { return d.value(`reaper_deleted_entities_total{target="sessions"}`) == float64(n) })
	var upTo []string
	total := d.value(`reaper_deletion_delay_seconds_count{target="sessions"}`)
	for _, le := range []string{"0.5", "1", "2", "3", "5", "10"} {
		upTo = append(upTo, fmt.Sprintf("%.2f %% within %s s", 100*d.value(`reaper_deletion_delay_seconds_bucket{target="sessions",le="`+le+`"}`)/total, le))
	}
	t.Logf("%d entities at %d/s: %s", n, *delayRate, strings.Join(upTo, ", "))
	if total != float64(n) {
		t.Errorf("%v delays were measured", total)
	}
	d.stop()
}
