package pacecheck_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/pacecheck"
	"github.com/reaper-ttl/reaper/throttle"
)

var start = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

func ExampleCheck() {
	trace := pacecheck.Trace{
		Page: 100,
		Commits: []pacecheck.Commit{
			{Range: "a", At: start.Add(1 * time.Second), Count: 100},
			{Range: "a", At: start.Add(2 * time.Second), Count: 100},
			{Range: "a", At: start.Add(2500 * time.Millisecond), Count: 101},
			{Range: "a", At: start.Add(3 * time.Second), Count: 100},
		},
		Ranges: map[string][]pacecheck.Segment{"a": {{From: start, PerSecond: 100}}},
	}
	for _, e := range pacecheck.Check(trace) {
		fmt.Println(e)
	}
	// Output:
	// range a: 301 entities in 1s from 2026-11-21T03:00:02Z on, 300.0 allowed
}

// sweep records what workers do under real paces. Each has a range of its own
// and a share of the total, takes up to 300 ms for a commit, and now and then
// crashes and claims again.
func sweep(seed uint64, workers int, length time.Duration, total, faster float64, page, cheatPage int, keep bool) pacecheck.Trace {
	rng := rand.New(rand.NewPCG(seed, 5))
	t := pacecheck.Trace{Page: page, Ranges: map[string][]pacecheck.Segment{}, Total: []pacecheck.Segment{{From: start, PerSecond: total}}}
	limits := throttle.Limits{Start: 400, Max: 1000}
	share := throttle.Share{PerSecond: total / float64(workers), Burst: total / float64(workers), Until: start.Add(100 * length)}
	if math.IsInf(total, 1) {
		share = throttle.Share{Unlimited: true}
	}
	for w := range workers {
		name := fmt.Sprint("r", w)
		t.Ranges[name] = pacecheck.Ramp(start, limits.Start, limits.Max, length)
		clock := func(now time.Time) time.Time { return start.Add(time.Duration(float64(now.Sub(start)) * faster)) }
		p := throttle.NewPace(start, limits, throttle.State{}, cheatPage)
		p.SetTotal(start, share)
		for now := start; now.Sub(start) < length; {
			if rng.IntN(50) == 0 {
				n := p.Burst(clock(now), cheatPage)
				p = throttle.NewPace(clock(now), limits, p.State(clock(now)), cheatPage)
				p.SetTotal(clock(now), share)
				for keep && rng.IntN(4) > 0 { // a crash loop with a full bucket each time
					t.Commits = append(t.Commits, pacecheck.Commit{Range: name, At: now, Count: n})
				}
			}
			n := p.Burst(clock(now), cheatPage)
			if wait := p.Take(clock(now), n); wait > 0 {
				now = now.Add(time.Duration(float64(wait)/faster) + 1)
				continue
			}
			now = now.Add(time.Duration(rng.IntN(300)) * time.Millisecond)
			t.Commits = append(t.Commits, pacecheck.Commit{Range: name, At: now, Count: n})
		}
	}
	return t
}

func TestRealPacesPass(t *testing.T) {
	for seed := range uint64(20) {
		for _, total := range []float64{100, 900, math.Inf(1)} {
			for _, e := range pacecheck.Check(sweep(seed, 3, 20*time.Minute, total, 1, 500, 500, false)) {
				t.Errorf("seed %d, total %v: %v", seed, total, e)
			}
		}
	}
}

func TestCheatsAreCaught(t *testing.T) {
	for _, c := range []struct {
		name      string
		total     float64
		faster    float64
		cheatPage int
		keep      bool
	}{
		{"a fifth too fast", math.Inf(1), 1.2, 100, false},
		{"a fifth too fast for the total", 150, 1.2, 100, false},
		{"tokens that outlive a restart", math.Inf(1), 1, 100, true},
		{"a burst of five pages", math.Inf(1), 1, 500, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := pacecheck.Check(sweep(1, 3, 15*time.Minute, c.total, c.faster, 100, c.cheatPage, c.keep)); len(got) == 0 {
				t.Error("nothing was found")
			}
		})
	}
}

// The checker finds what looking at every pair of commits finds.
func TestAgainstEveryPair(t *testing.T) {
	both := [2]int{}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 9))
		tr := pacecheck.Trace{Page: 5, Ranges: map[string][]pacecheck.Segment{"a": nil}}
		for at, n := 0, 1+rng.IntN(4); n > 0; n-- {
			rate := []float64{0, 1, 5, 20, math.Inf(1)}[rng.IntN(5)]
			tr.Ranges["a"] = append(tr.Ranges["a"], pacecheck.Segment{From: start.Add(time.Duration(at) * time.Second), PerSecond: rate})
			at += 1 + rng.IntN(20)
		}
		for at, n := 0, rng.IntN(40); n > 0; n-- {
			at += rng.IntN(5000)
			tr.Commits = append(tr.Commits, pacecheck.Commit{Range: "a", At: start.Add(time.Duration(at) * time.Millisecond), Count: 1 + rng.IntN(6)})
		}
		got, want := len(pacecheck.Check(tr)) > 0, pairs(tr)
		if got != want {
			t.Fatalf("seed %d: found %v, every pair %v", seed, pacecheck.Check(tr), want)
		}
		if want {
			both[1]++
		} else {
			both[0]++
		}
	}
	if both[0] < 100 || both[1] < 100 {
		t.Errorf("%v traces without and with an excess are too few of one sort", both)
	}
}

// pairs reports whether any window has an excess, the slow way.
func pairs(tr pacecheck.Trace) bool {
	segments := tr.Ranges["a"]
	window := func(from, to time.Time) bool {
		most, burst := 0.0, 0.0
		for i, s := range segments {
			end := to.Add(time.Hour)
			if i+1 < len(segments) {
				end = segments[i+1].From
			}
			a, b := s.From, end
			if from.After(a) {
				a = from
			}
			if to.Before(b) {
				b = to
			}
			if !s.From.After(from) && !end.Before(from) {
				burst = max(burst, s.PerSecond)
			}
			if math.IsInf(s.PerSecond, 1) && (b.After(a) || !s.From.After(to) && end.After(from)) && !s.From.Equal(to) {
				return false
			}
			if b.After(a) {
				most += s.PerSecond * b.Sub(a).Seconds()
			}
		}
		if math.IsInf(burst, 1) {
			burst = 5
		}
		most += max(1, min(5, burst)) + 5
		got := 0
		for _, c := range tr.Commits {
			free := false
			for i, s := range segments {
				free = free || math.IsInf(s.PerSecond, 1) && !c.At.Before(s.From) && (i+1 == len(segments) || c.At.Before(segments[i+1].From))
			}
			if !free && !c.At.Before(from) && !c.At.After(to) {
				got += c.Count
			}
		}
		return float64(got) > most+1e-3
	}
	for i, a := range tr.Commits {
		if window(a.At, a.At.Add(time.Second)) || window(a.At.Add(-time.Second), a.At) {
			return true
		}
		for _, b := range tr.Commits[i:] {
			if d := b.At.Sub(a.At); d >= time.Second && d <= 10*time.Minute && window(a.At, b.At) {
				return true
			}
		}
	}
	return false
}

func BenchmarkCheck(b *testing.B) {
	t := sweep(1, 8, 200*time.Minute, 9000, 1, 100, 100, false)
	for b.Loop() {
		pacecheck.Check(t)
	}
	b.ReportMetric(float64(len(t.Commits)), "commits")
}
