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
