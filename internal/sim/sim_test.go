package sim

import (
	"testing"
	"time"
)

func TestSeeds(t *testing.T) {
	began := time.Now()
	steps := 0
	counts := map[string]int{}
	for seed := range uint64(200) {
		r := Run(t, Options{Seed: seed})
		steps += r.Steps
		for k, n := range r.Counts {
			counts[k] += n
		}
		if r.Violation != nil {
			t.Errorf("seed %d: %v\n%s", seed, r.Violation, r.Plan)
		}
	}
	t.Logf("%d steps, %v: %v", steps, time.Since(began), counts)
}
