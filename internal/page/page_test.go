package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/sweep"
)

// paths are all pages, with their documents.
var paths = []string{"", "index.json", "targets/sessions", "targets/sessions.json", "targets/sessions?cell=1.0", "history",
	"history.json", "history?since=24h&only=actions", "doctor", "doctor.json", "plan", "plan.json", "explain", "explain?id=s-1",
	"explain.json?id=s-1", "events.json", "events.json?target=sessions", "style.css", "script.js", "icon.svg"}

func TestPages(t *testing.T) {
	w := newWorld(t)
	w.fill(40)
	w.sweep()
	s := serve(t, w.page())
	s.until("doctor", "checks of")
	for _, p := range paths {
		body := s.want(p)
		if strings.Contains(p, ".json") && !json.Valid([]byte(body)) {
			t.Errorf("%s is not JSON: %s", p, body)
		}
	}
	s.until("plan", "due now         0")
	s.until("", "IDLE")
	s.until("targets/sessions", "20 found due, 20 deleted")
	s.want("targets/sessions", "generation 00000001", "nursery", "reaper pause --target sessions", "shard 0003")
	s.want("targets/sessions?cell=1.2", "00000001.0002", `aria-current="true"`, "in use by"[:0])
	s.want("history", "sweep deleted 20", "ann@example.com", "generation 00000001 opened")
	s.want("explain?id=s-1", "&#34;s-1&#34;", "early", "reaper explain --target sessions -- s-1")
	var doc statusDocument
	if err := json.Unmarshal([]byte(s.want("index.json")), &doc); err != nil || doc.Store != "model:world" ||
		len(doc.Targets) != 1 || len(doc.Targets[0].Ranges) != 8 || doc.Reads[0].At == nil {
		t.Errorf("%v %+v", err, doc)
	}
	for path, code := range map[string]int{"targets/no": 404, "nothing": 404, "plan?target=no": 404, "history?since=1y": 400, "history?limit=0": 400,
		"history?target=no": 404, "explain?id=": 400, "explain?id=0&number=1": 400, "explain.json": 400, "events?target=no": 404,
		"targets/../../etc/passwd": 404, "static/": 404, "explain?id=" + strings.Repeat("a", 1501): 400} {
		if res, body := s.get(path); res.StatusCode != code {
			t.Errorf("%s: %s %s, want %d", path, res.Status, body, code)
		}
	}
}

// Nothing may be loaded from elsewhere or run inline, and every link leads on from where the page
// is, so that a proxy may put it behind any prefix.
func TestPagesAreSelfContained(t *testing.T) {
	w := newWorld(t)
	w.fill(20)
	w.sweep()
	s := serve(t, w.page())
	inline := regexp.MustCompile(`(?i)<[^>]*\s(style|on[a-z]+)\s*=|<style|<script(?: defer)?>|javascript:`)
	link := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	for _, p := range paths {
		res, body := s.get(p)
		for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", p, name, got)
			}
		}
		if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
			continue
		}
		if found := inline.FindString(body); found != "" {
			t.Errorf("%s has something inline: %s", p, found)
		}
		for _, l := range link.FindAllStringSubmatch(body, -1) {
			if strings.HasPrefix(l[1], "/") || strings.Contains(l[1], ":") {
				t.Errorf("%s has a link that is not relative: %s", p, l[1])
			}
		}
	}
}

