package breaker_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

// Everything is stamped to expire within one hour, a little at a time: each count of that hour finds
// hardly more than the one before.
func TestNoHourTeachesItself(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 100_000)
	for n := int64(2000); n <= 100_000; n += n / 20 {
		next, trip := b.Judge(rules, noon, k, breaker.Count{Due: n})
		if trip != nil {
			if n < 25_000 || n > 27_000 {
				t.Errorf("it trips at %d, limit %d", n, trip.Limit)
			}
			return
		}
		b = next
	}
	t.Error("all of it passes")
}

// So it is with two hours that grow in turns.
func TestNoTwoHoursTeachEachOther(t *testing.T) {
	b := old().CountedAll(noon, 100_000)
	for n := int64(2000); n <= 50_000; n += n / 20 {
		for i := range 2 {
			next, trip := b.Judge(rules, noon, rules.HourOf(noon.Add(time.Duration(i)*time.Hour)), breaker.Count{Due: n})
			if trip != nil {
				if n > 27_000 {
					t.Errorf("it trips at %d, limit %d", n, trip.Limit)
				}
				return
			}
			b = next
		}
	}
	t.Error("all of it passes")
}

// An hour goes by what earlier ones have taught, on whichever day, and by what was approved as normal.
func TestHoursTeachLaterOnes(t *testing.T) {
	const all = 100_000
	b := old().CountedAll(noon, all)
	hour := func(i int) breaker.Key { return rules.HourOf(noon.Add(time.Duration(i) * time.Hour)) }
	check := func(what string, b breaker.Budget, want ...int64) {
		t.Helper()
		for i, n := range want {
			if got := b.Limit(rules, noon.Add(time.Hour), hour(i)); got != n {
				t.Errorf("%s: the limit of hour %d is %d, not %d", what, i, got, n)
			}
		}
	}
	for i, due := range []int64{25_000, 31_250, 28_125} {
		next, trip := b.Judge(rules, noon, hour(i), breaker.Count{Due: due})
		if trip != nil {
			t.Fatalf("%+v", trip)
		}
		b = next
	}
	check("three hours", b, 25_000, 37_500, 46_875, 46_875)
	again, err := breaker.Decode(b.Encode())
	if err != nil {
		t.Fatal(err)
	}
	check("read again", again, 25_000, 37_500, 46_875, 46_875)
	before := b.Encode()
	delete(before.Fields, "taught") // as programs wrote it that did not know which hour has taught
	if again, err = breaker.Decode(before); err != nil {
		t.Fatal(err)
	}
	check("an older record", again, 46_875, 46_875)
	tripped := breaker.Trip{ID: "t", Rule: breaker.Burst, Hour: hour(1).Hour, Due: 40_000, All: all}
	b = b.Approved(rules, tripped, breaker.Approval{ID: "t", Rule: breaker.Burst, Hour: hour(1).Hour, Count: 40_000}, true, noon)
	check("normal", b, 60_000, 60_000, 60_000)
}

// Of a count that began before midnight and ended after one that began later, each day learns its own.
func TestCountsAcrossMidnight(t *testing.T) {
	midnight := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{midnight.Add(time.Second), midnight.Add(14 * time.Hour)} {
		b := breaker.Budget{Target: "x", Began: midnight.Add(-72 * time.Hour)}
		judge := func(now time.Time, k breaker.Key, n int64) *breaker.Trip {
			next, trip := b.CountedAll(now, 100_000).Judge(rules, now, k, breaker.Count{Due: n})
			if trip == nil {
				var err error
				if b, err = breaker.Decode(next.Encode()); err != nil {
					t.Fatal(err)
				}
			}
			return trip
		}
		before, after := rules.HourOf(midnight.Add(-time.Hour)), rules.HourOf(midnight)
		judge(midnight.Add(-time.Minute), before, 20_000)
		judge(midnight.Add(time.Second), after, 20_000)
		judge(midnight.Add(-time.Second), before, 20_000) // saved late
		judge(midnight.Add(2*time.Second), after, 20_500)
		if len(b.Days) != 2 {
			t.Errorf("days: %+v", b.Days)
		}
		tripped := false
		for n := int64(21_000); n <= 100_000 && !tripped; n += n / 20 {
			if tripped = judge(at, rules.HourOf(at), n) != nil; tripped && n > 34_000 {
				t.Errorf("at %v it trips at %d", at, n)
			}
		}
		if !tripped {
			t.Errorf("at %v all of it passes: %+v", at, b.Days)
		}
	}
}

