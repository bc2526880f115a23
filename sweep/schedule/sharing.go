package schedule

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/step"
)

// A sharing is what a book remembers of how processes divide the ranges.
type sharing struct {
	gave  time.Time // when this process gave ranges back last
	given int       // so many did it give that the heartbeats of others cannot show yet
	asked time.Time // when it last asked which ranges others have released
	read  time.Time // when the last read of heartbeats that share has used was sent
}

// share divides the ranges among the live processes. A process that waits for ranges of
// others says so in its heartbeat and reads their cursors. One that holds more than its
// part gives the rest back.
func (b *book) share(s *scheduler, now time.Time) {
	if !b.c.Cfg.Apply {
		return
	}
	if read := b.c.Keeper.Read(); !read.Equal(b.read) {
		b.read = read
		b.rouseReleased(s, now)
	}
	b.c.Watch.Seek(len(b.elsewhere) > 0 && s.ctx.Err() == nil)
	if len(b.elsewhere) > 0 && now.Sub(b.asked) >= b.c.Target.Lease/12 {
		b.asked = now
		b.wantElsewhere(now)
	}
	if excess := b.excess(); excess > 0 {
		b.giveSome(excess, now.Add(-b.c.Target.Lease/6))
	}
}

// giveSome marks ranges until so many are to be given back, each after its next step. It chooses
// among those that have been in work for some time: the others may be done soon.
func (b *book) giveSome(most int, before time.Time) {
	var list []*item
	for _, it := range b.lagging.items {
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

// wantElsewhere asks for the cursors of ranges that other processes hold, beginning with
// those that were read the longest ago.
func (b *book) wantElsewhere(now time.Time) {
	var list []cursor.ID
	for it := range b.elsewhere {
		if j, ok := it.rangeJob(); ok {
			list = append(list, b.c.Rules.ID(j.Range()))
		}
	}
	told := func(id cursor.ID) time.Duration { return now.Sub(b.view.CursorSent(id)) }
	slices.SortFunc(list, func(x, y cursor.ID) int {
		return cmp.Or(cmp.Compare(told(y), told(x)), strings.Compare(x.Key(), y.Key()))
	})
	for _, id := range list[:min(len(list), store.MaxRecords)] {
		b.c.Viewer.WantCursor(id)
	}
}

// excess returns how many ranges this process holds beyond its part. What it has given back counts
// as held by somebody until newer heartbeats show who holds it.
func (b *book) excess() int {
	processes, ranges, told := b.c.Keeper.Parts()
	if told.After(b.gave.Add(b.c.Target.Lease / 6)) {
		b.given = 0
	}
	if processes < 2 || !b.c.Keeper.IsSought() {
		return 0
	}
	return b.c.Keeper.Pulse.Held() - (ranges+b.given+processes-1)/processes
}

// givesBack reports whether the step that has just ended was the last one before the range
// is given back. Its bucket is empty then: nothing of the pace is lost.
func (it *item) givesBack() bool {
	j, isRange := it.rangeJob()
	return it.gives && isRange && j.MayEnd() &&
		(it.out.State == step.Ready || it.out.State == step.Waiting)
}
