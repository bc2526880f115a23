package breaker_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

// More of an event than was counted is approved as a part: the floor is not there once more.
func TestPartOfAnUncountedEventKeepsTheFloor(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 2*rules.Floor)
	b, _, _ = b.Reserve(rules, noon, nil, []breaker.Want{{Key: k, N: rules.Floor, Max: rules.Floor}})
	b = b.Take([]breaker.Report{{Key: k, Done: rules.Floor}})
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: 4 * rules.Floor, More: true})
	if trip == nil {
		t.Fatal("no trip")
	}
	trip.ID = "t1"
	a := trip.Approve(5*rules.Floor, noon) // of perhaps a hundred times as much
	b = b.Approved(rules, *trip, a, false, noon)
	mine := breaker.Key{Approval: a.ID}
	b, _, _ = b.Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: mine, N: a.Count}})
	b = b.Take([]breaker.Report{{Key: mine, Done: a.Count}})
	_, grants, unmet := b.Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: k, N: rules.Floor}})
	if len(grants) > 0 || len(unmet) == 0 {
		t.Errorf("part %v: beyond the approval %+v are granted without a count", a.Part, grants)
	}
}

// What a live process has deleted by a part, and not reported, decides: the judge waits for it.
func TestRestOfAnUnreportedPart(t *testing.T) {
	k := rules.HourOf(noon)
	all := 12 * rules.Floor
	b := old().CountedAll(noon, all)
	b, _, _ = b.Reserve(rules, noon, nil, []breaker.Want{{Key: k, N: rules.Floor, Max: rules.Floor}})
	b = b.Take([]breaker.Report{{Key: k, Done: rules.Floor}})
	limit := b.Limit(rules, noon, k)
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: limit})
	if trip == nil {
		t.Fatal("no trip")
	}
	trip.ID = "t1"
	const rest = 10
	a := trip.Approve(trip.Due-rest, noon)
	b = b.Approved(rules, *trip, a, false, noon)
	b, _, _ = b.Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: breaker.Key{Approval: a.ID}, N: a.Count}})
	// All of the part is gone, and was not reported: rest is all that is left.
	c, _ := b.Approvals(rules, []breaker.Approval{a}, noon, k)
	c.Due = rest
	_, trip = b.Judge(rules, noon, k, c)
	if trip == nil && !b.IsInDoubt(rules, noon, k, c, 0) {
		t.Errorf("the rest passes without a doubt: %+v, limit %d", c, limit)
	}
}

// A huge count is no way around the breaker.
func TestHugePart(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 2*rules.Floor)
	trip := breaker.Trip{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Due: 10, More: true}
	a := trip.Approve(1<<63-1, noon)
	c, _ := b.Approvals(rules, []breaker.Approval{a}, noon, k)
	c.Due = 10
	if _, trip := b.Judge(rules, noon, k, c); trip == nil {
		t.Errorf("%+v passes", c)
	}
}

// --normal after a part learns what was there, not what was approved.
func TestNormalAfterAGenerousPart(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 10*rules.Floor)
	all := b.Alls[len(b.Alls)-1].N
	trip := breaker.Trip{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Due: 3 * rules.Floor, More: true, All: all}
	a := trip.Approve(1000*rules.Floor, noon)
	c, _ := b.Approvals(rules, []breaker.Approval{a}, noon, k)
	c.Due = 5 // of a generation opened since
	b, again := b.Judge(rules, noon, k, c)
	if again == nil {
		t.Fatal("no trip")
	}
	again.ID = "t2"
	b = b.Approved(rules, *again, again.Approve(0, noon), true, noon)
	if b.IsBlind(rules, noon) {
		t.Errorf("the breaker is blind: limit %d of %d; days %+v", b.Limit(rules, noon, rules.HourOf(noon.Add(time.Hour))), all, b.Days)
	}
}

// Nothing is left of an event, so there is nothing to hold.
func TestNothingLeftTripsNothing(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 2*rules.Floor)
	a := breaker.Approval{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Count: 5 * rules.Floor, At: noon, Part: true}
	c, _ := b.Approvals(rules, []breaker.Approval{a}, noon, k)
	if _, trip := b.Judge(rules, noon, k, c); trip != nil {
		t.Errorf("it holds the target for %d entities: %s", trip.Due, trip.Summary())
	}
}

// What is held though it is little does not say that it is too much.
func TestSummaryOfARest(t *testing.T) {
	k := rules.HourOf(noon)
	a := breaker.Approval{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Count: 20, At: noon, Part: true}
	b := old().CountedAll(noon, 2*rules.Floor)
	c, _ := b.Approvals(rules, []breaker.Approval{a}, noon, k)
	c.Due = 3
	_, trip := b.Judge(rules, noon, k, c)
	if want := "burst: 3 are due of an event of which a part was approved"; trip == nil || trip.Summary() != want {
		t.Errorf("%+v, want %q", trip, want)
	}
}
