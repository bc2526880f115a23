package main

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/junk"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// Whatever the property holds, in either mode and any layout: only entities that are due by
// that layout are deleted, all others stay as they were, and the exit code is 0.
func TestJunkInEveryLayout(t *testing.T) {
	nightly.Races(t)
	check := func(t *testing.T, b *workdir, layout config.Layout, wrote map[string]junk.What, read func() map[string]string) {
		t.Helper()
		due := junk.DueInstant
		if layout.Uses("shards") {
			due = junk.DueKey
		}
		var want []string
		for name, what := range wrote {
			if what == due {
				want = append(want, name)
			}
		}
		before := read()
		dry := b.sweep()
		if !maps.Equal(before, read()) {
			t.Error("the dry run changed something")
		}
		res := b.sweep("--apply")
		after := read()
		var gone []string
		for name := range wrote {
			if was, ok := after[name]; !ok {
				gone = append(gone, name)
			} else if was != before[name] {
				t.Errorf("%s was touched", name)
			}
		}
		slices.Sort(gone)
		slices.Sort(want)
		if !slices.Equal(gone, want) {
			t.Errorf("gone: %q, want %q", gone, want)
		}
		if res.Deleted != int64(len(want)) || dry.Expired != res.Deleted || dry.Outside != res.Outside || res.Conflicts != 0 || !res.Complete ||
			res.Malformed+res.Suspect+res.Outside < int64(len(wrote))/2 {
			t.Errorf("dry run: %+v\nsweep: %+v", dry, res)
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
			check(t, b, layout, junk.Native(t, o), func() map[string]string {
				all := map[string]string{}
				for path, bytes := range nodewriter.Snapshot(t, e.Host, project) {
					if name, ok := strings.CutPrefix(path, "Session/"); ok {
						all[name] = bytes
					}
				}
				return all
			})
		})
		t.Run("datastore "+string(layout), func(t *testing.T) {
			b, e, project := newDatastore(t, targets)
			o.Host, o.Project = e.Host, project
			pointers := regexp.MustCompile("0x[0-9a-f]{6,}")
			check(t, b, layout, junk.Datastore(t, o), func() map[string]string {
				all := map[string]string{}
				for key, text := range everything(t, e, project, []string{"Session"}, []string{""}) {
					name, err := url.PathUnescape(key[strings.LastIndex(key, "/")+1:])
					if err != nil {
						t.Fatal(err)
					}
					all[name] = pointers.ReplaceAllString(text, "")
				}
				return all
			})
		})
	}
}
