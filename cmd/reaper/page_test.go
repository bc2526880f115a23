package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
)

// pageOf returns where a process says that it shows its page.
func pageOf(t *testing.T, log string) string {
	t.Helper()
	for line := range strings.Lines(log) {
		var l struct{ Page string }
		if json.Unmarshal([]byte(line), &l) == nil && strings.HasPrefix(l.Page, "http://") {
			return l.Page
		}
	}
	t.Fatalf("no page in the log:\n%s", log)
	return ""
}

// look returns a page.
func look(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url) //nolint:noctx // a test's own loopback
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, res.Status, err, text)
	}
	return string(text)
}

// A daemon shows what it deletes, and its front page leads there.
func TestServeShowsThePage(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	d := b.serve("--apply", "--schedule", "@every 1s", "--ui", "127.0.0.1:0")
	page := pageOf(t, d.said())
	d.until("the deletes", func() bool {
		return strings.Contains(look(t, page), `data-live="sessions.deleted">150<`)
	})
	if _, front := d.get("/"); !strings.Contains(front, page) {
		t.Errorf("the front page does not lead to %s: %s", page, front)
	}
	for path, want := range map[string]string{"targets/sessions": "generation 00000001", "history": "sessions", "doctor": "Doctor",
		"explain": "--ui-ids", "index.json": `"verdict"`} {
		if got := look(t, page+path); !strings.Contains(got, want) {
			t.Errorf("%s does not say %q: %s", path, want, got)
		}
	}
	d.until("the plan", func() bool { return strings.Contains(look(t, page+"plan"), "  due now  ") })
	// The page that this process has is named to somebody who wants one of the same store.
	if r := b.run(nil, "page", "--ui", "127.0.0.1:0"); r.code != 1 || !strings.Contains(r.log, "shows the page itself: "+page) {
		t.Errorf("%+v", r)
	}
	stream, err := http.Get(page + "events") //nolint:noctx // a test's own loopback
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if line, err := bufio.NewReader(stream.Body).ReadString('\n'); err != nil || line != "retry: 5000\n" {
		t.Errorf("%q %v", line, err)
	}
	d.stop() // though a viewer follows
}

// Without a sweeper the page is the same, and leaves an embedded store to sweeps in between.
func TestPageWithoutCollecting(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	b.sweep("--apply")
	cmd, _, _ := b.command(nil, "page", "--ui", "127.0.0.1:0", "--ui-ids", "--log-format", "json")
	log := bufio.NewReader(b.start(cmd))
	line, err := log.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	page := pageOf(t, line)
	if got := look(t, page+"targets/sessions"); !strings.Contains(got, "IDLE") || !strings.Contains(got, "only shows") {
		t.Errorf("%s", got)
	}
	if got := look(t, page+"history"); !strings.Contains(got, "sweep deleted 150") {
		t.Errorf("%s", got)
	}
	if got := look(t, page+"explain?id=s-1"); !strings.Contains(got, "reaper explain --target sessions -- s-1") {
		t.Errorf("%s", got)
	}
	b.sweep("--apply")
	stopPage(t, cmd)
}

func stopPage(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the page ended with %v", err)
	}
}

// Two daemons on a machine collect, though only one of them gets the usual address; an address that
// somebody chose must be free; and one that others reach is warned of.
func TestAddressOfThePage(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"a"}`), "load")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0", "--ui", taken.Addr().String()},
		{"page", "--ui", taken.Addr().String()}, {"page", "--ui", "off"}, {"page", "--ui", "nowhere"}} {
		if r := b.run(nil, args...); r.code != 2 || !strings.Contains(r.log, "--ui") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if usual, err := net.Listen("tcp", config.DefaultUI); err == nil { // else another process has it, which is as good
		defer usual.Close()
	}
	d := b.serve("--ui", config.DefaultUI)
	if !strings.Contains(d.said(), "no page: --ui sets another address") {
		t.Errorf("%s", d.said())
	}
	d.stop()
	d = b.serve("--ui", ":0", "--ui-ids")
	if said := d.said(); !strings.Contains(said, "the page has no login") || !strings.Contains(said, "ids of entities") {
		t.Errorf("%s", said)
	}
	d.stop()
}
