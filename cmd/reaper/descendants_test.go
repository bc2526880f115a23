package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/inspect"
)

// familyTargets are targets of which the first deletes descendants, among which are the second's own.
const familyTargets = `targets:
  - {name: tags, kind: tags, layout: timestamp, property: expires, descendants: {mode: delete}, breaker: off, pace: {max: unlimited}}
  - {name: notes, kind: notes, layout: timestamp, property: expires, pace: {max: unlimited}}
`

// An explanation of what lies below an entity names that, says what becomes of both, and is right: in the services' own
// keys, also next to names that begin alike.
func TestExplainsDescendants(t *testing.T) {
	noRaces(t)
	onBoth(t, func(t *testing.T, b *workdir, c client) {
		b.write("reaper.yaml", familyTargets)
		c.put("tags/p+", "tags/p/m/1", "tags/p/m/1/n/2", "tags/p2+", "tags/p2/m/1", "tags/p!/m/1")
		explain := func(key string) (x inspect.Explanation) {
			t.Helper()
			if err := json.Unmarshal([]byte(b.must(nil, "explain", "--target", "tags", "--descendant", key, "--json").out), &x); err != nil {
				t.Fatal(err)
			}
			return x
		}
		for key, want := range map[string]string{"tags/p/m/1/n/2": "tags/p", "tags/p2/m/1": "tags/p2"} {
			x := explain(key)
			if x.Key != want || !x.Found || x.Verdict != "early" || x.Descendant != key ||
				!strings.HasPrefix(x.Why, key+" lies below it, and is deleted before that. It itself: it is due in ") {
				t.Errorf("%s: %+v", key, x)
			}
		}
		if x := explain("tags/p!/m/1"); x.Found || !strings.Contains(x.Why, "is an orphan: reaper orphans finds it") {
			t.Errorf("below nothing: %+v", x)
		}
		for _, args := range [][]string{{"--descendant", "m/1"}, {"--descendant", "--number", "7"}, {"--descendant", ""}} {
			if r := b.run(nil, append([]string{"explain", "--target", "tags"}, args...)...); r.code != exitUsage {
				t.Errorf("%v: %+v", args, r)
			}
		}
	})
}
