package forecast

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/throttle"
)

// usual are the defaults of a target in Datastore mode.
func usual() Settings {
	return Settings{Mode: Datastore, Namespaces: 1, Shards: 16, Page: 500, Tick: 5 * time.Minute, Guard: ByLookup,
		Layout: Layout{Every: 24 * time.Hour, Ramp: time.Hour, Keep: 32, Row: Row{Kind: 7, Property: 10, ID: 21, Value: 35}},
		Pace:   Pace{Start: 500, Max: 5000},
		Breaker: breaker.Rules{On: true, Floor: 1000, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour,
			Rewind: 24 * time.Hour}}
}

// The ramp is that of the program's own buckets.
func TestRampIsThatOfThrottle(t *testing.T) {
	limits := throttle.Limits{Start: 500, Max: 5000}
	p := throttle.NewPace(at(0), limits, throttle.State{}, 500)
	c := Pace{Start: 500, Max: 5000}.CurveOf(1)
	granted := 0.0
	for now := 0.0; now < 3600; {
		n, wait := p.Ready(at(now), 500)
		if wait > 0 {
			now += wait.Seconds()
			continue
		}
		p.Take(at(now), n)
		granted += float64(n)
		if want := c.Done(now); math.Abs(granted-want) > 0.01*want+500 {
			t.Fatalf("after %.0f s %.0f were granted, and %.0f are forecast", now, granted, want)
		}
	}
	if got, want := p.Rate(at(3600)), c.At(3600); got != want {
		t.Errorf("the rate is %v, and %v is forecast", got, want)
	}
}

// A curve is what a calculation by hand gives.
func TestCurve(t *testing.T) {
	c := Pace{Start: 500, Max: 5000}.CurveOf(16)
	// 8,000/s to 80,000/s: a factor of ten is ln 10 / ln 1.5 = 5.679 times five minutes.
	within(t, "ramp", 1703.6, c.rampSeconds(), 0.0001, 0)
	// (80,000 - 8,000) / (ln 1.5 / 300) = 53,273,142 go meanwhile.
	within(t, "done", 53_273_000, c.Done(c.rampSeconds()), 0.0001, 0)
	for _, backlog := range []float64{1, 1e3, 1e6, 5e7, 5.4e7, 1e9, 1e12} {
		seconds, ok := c.Seconds(backlog, 0)
		within(t, "inverse", c.Done(seconds), backlog, 1e-6, 0)
		if !ok {
			t.Errorf("a backlog of %v never ends", backlog)
		}
	}
	if s, ok := c.Seconds(1e6, 80_000); ok && s > c.rampSeconds() || !ok {
		t.Log("it never ends") // as much comes as goes
	} else {
		t.Errorf("%v s though as much comes as goes", s)
	}
	if s, ok := (Pace{}).CurveOf(16).Seconds(1e9, 1); s != 0 || !ok {
		t.Errorf("without a limit the store decides, not %v s", s)
	}
	total := Pace{Start: 500, Max: 5000, Total: 2000}.CurveOf(16)
	if s, _ := total.Seconds(1e6, 1000); s != 1000 || total.Bound != "total" {
		t.Errorf("%v s, bound by %q", s, total.Bound)
	}
}

// Carries are those of the table in docs/generations.md, as its upper bound, and less on average.
func TestCarries(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		life time.Duration
		keep int
		most float64
	}{{day, 1, 0}, {2 * day, 1, 1}, {7 * day, 3, 2}, {7 * day, 1, 4}, {30 * day, 32, 0}, {30 * day, 3, 7}, {30 * day, 1, 15},
		{90 * day, 32, 2}, {90 * day, 3, 22}, {90 * day, 1, 45}, {365 * day, 32, 11}, {365 * day, 1, 183}} {
		l := Layout{Every: day, Ramp: time.Hour, Keep: c.keep}
		mean := l.CarriesOf(c.life)
		if got := l.MostCarriesOf(c.life); got != c.most || mean > got || mean < got-1 {
			t.Errorf("%v with keep %d: at most %v carries, %v on average; want %v", c.life, c.keep, got, mean, c.most)
		}
	}
	if every, keep := Keeping(90*day, day); every != 2*day || keep != MostKept {
		t.Errorf("90 days need %v, %d", every, keep)
	}
	if every, keep := Keeping(50*day, day); every != day || keep != 50 {
		t.Errorf("50 days need %v, %d", every, keep)
	}
}

