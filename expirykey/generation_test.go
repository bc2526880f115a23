package expirykey_test

import (
	"testing"

	"github.com/reaper-ttl/reaper/expirykey"
)

func TestGenerationOf(t *testing.T) {
	const last = expirykey.MaxGeneration
	for _, c := range []struct {
		text             string
		generation, next int
		within           bool
	}{
		{"", 0, 0, false},
		{"00000000", 0, 0, false},
		{"00000000.", 0, 1, true},
		{"00000007.0000.20261121T000730.855Z", 7, 8, true},
		{"00000007.soon", 7, 8, true},
		{"00000007/", 7, 8, false},
		{"00000007-", 6, 7, false},
		{"0000000A", 9, 10, false},
		{"2026-11-22", 20_259_999, 20_260_000, false},
		{"99999999.9999.99991231T235959.999Z", last, last + 1, true},
		{"tomorrow", last, last + 1, false},
	} {
		generation, next, within := expirykey.GenerationOf(c.text)
		if generation != c.generation || next != c.next || within != c.within {
			t.Errorf("%q: %d, %d, %v; want %d, %d, %v", c.text, generation, next, within, c.generation, c.next, c.within)
		}
	}
}
