package sim

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	at := time.Date(2026, 11, 21, 3, 4, 5, 678, time.UTC)
	a, b := withMonotonic(at, time.Hour), withMonotonic(at.Add(time.Minute), time.Hour+time.Second)
	if d := b.Sub(a); d != time.Second {
		t.Errorf("by the monotonic clock %v passed", d)
	}
	if d := b.Round(0).Sub(a.Round(0)); d != time.Minute {
		t.Errorf("by the wall clock %v passed", d)
	}
	if !a.Equal(at) || a.Round(0) != at || a.Location() != time.UTC {
		t.Errorf("%v became %v", at, a)
	}
}
