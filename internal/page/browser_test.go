package page

import (
	"context"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/browser"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// With -shots DIR the tests in a browser leave the pictures of docs/page.md there.
var shots = flag.String("shots", "", "write screenshots to this directory")

func shot(name string) string {
	if *shots == "" {
		return ""
	}
	dir, err := filepath.Abs(*shots)
	if err != nil {
		return ""
	}
	return filepath.Join(dir, name+".png")
}

// wantClean holds that a browser has nothing to complain of.
func wantClean(t *testing.T, visits []browser.Visit, seen []browser.Seen) {
	t.Helper()
	for i, s := range seen {
		v := visits[i]
		t.Logf("%s at %d px: loaded in %d ms", v.URL, v.Width, s.LoadMS)
		for what, list := range map[string][]string{"the console has": s.Console, "asked elsewhere": s.Elsewhere, "axe found": s.Violations} {
			for _, one := range list {
				t.Errorf("%s at %d px, dark %v, without script %v: %s %s", v.URL, v.Width, v.Dark, v.NoScript, what, one)
			}
		}
		if s.Wide > 0 {
			t.Errorf("%s is %d px wider than %d", v.URL, s.Wide, v.Width)
		}
	}
}

// everyday returns what a page shows on a day on which something happens.
func everyday(now time.Time) Config {
	calm := manyRanges(3, 16, 1, now)
	for i := range calm.Ranges {
		if r := &calm.Ranges[i]; r.Generation != 3 || i%3 == 0 {
			r.OldestDue, r.Owner = nil, ""
			next := now.Add(time.Duration(i) * 7 * time.Minute)
			r.NextDue = &next
		} else if r.OldestDue != nil {
			due := now.Add(-time.Duration(3+i) * time.Second)
			r.OldestDue, r.ThrottledBy = &due, "ramp"
		}
	}
	oldest := now.Add(-18 * time.Second)
	n, gone := int64(18_422), now.Add(41*time.Second)
	calm.Verdict, calm.Why, calm.OldestDue, calm.Backlog, calm.GoneAt = inspect.OK, "the oldest was due 18s ago", &oldest, &n, &gone
	calm.Workers = []inspect.WorkerStatus{{Owner: "reaper-7f9c/1/QX4KPA", Ranges: 9}, {Owner: "reaper-b2d1/1/M2RTVE", Ranges: 7}}
	calm.SweptTo = &oldest
	at := now.Add(-22 * time.Minute)
	held := inspect.TargetStatus{Verdict: inspect.Held, Why: "by its breaker: see reaper breaker show carts", Held: "breaker", OldestDue: &at,
		Backlog: new(int64), Reason: "burst"}
	*held.Backlog = 5_104_233
	paused := inspect.TargetStatus{Verdict: inspect.Paused, Why: "by ann@example.com until reaper resume", Paused: true, Held: "paused",
		PausedBy: "ann@example.com", PausedAt: &at, Reason: "restoring a backup", OldestDue: &at}
	behind := manyRanges(10, 1000, 1, now)
	for i := range behind.Ranges {
		r := &behind.Ranges[i]
		block := (r.Generation*7 + i%1000/21*13) % 17
		if block > 6 || r.OldestDue == nil {
			r.OldestDue, r.Owner, r.ThrottledBy = nil, "", ""
			continue
		}
		due := now.Add(-time.Duration(1<<(2*block)) * 12 * time.Second)
		r.OldestDue, r.ThrottledBy = &due, []string{"ramp", "ramp", "total", "ramp", "pushback", "max", ""}[block]
		if block%2 == 0 {
			r.Owner, r.LeaseUntil = "", nil
		}
	}
	behind.Workers = []inspect.WorkerStatus{{Owner: "reaper-7f9c/1/QX4KPA", Ranges: 640}}
	idle := inspect.TargetStatus{Verdict: inspect.Idle, Why: "nothing is due", Backlog: new(int64), LastSweep: &oldest}
	all := map[string]inspect.TargetStatus{"sessions": calm, "carts": held, "tokens": behind, "uploads": paused, "drafts": idle}
	cfg := Config{Store: "datastore:acme-prod", Version: "v1.4.0", Mode: Deletes, IDs: true, Now: time.Now, Log: newWorld(nil).page().Log}
	for _, name := range []string{"carts", "uploads", "tokens", "sessions", "drafts"} {
		st := all[name]
		st.Name = name
		all[name] = st
		cfg.Targets = append(cfg.Targets, Target{name, map[string]string{"sessions": "Session", "carts": "Cart", "tokens": "Token",
			"uploads": "Upload", "drafts": "Draft"}[name], "generation", "*/5 * * * *"})
	}
	cfg.States = func() (list []sweep.State) {
		for i, t := range cfg.Targets {
			list = append(list, sweep.State{Target: t.Name, Next: now.Add(3 * time.Minute), Tick: now.Add(-2 * time.Minute),
				Deleted: int64(i*i*i) * 31_807, Rate: float64(i) * 210, Working: 4 * i})
		}
		return list
	}
	prices, _ := forecast.ProvenPrices("us-central1")
	cfg.Source = everydaySource{all, said{trip: inspect.BreakerStatus{Trip: "20261126t2154-burst-QX4KPA", Rule: breaker.Burst, At: &at, Due: 5_104_233, Limit: 1000},
		history: aMonth(now), prices: prices, report: findings(now), answer: inspect.Explanation{Target: "sessions", Key: `"s-1842"`, Found: true,
			Expiry: "00000003.0007.20261126T220730.855Z", Expires: &at, Due: &at, State: "filling", Verdict: "due", Why: "it is due, and in front of the cursor",
			Range: &calm.Ranges[1]}}}
	return cfg
}

// An everydaySource has a status for each target.
type everydaySource struct {
	all map[string]inspect.TargetStatus
	said
}

func (s everydaySource) Status(_ context.Context, target string, _ inspect.BehindCount) (inspect.TargetStatus, error) {
	return s.all[target], nil
}

// aMonth returns a history with a run each hour, and what people and generations did meanwhile.
func aMonth(now time.Time) (h inspect.TargetHistory) {
	for i := 30 * 24; i >= 0; i-- {
		at := now.Add(-time.Duration(i) * time.Hour)
		n := int64(40_000 + 25_000*((i*7)%11)/10 + 60_000*((at.Hour()+6)%24)/24)
		run := &inspect.HistoryRun{Task: "serve", Updated: at.Add(59 * time.Minute), End: history.Done,
			Operations: store.Operations{Reads: n / 3, Writes: n / 80, Deletes: n}}
		run.Expired, run.Deleted = n+int64(i%5)*900, n
		run.Delays = []inspect.HistoryDelay{{Over: .5, Within: seconds(1), Deletes: n / 3}, {Over: 1, Within: seconds(2), Deletes: n / 2},
			{Over: 5, Within: seconds(10), Deletes: n / 6 * int64(1+i%4) / 4}, {Over: 60, Within: seconds(150), Deletes: n / 90 * int64(i%3)}}
		h.Records = append(h.Records, inspect.HistoryRecord{Kind: history.KindRun, At: at, Owner: "reaper-7f9c/1/QX4KPA",
			Actor: "reaper@acme-prod", Run: run})
		change := func(kind history.Kind, what, actor, reason string, generation int) {
			h.Records = append(h.Records, inspect.HistoryRecord{Kind: kind, At: at.Add(17 * time.Minute), Actor: actor,
				Change: &inspect.HistoryChange{What: what, Reason: reason, Generation: generation}})
		}
		switch {
		case i == 9:
			change(history.KindAction, "pause", "ann@example.com", "sale until noon", 0)
		case i == 7:
			change(history.KindAction, "resume", "ann@example.com", "", 0)
		case i == 15 || i == 400:
			change(history.KindTrip, "trip 20261126t0800-burst-QX4KPA", "reaper@acme-prod", "burst", 0)
		case i%168 == 20:
			change(history.KindGeneration, "opened", "reaper@acme-prod", "", 3-i/168)
		}
	}
	return h
}

func seconds(n float64) *float64 { return &n }

func findings(now time.Time) doctor.Report {
	return doctor.Report{Store: "datastore:acme-prod", Now: now, Duration: 2.3, Targets: []string{"sessions", "carts"}, Checks: 74,
		Findings: []doctor.Finding{
			{ID: "breaker-open", Severity: doctor.Error, Group: doctor.Data, Target: "carts", What: "Its breaker is open: nothing is deleted.",
				Evidence: []string{"burst: 5,104,233 are due, where 1,000 may be"}, Mend: "reaper breaker show carts"},
			{ID: "recovery-off", Severity: doctor.Warning, Group: doctor.Database, What: "Point-in-time recovery is off.",
				Evidence: []string{"earliest version an hour ago"}, Mend: "gcloud firestore databases update --enable-pitr"},
			{ID: "shards-few", Severity: doctor.Info, Group: doctor.Configuration, Target: "tokens", What: "It has few shards for its rate."}},
		Unchecked: []doctor.Unchecked{{ID: "indexes", Target: "drafts", Why: "an emulator knows no indexes"}}}
}

// The pages as a browser has them: light and dark, narrow and wide, with and without script, with
// the keyboard and behind a prefix, with no barrier, no message and no other server.
func TestInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is another process")
	}
	cfg := everyday(time.Now().UTC())
	s := serve(t, cfg)
	s.until("doctor", "breaker-open")
	s.until("targets/tokens", "10,000 ranges")
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/ops/reaper", &httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}))
	defer proxy.Close()
	behind := proxy.URL + "/ops/reaper/"
	const live = `document.getElementById("link-state").textContent === "Live"`
	visits := []browser.Visit{
		{URL: s.url, Width: 1600, Height: 900, Axe: true, Shot: shot("overview")},
		{URL: s.url, Width: 360, Height: 780, Dark: true, Axe: true, Shot: shot("overview-narrow")},
		{URL: s.url + "targets/sessions", Width: 1600, Height: 1150, Axe: true, Shot: shot("target")},
		{URL: s.url + "targets/sessions?cell=3.1", Width: 360, Height: 780, Axe: true, Whole: true, Shot: shot("target-narrow")},
		{URL: s.url + "targets/tokens?cell=10.0", Width: 1600, Height: 1000, Dark: true, Axe: true, Shot: shot("map-dark")},
		{URL: s.url + "targets/tokens", Width: 2560, Height: 1200, Axe: true, Shot: shot("map-wide")},
		{URL: s.url + "history?target=sessions", Width: 1600, Height: 900, Axe: true, Shot: shot("history")},
		{URL: s.url + "history?target=sessions&only=actions", Width: 360, Height: 780, Dark: true, Axe: true, Shot: shot("history-narrow")},
		{URL: s.url + "doctor", Width: 1600, Height: 900, Dark: true, Axe: true, Shot: shot("doctor")},
		{URL: s.url + "doctor", Width: 360, Height: 780, Axe: true},
		{URL: s.url + "explain?target=sessions&id=s-1842", Width: 1600, Height: 900, Axe: true, Shot: shot("explain")},
		{URL: s.url + "explain", Width: 360, Height: 780, Dark: true, Axe: true},
		{URL: behind, Width: 1600, Height: 900, Await: []string{live}, Axe: true},
		{URL: behind + "targets/sessions", Width: 1600, Height: 900, Await: []string{live, `(document.querySelector("nav a").click(), true)`,
			`location.pathname === "/ops/reaper/"`, live}},
		{URL: s.url, Width: 1600, Height: 900, NoScript: true, Shot: shot("without-script")},
		{URL: s.url + "targets/tokens", Width: 1600, Height: 900, NoScript: true, Eval: `document.querySelectorAll(".cell").length`},
		{URL: behind + "targets/sessions", Width: 360, Height: 780, NoScript: true, Eval: `getComputedStyle(document.body).margin`},
		// By the keyboard: past the header, into the map, and along it.
		{URL: s.url + "targets/sessions", Width: 1600, Height: 900, Keys: []string{"Tab", "Enter"},
			Await: []string{live, `(document.getElementById("cell-3.0").focus(), true)`}, Eval: `document.activeElement.id`},
		// A form is never sent, since the policy forbids it: the address asks.
		{URL: s.url + "explain", Width: 1600, Height: 900, Await: []string{
			`(() => { const f = document.querySelector("form"); f.querySelector("[name=id]").value = "s-1842"; f.querySelector("[name=target]").value = "sessions"; f.requestSubmit(); return true; })()`,
			`location.search.includes("id=s-1842") && document.body.innerText.includes("Stored expiry")`}},
		{URL: s.url + "plan", Width: 1600, Height: 900, Axe: true},
		{URL: s.url + "plan?target=carts", Width: 360, Height: 780, Dark: true, Axe: true, Shot: shot("plan-narrow")},
	}
	seen := browser.Look(t, visits...)
	wantClean(t, visits, seen)
	for i, want := range map[int]string{15: "480", 16: `"0px"`, 17: `"cell-3.0"`} {
		if got := string(seen[i].Value); got != want {
			t.Errorf("%s: %s, want %s", visits[i].URL, got, want)
		}
	}
	if ms := seen[5].LoadMS; ms > 1000 {
		t.Logf("10,000 ranges took %d ms to load; a quiet machine takes less than a second", ms)
	}
}

