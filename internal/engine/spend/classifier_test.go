package spend

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

func at(t time.Time) store.Op { return store.Op{Entry: store.Entry{Value: store.InstantValue(t)}} }

// What an approval covers counts by it until it is used up; the rest by its hour, or as late.
func TestClassifier(t *testing.T) {
	rules := breaker.Rules{On: true, Floor: 10, Window: time.Hour, Rewind: 24 * time.Hour}
	approval := breaker.Approval{ID: "a", Rule: breaker.Burst, Hour: noon, Through: noon.Add(time.Hour), Count: 3, At: noon}
	c := &classifier{rules: rules, form: layout.Timestamp.Form(), approved: []breaker.Approval{approval}, now: noon,
		budget: breaker.Budget{Tallies: []breaker.Tally{{Key: breaker.Key{Approval: "a"}, Granted: 2, At: noon}}}}
	before, inHour := at(noon.Add(-time.Minute)), at(noon.Add(time.Minute))
	carry := inHour
	carry.To = store.InstantValue(noon.Add(time.Hour))
	w := &Asker{LateFrom: noon.Add(-30 * time.Minute)}
	left := func(k breaker.Key) int64 { return int64(len(k.Approval)) } // one of the approval
	d := c.demandOf(w, []store.Op{inHour, before, inHour, inHour, carry, at(noon.Add(-time.Hour))}, left)
	want := []string{"Aa", rules.HourOf(noon.Add(-time.Minute)).String(), "Aa", rules.HourOf(noon).String(), "", "L"}
	for i, k := range d.keys {
		got := ""
		if k != nil {
			got = k.String()
		}
		if got != want[i] {
			t.Errorf("op %d counts by %q, want %q", i, got, want[i])
		}
	}
	if n := d.need[breaker.Key{Approval: "a"}]; n != 2 {
		t.Errorf("%d are needed of the approval", n)
	}
	c.rules.On = false
	if k := c.demandOf(w, []store.Op{inHour}, left).keys[0]; !k.IsLate() {
		t.Errorf("without a breaker it counts by %v", k)
	}
}
