package forecast

import (
	"maps"
	"math"
	"slices"
)

// A Delay is how long entities wait from being due to being deleted, in the long run.
type Delay struct {
	P50  float64 `json:"p50_seconds"`
	P99  float64 `json:"p99_seconds"`
	Busy float64 `json:"busy"` // the share of the time in which the busiest ranges work, 0 to 1
	// Behind says that more comes to be due than may be deleted: the delay grows without end.
	Behind bool `json:"behind"`
}

// A stream is what comes to be due in the ranges of one generation, at a part of the time.
type stream struct {
	perRange float64 // entities a second
	share    float64 // of all entities, in that part of the time
	weight   float64 // that part of the time
	open     bool    // writers may write to the ranges, so that each tick asks them
	curve    Curve   // of one range
}

// phases are the parts of the time from one generation to the next that are looked at.
const phases = 12

// streamsOf spreads what comes to be due over generations and ranges.
func (s Settings) streamsOf(w Workload, perSecond float64) []stream {
	if s.Layout.Every <= 0 || len(w.Lives) == 0 {
		return []stream{s.streamOf(perSecond, 1, 1, true)}
	}
	var list []stream
	for i := range phases {
		since := (float64(i) + 0.5) / phases * s.Layout.Every.Seconds() // the newest one opened
		moving := since < s.Layout.Ramp.Seconds()
		shares := map[int]float64{}
		for _, life := range w.Lives {
			shares[s.Layout.ago(s.inStore(life), since)] += life.Share
		}
		for _, ago := range slices.Sorted(maps.Keys(shares)) { // sums of floats depend on their order
			list = append(list, s.streamOf(perSecond, shares[ago], 1.0/phases, ago == 0 || ago == 1 && moving))
		}
	}
	return list
}

func (s Settings) streamOf(perSecond, share, weight float64, open bool) stream {
	// Of a total each stream needs as much as it brings.
	pace := Pace{s.Pace.Start, s.Pace.Max, s.Pace.Total * share / s.ranges()}
	return stream{perSecond * share / s.ranges(), share, weight, open, pace.CurveOf(1)}
}

// ago returns how many generations before the newest one the entities are that come to be due, some
// seconds after the newest one opened. Carries bring them forward.
func (l Layout) ago(inStore, since float64) int {
	every := l.Every.Seconds()
	behind := inStore - since + meanMove*l.Ramp.Seconds()
	if behind <= 0 {
		return 0
	}
	written := math.Floor(behind/every) + 1
	ago := math.Mod(written, float64(l.Keep+1))
	if ago == 0 && since < l.Ramp.Seconds() { // the carry waits until writers have moved
		return l.Keep + 1
	}
	return int(ago)
}

// keepsUp reports whether a range may delete as much as comes to be due.
func (st stream) keepsUp() bool { return st.perRange == 0 || st.curve.most > st.perRange }

// period returns after how many seconds a range starts at its start again: at each tick if it rests for
// so long in between, or when the next generation takes over; 0 means never.
func (s Settings) period(st stream) float64 {
	tick := s.Tick.Seconds()
	if !math.IsInf(st.curve.most, 1) && (1-st.perRange/st.curve.most)*tick >= idleAfter {
		return tick
	}
	return s.Layout.Every.Seconds()
}

// busy returns the share of the time in which a range works: as long as it takes to delete, at a rate
// that grows while it works, what comes to be due from one start to the next.
func (s Settings) busy(st stream) float64 {
	switch period := s.period(st); {
	case st.perRange == 0 || math.IsInf(st.curve.start, 1):
		return 0
	case !st.keepsUp():
		return 1
	case period == 0:
		return st.perRange / st.curve.most
	default:
		seconds, ok := st.curve.Seconds(st.perRange*period, 0)
		if !ok {
			return 1
		}
		return min(1, seconds/period)
	}
}

