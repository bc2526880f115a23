package config

import (
	"slices"
	"strings"
	"testing"
)

// Each setting of the targets file has a line, so that the history shows every change of
// one. No line shows the address of a gate.
func TestLinesHaveAllFields(t *testing.T) {
	one := newTarget()
	lines := one.Lines()
	for _, f := range fields {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, f.path+":") }) {
			t.Errorf("%s has no line", f.path)
		}
	}
	if !slices.Contains(lines, "history.keep: 90d") || !slices.Contains(lines, "pace.total: unlimited") {
		t.Errorf("%q", lines)
	}
	one.Pace.Gate = "https://user:secret@example.com"
	gated := one.Lines()
	if slices.Equal(gated, lines) || strings.Contains(strings.Join(gated, "\n"), "secret") {
		t.Errorf("%q", gated)
	}
	one.ShardValues = []ShardValue{{Number: 7, Numeric: true}}
	if again := one.Lines(); slices.Equal(again, gated) || !slices.Contains(again, "shard_values: [7]") {
		t.Errorf("%q", again)
	}
}
