package main

// A load is what all collectors have to do.
type load struct {
	name       string
	rate       float64 // entities that come to be due each second, and as many are written
	life       float64 // from an entity's write until it is due
	namespaces int
	shards     int // of each namespace, in each generation
}

func (l load) ranges() int { return l.namespaces * l.shards }

// operations are what the service bills.
type operations struct{ reads, writes, deletes float64 }

func (o *operations) add(p operations) {
	o.reads += p.reads
	o.writes += p.writes
	o.deletes += p.deletes
}

func (o operations) times(f float64) operations {
	return operations{o.reads * f, o.writes * f, o.deletes * f}
}

// A sample is what an onlooker sees at one time.
type sample struct{ at, backlog, oldest, page float64 }

// An outcome is what comes of a collector that works for a time.
type outcome struct {
	who     string
	samples []sample
	waits   delays // in the second half, when it has settled
	bill    operations
	half    operations // the bill when half of the time was over
	seconds float64
	refused float64 // writes of the application that the index did not take
	pushed  float64 // deletes that the index did not take at once
}

// monthly returns what a month costs that is like the second half of the time.
func (o outcome) monthly() operations {
	o.bill.add(o.half.times(-1))
	return o.bill.times(2 * month / o.seconds)
}

// mark remembers the bill when half of the time is over.
func (o *outcome) mark(now float64) {
	if now <= o.seconds/2 {
		o.half = o.bill
	}
}

// last returns what is seen at the end.
func (o outcome) last() sample { return o.samples[len(o.samples)-1] }

// worst returns the longest page, and the oldest entity that was due, of all samples.
func (o outcome) worst() (page, oldest float64) {
	for _, s := range o.samples {
		page, oldest = max(page, s.page), max(oldest, s.oldest)
	}
	return page, oldest
}

// lost returns which part of the application's writes the index did not take.
func (o outcome) lost(l load) float64 { return o.refused / (l.rate * o.seconds) }
