package main

import "math"

// A move is how writers come to a new generation during its ramp.
type move struct {
	minutes  float64 // how long the ramp is
	refused  float64 // writes that the new generation's index did not take, in all
	worst    float64 // the largest part of all writes of a second that was refused
	until    float64 // when the last one was refused, in minutes
	tablets  int     // at the end
	timeline []sample
}

// moved returns the part of the entities that have moved: generation.Share, by docs/generations.md.
func moved(now, ramp float64) float64 {
	if now >= ramp {
		return 1
	}
	return math.Pow(growth, 12*(now/ramp-1))
}

// moveTo lets the writers of a load move to a new generation, whose shards lie on one cold
// tablet at first. Those that stay have the old generation's tablets, which are warm.
func moveTo(l load, minutes float64) move {
	const dt = 5.0
	m := move{minutes: minutes}
	x := newIndex(l.ranges())
	for now := 0.0; now < 3*3600; now += dt {
		each := l.rate * moved(now, minutes*60) / float64(l.ranges())
		for i := range x.load {
			x.load[i] = each
		}
		x.advance(dt)
		part := 0.0
		for _, served := range x.served {
			part += (1 - served) * each / l.rate
		}
		m.refused += part * l.rate * dt
		m.worst = max(m.worst, part)
		if part > 1e-9 {
			m.until = (now + dt) / 60
		}
		if math.Mod(now, 120) == 0 {
			m.timeline = append(m.timeline, sample{at: now, page: part})
		}
	}
	m.tablets = len(x.tablets)
	return m
}
