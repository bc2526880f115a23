package draw

import (
	"cmp"
	"math"
	"slices"

	"github.com/reaper-ttl/reaper/inspect"
)

// Delays count deletes by how long after their entities were due they came, in seconds.
type delays map[delayBounds]float64

type delayBounds struct{ over, within float64 } // within may be infinite

// add adds a part of what a run counted.
func (d *delays) add(list []inspect.HistoryDelay, part float64) {
	if *d == nil {
		*d = delays{}
	}
	for _, one := range list {
		b := delayBounds{one.Over, math.Inf(1)}
		if one.Within != nil {
			b.within = *one.Within
		}
		(*d)[b] += part * float64(one.Deletes)
	}
}

// quantile returns the seconds that a share of the deletes took at most, as if those of a bucket were
// spread evenly over it; nil if nothing was counted. AtLeast says that it was more, since its bucket
// has no upper bound.
func (d delays) quantile(share float64) (seconds *float64, atLeast bool) {
	var all []delayBounds
	sum := 0.0
	for b, n := range d {
		if n > 0 {
			all, sum = append(all, b), sum+n
		}
	}
	if sum == 0 {
		return nil, false
	}
	slices.SortFunc(all, func(a, b delayBounds) int {
		return cmp.Or(cmp.Compare(a.over, b.over), cmp.Compare(a.within, b.within))
	})
	want, below := share*sum, 0.0
	for i, b := range all {
		if n := d[b]; below+n < want && i < len(all)-1 {
			below += n
			continue
		}
		if math.IsInf(b.within, 1) {
			return &b.over, true
		}
		at := b.over + min(1, (want-below)/d[b])*(b.within-b.over)
		return &at, false
	}
	return nil, false
}
