package generation

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/store"
)

// mostApprovals bounds the approvals that a record keeps; the oldest go first.
const mostApprovals = 8

// BreakerActor is who a pause names that the breaker has made, for programs that know none.
const BreakerActor = "breaker"

// A Ground is what the breaker says of a target. Programs before it drop these fields when
// they write the record. The pause that comes with a trip stays.
type Ground struct {
	Trip      breaker.Trip       // it holds the target; its ID is empty if none is open
	Approvals []breaker.Approval // oldest first
	// NewGround says that nothing may be deleted before what is due was counted: the target
	// is new, or what is swept has changed.
	NewGround   bool
	BreakerNote Note // of the last approval or clear
	// Shortest is the shortest retention with which what was due was counted, or approved, since
	// a sweep began with a longer one.
	Shortest Retention
}

// Holding returns the record of a target that has that kind and property from now on.
func (r Record) Holding(kind, property string) Record {
	if r.Kind != kind || r.Property != property {
		r = r.moved()
	}
	r.Kind, r.Property = kind, property
	return r
}

// moved returns the record of a target that sweeps something else from now on: that is unswept
// ground. An open trip, the approvals and the findings were of what it swept before, and end.
func (r Record) moved() Record {
	if r.Trip.IsOpen() {
		r = r.Released(breaker.Approval{})
	}
	r.NewGround, r.Approvals = true, nil
	return r.withoutFindings()
}

// OnGround returns the record as it follows another one, with what is swept from now on. A
// target that is new, or of which another kind, property or layout is swept, or that keeps
// its entities for a shorter time than before, is unswept ground.
func (r Record) OnGround(was Record) Record {
	if !r.Shortest.Known && was.Target != "" && was.Retention.Known { // of a program before the breaker
		r.Shortest = was.Retention
	}
	if was.Layout != "" && was.Layout != r.Layout {
		r = r.moved()
	}
	if r.Retention.Length > r.Shortest.Length { // what comes to be due from now on is kept
		r.Shortest = r.Retention
	}
	isNew := was.Target == "" || !was.Retention.Known
	if isNew || r.Retention.Known && r.Retention.Length < r.Shortest.Length {
		r.NewGround = true
	}
	return r
}

// IsUnswept reports whether what is due was never counted or approved with a retention. It
// may be shorter than the record's: processes with another configuration write that, too.
func (r Record) IsUnswept(retention time.Duration) bool {
	isNew := !r.Shortest.Known && !r.Retention.Known // a command has made it, and no sweep has begun by it
	return r.NewGround || isNew || r.Shortest.Known && retention < r.Shortest.Length
}

// Settled returns the record after what is due on unswept ground was counted, or approved,
// with a retention.
func (r Record) Settled(retention time.Duration) Record {
	r.NewGround = false
	r = r.withoutRest(breaker.Approval.IsUnsweptPart)
	if !r.Shortest.Known || retention < r.Shortest.Length {
		r.Shortest = Retention{Known: true, Length: retention}
	}
	return r
}

// withoutRest returns the record with those approvals of a part that match as ones of all that is left:
// there is no rest of theirs any more.
func (r Record) withoutRest(match func(breaker.Approval) bool) Record {
	r.Approvals = slices.Clone(r.Approvals)
	for i, a := range r.Approvals {
		r.Approvals[i].Part = a.Part && !match(a)
	}
	return r
}

// ApprovedPart returns the last approval of a part of what is due on unswept ground. Its ID is empty
// if no part was approved.
func (r Record) ApprovedPart() (last breaker.Approval) {
	for _, a := range r.Approvals {
		if a.IsUnsweptPart() {
			last = a
		}
	}
	return last
}

// Tripped returns the record with a trip, which holds the target. It pauses the target, too,
// for programs that know no trips. If a trip is open already, that one stays.
func (r Record) Tripped(t breaker.Trip) Record {
	if r.Trip.IsOpen() {
		return r
	}
	r.Trip = t
	for _, g := range r.Generations {
		r.Trip.Generation = max(r.Trip.Generation, g.Number)
	}
	if !r.IsPaused(t.At) { // a pause whose end has come holds nobody
		r.Paused, r.PausedUntil = true, time.Time{}
		r.PauseNote = Note{Actor: BreakerActor, At: t.At, Reason: fmt.Sprintf("%s: see reaper breaker show", t.Rule)}
	}
	return r
}

