package twoclocks_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/twoclocks"
)

func TestAt(t *testing.T) {
	wall := time.Date(2026, 11, 21, 1, 2, 3, 4, time.UTC)
	a, b := twoclocks.At(wall, time.Hour), twoclocks.At(wall.Add(-time.Minute), 2*time.Hour)
	if !a.Round(0).Equal(wall) || b.Sub(a) != time.Hour || b.Round(0).Sub(a.Round(0)) != -time.Minute {
		t.Errorf("%v and %v", a, b)
	}
}

// A machine sleeps for an hour: its monotonic clock notices a second.
func ExampleAt() {
	wall := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	before, after := twoclocks.At(wall, time.Minute), twoclocks.At(wall.Add(time.Hour), time.Minute+time.Second)
	fmt.Println(after.Sub(before), after.Round(0).Sub(before.Round(0)))
	// Output: 1s 1h0m0s
}
