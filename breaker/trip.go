package breaker

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Rule is why a breaker trips.
type Rule string

// The rules.
const (
	Burst     Rule = "burst"      // one hour holds too large a part of all entities
	LateOnes  Rule = "late"       // too much had expired before its range was last swept
	NewGround Rule = "new-ground" // too much is due at the first sweep, or after what is swept has changed
)

// A Trip is an event that the breaker has stopped. It is in the target record, where every
// process sees it within seconds.
type Trip struct {
	ID         string        // empty if none is open
	Rule       Rule          //
	At         time.Time     // in the store's time
	Hour       time.Time     // of a burst: when its hour of expiry begins
	Through    time.Time     // the event expires at or before it
	Generation int           // the newest generation then
	Due        int64         // how much of it was left: of its hour to the end, or of all that is due
	More       bool          // or more: counting all of it took too long
	Retention  time.Duration // of an unswept target: with which so much is due
	Gone       int64         // how much of it was deleted before
	Limit      int64         // so much would have passed
	All        int64         // entities of the target, or a lower bound; 0 if that did not matter
}

// IsOpen reports whether there is a trip.
func (t Trip) IsOpen() bool { return t.ID != "" }

// Summary says in one line why it tripped.
func (t Trip) Summary() string {
	switch {
	case t.Due > t.Limit:
		return fmt.Sprintf("%s: %d are due, more than %d", t.Rule, t.Due, t.Limit)
	case t.Due+t.Gone <= t.Limit:
		return fmt.Sprintf("%s: %d are due of an event of which a part was approved", t.Rule, t.Due)
	}
	return fmt.Sprintf("%s: %d are due and %d of the same were deleted, together more than %d", t.Rule, t.Due, t.Gone,
		t.Limit)
}

// An Approval is a person's decision that an event of that size may be deleted.
type Approval struct {
	ID         string // of the trip
	Rule       Rule
	Hour       time.Time // of a burst
	Through    time.Time
	Generation int
	Count      int64 // so many may be deleted
	At         time.Time
	// Part says that more than that was due: the rest waits for another approval.
	Part bool
}

// Approve returns the approval of a trip. Count is how much of it may be deleted; 0 stands for all
// that was counted.
func (t Trip) Approve(count int64, now time.Time) Approval {
	part := count > 0 && (t.More || count < t.Due)
	switch {
	case count <= 0 && t.More:
		count = math.MaxInt64 // it ends by its instant alone
	case count <= 0 || count > t.Due && !t.More:
		count = t.Due
	}
	return Approval{ID: t.ID, Rule: t.Rule, Hour: t.Hour, Through: t.Through, Generation: t.Generation, Count: count,
		At: now, Part: part}
}

// covers reports whether an entity belongs to the event that was approved. Of one hour some
// may be late and others not: that depends on how far each range was swept. And what is late
// may be a part of what is due, of which all was counted.
func (a Approval) covers(r Rules, expires time.Time, generation int) bool {
	if expires.After(a.Through) || generation > a.Generation {
		return false
	}
	return a.Rule != Burst || r.HourOf(expires).Hour.Equal(a.Hour)
}

// CoveredThrough returns up to which expiry an approval covers what a generation holds of a
// key: that is not part of another event. It is zero if no approval covers any of it.
func (b Budget) CoveredThrough(r Rules, approved []Approval, now time.Time, k Key, generation int) (at time.Time) {
	for _, a := range approved {
		is := a.Rule != Burst || a.Hour.Equal(k.Hour)
		if is && generation <= a.Generation && a.Through.After(at) && !b.IsSpent(r, a, now) {
			at = a.Through
		}
	}
	return at
}

// KeyOf returns the key by which the delete of an entity is counted. Spent are the approvals
// of which nothing is left. After an approval of a part, the rest stays with its event, however far the
// range was swept by then.
func (r Rules) KeyOf(
	approved []Approval, spent func(id string) bool, expires time.Time, generation int, late bool,
) Key {
	for _, a := range approved {
		if a.covers(r, expires, generation) && !spent(a.ID) {
			return Key{Approval: a.ID}
		}
	}
	for _, a := range slices.Backward(approved) {
		if a.Rule == NewGround || !a.covers(r, expires, generation) {
			continue
		}
		if a.Part {
			return Key{Hour: a.Hour}
		}
		break
	}
	if late {
		return Late()
	}
	return r.HourOf(expires)
}

// IsSpent reports whether nothing is left of an approval: all of it was granted, or nobody
// has needed it for so long that the event is gone. What comes later is another event.
func (b Budget) IsSpent(r Rules, a Approval, now time.Time) bool {
	return b.At(Key{Approval: a.ID}).Granted >= a.Count || b.hasEnded(r, a, now)
}

