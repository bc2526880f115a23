package main

import (
	"testing"

	"github.com/reaper-ttl/reaper/sweep"
)

func TestDoing(t *testing.T) {
	p := new(sweep.Progress)
	if got := doing(p); got != "reading" {
		t.Error(got)
	}
	p.Counting.Store(3)
	p.Judging.Store(1)
	if got := doing(p); got != "counting (ranges: 3), counting for the breaker (targets: 1)" {
		t.Error(got)
	}
}
