package schedule

import "github.com/reaper-ttl/reaper/internal/engine/step"

// tagCounts counts the items of ranges by their tags.
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

// note implements owner.
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
