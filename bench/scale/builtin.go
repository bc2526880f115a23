package main

// builtIn is like the service's own TTL policy as far as anybody outside knows: "typically
// within 24 hours". Google does not publish how it works. The assumption is that each entity
// is deleted at a time that is spread evenly over the day after it was due, in no order, and
// that the property is in no index (as the service's own pages advise), so that neither
// writes nor deletes meet in one place. So it steps over no tombstones, and has no bound.
func builtIn(l load, seconds float64) outcome {
	o := outcome{who: "built-in-like", seconds: seconds}
	for at := 0.0; at <= seconds; at += sampleEvery {
		// Of what came to be due s seconds ago, s/ownTTL is gone.
		young := min(at, ownTTL)
		o.samples = append(o.samples, sample{at, l.rate * (young - young*young/(2*ownTTL)), young, 0})
	}
	o.waits.add(0, ownTTL, l.rate*ownTTL)
	o.bill.deletes, o.half.deletes = l.rate*seconds, l.rate*seconds/2 // in the long run: the first day has half of it
	return o
}

// sampleEvery is how often an onlooker looks: each time at another part of a tick.
const sampleEvery = 630.0
