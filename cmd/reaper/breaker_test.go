package main

import (
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

const brokenTarget = `targets:
  - name: sessions
    kind: Session
    breaker: {floor: 50}
`

// breaker returns what breaker show --json prints.
func (b *workdir) breaker() (st inspect.BreakerStatus) {
	b.t.Helper()
	r := b.must(nil, "breaker", "show", "sessions", "--json")
	if err := json.Unmarshal([]byte(r.out), &st); err != nil {
		b.t.Fatalf("%v: %s", err, r.out)
	}
	return st
}

// A first sweep over many due entities deletes nothing until somebody approves: a part first,
// then all of it.
func TestBreakerOfAFirstSweep(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, brokenTarget)
	ndjson, live := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	if st := b.breaker(); st.Trip != "" || st.Target != "sessions" || st.At != nil || st.Through != nil || st.Note.At != nil {
		t.Errorf("before the first sweep: %+v", st)
	}
	dry := b.must(nil, "sweep")
	if !strings.Contains(dry.out, "its breaker would trip: new-ground: 150 are due, more than 50") ||
		!strings.Contains(dry.out, "in generation 0000000") {
		t.Errorf("the dry run: %s", dry.out)
	}
	r := b.run(nil, "sweep", "--apply")
	if r.code != exitBreaker || !strings.Contains(r.log, "reaper breaker show") || strings.Contains(r.out, "not complete") ||
		!strings.Contains(r.out, "held: breaker new-ground: 150 are due, more than 50: nothing was deleted\n") {
		t.Fatalf("the first sweep: %+v", r)
	}
	if n := len(b.dumped()); n != 300 {
		t.Fatalf("%d are left, not all", n)
	}
	st := b.breaker()
	if st.At == nil || st.Hour != nil || st.Through == nil || st.Share != nil || st.DueAtLeast {
		t.Errorf("%+v", st)
	}
	if st.Rule != "new-ground" || st.Due != 150 || st.Limit != 50 || st.Deleted != 0 || len(st.Samples) == 0 || len(st.Histogram) == 0 {
		t.Errorf("%+v", st)
	}
	if s := b.status(); s.Verdict != inspect.Held || s.Held != "breaker" {
		t.Errorf("status: %+v", s)
	}
	var h historyResult
	if err := json.Unmarshal([]byte(b.must(nil, "history", "--json").out), &h); err != nil {
		t.Fatal(err)
	}
	told := map[history.Kind]int{}
	for _, r := range h.Targets[0].Records { // the run began before it tripped
		if told[r.Kind]++; r.Run != nil && (r.Run.End != history.Breaker || !slices.Equal(r.Run.Held, []string{"breaker"}) ||
			told[history.KindTrip] > 0) {
			t.Errorf("its history: %+v", r.Run)
		}
	}
	if told[history.KindRun] != 1 || told[history.KindTrip] != 1 {
		t.Errorf("its history has %v", told)
	}
	says(t, "history", b.must(nil, "history").out, `sweep deleted 0 in \d+s,\s+held\s+by\s+its\s+breaker,\s+by\s`)
	for _, wrong := range [][]string{{"approve", "sessions", st.Trip}, {"approve", "sessions", st.Trip, "--reason", ""},
		{"approve", "sessions", st.Trip, "--reason", "x", "--count", "0"}, {"approve", "nobody", st.Trip, "--reason", "x"}} {
		if r := b.run(nil, append([]string{"breaker"}, wrong...)...); r.code != exitUsage {
			t.Errorf("%v: %+v", wrong, r)
		}
	}
	if r := b.run(nil, "breaker", "approve", "sessions", "another", "--reason", "x"); r.code != exitUsage ||
		!strings.Contains(r.log, "no such trip is open: "+st.Trip+" is") || !strings.Contains(r.log, "hint: ") {
		t.Errorf("approve another: %+v", r)
	}
	if r := b.run(nil, "breaker", "clear", "sessions"); r.code != exitFailed || !strings.Contains(r.log, "hint: ") {
		t.Errorf("clear: %+v", r)
	}
	var ended endedTrip
	r = b.must(nil, "breaker", "approve", "sessions", st.Trip, "--reason", "a part", "--count", "10", "--json")
	if err := json.Unmarshal([]byte(r.out), &ended); err != nil || ended != (endedTrip{"sessions", st.Trip, "approved", 10}) {
		t.Errorf("a part: %v: %s", err, r.out)
	}
	if r := b.run(nil, "sweep", "--apply"); r.code != exitBreaker || len(b.dumped()) != 290 {
		t.Errorf("%d are left after a part of 10 was approved: %+v", len(b.dumped()), r)
	}
	st = b.breaker()
	r = b.must(nil, "breaker", "approve", "sessions", st.Trip, "--reason", "it is old", "--actor", "ann", "--count", "1000",
		"--normal", "--json")
	if err := json.Unmarshal([]byte(r.out), &ended); err != nil || ended.Count != 140 || st.Deleted != 10 {
		t.Errorf("approved: %v: %s of %+v", err, r.out, st)
	}
	if !strings.Contains(r.log, "--normal has no effect") {
		t.Errorf("no word that unswept ground is not learnt: %s", r.log)
	}
	if res := b.sweep("--apply"); res.Deleted != 140 || !res.Complete {
		t.Errorf("after the approval: %+v", res)
	}
	b.wantLive(live)
	if r := b.must(nil, "breaker", "show", "sessions"); !strings.Contains(r.out, "closed; its last trip ended 20") ||
		!strings.Contains(r.out, "by ann (it is old)") {
		t.Errorf("at the end: %s", r.out)
	}
}

