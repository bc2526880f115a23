package spend

import (
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// While the last part of an approval is being reserved, the budget may say that all of it is granted before
// this process has it. A step that asks just then wants it of the approval anyway: it would wait for a
// count of the hour, which trips the breaker with the rest of the approval unused.
func TestApprovalIsNotSpentWhileItIsReserved(t *testing.T) {
	clock := func() time.Time { return noon }
	rules := breaker.Rules{On: true, Floor: 10, Window: time.Hour, Rewind: 24 * time.Hour}
	approval := breaker.Approval{ID: "a", Rule: breaker.Burst, Hour: noon, Through: noon.Add(time.Hour), Count: 81, At: noon}
	k := breaker.Key{Approval: "a"}
	var rec generation.Record
	rec.Approvals = []breaker.Approval{approval}
	v := view.New(view.Config{})
	v.Use(&plan.View{Record: rec})
	l := &ledger{}
	granted := func(n int64) {
		l.budget = breaker.Budget{Tallies: []breaker.Tally{{Key: k, Granted: n, At: noon}}}
	}
	a := newAllowance(Config{Rules: rules, Plan: plan.Rules{Form: layout.Timestamp.Form()}, Page: 50, Viewer: v,
		Clock: storeclock.New(clock, time.Minute), Now: clock}, l)
	w, ops := &Asker{LateFrom: noon.Add(-time.Hour)}, []store.Op{at(noon.Add(time.Minute))}
	keyOf := func() breaker.Key {
		d, _, _ := a.request(w, ops)
		return *d.keys[0]
	}

	granted(50)
	if got := keyOf(); got != k {
		t.Fatalf("with a rest of 31 it counts by %v", got)
	}
	s := a.draw(false)
	granted(81)
	if got := keyOf(); got != k {
		t.Errorf("while the rest is reserved it counts by %v", got)
	}
	a.put(s, []breaker.Grant{{Key: k, N: 31}}, time.Time{}, noon)
	if got := keyOf(); got != k {
		t.Errorf("with the rest reserved it counts by %v", got)
	}
	if _, err := a.take(w, slices.Repeat(ops, 31)); err != nil {
		t.Fatal(err)
	}
	if got := keyOf(); got == k {
		t.Error("it counts by an approval that is used up")
	}

	a.wants[k] = 1 // a step asked for it before it was used up
	s = a.draw(false)
	if got := keyOf(); got == k {
		t.Error("while nothing more can be reserved it counts by an approval that is used up")
	}
	a.takeBack(s)
	if got := keyOf(); got == k {
		t.Error("after a reservation that failed it counts by an approval that is used up")
	}
}
