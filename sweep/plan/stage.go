package plan

import (
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
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

// Stage returns the stage of a generation.
func (p *Plan) Stage(number int) Stage { return p.stages[number] }

// classify finds out the stage of each generation.
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

// EmptySince returns when the last read of a sealed generation may begin: one slack after
// its last entity was disposed of. Empty is false if anything is left in a range, or if no
// range of it is swept, as under another layout.
func (p *Plan) EmptySince(number int, sealed time.Time) (ready time.Time, empty bool) {
	g, ok := p.totals(number)
	if !ok || g.left || g.done.Before(sealed) {
		return sealed, false
	}
	_, slack := p.view.Record.Bounds()
	if ready = g.emptied.Add(slack); ready.Before(sealed) {
		ready = sealed
	}
	return ready, true
}

// Unread reports whether a range of the generation still needs a read from its start that
// begins at the given instant or later, or a namespace still needs a pass.
func (p *Plan) Unread(number int, since time.Time) bool {
	g, ok := p.totals(number)
	return ok && (g.done.Before(since) || p.stages[number].IsSealed() && !p.isCovered(number, since))
}

// Blocked lists the draining generations in which the only entities left are those that
// the store refuses to carry, or suspects that were not carried either. These stay; the
// next generation may be drained meanwhile.
func (p *Plan) Blocked() []int { return p.blocked }

// isBlocked reports whether a draining generation has only such entities left.
func (p *Plan) isBlocked(number int, s Stage) bool {
	g, ok := p.totals(number)
	return ok && g.refused && !g.done.Before(s.Sealed) && g.noCarry && (!g.left || p.triedToCarry(g.swept, s))
}

// sealedSoon reports whether a generation is sealed so soon that its ranges need no rewind
// before that: the read after the sealing finds everything.
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
