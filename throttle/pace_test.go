package throttle_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/throttle"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

func ExamplePace() {
	p := throttle.NewPace(start, throttle.Limits{Start: 500, Max: 5000}, throttle.State{}, 500)
	now := start
	fmt.Println("a bucket starts empty:", p.Take(now, 500))
	now = now.Add(time.Second)
	fmt.Println("one second later:", p.Take(now, 500))
	p.PushBack(now, throttle.ReasonPushBack)
	fmt.Printf("pushed back: %.0f/s, %s\n", p.Rate(now), p.Reason(now))
	// Output:
	// a bucket starts empty: 1s
	// one second later: 0s
	// pushed back: 250/s, pushback
}

func ExampleShares() {
	s := throttle.NewShares("me", 30*time.Second, 15*time.Second)
	s.SetTotal(throttle.Limit{PerSecond: 1000})
	now := start
	s.Renewed(now, now)
	now = now.Add(time.Millisecond)
	s.Observe(now, now, now, nil)
	fmt.Println("alone:", s.Share(now).PerSecond)
	// Another process joins: it has nothing yet, but counts. It waits to be told.
	now = now.Add(5 * time.Second)
	news := s.Observe(now, now, now, []throttle.Heartbeat{{Owner: "other", Epoch: 1, Mark: "1", Lease: 30 * time.Second}})
	fmt.Println("of two:", s.Share(now).PerSecond, news)
	// Output:
	// alone: 1000
	// of two: 500 true
}

// A script runs the commands of a golden file against one pace.
type script struct {
	now    time.Time
	pace   *throttle.Pace
	limits throttle.Limits
	page   int
	plot   []point // since the last plot
	begun  time.Time
}

type point struct {
	at     time.Duration
	rate   float64
	reason throttle.Reason
}

func (s *script) sample() {
	s.plot = append(s.plot, point{s.now.Sub(s.begun), s.pace.Rate(s.now), s.pace.Reason(s.now)})
}

// run takes pages as fast as the bucket lets it, and calls each every second.
func (s *script) run(d time.Duration, each func()) (granted int) {
	end, tick := s.now.Add(d), s.now
	for s.now.Before(end) {
		if !s.now.Before(tick) {
			if each != nil {
				each()
			}
			s.sample()
			tick = tick.Add(time.Second)
		}
		n := s.pace.Burst(s.now, s.page)
		wait := s.pace.Take(s.now, n)
		if wait == 0 {
			granted += n
			wait = time.Nanosecond // not for nothing where there is no limit
		}
		next := s.now.Add(wait)
		if next.After(tick) {
			next = tick
		}
		if next.After(end) {
			next = end
		}
		s.now = next
	}
	return granted
}

