package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

// newFirestore returns a working directory on a fresh project of the emulator.
func newFirestore(t *testing.T, targets string) (b *workdir, e *emulator.Emulator, project string) {
	e = emulator.Start(t, emulator.Native)
	project = e.Project(t)
	b = newWorkdir(t, targets)
	b.env = []string{"FIRESTORE_EMULATOR_HOST=" + e.Host, "REAPER_STORE=firestore:" + project}
	return b, e, project
}

// layoutTargets is a targets file for each layout.
var layoutTargets = map[config.Layout]string{
	config.LayoutGeneration:       "targets:\n- {name: sessions, kind: Session, shards: 4, layout: generation}\n",
	config.LayoutSharded:          "targets:\n- {name: sessions, kind: Session, shards: 4, layout: sharded}\n",
	config.LayoutTimestamp:        "targets:\n- {name: sessions, kind: Session, layout: timestamp, property: expires}\n",
	config.LayoutShardedTimestamp: "targets:\n- {name: sessions, kind: Session, layout: sharded-timestamp, property: expires, shard_values: [3, 1, 2, -7]}\n",
}

// onEachStoreAndLayout runs a test in a working directory for each.
func onEachStoreAndLayout(t *testing.T, test func(t *testing.T, b *workdir, layout config.Layout)) {
	for layout, targets := range layoutTargets {
		if testing.Short() && layout != config.LayoutShardedTimestamp {
			continue
		}
		t.Run("embedded "+string(layout), func(t *testing.T) { test(t, newEmbedded(t, targets), layout) })
		t.Run("datastore "+string(layout), func(t *testing.T) {
			b, _, _ := newDatastore(t, targets)
			test(t, b, layout)
		})
		t.Run("firestore "+string(layout), func(t *testing.T) {
			b, _, _ := newFirestore(t, targets)
			test(t, b, layout)
		})
	}
}

// load, dump, status and sweep work with every store and layout.
func TestEveryCommandInEveryLayout(t *testing.T) {
	nightly.Races(t)
	t.Parallel()
	ranges := map[config.Layout]int{config.LayoutGeneration: 8, config.LayoutSharded: 4, config.LayoutTimestamp: 1, config.LayoutShardedTimestamp: 4}
	onEachStoreAndLayout(t, func(t *testing.T, b *workdir, layout config.Layout) {
		ndjson, live := sessions(600, time.Now())
		b.must(strings.NewReader(ndjson+`{"id":"for ever","data":{"a":[1,2.5,{"b":null}]}}`+"\n"), "load")
		live[`"for ever"`] = true
		before := b.dumped()
		dry := b.sweep()
		if dry.Expired != 300 || dry.Deleted != 0 || dry.Outside != 0 || dry.Operations.Writes+dry.Operations.Deletes != 0 {
			t.Errorf("dry run: %+v", dry)
		}
		due := b.status()
		res := b.sweep("--apply")
		if res.Deleted != 300 || !res.Complete || res.Malformed+res.Suspect+res.Outside+res.Conflicts != 0 || res.Ranges != ranges[layout] {
			t.Errorf("sweep: %+v", res)
		}
		b.wantLive(live)
		for id, text := range b.dumped() {
			if before[id] != text {
				t.Errorf("%s changed from %s to %s", id, before[id], text)
			}
			if strings.Contains(text, `"key"`) == (id == `"for ever"`) {
				t.Errorf("dump prints %s", text)
			}
		}
		if second := b.sweep("--apply"); second.Scanned != 0 || second.Operations.Writes > int64(second.Ranges) || second.Operations.Deletes != 0 {
			t.Errorf("second sweep: %+v", second)
		}
		st := b.status()
		if due.OldestDue == nil || st.OldestDue != nil || st.LastSweep == nil || len(st.Ranges) != ranges[layout] || st.Layout != layout {
			t.Errorf("status: %+v, %+v", due, st)
		}
		text := b.must(nil, "status", "--all").out
		if !strings.Contains(text, "nothing is due") || strings.Contains(text, "  opened ") != (layout == config.LayoutGeneration || layout == config.LayoutSharded) {
			t.Errorf("status prints\n%s", text)
		}
		// What dump prints, load reads again, into the same shards.
		var again strings.Builder
		for _, text := range b.dumped() {
			again.WriteString(text)
		}
		var unloaded line
		if err := json.Unmarshal([]byte(strings.SplitN(again.String(), "\n", 2)[0]), &unloaded); err != nil {
			t.Fatal(err)
		}
		lines := strings.ReplaceAll(again.String(), `,"key":`, `,"data_key":`)
		if r := b.run(strings.NewReader(lines), "load"); r.code != exitUsage || !strings.Contains(r.log, "data_key") {
			t.Errorf("an unknown field is taken: %d, %s", r.code, r.log)
		}
		b.must(strings.NewReader(again.String()), "load")
		b.wantLive(live)
	})
}

