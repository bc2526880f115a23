package main

// tombstones are those of one range. Compaction rewrites the range from time to time, and
// removes those whose versions nobody may ask for any more.
type tombstones struct {
	minutes []float64 // how many were left in each minute
	gone    int       // minutes whose tombstones were removed
	all     float64
	every   float64 // from one compaction to the next
	next    float64 // when the next one is
}

// newTombstones returns a range without any, whose first compaction is at that time.
func newTombstones(every, first float64) *tombstones { return &tombstones{every: every, next: first} }

// add leaves n tombstones at a time, and compacts if that is due.
func (t *tombstones) add(now, n float64) {
	t.compact(now)
	minute := int(now / 60)
	for len(t.minutes) <= minute {
		t.minutes = append(t.minutes, 0)
	}
	t.minutes[minute] += n
	t.all += n
}

// at returns how many there are.
func (t *tombstones) at(now float64) float64 {
	t.compact(now)
	return t.all
}

func (t *tombstones) compact(now float64) {
	for ; t.next <= now; t.next += t.every {
		for t.gone < len(t.minutes) && float64(t.gone+1)*60 <= t.next-versions {
			t.all -= t.minutes[t.gone]
			t.gone++
		}
	}
	t.all = max(0, t.all)
}
