package breaker_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/store"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func want(k breaker.Key, n int64) []breaker.Want { return []breaker.Want{{Key: k, N: n}} }

// old returns a budget that has learnt for long enough.
func old() breaker.Budget {
	return breaker.Budget{Target: "sessions", Began: noon.Add(-48 * time.Hour)}
}

func Example() {
	r := breaker.Rules{On: true, Floor: 1000, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour,
		Rewind: 24 * time.Hour}
	b := breaker.Budget{Target: "sessions", Began: noon.Add(-48 * time.Hour)}
	k := r.HourOf(noon)

	b, grants, _ := b.Reserve(r, noon, nil, []breaker.Want{{Key: k, N: 3000}})
	fmt.Println("granted without a count:", grants[0].N)
	_, _, unmet := b.Reserve(r, noon, nil, []breaker.Want{{Key: k, N: 2000}})
	fmt.Println("hours to count:", len(unmet))

	b = b.Take([]breaker.Report{{Key: k, Done: 1000}})
	c := breaker.Count{Due: 2000}
	b = b.CountedAll(noon, 3000) // as AllNeeded asks
	_, trip := b.Judge(r, noon, k, c)
	fmt.Println(trip.Rule, trip.Due, "left of", trip.Due+trip.Gone, "limit", trip.Limit)
	// Output:
	// granted without a count: 1000
	// hours to count: 1
	// burst 2000 left of 3000 limit 1000
}

func TestFloorOfZeroCountsEverything(t *testing.T) {
	r := rules
	r.Floor = 0
	k := r.HourOf(noon)
	b, grants, unmet := old().Reserve(r, noon, nil, want(k, 1))
	if len(grants) > 0 || len(unmet) != 1 {
		t.Fatalf("granted %v without a count", grants)
	}
	b = b.CountedAll(noon, 100)
	b, trip := b.Judge(r, noon, k, breaker.Count{Due: 5, Coming: 5})
	if trip != nil {
		t.Fatalf("ten of a hundred trip: %+v", trip)
	}
	if _, grants, _ = b.Reserve(r, noon, nil, want(k, 100)); len(grants) != 1 || grants[0].N != 6 {
		t.Errorf("granted %v, not the five that are due and a slice", grants)
	}
}

// What comes in the rest of an hour opens as evenly as it should come, and an event that
// comes in between is counted before more than a floor of it goes.
func TestEventInAnHourThatWasCounted(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 1_000_000)
	b, trip := b.Judge(rules, noon, k, breaker.Count{Coming: 60_000})
	if trip != nil {
		t.Fatal(trip)
	}
	went := int64(0)
	for m := range 30 { // as expected
		now := noon.Add(time.Duration(m+1) * time.Minute)
		next, grants, _ := b.Reserve(rules, now, nil, want(k, 1000))
		if len(grants) != 1 || grants[0].N < 990 {
			t.Fatalf("minute %d: granted %v", m, grants)
		}
		b, went = next, went+grants[0].N
	}
	now := noon.Add(31 * time.Minute) // everything is due at once
	b, grants, _ := b.Reserve(rules, now, nil, want(k, 500_000))
	if most := rules.Floor + breaker.SliceOf(rules, 60_000) + 1000; len(grants) == 1 && grants[0].N > most {
		t.Fatalf("%d of the event go, more than %d", grants[0].N, most)
	}
	b = b.Take([]breaker.Report{{Key: k, Done: went}})
	if _, trip = b.Judge(rules, now, k, breaker.Count{Due: 900_000}); trip == nil {
		t.Error("the event passes")
	}
}

