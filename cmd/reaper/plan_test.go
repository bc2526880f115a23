package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
)

// plan runs the command with --json, and returns what it prints.
func (b *workdir) plan(args ...string) (res planResult) {
	b.t.Helper()
	got := b.must(nil, append([]string{"plan", "--json"}, args...)...)
	d := json.NewDecoder(strings.NewReader(got.out))
	if err := d.Decode(&res); err != nil || d.More() {
		b.t.Fatalf("%v: stdout is not one document\n%s", err, got.out)
	}
	return res
}

// A plan from numbers needs neither a store nor a targets file, and says what the brief asks of it.
func TestPlanFromNumbers(t *testing.T) {
	noRaces(t)
	b := &workdir{t: t, dir: t.TempDir()}
	args := []string{"--writes", "20000/s", "--ttl", "1h:80%,30d:20%", "--size", "2KiB", "--backlog", "500M", "--location", "us-central1"}
	res := b.plan(args...)
	p := res.Targets[0]
	if p.Live || p.Shards.Needed != 80 || p.Generations.Most != 0 || p.Drain.Seconds == nil || !p.Breaker.NewGround || len(p.Month) != 5 {
		t.Errorf("%+v", p)
	}
	ways := map[forecast.Way]bool{}
	for _, bill := range p.Month {
		if ways[bill.Way] = true; bill.Dollars == nil || bill.Deletes != 20000*30*86400 {
			t.Errorf("%+v", bill)
		}
	}
	for _, way := range []forecast.Way{forecast.ByNative, forecast.ByLookup, forecast.ByQuery, forecast.ByTTL, forecast.ByNaively} {
		if !ways[way] {
			t.Errorf("no bill for %s", way)
		}
	}
	text := b.must(nil, append([]string{"plan"}, args...)...).out
	says(t, "the plan", text, `500,000,000`, `gone +after 2h42m`, `delay +p50 \S+, p99`, `shards +16 set, 80 needed`, `nothing is carried`,
		`2 rows of \d+ bytes`, `trips at the first sweep`, `built-in TTL`, `naive query`, `2026-09-12`, `╰`, `    shards: 80\n`)
	_, stanza, found := strings.Cut(text, "  - name:")
	stanza, _, _ = strings.Cut(stanza, "\n\n")
	if _, err := config.ParseTargets("stanza", strings.NewReader("targets:\n  - name:"+stanza), config.Datastore); err != nil || !found {
		t.Errorf("the stanza cannot be pasted: %v\n%s", err, stanza)
	}
	without := b.must(nil, "plan", "--backlog", "10000000000", "--writes", "200000/s", "--ttl", "1h", "--namespaces", "1000").out
	says(t, "without prices", without, `not known`, `--price`, `10,000,000,000`)
	if strings.Contains(without, "$") {
		t.Errorf("prices were guessed:\n%s", without)
	}
	given := b.plan("--backlog", "1M", "--location", "eur3", "--price", "reads=0.04,deletes=0.02", "--mode", "native")
	if bill := given.Targets[0].Backlog[0]; given.Prices.Location != "eur3" || bill.Way != forecast.ByNative || bill.Dollars != nil ||
		fmt.Sprint(bill.Missing) != "[writes]" {
		t.Errorf("%+v", given)
	}
}

// What makes no sense exits with 2, and says where and what to do.
func TestPlanRefuses(t *testing.T) {
	noRaces(t)
	b := newWorkdir(t, oneTarget)
	b.write("notes.json", `{"a": 1}`)
	b.write("later.json", `{"format": 99, "made": "2026-01-01T00:00:00Z"}`)
	for args, want := range map[string]string{
		"--writes 20000 --ttl 1h":            `--writes: "20000" has no unit`,
		"--writes 20/s":                      `without --ttl`,
		"--writes 20/s --ttl 1h:50%,2h:60%":  `add up to 110%`,
		"--writes -5/s --ttl 1h":             `not a valid rate`,
		"--writes NaN/s --ttl 1h":            `not a valid rate`,
		"--backlog 1e99":                     `--backlog`,
		"--backlog Inf":                      `--backlog`,
		"--backlog 1M --location eur3":       `--price`,
		"--backlog 1M --price read=1":        `not the name of a price`,
		"--backlog 1M --price reads=-1":      `plain decimal`,
		"--backlog 1M --size 2GiB":           `--size`,
		"--backlog 1M --size=":               `is empty`,
		"--backlog 1M --out plan.txt":        `.json or .svg`,
		"--backlog 1M --out notes.json":      `not overwritten`,
		"--backlog 1M --compare none.json":   `no such file`,
		"--backlog 1M --compare later.json":  `later version`,
		"--backlog 1M --namespaces 0":        `--namespaces`,
		"--backlog 1M --shards 10000":        `--shards`,
		"--backlog 1M --mode firestore":      `native, datastore or embedded`,
		"other --backlog 1M":                 `no target is named`,
		"sessions --target a --backlog 1M":   `once`,
		"sessions":                           `no store`,
		"--writes 5 --ttl x --price y=1":     `--ttl: "x"`,
		"a b":                                `at most 1 arg`,
		"--backlog 1M --out no/such/dir.svg": `no such file or directory`,
		// The files are looked at before the store is: its COUNTs cost money.
		"--store embedded:./none --out notes.json":     `not overwritten`,
		"--store embedded:./none --compare later.json": `later version`,
	} {
		r := b.run(nil, append([]string{"plan"}, strings.Fields(args)...)...)
		if r.code != exitUsage || !strings.Contains(r.log, want) || r.out != "" {
			t.Errorf("plan %s: exit code %d: %s%s, want %s", args, r.code, r.out, r.log, want)
		}
	}
}

