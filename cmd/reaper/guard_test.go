package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/datastorerpc"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
)

// A sweep logs how it checks deletes, and refuses some guards.
func TestGuardSaysWhatItCosts(t *testing.T) {
	noRaces(t)
	b, _, _ := newDatastore(t, `targets:
  - name: plain
    kind: A
    single_valued: true
  - name: lists
    kind: B
`)
	log := b.must(nil, "sweep", "--log-format", "json").log
	for _, want := range []struct {
		target string
		parts  []string
	}{
		{"plain", []string{"checked by lookup: a read for each", "the emulator blocks parallel range queries in transactions"}},
		{"lists", []string{"checked by lookup: a read for each", "single_valued is false", "single_valued: true saves the reads"}},
	} {
		said := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"target":"`+want.target+`"`) && strings.Contains(line, "checked by") {
				said++
				for _, part := range want.parts {
					if !strings.Contains(line, part) {
						t.Errorf("%s: %s does not say %q", want.target, line, part)
					}
				}
			}
		}
		if said != 1 {
			t.Errorf("%s: said %d times in\n%s", want.target, said, log)
		}
	}
	for what, c := range map[string]struct {
		fields string
		parts  []string
	}{
		"query on timestamps": {"layout: timestamp\n    property: at\n    guard: query\n    single_valued: true",
			[]string{"reaper.yaml:6:12: targets[0].guard", "show timestamps as numbers", "write auto or lookup"}},
		"query without the promise": {"guard: query",
			[]string{"reaper.yaml:4:12: targets[0].guard", "needs single_valued: true"}},
		"none": {"guard: none",
			[]string{"reaper.yaml:4:12: targets[0].guard", "entities that were extended since it read them", "Write auto"}},
	} {
		b.write("reaper.yaml", "targets:\n  - name: t\n    kind: T\n    "+c.fields+"\n")
		r := b.run(nil, "sweep", "--apply")
		if r.code != exitUsage {
			t.Errorf("%s: exit code %d", what, r.code)
		}
		for _, part := range c.parts {
			if !strings.Contains(r.log, part) {
				t.Errorf("%s: %s does not say %q", what, r.log, part)
			}
		}
	}
}

// A database of the mode optimistic with entity groups takes 25 entities at once: load
// learns that and continues.
func TestLoadWithEntityGroups(t *testing.T) {
	e := emulator.Start(t, emulator.Datastore)
	faults := new(faultrpc.Injector)
	o := datastore.Options{Project: e.Project(t), Emulator: e.Host}
	o.Interceptors = append(o.Interceptors, faults.Intercept)
	db, err := datastore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, f := range datastorerpc.EntityGroups() {
		faults.Add(f)
	}
	targets, err := config.ParseTargets("reaper.yaml", strings.NewReader("targets: [{name: sessions, kind: Session}]"), config.Datastore)
	if err != nil {
		t.Fatal(err)
	}
	var input strings.Builder
	for i := range 110 {
		fmt.Fprintf(&input, "{\"id\": \"s-%03d\", \"expires\": \"2026-11-21T00:07:30Z\"}\n", i)
	}
	l := &loader{now: time.Now, store: db, target: targets[0], log: slog.New(slog.DiscardHandler),
		writer: layoutWriter{sweepTarget(targets[0]), always(generation.Stamper{Shards: 16})}}
	if err := l.run(t.Context(), newLineReader(strings.NewReader(input.String()))); err != nil {
		t.Fatal(err)
	}
	n, err := db.Count(t.Context(), targets[0].StoreTarget(), "", store.Span{}, 0)
	if err != nil || n != 110 || l.res.Written != 110 {
		t.Errorf("%d of 110 are there, %d counted, %v", n, l.res.Written, err)
	}
	if commits := len(faults.Calls("Commit")); commits != 6 { // one refused, then 25 four times and 10
		t.Errorf("%d commits", commits)
	}
}