// hasEnded reports whether nobody has needed an approval for so long that the event is gone.
func (b Budget) hasEnded(r Rules, a Approval, now time.Time) bool {
	last := a.At
	if t := b.At(Key{Approval: a.ID}); t.At.After(last) {
		last = t.At
	}
	return now.Sub(last) > r.approvalEnds()
}

// ChargedTo returns the approval that covers an entity which was deleted under another key, because all
// of the approval was granted by then. Without the charge, what a process gives back of it later would
// let as much of the next event pass. Of several it is the last one of which something is not reported.
func (b Budget) ChargedTo(r Rules, approved []Approval, now, expires time.Time, generation int) (k Key, ok bool) {
	for _, a := range slices.Backward(approved) {
		if a.Part || !a.covers(r, expires, generation) || b.hasEnded(r, a, now) {
			continue
		}
		of := Key{Approval: a.ID}
		if t := b.At(of); t.Granted > t.Done {
			return of, true
		}
		if !ok {
			k, ok = of, true
		}
	}
	return k, ok
}

// A Part is what processes have reserved by one approval and not reported. It expires from one instant
// to another: what expires elsewhere is of another event, however much was reserved and never used.
type Part struct {
	N             int64
	From, Through time.Time
}

// reserved returns what of all that is left under a key processes have reserved by used-up approvals,
// and not reported yet, the earliest first: they are about to delete it, so it is not part of another
// event. What a killed process had reserved counts until the approval ends.
func (b Budget) reserved(r Rules, approved []Approval, now time.Time, k Key) (parts []Part) {
	for _, a := range approved {
		t := b.At(Key{Approval: a.ID})
		is := a.Rule != Burst || k.IsLate() || a.Hour.Equal(k.Hour) // a part of an hour may be late
		left := t.Granted - t.Done
		if is && left > 0 && !k.Hour.After(a.Through) && t.Granted >= a.Count && now.Sub(t.At) <= r.approvalEnds() {
			parts = append(parts, Part{N: left, From: a.Hour, Through: a.Through})
		}
	}
	slices.SortStableFunc(parts, func(p, q Part) int { return p.Through.Compare(q.Through) })
	return parts
}

// Reserved returns how much of what is left under a key the parts can be, which are in the order of their
// ends. There counts what lies in one of them, up to a number. What was reserved in one place leaves what
// was reserved in another as it is.
func Reserved(parts []Part, there func(in Part, upTo int64) (int64, error)) (n int64, err error) {
	var closed int64 // of the places before span
	var span Part    // what is added up: N may be in it
	for _, p := range parts {
		switch {
		case p.From.IsZero(): // it holds whatever was before
			span.N, closed = span.N+closed, 0
			span.From = p.From
		case span.Through.IsZero() || !p.From.Before(span.Through):
			closed += span.N
			span = Part{From: p.From}
		case !p.From.Equal(span.From): // only a part of the span
			if p.N, err = there(p, p.N); err != nil {
				return 0, err
			}
		}
		span.N, span.Through = span.N+p.N, p.Through
		if span.N, err = there(span, span.N); err != nil {
			return 0, err
		}
	}
	return closed + span.N, nil
}

// HoldsRest reports whether a part of the event under a key was approved, and not all of it since then:
// the rest waits for another approval, however little it is. That ends when the event is cleared, or
// when nobody has needed an approval of it for so long that the event is over. For how long a trip was
// open between two of them does not matter.
func (b Budget) HoldsRest(r Rules, approved []Approval, now time.Time, k Key) bool {
	holds, used := false, time.Time{} // when one of them was given, or used
	for _, a := range approved {
		if a.At.Sub(now) > day || !a.IsOf(k) { // somebody has edited one to be in the future
			continue
		}
		holds = a.Part
		for _, at := range []time.Time{a.At, b.At(Key{Approval: a.ID}).At} {
			if a.Part && at.After(used) {
				used = at
			}
		}
	}
	return holds && now.Sub(used) <= r.approvalEnds()
}

// goneInParts returns how much of the event under a key processes have reported as deleted by
// approvals of a part of it.
func (b Budget) goneInParts(approved []Approval, k Key) (n int64) {
	for _, a := range approved {
		switch {
		case !a.IsOf(k):
		case !a.Part:
			n = 0
		default:
			n += b.At(Key{Approval: a.ID}).Done
		}
	}
	return n
}

