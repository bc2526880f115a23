package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
)

// While a target moves to expiry keys, two targets sweep its entities. What a restore brings back would be deleted again
// by the other one.
func TestRestoreDuringAMigration(t *testing.T) {
	t.Parallel()
	archived := "    archive: {mode: full, to: \"file://%s\"}\n"
	old := fmt.Sprintf(migrationOld, "timestamp\n    property: expires")
	b := newEmbedded(t, "targets:\n"+old+migrationNew)
	both := "targets:\n" + old + migrationNew + fmt.Sprintf(archived, b.dir+"/archive")
	b.write("reaper.yaml", both)
	ndjson, live := sessions(20, time.Now())
	b.must(strings.NewReader(ndjson), "load", "--target", "sessions")
	b.adopts("sessions-keys", "--apply")
	if res := b.result(b.must(nil, "sweep", "--json", "--target", "sessions-keys", "--apply").out); res.Targets[0].Deleted != 10 {
		t.Fatalf("%+v", res)
	}
	restore := []string{"restore", "sessions-keys", "--since", "1h", "--apply", "--reason", "a test"}
	for flag, want := range map[string]string{
		"--expire-in=7d": "10 of 10 by property expires of target sessions",
		"--no-expiry":    "target sessions-keys is being adopted",
	} {
		if r := b.run(nil, append(restore, flag)...); r.code != exitUsage || !strings.Contains(r.log, want) {
			t.Errorf("%s: exit code %d: %s", flag, r.code, r.log)
		}
	}
	b.wantLive(live)
	b.write("reaper.yaml", strings.Replace(both, old, "", 1))
	r := b.run(nil, append(restore, "--expire-in=7d")...)
	if r.code != exitDone || len(b.dumped("--target", "sessions-keys")) != 20 || !strings.Contains(r.out, "its rule disagrees") {
		t.Errorf("without the other target: exit code %d: %s%s", r.code, r.out, r.log)
	}
}

// A target of the embedded store moves to expiry keys: from timestamps in shards, from plain
// ones, and from keys in another property. Both targets sweep the same entities until the old
// one is taken out. In the end exactly the expired ones are gone, and undo on the way leaves
// everything as it was.
func TestMigrationOnTheEmbeddedStore(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	for path, layout := range map[string]string{
		"timestamp":         "timestamp\n    property: expires",
		"sharded-timestamp": "sharded-timestamp\n    property: expires\n    shard_values: [a, b]",
		"key":               "sharded\n    shards: 4\n    property: expires",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			both := "targets:\n" + fmt.Sprintf(migrationOld, layout) + migrationNew
			b := newEmbedded(t, both)
			ndjson, live := sessions(300, time.Now())
			b.must(strings.NewReader(ndjson), "load", "--target", "sessions")
			before := b.dumped("--target", "sessions")
			dry := b.adopts("sessions-keys")
			if dry.Counts[adopt.Unstamped] != 300 || dry.Counts[adopt.Mistyped] != 0 {
				t.Errorf("the dry run: %+v", dry.Counts)
			}
			stamp := func() {
				t.Helper()
				if res := b.adopts("sessions-keys", "--apply"); res.Stamped != 300 || res.Counts[adopt.Refused] != 0 {
					t.Errorf("%+v", res)
				}
				if n := len(b.dumped("--target", "sessions-keys")); n != 300 || !maps.Equal(before, b.dumped("--target", "sessions")) {
					t.Errorf("after the adoption: %d entities", n)
				}
			}
			stamp()
			if res := b.adopts("undo", "sessions-keys", "--apply"); res.Removed != 300 || !maps.Equal(before, b.dumped("--target", "sessions")) {
				t.Errorf("undo does not leave the entities as they were: %+v", res)
			}
			stamp()
			b.adopts("finish", "sessions-keys", "--apply")
			if r := b.run(nil, "sweep", "--target", "sessions"); !strings.Contains(r.log, "target superseded") {
				t.Errorf("the old target: %s", r.log)
			}
			b.write("reaper.yaml", "targets:\n"+strings.Split(migrationNew, "    adopt:")[0])
			if res := b.sweep("--apply"); res.Deleted != int64(300-len(live)) || res.Malformed+res.Outside+res.Conflicts != 0 {
				t.Errorf("the sweep by keys: %+v", res)
			}
			b.wantLive(live)
			// The old target meets nothing that the new one has deleted.
			b.write("reaper.yaml", both)
			if res := b.result(b.must(nil, "sweep", "--json", "--target", "sessions").out).Targets[0]; res.Expired != 0 {
				t.Errorf("the old target finds %+v", res)
			}
		})
	}
}