// What docs/costs.md says by its own formula is about what is forecast.
func TestCostsOfThePage(t *testing.T) {
	s := usual()
	s.Job, s.Breaker.On = true, false
	s.Layout.Ramp = 0
	const days31 = 31 * 86400.0
	w := Workload{Lives: []Life{{12 * time.Hour, 1}}}
	idle := s.SpanOf(w, ByLookup, days31, 0)
	within(t, "reads of idle sweeps", idle.Reads, 598_176, 0.01, 0)
	within(t, "writes of idle sweeps", idle.Writes, 8_928, 0.01, 0)
	w.Writes = 1e7 / days31
	prices, _ := ProvenPrices("us-central1")
	for way, want := range map[Way]float64{ByLookup: 4.18, ByQuery: 1.19, ByTTL: 1.00} {
		// The page leaves out claims, and queries of pages that are not full: each range has work at each tick.
		o := s.SpanOf(w, way, days31, 1e7)
		l := s.loadOf(w, w.Writes)
		if way != ByTTL {
			o.Writes = 0
			o.Reads -= 2*l.working*8928 + l.work*days31/10
			if way == ByQuery {
				o.Reads -= 2*l.pages*8928 - 2*1e7/500
			}
		}
		within(t, string(way), *prices.billOf(way, o, 31).Dollars, want, 0.04, 0)
	}
}

// Neither a bill nor a location has the price of another one.
func TestPricesAreNotGuessed(t *testing.T) {
	w := Workload{Writes: 100, Lives: []Life{{time.Hour, 1}}, Size: 2048}
	nam5, ok := ProvenPrices("nam5")
	f, err := Make(usual(), w, nam5)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, b := range f.Month {
		if unknown := b.Way == ByTTL; (b.Dollars == nil) != unknown || (len(b.Missing) > 0) != unknown {
			t.Errorf("%+v", b)
		}
	}
	eur3, ok := ProvenPrices("eur3")
	f, err = Make(usual(), w, eur3)
	if ok || err != nil || f.StorageDollars != nil {
		t.Error("eur3 is proven", err)
	}
	for _, b := range append(f.Month, f.First...) {
		if b.Dollars != nil || b.AfterFree != nil || b.Deletes == 0 {
			t.Errorf("%+v", b)
		}
	}
	for _, p := range proven {
		for name, price := range p.List {
			if price.Dollars <= 0 || price.Source == "" || len(price.Date) < len("2026-09") {
				t.Errorf("%s %s: %+v", p.Location, name, price)
			}
		}
	}
}

// The breaker's own rules say what trips.
func TestTrips(t *testing.T) {
	s := usual()
	day := Workload{Writes: 100, Lives: []Life{{24 * time.Hour, 1}}}
	short := Workload{Writes: 100, Lives: []Life{{10 * time.Minute, 1}}}
	full := Workload{Backlog: 500e6}
	if got := s.TripsOf(day); got.NewGround || got.Unlearnt || got.Blind || got.Limit != 0.25*100*86400 {
		t.Errorf("lives of a day: %+v", got)
	}
	if got := s.TripsOf(short); !got.Unlearnt || !got.Blind {
		t.Errorf("lives of ten minutes: %+v", got)
	}
	if got := s.TripsOf(full); !got.NewGround {
		t.Errorf("a backlog: %+v", got)
	}
	full.Swept = true
	if got := s.TripsOf(full); got.NewGround {
		t.Errorf("a backlog of a target that was swept: %+v", got)
	}
	s.Breaker.On = false
	if got := s.TripsOf(full); !reflect.DeepEqual(got, Trips{Floor: 1000}) {
		t.Errorf("off: %+v", got)
	}
}

