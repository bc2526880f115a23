package sweep

import "time"

// A counted is what of an item its book keeps counts of. They are asked for at each
// step and each second, so nobody may go over all items for them.
type counted struct {
	// reached is the latest instant up to which everything due was disposed of.
	reached time.Time
	pending bool   // the sweep that is counted waits for it
	needed  bool   // it is at rest, and its range needs a read
	stance  stance // as the book has it in its counts
}

// A stance is how an item counts.
type stance struct {
	working   bool // it does not rest
	contended bool // it is pending, and waits for somebody else's transaction, or tries it again
	looked    bool // it is pending, and the target is held: it was only looked at
	elsewhere bool // it waits for another process
	lags      bool // its range is this process's to bring to the horizon
}

// Standings are how many items of ranges stand how.
type standings struct {
	working, contended, lookedAt int
	elsewhere                    map[*item]bool
	lagging                      queue
}

func newStandings() standings {
	return standings{elsewhere: map[*item]bool{}, lagging: queue{number: laggingQueue, before: lagsMost}}
}

// stanceNow returns how an item counts now.
func (it *item) stanceNow() stance {
	if _, isRange := it.job.(*rangeJob); !isRange {
		return stance{}
	}
	waits := it.state == waiting
	return stance{
		working:   it.state != resting,
		contended: it.pending && (waits || it.state == ready || it.state == running) && it.out.contended,
		looked:    it.pending && waits && it.out.held != "",
		elsewhere: waits && it.out.isElsewhere(),
		lags:      !it.out.isElsewhere() && (it.state != resting || it.needed),
	}
}

// note counts an item as it is now. Whatever changes one calls it.
func (n *standings) note(it *item) { n.become(it, it.stanceNow()) }

// leaveOut takes an item out of all counts.
func (n *standings) leaveOut(it *item) { n.become(it, stance{}) }

func (n *standings) become(it *item, is stance) {
	was := it.stance
	it.stance = is
	add(&n.working, was.working, is.working)
	add(&n.contended, was.contended, is.contended)
	add(&n.lookedAt, was.looked, is.looked)
	switch {
	case is.elsewhere:
		n.elsewhere[it] = true
	case was.elsewhere:
		delete(n.elsewhere, it)
	}
	if is.lags {
		n.lagging.put(it) // it may have come further
	} else {
		n.lagging.remove(it)
	}
}

func add(n *int, was, is bool) {
	switch {
	case is && !was:
		*n++
	case was && !is:
		*n--
	}
}