func TestApprovalCoversItsEventAlone(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 3000)
	b, grants, _ := b.Reserve(rules, noon, nil, want(k, 1000))
	b = b.Take([]breaker.Report{{Key: k, Done: grants[0].N}})
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: 2000})
	if trip == nil {
		t.Fatal("no trip")
	}
	trip.ID, trip.Generation = "t1", 4
	a := trip.Approve(0, noon)
	list := []breaker.Approval{a}
	b = b.Approved(rules, *trip, a, false, noon)
	unspent := func(id string) bool { return b.IsSpent(rules, a, noon) }
	for name, c := range map[string]struct {
		expires    time.Time
		generation int
		late, is   bool
	}{
		"the event":        {noon.Add(time.Minute), 4, false, true},
		"the next hour":    {noon.Add(time.Hour + time.Minute), 4, false, false},
		"the hour before":  {noon.Add(-time.Minute), 4, false, false},
		"a new generation": {noon, 5, false, false},
		"a late one of it": {noon, 4, true, true},
		"another late one": {noon.Add(-time.Hour), 4, true, false},
	} {
		if got := rules.KeyOf(list, unspent, c.expires, c.generation, c.late); (got.Approval != "") != c.is {
			t.Errorf("%s is counted as %+v", name, got)
		}
	}
	b, grants, _ = b.Reserve(rules, noon, list, want(breaker.Key{Approval: "t1"}, 5000))
	if grants[0].N != 2000 || !b.IsSpent(rules, a, noon) {
		t.Errorf("the approval of 2000 grants %d", grants[0].N)
	}
	if _, grants, _ = b.Reserve(rules, noon, list, want(breaker.Key{Approval: "t1"}, 1)); len(grants) > 0 {
		t.Error("an approval that is used up grants more")
	}
	if _, grants, _ = b.Reserve(rules, noon, nil, want(breaker.Key{Approval: "t1"}, 1)); len(grants) > 0 {
		t.Error("an approval that nobody gave grants something")
	}
	if fresh := old(); !fresh.IsSpent(rules, a, noon.Add(25*time.Hour)) {
		t.Error("an approval that nobody needs stays for the next event")
	}
}

// A process that reserves more of an approval than it needs gives the rest back. What others have
// deleted of the event meanwhile, under other keys, is charged to the approval: else the rest would let
// the next event pass.
func TestRestOfAnApprovalIsNotForTheNextEvent(t *testing.T) {
	a := breaker.Trip{ID: "t1", Rule: breaker.LateOnes, Due: 2000, Through: noon, Generation: 7}.Approve(0, noon)
	mine, list := breaker.Key{Approval: "t1"}, []breaker.Approval{a}
	b, grants, _ := old().Reserve(rules, noon, list, want(mine, 2000))
	if grants[0].N != 2000 {
		t.Fatalf("%v", grants)
	}
	for _, x := range []struct {
		now, expires time.Time
		generation   int
		charged      bool
	}{
		{noon, noon, 7, true},
		{noon, noon.Add(-time.Hour), 1, true},
		{noon, noon.Add(time.Second), 7, false},    // it is no part of the event
		{noon, noon, 8, false},                     // nor is this
		{noon.Add(25 * time.Hour), noon, 7, false}, // the event is long over
	} {
		if k, ok := b.ChargedTo(rules, list, x.now, x.expires, x.generation); ok != x.charged || ok && k != mine {
			t.Errorf("%+v: %v, %v", x, k, ok)
		}
	}
	charged, late := breaker.Report{Key: mine, Charged: 900}, breaker.Report{Key: breaker.Late(), Done: 900}
	for _, x := range []struct{ done, rest, left int64 }{
		{1100, 900, 0},
		{1000, 1000, 100}, // a part of the event is left, or was never there
		{1500, 500, 0},
		{2000, 0, 0},
	} {
		b := b.Take([]breaker.Report{late, charged}).Take([]breaker.Report{{Key: mine, Done: x.done, Rest: x.rest}})
		if got := b.At(mine); a.Count-got.Granted != x.left || got.Done != got.Granted || b.Spent.Ever != 900+x.done {
			t.Errorf("%+v: %+v, %d deleted in all", x, got, b.Spent.Ever)
		}
		_, grants, _ := b.Reserve(rules, noon, list, want(mine, 2000))
		if x.left == 0 && len(grants) > 0 || x.left > 0 && grants[0].N != x.left {
			t.Errorf("%+v: %v is left for the next event", x, grants)
		}
		// What goes of the next event is charged to nothing.
		if next := b.Take([]breaker.Report{charged}); x.left == 0 && next.At(mine) != b.At(mine) {
			t.Errorf("%+v: %+v", x, next.At(mine))
		}
	}
}

func TestPartOfAnEventIsApproved(t *testing.T) {
	trip := breaker.Trip{ID: "t1", Rule: breaker.LateOnes, Due: 2000, Through: noon}
	for n, want := range map[int64]int64{0: 2000, 100: 100, 5000: 2000} {
		if a := trip.Approve(n, noon); a.Count != want {
			t.Errorf("%d of 2000: %d", n, a.Count)
		}
	}
}

