package sweep

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A tally adds up what the steps of one target did. It is safe for concurrent use.
type tally struct {
	counts    counts
	meter     store.Meter
	published published

	mu        sync.Mutex
	throttled map[throttle.Reason]time.Duration
	retired   []int
	wrote     time.Time // when a write that disposes of something last succeeded
	around    *around   // what was found outside the ranges; nil if nobody has looked
	preview   preview
}

// An around is what was found outside the ranges.
type around struct {
	outside    int64
	emptyIndex bool
}

// counts are what steps add up.
type counts struct {
	metrics.CountsOf[atomic.Int64]
	steps
}

// steps are the deleted points that reads stepped over: all, and those of reads from the start.
type steps struct {
	stepped, behind atomic.Int64
	stepsUnknown    atomic.Bool // a page could not tell
}

func newTally() *tally { return &tally{throttled: map[throttle.Reason]time.Duration{}} }

// waited adds to the time for which a reason has held the target's ranges back.
func (t *tally) waited(why throttle.Reason, d time.Duration) {
	if d <= 0 || why == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.throttled[why] += d
}

// throttledFor returns for how long each reason has held the ranges back so far.
func (t *tally) throttledFor() map[throttle.Reason]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[throttle.Reason]time.Duration, len(t.throttled))
	for why, d := range t.throttled {
		all[why] = d
	}
	return all
}

// steppedOver adds up the deleted points that a read stepped over.
func (t *tally) steppedOver(n int64, fromStart bool) {
	if n == store.UnknownSteps {
		t.counts.stepsUnknown.Store(true)
		return
	}
	t.counts.stepped.Add(n)
	if fromStart {
		t.counts.behind.Add(n)
	}
}

// succeeded notes that a write took effect: the store does not refuse everything.
func (t *tally) succeeded(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrote = now
}

// succeededSince reports whether a write took effect after the instant.
func (t *tally) succeededSince(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wrote.After(at)
}

func (t *tally) retire(number int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retired = append(t.retired, number)
}

// lookedAround notes what was found outside the ranges.
func (t *tally) lookedAround(outside int64, emptyIndex bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.around = &around{outside, emptyIndex}
}

// aroundOr returns what this process has found outside the ranges, or the arguments if it
// has not looked yet.
func (t *tally) aroundOr(outside int64, emptyIndex bool) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.around != nil {
		return t.around.outside, t.around.emptyIndex
	}
	return outside, emptyIndex
}

// fill puts the sums into a result.
func (t *tally) fill(res *TargetResult) {
	c := &t.counts
	res.Counts = metrics.Load(&c.CountsOf)
	res.Operations = t.meter.Operations()
	if !c.stepsUnknown.Load() {
		n, behind := c.stepped.Load(), c.behind.Load()
		res.Stepped, res.Behind = &n, &behind
	}
	res.Throttled = map[string]float64{}
	for why, d := range t.throttledFor() {
		res.Throttled[string(why)] = d.Seconds()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	res.Retired = append([]int{}, t.retired...)
	res.Examples = []Example{}
}
