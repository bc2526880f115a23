package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

func TestExplainOnEachStore(t *testing.T) {
	nightly.Races(t)
	t.Parallel()
	onEachStoreAndLayout(t, func(t *testing.T, b *workdir, layout config.Layout) {
		soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		b.must(strings.NewReader(`{"id":"live","expires":"`+soon+`"}`+"\n"+`{"id":7,"expires":"2026-01-01T00:00:00Z"}`+"\n"+`{"id":"7"}`), "load")
		for _, c := range []struct {
			args          []string
			verdict, text string
		}{
			{[]string{"live"}, "early", "it is due in "},
			{[]string{"--number", "7"}, "due", "the next sweep deletes it"},
			{[]string{"7"}, "never", "it never expires"},
			{[]string{"nobody"}, "absent", "there is no such entity"},
		} {
			var x inspect.Explanation
			r := b.must(nil, append([]string{"explain", "--target", "sessions", "--json"}, c.args...)...)
			if err := json.Unmarshal([]byte(r.out), &x); err != nil || x.Verdict != c.verdict || (x.Range != nil) != (c.verdict == "early" || c.verdict == "due") {
				t.Errorf("%v: %+v, %v", c.args, x, err)
			}
			if text := b.must(nil, append([]string{"explain"}, c.args...)...).out; !strings.Contains(text, c.text) {
				t.Errorf("%v: %s", c.args, text)
			}
		}
		for _, args := range [][]string{{}, {"a", "b"}, {"--number", "x"}, {"--number", "0"}, {""}, {"--target", "nobody", "x"}, {strings.Repeat("x", 1501)}} {
			if r := b.run(nil, append([]string{"explain"}, args...)...); r.code != exitUsage {
				t.Errorf("%.40q: exit code %d, %s", args, r.code, r.log)
			}
		}
	})
}

func TestExplainBelowAParent(t *testing.T) {
	b, _, _ := newFirestore(t, "targets:\n- {name: items, kind: items, group: true, layout: timestamp, property: expires}\n")
	b.must(strings.NewReader(`{"parent":"users/u1","id":"i","expires":"2026-01-01T00:00:00Z"}`), "load")
	if text := b.must(nil, "explain", "--parent", "users/u1", "i").out; !strings.Contains(text, "users/u1/items/i of target items") || !strings.Contains(text, "the next sweep deletes it") {
		t.Errorf("%s", text)
	}
	if text := b.must(nil, "explain", "i").out; !strings.Contains(text, "no such entity") {
		t.Errorf("%s", text)
	}
	d, _, _ := newDatastore(t, oneTarget)
	if text := d.must(nil, "explain", "--namespace", "eu", "--parent", "User/#7", "s").out; !strings.Contains(text, "User/#7/Session/s of target sessions") {
		t.Errorf("%s", text)
	}
	for _, args := range [][]string{{"explain", "--namespace", "eu", "i"}, {"explain", "--parent", "users", "i"}} {
		if r := b.run(nil, args...); r.code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.log)
		}
	}
}
