package breaker_test

import (
	"errors"
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
	for done := int64(0); done < 30_000; { // each count opens a slice of what is reserved
		if b, trip = b.Judge(rules, noon, k, count(50_000-done)); trip != nil {
			t.Fatal(done, trip)
		}
		next, grants, _ := b.Reserve(rules, noon, list, []breaker.Want{{Key: k, N: 1, Max: 30_000 - done}})
		to, ok := b.ChargedTo(rules, list, noon, noon.Add(time.Minute), 0)
		if !ok || len(grants) != 1 || grants[0].N < min(8000, 30_000-done) {
			t.Fatal(done, to, ok, grants)
		}
		n := grants[0].N
		b, done = next.Take([]breaker.Report{{Key: k, Done: n, Charged: n}, {Key: to, Charged: n}}), done+n
	}
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

// While one process works on all of an approved event, another may help; but what that one may delete
// without a further count is not for the next event of the same hour.
func TestReservedIsNotOpenedTwice(t *testing.T) {
	k, ka := rules.HourOf(noon), breaker.Key{Approval: "t"}
	a := breaker.Approval{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Count: 50_000, At: noon}
	list := []breaker.Approval{a}
	for name, of := range map[string]breaker.Count{"due": {Due: 50_000}, "coming": {Coming: 50_000}, "both": {Due: 20_000, Coming: 30_000}} {
		b, _, _ := old().CountedAll(noon, 100_000).Reserve(rules, noon, list, []breaker.Want{{Key: ka, N: 50_000}})
		c, _ := b.Approvals(rules, list, noon, k)
		c.Due, c.Coming = of.Due, of.Coming
		b, trip := b.Judge(rules, noon, k, c)
		if trip != nil {
			t.Fatal(name, trip)
		}
		b = b.Take([]breaker.Report{{Key: ka, Done: 50_000}})
		granted := int64(0) // of another event
		for minute := range 59 {
			for {
				next, grants, _ := b.Reserve(rules, noon.Add(time.Duration(minute)*time.Minute), list, []breaker.Want{{Key: k, N: 100}})
				if len(grants) == 0 {
					break
				}
				b, granted = next, granted+grants[0].N
			}
		}
		if slice := breaker.SliceOf(rules, 50_000); granted > slice {
			t.Errorf("%s: %d are granted without a count, more than a slice of %d", name, granted, slice)
		}
	}
}

// What is charged is forgotten by itself: the rest of what is late is remembered for as long as without it.
func TestChargedLeaks(t *testing.T) {
	a := breaker.Approval{ID: "t", Rule: breaker.LateOnes, Through: noon, Count: 60_000, At: noon}
	list, ka, late := []breaker.Approval{a}, breaker.Key{Approval: "t"}, breaker.Late()
	passes := func(charged int64, hours int) (n int64) {
		b, _, _ := old().CountedAll(noon, 100_000).Reserve(rules, noon, list, []breaker.Want{{Key: ka, N: 60_000}})
		b, _ = b.Judge(rules, noon, late, breaker.Count{Due: 60_000 + 20_000, Reserved: 60_000})
		for done := int64(0); done < 20_000+charged; {
			next, grants, _ := b.Reserve(rules, noon, list, []breaker.Want{{Key: late, N: 1, Max: 20_000 + charged - done}})
			if len(grants) == 0 {
				next, _ = b.Judge(rules, noon, late, breaker.Count{Due: 20_000 + charged - done, Reserved: charged})
				b = next
				continue
			}
			of := min(grants[0].N, max(0, charged-done))
			b, done = next.Take([]breaker.Report{{Key: late, Done: grants[0].N, Charged: of}, {Key: ka, Charged: of}}), done+grants[0].N
		}
		at := noon.Add(time.Duration(hours) * time.Hour)
		b = b.CountedAll(at, 100_000)
		for n = 100; ; n += 100 {
			if _, trip := b.Judge(rules, at, late, breaker.Count{Due: n}); trip != nil {
				return n
			}
		}
	}
	for _, hours := range []int{1, 4, 7, 12} {
		without, with := passes(0, hours), passes(60_000, hours)
		if diff := with - without; diff < -100 || diff > 100 {
			t.Errorf("after %d hours %d late ones trip, and %d if 60000 were charged before", hours, without, with)
		}
	}
}

// A trip says what was deleted of its own event, and not of one that was approved before.
func TestChargedIsNotOfTheNextTrip(t *testing.T) {
	k, ka := rules.HourOf(noon), breaker.Key{Approval: "t"}
	a := breaker.Approval{ID: "t", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Count: 50_000, At: noon}
	b, _, _ := old().CountedAll(noon, 100_000).Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: ka, N: 50_000}})
	b, _ = b.Judge(rules, noon, k, breaker.Count{Due: 50_000, Reserved: 50_000})
	b, grants, _ := b.Reserve(rules, noon, []breaker.Approval{a}, []breaker.Want{{Key: k, N: 8000}})
	b = b.Take([]breaker.Report{{Key: k, Done: grants[0].N, Charged: grants[0].N}, {Key: ka, Done: 42_000, Charged: 8000}})
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: 26_000})
	if trip == nil || trip.Due != 26_000 || trip.Gone != 0 {
		t.Fatalf("%+v", trip)
	}
	b = b.Approved(rules, *trip, trip.Approve(0, noon), true, noon)
	if limit := b.Limit(rules, noon, rules.HourOf(noon.Add(time.Hour))); limit != 39_000 {
		t.Errorf("the limit of the next hour is %d, with 26000 approved as normal", limit)
	}
}

