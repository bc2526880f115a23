package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
)

// What an operator tries is answered with what is true. Each of these tests is one thing
// that was tried, and what was said then was wrong or missing. saidserving_test.go tries some
// of it again while reaper serve runs. Others stand with what they are about:
// TestPauseInTheWrongStore, TestDryRunIsPaced (package sweep), TestSharedEntities (package
// config).

// says reports an error unless a text matches all patterns.
func says(t *testing.T, what, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(text) {
			t.Errorf("%s does not say %q:\n%s", what, p, text)
		}
	}
}

// keyed returns NDJSON of entities that expire at an instant.
func keyed(n int, at time.Time) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":"s-%d","expires":%q}`+"\n", i, at.UTC().Format(time.RFC3339))
	}
	return b.String()
}

const instantText = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`

// Three thousand entities are restamped to yesterday: it was said that nothing is due, and
// all of them went at the next rewind.
func TestSaidOfWhatIsRestamped(t *testing.T) {
	noRaces(t)
	for name, n := range map[string]int{"embedded": 3000, "datastore": 300} {
		t.Run(name, func(t *testing.T) {
			b := newEmbedded(t, oneTarget)
			if name == "datastore" {
				b, _, _ = newDatastore(t, oneTarget)
			}
			b.must(strings.NewReader(keyed(n, time.Now().Add(-time.Minute))), "load")
			b.must(nil, "sweep", "--apply") // so that each range has a cursor
			b.must(strings.NewReader(keyed(n, time.Now().Add(-24*time.Hour))), "load")
			count := grouped(int64(n))
			says(t, "status --all", b.must(nil, "status", "--all").out, `behind +`+count+`, gone by the first sweep after `+instantText)
			says(t, "a dry run", b.must(nil, "sweep").out, `sessions +0 +0 `, `behind the cursors: `+count+`, by the first sweep after `+instantText)
			says(t, "explain", b.must(nil, "explain", "s-7").out, `written behind its range's cursor`, `by the first sweep after `+instantText)
			exact := b.sweep("--exact")
			if exact.Expired != 0 || exact.BehindCursors == nil || *exact.BehindCursors != int64(n) || exact.Estimated {
				t.Errorf("%+v", exact)
			}
			if res := b.sweep("--apply"); res.Deleted != 0 || res.BehindCursors != nil {
				t.Errorf("the next sweep: %+v", res)
			}
			if res := b.sweep("--from-start", "--apply"); res.Deleted != int64(n) || !res.Complete ||
				res.BehindCursors == nil || *res.BehindCursors != 0 {
				t.Errorf("from the start: %+v", res)
			}
		})
	}
}

// A misspelt property, and a misspelt kind, of a target that was swept before: nothing was
// said for up to a day.
func TestSaidOfAMisspeltTarget(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(keyed(10, time.Now().Add(-time.Minute))), "load")
	b.must(nil, "sweep", "--apply")
	b.must(strings.NewReader(keyed(10, time.Now().Add(time.Hour))), "load")
	b.write("reaper.yaml", oneTarget+"    property: expires_at\n")
	r := b.must(nil, "sweep")
	says(t, "the log", r.log, `target changed`, `"property":"expires_at","before_property":"expiry_key"`, `not one of them has an entry in any range`)
	says(t, "a dry run", r.out, `none has an entry in any range: check the property's name and index`)
	if res := b.sweep("--apply"); !res.EmptyIndex || res.EmptyKind {
		t.Errorf("with the property misspelt: %+v", res)
	}
	says(t, "status", b.must(nil, "status").out, `^sessions: IDLE, it holds entities, but none has an entry in any range`)
	says(t, "status --json", b.must(nil, "status", "--json").out, `"empty_index": true`, `"empty_kind": false`)
	b.write("reaper.yaml", strings.Replace(oneTarget, "kind: Session", "kind: Sesion", 1))
	r = b.must(nil, "sweep")
	says(t, "the log", r.log, `target changed`, `"kind":"Sesion","before_kind":"Session"`)
	says(t, "a dry run", r.out, `its kind holds no entity: if there should be some`)
	for range 2 { // also if no look around is due
		if res := b.sweep("--apply"); res.EmptyIndex || !res.EmptyKind || !res.Complete {
			t.Errorf("with the kind misspelt: %+v", res)
		}
	}
	says(t, "status", b.must(nil, "status").out, `^sessions: IDLE, nothing is due: its kind Sesion holds no entity`)
	says(t, "status --json", b.must(nil, "status", "--json").out, `"empty_index": false`, `"empty_kind": true`)
}

// A gate by a misspelt URL was taken for a file that does not exist, and so for open.
func TestSaidOfAMisspeltGate(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(keyed(10, time.Now().Add(-time.Minute))), "load")
	for _, gate := range []string{"htps://gate.example", "ftp://gate.example"} {
		b.write("reaper.yaml", oneTarget+"    pace: {gate: \""+gate+"\"}\n")
		for _, command := range [][]string{{"sweep", "--apply"}, {"serve", "--apply"}, {"status"}} {
			r := b.run(nil, command...)
			if says(t, gate, r.log, `reaper.yaml:5:\d+: .*is not a valid gate: write an http:// or https:// URL`); r.code != exitUsage || r.out != "" {
				t.Errorf("%s: exit code %d: %s", gate, r.code, r.out)
			}
		}
	}
	b.write("reaper.yaml", oneTarget)
	if left := len(b.dumped()); left != 10 {
		t.Errorf("%d of 10 are left", left)
	}
}

