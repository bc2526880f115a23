// Package breaker decides whether deletes may continue when much comes to be due at once. A
// deploy that expires everything looks to a collector like any other work: what is due is
// deleted. The breaker sees how much of a target expires in one hour, what turns up behind the
// cursors, and what is due in a target that was never swept before. It stops the target before
// more than a small part of an unusual event is deleted, until a person approves that event.
//
// The invariant is that of an event above its limit at most Floor entities, and one slice of
// each process, are granted before its approval. What is counted is when entities
// expire, not when they are deleted: a backlog after an outage has many hours, none of
// which is unusual, and is deleted without an approval.
//
// Everything here is a pure function of a [Budget], [Rules] and the time: no I/O and no
// clock. Limits: an event below the floor, one spread over many hours, and one whose expiries
// look like those of any other hour cannot be told apart by counts.
package breaker

import (
	"slices"
	"strings"
	"time"
)

const (
	// growth is by what factor the share of one hour may exceed the highest of the learnt days.
	growth = 1.5
	// onlyLearns is how long a new budget lets bursts pass, to learn what is usual; or Learn, if
	// that is shorter.
	onlyLearns = 24 * time.Hour
	// keepAll is for how long a count of all entities is used, and renewAll how old the
	// newest one may be before another is asked for. The largest of them counts: a target
	// that shrinks after a peak has large hours left for as long as its entities live.
	keepAll, renewAll = 24 * time.Hour, 12 * time.Hour
	// mostHours bounds the hours that a budget remembers. The least recently used are forgotten.
	mostHours = 128
	day       = 24 * time.Hour
)

// Rules are the settings of one target. The zero Rules are switched off.
type Rules struct {
	On       bool
	Floor    int64         // so many of an hour, or of what is late, may always be deleted
	Fraction float64       // of all entities; more than this in one hour is unusual until it was learnt
	Window   time.Duration // the length of an hour of expiry
	Learn    time.Duration // how far back shares count as usual
	Rewind   time.Duration // for how long what is late is added up
	// Retention is how long entities are kept past their expiry: an hour of expiry ends that
	// much later than its name says.
	Retention time.Duration
	Limits    Limits
}

// A Key names what deletes are counted by: the hour in which entities expire, or all that
// is late, or an approval.
type Key struct {
	Hour     time.Time // its begin, UTC; zero for the others
	Approval string    // the id of the trip that was approved; empty for the others
	Below    bool      // of the descendants of such entities: see [Key.Descendants]
}

// Late is the key of what expired before its range was last swept.
func Late() Key { return Key{} }

// HourOf returns the key of what expires at an instant.
func (r Rules) HourOf(expires time.Time) Key { return Key{Hour: expires.UTC().Truncate(r.Window)} }

// String returns the key as the record holds it.
func (k Key) String() string { return encodeKey(k) }

// IsLate reports whether the key is that of what is late, or of its descendants.
func (k Key) IsLate() bool { return k.Entities() == Key{} }

// End returns when the hour of the key ends: what expires then belongs to the next one.
func (r Rules) End(k Key) time.Time { return k.Hour.Add(r.Window) }

// Horizon returns the instant of expiry up to which entities are due.
func (r Rules) Horizon(now time.Time) time.Time { return now.Add(-r.Retention) }

// A Tally is what was granted and deleted under one key.
type Tally struct {
	Key     Key
	Granted int64 // to processes, less what they gave back
	Done    int64 // deleted, as they reported it; the last slice of a killed process is missing
	Charged int64 // of Done: what was of an event that an approval covers, see [Budget.ChargedTo]
	// Counted says that the key was counted, and passed. Since then Open more may be granted. Of
	// the Coming that were not due yet a part may be, which grows evenly until the hour ends.
	Counted bool
	Tripped bool // it was counted, and did not pass
	Open    int64
	Coming  int64
	At      time.Time // of the last grant or count
	Since   time.Time // of what is late: up to when earlier ones are forgotten
}

// An All is how many entities a target holds.
type All struct {
	N  int64 // or more
	At time.Time
}

// A Budget is the tally of one target, which all its processes share. It is a value:
// changes make a copy.
type Budget struct {
	Target  string
	Began   time.Time // when it was first written, in the store's time
	Tallies []Tally   // in the order of their last use, the latest last
	Days    []Day     // the learnt ones, in the order in which they began to be
	Alls    []All     // counts of the last day
	Spent   Spent     // against the limits
	// Announced are entities that were stamped on purpose; the burst rule does not count them.
	Announced []Announced
	Lives     []HourOfLives // of the last day, oldest first
	// Uncounted is why the last count failed, for people; empty if it did not.
	Uncounted string
	Trip      Detail // of the last trip, for people
	Revision  string // as in the store; empty if it is not saved yet
}