// A page of another site cannot read this one, nor take streams from its viewers.
func TestForeignRequestsAreRefused(t *testing.T) {
	cfg := newWorld(t).page()
	cfg.Hosts = []string{"ops.example.com"}
	h := newServer(t.Context(), cfg).handler()
	for _, c := range []struct {
		method, host string
		headers      map[string]string
		code         int
	}{
		{"GET", "localhost:9465", nil, 200},
		{"GET", "LOCALHOST.:8080", nil, 200},
		{"GET", "127.0.0.1:9465", nil, 200},
		{"GET", "[::1]:9465", nil, 200},
		{"GET", "ops.example.com", nil, 200},
		{"HEAD", "localhost", nil, 200},
		{"GET", "evil.example", nil, 421},
		{"GET", "localhost.evil.example:9465", nil, 421},
		{"GET", "203.0.113.9:9465", nil, 421},
		{"GET", "", nil, 421},
		{"POST", "localhost", nil, 405},
		{"DELETE", "localhost", nil, 405},
		{"GET", "localhost", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403},
		{"GET", "localhost", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200},
		{"GET", "localhost", map[string]string{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200},
	} {
		r := httptest.NewRequest(c.method, "/style.css", nil)
		r.Host = c.host
		for name, v := range c.headers {
			r.Header.Set(name, v)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.code || w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s %q %v: %d %s, want %d", c.method, c.host, c.headers, w.Code, w.Body, c.code)
		}
	}
}

// hostile texts would run, hide, or turn around what is next to them.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>` + "\u202egnp.exe\u2066\u200b\x00\x1b[31m" + `';--`

// Ids, values and names hold whatever their writers put there.
func TestHostileTexts(t *testing.T) {
	long := strings.Repeat("ä", 750) // 1,500 bytes
	now := time.Now()
	due, n := now.Add(-3*time.Hour), int64(7)
	st := inspect.TargetStatus{Name: "sessions", Layout: "generation", Verdict: inspect.Held, Why: hostile, Held: "breaker",
		Reason: hostile, Breaker: hostile, Unread: []string{hostile}, Backlog: &n, OldestDue: &due,
		Workers: []inspect.WorkerStatus{{Owner: hostile, Version: hostile, Why: hostile}}, SupersededBy: hostile,
		Generations: []inspect.GenerationStatus{{Number: 1, State: hostile}},
		Paused:      true, PausedBy: hostile, PausedAt: &due,
		Ranges: []inspect.RangeStatus{{Namespace: hostile, Generation: 1, Shard: hostile, Position: hostile, ThrottledBy: hostile,
			Owner: hostile, LeaseUntil: &now, OldestDue: &due}, {Namespace: long, Generation: 1, Shard: long, Owner: long}}}
	src := sayingAlways(st)
	src.trip = inspect.BreakerStatus{Trip: hostile, Rule: breaker.Rule(hostile), At: &due, Samples: []string{hostile, long}}
	src.history = inspect.TargetHistory{Name: "sessions", Records: []inspect.HistoryRecord{
		{Kind: history.KindAction, At: due, Actor: hostile, Change: &inspect.HistoryChange{What: hostile, Before: hostile, After: long,
			Reason: hostile}},
		{Kind: history.KindRun, At: due, Owner: hostile, Run: &inspect.HistoryRun{Task: hostile, Updated: now, End: history.Failed,
			Error: hostile, Held: []string{hostile}}}}}
	src.report = doctor.Report{Store: hostile, Findings: []doctor.Finding{{ID: "x", Severity: doctor.Error, Group: doctor.Data,
		Target: hostile, What: hostile, Evidence: []string{hostile, long}, Mend: hostile}},
		Unchecked: []doctor.Unchecked{{ID: hostile, Target: hostile, Why: hostile}}}
	src.answer = inspect.Explanation{Target: "sessions", Namespace: hostile, Key: hostile, Found: true, Expiry: hostile, Verdict: "due",
		Why: hostile, Held: hostile, Reason: hostile, Range: &inspect.RangeStatus{Shard: hostile, Position: hostile, Owner: hostile}}
	cfg := newWorld(t).page()
	cfg.Source, cfg.Store, cfg.Version = src, hostile, hostile
	cfg.Targets[0].Kind = hostile
	s := serve(t, cfg)
	for _, p := range []string{"", "targets/sessions", "targets/sessions?cell=1.0", "targets/sessions?cell=1.1", "history", "doctor",
		"explain?id=" + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE", "explain?id=" + strings.Repeat("%C3%A4", 750), "%3Cscript%3E"} {
		_, body := s.get(p)
		for _, bad := range []string{"<script>alert", "<img", "\u202e", "\u2066", "\u200b", "\x00", "\x1b"} {
			if at := strings.Index(body, bad); at >= 0 {
				t.Errorf("%s has %q: %s", p, bad, body[max(0, at-200):at+50])
			}
		}
	}
	s.want("targets/sessions", `&lt;script&gt;alert(1)`, `\u202egnp.exe`)
}

// Without a login the page names no entity, unless it is asked to.
func TestIDsAreHidden(t *testing.T) {
	const id = "alice@example.com"
	source := func() said {
		n := int64(1)
		st := inspect.TargetStatus{Name: "sessions", Verdict: inspect.Held, Held: "breaker", Backlog: &n,
			Unread: []string{`what is due: read "` + id + `": denied`}}
		src := sayingAlways(st)
		src.trip = inspect.BreakerStatus{Trip: "20261121t120000-burst-ABCDEF", Samples: []string{id}}
		src.history.Records = []inspect.HistoryRecord{{Kind: history.KindRun, At: time.Now(), Run: &inspect.HistoryRun{Task: "serve",
			Updated: time.Now(), End: history.Failed, Error: "rpc: projects/p/databases/d/documents/Session/" + id + " is too large"}}}
		src.report = doctor.Report{Findings: []doctor.Finding{{ID: "outside", Group: doctor.Data, Severity: doctor.Warning, What: "some are outside",
			Evidence: []string{id}}, {ID: "store", Group: doctor.Access, Severity: doctor.Error, Evidence: []string{`entity "` + id + `"`}}},
			Unchecked: []doctor.Unchecked{{ID: "x", Why: `read "` + id + `"`}}}
		src.answer = inspect.Explanation{Key: id, Verdict: "due"}
		return src
	}
	for _, shown := range []bool{false, true} {
		cfg := newWorld(t).page()
		cfg.Source, cfg.IDs = source(), shown
		s := serve(t, cfg)
		for _, p := range []string{"", "index.json", "targets/sessions", "targets/sessions.json", "history", "history.json", "doctor",
			"doctor.json", "explain?id=x", "explain.json?id=x"} {
			_, body := s.get(p)
			if strings.Contains(body, id) != shown {
				t.Errorf("--ui-ids=%v: %s:\n%s", shown, p, body)
			}
		}
	}
	cfg := newWorld(t).page()
	cfg.Source, cfg.IDs = source(), false
	s := serve(t, cfg)
	if res, body := s.get("explain?id=x"); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "reaper explain --target sessions -- x") {
		t.Errorf("%s %s", res.Status, body)
	}
}