// What was deleted elsewhere is charged to an approval of which something is left, if there is one.
func TestChargedWhereSomethingIsLeft(t *testing.T) {
	k := rules.HourOf(noon)
	first := breaker.Approval{ID: "a", Rule: breaker.Burst, Hour: k.Hour, Through: rules.End(k), Count: 50_000, At: noon}
	second := breaker.Approval{ID: "b", Rule: breaker.LateOnes, Through: noon.Add(40 * time.Minute), Count: 30_000, At: noon}
	list := []breaker.Approval{first, second}
	b, _, _ := old().Reserve(rules, noon, list, []breaker.Want{{Key: breaker.Key{Approval: "a"}, N: 50_000},
		{Key: breaker.Key{Approval: "b"}, N: 30_000}})
	for done, want := range map[int64]string{29_000: "b", 30_000: "a"} {
		next := b.Take([]breaker.Report{{Key: breaker.Key{Approval: "b"}, Done: done}})
		if of, ok := next.ChargedTo(rules, list, noon, noon.Add(time.Minute), 0); !ok || of.Approval != want {
			t.Errorf("with %d of the second reported: charged to %v, want %s", done, of, want)
		}
	}
	all := b.Take([]breaker.Report{{Key: breaker.Key{Approval: "a"}, Done: 50_000}, {Key: breaker.Key{Approval: "b"}, Done: 30_000}})
	if of, ok := all.ChargedTo(rules, list, noon, noon.Add(time.Minute), 0); !ok || of.Approval != "b" {
		t.Errorf("with all reported: charged to %v", of)
	}
}

// What somebody has approved as normal stays so, however many hours teach more on that day.
func TestNormalIsNotForgotten(t *testing.T) {
	b := old().CountedAll(noon, 200_000)
	b, trip := b.Judge(rules, noon, rules.HourOf(noon), breaker.Count{Due: 100_000})
	b = b.Approved(rules, *trip, trip.Approve(0, noon), true, noon)
	for i := range 12 {
		var trip *breaker.Trip
		if b, trip = b.Judge(rules, noon, rules.HourOf(noon.Add(time.Duration(i+1)*time.Hour)), breaker.Count{Due: 101_000 + int64(i)*1000}); trip != nil {
			t.Fatal(trip)
		}
	}
	if limit := b.Limit(rules, noon, rules.HourOf(noon)); limit != 150_000 {
		t.Errorf("the limit of the hour that was approved is %d", limit)
	}
	if n := len(b.Days[0].Steps); n > 8 {
		t.Errorf("%d steps", n)
	}
}

