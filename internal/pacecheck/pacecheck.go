// Package pacecheck looks at what was really committed, and finds each window in
// which a range, or a whole target, got more than its pace allows: the integral
// of the rate over the window, plus one burst of its bucket, plus one page that
// was in flight as the window began. A range's bucket holds one second of its rate,
// and at most a page; that of a target's total one second. It shares no code with the throttle that it
// checks. It is for tests.
//
// Windows of one second to ten minutes are looked at, all of them: those that
// begin and end with a commit are the fullest. It takes time in proportion to the
// number of commits.
package pacecheck

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

const (
	shortest = time.Second
	longest  = 10 * time.Minute
	// slack is for the rounding of sums, in entities.
	slack = 1e-3
)

// A Commit is one write that was carried out.
type Commit struct {
	Range string
	At    time.Time
	Count int
}

// A Segment says that a rate was in force from an instant on, until the next
// segment. An infinite rate means no limit; windows that touch it are not checked.
// Before the first segment the rate is zero.
type Segment struct {
	From      time.Time
	PerSecond float64
}

// A Trace is what a checker goes by.
type Trace struct {
	Page    int
	Commits []Commit             // in any order, of one target
	Ranges  map[string][]Segment // in order; ranges not named had no limit
	Total   []Segment            // of all ranges together; none where there was no limit
}

// An Excess is a window that got too much.
type Excess struct {
	Range    string // empty: the target's total
	From, To time.Time
	Got      int
	Allowed  float64
}

// String says it in one line.
func (e Excess) String() string {
	what := "range " + e.Range
	if e.Range == "" {
		what = "the target"
	}
	return fmt.Sprintf("%s: %d entities in %v from %s on, %.1f allowed",
		what, e.Got, e.To.Sub(e.From), e.From.Format(time.RFC3339Nano), e.Allowed)
}

// Ramp returns the highest rates that a range may have which begins at an
// instant, for a length of time: start, and half as much again for each five
// minutes, up to most.
func Ramp(from time.Time, start, most float64, length time.Duration) []Segment {
	var all []Segment
	for d := time.Duration(0); ; d += time.Second {
		rate := min(most, start*math.Pow(1.5, (d+time.Second).Minutes()/5))
		all = append(all, Segment{from.Add(d), rate})
		if rate == most || d >= length {
			return all
		}
	}
}

// Check returns the windows with an excess: of those that overlap, the one that
// exceeds the most.
func Check(t Trace) []Excess {
	commits := slices.Clone(t.Commits)
	slices.SortStableFunc(commits, func(a, b Commit) int { return a.At.Compare(b.At) })
	byRange := map[string][]Commit{}
	for _, c := range commits {
		byRange[c.Range] = append(byRange[c.Range], c)
	}
	var found []Excess
	if t.Total != nil {
		found = check("", commits, t.Total, t.Page, math.Inf(1))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Ranges)) {
		found = append(found, check(name, byRange[name], t.Ranges[name], t.Page, float64(t.Page))...)
	}
	return found
}

// A meter tells the integral of a rate up to an instant, and the rate then.
type meter struct {
	segments []Segment
	sums     []float64 // of the integral where each segment begins
}

func newMeter(segments []Segment) meter {
	m := meter{segments, make([]float64, len(segments))}
	for i := 1; i < len(segments); i++ {
		m.sums[i] = m.sums[i-1]
		if prev := segments[i-1]; !math.IsInf(prev.PerSecond, 1) {
			m.sums[i] += prev.PerSecond * segments[i].From.Sub(prev.From).Seconds()
		}
	}
	return m
}

// at returns the index of the segment in force, or -1.
func (m meter) at(t time.Time) int {
	i, same := slices.BinarySearchFunc(m.segments, t, func(s Segment, t time.Time) int { return s.From.Compare(t) })
	if same {
		return i
	}
	return i - 1
}

func (m meter) integral(t time.Time) float64 {
	i := m.at(t)
	if i < 0 || math.IsInf(m.segments[i].PerSecond, 1) {
		return m.sums[max(i, 0)]
	}
	return m.sums[i] + m.segments[i].PerSecond*t.Sub(m.segments[i].From).Seconds()
}

