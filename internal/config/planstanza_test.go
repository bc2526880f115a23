package config

import (
	"strings"
	"testing"
	"time"
)

// A plan is shown, and printed: it has no password.
func TestPlanStanzaHidesPasswords(t *testing.T) {
	for _, gate := range []string{"https://user:secret@gate/", "https://gate/?token=secret"} {
		was := mustOne(t, Firestore, "name: a\nkind: A\npace: {max: 300, gate: '"+gate+"'}")
		text := was.PlanStanza(StanzaChange{})
		if strings.Contains(text, "secret") || !strings.Contains(text, "# and pace.gate, as it is\n") {
			t.Errorf("%s:\n%s", gate, text)
		}
		if _, err := ParseTargets("stanza", strings.NewReader("targets:\n"+text), Firestore); err != nil {
			t.Error(err)
		}
	}
}

// The stanza of a plan is read back as the target with the change made.
func TestPlanStanza(t *testing.T) {
	targets, err := ParseTargets("f.yaml", strings.NewReader(`targets:
- {name: sessions, kind: Session}
- {name: tuned, kind: users/u1/items, group: false, shards: 4, generations: {every: 12h, ramp: 5m, keep: 3}, pace: {start: 100, max: 300, gate: ./x}}
- {name: plain, kind: Plain, layout: timestamp, property: expires, retention: 3d}
- {name: sharded, kind: Sharded, layout: sharded}
`), Firestore)
	if err != nil {
		t.Fatal(err)
	}
	change := StanzaChange{Shards: 80, Every: 2 * 24 * time.Hour, Keep: 64, Max: 7000}
	for _, was := range targets {
		text := "targets:\n" + was.PlanStanza(change)
		got, err := ParseTargets("stanza", strings.NewReader(text), Firestore)
		if err != nil || len(got) != 1 {
			t.Errorf("%v\n%s", err, text)
			continue
		}
		want := was.With(change)
		if !want.Layout.Uses("shards") {
			want.Shards = got[0].Shards
		}
		if !want.Layout.HasSuccession() {
			want.Generations = got[0].Generations
		}
		if got, want := strings.Join(got[0].Lines(), "\n"), strings.Join(want.Lines(), "\n"); got != want {
			t.Errorf("got %s\nwant %s\n%s", got, want, text)
		}
	}
}
