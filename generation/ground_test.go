package generation

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

// A part of an event is a part until that event is over: to settle unswept ground ends those of the
// ground, and to clear a trip those of its event.
func TestWhatEndsAPart(t *testing.T) {
	hour := opened.Truncate(time.Hour)
	part := func(id string, rule breaker.Rule, hour time.Time) breaker.Approval {
		return breaker.Approval{ID: id, Rule: rule, Hour: hour, Count: 10, Part: true}
	}
	r := New("sessions", "Session", "expiry_key", 4, true, opened)
	r.Approvals = []breaker.Approval{part("ground", breaker.NewGround, time.Time{}), part("late", breaker.LateOnes, time.Time{}),
		part("burst", breaker.Burst, hour), part("before", breaker.Burst, hour.Add(-time.Hour))}
	cleared := func(rule breaker.Rule, hour time.Time) Record {
		return r.Tripped(breaker.Trip{ID: "t", Rule: rule, Hour: hour, At: opened}).Released(breaker.Approval{})
	}
	for name, c := range map[string]struct {
		r    Record
		want string
	}{
		"settled":          {r.Settled(0), "late burst before "},
		"burst cleared":    {cleared(breaker.Burst, hour), "ground late before "},
		"late ones":        {cleared(breaker.LateOnes, time.Time{}), "ground burst before "},
		"ground cleared":   {cleared(breaker.NewGround, time.Time{}), "ground late burst before "},
		"nothing happened": {r, "ground late burst before "},
	} {
		var parts string
		for _, a := range c.r.Approvals {
			if a.Part {
				parts += a.ID + " "
			}
		}
		if parts != c.want {
			t.Errorf("%s: parts of %q, want %q", name, parts, c.want)
		}
	}
}
