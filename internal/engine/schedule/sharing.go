package schedule

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

// A sharing divides the ranges of one target among the live processes.
type sharing struct {
	c     *site.Site
	gave  time.Time // when this process gave ranges back last
	given int       // ranges that it gave back and that the heartbeats of others cannot show yet
	asked time.Time // when it last asked which ranges others have released
	read  time.Time // when the last read of heartbeats was sent that was used here
}

// hasNews reports whether heartbeats were read since the last call.
func (h *sharing) hasNews() bool {
	read := h.c.Keeper.Read()
	if read.Equal(h.read) {
		return false
	}
	h.read = read
	return true
}

// released lists the ranges that waited for another process and, as cursors and heartbeats
// show, need not wait any longer.
func (h *sharing) released(elsewhere map[*item]bool, p *plan.Plan) (list []*item) {
	for it := range elsewhere {
		if j, ok := it.rangeJob(); ok && it.out.State != step.Given && h.c.Keeper.Wait(p.Cursor(j.Range())) == 0 {
			list = append(list, it)
		}
	}
	return list
}

// look asks for ranges of others if this process waits for some: it says so in its heartbeat,
// and has their cursors read. If it holds more than its part, it marks ranges to be given back.
func (h *sharing) look(n *tagCounts, v *plan.View, isStopping bool, now time.Time) {
	h.c.Watch.WantRanges(len(n.elsewhere) > 0 && !isStopping)
	if len(n.elsewhere) > 0 && now.Sub(h.asked) >= h.c.Target.Lease/12 {
		h.asked = now
		h.wantCursors(n.elsewhere, v, now)
	}
	if excess := h.excess(); excess > 0 {
		giveSome(n.lagging.items, excess, now.Add(-h.c.Target.Lease/6))
	}
}

// gaveOne notes that a range was given back, and returns when another process should have
// taken it.
func (h *sharing) gaveOne(now time.Time) time.Time {
	h.gave, h.given = now, h.given+1
	return now.Add(h.c.Target.Lease / 6)
}

// excess returns how many ranges this process holds beyond its part. What it has given back counts
// as held by somebody until newer heartbeats show who holds it.
func (h *sharing) excess() int {
	processes, ranges, read := h.c.Keeper.Parts()
	if read.After(h.gave.Add(h.c.Target.Lease / 6)) {
		h.given = 0
	}
	if processes < 2 || !h.c.Keeper.IsSought() {
		return 0
	}
	return h.c.Keeper.Pulse.Held() - (ranges+h.given+processes-1)/processes
}

// wantCursors asks for the cursors of ranges that other processes hold, beginning with
// those that were read the longest ago.
func (h *sharing) wantCursors(elsewhere map[*item]bool, v *plan.View, now time.Time) {
	var list []cursor.ID
	for it := range elsewhere {
		if j, ok := it.rangeJob(); ok {
			list = append(list, h.c.Rules.ID(j.Range()))
		}
	}
	age := func(id cursor.ID) time.Duration { return now.Sub(v.CursorSent(id)) }
	slices.SortFunc(list, func(x, y cursor.ID) int {
		return cmp.Or(cmp.Compare(age(y), age(x)), strings.Compare(x.Key(), y.Key()))
	})
	for _, id := range list[:min(len(list), store.MaxRecords)] {
		h.c.Viewer.WantCursor(id)
	}
}

// giveSome marks ranges until so many are to be given back, each after its next step. It chooses
// among those that have been in work for some time: the others may be done soon.
func giveSome(working []*item, most int, before time.Time) {
	var list []*item
	for _, it := range working {
		switch _, isRange := it.rangeJob(); {
		case !isRange:
		case it.gives:
			most--
		case !it.worked.IsZero() && it.worked.Before(before):
			list = append(list, it)
		}
	}
	for _, it := range inOrder(list)[:max(0, min(most, len(list)))] {
		it.gives = true
	}
}