// A live target is counted, its history is compared with a forecast, and nothing is written.
func TestPlanOfALiveTarget(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	ndjson, _ := sessions(2000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	p := b.plan("sessions").Targets[0]
	if !p.Live || p.Workload.Backlog != 1000 || p.Workload.Entities != 2000 || p.Past != nil || p.Workload.Swept {
		t.Errorf("%+v", p)
	}
	b.sweep("--apply")
	before := b.dumped()
	p = b.plan("sessions", "--ttl", "1h").Targets[0]
	if p.Workload.Backlog != 0 || p.Workload.Entities != 1000 || !p.Workload.Swept || len(p.Workload.Lives) != 1 {
		t.Errorf("%+v", p.Workload)
	}
	if p.Past == nil || p.Past.Counts.Deleted != 1000 || p.Past.Forecast.Deletes != 1000 || p.Past.Jobs != 1 {
		t.Errorf("%+v", p.Past)
	}
	says(t, "the plan", b.must(nil, "plan").out, `counted: 1,000 entities; 0 due`, `history +forecast +differs`, `deletes +1,00\d +1,000`)
	if after := b.dumped(); len(after) != len(before) {
		t.Error("plan changed something")
	}
}

// A file keeps a plan, as JSON and as a picture. Once it is stale, plan says so and why.
func TestPlanIsKept(t *testing.T) {
	noRaces(t)
	b := newWorkdir(t, oneTarget)
	for _, file := range []string{"plan.json", "plan.svg"} {
		args := []string{"plan", "sessions", "--backlog", "500M", "--out", file}
		b.must(nil, args...)
		if r := b.must(nil, args...); !strings.Contains(r.log, "still right") {
			t.Errorf("%s: the same plan: %s", file, r.log)
		}
		b.write("reaper.yaml", strings.ReplaceAll(oneTarget, "breaker: off", "shards: 64"))
		r := b.must(nil, "plan", "sessions", "--backlog", "900M", "--compare", file)
		says(t, file, r.log, `is stale`, `shards was 16, and is 64 now`, `breaker was off`, `500,000,000 by the plan, and 900,000,000 now`)
		if res := b.plan("sessions", "--backlog", "900M", "--compare", file); len(res.Stale) != 3 {
			t.Errorf("%q", res.Stale)
		}
		b.write("reaper.yaml", oneTarget)
	}
	if text, err := os.ReadFile(filepath.Join(b.dir, "plan.svg")); err != nil || !strings.Contains(string(text), "<svg ") {
		t.Errorf("%v: %s", err, text)
	}
	old, err := readPlan(filepath.Join(b.dir, "plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	later := old
	later.Made = old.Made.Add(45 * 24 * time.Hour)
	if stale := staleBecause(old, later); len(stale) != 1 || !strings.Contains(stale[0], "45d ago") {
		t.Errorf("%q", stale)
	}
	// Live, the backlog of 500 million is gone by then: as many as before are a reason.
	old.Targets[0].Live = true
	later.Targets = []planTarget{old.Targets[0]}
	if stale := staleBecause(old, later); len(stale) != 2 || !strings.Contains(stale[1], "due: 0 by the plan, and 500,000,000 now") {
		t.Errorf("%q", stale)
	}
}

// On a terminal no line is longer than 80 characters, tables and stanza included.
func TestPlanFitsATerminal(t *testing.T) {
	var f planFlags
	f.workload = forecast.Workload{Writes: 200_000, Lives: []forecast.Life{{For: time.Hour, Share: 0.5}, {For: 90 * 24 * time.Hour, Share: 0.5}},
		Backlog: 1e10, Size: 2048}
	f.prices, _ = forecast.ProvenPrices("us-central1")
	targets, err := config.ParseTargets("", newPlanned(), "")
	if err != nil {
		t.Fatal(err)
	}
	schedule, err := config.ParseSchedule("*/5 * * * *")
	if err != nil {
		t.Fatal(err)
	}
	p := planner{flags: &f, target: targets[0], schedule: schedule, prices: f.prices}
	one, err := p.plan(f.workload)
	if err != nil {
		t.Fatal(err)
	}
	text := string(screen{width: 80}.plan(planResult{Made: time.Now(), Prices: f.prices, Targets: []planTarget{one}}))
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	for schedule, want := range map[string]time.Duration{"*/5 * * * *": 5 * time.Minute, "@every 10s": 10 * time.Second, "0 3 * * *": 24 * time.Hour,
		"0 3 * * 1": 7 * 24 * time.Hour} {
		s, err := config.ParseSchedule(schedule)
		if got := tickOf(s); err != nil || got.Round(time.Minute/6) != want {
			t.Errorf("%s ticks every %v, %v", schedule, got, err)
		}
	}
}

// The chart draws backlogs of any size that a plan accepts.
func TestChartOfAnyBacklog(t *testing.T) {
	for _, backlog := range []float64{1, 999, 1e6, forecast.MostEntities} {
		s := forecast.Settings{Namespaces: 1, Shards: 1, Page: 500, Tick: time.Minute, Pace: forecast.Pace{Start: 500, Max: 1e9}}
		chart := chartOf(s.DrainOf(forecast.Workload{Backlog: backlog}))
		if lines := strings.Count(chart, "\n") + 1; lines != chartHeight+1 || !strings.Contains(chart, shortCount(backlog)) {
			t.Errorf("a backlog of %v:\n%s", backlog, chart)
		}
	}
}

// No file panics. One that is accepted can be compared.
func FuzzPlanFile(f *testing.F) {
	for _, s := range []string{`{"format":1,"made":"2026-01-01T00:00:00Z","targets":[{"name":"a","workload":{"lives":[{"seconds":1,"share":1}]}}]}`,
		`<svg><metadata>{"format":1}</metadata></svg>`, `<svg>`, `{`, `null`, `{"format":1,"made":"2026-01-01T00:00:00Z","targets":[{"drain":{"points":[{}]}}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		if p, err := parsePlan(text); err == nil {
			staleBecause(p, p) // no more is done with a plan that was read
		}
	})
}

// A live target is counted on every store and in every layout, and the price of that is said before.
func TestPlanInEveryLayout(t *testing.T) {
	noRaces(t)
	t.Parallel()
	onEachStoreAndLayout(t, func(t *testing.T, b *workdir, layout config.Layout) {
		ndjson, _ := sessions(200, time.Now())
		b.must(strings.NewReader(ndjson+`{"id":"for ever","data":{"a":1}}`+"\n"), "load")
		cloud := !strings.Contains(t.Name(), "embedded")
		r := b.must(nil, "plan", "--json", "sessions", "--ttl", "1d", "--price", "reads=0.03")
		if said := strings.Contains(r.log, "counting entities") && strings.Contains(r.log, "reads, and one more for each 1,000"); said != cloud {
			t.Errorf("the price of counting was said: %v\n%s", said, r.log)
		}
		var res planResult
		if err := json.Unmarshal([]byte(r.out), &res); err != nil || len(res.Targets) != 1 {
			t.Fatal(err, r.out)
		}
		p := res.Targets[0]
		if p.Workload.Backlog != 100 || p.Workload.Entities != 200 || len(p.Backlog) == 0 || p.Workload.Swept {
			t.Errorf("%+v", p)
		}
		if breaker := p.Breaker; !breaker.On || breaker.NewGround { // fewer than floor
			t.Errorf("%+v", breaker)
		}
		b.sweep("--apply")
		p = b.plan("sessions").Targets[0]
		if p.Workload.Backlog != 0 || p.Workload.Entities != 100 || !p.Workload.Swept || p.Past == nil || p.Past.Counts.Deleted != 100 {
			t.Errorf("after a sweep: %+v", p)
		}
		if hasShards := strings.Contains(p.Stanza, "shards:"); hasShards != layout.Uses("shards") {
			t.Errorf("the stanza:\n%s", p.Stanza)
		}
	})
}