func number(t *testing.T, text string) float64 {
	if text == "unlimited" {
		return math.Inf(1)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (s *script) do(t *testing.T, line string) string {
	f := append(strings.Fields(line), "", "", "")
	how := func(what string) string {
		rate := strconv.FormatFloat(s.pace.Rate(s.now), 'f', 1, 64)
		if s.pace.Rate(s.now) < 10 {
			rate = strconv.FormatFloat(s.pace.Rate(s.now), 'f', 3, 64)
		}
		return fmt.Sprintf("%s: %s%s/s, %s", s.now.Sub(s.begun).Round(time.Millisecond), what, rate, s.pace.Reason(s.now))
	}
	report := func(d time.Duration, granted int) string {
		return how(fmt.Sprintf("%d granted, on average %.1f/s; now ", granted, float64(granted)/d.Seconds()))
	}
	switch f[0] {
	case "new": // new START MAX PAGE
		s.now, s.begun, s.plot = start, start, nil
		s.limits = throttle.Limits{Start: number(t, f[1]), Max: number(t, f[2])}
		s.page = int(number(t, f[3]))
		s.pace = throttle.NewPace(s.now, s.limits, throttle.State{}, s.page)
		return how("")
	case "restart": // the next claim, which knows only what was kept
		s.pace = throttle.NewPace(s.now, s.limits, s.pace.State(s.now), s.page)
		return how("")
	case "run": // run FOR [pushback]
		d := duration(t, f[1])
		var each func()
		halved := 0
		if f[2] == "pushback" {
			each = func() {
				if s.pace.PushBack(s.now, throttle.ReasonPushBack) {
					halved++
				}
			}
		}
		got := report(d, s.run(d, each))
		if each != nil {
			got += fmt.Sprintf("; halved %d times", halved)
		}
		return got
	case "runs": // runs N FOR EVERY: each in a process of its own
		var out []string
		for range int(number(t, f[1])) {
			began := s.now
			s.pace = throttle.NewPace(s.now, s.limits, s.pace.State(s.now), s.page)
			out = append(out, report(duration(t, f[2]), s.run(duration(t, f[2]), nil)))
			s.now = began.Add(duration(t, f[3]))
		}
		return strings.Join(out, "\n")
	case "idle":
		s.now = s.now.Add(duration(t, f[1]))
		return how("")
	case "pushback": // pushback REASON
		return fmt.Sprint(how(fmt.Sprint("halved ", s.pace.PushBack(s.now, throttle.Reason(f[1])), "; now ")))
	case "latency": // latency N EACH: pages that took so long, one a second
		halved := 0
		for range int(number(t, f[1])) {
			if s.pace.Latency(s.now, s.page, duration(t, f[2])) {
				halved++
			}
			s.now = s.now.Add(time.Second)
		}
		return how(fmt.Sprintf("halved %d times; now ", halved))
	case "limits": // limits START MAX
		s.limits = throttle.Limits{Start: number(t, f[1]), Max: number(t, f[2])}
		s.pace.SetLimits(s.now, s.limits)
		return how(fmt.Sprintf("burst %d, ", s.pace.Burst(s.now, s.page)))
	case "total": // total RATE BURST FOR, or total none
		share := throttle.Share{Unlimited: true}
		if f[1] != "none" {
			share = throttle.Share{PerSecond: number(t, f[1]), Burst: number(t, f[2]), Until: s.now.Add(duration(t, f[3]))}
		}
		s.pace.SetTotal(s.now, share)
		return how(fmt.Sprintf("burst %d, ", s.pace.Burst(s.now, s.page)))
	case "hold":
		s.pace.Hold(s.now, throttle.Reason(f[1]))
		return how("")
	case "plot": // plot EVERY
		return s.draw(duration(t, f[1]))
	default:
		t.Fatalf("unknown command %q", line)
		return ""
	}
}

// draw shows the rate at the beginning of each interval, on a linear scale.
func (s *script) draw(every time.Duration) string {
	var b strings.Builder
	most := 0.0
	for _, p := range s.plot {
		if !math.IsInf(p.rate, 1) {
			most = max(most, p.rate)
		}
	}
	var next time.Duration
	for _, p := range s.plot {
		if p.at < next {
			continue
		}
		next = p.at - p.at%every + every
		fmt.Fprintf(&b, "%8s %9.1f %-8s |%s\n", p.at.Round(time.Second), p.rate, p.reason, strings.Repeat("#", int(math.Round(50*p.rate/most))))
	}
	s.plot = nil
	return strings.TrimSuffix(b.String(), "\n")
}

// The golden files hold blocks of commands, a line of dashes, and what came of
// them. Lines that begin with # explain.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pace")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			s := &script{}
			for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				commands, _, _ := strings.Cut(block, "\n----")
				fmt.Fprintf(&out, "%s\n----\n", commands)
				for line := range strings.SplitSeq(commands, "\n") {
					if line != "" && !strings.HasPrefix(line, "#") {
						fmt.Fprintln(&out, s.do(t, line))
					}
				}
				out.WriteString("\n")
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if out.String() != string(text) {
				t.Errorf("%s differs; run with -update and look at the change. Got:\n%s", file, out.String())
			}
		})
	}
}

// span is a span of time in which no rate was higher than the one given.
type span struct {
	from, to time.Time
	rate     float64
}

