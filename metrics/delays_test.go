package metrics_test

import (
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
)

// Each delay is in the bucket that it fits, and what was counted before can be left out.
func TestDelayTally(t *testing.T) {
	var tally metrics.DelayTally
	tally.Add(0, 100*time.Millisecond, -time.Second) // a clock that was set back
	before := tally.Load()
	tally.Add(101*time.Millisecond, 4*time.Second, 48*time.Hour, 48*time.Hour)
	if got := before.List(); !slices.Equal(got, []metrics.DelayCount{{Within: 100 * time.Millisecond, N: 3}}) {
		t.Errorf("%v", got)
	}
	want := []metrics.DelayCount{{Over: 100 * time.Millisecond, Within: 500 * time.Millisecond, N: 1},
		{Over: 3 * time.Second, Within: 5 * time.Second, N: 1}, {Over: 24 * time.Hour, N: 2}}
	if got := tally.Load().Minus(before).List(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := before.Minus(before).List(); got != nil {
		t.Errorf("nothing was counted: %v", got)
	}
}
