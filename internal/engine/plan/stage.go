package plan

import (
	"maps"
	"time"

	"github.com/reaper-ttl/reaper/generation"
)

// A Stage is what a plan has to know of a range's generation. The zero Stage is that of
// ranges that are never sealed: those of the nursery and of timestamps.
type Stage struct {
	State  generation.State
	Sealed time.Time // when the last writer must have committed; zero if one may still write
	// Since is the mark for reads from the start: in a sealed generation each range
	// needs such a read that began at Since or later.
	Since time.Time
	Final bool // Since is that of the last read, before the generation retires
	Drain bool // what is left is carried to the newest generation
	// DrainFrom is when draining began, in the store's time. Until all workers
	// know of it they sweep the newest generation at full pace.
	DrainFrom time.Time
}

// IsSealed reports whether no writer may write to the generation any more.
func (s Stage) IsSealed() bool { return !s.Sealed.IsZero() }

// hasCarried reports whether a sweep that came up to a horizon has carried what it could.
func (s Stage) hasCarried(swept time.Time, retention time.Duration) bool {
	return !swept.Add(retention).Before(s.DrainFrom)
}

// The stages of a plan are those of the live generations.
type stages struct {
	byNumber map[int]Stage
	blocked  []int
}

// classify finds out the stage of each generation at an instant in the store's time.
func classify(sums *totals, now time.Time) stages {
	record, rules := sums.records.view.Record, &sums.records.rules
	all := stages{byNumber: map[int]Stage{}}
	staleness, slack := record.Bounds()
	for i, g := range record.Generations {
		s := Stage{State: record.State(i, now, rules.Policy.Settle)}
		if s.State != generation.Sealed && s.State != generation.Draining {
			all.byNumber[g.Number] = s
			continue
		}
		total, swept := sums.of(g.Number)
		s.Sealed = record.SealedAt(i, rules.Policy.Settle)
		s.Since = s.Sealed
		if ready, empty := total.emptySince(s.Sealed, slack); swept && empty && !now.Before(ready) {
			s.Since, s.Final = ready, true
		}
		if s.State == generation.Draining {
			s.DrainFrom = g.Draining.Add(staleness)
			s.Drain = !now.Before(s.DrainFrom)
		}
		all.byNumber[g.Number] = s
		if s.Drain && swept && total.isBlocked(s, rules.Retention) {
			all.blocked = append(all.blocked, g.Number)
		}
	}
	return all
}

// Stage returns the stage of a generation.
func (s stages) Stage(number int) Stage { return s.byNumber[number] }

// Blocked lists the draining generations in which the only entities left are those that
// the store refuses to carry, or suspects that were not carried either. These stay; the
// next generation may be drained meanwhile.
func (s stages) Blocked() []int { return s.blocked }

// areSealedAs reports whether the same generations were sealed at the same instants, and are drained: that
// decides where the audit looks.
func (s stages) areSealedAs(other stages) bool {
	return maps.EqualFunc(s.byNumber, other.byNumber, func(a, b Stage) bool {
		return a.Sealed.Equal(b.Sealed) && a.Drain == b.Drain
	})
}
