package sim

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// An entity goes by a look that was not older than calls travel when its delete was sent, but for the time that its
// process stood still.
func TestAgeOfALook(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, stood time.Duration // the look; of the time since then
		sent          time.Duration // the delete, before it took effect
		wrong         bool
	}{
		{"fresh", lookedFor, 0, 0, false},
		{"old", lookedFor + time.Second, 0, 0, true},
		{"of a process that stood still", time.Hour, time.Hour - lookedFor, 0, false},
		{"of a delete that came late", lookedFor + 2*time.Minute, 0, 2 * time.Minute, false},
		{"old, of a delete that came late", lookedFor + 3*time.Minute, 0, 2 * time.Minute, true},
		{"of one that did not stand still for long enough", time.Hour, 30 * time.Minute, 0, true},
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
				w.oracle.parts(h, s, c.sent)
				if (w.violation != nil) != c.wrong {
					t.Errorf("violation: %v", w.violation)
				}
			})
		})
	}
}

// A delete that takes effect after its caller has given up, and looked again, is held to what was known when it was sent.
func TestDeletesBelowAfterALaterLook(t *testing.T) {
	for _, later := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(Options{Seed: 1})
			defer w.stop()
			w.plan.descends = true
			h, s := &handle{w: w, name: "me"}, stem{place{w.plan.kind("sessions"), ""}, "e"}
			w.oracle.truth[s.at] = map[string]*fact{s.key: {wellFormed: true, expires: w.began.Add(-time.Hour)}}
			w.kin[s] = map[string]kin{"a": {born: w.moment()}}
			h.sees(s, true, false)
			sent := h.lookOf(s)
			w.kin[s]["a/b"] = kin{born: w.moment()}
			h.sees(s, true, false)
			if later {
				sent = h.lookOf(s)
			}
			w.oracle.prunes(h, s, sent, []store.Descendant{{Key: "a"}})
			if (w.violation != nil) != later {
				t.Errorf("sent after the later look: %v; %v", later, w.violation)
			}
		})
	}
}

// What was written below an entity before a look goes first, even at the same instant of the clock; what was
// written after it stays.
func TestBornAtTheInstantOfALook(t *testing.T) {
	for _, before := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(Options{Seed: 1})
			defer w.stop()
			w.plan.descends = true
			h, s := &handle{w: w, name: "me"}, stem{place{w.plan.kind("sessions"), ""}, "e"}
			steps := []func(){func() { h.sees(s, true, true) }, func() { w.bear(w.dice, s) }}
			if before {
				slices.Reverse(steps)
			}
			for _, step := range steps {
				step()
			}
			n := len(w.kin[s])
			if w.oracle.parts(h, s, 0); n == 0 || (w.violation != nil) != before {
				t.Errorf("%d born before the look: %v; %v", n, before, w.violation)
			}
		})
	}
}
