package forecast

import (
	"math"
	"time"
)

// meanMove is how far into a ramp an entity moves to the next generation on average: writers move along
// 1.5^(12 (x-1)), so late.
var meanMove = 1 - (1-math.Pow(growBy, -12))/(12*math.Log(growBy))

// CarriesOf returns how often an entity that stays in the store for some time is carried on average, by
// when in its generation it is written.
func (l Layout) CarriesOf(inStore time.Duration) float64 {
	every, life := l.Every.Seconds(), inStore.Seconds()
	if every <= 0 {
		return 0
	}
	// A generation drains this long after it opened, and writers have moved to the newest by then.
	whole := float64(l.Keep+1) * every
	// Writes into it go from meanMove of its ramp on for one every, so the first entity of a generation
	// is in it for so long, and the last one for one every less.
	first := whole + (1-meanMove)*l.Ramp.Seconds()
	// It was carried n times if it outlives first - u + (n-1) whole, where u is even in [0, every).
	over := life - first
	certain := 0.0
	if over >= 0 {
		certain = math.Floor(over/whole) + 1
	}
	next := certain * whole // the next threshold, which only those that were written later pass
	return certain + min(1, max(0, (over+every-next)/every))
}

// MostCarriesOf returns how often an entity is carried at most.
func (l Layout) MostCarriesOf(inStore time.Duration) float64 {
	every := l.Every.Seconds()
	over := inStore.Seconds() - float64(l.Keep)*every
	if every <= 0 || over <= 0 {
		return 0
	}
	return 1 + math.Floor(over/(float64(l.Keep+1)*every))
}

// Generations are what a workload asks of the generations.
type Generations struct {
	Every   float64 `json:"every_seconds"`
	Keep    int     `json:"keep"`
	Carries float64 `json:"carries_per_entity"`
	Most    float64 `json:"most_carries"`
	// Wanted says with which settings nothing is carried; nothing if that is so already.
	WantedEvery float64 `json:"wanted_every_seconds"`
	WantedKeep  int     `json:"wanted_keep"`
}

// GenerationsOf returns how often a workload is carried, and what would spare that.
func (s Settings) GenerationsOf(w Workload) Generations {
	l := s.Layout
	g := Generations{Every: l.Every.Seconds(), Keep: l.Keep}
	if l.Every <= 0 {
		return g
	}
	for _, life := range w.Lives {
		in := life.For + s.Retention
		g.Carries += life.Share * l.CarriesOf(in)
		if life.Share > 0 {
			g.Most = max(g.Most, l.MostCarriesOf(in))
		}
	}
	if g.Most > 0 {
		every, keep := Keeping(s.Longest(w), l.Every)
		g.WantedEvery, g.WantedKeep = every.Seconds(), keep
	}
	return g
}

// MostKept is how many generations should live at most: each has ranges of its own, so that many of them
// cost more than they save.
const MostKept = 64

// Keeping returns the generations that entities with such lives need, so that none is carried: more of
// them or, if those were too many, longer ones.
func Keeping(longest, every time.Duration) (wantedEvery time.Duration, keep int) {
	const day = 24 * time.Hour
	if n := math.Ceil(float64(longest) / float64(max(1, every))); n <= MostKept {
		return every, max(1, int(n))
	}
	days := math.Ceil(longest.Hours() / 24 / MostKept)
	return time.Duration(days) * day, MostKept
}
