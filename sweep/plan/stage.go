package plan

import (
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
)

// A Stage is what must be known of the generation that a range lies in. The zero
// Stage is that of ranges that are never sealed: the nursery's, and timestamps.
type Stage struct {
	State  generation.State
	Sealed time.Time // when the last writer must have committed; zero if there may be one yet
	// Since is the mark for reads from the start: once sealed, each range must
	// have been read by one that began then or later.
	Since time.Time
	Final bool // Since is that of the last read, before the generation retires
	Drain bool // what is left is carried to the newest generation
	// DrainFrom is when draining began, in the store's time. Until all workers
	// know of it they sweep the newest generation at full pace.
	DrainFrom time.Time
}

// IsSealed reports whether nobody writes to the generation any more.
func (s Stage) IsSealed() bool { return !s.Sealed.IsZero() }

// Stage returns the stage of a generation.
func (p *Plan) Stage(number int) Stage { return p.stages[number] }

// classify finds out how each generation stands.
func (p *Plan) classify() {
	p.stages = map[int]Stage{}
	record, settle := p.view.Record, p.rules.Policy.Settle
	staleness, _ := record.Bounds()
	for i, g := range record.Generations {
		s := Stage{State: record.State(i, p.now, settle)}
		if s.State == generation.Sealed || s.State == generation.Draining {
			s.Sealed = record.SealedAt(i, settle)
			s.Since = s.Sealed
			if ready, empty := p.EmptySince(g.Number, s.Sealed); empty && !p.now.Before(ready) {
				s.Since, s.Final = ready, true
			}
			if s.State == generation.Draining {
				s.DrainFrom = g.Draining.Add(staleness)
				s.Drain = !p.now.Before(s.DrainFrom)
			}
		}
		p.stages[g.Number] = s
		if s.Drain && p.isBlocked(g.Number, s) {
			p.blocked = append(p.blocked, g.Number)
		}
	}
}

// EmptySince returns when a sealed generation may be read for the last time, one
// slack after the last of it was disposed of, if nothing is left in any range. If
// no range of it is swept, as under another layout, nobody knows.
func (p *Plan) EmptySince(number int, sealed time.Time) (ready time.Time, empty bool) {
	g, ok := p.sumOf(number)
	if !ok || g.left || g.done.Before(sealed) {
		return sealed, false
	}
	_, slack := p.view.Record.Bounds()
	if ready = g.emptied.Add(slack); ready.Before(sealed) {
		ready = sealed
	}
	return ready, true
}

// Unread reports whether a range of the generation has yet to be read from its
// start, by a read that begins at the given instant or later; or a namespace, by a pass.
func (p *Plan) Unread(number int, since time.Time) bool {
	g, ok := p.sumOf(number)
	return ok && (g.done.Before(since) || p.stages[number].IsSealed() && !p.isCovered(number, since))
}

// Blocked lists the draining generations in which only entities are left that
// the store refuses to carry, or that are suspect and were not carried either.
// They stay; the next generation may be drained meanwhile.
func (p *Plan) Blocked() []int { return p.blocked }

// isBlocked reports whether that is all that is left in a generation that is drained.
func (p *Plan) isBlocked(number int, s Stage) bool {
	g, ok := p.sumOf(number)
	return ok && g.refused && !g.done.Before(s.Sealed) && g.noCarry && (!g.left || p.triedToCarry(g.swept, s))
}

// sealedSoon reports whether a generation lives so short that its ranges are read
// from their start once it is sealed, and not before: twice would be once too often.
func (p *Plan) sealedSoon(number int) bool {
	every, settle := p.rules.Policy.Every, time.Duration(p.rules.Policy.Settle)
	return number != expirykey.Nursery && p.rules.Generations && 0 < every && every <= 2*p.rules.Rewind/(1+settle)
}

// SealedSoon reports whether entries behind the cursor of a range wait for its
// generation to be sealed, and not for the next rewind.
func (p *Plan) SealedSoon(number int) bool {
	s := p.stages[number]
	return s.IsSealed() || s.State != "" && (s.State != generation.Filling || p.sealedSoon(number))
}