// Thousands of documents have the same timestamp, and a sweep is killed twice in the middle
// of them: all are deleted and none is skipped.
func TestKilledTwiceAtOneInstant(t *testing.T) {
	t.Parallel()
	n := nightly.Size(t, 3000, 900)
	at := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	var ndjson strings.Builder
	for i := range n {
		fmt.Fprintf(&ndjson, `{"id":"s-%04d","expires":%q}`+"\n", i, at)
	}
	ndjson.WriteString(`{"id":"live","expires":"2999-01-01T00:00:00Z"}`)
	targets := fmt.Sprintf("targets:\n- {name: sessions, kind: Session, layout: timestamp, property: expires, "+
		"lease: 3s, page: %d, pace: {max: %d}}\n", n/6, n/5)
	for _, store := range []string{"firestore", "datastore", "embedded"} {
		if testing.Short() && store != "firestore" {
			continue
		}
		t.Run(store, func(t *testing.T) {
			t.Parallel() // the emulator keeps the locks of a killed process for a minute
			var b *workdir
			switch store {
			case "firestore":
				b, _, _ = newFirestore(t, targets)
			case "datastore":
				b, _, _ = newDatastore(t, targets)
			default:
				b = newEmbedded(t, targets)
			}
			b.must(strings.NewReader(ndjson.String()), "load")
			left := n
			for kills, tries := 0, 0; kills < 2; tries++ {
				killed := b.killAfter(n/30, 0)
				now := len(b.dumped()) - 1
				if now == 0 || tries == 30 {
					t.Fatalf("%d are left after %d tries, and %d sweeps were killed in the middle", now, tries, kills)
				}
				if killed {
					kills++
					if now == left && store != "embedded" { // whose last second of deletes was in memory
						t.Errorf("a sweep that was killed after its first page went from %d to %d", left, now)
					}
				}
				left = now
			}
			if deleted := b.sweepToEnd(); deleted > int64(left) {
				t.Errorf("the last sweeps deleted %d of %d", deleted, left)
			}
			b.wantLive(map[string]bool{`"live"`: true})
		})
	}
}

// Documents of a group lie anywhere, and load puts them below the parent named.
func TestCollectionGroup(t *testing.T) {
	nightly.Races(t)
	b, _, project := newFirestore(t, "targets:\n- {name: items, kind: items, group: true, layout: timestamp, property: expires}\n")
	var ndjson strings.Builder
	for i := range 500 {
		expires := "2026-01-01T00:00:00Z"
		if i%5 == 0 {
			expires = "2999-01-01T00:00:00Z"
		}
		fmt.Fprintf(&ndjson, `{"parent":"users/u%02d","id":"i-%03d","expires":%q}`+"\n", i%50, i, expires)
	}
	ndjson.WriteString(`{"id":"at the root","expires":"2026-01-01T00:00:00Z"}` + "\n" + `{"parent":"a/b/c/d","id":"i-001","expires":"2999-01-01T00:00:00Z"}`)
	b.must(strings.NewReader(ndjson.String()), "load")
	// Another collection, which is not part of the group.
	b.write("other.yaml", "targets:\n- {name: other, kind: users/u01/other, layout: timestamp, property: expires}\n")
	b.must(strings.NewReader(`{"id":"x","expires":"2026-01-01T00:00:00Z"}`), "load", "--config", "other.yaml")

	res := b.sweep("--apply")
	left := b.dumped()
	if res.Deleted != 401 || !res.Complete || len(left) != 101 || !strings.Contains(left[`users/u00"i-000"`], `"parent":"users/u00"`) {
		t.Errorf("%d left, sweep: %+v", len(left), res)
	}
	if got := b.dumped("--config", "other.yaml"); len(got) != 1 {
		t.Errorf("the other collection has %d documents", len(got))
	}
	// (default) is the default database's name, and a named one is another.
	if got := b.dumped("--store", "firestore:"+project+"/(default)"); len(got) != 101 {
		t.Errorf("(default) has %d documents", len(got))
	}
	if got := b.dumped("--store", "firestore:"+project+"/second"); len(got) != 0 {
		t.Errorf("another database has %d documents", len(got))
	}
	for text, want := range map[string]string{
		`{"id":"x","parent":"users"}`:  "even number of segments",
		`{"id":"x","parent":"users/"}`: "is not the path of a document",
		`{"id":"a/b"}`:                 "no document can have the id",
	} {
		if r := b.run(strings.NewReader(text), "load"); r.code != exitUsage || !strings.Contains(r.log, want) {
			t.Errorf("%s: exit code %d, %s", text, r.code, r.log)
		}
	}
}

