package main

import (
	"math"
	"slices"
)

// A tablet is a span of an index: the streams from first up to, but not including, last.
// A stream is a place at which rows are written in the order of their keys, such as the
// newest or the oldest end of a shard.
type tablet struct {
	first, last int
	bound       float64 // the writes a second that it takes
	hot, idle   float64 // for how many seconds it has been asked for much, or for little
}

// An index is what the service knows of one index: its tablets, in key order.
type index struct {
	tablets []tablet
	load    []float64 // of each stream, writes a second
	served  []float64 // of each stream, the part of its load that was taken
}

// newIndex returns a cold index of one tablet.
func newIndex(streams int) *index {
	return &index{[]tablet{{0, streams, bound, 0, 0}}, make([]float64, streams), make([]float64, streams)}
}

// settled returns an index whose load is years old: each n streams have a tablet.
func settled(streams, n int) *index {
	x := newIndex(streams)
	x.tablets = nil
	for i := 0; i < streams; i += n {
		x.tablets = append(x.tablets, tablet{i, min(i+n, streams), bound, 0, 0})
	}
	return x
}

// advance lets dt seconds pass with the present load. It sets what is served, and lets the
// tablets grow, split and merge.
func (x *index) advance(dt float64) {
	split, grown := false, growing(dt)
	for i := range x.tablets {
		t := &x.tablets[i]
		load := sum(x.load[t.first:t.last])
		part := 1.0
		if load > t.bound {
			part = t.bound / load
		}
		for s := t.first; s < t.last; s++ {
			x.served[s] = part
		}
		t.grow(load, x.active(*t), dt, grown)
		split = split || t.hot >= splitAfter
	}
	if split {
		x.split()
	}
	x.merge()
}

// growing returns by how much a rate grows in dt seconds of 500/50/5.
func growing(dt float64) float64 { return math.Pow(growth, dt/growthTime) }

// grow follows 500/50/5 as far as the streams go: one stream is one row after the other, and
// no split helps it.
func (t *tablet) grow(load float64, active int, dt, grown float64) {
	most := bound * float64(max(1, active))
	if load >= t.bound*pull {
		t.bound = min(most, t.bound*grown)
	}
	if active > 1 && load > bound {
		t.hot += dt
	} else {
		t.hot = 0
	}
	if load < bound/100 {
		t.idle += dt
	} else {
		t.idle = 0
	}
	if t.idle >= coolAfter {
		t.bound = bound
	}
}

// active returns how many streams of the tablet are written to.
func (x *index) active(t tablet) int {
	n := 0
	for _, l := range x.load[t.first:t.last] {
		if l > 0 {
			n++
		}
	}
	return n
}

// split cuts each hot tablet where half of its load is on either side. Each part gets its
// share of the bound, so that a split alone gives nothing away.
func (x *index) split() {
	var out []tablet
	for _, t := range x.tablets {
		if t.hot < splitAfter {
			out = append(out, t)
			continue
		}
		all, left, cut := sum(x.load[t.first:t.last]), 0.0, t.first
		for cut < t.last-1 && (cut == t.first || left+x.load[cut] <= all/2) {
			left += x.load[cut]
			cut++
		}
		out = append(out, tablet{t.first, cut, partOf(t.bound, left/all), 0, 0},
			tablet{cut, t.last, partOf(t.bound, 1-left/all), 0, 0})
	}
	x.tablets = out
}

// partOf returns the bound of a part of a tablet. A part without load is as good as cold.
func partOf(whole, share float64) float64 {
	if share < 0.01 {
		return bound
	}
	return whole * share
}

func (x *index) merge() {
	for i := len(x.tablets) - 2; i >= 0; i-- {
		a, b := x.tablets[i], x.tablets[i+1]
		if a.idle >= mergeAfter && b.idle >= mergeAfter {
			x.tablets[i] = tablet{a.first, b.last, bound, 0, min(a.idle, b.idle)}
			x.tablets = slices.Delete(x.tablets, i+1, i+2)
		}
	}
}

func sum(v []float64) float64 {
	s := 0.0
	for _, f := range v {
		s += f
	}
	return s
}
