package inspect

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Verdict sums up the state of a target in a word.
type Verdict string

// The verdicts: the first that holds counts. A dry run leaves nothing in the store that a
// status could read. So DRY RUN is told of a target on which nobody has ever worked with
// --apply; one that was swept before, and now only by dry runs, is FAILING.
const (
	Held    Verdict = "HELD"    // by its gate, its breaker or its limits
	Paused  Verdict = "PAUSED"  // by an operator
	Failing Verdict = "FAILING" // something has been due for as long as with Behind, and nobody works on it
	DryRun  Verdict = "DRY RUN" // likewise, and nobody has ever worked on it with --apply
	Behind  Verdict = "BEHIND"  // something has been due for longer than two ticks and a minute
	Unknown Verdict = "UNKNOWN" // the due entities could not be read in time
	Idle    Verdict = "IDLE"    // nothing is due
	OK      Verdict = "OK"      // something is due, and not for long
)

// judge fills in the verdict. If partly is true, not all ranges could be read in time.
func (st *TargetStatus) judge(s *sweep.Snapshot, partly bool) {
	now, next := s.Now(), nextTick(s.Target)
	worked := lastWork(s)
	late := func(since time.Time) bool { return !isInTime(since, now, next) }
	switch {
	case st.heldText() != "":
		st.Verdict, st.Why = Held, st.heldText()
	case st.Paused:
		st.Verdict, st.Why = Paused, st.pauseText()
	case st.OldestDue != nil && late(*st.OldestDue) && s.HeartbeatsRead() && len(st.Workers) == 0 && late(worked):
		st.Verdict, st.Why = Failing, "nobody has worked on it for "+Age(now.Sub(worked))
		if worked.IsZero() {
			st.Verdict, st.Why = DryRun, "nobody has swept it with --apply"
		}
	case st.OldestDue != nil && late(*st.OldestDue):
		st.Verdict, st.Why = Behind, "the oldest was due "+Age(now.Sub(*st.OldestDue))+" ago"
	case partly:
		st.Verdict, st.Why = Unknown, fmt.Sprintf("not all ranges were read within %v", queriesWithin)
	case st.OldestDue != nil:
		st.Verdict, st.Why = OK, "the oldest was due "+Age(now.Sub(*st.OldestDue))+" ago"
	case s.New:
		st.Verdict, st.Why = Idle, "nobody has loaded or swept it yet"
	case st.EmptyKind:
		st.Verdict, st.Why = Idle, "nothing is due: its kind "+s.Target.Kind+" holds no entity"
	case st.EmptyIndex:
		st.Verdict, st.Why = Idle, "it holds entities, but none has an entry in any range: check the property and its index"
	case st.Behind != nil && *st.Behind > 0:
		st.Verdict, st.Why = Idle, "nothing is due but what lies behind the cursors"
	default:
		st.Verdict, st.Why = Idle, "nothing is due"
	}
}

// heldText says what holds the target, if that is not an operator.
func (st *TargetStatus) heldText() string {
	switch throttle.Reason(st.Held) {
	case throttle.ReasonBreaker:
		if st.Paused {
			return "by its breaker, and paused: see reaper breaker show " + st.Name
		}
		return "by its breaker: see reaper breaker show " + st.Name
	case throttle.ReasonLimit:
		return "by its limits, " + st.Reason
	case throttle.ReasonGate:
		if st.Paused {
			return "by its gate, and paused"
		}
		return "by its gate"
	case throttle.ReasonRecord:
		return "by a record that its processes cannot read or write"
	default:
		return ""
	}
}

// pauseText says who paused the target, and until when.
func (st *TargetStatus) pauseText() string {
	text := "until reaper resume"
	if st.PausedUntil != nil {
		text = "until " + instantText(*st.PausedUntil)
	}
	if st.PausedBy != "" {
		text = "by " + st.PausedBy + " " + text
	}
	return text
}

// isInTime reports whether something that became due at an instant is not late yet: it is
// until a minute after the second tick that follows.
func isInTime(due, now time.Time, next func(time.Time) time.Time) bool {
	return !due.IsZero() && now.Before(next(next(due)).Add(time.Minute))
}

// defaultTick is the assumed interval of sweeps if no schedule is known.
const defaultTick = 5 * time.Minute

// nextTick returns the schedule of a target.
func nextTick(t sweep.Target) func(time.Time) time.Time {
	if t.Next != nil {
		return t.Next
	}
	return func(at time.Time) time.Time { return at.Add(defaultTick) }
}

// lastWork returns when a process last worked on the target, as far as the cursor records
// show; the zero time if none ever did.
func lastWork(s *sweep.Snapshot) (last time.Time) {
	for _, c := range s.View.Cursors.All() {
		for _, at := range []time.Time{s.HeldUntil(c), c.Lease.Released, c.RateUsed} {
			last = laterOf(last, at)
		}
		if !c.Swept.IsZero() { // a horizon: the time of the sweep less the retention
			last = laterOf(last, c.Swept.Add(s.Target.Retention))
		}
	}
	return last
}

// laterOf returns the later of two instants.
func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// Age returns a duration as text, in whole seconds or days.
func Age(d time.Duration) string {
	d = max(0, d.Round(time.Second)) // an instant of the store may be a little ahead of this clock
	if days := int(d.Hours() / 24); days >= 2 {
		return fmt.Sprintf("%d days", days)
	}
	return d.String()
}