// What was announced of an hour is gone once all of that hour was approved: it lets no other event pass.
func TestAnnouncedGoesByTheApproval(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 200_000).Announce(rules, noon, map[time.Time]int64{noon: 80_000, noon.Add(time.Hour): 7})
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: 140_000})
	trip.ID = "t"
	for _, c := range []struct{ approved, limit int64 }{{0, 50_000}, {70_000, 130_000}} { // all, a part
		next := b.Approved(rules, *trip, trip.Approve(c.approved, noon), false, noon)
		if enough := next.Enough(rules, noon, k); enough != c.limit {
			t.Errorf("with %d approved, %d more pass, want %d", c.approved, enough, c.limit)
		}
		if later := rules.HourOf(noon.Add(time.Hour)); next.Enough(rules, noon, later) != 50_007 {
			t.Error("what was announced of another hour is gone")
		}
	}
}

// What was reserved lies in its own place: there may be less of it, and nothing less elsewhere.
func TestReserved(t *testing.T) {
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	hour := func(n int64, h int) breaker.Part {
		return breaker.Part{N: n, From: at(60 * h), Through: at(60 * (h + 1))}
	}
	until := func(n int64, minutes int) breaker.Part { return breaker.Part{N: n, Through: at(minutes)} }
	for name, c := range map[string]struct {
		parts []breaker.Part
		there map[int]int64 // by the minute of expiry
		want  int64
	}{
		"none":                            {want: 0},
		"all of it":                       {[]breaker.Part{until(500, 10)}, map[int]int64{5: 900}, 500},
		"less than that":                  {[]breaker.Part{until(500, 10)}, map[int]int64{5: 300, 20: 900}, 300},
		"an hour after what is late":      {[]breaker.Part{until(200_000, 10), hour(500, 0)}, map[int]int64{5: 200_000}, 200_000},
		"and some of the hour":            {[]breaker.Part{until(200_000, 10), hour(500, 0)}, map[int]int64{5: 200_000, 30: 70}, 200_070},
		"both in the same place":          {[]breaker.Part{until(200, 10), hour(500, 0)}, map[int]int64{5: 600}, 600},
		"what is late, and an empty hour": {[]breaker.Part{until(200, 10), hour(500, 0)}, map[int]int64{-30: 500}, 200},
		"three hours":                     {[]breaker.Part{hour(5, 0), hour(6, 1), hour(7, 2)}, map[int]int64{5: 9, 70: 9, 130: 9}, 18},
		"two hours":                       {[]breaker.Part{hour(50_000, 0), hour(2000, 1)}, map[int]int64{5: 50_000, 70: 2000}, 52_000},
		"the first of two hours is empty": {[]breaker.Part{hour(50_000, 0), hour(2000, 1)}, map[int]int64{70: 9000}, 2000},
		"two events of one hour":          {[]breaker.Part{hour(500, 0), hour(300, 0)}, map[int]int64{5: 700, 70: 9000}, 700},
		"two hours, and what is late": {[]breaker.Part{hour(500, 0), hour(300, 1), until(100, 130)},
			map[int]int64{5: 500, 70: 300, 125: 40}, 840},
		"and one more hour": {[]breaker.Part{until(100, 10), until(100, 20), hour(500, 1), until(40, 130), hour(8, 3)},
			map[int]int64{5: 100, 70: 10, 190: 20}, 118},
	} {
		calls := 0
		there := func(in breaker.Part, upTo int64) (n int64, err error) {
			calls++
			for minute, m := range c.there {
				if e := at(minute); !e.Before(in.From) && !e.After(in.Through) {
					n += m
				}
			}
			return min(n, upTo), nil
		}
		if n, err := breaker.Reserved(c.parts, there); err != nil || n != c.want || calls > 2*len(c.parts) {
			t.Errorf("%s: %d after %d counts, want %d (%v)", name, n, calls, c.want, err)
		}
	}
	broken := errors.New("broken")
	if _, err := breaker.Reserved([]breaker.Part{hour(1, 0)}, func(breaker.Part, int64) (int64, error) { return 0, broken }); err != broken {
		t.Error(err)
	}
}