// While a sweep runs the page of its target follows, with script by events and without by refresh.
func TestBrowserFollowsASweep(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is another process")
	}
	w := newWorld(t)
	w.target.Pace = throttle.Limits{Start: 5, Max: 5}
	w.fill(20_000)
	cfg := w.page()
	_, stop := w.collect(&cfg, time.Second)
	defer stop()
	s := serve(t, cfg)
	const deleted = `+document.querySelector('[data-live="sessions.deleted"]').textContent.replace(/\D/g, "")`
	visits := []browser.Visit{
		{URL: s.url + "targets/sessions", Width: 1600, Height: 900, Axe: true, Await: []string{
			`(window.first ??= ` + deleted + `) < ` + deleted, // by an event
			// The records were read again, and the page with them; focus and open parts stay.
			`(() => { window.old = document.getElementById("main"); old.querySelector("summary").click(); return !!(window.opened = old.querySelector("details[open]").id); })()`,
			`document.getElementById("main") !== window.old && document.getElementById(window.opened).open`,
			`document.querySelector(".work") !== null`,
			// A cell follows by events alone, since the page is read again only after seconds.
			`(() => { for (const c of document.querySelectorAll(".cell.work")) { c.title = ""; c.classList.remove("work"); } return true; })()`,
			`document.querySelector(".cell.work") !== null && document.querySelector(".cell.work .hidden").textContent.includes("in work")`,
			// A person stops it.
			`(document.getElementById("hold").click(), document.getElementById("link-state").textContent === "Stopped")`,
		}},
		{URL: s.url, Width: 360, Height: 780, NoScript: true, Eval: `document.querySelector('[data-live="sessions.deleted"]').textContent`},
	}
	seen := browser.Look(t, visits...)
	wantClean(t, visits, seen)
	if first := string(seen[1].Value); first == `"0"` {
		t.Errorf("nothing was deleted: %s", first)
	}
}
