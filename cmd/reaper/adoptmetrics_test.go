package main

import (
	"strings"
	"testing"
)

// A daemon shows what adoptions have done and left, until they are finished.
func TestServeShowsAdoptions(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := adopted(t, strings.Replace(finishedTarget, "unlimited, spread", "unlimited, percent: 50, spread", 1), false)
	d := b.serve()
	d.until("the metrics of the adoption", func() bool {
		_, text := d.get("/metrics")
		return strings.Contains(text, "reaper_adoption_entities")
	})
	stamped := d.value(`reaper_adoption_entities{state="stamped",target="sessions"}`)
	unstamped := d.value(`reaper_adoption_entities{state="unstamped",target="sessions"}`)
	if stamped+unstamped != 300 || stamped < 50 || unstamped < 50 {
		t.Errorf("%v stamped, %v not", stamped, unstamped)
	}
	if n := d.value(`reaper_adoption_entities{state="mismatch",target="sessions"}`); n != 0 {
		t.Errorf("%v mismatches", n)
	}
}