// A Want asks for the right to delete N entities. Max is what may be granted at most, so
// that the next ones need not ask again.
type Want struct {
	Key    Key
	N, Max int64
}

// A Report is what a process did with what it was granted: deleted it, or gives it back.
type Report struct {
	Key        Key
	Done, Rest int64
	Charged    int64     // of an approval: deleted under other keys; of these: so many of Done. See [Budget.ChargedTo]
	Granted    time.Time // when that was, in the store's time
}

// A Grant is the right to delete.
type Grant struct {
	Key Key
	N   int64
}

// with returns the budget with its tallies and days copied, so that they can be changed.
func (b Budget) with() Budget {
	b.Tallies, b.Days, b.Alls = slices.Clone(b.Tallies), slices.Clone(b.Days), slices.Clone(b.Alls)
	b.Announced = slices.Clone(b.Announced)
	return b
}

// withoutFuture drops what a clock has written that was more than a day ahead. Until that day
// comes, it would let bursts pass, or hold deletes by limits that are used up.
func (b Budget) withoutFuture(now time.Time) Budget {
	isAhead := func(at time.Time) bool { return at.Sub(now) > day }
	if isAhead(b.Began) {
		b.Began = time.Time{}
	}
	if isAhead(b.Spent.Hour) {
		b.Spent = Spent{Ever: b.Spent.Ever}
	}
	b.Tallies = slices.DeleteFunc(b.Tallies, func(t Tally) bool { return t.Key.Approval == "" && isAhead(t.At) })
	b.Days = slices.DeleteFunc(b.Days, func(d Day) bool { return isAhead(d.Begin) })
	b.Alls = slices.DeleteFunc(b.Alls, func(a All) bool { return isAhead(a.At) })
	b.Lives = slices.DeleteFunc(slices.Clone(b.Lives), func(h HourOfLives) bool { return isAhead(h.Begin) })
	return b
}

// At returns the tally of a key.
func (b Budget) At(k Key) Tally {
	if i := b.index(k); i >= 0 {
		return b.Tallies[i]
	}
	return Tally{Key: k}
}

func (b Budget) index(k Key) int {
	return slices.IndexFunc(b.Tallies, func(t Tally) bool { return t.Key == k })
}

// put stores a tally as the most recently used one.
func (b *Budget) put(t Tally, now time.Time) {
	if i := b.index(t.Key); i >= 0 {
		b.Tallies = slices.Delete(b.Tallies, i, i+1)
	}
	t.At = now
	b.Tallies = append(b.Tallies, t)
	for _, isOne := range []func(Tally) bool{Tally.isOfHour, Tally.isBelowHour} {
		for n := b.number(isOne); n > mostHours; n-- {
			i := slices.IndexFunc(b.Tallies, isOne)
			b.Tallies = slices.Delete(b.Tallies, i, i+1)
		}
	}
}

// touch makes a tally that waits for a count as recent as one that was used. If it was forgotten, its
// floor would be granted once more.
func (b *Budget) touch(t Tally, now time.Time) {
	if !t.Counted && b.index(t.Key) >= 0 {
		b.put(t, now)
	}
}

// isOfHour reports whether the tally is one of the many that may be forgotten. If one of an
// approval was, the approval could be used again.
func (t Tally) isOfHour() bool { return !t.Key.Hour.IsZero() && !t.Key.Below }

func (t Tally) isBelowHour() bool { return !t.Key.Hour.IsZero() && t.Key.Below }

func (b *Budget) number(isOne func(Tally) bool) (n int) {
	for _, t := range b.Tallies {
		if isOne(t) {
			n++
		}
	}
	return n
}

// Take returns the budget after reports, which never fail.
func (b Budget) Take(reports []Report) Budget {
	b = b.with()
	ofApprovalsFirst := func(p, q Report) int { return -strings.Compare(p.Key.Approval, q.Key.Approval) }
	covered := int64(0) // of what was charged: no more than was left of the approvals
	for _, p := range slices.SortedStableFunc(slices.Values(reports), ofApprovalsFirst) {
		if i := b.index(p.Key); i >= 0 { // else it was forgotten
			b.Tallies[i], covered = b.Tallies[i].take(p, covered)
		}
		if !p.Key.Below {
			b.Spent.Ever += p.Done
		}
		b.Spent.giveBack(p)
	}
	return b
}

