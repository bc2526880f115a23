package breaker_test

import (
	"cmp"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

var rules = breaker.Rules{On: true, Floor: 1000, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour,
	Rewind: 24 * time.Hour}

// step is the resolution of a simulated year.
const step = time.Hour / 2

var newYear = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A life is a target over a year: what is written, when it expires, and what goes wrong.
type life struct {
	size  float64 // entities, as soon as as many expire as are written
	ttl   time.Duration
	rate  func(at time.Time) float64    // of writes, around 1
	event func(l *target, at time.Time) // what somebody does, if anything
	down  func(at time.Time) bool       // nobody sweeps
	days  int                           // a year if it is 0
}

// A target is what a life holds: how many entities expire in each step.
type target struct {
	due     map[int64]int64 // by step
	late    int64           // due, and behind the cursors
	all     int64
	swept   int64 // up to this step
	part    float64
	budget  breaker.Budget
	open    breaker.Trip
	list    []breaker.Approval
	gone    map[string]int64 // before its approval, by trip
	reads   float64          // for counts
	deleted int64
}

func stepOf(at time.Time) int64 { return at.Unix() / int64(step/time.Second) }

// add writes entities that expire at an instant.
func (l *target) add(at time.Time, n int64) {
	l.due[stepOf(at)] += n
	l.all += n
}

// count counts what is left under a key, as of a step.
func (l *target) count(k breaker.Key, now time.Time) (c breaker.Count) {
	l.reads++
	if k.IsLate() {
		l.reads += float64(l.late) / 1000
		return breaker.Count{Due: l.late}
	}
	for i := stepOf(k.Hour); i < stepOf(rules.End(k)); i++ {
		if i <= stepOf(now) {
			c.Due += l.due[i]
		} else {
			c.Coming += l.due[i]
		}
	}
	l.reads += float64(c.Due+c.Coming) / 1000
	return c
}

// ask deletes up to n under a key, and returns how much it did.
func (l *target) ask(k breaker.Key, n int64, now time.Time) (done int64) {
	for done < n && !l.open.IsOpen() {
		next, grants, unmet := l.budget.Reserve(rules, now, l.list, []breaker.Want{{Key: k, N: n - done}})
		l.budget = next
		for _, g := range grants {
			done += g.N
			l.take(k, g.N, now)
			l.budget = l.budget.Take([]breaker.Report{{Key: k, Done: g.N}})
		}
		if len(unmet) == 0 && len(grants) == 0 {
			return done
		}
		if len(unmet) > 0 {
			c := l.count(k, now)
			if upTo := l.budget.AllNeeded(rules, now, k, c); upTo > 0 {
				l.reads += float64(min(upTo, l.all)) / 1000
				l.budget = l.budget.CountedAll(now, min(upTo, l.all))
			}
			var trip *breaker.Trip
			if l.budget, trip = l.budget.Judge(rules, now, k, c); trip != nil {
				l.open = *trip
				l.open.ID = fmt.Sprint(now.Unix(), trip.Rule)
				l.gone[l.open.ID] = trip.Gone
			}
		}
	}
	return done
}

// take deletes entities.
func (l *target) take(k breaker.Key, n int64, now time.Time) {
	l.all -= n
	l.deleted += n
	if k.IsLate() {
		l.late -= n
		return
	}
	for i := stepOf(k.Hour); i < stepOf(rules.End(k)) && i <= stepOf(now); i++ {
		m := min(n, l.due[i])
		l.due[i] -= m
		n -= m
	}
}

// sweep deletes what is due, hour by hour.
func (l *target) sweep(now time.Time) {
	for _, a := range l.list {
		if a.Rule == breaker.Burst && !l.budget.IsSpent(rules, a, now) {
			k := breaker.Key{Hour: a.Hour}
			c := l.count(k, now)
			_, grants, _ := l.budget.Reserve(rules, now, l.list, []breaker.Want{{Key: breaker.Key{Approval: a.ID}, N: 1, Max: c.Due}})
			for _, g := range grants {
				l.budget, _, _ = l.budget.Reserve(rules, now, l.list, []breaker.Want{{Key: breaker.Key{Approval: a.ID}, N: 1, Max: c.Due}})
				l.take(k, min(g.N, c.Due), now)
			}
		}
	}
	l.ask(breaker.Late(), l.late, now)
	hours := map[breaker.Key]int64{}
	var keys []breaker.Key
	for i := l.swept; i <= stepOf(now); i++ {
		if n := l.due[i]; n > 0 {
			k := rules.HourOf(time.Unix(i*int64(step/time.Second), 0))
			if hours[k] == 0 {
				keys = append(keys, k)
			}
			hours[k] += n
		}
	}
	for _, k := range keys {
		l.ask(k, hours[k], now)
	}
	if !l.open.IsOpen() {
		for i := l.swept; i < stepOf(now)-4; i++ {
			if l.due[i] == 0 {
				delete(l.due, i)
			}
		}
		l.swept = max(l.swept, stepOf(now)-4)
	}
}

// live runs a year, and returns the trips. Each is approved after an hour.
func (f life) live() (trips []breaker.Trip, l *target) {
	l = &target{due: map[int64]int64{}, gone: map[string]int64{}, swept: stepOf(newYear)}
	each := f.size / float64(f.ttl/step)
	for now := newYear; now.Before(newYear.AddDate(0, 0, cmp.Or(f.days, 365))); now = now.Add(step) {
		l.part += each * f.rate(now)
		n := math.Floor(l.part)
		l.part -= n
		l.add(now.Add(f.ttl), int64(n))
		if f.event != nil {
			f.event(l, now)
		}
		if l.open.IsOpen() && now.Sub(l.open.At) >= time.Hour {
			a := l.open.Approve(0, now)
			l.budget = l.budget.Approved(rules, l.open, a, false, now)
			l.list = append(l.list, a)
			if a.Rule == breaker.LateOnes {
				l.take(breaker.Late(), min(a.Count, l.late), now)
			}
			l.open = breaker.Trip{}
		}
		if (f.down == nil || !f.down(now)) && !l.open.IsOpen() {
			if l.sweep(now); l.open.IsOpen() {
				trips = append(trips, l.open)
			}
		}
	}
	return trips, l
}

// weeks is the traffic of days and weekends.
func weeks(at time.Time) float64 {
	day := 1 + 0.6*math.Sin(2*math.Pi*float64(at.Hour()*60+at.Minute())/1440)
	if w := at.Weekday(); w == time.Saturday || w == time.Sunday {
		day *= 0.6
	}
	return day
}

// between returns whether an instant is within some hours from a day of the year on.
func between(at time.Time, day, hours int) bool {
	from := newYear.AddDate(0, 0, day)
	return !at.Before(from) && at.Before(from.Add(time.Duration(hours)*time.Hour))
}

func blackFriday(at time.Time) float64 {
	if between(at, 330, 4*24) {
		return 10 * weeks(at)
	}
	return weeks(at)
}

func growing(at time.Time) float64 { return weeks(at) * math.Exp(at.Sub(newYear).Hours()/24/100) }

// restamp moves a part of what is due later to an instant.
func (l *target) restamp(now time.Time, part float64, to func(n int64)) {
	var moved int64
	for i, n := range l.due {
		if i > stepOf(now) {
			m := int64(math.Ceil(part * float64(n)))
			l.due[i] -= m
			moved += m
		}
	}
	l.all -= moved
	to(moved)
}

// A kind is a size of targets, and how long their entities live.
type kind struct {
	name string
	size float64
	ttl  time.Duration
}

func kinds() (list []kind) {
	for _, size := range []kind{{"9", 9, 0}, {"10^4", 1e4, 0}, {"10^9", 1e9, 0}} {
		for _, d := range []kind{{"1h", 0, time.Hour}, {"1d", 0, 24 * time.Hour}, {"30d", 0, month}} {
			list = append(list, kind{size.name + ", " + d.name, size.size, d.ttl})
		}
	}
	return list
}

// A course is what a year brings, and how often that trips a target, and rightly so.
type course struct {
	name  string
	shows int // in the everyday run the year ends after so many days, when all has expired
	life  life
	trips func(k kind) int // nil if never
}

const month = 30 * 24 * time.Hour

// once is how often something unusual trips that expires within an hour: large targets whose
// entities live for longer.
func once(k kind) int {
	if k.size < 1000 || k.ttl <= time.Hour {
		return 0
	}
	return 1
}

// migrates writes as much as there is within some hours.
func migrates(size float64, ttl time.Duration, hours int) func(*target, time.Time) {
	return func(l *target, now time.Time) {
		if between(now, 60, hours) {
			l.add(now.Add(ttl), int64(size)/int64(2*hours))
		}
	}
}

func courses(k kind) []course {
	return []course{
		{"days and weekends", 60, life{rate: weeks}, nil},
		{"a sale of four days, tenfold", 365, life{rate: blackFriday}, nil},
		{"an outage of an hour", 135, life{rate: weeks, down: func(at time.Time) bool { return between(at, 100, 1) }}, nil},
		{"an outage of three days", 135, life{rate: weeks, down: func(at time.Time) bool { return between(at, 100, 72) }}, nil},
		{"forty times as much at the end", 365, life{rate: growing}, nil},
		{"a week with a twentieth", 240, life{rate: func(at time.Time) float64 {
			if between(at, 200, 7*24) { // the service is off its feed
				return weeks(at) / 20
			}
			return weeks(at)
		}}, nil},
		{"a day without writes, made up for in six hours", 235, life{rate: func(at time.Time) float64 {
			switch {
			case between(at, 200, 24):
				return 0
			case between(at, 201, 6):
				return weeks(at) + 4
			}
			return weeks(at)
		}}, nil},
		{"a tenth for good", 240, life{rate: func(at time.Time) float64 {
			if at.After(newYear.AddDate(0, 0, 200)) {
				return weeks(at) / 10
			}
			return weeks(at)
		}}, nil},
		{"a migration within six hours", 95, life{rate: weeks, event: migrates(k.size, k.ttl, 6)}, nil},
		{"a migration within an hour", 95, life{rate: weeks, event: migrates(k.size, k.ttl, 1)}, once},
	}
}

// TestYear lives through a year of each kind of target, and says how often its breaker trips, and
// whether it was right each time.
func TestYear(t *testing.T) {
	of := map[string]map[string]int{}
	var order []string
	for i := range courses(kind{}) {
		for _, k := range nightly.Some(t, time.Now().UnixNano(), kinds()) {
			c := courses(k)[i]
			t.Run(c.name+", "+k.name, func(t *testing.T) {
				f, want := c.life, 0
				f.size, f.ttl, f.days = k.size, k.ttl, nightly.Size(t, 365, c.shows)
				if c.trips != nil {
					want = c.trips(k)
				}
				trips, l := f.live()
				if of[c.name] == nil {
					of[c.name], order = map[string]int{}, append(order, c.name)
				}
				of[c.name][k.name] = len(trips)
				if len(trips) != want {
					t.Errorf("trips %d times, and %d are right: %+v", len(trips), want, trips)
				}
				if cost := l.reads / float64(max(1, l.deleted)); l.deleted > 1_000_000 && cost > 0.01 {
					t.Errorf("counts cost %.2f%% of %d deletes", 100*cost, l.deleted)
				}
				if left := l.late; left > 0 {
					t.Errorf("%d are left", left)
				}
			})
		}
	}
	for _, name := range order {
		t.Logf("%-50s %v", name, of[name])
	}
}

// TestEvents lets something happen in the year that nobody wants: it trips once, before more
// than the floor is gone.
func TestEvents(t *testing.T) {
	at := newYear.AddDate(0, 0, 40).Add(10 * time.Hour)
	events := map[string]func(l *target, now time.Time){
		"everything to in a minute": func(l *target, now time.Time) {
			l.restamp(now, 1, func(n int64) { l.add(now, n) })
		},
		"a half of it": func(l *target, now time.Time) {
			l.restamp(now, 0.5, func(n int64) { l.add(now, n) })
		},
		"everything to yesterday": func(l *target, now time.Time) {
			l.restamp(now, 1, func(n int64) { l.late, l.all = l.late+n, l.all+n })
		},
	}
	for name, event := range events {
		for size, n := range map[string]float64{"3000": 3000, "10^4": 1e4, "10^9": 1e9} {
			for ttl, d := range map[string]time.Duration{"1d": 24 * time.Hour, "30d": 30 * 24 * time.Hour} {
				t.Run(name+"/"+size+"/"+ttl, func(t *testing.T) {
					f := life{size: n, ttl: d, rate: weeks, days: 50, event: func(l *target, now time.Time) {
						if now.Equal(at) {
							event(l, now)
						}
					}}
					trips, l := f.live()
					if len(trips) != 1 {
						t.Fatalf("%d trips: %+v", len(trips), trips)
					}
					trip := trips[0]
					if !trip.At.Equal(at) || trip.Due+trip.Gone <= trip.Limit {
						t.Errorf("trips without need: %+v", trip)
					}
					usual := int64(3 * n / (d.Hours()))
					if gone := l.gone[trip.ID]; gone > rules.Floor+usual+breaker.SliceOf(rules, usual) {
						t.Errorf("%d were gone before: %+v", gone, trip)
					}
				})
			}
		}
	}
}

// TestMigration writes as much as there is within some hours: if it all expires within one
// hour later, that is worth a question; if within six, it is not.
func TestMigration(t *testing.T) {
	for hours, want := range map[int]int{1: 1, 6: 0} {
		f := life{size: 1e6, ttl: 24 * time.Hour, rate: weeks, days: 50, event: func(l *target, now time.Time) {
			if between(now, 30, hours) {
				l.add(now.Add(24*time.Hour), 1e6/int64(2*hours))
			}
		}}
		if trips, _ := f.live(); len(trips) != want {
			t.Errorf("a migration within %d hours trips %d times: %+v", hours, len(trips), trips)
		}
	}
}