// A target is paused: a dry run and explain foretold what the next sweep would delete.
func TestSaidUnderAPause(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(keyed(10, time.Now().Add(-time.Minute))), "load")
	b.must(nil, "pause", "--reason", "a restore", "--actor", "ann")
	says(t, "status", b.must(nil, "status").out, `^sessions: PAUSED, by ann until reaper resume`, `a restore`)
	for _, args := range [][]string{{"sweep"}, {"sweep", "--exact"}, {"sweep", "--from-start"}} {
		says(t, strings.Join(args, " "), b.must(nil, args...).out, `sessions +10 +10 `,
			`held: paused by ann \(a restore\): with --apply nothing would be deleted`)
	}
	says(t, "explain", b.must(nil, "explain", "s-7").out, `nothing is deleted while the target is paused, by ann`)
	says(t, "a sweep", b.must(nil, "sweep", "--apply").out, `held: paused by ann \(a restore\): nothing was deleted`)
	if res := b.sweep("--from-start", "--apply"); res.Deleted != 0 || res.Held != "paused" || res.Complete {
		t.Errorf("%+v", res)
	}
}

// A gate is closed: a dry run says that nothing would be deleted.
func TestSaidBehindAClosedGate(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget+"    pace: {gate: ./closed}\n")
	b.must(strings.NewReader(keyed(10, time.Now().Add(-time.Minute))), "load")
	b.write("closed", "")
	says(t, "a dry run", b.must(nil, "sweep").out, `sessions +10 +10 `, `held: gate: with --apply nothing would be deleted`)
	says(t, "status", b.must(nil, "status").out, `^sessions: HELD`)
}

// The property of an entity is excluded from indexes: it was said that the next sweep
// deletes it.
func TestSaidOfAnUnindexedProperty(t *testing.T) {
	noRaces(t)
	b, e, project := newDatastore(t, oneTarget)
	client := datastoreClient(t, e, project)
	for name, hidden := range map[string]bool{"hidden": true, "shown": false} {
		props := sdk.PropertyList{{Name: "expiry_key", Value: "00000000.0003.20250101T000000.000Z", NoIndex: hidden}}
		if _, err := client.Put(t.Context(), sdk.NameKey("Session", name, nil), &props); err != nil {
			t.Fatal(err)
		}
	}
	says(t, "explain", b.must(nil, "explain", "hidden").out, `its property expiry_key is not indexed: no sweep ever sees it`)
	says(t, "explain", b.must(nil, "explain", "shown").out, `the next sweep deletes it`)
	said := b.sweep("--exact")
	if did := b.sweep("--from-start", "--apply"); said.Expired != 1 || did.Deleted != 1 || len(b.dumped()) != 1 {
		t.Errorf("said %+v, did %+v", said, did)
	}
}

// Two targets on one kind and property were accepted, and the shorter retention won.
func TestSaidOfTwoTargetsOnOneKind(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget+"    retention: 30d\n  - name: others\n    kind: Session\n    retention: 0s\n")
	r := b.run(nil, "sweep", "--apply")
	if says(t, "the error", r.log, `sessions`, `others`, `expire the same entities`); r.code != exitUsage {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
}

// An entity of the year 2999 was due in 2562047h47m16.854775807s, the longest duration.
func TestSaidOfTheYear2999(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"s-1","expires":"2999-01-01T00:00:00Z"}`), "load")
	says(t, "explain", b.must(nil, "explain", "s-1").out, `it is due in 9\d\d years`)
}

// A dry run names what is kept, and refuses orders that contradict each other.
func TestSaidOfWhatIsKept(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	var lines strings.Builder
	for i := range 5 {
		fmt.Fprintf(&lines, `{"id":"old-%d","expires":"1999-01-0%dT00:00:00Z"}`+"\n", i, i+1)
	}
	b.must(strings.NewReader(lines.String()), "load")
	says(t, "a dry run", b.must(nil, "sweep").out, `kept 5 suspect`, `sessions: suspect, for example: old-\d, old-\d, old-\d\n`)
	if r := b.run(nil, "sweep", "--exact", "--apply"); r.code != exitUsage || !strings.Contains(r.log, "--exact is for dry runs") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
	b.write("reaper.yaml", oneTarget+"    layout: timestamp\n    property: expiry_key\n")
	says(t, "a dry run that looks for timestamps", b.must(nil, "sweep").out, `outside, for example: old-\d, old-\d, old-\d\n`)
}

// A number of a dry run that was partly counted begins with a ~. If no more than ten thousand are due, it
// checks all of them.
func TestSaidOfWhatIsEstimated(t *testing.T) {
	noRaces(t)
	for n, about := range map[int]string{3_000: "", 10_001: "~"} {
		b := newEmbedded(t, strings.Replace(oneTarget, "kind: Session", "kind: Session\n    shards: 2", 1))
		b.must(strings.NewReader(keyed(n, time.Now().Add(-time.Hour))), "load")
		number := about + grouped(int64(n))
		out := b.must(nil, "sweep").out
		says(t, "a dry run", out, `sessions +`+number+` +`+number+` `)
		if strings.Contains(out, "--exact checks all") != (about != "") {
			t.Errorf("%d are due: %s", n, out)
		}
		res := b.sweep()
		if res.Expired != int64(n) || res.Estimated != (about != "") || about == "" && res.Scanned != int64(n) {
			t.Errorf("%d are due: %+v", n, res)
		}
	}
}