// A limit that is used up ends a sweep without an error, and says until when; the breaker is off.
func TestLimitOfADay(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, "targets:\n  - name: sessions\n    kind: Session\n    breaker: off\n    limits: {per_day: 10}\n")
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	for _, said := range []string{": 10 were deleted before\n", ": nothing was deleted\n"} {
		if r := b.must(nil, "sweep", "--apply"); !strings.Contains(r.out, "sessions: held: limit 10 a day, used up until 20") ||
			!strings.HasSuffix(r.out, said) {
			t.Errorf("%+v", r)
		}
	}
	if said := deletedBefore(sweep.TargetResult{Counts: metrics.Counts{Deleted: 1}}, true); said != "1 was deleted before" {
		t.Error(said)
	}
	if st := b.status(); st.Verdict != inspect.Held || st.Held != "limit" || len(b.dumped()) != 290 ||
		!strings.HasPrefix(st.Reason, "10 a day, used up until 20") {
		t.Errorf("%d are left: %+v", len(b.dumped()), st)
	}
	if r := b.must(nil, "breaker", "show", "sessions"); r.out != "sessions: the breaker is off\n" {
		t.Errorf("%+v", r)
	}
}

// A breaker that is open comes before a pause: to resume does not end it.
func TestBreakerOfAPausedTarget(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, brokenTarget)
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	b.run(nil, "sweep", "--apply")
	if st := b.status(); st.Ranges[0].ThrottledBy != "breaker" || st.Paused {
		t.Errorf("tripped: %+v", st)
	}
	b.must(nil, "pause", "--reason", "a restore")
	if r := b.run(nil, "sweep", "--apply"); r.code != exitBreaker || !strings.Contains(r.out, "held: breaker") {
		t.Errorf("a sweep while paused, too: %+v", r)
	}
	if st := b.status(); st.Verdict != inspect.Held || st.Held != "breaker" || !st.Paused ||
		!strings.HasSuffix(st.Reason, "; paused: a restore") || st.Ranges[0].ThrottledBy != "breaker" {
		t.Errorf("status: %+v", st)
	}
	if r := b.must(nil, "resume"); !strings.Contains(r.out, "sessions is held by its breaker") {
		t.Errorf("resume: %s", r.out)
	}
	b.must(nil, "pause", "--reason", "a restore")
	b.must(nil, "breaker", "approve", "sessions", b.breaker().Trip, "--reason", "it is old")
	if st := b.status(); st.Verdict != inspect.Paused || st.Held != "paused" {
		t.Errorf("approved: %+v", st)
	}
}

// An operator brings back what must stay, and clears the trip.
func TestBreakerIsCleared(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, brokenTarget)
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	if r := b.run(nil, "sweep", "--apply", "--fail-incomplete"); r.code != exitBreaker {
		t.Fatalf("%+v", r)
	}
	b.must(strings.NewReader(strings.ReplaceAll(ndjson, `"expires":"20`, `"expires":"21`)), "load")
	if r := b.must(nil, "breaker", "clear", "sessions"); !strings.Contains(r.out, "is cleared") {
		t.Errorf("%+v", r)
	}
	if res := b.sweep("--apply"); res.Deleted != 0 || !res.Complete || res.Held != "" {
		t.Errorf("%+v", res)
	}
}

// A budget that cannot be read hides neither the trip nor its id, and status says why nothing goes.
func TestBreakerWithAnUnreadableBudget(t *testing.T) {
	noRaces(t)
	t.Parallel()
	b := newEmbedded(t, brokenTarget)
	ndjson, _ := sessions(300, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	if r := b.run(nil, "sweep", "--apply"); r.code != exitBreaker {
		t.Fatalf("%+v", r)
	}
	trip := b.breaker().Trip
	b.spoilBudget()
	if r := b.run(nil, "breaker", "show", "sessions"); r.code != exitFailed || !strings.Contains(r.out, trip) ||
		!strings.Contains(r.log, "its details are not") {
		t.Errorf("breaker show: %+v", r)
	}
	var st inspect.BreakerStatus
	if r := b.run(nil, "breaker", "show", "sessions", "--json"); r.code != exitFailed ||
		json.Unmarshal([]byte(r.out), &st) != nil || st.Trip != trip {
		t.Errorf("breaker show --json: %+v", r)
	}
	if r := b.run(nil, "breaker", "approve", "sessions", trip, "--reason", "it is old"); r.code != exitFailed ||
		!strings.Contains(r.log, "is approved") {
		t.Errorf("approve: %+v", r)
	}
	if r := b.run(nil, "breaker", "show", "sessions"); r.code != exitFailed || !strings.Contains(r.log, "closed") {
		t.Errorf("breaker show after it: %+v", r)
	}
	if r := b.run(nil, "sweep", "--apply"); r.code != exitFailed || len(b.dumped()) != 300 {
		t.Errorf("%d are left: %+v", len(b.dumped()), r)
	}
	if s := b.status(); !strings.Contains(s.Breaker, "cannot read its budget") {
		t.Errorf("status: %+v", s)
	}
}

// spoilBudget makes the budget record of the target unreadable.
func (b *workdir) spoilBudget() {
	b.t.Helper()
	db, err := embedded.Open(filepath.Join(b.dir, "data"), embedded.Options{Now: time.Now})
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := db.Load(b.t.Context(), breaker.Query("sessions"))
	if err != nil || len(got.List) != 1 {
		b.t.Fatalf("%d records, %v", len(got.List), err)
	}
	rec, was := got.List[0], got.List[0].Revision
	rec.Fields, rec.Revision = maps.Clone(rec.Fields), store.NewRevision(was)
	rec.Fields["tallies"] = "spoilt"
	if err := errors.Join(db.Save(b.t.Context(), rec, was), db.Close()); err != nil {
		b.t.Fatal(err)
	}
}
