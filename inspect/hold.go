package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A hold is what keeps a target from being written to.
type hold struct {
	gate    error // what its gate says; nil if it is open
	paused  bool
	tripped bool      // its breaker is open
	limited time.Time // until then its limits are used up; zero if they are not
	usedUp  string    // which of them is, as in "10 a day"
	weak    string    // what its breaker cannot do at present
}

// heldBy returns what holds the target at present: a pause in the target record, or the
// gate, which it asks once. As for workers, a gate that does not answer in time counts as
// closed.
func heldBy(ctx context.Context, s *sweep.Snapshot) hold {
	h := hold{paused: s.View.Record.IsPaused(s.Now()), tripped: s.Target.IsTripped(s.View.Record)}
	if h.tripped {
		h.paused = s.View.Record.IsHeldByOperator(s.Now())
	}
	if s.Target.Gate != nil {
		h.gate = s.Target.Gate(ctx)
	}
	if s.Target.Breaker.On || s.Target.Limits.Any() {
		if b, err := s.Budget(ctx); err == nil {
			h.limited, h.weak = b.LimitedUntil(s.Target.Limits, s.Now()), weakness(s, b)
			h.usedUp = b.UsedUp(s.Target.Limits, s.Now())
		} else if ctx.Err() == nil { // else status does not say it
			h.weak = "cannot read its budget, so nothing goes: " + err.Error()
		}
	}
	if h.gate != nil && ctx.Err() != nil {
		h.gate = fmt.Errorf("it has not answered within %v", queriesWithin)
	}
	return h
}

// weakness returns what the breaker of a target cannot do at present.
func weakness(s *sweep.Snapshot, b breaker.Budget) string {
	r := sweep.BreakerRules(s.Target)
	switch {
	case !r.On:
		return ""
	case b.Uncounted != "" && s.View.Record.IsUnswept(s.Target.Retention):
		return "cannot count, so nothing goes: " + b.Uncounted
	case b.Uncounted != "":
		return fmt.Sprintf("cannot count, so at most %d of it go: %s", r.Floor, b.Uncounted)
	case b.Began.IsZero():
		return ""
	case r.Fraction >= 1:
		return "blind to bursts: its fraction is 100%"
	case b.IsBlind(r, s.Now()):
		return "blind to bursts: lives are shorter than a window"
	case b.OnlyLearns(r, s.Now()):
		return "bursts pass for a day: it only learns"
	}
	return ""
}

// fillHold fills in what holds the target. The breaker comes first, as in sweeps: a person ends a
// trip. The gate comes before a pause, too: reaper resume opens neither.
func (st *TargetStatus) fillHold(s *sweep.Snapshot, h hold) {
	if h.paused {
		st.fillPause(s.View.Record)
		st.Held, st.Reason = string(throttle.ReasonPaused), s.View.Record.PauseNote.Reason
	}
	st.Breaker = h.weak
	if !h.limited.IsZero() && !h.paused {
		st.Held = string(throttle.ReasonLimit)
		st.Reason = h.usedUp + ", used up until " + instantText(h.limited)
	}
	if h.gate != nil {
		st.Held, st.Reason = string(throttle.ReasonGate), h.gate.Error()
	}
	if trip := s.View.Record.Trip; h.tripped {
		st.Held = string(throttle.ReasonBreaker)
		st.Reason = trip.Summary()
		if h.gate != nil {
			st.Reason += "; its gate is closed, too: " + h.gate.Error()
		}
	}
	if why := s.View.Record.PauseNote.Reason; why != "" && h.paused && st.Held != string(throttle.ReasonPaused) {
		st.Reason += "; paused: " + why
	}
	if why := st.fault(); why != "" && st.Held == "" {
		st.Held, st.Reason = string(throttle.ReasonRecord), why
		if strings.HasPrefix(why, sweep.ArchiveFault) {
			st.Held = string(throttle.ReasonArchive)
		}
	}
	if st.Held != "" {
		st.Rate, st.Unlimited = 0, false
	}
}

// fault returns which record, or that the archive, none of the processes at work can read or write; empty if
// one can.
func (st *TargetStatus) fault() (why string) {
	for _, w := range st.Workers {
		if why = w.Why; why == "" {
			return ""
		}
	}
	return why
}

// fillPause fills in what the target record says of its pause.
func (st *TargetStatus) fillPause(rec generation.Record) {
	if !rec.Paused {
		return
	}
	st.Paused, st.Reason, st.PausedBy = true, rec.PauseNote.Reason, rec.PauseNote.Actor
	st.PausedAt, st.PausedUntil = timePtr(rec.PauseNote.At), timePtr(rec.PausedUntil)
}