// If no entity has the property, or it holds other values than the layout expects, there is
// a warning, nothing is deleted, and the exit code is 0.
func TestLayoutThatDoesNotFit(t *testing.T) {
	noRaces(t)
	for _, c := range []struct {
		name, target, warning string
		outside               int64
	}{
		{"no such property", "{name: other, kind: Session, layout: timestamp, property: nowhere}", "nothing will ever be deleted", 0},
		{"keys for timestamps", "{name: other, kind: Session, layout: timestamp, property: expiry_key}", "nothing will ever be deleted", 40},
		{"no shards", "{name: other, kind: Session, layout: sharded-timestamp, property: expiry_key, shard_values: [x]}", "nothing will ever be deleted", 0},
		{"another key property", "{name: other, kind: Session, property: expires_at}", "nothing will be deleted", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, _, _ := newFirestore(t, oneTarget)
			ndjson, _ := sessions(40, time.Now())
			b.must(strings.NewReader(ndjson), "load")
			b.write("other.yaml", "targets:\n- "+c.target+"\n")
			r := b.must(nil, "sweep", "--apply", "--json", "--config", "other.yaml", "--log-format", "text")
			res := b.result(r.out).Targets[0]
			if !strings.Contains(r.log, c.warning) || res.Deleted != 0 || res.Outside != c.outside || !res.EmptyIndex || !res.Complete {
				t.Errorf("%+v\n%s", res, r.log)
			}
			if got := b.dumped(); len(got) != 40 {
				t.Errorf("%d left", len(got))
			}
		})
	}
	// Timestamps where keys are configured.
	b, _, _ := newFirestore(t, layoutTargets[config.LayoutTimestamp])
	ndjson, _ := sessions(40, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	b.write("other.yaml", "targets:\n- {name: other, kind: Session, property: expires}\n")
	r := b.must(nil, "sweep", "--apply", "--json", "--config", "other.yaml", "--log-format", "text")
	if res := b.result(r.out).Targets[0]; res.Outside != 40 || res.Deleted != 0 || !strings.Contains(r.log, "nothing will be deleted") {
		t.Errorf("%+v\n%s", res, r.log)
	}
}

func TestWrongLayouts(t *testing.T) {
	noRaces(t)
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "%d, ", i)
	}
	for target, want := range map[string]string{
		"{name: a, kind: users/u1}":                                                                          "an odd number",
		"{name: a, kind: users/u1/items, group: true}":                                                       "a collection group is named by its last segment alone",
		"{name: a, kind: A, layout: sharded-timestamp, property: at, shard_values: [x, y, x]}":               "x",
		"{name: a, kind: A, layout: sharded-timestamp, property: at, shard_values: [" + many.String() + "]}": "9999",
		"{name: a, kind: A, layout: sharded-timestamp, property: at, shard_values: [1, x]}":                  "shard_values",
		"{name: a, kind: A, layout: sharded-timestamp, property: at}":                                        "shard_values is missing",
		"{name: a, kind: A, layout: timestamp}":                                                              "property is missing",
		"{name: a, kind: A, layout: sharded-timestamp, property: shard, shard_values: [x]}":                  "are both",
		"{name: a, kind: A, layout: timestamp, property: at, namespaces: [x]}":                               "namespaces exist in datastore stores only",
		"{name: a, kind: A, layout: timestamp, property: at, shards: 3}":                                     "does not use it",
	} {
		b := newWorkdir(t, "targets:\n- "+target+"\n")
		b.env = []string{"REAPER_STORE=firestore:my-project", "FIRESTORE_EMULATOR_HOST=127.0.0.1:1"}
		if r := b.run(nil, "sweep", "--apply"); r.code != exitUsage || !strings.Contains(r.log, want) {
			t.Errorf("%.100s: exit code %d, %.300s", target, r.code, r.log)
		}
	}
	b := newEmbedded(t, layoutTargets[config.LayoutShardedTimestamp])
	for text, want := range map[string]string{
		`{"id":"x","shard":9}`:                                "shard: 9 is not one of the target's shard_values",
		`{"id":"x","shard":1.5}`:                              "neither a string nor an integer",
		`{"id":"x","data":{"shard":1}}`:                       "which only shard may set",
		`{"id":"x","data":{"expires":1}}`:                     "which only expires may set",
		`{"id":"x","parent":"a/b"}`:                           "only documents of a collection group",
		`{"id":"x","expires":"9999-12-31T23:59:59.9999999Z"}`: "the year 10000",
	} {
		if r := b.run(strings.NewReader(text), "load"); r.code != exitUsage || !strings.Contains(r.log, want) {
			t.Errorf("%s: exit code %d, %s", text, r.code, r.log)
		}
	}
	if r := b.run(nil, "stamp", "--target", "sessions", "x", "7d"); r.code != exitUsage || !strings.Contains(r.log, "carry a timestamp") {
		t.Errorf("stamp: exit code %d, %s", r.code, r.log)
	}
}

// The zero time is an instant like any other; it does not mean never.
func TestYearOneIsAnInstant(t *testing.T) {
	onEachStoreAndLayout(t, func(t *testing.T, b *workdir, _ config.Layout) {
		const first = "0001-01-01T00:00:00Z"
		b.must(strings.NewReader(`{"id":"first","expires":"`+first+`"}`+"\n"+`{"id":"never"}`+"\n"), "load")
		if out := b.must(nil, "dump").out; !strings.Contains(out, `"id":"first","expires":"0001-01-01T00:00:00.000Z"`) || strings.Count(out, `"expires"`) != 1 {
			t.Errorf("%s", out)
		}
		var x inspect.Explanation
		if err := json.Unmarshal([]byte(b.must(nil, "explain", "--json", "first").out), &x); err != nil || x.Verdict != "suspect" || x.Expires == nil || x.Expires.Format(time.RFC3339) != first {
			t.Errorf("%+v, %v", x, err)
		}
	})
}