// Parts of an event are approved, days apart. What is left belongs to the event until all of it is
// approved, and to no other one.
func TestRestOfPartsBelongsToTheEvent(t *testing.T) {
	hour := rules.HourOf(noon)
	part := func(id string, count int64, at time.Time) breaker.Approval {
		return breaker.Approval{ID: id, Rule: breaker.Burst, Hour: hour.Hour, Through: noon, Count: count, At: at, Part: true}
	}
	first, days := part("t1", 600, noon), noon.Add(5*24*time.Hour)
	second := part("t2", 100, days)
	whole := second
	whole.ID, whole.Part = "t3", false
	ground, late := first, first
	ground.Rule, late.Rule, late.Hour = breaker.NewGround, breaker.LateOnes, time.Time{}
	for name, c := range map[string]struct {
		approved []breaker.Approval
		now      time.Time
		key      breaker.Key
		want     bool
	}{
		"one part":               {[]breaker.Approval{first}, noon, hour, true},
		"two parts, days apart":  {[]breaker.Approval{first, second}, days, hour, true},
		"then all of it":         {[]breaker.Approval{first, second, whole}, days, hour, false},
		"a part after all of it": {[]breaker.Approval{first, whole, second}, days, hour, true},
		"nobody used it":         {[]breaker.Approval{first}, days, hour, false},
		"of another hour":        {[]breaker.Approval{first}, noon, rules.HourOf(noon.Add(-24 * time.Hour)), false},
		"of what is late":        {[]breaker.Approval{late}, noon, breaker.Late(), true},
		"of the hour, not late":  {[]breaker.Approval{first}, noon, breaker.Late(), false},
		"many parts":             {slices.Repeat([]breaker.Approval{first}, 20), noon, hour, true},
		"edited by hand":         {[]breaker.Approval{part("t4", 1, noon.Add(1000*time.Hour))}, noon, hour, false},
		"of unswept ground":      {[]breaker.Approval{ground}, noon, breaker.Late(), false},
	} {
		if got := old().HoldsRest(rules, c.approved, c.now, c.key); got != c.want {
			t.Errorf("%s: the rest is held: %v, want %v", name, got, c.want)
		}
	}
}

func TestNormalIsLearnt(t *testing.T) {
	k := rules.HourOf(noon)
	b := old().CountedAll(noon, 3000)
	_, trip := b.Judge(rules, noon, k, breaker.Count{Due: 2500})
	for _, normal := range []bool{true, false} {
		next := b.Approved(rules, *trip, trip.Approve(0, noon), normal, noon)
		tomorrow := noon.Add(23 * time.Hour)
		_, again := next.Judge(rules, tomorrow, rules.HourOf(tomorrow), breaker.Count{Due: 2500})
		if (again == nil) != normal {
			t.Errorf("normal is %v, and the same on the next day trips: %v", normal, again != nil)
		}
	}
}

// What is late is forgotten little by little: an event at midnight must not have two floors.
func TestLateOnesLeak(t *testing.T) {
	b := old()
	b, grants, _ := b.Reserve(rules, noon, nil, want(breaker.Late(), 1000))
	b = b.Take([]breaker.Report{{Key: breaker.Late(), Done: grants[0].N}})
	for hours, most := range map[int]int64{1: 60, 12: 600, 24: 1000} {
		_, grants, _ := b.Reserve(rules, noon.Add(time.Duration(hours)*time.Hour), nil, want(breaker.Late(), 1000))
		if len(grants) == 0 || grants[0].N > most {
			t.Errorf("after %d hours: %v", hours, grants)
		}
	}
}

// A budget tells whether somebody judged what is late meanwhile, whatever was granted of it a day
// before, or goes without a count.
func TestJudgedSince(t *testing.T) {
	r, k, now := rules, breaker.Late(), noon.Add(20*time.Hour)
	before, trip := old().CountedAll(noon, 100_000).Judge(r, noon, k, breaker.Count{Due: 1000})
	if trip != nil {
		t.Fatal(trip)
	}
	before, _, _ = before.Reserve(r, noon, nil, want(k, 1000))
	b, _, _ := before.Reserve(r, now, nil, want(k, 5))
	if b.JudgedSince(before, r, now, k) {
		t.Error("what the floor lets go was judged")
	}
	b, trip = b.CountedAll(now, 100_000).Judge(r, now, k, breaker.Count{Due: 500})
	if trip != nil || !b.JudgedSince(before, r, now, k) {
		t.Errorf("%+v was not judged: %+v", b.Tallies, trip)
	}
	b, _, _ = b.Reserve(r, now, nil, want(k, 500))
	if !b.JudgedSince(before, r, now, k) || b.JudgedSince(b, r, now, k) {
		t.Errorf("%+v was not judged since %+v", b.Tallies, before.Tallies)
	}
}

