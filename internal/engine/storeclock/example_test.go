package storeclock_test

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
)

// A response says that it is two seconds later in the store than here.
func Example() {
	local := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	c := storeclock.New(func() time.Time { return local }, 10*time.Second)
	sent := local
	fmt.Println(c.Observe(sent.Add(2*time.Second), sent))
	local = local.Add(8 * time.Second)
	fmt.Println(c.Now().Format(time.TimeOnly), "or later")
	fmt.Println(c.Observe(sent.Add(time.Hour), sent))
	// Output:
	// <nil>
	// 03:00:09 or later
	// the clock cannot be trusted: it is 2026-11-25T03:00:08Z here and 2026-11-25T04:00:00Z in the store, more than max_clock_skew (10s) apart
}
