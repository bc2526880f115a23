package forecast

import "math"

// The ramp of a range, as package throttle has it: half as much again for every five minutes of
// waiting. A test runs the two against each other.
const (
	growBy    = 1.5
	growEvery = 300.0 // seconds
	// idleAfter is after how many seconds a range starts at its start again.
	idleAfter = 1800.0
)

// A Curve is how fast a number of ranges may go together, from a cold start.
type Curve struct {
	start float64 // together, at first
	most  float64 // together, in the end; infinite if nothing bounds it
	Bound string  // what bounds it in the end: max, total, or nothing
}

// CurveOf returns how fast ranges may go together.
func (p Pace) CurveOf(ranges float64) Curve {
	most, bound := math.Inf(1), ""
	if p.Max > 0 {
		most, bound = p.Max*ranges, "max"
	}
	if p.Total > 0 && p.Total < most {
		most, bound = p.Total, "total"
	}
	start := most
	if p.Start > 0 {
		start = min(p.Start*ranges, most)
	}
	return Curve{start, most, bound}
}

// rampSeconds returns how long the ramp takes.
func (c Curve) rampSeconds() float64 {
	if c.start >= c.most {
		return 0
	}
	return growEvery * math.Log(c.most/c.start) / math.Log(growBy)
}

// At returns the rate some seconds after the start.
func (c Curve) At(seconds float64) float64 {
	if seconds >= c.rampSeconds() {
		return c.most
	}
	return c.start * math.Pow(growBy, seconds/growEvery)
}

// Done returns how many entities may go within some seconds: the integral of the rate.
func (c Curve) Done(seconds float64) float64 {
	ramp := min(seconds, c.rampSeconds())
	perSecond := math.Log(growBy) / growEvery
	done := c.start * math.Expm1(perSecond*ramp) / perSecond
	if rest := seconds - ramp; rest > 0 {
		done += c.most * rest
	}
	return done
}

// Seconds returns how long a backlog takes while so many more come to be due each second; ok is
// false if it never ends.
func (c Curve) Seconds(backlog, inflow float64) (seconds float64, ok bool) {
	if backlog <= 0 || math.IsInf(c.start, 1) {
		return 0, true
	}
	left := func(t float64) float64 { return backlog + inflow*t - c.Done(t) }
	ramp := c.rampSeconds()
	atEnd := left(min(ramp, mostSeconds))
	if ramp < mostSeconds && atEnd > 0 {
		if c.most <= inflow {
			return 0, false
		}
		seconds = ramp + atEnd/(c.most-inflow)
		return seconds, seconds < mostSeconds
	}
	// What is left rises at most once and then falls: there is one root, and halving finds it.
	low, high := 0.0, min(ramp, mostSeconds)
	if left(high) > 0 {
		return 0, false
	}
	for range halvings {
		if middle := (low + high) / 2; left(middle) > 0 {
			low = middle
		} else {
			high = middle
		}
	}
	return high, true
}

const (
	mostSeconds = 100 * 365 * 24 * 3600.0 // longer is for ever
	halvings    = 60                      // a trillionth of a second in a year
)

// A Drain is how a backlog goes.
type Drain struct {
	Backlog float64  `json:"backlog"`
	Inflow  float64  `json:"due_per_second"` // what comes to be due meanwhile
	Seconds *float64 `json:"seconds"`        // nil if it never ends, or nothing bounds the rate
	Start   float64  `json:"start_per_second"`
	Most    float64  `json:"most_per_second"` // 0 if it is unlimited
	Bound   string   `json:"bound"`           // what the rate waits for in the end: ramp, max, total, or nothing
	Never   bool     `json:"never"`           // more comes to be due than may be deleted
	Points  []Point  `json:"points"`
}

// A Point is what is left of a backlog some seconds after the start.
type Point struct {
	Seconds float64 `json:"seconds"`
	Left    float64 `json:"left"`
	Rate    float64 `json:"per_second"`
}

// DrainOf returns how the backlog of a workload goes from a cold start. Of an unlimited pace it knows
// nothing: the store decides.
func (s Settings) DrainOf(w Workload) Drain {
	c := s.Pace.CurveOf(s.ranges())
	d := Drain{Backlog: w.Backlog, Inflow: w.Writes}
	if math.IsInf(c.start, 1) {
		return d
	}
	d.Start, d.Bound = c.start, c.Bound
	if !math.IsInf(c.most, 1) {
		d.Most = c.most
	}
	seconds, ok := c.Seconds(w.Backlog, w.Writes)
	if d.Never = !ok; d.Never {
		seconds = neverShown
	} else {
		d.Seconds = &seconds
		if seconds < c.rampSeconds() {
			d.Bound = "ramp"
		}
	}
	if w.Backlog <= 0 {
		return d
	}
	for i := range points {
		at := seconds * float64(i) / (points - 1)
		left := max(0, w.Backlog+w.Writes*at-c.Done(at))
		if i == points-1 && ok {
			left = 0
		}
		d.Points = append(d.Points, Point{at, left, c.At(at)})
	}
	return d
}

const (
	points     = 61          // of a chart: one each minute of an hour
	neverShown = 24 * 3600.0 // of a backlog that never goes
)

// SecondsLeft returns how long a backlog takes at a rate that does not change; ok is false if it takes
// more than ten years.
func SecondsLeft(backlog, perSecond float64) (seconds float64, ok bool) {
	const most = 10 * 365 * 24 * 3600
	if perSecond <= 0 || backlog/perSecond >= most {
		return 0, false
	}
	return backlog / perSecond, true
}