func TestNewGround(t *testing.T) {
	if breaker.JudgeUnswept(rules, noon, breaker.Count{Due: 1000}) != nil {
		t.Error("the floor trips")
	}
	if trip := breaker.JudgeUnswept(rules, noon, breaker.Count{Due: 1001}); trip == nil || trip.Rule != breaker.NewGround || trip.Due != 1001 {
		t.Errorf("trip %+v", trip)
	}
}

// What is left of an event may be less than its limit. Its summary does not say that it is more.
func TestSummaryOfATrip(t *testing.T) {
	for due, want := range map[int64]string{1500: "late: 1500 are due, more than 1000",
		901: "late: 901 are due and 999 of the same were deleted, together more than 1000"} {
		if got := (breaker.Trip{Rule: breaker.LateOnes, Due: due, Gone: 999, Limit: 1000}).Summary(); got != want {
			t.Errorf("%q", got)
		}
	}
}

// A process that is killed reports nothing: its slice is neither free for others, nor taken
// for entities that were there.
func TestLostSlices(t *testing.T) {
	b, k := old(), rules.HourOf(noon)
	for range 20 {
		b, _, _ = b.Reserve(rules, noon, nil, []breaker.Want{{Key: k, N: 50}})
	}
	b, _, unmet := b.Reserve(rules, noon, nil, want(k, 50))
	if len(unmet) == 0 {
		t.Fatal("more than the floor is granted")
	}
	b, trip := b.Judge(rules, noon, k, breaker.Count{Due: 300})
	if trip != nil {
		t.Fatalf("three hundred trip: %+v", trip)
	}
	if _, grants, _ := b.Reserve(rules, noon, nil, want(k, 300)); len(grants) != 1 || grants[0].N != 300 {
		t.Errorf("granted %v", grants)
	}
}

// What is due soon stays announced, however far ahead the rest is: an adoption stamps what expires within
// years, and spreads what has expired over the next day.
func TestAnnounceKeepsTheNextHours(t *testing.T) {
	b := old().CountedAll(noon, 3000)
	soon := rules.HourOf(noon.Add(3 * time.Hour)).Hour
	b = b.Announce(rules, noon, map[time.Time]int64{soon: 700})
	years := map[time.Time]int64{}
	for i := range 2 * 365 * 24 {
		years[noon.Add(time.Duration(10+i)*time.Hour)] = 1
	}
	b = b.Announce(rules, noon, years)
	if len(b.Announced) > 2000 || len(b.Announced) == 0 || !b.Announced[0].Hour.Equal(soon) || b.Announced[0].N != 700 {
		t.Errorf("of %d announced hours the first is %+v", len(b.Announced), b.Announced[0])
	}
}

func TestRecord(t *testing.T) {
	b := old().CountedAll(noon, 3000)
	for i := range 300 {
		b, _, _ = b.Reserve(rules, noon, nil, want(rules.HourOf(noon.Add(time.Duration(i)*time.Hour)), 5))
	}
	b, _, _ = b.Reserve(rules, noon, nil, want(breaker.Late(), 5))
	b, _, _ = b.Reserve(rules, noon, []breaker.Approval{{ID: "t1", Count: 7}}, want(breaker.Key{Approval: "t1"}, 5))
	b, _ = b.Judge(rules, noon, rules.HourOf(noon), breaker.Count{Due: 1500, Coming: 7})
	b.Trip = breaker.Detail{ID: "t1", Histogram: []breaker.Bar{{noon, noon.Add(time.Hour), 1, 1500}}, Samples: []string{"a b", "c:d"}}
	b = b.Announce(rules, noon, map[time.Time]int64{noon: 3, noon.Add(time.Minute): 4, noon.Add(-time.Hour): 5})
	b.Uncounted = "L: the store took too long"
	rec := b.Encode()
	got, err := breaker.Decode(rec)
	if err != nil {
		t.Fatal(err)
	}
	b.Revision = rec.Revision
	if !reflect.DeepEqual(got, b) {
		t.Errorf("read\n%+v, written\n%+v", got, b)
	}
	if n := len(fmt.Sprint(rec.Fields)); n > 12_000 {
		t.Errorf("the record has %d bytes", n)
	}
	for field, bad := range map[string]any{"tallies": "1:2", "days": "x:1", "taught": "1:2", "all": "1:-5", "began": "noon", "schema": int64(0)} {
		broken := b.Encode()
		broken.Fields[field] = bad
		if _, err := breaker.Decode(broken); err == nil || !strings.Contains(err.Error(), field) && field != "all" {
			t.Errorf("%s: %v is read, or not named: %v", field, bad, err)
		}
	}
	newer := store.Record{Sort: store.BudgetRecord, Key: "sessions", Fields: store.Fields{"schema": int64(2)}}
	if _, err := breaker.Decode(newer); err == nil || len(store.Hints(err)) == 0 {
		t.Errorf("a record of a newer program: %v", err)
	}
}

