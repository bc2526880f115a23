package inspect

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/shardquery"
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
	Failing Verdict = "FAILING" // something before a cursor is due for as long as with Behind, and nobody works on it
	DryRun  Verdict = "DRY RUN" // likewise, and nobody has ever worked on it with --apply
	Behind  Verdict = "BEHIND"  // something has been due for longer than two ticks and a minute
	Unknown Verdict = "UNKNOWN" // what is due, also behind the cursors, was not read in time, and no recent record tells
	Idle    Verdict = "IDLE"    // nothing is due
	OK      Verdict = "OK"      // something is due, and not for long
)

// judge fills in the verdict. Ahead is when the oldest entity in front of the cursors became due. Of
// ranges that could not be read in time judge goes by what is known from their records.
func (st *TargetStatus) judge(s *sweep.Snapshot, ahead *time.Time, known byRecords) {
	st.judgeAsRead(s, ahead, known)
	if known.all > 0 && known.lack == 0 && (st.Verdict == OK || st.Verdict == Idle) {
		st.Why += "; " + known.text()
	}
	if st.Behind == nil && (st.Verdict == OK || st.Verdict == Idle) && len(st.Ranges) > 0 {
		if st.Why += "; what lies behind the cursors is not known"; st.Verdict == Idle {
			st.Verdict = Unknown // a mass expiry behind the cursors must not look like rest
		}
	}
	if w := st.WouldTrip; w != nil && st.Held == "" {
		st.Why += fmt.Sprintf("; its breaker would trip at the next reads from the start: %d are late, where %d may be",
			w.Due, w.Limit)
	}
}

func (st *TargetStatus) judgeAsRead(s *sweep.Snapshot, ahead *time.Time, known byRecords) {
	now, next := s.Now(), nextTick(s.Target)
	worked := lastWork(s)
	late := func(since time.Time) bool { return !isInTime(since, now, next) }
	switch {
	case st.heldText() != "":
		st.Verdict, st.Why = Held, st.heldText()
	case st.Paused:
		st.Verdict, st.Why = Paused, st.pauseText()
	// A sweep that finds nothing in front of the cursors leaves no trace.
	case ahead != nil && late(*ahead) && s.HeartbeatsRead() && len(st.Workers) == 0 && late(worked):
		st.Verdict, st.Why = Failing, "nobody has worked on it for "+Age(now.Sub(worked))
		if worked.IsZero() {
			st.Verdict, st.Why = DryRun, "nobody has swept it with --apply"
		}
	case ahead != nil && late(*ahead):
		st.Verdict, st.Why = Behind, "the oldest was due "+Age(now.Sub(*ahead))+" ago"
	case st.OldestDue != nil && late(*st.OldestDue):
		st.Verdict, st.Why, st.LateOnes = Behind, st.behindText(now), true
	case known.lack > 0:
		st.Verdict, st.Why = Unknown, fmt.Sprintf("not all ranges were read within %v", queriesWithin)
	case known.all > 0 && late(known.since.at):
		st.Verdict, st.Why = Behind, fmt.Sprintf("it is swept up to what was due %s ago; %s", Age(now.Sub(known.since.at)),
			known.text())
	case st.OldestDue != nil:
		st.Verdict, st.Why = OK, "the oldest was due "+Age(now.Sub(*st.OldestDue))+" ago"
	case s.New:
		st.Verdict, st.Why = Idle, "nobody has loaded or swept it yet"
	case st.EmptyKind:
		st.Verdict, st.Why = Idle, "nothing is due: its kind "+s.Target.Kind+" holds no entity"
	case st.EmptyIndex:
		st.Verdict, st.Why = Idle, "it holds entities, but none has an entry in any range: check the property and its index"
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
	case throttle.ReasonArchive:
		return "by its archive, which its processes cannot write"
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

// recentWithin is how old a record may be that is taken for the present state of its range.
const recentWithin = time.Minute

// byRecords is what the cursor records say of ranges that could not be read in time.
type byRecords struct {
	all, unread int
	lack        int           // of the unread ones, how many have no record of the last minute
	since       earliest      // what became due before is gone, but behind the cursors
	age         time.Duration // of the oldest record
}

// add takes in what the record of a range says: what expires in front of its position is gone, and
// so is what had expired when it was last swept to the end.
func (k *byRecords) add(s *sweep.Snapshot, r shardquery.Range) {
	k.unread++
	c := s.Plan.Cursor(r)
	var swept time.Time
	if !c.Swept.IsZero() { // a horizon: the time of the sweep less the retention
		swept = c.Swept.Add(s.Target.Retention)
	}
	since, age := swept, s.Now().Sub(laterOf(swept, c.RateUsed))
	if at, err := r.Expires(c.Position.Value); err == nil {
		since = laterOf(since, at.Add(s.Target.Retention))
	}
	if age > recentWithin || since.IsZero() {
		k.lack++
		return
	}
	k.age = max(k.age, age)
	k.since.add(since)
}

func (k *byRecords) text() string {
	return fmt.Sprintf("%d of %d ranges by their records, up to %s old", k.unread, k.all, Age(k.age))
}
