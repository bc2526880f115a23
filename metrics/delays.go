package metrics

import (
	"sync/atomic"
	"time"
)

// delayBounds are the upper bounds of the buckets by which delays are counted, in the histogram and in
// the history. Longer delays are in a last bucket.
var delayBounds = [...]time.Duration{100 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
	3 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 150 * time.Second, 5 * time.Minute,
	10 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour}

// delayBuckets returns the bounds in seconds, as a histogram takes them.
func delayBuckets() []float64 {
	list := make([]float64, len(delayBounds))
	for i, d := range delayBounds {
		list[i] = d.Seconds()
	}
	return list
}

// DelayCounts say, for each bucket, how many deletes took longer than the bound before, and at most its own.
type DelayCounts [len(delayBounds) + 1]int64

// A DelayTally adds up delays. It is safe for concurrent use.
type DelayTally [len(delayBounds) + 1]atomic.Int64

// Add counts the time from due to deleted of each of some entities.
func (t *DelayTally) Add(each ...time.Duration) {
	for _, d := range each {
		i := 0
		for i < len(delayBounds) && d > delayBounds[i] {
			i++
		}
		t[i].Add(1)
	}
}

// Load returns what was counted so far.
func (t *DelayTally) Load() (c DelayCounts) {
	for i := range t {
		c[i] = t[i].Load()
	}
	return c
}

// Minus returns what was counted since an earlier count.
func (c DelayCounts) Minus(earlier DelayCounts) DelayCounts {
	for i := range c {
		c[i] -= earlier[i]
	}
	return c
}

// A DelayCount is one bucket of delays.
type DelayCount struct {
	Over, Within time.Duration // its bounds; Within is zero if it has no upper one
	N            int64
}

// List returns the buckets that hold anything, the one with the shortest delays first.
func (c DelayCounts) List() (list []DelayCount) {
	for i, n := range c {
		if n == 0 {
			continue
		}
		d := DelayCount{N: n}
		if i > 0 {
			d.Over = delayBounds[i-1]
		}
		if i < len(delayBounds) {
			d.Within = delayBounds[i]
		}
		list = append(list, d)
	}
	return list
}
