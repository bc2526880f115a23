package sim

import (
	"testing"
	"testing/synctest"
	"time"
)

// An entity goes by a look that is not older than calls travel, but for the time that its process stood still.
func TestAgeOfALook(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, stood time.Duration // the look; of the time since then
		wrong         bool
	}{
		{"fresh", lookedFor, 0, false},
		{"old", lookedFor + time.Second, 0, true},
		{"of a process that stood still", time.Hour, time.Hour - lookedFor, false},
		{"of one that did not stand still for long enough", time.Hour, 30 * time.Minute, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(Options{Seed: 1})
				defer w.stop()
				w.plan.descends = true
				h, s := &handle{w: w, name: "me"}, stem{place{w.plan.kind("sessions"), ""}, "e"}
				h.freeze(10 * time.Minute) // before the look
				time.Sleep(20 * time.Minute)
				looked := h.stoodSoFar()
				h.looks = map[stem]look{s: {empty: time.Now(), stood: looked}}
				h.freeze(c.stood)
				time.Sleep(c.before)
				w.oracle.parts(h, s)
				if (w.violation != nil) != c.wrong {
					t.Errorf("violation: %v", w.violation)
				}
			})
		})
	}
}
