package sim

import (
	"testing"
)

// A seed that runs twice does the same twice, also where it runs beside others.
func TestSeedsRepeat(t *testing.T) {
	const seeds = 300
	hashes := map[uint64]uint64{}
	for range 3 {
		different := 0
		Hunt{First: 1, Count: seeds, Each: func(r Report) {
			if was, ok := hashes[r.Options.Seed]; ok && was != r.Hash {
				different++
				t.Logf("seed %d", r.Options.Seed)
			}
			hashes[r.Options.Seed] = r.Hash
		}}.Run(t)
		if different > 0 {
			t.Errorf("%d of %d seeds ran differently", different, seeds)
		}
	}
}
