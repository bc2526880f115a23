package breaker

import (
	"slices"
	"time"
)

// A Day is what is learnt from one day: the highest share of all entities in an hour that was counted,
// and which hours have taught it, or less.
type Day struct {
	Begin time.Time
	Share float64
	Steps []Step // in the order of the hours, and of the shares; none if it is not known which hour it was
}

// A Step is the share of all entities that an hour held, if no earlier one held as much. That of one which
// was approved as normal has no hour, and is before all others.
type Step struct {
	Hour  time.Time
	Share float64
}

// mostSteps bounds what a day keeps. The lowest ones of hours are forgotten.
const mostSteps = 8

// before returns the highest known share of an hour before another one; of all hours if that is zero.
// What an hour has taught itself, or a later one that it has taught, would raise its limit each time
// it is counted: everything could go if it came a little at a time.
func (d Day) before(hour time.Time) (share float64) {
	if hour.IsZero() || len(d.Steps) == 0 {
		return d.Share
	}
	for _, s := range d.Steps {
		if s.Hour.Before(hour) {
			share = s.Share
		}
	}
	return share
}

// with returns the day after an hour was counted.
func (d Day) with(hour time.Time, share float64) Day {
	steps := slices.Clone(d.Steps)
	if len(steps) == 0 && d.Share > 0 {
		steps = []Step{{Share: d.Share}}
	}
	if slices.ContainsFunc(steps, func(s Step) bool { return !s.Hour.After(hour) && s.Share >= share }) {
		return d
	}
	steps = slices.DeleteFunc(steps, func(s Step) bool { return !s.Hour.Before(hour) && s.Share <= share })
	i, _ := slices.BinarySearchFunc(steps, hour, func(s Step, at time.Time) int { return s.Hour.Compare(at) })
	steps = slices.Insert(steps, i, Step{hour, share})
	if len(steps) > mostSteps {
		i := slices.IndexFunc(steps, func(s Step) bool { return !s.Hour.IsZero() })
		steps = slices.Delete(steps, i, i+1)
	}
	d.Steps = steps
	d.Share = max(d.Share, share)
	return d
}

// learnt returns the highest share of an hour before that of the key that is known to be usual.
// Hours that were too small to be counted are included: a growing service has no others for a while.
func (b Budget) learnt(r Rules, now time.Time, k Key) (share float64) {
	for _, d := range b.Days {
		if now.Sub(d.Begin) < r.Learn+day {
			share = max(share, d.before(k.Hour))
		}
	}
	all := b.all(now)
	for _, t := range b.Tallies {
		earlier := t.isOfHour() && (k.Hour.IsZero() || t.Key.Hour.Before(k.Hour))
		// What was announced or approved is not usual. It is known for as long as the hour is no older than that.
		fresh := now.Sub(t.At) < r.Learn && r.Horizon(now).Sub(t.Key.Hour) <= r.Learn
		if all > 0 && earlier && !t.Tripped && fresh {
			share = max(share, float64(t.Done-t.Charged-b.announced(r, t.Key))/float64(all))
		}
	}
	return share
}

// learn notes the share of an hour, for those after it; for all if it is zero.
func (b *Budget) learn(r Rules, now, hour time.Time, share float64) {
	begin := now.UTC().Truncate(day)
	b.Days = slices.DeleteFunc(b.Days, func(d Day) bool { return now.Sub(d.Begin) >= r.Learn+day })
	// A count that began before midnight may end after one that began later.
	i := slices.IndexFunc(b.Days, func(d Day) bool { return d.Begin.Equal(begin) })
	if i < 0 {
		i, b.Days = len(b.Days), append(b.Days, Day{Begin: begin})
	}
	b.Days[i] = b.Days[i].with(hour, share)
}