// An approval stays used up, however many hours are swept after it.
func TestApprovalIsNotForgottenBeforeItEnds(t *testing.T) {
	a := breaker.Approval{ID: "t1", Rule: breaker.LateOnes, Through: noon, Count: 7, At: noon}
	b := old()
	b, grants, _ := b.Reserve(rules, noon, []breaker.Approval{a}, want(breaker.Key{Approval: "t1"}, 7))
	if len(grants) != 1 || grants[0].N != 7 {
		t.Fatalf("granted %v", grants)
	}
	for i := range 400 {
		b, _, _ = b.Reserve(rules, noon, nil, want(rules.HourOf(noon.Add(time.Duration(i)*time.Hour)), 5))
	}
	if len(b.Tallies) > 130 || !b.IsSpent(rules, a, noon) {
		t.Errorf("%d tallies, and the approval is there once more", len(b.Tallies))
	}
	b, _, _ = b.Reserve(rules, noon.Add(72*time.Hour), nil, want(rules.HourOf(noon), 5))
	if b.At(breaker.Key{Approval: "t1"}).Granted > 0 || !b.IsSpent(rules, a, noon.Add(72*time.Hour)) {
		t.Error("an approval that ended is kept")
	}
}

// An hour that nobody can count has one floor, however many hours are swept while it waits.
func TestHourThatWaitsIsNotForgotten(t *testing.T) {
	b, k, sum := old(), rules.HourOf(noon), int64(0)
	for i := range 400 {
		now := noon.Add(time.Duration(i) * time.Hour)
		var grants []breaker.Grant
		b, grants, _ = b.Reserve(rules, now, nil, append(want(k, 500), want(rules.HourOf(now.Add(time.Hour)), 1)...))
		for _, g := range grants {
			if g.Key == k {
				sum += g.N
			}
		}
	}
	if sum != rules.Floor {
		t.Errorf("%d are granted without a count", sum)
	}
}

// Entities that are kept after their expiry come to be due later, and their hour ends later.
func TestHoursEndAfterTheRetention(t *testing.T) {
	r := rules
	r.Retention = 30 * 24 * time.Hour
	k := r.HourOf(noon)
	now := noon.Add(r.Retention)
	b := breaker.Budget{Target: "sessions", Began: now.Add(-48 * time.Hour)}.CountedAll(now, 1_000_000)
	b, trip := b.Judge(r, now, k, breaker.Count{Coming: 60_000})
	if trip != nil {
		t.Fatal(trip)
	}
	_, grants, _ := b.Reserve(r, now.Add(time.Minute), nil, want(k, 5000))
	if len(grants) != 1 || grants[0].N > 1000+breaker.SliceOf(r, 60_000) {
		t.Errorf("a minute of an hour grants %v", grants)
	}
	_, trip = b.Judge(r, now, breaker.Late(), breaker.Count{Due: 900_000})
	if trip == nil || !trip.Through.Equal(noon) {
		t.Errorf("what is due expires by noon: %+v", trip)
	}
}

