package store_test

import (
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/store"
)

func TestNextName(t *testing.T) {
	long := strings.Repeat("a", 1499)
	for name, want := range map[string]string{
		"p": "p\x00", "": "\x00", "p\x00": "p\x00\x00",
		long + "a":                               long + "b",
		long + "\x7f":                            strings.Repeat("a", 1498) + "b", // U+0080 has two bytes
		strings.Repeat("a", 1498) + "\u07ff":     strings.Repeat("a", 1497) + "b",
		strings.Repeat("a", 1497) + "\ud7ff":     strings.Repeat("a", 1497) + "\ue000",
		strings.Repeat("a", 1496) + "\U0010ffff": strings.Repeat("a", 1495) + "b",
		strings.Repeat("a", 1496) + "😀":          strings.Repeat("a", 1496) + "😁",
		strings.Repeat("\U0010ffff", 375):        strings.Repeat("\U0010ffff", 375),
	} {
		if got := store.NextName(name); got != want {
			t.Errorf("behind …%q comes …%q, not …%q", name[max(0, len(name)-8):], got[max(0, len(got)-8):],
				want[max(0, len(want)-8):])
		}
	}
}

func TestIsBelow(t *testing.T) {
	for _, c := range []struct {
		key, above string
		want       bool
	}{
		{"u/p/a/1", "u/p", true}, {"u/p", "u/p", false}, {"u/p2/a/1", "u/p", false}, {"u/p", "u/p/a/1", false},
	} {
		if got := store.IsBelow(c.key, c.above); got != c.want {
			t.Errorf("%s is below %s: %v", c.key, c.above, got)
		}
	}
}
