package sim

import (
	"testing"
	"testing/synctest"
	"time"
)

// Where another process wrote the first record of a range, the daemon may take that range for a new one, and
// read it from its start before any other is read.
func TestOthersWaitForAForeignRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{Seed: 1})
		defer w.stop()
		r := &rush{w: w, tick: time.Second, work: 4, foreign: map[string]bool{}, cut: w.plan.target}
		const quiet = "sessions.00000001.0000"
		before := r.bound("sessions", quiet)
		r.foreign["sessions.00000001.0001"], r.foreign["tokens.00000001.0000"] = true, true
		if after := r.bound("sessions", quiet); after != before+queryTakes {
			t.Errorf("%v, and %v before", after, before) // two workers read the two
		}
	})
}