// 10^10 entities, and 200,000 that expire in a second.
func TestLargest(t *testing.T) {
	s := usual()
	w := Workload{Writes: 200_000, Lives: []Life{{time.Hour, 0.5}, {24 * time.Hour, 0.5}}, Backlog: 1e10, Size: 2048}
	f, err := Make(s, w, Prices{})
	if err != nil || !f.Drain.Never || f.Shards.Needed != 800 || !f.Delay.Behind {
		t.Errorf("%v %+v %+v", err, f.Drain.Never, f.Shards)
	}
	s.Shards = 800
	f, err = Make(s, w, Prices{})
	if err != nil || f.Drain.Never || f.Drain.Seconds == nil || f.Delay.Behind {
		t.Errorf("%v %+v", err, f)
	}
}

// Whatever is accepted, no number is NaN or infinite, and none is negative.
func TestNumbersAreFinite(t *testing.T) {
	rnd := rand.New(rand.NewPCG(36, 36))
	any10 := func(from, to float64) float64 {
		if rnd.IntN(8) == 0 {
			return 0
		}
		return math.Pow(10, from+rnd.Float64()*(to-from))
	}
	refused := 0
	for range 2000 {
		s := Settings{Mode: []Mode{Native, Datastore, Embedded}[rnd.IntN(3)], Namespaces: 1 + int(any10(0, 5)), Shards: 1 + int(any10(0, 4)),
			Page: 1 + rnd.IntN(500), Tick: time.Second + time.Duration(any10(0, 15)), Job: rnd.IntN(2) == 0, Guard: ByQuery,
			Pace: Pace{any10(-2, 9), any10(-2, 9), any10(-2, 9)}, Retention: time.Duration(any10(0, 18)), Breaker: usual().Breaker}
		if rnd.IntN(2) == 0 {
			s.Layout.Every = time.Minute + time.Duration(any10(0, 18))
			s.Layout.Ramp, s.Layout.Keep = time.Duration(rnd.Float64()*float64(s.Layout.Every)), 1+rnd.IntN(1000)
		}
		share := rnd.Float64()
		w := Workload{Writes: any10(-6, 9), Size: any10(0, 6), Backlog: any10(0, 15), Entities: any10(0, 15),
			Lives: []Life{{1 + time.Duration(any10(0, 18)), share}, {1 + time.Duration(any10(0, 18)), 1 - share}}}
		prices, _ := ProvenPrices("us-central1")
		f, err := Make(s, w, prices)
		if err != nil {
			refused++
			continue
		}
		text, err := json.Marshal(f) // it refuses NaN and infinities
		if err != nil || strings.Contains(string(text), ":-") {
			t.Fatalf("%v\n%+v\n%+v\n%s", err, s, w, text)
		}
	}
	if refused > 500 {
		t.Errorf("%d were refused", refused)
	}
}

// What makes no sense is refused, with what is wrong.
func TestCheck(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for want, w := range map[string]Workload{
		"writes":               {Writes: nan},
		"backlog":              {Backlog: -1},
		"entities":             {Entities: inf},
		"bytes of an entity":   {Size: 2 << 20},
		"add up to 90%":        {Lives: []Life{{time.Hour, 0.9}}},
		"not above 0":          {Lives: []Life{{0, 1}}},
		"share of a life: NaN": {Lives: []Life{{time.Hour, nan}}},
	} {
		if err := w.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", w, err, want)
		}
		if _, err := Make(usual(), w, Prices{}); err == nil {
			t.Errorf("a forecast of %+v", w)
		}
	}
	if err := (Settings{}).Check(); err == nil {
		t.Error("no settings are accepted")
	}
	var l Life
	if err := json.Unmarshal([]byte(`{"seconds": 1e300, "share": 1}`), &l); err == nil {
		t.Error("a life of 1e300 s")
	}
}

// The self-test is limited by these prices of nam5: without one it would have no limit.
func TestOfOne(t *testing.T) {
	p, ok := ProvenPrices("nam5")
	if !ok {
		t.Fatal("the prices of nam5 are not proven")
	}
	for name, want := range map[PriceName]float64{Reads: 6e-7, Writes: 18e-7, Deletes: 2e-7} {
		if got, ok := p.OfOne(name); !ok || math.Abs(got-want) > 1e-15 {
			t.Errorf("%s: %v, %v, want %v", name, got, ok, want)
		}
	}
	if got, ok := p.OfOne(TTL); ok || got != 0 {
		t.Errorf("an unproven price: %v, %v", got, ok)
	}
}
