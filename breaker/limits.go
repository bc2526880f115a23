package breaker

import (
	"fmt"
	"slices"
	"time"
)

// Limits are how much of a target may be deleted in one hour and in one day of the clock, in
// UTC, by all processes together. 0 stands for no limit.
type Limits struct {
	PerHour, PerDay int64
}

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l.PerHour > 0 || l.PerDay > 0 }

// Spent is what was granted in the present hour and day of the clock, less what came back.
type Spent struct {
	Hour          time.Time // begin of the hour
	InHour, InDay int64
	// Ever is how many deletes were reported since the budget began. Unlike tallies it is never
	// forgotten, so the history can be compared with it.
	Ever int64
}

// at returns what is spent as of now: nothing, in another hour or day.
func (s Spent) at(now time.Time) Spent {
	hour := now.UTC().Truncate(time.Hour)
	if !hour.After(s.Hour) { // a clock that is a little behind must not restart the last hour
		return s
	}
	s.InHour = 0
	if !hour.Truncate(day).Equal(s.Hour.Truncate(day)) {
		s.InDay = 0
	}
	s.Hour = hour
	return s
}

func (s *Spent) take(n int64) { s.InHour, s.InDay = s.InHour+n, s.InDay+n }

// giveBack subtracts what was granted and not used. What was granted in an hour that is over
// makes no room in the next one.
func (s *Spent) giveBack(p Report) {
	hour := p.Granted.UTC().Truncate(time.Hour)
	if hour.Equal(s.Hour) {
		s.InHour -= min(p.Rest, s.InHour)
	}
	if hour.Truncate(day).Equal(s.Hour.Truncate(day)) {
		s.InDay -= min(p.Rest, s.InDay)
	}
}

// most returns how much of n the limits allow. Little of what they leave is granted ahead of
// need: another process would wait while it is unused.
func (s Spent) most(l Limits, w Want, n int64) int64 {
	if l.PerHour > 0 {
		n = min(n, max(w.N, (l.PerHour-s.InHour)/20), l.PerHour-s.InHour)
	}
	if l.PerDay > 0 {
		n = min(n, max(w.N, (l.PerDay-s.InDay)/20), l.PerDay-s.InDay)
	}
	return n
}

// LimitedUntil returns when the limits allow the next delete; the zero time if they do now.
func (b Budget) LimitedUntil(l Limits, now time.Time) time.Time {
	switch s := b.Spent.at(now); {
	case l.PerDay > 0 && s.InDay >= l.PerDay:
		return s.Hour.Truncate(day).Add(day)
	case l.PerHour > 0 && s.InHour >= l.PerHour:
		return s.Hour.Add(time.Hour)
	}
	return time.Time{}
}

// UsedUp says which of the limits allows no more, as in "10 a day", if one of them does not.
func (b Budget) UsedUp(l Limits, now time.Time) string {
	if l.PerHour == 0 || l.PerDay > 0 && b.Spent.at(now).InDay >= l.PerDay {
		return fmt.Sprintf("%d a day", l.PerDay)
	}
	return fmt.Sprintf("%d an hour", l.PerHour)
}

// An Announced is how many entities were stamped on purpose to expire within an hour.
type Announced struct {
	Hour time.Time // its begin, in UTC
	N    int64
}

// mostAnnounced bounds the hours that are announced, to a month and a half. If there are more, the
// last ones are left out.
const mostAnnounced = 1100

// Announce returns the budget after entities were stamped on purpose: so many for each instant,
// added up by hour. What was announced for hours that ended more than Learn ago is forgotten.
func (b Budget) Announce(r Rules, now time.Time, stamped map[time.Time]int64) Budget {
	b = b.with()
	for at, n := range stamped {
		hour := r.HourOf(at).Hour
		i, found := slices.BinarySearchFunc(b.Announced, hour, func(a Announced, at time.Time) int {
			return a.Hour.Compare(at)
		})
		if !found {
			b.Announced = slices.Insert(b.Announced, i, Announced{Hour: hour})
		}
		b.Announced[i].N += n
	}
	b.Announced = slices.DeleteFunc(b.Announced, func(a Announced) bool {
		return r.Horizon(now).Sub(a.Hour) > r.Learn+r.Window
	})
	b.Announced = b.Announced[:min(len(b.Announced), mostAnnounced)]
	return b
}

// announced returns how much of an hour was announced.
func (b Budget) announced(r Rules, k Key) (n int64) {
	if k.Hour.IsZero() {
		return 0
	}
	for _, a := range b.Announced {
		if r.HourOf(a.Hour).Hour.Equal(k.Hour) {
			n += a.N
		}
	}
	return n
}