// take returns the tally after a report, and what approvals cover of what was charged elsewhere. What was
// deleted of an event under other keys takes the place of what is reserved of its approval and not
// reported, so that this is not left for the next event.
func (t Tally) take(p Report, covered int64) (Tally, int64) {
	if p.Key.Approval != "" {
		done := min(t.Granted, t.Done+p.Done+p.Charged)
		covered += max(0, done-t.Done-p.Done)
		t.Done = done
		t.Granted -= min(p.Rest, t.Granted-t.Done)
		return t, covered
	}
	charged := min(p.Charged, covered)
	t.Charged += charged
	t.Done += p.Done
	t.Granted -= min(p.Rest, t.Granted)
	if t.Counted {
		t.Open += p.Rest
	}
	return t, covered - charged
}

// Reserve grants what is wanted, or a part of it, as far as that needs no count. Unmet are the
// wants that need one: nothing can be granted to them.
func (b Budget) Reserve(
	r Rules, now time.Time, approved []Approval, wants []Want,
) (next Budget, grants []Grant, unmet []Want) {
	if b = b.with().withoutFuture(now); b.Began.IsZero() {
		b.Began = now.UTC().Truncate(time.Microsecond) // as precise as the record: it distinguishes two budgets
	}
	b.forgetApprovals(r, now)
	b.Spent = b.Spent.at(now)
	for _, w := range wants {
		t := b.tally(r, now, w.Key)
		n := b.grant(r, approved, now, w)
		if n <= 0 {
			if w.Key.Approval == "" { // else another key counts
				w.Key = w.Key.Entities() // these are counted
				unmet = append(unmet, w)
				b.touch(b.tally(r, now, w.Key), now)
			}
			continue
		}
		if n = b.Spent.most(r.Limits, w, n); n <= 0 {
			continue
		}
		b.Spent.take(n)
		if t.Counted {
			t.Open -= n
		}
		t.Granted += n
		if r.On {
			b.put(t, now)
		}
		grants = append(grants, Grant{w.Key, n})
	}
	return b, grants, unmet
}

// usedElsewhere returns how much was granted without a count under keys that may be of the same event:
// of one hour of the past some may be late and others not, and they share one floor. An hour that is not
// over is left out, so that what comes to be due does not wait for a count of what is late.
func (b Budget) usedElsewhere(r Rules, now time.Time, k Key) (n int64) {
	isPast := func(k Key) bool { return !k.Hour.IsZero() && !r.End(k).After(r.Horizon(now)) }
	if isPast(k) {
		if t := b.tally(r, now, Late()); !t.Counted {
			n = b.floorUsed(r, now, Late())
		}
	}
	for _, t := range b.Tallies {
		above := b.At(t.Key.Entities())
		if k.IsLate() && isPast(t.Key) && !above.Counted && now.Sub(t.At) < r.Window {
			n = max(n, b.floorUsed(r, now, above.Key))
		}
	}
	return n
}

// grant returns how much of a want may be granted now. Descendants go with the entities above them: what is
// counted or approved of these bounds them no further.
func (b Budget) grant(r Rules, approved []Approval, now time.Time, w Want) int64 {
	k, most := w.Key.Entities(), max(w.N, w.Max)
	t := b.tally(r, now, k)
	switch id := k.Approval; {
	case !r.On: // only the limits count
		return most
	case id != "":
		i := slices.IndexFunc(approved, func(a Approval) bool { return a.ID == id })
		switch {
		case i < 0:
			return 0
		case w.Key.Below:
			return most
		}
		return min(most, approved[i].Count-t.Granted)
	case b.HoldsRest(r, approved, now, k):
		return 0
	case t.Counted && w.Key.Below:
		return most
	case t.Counted:
		return min(most, t.Open)
	case t.Tripped: // the rest of its floor is not for the same event
		return 0
	}
	return r.ofFloor(w, b.floorUsed(r, now, k)+b.usedElsewhere(r, now, k))
}

// ofFloor returns how much of a want the floor allows of which so much is used. What a process that is
// killed never reports is small compared to it.
func (r Rules) ofFloor(w Want, used int64) int64 {
	return min(max(w.N, min(w.Max, r.Floor/20)), r.Floor-used)
}

