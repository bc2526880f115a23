package breaker_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

// Entities and what lies below them share one floor until the entities are counted.
func TestDescendantsShareTheFloor(t *testing.T) {
	k, other := rules.HourOf(noon), rules.HourOf(noon.Add(-3*rules.Window))
	for name, below := range map[string]breaker.Key{"of the hour": k.Descendants(), "late ones": breaker.Late().Descendants(),
		"of another hour": other.Descendants()} {
		at := noon.Add(rules.Window) // the hour is over
		b, grants, _ := old().Reserve(rules, at, nil, []breaker.Want{{Key: below, N: 3 * rules.Floor / 4, Max: 3 * rules.Floor / 4}})
		if len(grants) != 1 {
			t.Fatalf("%s: %+v", name, grants)
		}
		granted := grants[0].N
		for range 100 {
			b, grants, _ = b.Reserve(rules, at, nil, []breaker.Want{{Key: k, N: 50, Max: rules.Floor}, {Key: below, N: 50, Max: rules.Floor}})
			for _, g := range grants {
				granted += g.N
			}
		}
		if most := rules.Floor; name != "of another hour" && granted != most || name == "of another hour" && granted != 2*most {
			t.Errorf("%s: %d were granted without a count", name, granted)
		}
	}
}

// What a count has let pass takes its descendants along, however many they are, and what was approved does;
// what it has stopped does not. The limits bound them all.
func TestDescendantsGoWithTheirEntities(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 1000*rules.Floor)
	b, _, unmet := b.Reserve(rules, noon, nil, []breaker.Want{{Key: k.Descendants(), N: rules.Floor}, {Key: k.Descendants(), N: 1}})
	if len(unmet) != 1 || unmet[0].Key != k {
		t.Fatalf("what is to be counted: %+v", unmet)
	}
	want := []breaker.Want{{Key: k.Descendants(), N: 500 * rules.Floor}}
	passed, trip := b.Judge(rules, noon, k, breaker.Count{Due: rules.Floor})
	if _, grants, _ := passed.Reserve(rules, noon, nil, want); trip != nil || len(grants) != 1 || grants[0].N != want[0].N {
		t.Errorf("passed: %+v, %+v", trip, grants)
	}
	limited := rules
	limited.Limits.PerHour = 2 * rules.Floor
	if _, grants, _ := passed.Reserve(limited, noon, nil, want); len(grants) != 1 || grants[0].N != rules.Floor {
		t.Errorf("limited: %+v", grants)
	}
	stopped, trip := b.Judge(rules, noon, k, breaker.Count{Due: 900 * rules.Floor})
	if trip == nil {
		t.Fatal("no trip")
	}
	if _, grants, _ := stopped.Reserve(rules, noon, nil, want); len(grants) > 0 {
		t.Errorf("stopped: %+v", grants)
	}
	trip.ID = "t1"
	a := trip.Approve(0, noon)
	stopped = stopped.Approved(rules, *trip, a, false, noon)
	want[0].Key = breaker.Key{Approval: a.ID}.Descendants()
	if _, grants, _ := stopped.Reserve(rules, noon, []breaker.Approval{a}, want); len(grants) != 1 || grants[0].N != want[0].N {
		t.Errorf("approved: %+v", grants)
	}
	if _, grants, _ := stopped.Reserve(rules, noon, nil, want); len(grants) > 0 {
		t.Errorf("taken back: %+v", grants)
	}
	if b.IsSpent(rules, a, noon) {
		t.Error("descendants use up the approval")
	}
}

// Where a hundred descendants go with each entity, an event of a hundredth of the floor is as large as the
// floor: it trips if it is also more than the fraction of all entities.
func TestDescendantsMakeTheFloorSmaller(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, rules.Floor/10)
	b, _, _ = b.Reserve(rules, noon, nil, []breaker.Want{{Key: k, N: rules.Floor / 100}, {Key: k.Descendants(), N: rules.Floor * 9 / 10}})
	due := breaker.Count{Due: rules.Floor / 10}
	if _, trip := b.Judge(rules, noon, k, due); trip != nil {
		t.Errorf("nothing is known of descendants: %+v", trip)
	}
	b = b.Take([]breaker.Report{{Key: k, Done: rules.Floor / 100}, {Key: k.Descendants(), Done: rules.Floor * 9 / 10}})
	_, trip := b.Judge(rules, noon, k, due)
	if trip == nil || trip.Limit >= rules.Floor/10 || trip.Due != due.Due {
		t.Errorf("%+v", trip)
	}
	if _, trip := b.CountedAll(noon, 10*rules.Floor).Judge(rules, noon, k, due); trip != nil {
		t.Errorf("a small part of all: %+v", trip)
	}
	if b.Spent.Ever != rules.Floor/100 {
		t.Errorf("ever %d", b.Spent.Ever)
	}
}

// The record keeps the tallies of descendants, also where many hours were used.
func TestDescendantsInTheRecord(t *testing.T) {
	b := old()
	for h := range 200 {
		at := rules.HourOf(noon.Add(time.Duration(h-200) * rules.Window))
		b, _, _ = b.Reserve(rules, noon, nil, []breaker.Want{{Key: at, N: 1}, {Key: at.Descendants(), N: 2}})
	}
	got, err := breaker.Decode(b.Encode())
	if err != nil {
		t.Fatal(err)
	}
	n := map[bool]int{}
	for _, tally := range got.Tallies {
		n[tally.Key.Below]++
		if is := b.At(tally.Key); is.Granted != tally.Granted {
			t.Errorf("%v: %d, was %d", tally.Key, tally.Granted, is.Granted)
		}
	}
	if n[false] != 128 || n[true] != 128 {
		t.Errorf("%v tallies", n)
	}
}