// A target with the longest name, and with many namespaces, is as readable as any.
func TestManyNamespaces(t *testing.T) {
	name := "a" + strings.Repeat("-very-long-name", 5)[:62]
	now := time.Now()
	st := inspect.TargetStatus{Name: name, Verdict: inspect.Behind, Generations: []inspect.GenerationStatus{{Number: 3, State: "filling"}}}
	for i := range 50 {
		due := now.Add(-time.Duration(i) * time.Hour)
		st.Ranges = append(st.Ranges, inspect.RangeStatus{Namespace: fmt.Sprintf("tenant-%02d", i), Generation: 3, Shard: "0000",
			OldestDue: &due, ThrottledBy: "ramp"})
	}
	cfg := newWorld(t).page()
	cfg.Source, cfg.Targets[0].Name = sayingAlways(st), name
	s := serve(t, cfg)
	s.want("targets/"+name, name, "50 ranges in 50 namespaces, 50 with something due",
		"generation 00000003, shard 0000; due for 2 days; 50 of 50 ranges; ramp")
	body := s.want("targets/"+name+"?cell=3.0", "00000003.0000@tenant-49")
	if first := strings.Index(body, "@tenant-49"); strings.Index(body, "@tenant-00") < first {
		t.Error("the worst range is not the first of its cell")
	}
}

// What changes something is a command, and names the trip.
func TestBannersHaveCommands(t *testing.T) {
	at := time.Now().Add(-time.Hour)
	st := inspect.TargetStatus{Name: "sessions", Verdict: inspect.Held, Held: "breaker", Paused: true, PausedBy: "bob", PausedAt: &at,
		WouldTrip: nil}
	src := sayingAlways(st)
	src.trip = inspect.BreakerStatus{Trip: "20261121t120000-burst-ABCDEF", Rule: breaker.Burst, Due: 5_000_000, Limit: 1000, At: &at}
	cfg := newWorld(t).page()
	cfg.Source = src
	s := serve(t, cfg)
	for _, p := range []string{"", "targets/sessions"} {
		s.want(p, "its breaker is open", "5,000,000 are due, where 1,000 may be", "reaper breaker show sessions",
			`reaper breaker approve sessions 20261121t120000-burst-ABCDEF --reason &#34;…&#34;`, "sessions is paused", "Paused by bob 1h ago",
			"reaper resume --target sessions")
	}
	if q := draw.Quoted("a b;$(rm -rf)'"); q != `'a b;$(rm -rf)'\'''` {
		t.Errorf("a shell reads %s", q)
	}
}

// What this process knows by itself is on the page at once.
func TestLiveTexts(t *testing.T) {
	w := newWorld(t)
	cfg := w.page()
	cfg.Mode = Deletes
	next := time.Date(2026, 11, 26, 12, 0, 5, 0, time.UTC)
	cfg.States = func() []sweep.State {
		return []sweep.State{{Target: "sessions", Deleted: 1234567, Working: 3, Rate: 500, Next: next}}
	}
	s := serve(t, cfg)
	s.want("targets/sessions", "1,234,567", "12:00:05", "500/s", "Delay until deleted")
	s.want("", `data-live="sessions.deleted">1,234,567<`, "deletes for real")
	s.want("events.json", `"sessions.deleted": "1,234,567"`)
}