// Released returns the record without its trip, and without the pause that came with it. The
// approval may be empty.
func (r Record) Released(a breaker.Approval) Record {
	if a.ID != "" {
		r.Approvals = append(slices.Clone(r.Approvals), a)
		r.Approvals = r.Approvals[max(0, len(r.Approvals)-mostApprovals):]
	}
	switch {
	case r.Trip.Rule != breaker.NewGround && a.ID == "": // what is left of its event is counted afresh
		event := breaker.Key{Hour: r.Trip.Hour}
		r = r.withoutRest(func(a breaker.Approval) bool { return a.IsOf(event) })
	case r.Trip.Rule != breaker.NewGround || a.ID == "":
	case a.Part: // the rest is not to go by the other rules, which know nothing of it
		r.NewGround = true
	default:
		r = r.Settled(r.Trip.Retention)
	}
	r.Trip = breaker.Trip{}
	if r.Paused && r.PauseNote.Actor == BreakerActor {
		r.Paused, r.PausedUntil, r.PauseNote = false, time.Time{}, Note{}
	}
	return r
}

// IsHeldByOperator reports whether the target is paused by somebody else than its breaker.
func (r Record) IsHeldByOperator(now time.Time) bool {
	return r.IsPaused(now) && !(r.Trip.IsOpen() && r.PauseNote.Actor == BreakerActor)
}

func (g Ground) encode(fields store.Fields) {
	trips, approvals := []store.Fields{}, []store.Fields{}
	if t := g.Trip; t.IsOpen() {
		trips = append(trips, store.Fields{"id": t.ID, "rule": string(t.Rule), "at": store.FormatTime(t.At),
			"hour": store.FormatTime(t.Hour), "through": store.FormatTime(t.Through), "generation": int64(t.Generation),
			"due": t.Due, "more": t.More, "retention": t.Retention.String(), "gone": t.Gone, "limit": t.Limit, "all": t.All})
	}
	for _, a := range g.Approvals {
		approvals = append(approvals, store.Fields{"id": a.ID, "rule": string(a.Rule), "at": store.FormatTime(a.At),
			"hour": store.FormatTime(a.Hour), "through": store.FormatTime(a.Through), "generation": int64(a.Generation),
			"count": a.Count, "part": a.Part})
	}
	fields["trip"], fields["approvals"] = trips, approvals
	g.BreakerNote.encode(fields, "breaker")
	fields["new_ground"], fields["shortest_retention"] = g.NewGround, g.Shortest.String()
}

// decode reads what encode wrote.
func (g *Ground) decode(f *store.FieldReader, rec store.Record) error {
	g.NewGround, g.Shortest = f.Bool("new_ground"), readRetention(f, "shortest_retention")
	g.BreakerNote = readNote(f, "breaker")
	what := "target record " + string(rec.Sort) + " " + strconv.Quote(rec.Key)
	for _, one := range f.List("trip") {
		t := one.Reader(what + ": trip")
		g.Trip = breaker.Trip{ID: t.Text("id"), Rule: breaker.Rule(t.Text("rule")), At: t.Time("at"), Hour: t.Time("hour"),
			Through: t.Time("through"), Generation: int(t.Int("generation")), Due: t.Int("due"), More: t.Bool("more"),
			Retention: readRetention(t, "retention").Length, Gone: t.Int("gone"),
			Limit: t.Int("limit"), All: t.Int("all")}
		if err := t.Err(); err != nil {
			return err
		}
	}
	for _, one := range f.List("approvals") {
		a := one.Reader(what + ": approvals")
		g.Approvals = append(g.Approvals, breaker.Approval{ID: a.Text("id"), Rule: breaker.Rule(a.Text("rule")),
			At: a.Time("at"), Hour: a.Time("hour"), Through: a.Time("through"), Generation: int(a.Int("generation")),
			Count: a.Int("count"), Part: one["part"] != nil && a.Bool("part")})
		if err := a.Err(); err != nil {
			return err
		}
	}
	return nil
}
