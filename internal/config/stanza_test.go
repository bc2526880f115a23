package config

import (
	"strings"
	"testing"
)

// A target that is copied from its stanza sweeps the same entities at the same times.
func TestStanza(t *testing.T) {
	for _, file := range []string{
		"targets:\n  - name: a\n    kind: S\n    layout: generation\n    property: expiry_key\n",
		"targets:\n  - name: a\n    kind: S\n    namespaces: [\"\", \"eu\"]\n    layout: sharded\n    property: k\n" +
			"    single_valued: true\n    shards: 64\n    retention: 30m\n    max_age: 90d\n",
		"targets:\n  - name: a\n    kind: \"true\"\n    namespaces: [\"*\"]\n    layout: generation\n    property: \"ü k\"\n",
	} {
		targets := readTargets(t, file)
		if got := "targets:\n" + targets[0].Stanza(); got != file {
			t.Errorf("%s is not\n%s", got, file)
		}
		more := strings.TrimSuffix(file, "\n") + "\n    page: 100\n    pace: {max: 7}\n    adopt: {spread: 1h}\n"
		if got := "targets:\n" + readTargets(t, more)[0].Stanza(); got != file+"    # and its other settings, as they are\n" {
			t.Errorf("%s", got)
		}
		adopted := file + "    adopt: {spread: 1h}\n"
		if got := "targets:\n" + readTargets(t, adopted)[0].Stanza(); got != file {
			t.Errorf("%s", got)
		}
	}
}

func readTargets(t *testing.T, file string) []Target {
	t.Helper()
	targets, err := ParseTargets("reaper.yaml", strings.NewReader(file), Datastore)
	if err != nil {
		t.Fatal(err)
	}
	return targets
}
