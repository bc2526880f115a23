package throttle

import (
	"fmt"
	"time"
)

// A Pause is the error of a step that has to wait. It is not a failure: waiting takes no
// worker and no page, so the step ends, and a later one continues.
type Pause struct {
	Wait time.Duration
	Why  Reason
}

func (p *Pause) Error() string { return fmt.Sprintf("wait %v for %q", p.Wait, p.Why) }