// Approvals returns a count of what is left under a key, with only what is known from approvals, and the
// parts that make up what is reserved: where they lie there may be less.
func (b Budget) Approvals(r Rules, approved []Approval, now time.Time, k Key) (c Count, parts []Part) {
	parts = b.reserved(r, approved, now, k)
	for _, p := range parts {
		c.Reserved += p.N
	}
	c.Held = b.HoldsRest(r, approved, now, k)
	if c.Held {
		c.Gone = b.goneInParts(approved, k)
	}
	return c, parts
}

// IsOf reports whether an approval is of the events under a key of an hour, or of what is late.
func (a Approval) IsOf(k Key) bool { return a.Rule != NewGround && a.Hour.Equal(k.Hour) }

// approvalEnds returns after how long without use an approval ends.
func (r Rules) approvalEnds() time.Duration { return max(r.Rewind, r.Window) }

// Approved returns the budget after a trip was approved. If all of it was, the hour is judged
// afresh: what comes in addition is judged as if the event had not happened. With normal its
// share is learnt.
func (b Budget) Approved(r Rules, t Trip, a Approval, normal bool, now time.Time) Budget {
	b = b.with()
	if i := b.index(Key{Hour: t.Hour}); i >= 0 && t.Rule != NewGround && a.Count >= t.Due && !a.Part {
		b.Tallies = slices.Delete(b.Tallies, i, i+1)
	}
	if t.Rule == Burst && !a.Part { // what was announced of the hour has gone by the approval
		b.Announced = slices.DeleteFunc(b.Announced, func(a Announced) bool { return a.Hour.Equal(t.Hour) })
	}
	if normal && t.Rule == Burst && t.All > 0 {
		b.learn(r, now, time.Time{}, min(1, float64(t.Due+t.Gone)/float64(t.All)))
	}
	return b
}

// JudgeUnswept returns a trip if too much is due in an unswept target: one that is new, or of which
// something else is swept than before.
func JudgeUnswept(r Rules, now time.Time, c Count) *Trip {
	if c.Due <= r.Floor {
		return nil
	}
	return newTrip(r, now, c)
}

// newTrip returns the trip for what is due in an unswept target.
func newTrip(r Rules, now time.Time, c Count) *Trip {
	return &Trip{Rule: NewGround, At: now, Through: r.Horizon(now), Due: c.Due, More: c.More, Limit: r.Floor,
		Retention: r.Retention}
}

// JudgeRest returns a trip if a part of what was due in an unswept target was approved, and is used up.
// Due is all that is left, and rest the part of it that was due when the last part was approved: it
// belongs to the same event as what is gone, however little it is.
func JudgeRest(r Rules, now time.Time, due Count, rest, gone int64) *Trip {
	trip := JudgeUnswept(r, now, due)
	if trip == nil && rest > 0 && rest+gone > r.Floor {
		trip = newTrip(r, now, due)
	}
	if trip != nil {
		trip.Gone = gone
	}
	return trip
}

// GoneInParts returns how much of an unswept target processes have reported as deleted by approvals of
// a part.
func (b Budget) GoneInParts(approved []Approval) (n int64) {
	for _, a := range approved {
		if a.IsUnsweptPart() {
			n += b.At(Key{Approval: a.ID}).Done
		}
	}
	return n
}

// Ended returns the budget as counts need it after an approval has ended: it covers nothing more.
func (b Budget) Ended(a Approval, now time.Time) Budget {
	b = b.with()
	t := b.At(Key{Approval: a.ID})
	t.Granted = a.Count
	b.put(t, now)
	return b
}

// IsUnsweptPart reports whether the approval is of a part of what is due in an unswept target.
func (a Approval) IsUnsweptPart() bool { return a.Part && a.Rule == NewGround }

// A Detail is what people want to know of a trip, beyond its numbers.
type Detail struct {
	ID        string
	Histogram []Bar
	Samples   []string // ids of entities
}

// A Bar is how much of an event expires in one span, in one generation.
type Bar struct {
	From       time.Time `json:"from"`
	To         time.Time `json:"to"` // exclusive
	Generation int       `json:"generation"`
	N          int64     `json:"entities"`
}

// Edges returns where the bars of a trip's histogram begin and end: sixths of an hour or, from a
// floor on, lengths of time before the trip.
func (t Trip) Edges(window time.Duration, floor time.Time) (list []time.Time) {
	if t.Rule == Burst {
		for i := range 7 {
			list = append(list, t.Hour.Add(time.Duration(i)*window/6))
		}
		return list
	}
	list = append(list, floor)
	for _, before := range []time.Duration{365 * day, 30 * day, 7 * day, day, time.Hour} {
		if at := t.Through.Add(-before); at.After(list[0]) {
			list = append(list, at)
		}
	}
	return append(list, t.Through.Add(time.Millisecond))
}
