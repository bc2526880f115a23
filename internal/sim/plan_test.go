package sim

import "testing"

// A life that is made to have a feature has it, unless something else that was drawn excludes
// it: most do, and few others.
func TestLivesWithAFeature(t *testing.T) {
	of := map[string]func(p *plan) bool{
		"partly":  func(p *plan) bool { return p.partly },
		"rush":    func(p *plan) bool { return p.rush },
		"trips":   func(p *plan) bool { return p.target.Breaker.On },
		"restamp": func(p *plan) bool { return p.restamps },
		"lists":   func(p *plan) bool { return p.lists != nil },
		"drift":   func(p *plan) bool { return p.drifts },
		"descend": func(p *plan) bool { return p.descends },
		"archive": func(p *plan) bool { return p.archives != "" },
		"overlap": func(p *plan) bool { return p.overlap != nil },
	}
	const seeds = 100
	for feature, has := range of {
		with, without := 0, 0
		for seed := range uint64(seeds) {
			if has(newPlan(Options{Seed: seed, With: []string{feature}})) {
				with++
			}
			if has(newPlan(Options{Seed: seed})) {
				without++
			}
		}
		if with < seeds*7/10 || without > seeds/2 {
			t.Errorf("%s: in %d of %d lives that are made to have it, and in %d others", feature, with, seeds, without)
		}
	}
	for _, f := range some {
		if !IsFeature(f) || !IsOfSome(f) {
			t.Errorf("%s is no feature of some", f)
		}
	}
	if IsOfSome("kill") || IsFeature("no such thing") {
		t.Error("anything is a feature")
	}
}
