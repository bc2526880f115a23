package main

import (
	"math"
	"testing"
)

// near fails unless got is want, give or take a part of it.
func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.Abs(got-want) > part*math.Abs(want) {
		t.Errorf("%s: %v, not %v (within %v)", what, got, want, part*want)
	}
}

// One stream is one row after the other: its tablet takes 500 a second for ever, however long
// it is asked for more.
func TestOneStreamStaysAtItsBound(t *testing.T) {
	x := newIndex(1)
	x.load[0] = 2000
	taken := 0.0
	for range 7200 {
		x.advance(1)
		taken += x.load[0] * x.served[0]
	}
	near(t, "taken in two hours", taken, 500*7200, 1e-9)
	if len(x.tablets) != 1 {
		t.Errorf("%d tablets of one stream", len(x.tablets))
	}
}

// What is asked for less than the bound is taken as a whole.
func TestLoadBelowTheBoundIsTaken(t *testing.T) {
	x := newIndex(2)
	x.load[0], x.load[1] = 200, 299
	x.advance(1)
	if x.served[0] != 1 || x.served[1] != 1 {
		t.Errorf("served %v", x.served)
	}
}

// The integral of 500 x 1.5^(s/300) over an hour is 500 x 300 / ln 1.5 x (1.5^12 - 1).
func TestRampByHand(t *testing.T) {
	const streams = 1024
	x, taken := newIndex(streams), 0.0
	for i := range x.load {
		x.load[i] = 1e6 / streams // far more than is taken at the end
	}
	for range 3600 {
		for i, served := range x.served {
			taken += served * x.load[i]
		}
		x.advance(1)
	}
	near(t, "taken in an hour", taken, 500*300/math.Log(1.5)*(math.Pow(1.5, 12)-1), 0.01)
	if len(x.tablets) < 100 {
		t.Errorf("only %d tablets at 64,873 a second", len(x.tablets))
	}
}

// A split alone gives nothing away, and leaves no stream out.
func TestSplitsKeepTheBound(t *testing.T) {
	x := newIndex(64)
	for i := range x.load {
		x.load[i] = 100
	}
	for second := range 3600 {
		x.advance(1)
		all, next := 0.0, 0
		for _, tb := range x.tablets {
			if tb.first != next || tb.last <= tb.first {
				t.Fatalf("after %d s a tablet spans %d to %d, behind %d", second, tb.first, tb.last, next)
			}
			all, next = all+tb.bound, tb.last
		}
		if most := 500 * math.Pow(1.5, float64(second+1)/300); next != 64 || all > most*1.001 {
			t.Fatalf("after %d s: %v a second, at most %v; streams to %d", second, all, most, next)
		}
	}
}

// Idle tablets merge, and begin cold again.
func TestIdleTabletsMerge(t *testing.T) {
	x := settled(8, 1)
	for i := range x.tablets {
		x.tablets[i].bound = 5000
	}
	for range int(mergeAfter) + 1 {
		x.advance(1)
	}
	if len(x.tablets) != 1 || x.tablets[0].bound != bound {
		t.Errorf("%+v", x.tablets)
	}
}

// At a constant rate there are rate x (compaction + an hour) tombstones just before a
// compaction, and rate x an hour just after it.
func TestTombstonesAtAConstantRate(t *testing.T) {
	const rate, every = 10.0, 6 * 3600.0
	g := newTombstones(every, every)
	low, high := math.Inf(1), 0.0
	for now := 0.0; now < 5*every; now++ {
		g.add(now, rate)
		if now > every {
			low, high = min(low, g.at(now)), max(high, g.at(now))
		}
	}
	near(t, "before a compaction", high, rate*(every+versions), 0.01)
	near(t, "after it", low, rate*versions, 0.02)
}

// Entities that wait evenly between two times have the quantiles of that span.
func TestQuantiles(t *testing.T) {
	var d delays
	d.add(0, 100, 1000)
	d.add(200, 201, 1000)
	q := d.quantiles(0.25, 0.5, 0.99)
	near(t, "p25", q[0], 50, 0.01)
	near(t, "p50", q[1], 100, 0.01)
	near(t, "p99", q[2], 201, 0.01)
}
