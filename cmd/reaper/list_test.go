package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/junk"
)

// kept lists what sweeps keep for a reason.
func (b *workdir) kept(reason inspect.Kept, args ...string) inspect.KeptList {
	b.t.Helper()
	r := b.must(nil, append([]string{"list", "--json", "--kept", string(reason)}, args...)...)
	var res keptResult
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&res); err != nil || d.More() || len(res.Targets) != 1 {
		b.t.Fatalf("stdout is not one JSON document of one target: %v\n%s", err, r.out)
	}
	if !strings.Contains(r.log, "looked for kept entities") || !strings.Contains(r.log, "reads") {
		b.t.Errorf("the log does not say what the look cost: %s", r.log)
	}
	return res.Targets[0]
}

func TestListOnTheEmbeddedStore(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, oneTarget)
	b.must(strings.NewReader(`{"id":"old","expires":"2001-01-01T00:00:00Z"}`+"\n"+
		`{"id":"live","expires":"2999-01-01T00:00:00Z"}`+"\n"+`{"id":"due","expires":"2026-01-01T00:00:00Z"}`+"\n"), "load")
	b.sweep("--apply")
	list := b.kept(inspect.KeptSuspect)
	if len(list.Entities) != 1 || list.Entities[0].ID != "old" || list.More || list.Reads == 0 {
		t.Errorf("%+v", list)
	}
	for _, reason := range []inspect.Kept{inspect.KeptMalformed, inspect.KeptOutside, inspect.KeptRefused} {
		if list := b.kept(reason); len(list.Entities) != 0 || list.More || list.Entities == nil {
			t.Errorf("%+v", list)
		}
	}
	if text := b.must(nil, "list", "--kept", "suspect").out; !strings.Contains(text, "sessions, kept as suspect: 1\n  \"old\" in range 00000001.") ||
		!strings.Contains(text, "\n    expiry_key = 00000001.") || !strings.Contains(text, "implausible") {
		t.Errorf("%s", text)
	}
	// One that was written behind the cursor, into the range of one that was deleted, is still there.
	b.must(strings.NewReader(`{"id":"due","expires":"2026-01-01T00:00:00Z"}`+"\n"+`{"id":"old 2","expires":"2001-01-01T00:00:00Z"}`+"\n"), "load")
	if list := b.kept(inspect.KeptRefused); len(list.Entities) != 1 || list.Entities[0].ID != "due" {
		t.Errorf("%+v", list)
	}
	if text := b.must(nil, "status").out; !strings.Contains(text, "BEHIND, 1 lies behind the cursors, written late or refused; the read from the start") ||
		!strings.Contains(text, "\n  behind       1, gone by the first sweep after 20") {
		t.Errorf("%s", text)
	}
	if text := b.must(nil, "status", "--json").out; !strings.Contains(text, `"behind": 1,`) {
		t.Errorf("%s", text)
	}
	if text := b.must(nil, "list", "--kept", "suspect", "--limit", "1").out; !strings.Contains(text, "there may be more: the list ends at its limit of 1") {
		t.Errorf("%s", text)
	}
	for _, args := range [][]string{{}, {"--kept", "live"}, {"--kept", "suspect", "--limit", "0"}, {"--kept", "suspect", "x"}, {"--kept", "suspect", "--target", "nobody"}} {
		if r := b.run(nil, append([]string{"list"}, args...)...); r.code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.log)
		}
	}
}

// Whatever the property holds, in either mode and any layout: list names each entity that a
// sweep keeps, for one reason, except live ones and those without an expiry.
func TestListNamesAllJunk(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	check := func(t *testing.T, b *workdir, layout config.Layout, wrote map[string]junk.What) {
		t.Helper()
		due, live, old := junk.DueInstant, junk.LiveInstant, junk.AncientInstant
		if layout.Uses("shards") {
			due, live, old = junk.DueKey, junk.LiveKey, junk.AncientKey
		}
		res := b.sweep("--apply")
		got := map[string]inspect.Kept{}
		for _, reason := range []inspect.Kept{inspect.KeptMalformed, inspect.KeptOutside, inspect.KeptSuspect} {
			list := b.kept(reason, "--limit", "1000")
			n := map[inspect.Kept]int64{inspect.KeptMalformed: res.Malformed, inspect.KeptOutside: res.Outside, inspect.KeptSuspect: res.Suspect}[reason]
			t.Logf("%s: %d listed, %d counted, %d reads", reason, len(list.Entities), n, list.Reads)
			if list.More {
				t.Errorf("%s: %s", reason, list.MoreWhy)
			}
			for _, e := range list.Entities {
				got[e.ID] = reason
				if reason == inspect.KeptSuspect && wrote[e.ID] != old {
					t.Errorf("suspect: %+v", e)
				}
				if e.Why == "" || e.Type == "" || e.Value == "" && e.ID != "text: empty" && e.Type != "other" {
					t.Errorf("%+v", e)
				}
			}
		}
		var want []string
		for name, what := range wrote {
			switch {
			case what == due, what == live, what == junk.Never:
			case what == junk.Unindexed:
				delete(got, name) // no index has it; a list that reads entities one by one may
			case layout.Uses("shards") && name == "text: lower case":
				delete(got, name) // sorts after the keys of its day, which may be yesterday
			default:
				want = append(want, name)
			}
		}
		slices.Sort(want)
		for _, name := range want {
			if got[name] == "" {
				t.Errorf("%s (%s) is not listed", name, wrote[name])
			}
			delete(got, name)
		}
		if len(got) > 0 {
			t.Errorf("listed, too: %q", slices.Sorted(maps.Keys(got)))
		}
		if list := b.kept(inspect.KeptRefused); len(list.Entities) != 0 {
			t.Errorf("refused: %+v", list)
		}
	}
	for layout, targets := range map[config.Layout]string{
		config.LayoutSharded:          "targets:\n- {name: a, kind: Session, shards: 4, layout: sharded, property: expires}\n",
		config.LayoutTimestamp:        "targets:\n- {name: a, kind: Session, layout: timestamp, property: expires}\n",
		config.LayoutShardedTimestamp: "targets:\n- {name: a, kind: Session, layout: sharded-timestamp, property: expires, shard_values: [7, 8]}\n",
	} {
		o := junk.Options{Kind: "Session", Property: "expires", Extra: map[string]int64{"shard": 7}, Now: time.Now()}
		t.Run("firestore "+string(layout), func(t *testing.T) {
			b, e, project := newFirestore(t, targets)
			o.Host, o.Project = e.Host, project
			check(t, b, layout, junk.Native(t, o))
		})
		t.Run("datastore "+string(layout), func(t *testing.T) {
			b, e, project := newDatastore(t, targets)
			o.Host, o.Project = e.Host, project
			check(t, b, layout, junk.Datastore(t, o))
			name, want := "unindexed instant", "unindexed: its property expires is not indexed: no sweep ever sees it"
			switch layout {
			case config.LayoutSharded:
				name = "unindexed key"
			case config.LayoutShardedTimestamp:
				want = "or no index has it by shard and expires"
			}
			if text := b.must(nil, "explain", name).out; !strings.Contains(text, want) {
				t.Errorf("%s", text)
			}
			if text := b.must(nil, "explain", strings.TrimPrefix(name, "unindexed ")+" to come").out; !strings.Contains(text, "early:") {
				t.Errorf("%s", text)
			}
		})
	}
}
