package sweep_test

import (
	"fmt"
	"testing"
	"time"
)

// What falls due a moment before a tick is deleted at that tick, even if nothing else has called the
// store for minutes: of what passed since its last answer an eighth does not count, and of five
// minutes that would be 37 s. The target record is read every five seconds, so the clock is late by
// less than that second which L5 allows.
func TestDueBeforeTheTickOfAQuietDaemon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		tick := 5*time.Minute + 1300*time.Millisecond // it falls between two reads elsewhere each time
		began := time.Now()
		next := func(at time.Time) time.Time { return at.Add(tick - at.Sub(began)%tick) }
		w.sweep()
		cfg := w.config()
		cfg.Targets[0].Next = next
		w.serve(cfg)
		for i := range 12 {
			at := next(time.Now())
			w.put(1, 4, fmt.Sprint("due-", i), at.Add(-time.Second))
			time.Sleep(time.Until(at.Add(time.Second)))
			w.wantLeft()
		}
	})
}
