package step_test

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/throttle"
)

// A step that has to wait for tokens ends, and says for how long.
func Example() {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	out := step.OutcomeOfPause(&throttle.Pause{Wait: time.Second, Why: throttle.ReasonRamp}, now)
	fmt.Println(out.State == step.Waiting, out.Why, out.Wake.Format(time.TimeOnly))
	// Output: true ramp 03:00:01
}