// Older programs wrote a day again if a count before midnight was saved after one of the next day. Of two
// of the same day, the one that is read is the one that learns.
func TestLearnsByDaysInAnyOrder(t *testing.T) {
	today := noon.Truncate(24 * time.Hour)
	b := old().CountedAll(noon, 100_000)
	for _, begin := range []time.Time{today.Add(-24 * time.Hour), today, today.Add(-24 * time.Hour), today.Add(-48 * time.Hour)} {
		b.Days = append(b.Days, breaker.Day{Begin: begin, Share: 0.01})
	}
	k := rules.HourOf(noon)
	for n := int64(2000); n <= 100_000; n += n / 20 {
		next, trip := b.Judge(rules, noon, k, breaker.Count{Due: n})
		if trip != nil {
			if n > 27_000 {
				t.Errorf("it trips at %d, limit %d", n, trip.Limit)
			}
			return
		}
		var err error
		if b, err = breaker.Decode(next.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("all of it passes")
}

// What was announced and deleted is no usual hour: no later one may be as large.
func TestAnnouncedHoursTeachNothing(t *testing.T) {
	b := old().CountedAll(noon, 100_000).Announce(rules, noon, map[time.Time]int64{noon: 80_000})
	k := rules.HourOf(noon)
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: 82_000})
	if trip != nil {
		t.Fatal(trip)
	}
	b, grants, _ := b.Reserve(rules, noon, nil, []breaker.Want{{Key: k, N: 82_000}})
	b = b.Take([]breaker.Report{{Key: k, Done: grants[0].N}})
	for _, later := range []time.Duration{time.Hour, 100 * time.Hour, rules.Learn - time.Hour, rules.Learn + time.Hour} {
		at := noon.Add(later)
		for i := range 3 { // also once what was announced is forgotten
			next := b.CountedAll(at, 100_000).Announce(rules, at, map[time.Time]int64{at.Add(time.Duration(i) * time.Hour): 1})
			if limit := next.Limit(rules, at, rules.HourOf(at)); limit != 25_000 {
				t.Errorf("%v later the limit is %d of 100000", later, limit)
			}
		}
	}
}

// A count that passed passes again, if nothing has changed but what later hours have taught.
func TestWhatPassedPassesAgain(t *testing.T) {
	b := old().CountedAll(noon, 200_000)
	hour := func(i int) breaker.Key { return rules.HourOf(noon.Add(time.Duration(i) * time.Hour)) }
	sizes := []int64{50_000, 70_000, 75_000, 80_000, 60_000}
	for round := range 3 {
		for i, n := range sizes {
			next, trip := b.Judge(rules, noon.Add(6*time.Hour), hour(i), breaker.Count{Due: n})
			if trip != nil {
				t.Fatalf("round %d, hour %d: %+v", round, i, trip)
			}
			b = next
		}
	}
	for i := range 40 { // a day remembers so many hours at most
		n := int64(60_000 + 500*i)
		if next, trip := b.Judge(rules, noon.Add(6*time.Hour), hour(i+1), breaker.Count{Due: n}); trip == nil {
			b = next
		}
	}
	if n := len(b.Days[len(b.Days)-1].Steps); n > 8 {
		t.Errorf("%d steps", n)
	}
}

// What is deleted under the key of its hour, but of an event that was approved, is neither usual nor part of
// what else the hour holds.
func TestChargedDeletesTeachNothing(t *testing.T) {
	k := rules.HourOf(noon)
	b, trip := old().CountedAll(noon, 100_000).Judge(rules, noon, k, breaker.Count{Due: 50_000})
	trip.ID = "t"
	a := trip.Approve(0, noon)
	list := []breaker.Approval{a}
	b = b.Approved(rules, *trip, a, false, noon)
	b, _, _ = b.Reserve(rules, noon, list, []breaker.Want{{Key: breaker.Key{Approval: "t"}, N: 50_000}}) // by another process
	count := func(due int64) breaker.Count {
		c, _ := b.Approvals(rules, list, noon, k)
		c.Due = due
		return c
	}
	if b, trip = b.Judge(rules, noon, k, count(50_000)); trip != nil {
		t.Fatal(trip)
	}
	b, grants, _ := b.Reserve(rules, noon, list, []breaker.Want{{Key: k, N: 30_000, Max: 30_000}})
	to, ok := b.ChargedTo(rules, list, noon, noon.Add(time.Minute), 0)
	if !ok || len(grants) != 1 || grants[0].N != 30_000 {
		t.Fatal(to, ok, grants)
	}
	b = b.Take([]breaker.Report{{Key: k, Done: 30_000, Charged: 30_000}, {Key: to, Charged: 30_000}})
	b, err := breaker.Decode(b.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if limit := b.Limit(rules, noon, rules.HourOf(noon.Add(time.Hour))); limit != 25_000 {
		t.Errorf("the limit of the next hour is %d", limit)
	}
	later := noon.Add(90 * time.Minute) // nobody has deleted for an hour: the count is void
	if _, trip := b.Judge(rules, later, k, count(20_000)); trip != nil {
		t.Errorf("the rest of what was approved trips: %+v", trip)
	}
	if _, trip := b.Judge(rules, later, k, count(20_000+25_001)); trip == nil {
		t.Error("another event of the same hour passes")
	}
}

// No more is charged than was left of the approval.
func TestChargedUpToTheApproval(t *testing.T) {
	k, ka := rules.HourOf(noon), breaker.Key{Approval: "t"}
	a := breaker.Approval{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Count: 1000, At: noon}
	b, _, _ := old().CountedAll(noon, 100_000).Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: ka, N: 1000}})
	b, _ = b.Judge(rules, noon, k, breaker.Count{Due: 5000, Reserved: 1000})
	b, _, _ = b.Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: k, N: 3000}})
	for range 3 { // also with reports whose answers were lost
		b = b.Take([]breaker.Report{{Key: k, Done: 600, Charged: 600}, {Key: ka, Done: 100, Charged: 600}})
	}
	if hour, of := b.At(k), b.At(ka); hour.Done != 1800 || hour.Charged != 800 || of.Done != 1000 {
		t.Errorf("%+v, %+v", hour, of)
	}
}