// forgetApprovals forgets the tallies of approvals that have ended, whatever is left of them.
func (b *Budget) forgetApprovals(r Rules, now time.Time) {
	b.Tallies = slices.DeleteFunc(b.Tallies, func(t Tally) bool {
		return t.Key.Approval != "" && now.Sub(t.At) > r.approvalEnds()+day
	})
}

// leaks is in how many steps what is late is forgotten within one rewind.
const leaks = 24

// tally returns the tally of a key as it is now. A count is void if nobody has used it for an
// hour: what was counted may have been extended since, and must not make room for others.
func (b Budget) tally(r Rules, now time.Time, k Key) Tally {
	t := b.At(k)
	if t.At.IsZero() {
		t.At = now
	}
	if k.Approval != "" {
		return t
	}
	if t.Counted && now.Sub(t.At) >= r.Window {
		t.Counted, t.Open, t.Coming = false, 0, 0
	}
	if !k.IsLate() {
		return t.refill(r, now)
	}
	if t.Since.IsZero() {
		t.Since = now
	}
	for step := max(1, r.Rewind/leaks); now.Sub(t.Since) >= step; t.Since = t.Since.Add(step) {
		if t.Granted == 0 {
			t.Since = now
			break
		}
		t.Granted -= t.Granted/leaks + 1
		t.Done -= min(t.Done, t.Done/leaks+1)
		t.Charged = min(t.Charged-t.Charged/leaks, t.Done) // what is not charged leaks as if nothing was
	}
	return t
}

// JudgedSince reports whether what is left under a key was judged, and allowed, after it was as in
// another budget.
func (b Budget) JudgedSince(before Budget, r Rules, now time.Time, k Key) bool {
	was, is := before.tally(r, now, k), b.tally(r, now, k)
	return is.Counted && (!was.Counted || is.Open > was.Open || is.Granted > was.Granted)
}

// refill opens what should have come to be due since the last grant, if it comes evenly. At most a
// floor and a slice are saved up: what does not come must not let something else pass.
func (t Tally) refill(r Rules, now time.Time) Tally {
	left := r.End(t.Key).Sub(r.Horizon(t.At))
	if t.Coming <= 0 || !now.After(t.At) {
		return t
	}
	part := 1.0
	if left > 0 {
		part = min(1, float64(now.Sub(t.At))/float64(left))
	}
	came := int64(part * float64(t.Coming))
	if came == 0 {
		return t
	}
	t.Coming -= came
	t.At = now
	if most := r.Floor + SliceOf(r, t.Granted+t.Open+t.Coming); t.Open < most {
		t.Open = min(most, t.Open+came)
	}
	return t
}

// SliceOf returns how much more than was counted may be deleted of an hour of that size before it
// is counted again: what usually comes in ten minutes. With less, sweeps that run every five
// minutes would count each time.
func SliceOf(r Rules, hour int64) int64 { return max(r.Floor/10, hour/6) }

// A Count is what is left under a key.
type Count struct {
	Due, Coming int64 // at present, and in the rest of the hour
	Reserved    int64 // so many of these are about to be deleted by an approval, at most
	More        bool  // there is more: it took too long to count all of it
	Held        bool  // it is the rest of an event of which a part was approved, see [Budget.HoldsRest]
	Gone        int64 // deleted of the same event by such approvals
}

// total returns how much the event holds: what was deleted, and what is left. What an approval covers is
// of another one.
func (c Count) total(t Tally) int64 { return max(0, t.Done-t.Charged+c.Due+c.Coming-c.Reserved) }

// AllNeeded returns up to which number all entities are to be counted, so that a count can be
// judged; 0 if what is known is enough.
func (b Budget) AllNeeded(r Rules, now time.Time, k Key, c Count) int64 {
	total := c.total(b.tally(r, now, k))
	if total <= b.floor(r, now, k) {
		return 0
	}
	enough := r.enough(total)
	if b.counted(now) && b.all(now) >= enough {
		return 0
	}
	return enough
}

// enough returns how many entities there must be for an hour of that size to be usual, and
// to teach nothing.
func (r Rules) enough(total int64) int64 {
	return int64(growth*float64(total)/max(r.Fraction, 1e-6)) + 1
}

// CountedAll returns the budget after all entities were counted.
func (b Budget) CountedAll(now time.Time, n int64) Budget {
	b = b.with()
	b.Alls = slices.DeleteFunc(b.Alls, func(a All) bool { return now.Sub(a.At) >= keepAll || a.N <= n })
	b.Alls = append(b.Alls, All{n, now})
	return b
}

