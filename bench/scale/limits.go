package main

import "math"

// A demand is what a load asks of N processes, by formulas that a reader can recompute by
// hand: docs/scale.md has each of them next to its numbers.
type demand struct {
	load
	working float64 // ranges that have something due at a tick
	step    float64 // the time of a tombstone
	compact float64 // from one compaction to the next
}

func demandOf(l load) demand {
	return demand{l, float64(l.ranges()) * min(1, l.rate/float64(l.ranges())*tick), step, compactEvery}
}

// shardsNeeded returns how many contiguous ranges of an index the writes need: each entity is
// written once and deleted once.
func (d demand) shardsNeeded() float64 { return math.Ceil(2 * d.rate / bound) }

// rampNeeded returns how many minutes writers need to move to a new generation by 500/50/5.
func (d demand) rampNeeded() float64 {
	return growthTime / 60 * math.Log(max(1, d.rate/bound)) / math.Log(growth)
}

// pagesPerTick returns the pages of all ranges from tick to tick. A page of what came since
// the last one is full or not; behind it a range goes on with half bursts.
func (d demand) pagesPerTick() float64 {
	each := d.rate * tick / d.working
	if each <= pageSize {
		return d.working
	}
	return d.working * (1 + (each-pageSize)/halfBurst + 0.5)
}

// lookTime returns how long one process takes to ask all ranges that writers may write to, the
// nursery's too, when nothing is due.
func (d demand) lookTime() float64 { return 2 * float64(d.ranges()) * queryTime / workers }

// tickTime returns how long one process takes for all that is due at a tick.
func (d demand) tickTime() float64 {
	idle := float64(2*d.ranges()) - d.working
	return (idle*queryTime + d.pagesPerTick()*byLookup + 2*d.working*claimTime) / workers
}

// processes returns how many processes do the work of a tick within a tick, if N of them do
// that part of N times the work of one.
func (d demand) processes(part float64) float64 {
	if d.tickTime() <= tick {
		return 1
	}
	return math.Ceil(d.tickTime() / tick / part)
}

// cores returns what all processes need for what they delete.
func (d demand) cores() float64 { return d.rate * cpu }

// idleQueries returns the queries of a month that find nothing.
func (d demand) idleQueries() float64 { return (float64(2*d.ranges()) - d.working) * month / tick }

// claims returns the writes of a month that claim and release ranges; there are as many reads.
func (d demand) claims() float64 { return 2 * d.working * month / tick }

// recordWrites returns the writes of cursor records in a second.
func (d demand) recordWrites() float64 { return 2 * d.working / tick }

// records returns the cursor records that a process reads when it starts, and once a day: those
// of the newest generation, of the nursery, and of the sealed ones, of which each day leaves one.
func (d demand) records() float64 { return float64(d.ranges()) * (2 + math.Ceil(d.life/day)) }

// startTime returns how long that takes, by pages.
func (d demand) startTime() float64 { return d.records() / pageSize * queryTime }

// memory returns what a process needs, in MiB.
func (d demand) memory() float64 { return baseMemory + rangeMemory*d.records() }

// rereadTime returns how long the tombstones of one range hold up a read from its start, of
// which there are at most three in a generation's life.
func (d demand) rereadTime() float64 {
	return d.rate / float64(d.ranges()) * (d.compact + versions) * d.step
}

// beats returns the reads of heartbeats in a month.
func (d demand) beats() float64 { return heartbeatReads(d.processes(linear)) * month }