// excess looks at every window that begins and ends with a grant: what was
// granted in it is at most the integral of the rate, and one burst.
func excess(grants []grant, allowed []span) error {
	integral := func(t time.Time) (sum float64) {
		for _, s := range allowed {
			if s.from.Before(t) {
				to := s.to
				if t.Before(to) {
					to = t
				}
				sum += s.rate * to.Sub(s.from).Seconds()
			}
		}
		return sum
	}
	at := make([]float64, len(grants))
	for i, g := range grants {
		at[i] = integral(g.at)
	}
	for i := range grants {
		sum := 0
		for j := i; j < len(grants); j++ {
			sum += grants[j].n
			// The bucket holds a burst at most as the window begins.
			if most := at[j] - at[i] + grants[i].burst; float64(sum) > most+1e-3 {
				return fmt.Errorf("%d granted from %v on within %v, at most %.3f allowed", sum, grants[i].at.Sub(start), grants[j].at.Sub(grants[i].at), most)
			}
		}
	}
	return nil
}

// play runs a random sequence of commands. Cheat is what the pace really sees of
// the time, and whether a restart keeps the bucket.
func play(seed uint64, faster float64, keepTokens bool) error {
	rng := rand.New(rand.NewPCG(seed, 3))
	rate := func() float64 { return []float64{0.5, 3, 20, 100, 499, 5000}[rng.IntN(6)] }
	limits := func() throttle.Limits { return throttle.Limits{Start: rate(), Max: rate()} }
	page := 1 + rng.IntN(500)
	now, seen := start, start
	l := limits()
	p := throttle.NewPace(seen, l, throttle.State{}, page)
	var grants []grant
	var allowed []span
	part := math.Inf(1) // of the target's burst
	burst := func() float64 {
		return max(1, min(float64(page), p.Rate(seen), part))
	}
	pass := func(d time.Duration) {
		r := p.Rate(seen)
		now, seen = now.Add(d), seen.Add(time.Duration(float64(d)*faster))
		// It may have grown meanwhile, and then no more than to what it is now.
		allowed = append(allowed, span{now.Add(-d), now, max(r, p.Rate(seen))})
	}
	for range 250 {
		switch rng.IntN(12) {
		case 0:
			l = limits()
			p.SetLimits(seen, l)
		case 1:
			part = rate()
			p.SetTotal(seen, throttle.Share{PerSecond: rate(), Burst: part, Until: seen.Add(time.Duration(rng.IntN(20)) * time.Second)})
		case 2:
			part = math.Inf(1)
			p.SetTotal(seen, throttle.Share{Unlimited: true})
		case 3:
			p.PushBack(seen, throttle.ReasonPushBack)
		case 4:
			p.Hold(seen, throttle.ReasonPaused)
			pass(time.Duration(rng.IntN(5000)) * time.Millisecond)
			p.Hold(seen, "")
		case 5:
			kept := p.State(seen)
			next := throttle.NewPace(seen, l, kept, page)
			if got := next.State(seen).Rate; got > kept.Rate {
				return fmt.Errorf("kept %v, restored %v", kept.Rate, got)
			}
			if keepTokens {
				// As if the new bucket were full.
				grants = append(grants, grant{now, p.Burst(seen, page), burst()})
			}
			p, part = next, math.Inf(1)
		case 6:
			pass(time.Duration(rng.IntN(40*60)) * time.Second)
		}
		for range rng.IntN(8) {
			n := 1 + rng.IntN(p.Burst(seen, page))
			if wait := p.Take(seen, n); wait > 0 {
				pass(min(wait, 30*time.Second))
				continue
			}
			grants = append(grants, grant{now, n, burst()})
		}
	}
	if len(grants) < 5 {
		return nil
	}
	return excess(grants, allowed)
}