// all returns how many entities there are, by the largest count of the last day. If there is
// none, the newest one counts.
func (b Budget) all(now time.Time) (n int64) {
	var newest All
	for _, a := range b.Alls {
		if now.Sub(a.At) < keepAll {
			n = max(n, a.N)
		}
		if !a.At.Before(newest.At) {
			newest = a
		}
	}
	if n == 0 {
		return newest.N
	}
	return n
}

// KnowsAll reports whether all entities were ever counted.
func (b Budget) KnowsAll() bool { return len(b.Alls) > 0 }

// counted reports whether all entities were counted recently.
func (b Budget) counted(now time.Time) bool {
	return slices.ContainsFunc(b.Alls, func(a All) bool { return now.Sub(a.At) < renewAll })
}

// share returns which part of all entities an hour, or what is late, may be.
func (b Budget) share(r Rules, now time.Time, k Key) float64 {
	if k.IsLate() {
		return r.Fraction
	}
	return max(r.Fraction, growth*b.learnt(r, now, k))
}

// Limit returns above how many entities an hour, or what is late, is unusual.
func (b Budget) Limit(r Rules, now time.Time, k Key) int64 {
	return max(b.floor(r, now, k), int64(b.share(r, now, k)*float64(b.all(now))))
}

// Enough returns how many entities under a key are enough to be unusual, whatever was announced.
func (b Budget) Enough(r Rules, now time.Time, k Key) int64 {
	return b.Limit(r, now, k) + b.announced(r, k)
}

// IsBlind reports whether lives are so short that an hour usually holds everything: then a
// burst looks like an ordinary hour.
func (b Budget) IsBlind(r Rules, now time.Time) bool {
	return growth*b.learnt(r, now, Key{}) >= 1
}

// OnlyLearns reports whether the budget is too new to call a burst unusual.
func (b Budget) OnlyLearns(r Rules, now time.Time) bool {
	return now.Sub(b.Began) < min(onlyLearns, r.Learn)
}

// IsInDoubt reports whether what is left under a key passes by its count, but would not if all that
// was granted and is not reported was deleted. Kept is what was certainly not deleted.
func (b Budget) IsInDoubt(r Rules, now time.Time, k Key, c Count, kept int64) bool {
	if _, trip := b.Judge(r, now, k, c); trip != nil {
		return false
	}
	t := b.tally(r, now, k)
	c.Due += max(0, t.Granted-t.Done-kept)
	_, trip := b.Judge(r, now, k, c)
	return trip != nil
}

// Judge returns the budget after what is left under a key was counted. If that is unusual it
// returns a trip, and grants nothing. All entities were counted before, if AllNeeded says so.
func (b Budget) Judge(r Rules, now time.Time, k Key, c Count) (next Budget, trip *Trip) {
	b = b.with()
	t := b.tally(r, now, k)
	total, limit := max(0, c.total(t)-b.announced(r, k)), b.Limit(r, now, k)
	left := c.Due + c.Coming
	if c.Held && left > 0 || total > limit && (k.IsLate() || !b.OnlyLearns(r, now)) {
		t.Tripped, t.Counted, t.Open, t.Coming = true, false, 0, 0
		b.put(t, now)
		trip = &Trip{Rule: Burst, At: now, Hour: k.Hour, Through: r.End(k), More: c.More,
			Due: max(0, left-c.Reserved), Gone: max(0, t.Done-t.Charged) + c.Gone, Limit: limit, All: b.all(now)}
		if trip.Due == 0 { // what was reserved is gone, and not reported
			trip.Due = left
		}
		if k.IsLate() {
			trip.Rule, trip.Through = LateOnes, r.Horizon(now)
		}
		return b, trip
	}
	if all := b.all(now); !k.IsLate() && total > b.floor(r, now, k) && all > 0 && all < r.enough(total) {
		b.learn(r, now, k.Hour, min(1, float64(total)/float64(all))) // if there are more, it is not known how many
	}
	// What another process has reserved is not opened a second time: once that is deleted, as much of the
	// next event would go by it.
	t.Counted, t.Tripped, t.Coming = true, false, max(0, c.Coming-max(0, c.Reserved-c.Due))
	t.Open = max(0, c.Due-c.Reserved) + SliceOf(r, t.Done+c.Due+c.Coming)
	b.put(t, now)
	return b, nil
}