func TestLimitsOfTheClock(t *testing.T) {
	r := breaker.Rules{Limits: breaker.Limits{PerHour: 100, PerDay: 150}}
	b := breaker.Budget{}
	ask := func(at time.Time, n int64) (got int64) {
		next, grants, unmet := b.Reserve(r, at, nil, want(breaker.Late(), n))
		for _, g := range grants {
			got += g.N
		}
		if b = next; len(unmet) > 0 {
			t.Error("a limit asks for a count")
		}
		return got
	}
	for i, c := range []struct {
		at      time.Duration
		n, want int64
	}{{0, 70, 70}, {0, 70, 30}, {time.Minute, 1, 0}, {time.Hour, 40, 40}, {2 * time.Hour, 40, 10}, {3 * time.Hour, 1, 0},
		{-time.Minute, 1, 0}, {12 * time.Hour, 100, 100}} {
		if got := ask(noon.Add(c.at), c.n); got != c.want {
			t.Errorf("%d: granted %d of %d, not %d", i, got, c.n, c.want)
		}
		if at := noon.Add(c.at); c.at == 3*time.Hour && b.UsedUp(r.Limits, at) != "150 a day" {
			t.Errorf("%s are used up until %v", b.UsedUp(r.Limits, at), b.LimitedUntil(r.Limits, at))
		}
	}
	midnight := noon.Add(12 * time.Hour)
	if until := b.LimitedUntil(r.Limits, midnight); !until.Equal(midnight.Add(time.Hour)) ||
		b.UsedUp(r.Limits, midnight) != "100 an hour" {
		t.Errorf("%s until %v", b.UsedUp(r.Limits, midnight), until)
	}
	b = b.Take([]breaker.Report{{Key: breaker.Late(), Rest: 50, Granted: midnight.Add(-time.Minute)}})
	if got := ask(midnight, 1); got != 0 {
		t.Error("what comes back from the last hour makes room in this one")
	}
	b = b.Take([]breaker.Report{{Key: breaker.Late(), Rest: 5, Granted: midnight}})
	if got := ask(midnight, 50); got != 5 {
		t.Errorf("granted %d of the 5 that came back", got)
	}
}

// A clock that was years ahead for a while leaves nothing that holds deletes, or lets bursts pass,
// until then.
func TestClockThatWasAhead(t *testing.T) {
	r := rules
	r.Limits = breaker.Limits{PerHour: 100}
	wrong := noon.Add(10 * 365 * 24 * time.Hour)
	b := breaker.Budget{Target: "sessions"}
	b, _, _ = b.Reserve(r, wrong, nil, want(r.HourOf(wrong), 100))
	b, _, _ = b.Reserve(r, wrong, nil, want(breaker.Late(), 100))
	b, _ = b.CountedAll(wrong, 4000).Judge(r, wrong, r.HourOf(wrong), breaker.Count{Due: 3000})
	k := r.HourOf(noon)
	b, grants, _ := b.Reserve(r, noon, nil, want(k, 1))
	if until := b.LimitedUntil(r.Limits, noon); len(grants) != 1 || !until.IsZero() {
		t.Errorf("granted %v, limited until %v", grants, until)
	}
	later := noon.Add(25 * time.Hour)
	b, _, _ = b.Reserve(r, later, nil, want(k, 1))
	if b.OnlyLearns(r, later) {
		t.Errorf("it only learns since %v", b.Began)
	}
	if _, trip := b.CountedAll(later, 4000).Judge(r, later, k, breaker.Count{Due: 3000}); trip == nil {
		t.Errorf("a burst passes: %+v", b)
	}
}

func TestHalvedLives(t *testing.T) {
	b := old()
	for h := range 24 {
		b = b.TakeLives(noon.Add(time.Duration(h)*time.Hour), map[int]int64{breaker.BucketOf(24 * time.Hour): 20})
	}
	now := noon.Add(24 * time.Hour)
	if _, _, halved := b.HalvedLives(now); halved {
		t.Error("lives that stay the same are told")
	}
	mixed := b.TakeLives(now, map[int]int64{breaker.BucketOf(24 * time.Hour): 20, breaker.BucketOf(time.Hour): 30})
	before, after, halved := mixed.HalvedLives(now)
	if !halved || before < 20*time.Hour || before > 28*time.Hour || after > 70*time.Minute {
		t.Errorf("%v, then %v: %v", before, after, halved)
	}
	few := b.TakeLives(now.Add(3*time.Hour), map[int]int64{breaker.BucketOf(time.Hour): 10})
	if _, _, halved := few.HalvedLives(now.Add(3 * time.Hour)); halved {
		t.Error("ten tell something")
	}
	if got, err := breaker.Decode(mixed.Encode()); err != nil || !reflect.DeepEqual(got.Lives, mixed.Lives) {
		t.Errorf("read %+v, %v", got.Lives, err)
	}
}
