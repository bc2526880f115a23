package schedule

import (
	"time"

	"github.com/reaper-ttl/reaper/sweep/step"
)

// A counted has the properties of an item that its book counts. The counts are used at
// each step and each second, so they must not cost a pass over all items.
type counted struct {
	// reached is the latest instant up to which everything due was disposed of.
	reached time.Time
	pending bool // the counted sweep waits for it
	needed  bool // it is at rest, and its range needs a read
	tags    tags // by which it is counted now
}

// Tags say in which counts an item is.
type tags struct {
	working   bool // it does not rest
	contended bool // it is pending, and waits for, or retries after, another client's transaction
	looked    bool // it is pending, but the target is held, so that its range was only read
	elsewhere bool // it waits for another process
	lags      bool // this process has to bring its range to the horizon
}

// TagCounts count the items of ranges by their tags.
type tagCounts struct {
	working, contended, lookedAt int
	elsewhere                    map[*item]bool
	lagging                      queue
}

func newTagCounts() tagCounts {
	return tagCounts{elsewhere: map[*item]bool{}, lagging: queue{number: laggingQueue, before: lagsMost}}
}

// tagsNow returns how an item counts now.
func (it *item) tagsNow() tags {
	if _, isRange := it.rangeJob(); !isRange {
		return tags{}
	}
	waits := it.state == step.Waiting
	return tags{
		working:   it.state != step.Resting,
		contended: it.pending && it.isContended(),
		looked:    it.pending && waits && it.out.Held != "",
		elsewhere: waits && it.out.IsElsewhere(),
		lags:      !it.out.IsElsewhere() && (it.state != step.Resting || it.needed),
	}
}

// isContended reports whether an item waits for another client's transaction, or retries
// after it: a store may take seconds to refuse such a try.
func (it *item) isContended() bool {
	return (it.state == step.Waiting || it.state == step.Ready || it.state == step.Running) && it.out.Contended
}

// note counts an item as it is now. It must be called after each change of an item.
func (n *tagCounts) note(it *item) { n.retag(it, it.tagsNow()) }

// leaveOut removes an item from all counts.
func (n *tagCounts) leaveOut(it *item) { n.retag(it, tags{}) }

func (n *tagCounts) retag(it *item, is tags) {
	was := it.tags
	it.tags = is
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