// busyAt returns the share of the time in which a range works after a part of its period, 0 to 1. The
// rate grows with the time in which the range works, so by the same amount in each second.
func (s Settings) busyAt(st stream, part float64) float64 {
	period := s.period(st)
	if period == 0 || period == s.Tick.Seconds() || st.perRange == 0 || math.IsInf(st.curve.start, 1) {
		return s.busy(st)
	}
	perSecond := math.Log(growBy) / growEvery
	seconds, rate := part*period, st.curve.start
	if rate < st.perRange { // first it works all the time
		always := math.Log(st.perRange/rate) / perSecond
		if seconds < always {
			return 1
		}
		seconds, rate = seconds-always, st.perRange
	}
	return min(1, st.perRange/min(st.curve.most, rate+st.perRange*perSecond*seconds))
}

// DelayOf returns the delay of a workload. Between two ticks a range rests, and then deletes what came to
// be due meanwhile and while it works. So of entities that come to be due evenly, each waits for the
// share (1 - busy) of what is left of its tick; with sweep, which ends when what was due at its
// start is gone, for the rest of its tick and its place in the queue.
func (s Settings) DelayOf(w Workload) Delay {
	streams := s.streamsOf(w, w.Writes)
	d := Delay{}
	for _, st := range streams {
		d.Busy = max(d.Busy, s.busy(st))
		d.Behind = d.Behind || !st.keepsUp()
	}
	if d.Behind || d.Busy >= 1 {
		return Delay{Busy: 1, Behind: true}
	}
	spans, page := s.spansOf(streams), 0.0
	for _, st := range streams {
		page += st.weight * st.share * s.pageWait(s.rateOf(st)) / 2
	}
	d.P50, d.P99 = quantile(spans, 0.5)+page, quantile(spans, 0.99)+page
	return d
}

// A span is what some share of the entities waits: anything from low to high.
type span struct{ low, high, share float64 }

// parts are the instants of a period at which delays are looked at.
const parts = 16

func (s Settings) spansOf(streams []stream) []span {
	tick := s.Tick.Seconds()
	list := make([]span, 0, parts*len(streams))
	for _, st := range streams {
		for i := range parts {
			busy := s.busyAt(st, (float64(i)+0.5)/parts)
			one := span{0, (1 - busy) * tick, st.share * st.weight / parts}
			if s.Job {
				one.low, one.high = busy*tick, tick
			}
			list = append(list, one)
		}
	}
	return list
}

// quantile returns the delay that a share of the entities has at most.
func quantile(list []span, q float64) float64 {
	longer := func(delay float64) (share float64) {
		for _, one := range list {
			if left := one.high - max(one.low, min(one.high, delay)); left > 0 {
				share += one.share * left / (one.high - one.low)
			}
		}
		return share
	}
	low, high := 0.0, 0.0
	for _, one := range list {
		high = max(high, one.high)
	}
	for range halvings {
		if middle := (low + high) / 2; longer(middle) > 1-q {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// rateOf returns how fast a range goes on average while it works; 0 if nothing bounds it.
func (s Settings) rateOf(st stream) float64 {
	switch busy := s.busy(st); {
	case math.IsInf(st.curve.start, 1):
		return 0
	case busy > 0 && busy < 1:
		return st.perRange / busy
	}
	return st.curve.most
}

// firstPage returns how many entities the first page of a range has at most: there is no wait before it.
// A burst is a page or what one second brings.
func (s Settings) firstPage(rate float64) float64 {
	page := float64(s.Page)
	if rate > 0 {
		page = max(1, min(page, rate))
	}
	return page
}

// pageOf returns how many entities a page has while a range waits for its pace: a page is taken once
// half of a burst is there.
func (s Settings) pageOf(rate float64) float64 {
	if rate > 0 {
		return max(1, s.firstPage(rate)/2)
	}
	return s.firstPage(rate)
}

// pageWait returns for how many seconds a range gathers the tokens of a page.
func (s Settings) pageWait(rate float64) float64 {
	if rate > 0 {
		return s.pageOf(rate) / rate
	}
	return 0
}