// burst returns what the bucket may hold at an instant, at most so much: where a segment begins,
// what it held just before.
func (m meter) burst(t time.Time, most float64) float64 {
	rate := 0.0
	i := m.at(t)
	if i >= 0 {
		rate = m.segments[i].PerSecond
	}
	if i > 0 && m.segments[i].From.Equal(t) {
		rate = max(rate, m.segments[i-1].PerSecond)
	}
	return math.Max(1, math.Min(most, rate))
}

func check(name string, commits []Commit, segments []Segment, page int, bucket float64) []Excess {
	if len(segments) == 0 {
		segments = []Segment{{}} // a rate of zero
	}
	m := newMeter(segments)
	var all []Excess
	// A window may not touch a span without a limit.
	for first := 0; first < len(commits); {
		i := m.at(commits[first].At)
		if i >= 0 && math.IsInf(segments[i].PerSecond, 1) {
			first++
			continue
		}
		from, to, last := time.Time{}, forever, len(commits)
		for j := i; j >= 0; j-- {
			if math.IsInf(segments[j].PerSecond, 1) {
				from = segments[j+1].From
				break
			}
		}
		for j := i + 1; j < len(segments); j++ {
			if math.IsInf(segments[j].PerSecond, 1) {
				to = segments[j].From
				last, _ = slices.BinarySearchFunc(commits, to, func(c Commit, t time.Time) int { return c.At.Compare(t) })
				break
			}
		}
		all = append(all, within(name, commits[first:last], from, to, m, page, bucket)...)
		first = last
	}
	return all
}

var forever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// within looks at commits from one instant to another, between which there
// always was a limit.
func within(
	name string, commits []Commit, begin, end time.Time, m meter, page int, bucket float64,
) []Excess {
	n := len(commits)
	sum := make([]int, n+1)    // before each commit
	base := make([]float64, n) // sum less integral plus burst: the lower, the worse a window from there on
	var candidates []Excess    // at most two for each commit
	add := func(i, j int, from, to time.Time) {
		if from.Before(begin) || to.After(end) {
			return
		}
		most := m.integral(to) - m.integral(from) + m.burst(from, bucket) + float64(page)
		if got := sum[j+1] - sum[i]; float64(got) > most+slack {
			candidates = append(candidates, Excess{name, from, to, got, most})
		}
	}
	for i, c := range commits {
		sum[i+1] = sum[i] + c.Count
		base[i] = float64(sum[i]) - m.integral(c.At) + m.burst(c.At, bucket)
	}
	// Windows of one second that begin or end with a commit.
	for i, j, k := 0, 0, 0; i < n; i++ {
		at := commits[i].At
		for j+1 < n && !commits[j+1].At.After(at.Add(shortest)) {
			j++
		}
		add(i, j, at, at.Add(shortest))
		for commits[k].At.Before(at.Add(-shortest)) {
			k++
		}
		add(k, i, at.Add(-shortest), at)
	}
	// Longer ones: the worst beginning for each end. The queue holds beginnings in
	// order of time, each worse than those behind it.
	var queue []int
	for j, next := 0, 0; j < n; j++ {
		at := commits[j].At
		for ; next < j && !commits[next].At.After(at.Add(-shortest)); next++ {
			for len(queue) > 0 && base[queue[len(queue)-1]] >= base[next] {
				queue = queue[:len(queue)-1]
			}
			queue = append(queue, next)
		}
		for len(queue) > 0 && commits[queue[0]].At.Before(at.Add(-longest)) {
			queue = queue[1:]
		}
		if len(queue) > 0 {
			add(queue[0], j, commits[queue[0]].At, at)
		}
	}
	return worst(candidates)
}

// worst keeps of windows that overlap the one that exceeds the most.
func worst(all []Excess) []Excess {
	over := func(e Excess) float64 { return float64(e.Got) - e.Allowed }
	slices.SortStableFunc(all, func(a, b Excess) int { return cmp.Or(a.From.Compare(b.From), a.To.Compare(b.To)) })
	var kept []Excess
	var until time.Time
	for _, e := range all {
		if len(kept) > 0 && e.From.Before(until) {
			if e.To.After(until) {
				until = e.To
			}
			if over(e) > over(kept[len(kept)-1]) {
				kept[len(kept)-1] = e
			}
			continue
		}
		kept, until = append(kept, e), e.To
	}
	return kept
}