func TestNoWindowExceedsThePace(t *testing.T) {
	for seed := range uint64(500) {
		if err := play(seed, 1, false); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestThePropertyCatchesACheat(t *testing.T) {
	caught := func(faster float64, keepTokens bool) bool {
		for seed := range uint64(200) {
			if play(seed, faster, keepTokens) != nil {
				return true
			}
		}
		return false
	}
	if !caught(1.2, false) {
		t.Error("a clock that runs a fifth too fast passes")
	}
	if !caught(1, true) {
		t.Error("a bucket that is full after a restart passes")
	}
}

// Where a page was cut before the burst shrank it is granted whole, and its debt
// is paid before the next.
func TestAPageLargerThanTheBurstIsPaidFor(t *testing.T) {
	p := throttle.NewPace(start, throttle.Limits{Start: 50, Max: 50}, throttle.State{}, 500)
	now, granted := start, 0
	for range 10 {
		for {
			wait := p.Take(now, 500)
			if wait == 0 {
				break
			}
			now = now.Add(wait)
		}
		granted += 500
	}
	// Nine debts were paid in full, and the first grant needed a full bucket.
	if got := now.Sub(start).Round(time.Millisecond); got != 91*time.Second {
		t.Errorf("%d entities at 50/s took %v", granted, got)
	}
}

func TestBurst(t *testing.T) {
	for _, c := range []struct {
		limits throttle.Limits
		want   int
	}{
		{throttle.Limits{Start: 0.1, Max: 0.1}, 1},
		{throttle.Limits{Start: 20, Max: 500}, 20},
		{throttle.Limits{Start: 5000, Max: 5000}, 500},
		{throttle.Limits{Start: 5000, Max: 30}, 30},
		{throttle.Limits{Unlimited: true}, 500},
	} {
		if got := throttle.NewPace(start, c.limits, throttle.State{}, 500).Burst(start, 500); got != c.want {
			t.Errorf("burst of %+v = %d, want %d", c.limits, got, c.want)
		}
	}
}

func TestClockThatGoesBackGrantsNothing(t *testing.T) {
	p := throttle.NewPace(start, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
	if wait := p.Take(start.Add(-time.Hour), 100); wait != time.Second {
		t.Errorf("wait = %v, want 1s", wait)
	}
}

// What was kept is a record that anybody may have written.
func TestOddStates(t *testing.T) {
	limits := throttle.Limits{Start: 500, Max: 5000}
	for _, c := range []struct {
		kept throttle.State
		want float64
	}{
		{throttle.State{}, 500},
		{throttle.State{Rate: 700}, 500}, // never used
		{throttle.State{Rate: 700, Used: start.Add(-29 * time.Minute)}, 700},
		{throttle.State{Rate: 700, Used: start.Add(-30 * time.Minute)}, 500},
		{throttle.State{Rate: 700, Used: start.Add(time.Hour)}, 700},
		{throttle.State{Rate: 9000, Used: start}, 5000},
		{throttle.State{Rate: 40, Used: start}, 40},
		{throttle.State{Rate: -3, Used: start}, 500},
		{throttle.State{Rate: math.NaN(), Used: start}, 500},
		{throttle.State{Rate: math.Inf(1), Used: start}, 500},
	} {
		if got := throttle.NewPace(start, limits, c.kept, 500).Rate(start); got != c.want {
			t.Errorf("%+v gives %v, want %v", c.kept, got, c.want)
		}
	}
}

// A range without limits is held to half of what it did, and is free again when
// it has grown back.
func TestPushBackWithoutLimits(t *testing.T) {
	p := throttle.NewPace(start, throttle.Limits{Unlimited: true}, throttle.State{}, 500)
	now := start
	if p.Take(now, 500) != 0 || p.Reason(now) != "" {
		t.Fatal("a range without limits waits")
	}
	for range 400 { // 10,000/s
		now = now.Add(50 * time.Millisecond)
		p.Take(now, 500)
	}
	p.PushBack(now, throttle.ReasonCompaction)
	if got := p.Rate(now); got < 4500 || got > 5500 || p.Reason(now) != throttle.ReasonCompaction {
		t.Errorf("half of 10,000/s is %.0f/s, %s", got, p.Reason(now))
	}
	if got := p.State(now).Rate; got != 0 {
		t.Errorf("kept %v of a range without limits", got)
	}
	began := now
	for p.Reason(now) != "" && now.Sub(began) < time.Hour {
		now = now.Add(max(time.Microsecond, p.Take(now, 500)))
	}
	want := time.Duration(math.Log(2) / math.Log(1.5) * float64(5*time.Minute))
	if got := now.Sub(began); got < want-2*time.Second || got > want+2*time.Second {
		t.Errorf("free again after %v, want %v", got, want)
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	p := throttle.NewPace(start, throttle.Limits{Start: 5000, Max: 9000}, throttle.State{}, 500)
	now := start
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(10 * time.Millisecond)
		p.Take(now, p.Burst(now, 100))
		p.Reason(now)
		p.Latency(now, 100, time.Millisecond)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	p := throttle.NewPace(start, throttle.Limits{Start: 5000, Max: 9000}, throttle.State{}, 500)
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		p.Take(now, 5)
	}
}
