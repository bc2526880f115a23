package generation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
)

// A Policy says how the generations of a target follow each other.
type Policy struct {
	Every     time.Duration // from one generation's opening to the next one's
	Ramp      time.Duration // how long writers take to move to it
	Staleness time.Duration // the oldest copy of the record that a writer acts on
	Slack     time.Duration // the longest that a write takes to commit after it was stamped
	Settle    int           // how many later generations must be sealed before one counts as sealed
	Keep      int           // generations, in addition to the newest, that nothing is carried out of
	Shards    int           // of a generation opened now
}

// A State is a phase in the life of a generation. Retired generations are not in the record
// any more: they are all numbers below the newest that it does not list.
type State string

const (
	Filling  State = "filling"  // the newest: writers stamp it
	Closing  State = "closing"  // writers are moving to the next one
	Closed   State = "closed"   // marked closed: no writer with a fresh copy stamps it
	Sealed   State = "sealed"   // no write that was stamped with it can commit any more
	Draining State = "draining" // its survivors are carried to the newest
)

// commitDelay is the longest that a mark may take to commit after the instant
// that it holds: all tries to save the record, and a reply that comes late.
const commitDelay = savePatience + saveTimeout

// State returns the state of the i-th live generation at an instant in the store's
// time.
func (r Record) State(i int, now time.Time, settle int) State {
	g := r.Generations[i]
	switch {
	case i == len(r.Generations)-1:
		return Filling
	case g.Closed.IsZero():
		return Closing
	case r.SealedAt(i, settle).IsZero() || now.Before(r.SealedAt(i, settle)):
		return Closed
	case g.Draining.IsZero():
		return Sealed
	}
	return Draining
}

// SealedAt returns when the i-th live generation counts as sealed, in the store's
// time; zero if that is not known yet. A writer stamps by a copy that is at most as old
// as the staleness, and commits within the slack. With settle, that many later generations
// must be as far, too; those that have retired since count as such.
func (r Record) SealedAt(i, settle int) time.Time {
	at := r.lastStamp(i)
	newest := len(r.Generations) - 1
	settle -= r.Generations[newest].Number - r.Generations[i].Number - (newest - i)
	var room [8]time.Time // for most records
	later := room[:0]
	for j := i + 1; j < len(r.Generations); j++ {
		if t := r.lastStamp(j); !t.IsZero() {
			later = append(later, t)
		}
	}
	if at.IsZero() || len(later) < settle {
		return time.Time{}
	}
	if settle > 0 {
		slices.SortFunc(later, time.Time.Compare)
		if t := later[settle-1]; t.After(at) {
			return t
		}
	}
	return at
}

// lastStamp returns when the last write that may have been stamped with the i-th live
// generation must have committed; zero while the generation is not marked closed.
func (r Record) lastStamp(i int) time.Time {
	g := r.Generations[i]
	if g.Closed.IsZero() {
		return time.Time{}
	}
	return g.Closed.Add(commitDelay + cmp.Or(g.Staleness, DefaultStaleness) + cmp.Or(g.Slack, DefaultSlack))
}

// unknownBounds returns the bounds for writers of generations that a lost record may have
// listed. Its bounds are not known: the defaults are assumed, or larger ones if these are
// configured now. Nor is it known which later generations are sealed; with settle, their
// time is added instead.
func (p Policy) unknownBounds() (staleness, slack time.Duration) {
	staleness, slack = max(p.Staleness, DefaultStaleness), max(p.Slack, DefaultSlack)
	return staleness, slack + time.Duration(p.Settle)*p.Every
}

// later returns the later of two instants.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// Adopt adds generations that are in use though the record does not list them: the record
// that did is lost. Their writers may stamp them as long as a copy of that record is valid,
// so they count as closed from now on. If then no open generation above floor has the highest
// number, the next one opens at once, without a ramp, with a number above all of them and above
// floor: all writers have to move anyway. A generation that was open stays open until the
// next change: the record may commit long after now, and until then writers use the one
// before it. The nursery, number 0, gets as many shards as used has for it. What lies outside all
// ranges is to be looked for again, since the shards of what was found are an estimate. A record that
// listed none asks for another probe: writers may go on by the lost one, within bounds that are not known.
func (r Record) Adopt(used []Generation, floor int, p Policy, now time.Time) (Record, error) {
	now = now.UTC().Truncate(time.Microsecond)
	r.Probe = time.Time{}
	if len(r.Generations) == 0 {
		staleness, slack := p.unknownBounds()
		r.Probe = now.Add(commitDelay + staleness + slack)
	}
	list := slices.Clone(r.Generations)
	for _, u := range used {
		if u.Number == expirykey.Nursery {
			r.NurseryShards = max(r.NurseryShards, u.Shards)
			continue
		}
		i, isListed := slices.BinarySearchFunc(list, u.Number, func(g Generation, n int) int { return g.Number - n })
		if isListed {
			continue
		}
		g := Generation{Number: u.Number, Shards: u.Shards, Opened: now}
		g.Staleness, g.Slack = p.unknownBounds()
		if i < len(list) { // opened when the next one was, so that the instants stay in order
			g.Opened = list[i].Opened
		} else if i > 0 {
			g.Opened = later(now, list[i-1].Opened)
		}
		g.Closed = later(now, g.Opened)
		list = slices.Insert(list, i, g)
		r.Checked = time.Time{} // nobody has looked for shards of it past its last one
	}
	r.Generations = list
	number, opened := floor, now
	if n := len(list); n > 0 {
		newest := list[n-1]
		if newest.Closed.IsZero() && newest.Number > floor {
			return r, nil
		}
		number, opened = max(floor, newest.Number), later(now, later(newest.Opened, newest.Closed))
	}
	if number >= expirykey.MaxGeneration {
		return r, fmt.Errorf("there is no generation after %08d", number)
	}
	r.Generations = append(list, Generation{
		Number: number + 1, Shards: p.Shards, Opened: opened, Staleness: p.Staleness, Slack: p.Slack})
	return r, nil
}

// IsContinued reports whether a record lists generations of a lost one, or went on after its
// numbers, as long as none has retired. They were listed when the record was made, or counted
// as closed from the moment they were found; those that it opened itself since came later.
func (r Record) IsContinued() bool {
	return slices.ContainsFunc(r.Generations, func(g Generation) bool {
		return g.Number > First && (!g.Opened.After(r.Created) || g.Closed.Equal(g.Opened))
	})
}

// ProbeLater returns a new record that asks for a second probe of the index, at the time
// when all writers by a lost record must have committed. Until that probe no generation
// retires. [Record.Adopt] lists what it finds. If a target shows no sign of a former
// record, the configured bounds count.
func (r Record) ProbeLater(p Policy) Record {
	staleness, slack := p.Staleness, p.Slack
	if r.IsContinued() {
		staleness, slack = p.unknownBounds()
	}
	r.Probe = r.Created.Add(commitDelay + staleness + slack)
	return r
}

// Draining reports whether a generation is being carried to the newest one.
func (r Record) Draining() bool {
	return slices.ContainsFunc(r.Generations, func(g Generation) bool { return !g.Draining.IsZero() })
}

// Upgraded returns the record in the present schema.
func (r Record) Upgraded() Record {
	r.Schema = Schema
	return r
}

// WithNamespaces returns the record with the namespaces that a deployment sweeps. No
// generation retires before it was read in all namespaces of the record, some of which only
// other deployments may sweep. Namespaces that no deployment has listed since an instant
// are dropped.
func (r Record) WithNamespaces(names []string, now, since time.Time) Record {
	now = now.UTC().Truncate(time.Microsecond)
	list := slices.DeleteFunc(slices.Clone(r.Namespaces), func(n Swept) bool { return n.Seen.Before(since) })
	for _, name := range names {
		i, found := slices.BinarySearchFunc(list, name, func(n Swept, name string) int { return cmp.Compare(n.Name, name) })
		if found {
			list[i].Seen = now
		} else {
			list = slices.Insert(list, i, Swept{name, now})
		}
	}
	r.Namespaces = list
	return r
}

// Sweeps reports whether a deployment has listed all of these namespaces since an instant.
func (r Record) Sweeps(names []string, since time.Time) bool {
	for _, name := range names {
		if !slices.ContainsFunc(r.Namespaces, func(n Swept) bool { return n.Name == name && !n.Seen.Before(since) }) {
			return false
		}
	}
	return true
}

// RampOver reports whether all writers with a fresh copy stamp the newest
// generation.
func (r Record) RampOver(now time.Time) bool {
	n := len(r.Generations)
	return n == 0 || !now.Before(r.Generations[n-1].Opened.Add(r.Generations[n-1].Ramp))
}

// ErrRamping is why Advance refuses while writers are still moving.
var ErrRamping = errors.New("writers are still moving to the newest generation")

// Advance returns the record with one more generation open, to which writers
// move during the ramp. While they are still moving to the one before, Advance fails
// with [ErrRamping], unless it is forced.
func (r Record) Advance(p Policy, now time.Time, force bool) (Record, error) {
	number, ramp := First, time.Duration(0)
	if n := len(r.Generations); n > 0 {
		newest := r.Generations[n-1]
		number, ramp = newest.Number+1, p.Ramp
		if !force && !r.RampOver(now) {
			return r, fmt.Errorf("%w, %08d, until %s",
				ErrRamping, newest.Number, newest.Opened.Add(newest.Ramp).UTC().Format(time.RFC3339))
		}
	}
	if number > expirykey.MaxGeneration {
		return r, fmt.Errorf("there is no generation after %08d", number-1)
	}
	now = now.UTC().Truncate(time.Microsecond)
	if n := len(r.Generations); n > 0 && now.Before(r.Generations[n-1].Opened) {
		now = r.Generations[n-1].Opened // a forced advance may come from a clock that is behind
	}
	r.Generations = append(slices.Clone(r.Generations), Generation{
		Number: number, Shards: p.Shards, Opened: now, Ramp: ramp, Staleness: p.Staleness, Slack: p.Slack})
	return r, nil
}

// WithWriterBounds returns the record with the policy's bounds for writers. If a bound
// shrinks, open generations keep the larger one: writers may still rely on it.
func (r Record) WithWriterBounds(p Policy) Record {
	r.Staleness, r.Slack = p.Staleness, p.Slack
	r.Generations = slices.Clone(r.Generations)
	for i := range r.Generations {
		g := &r.Generations[i]
		g.Staleness, g.Slack = max(g.Staleness, p.Staleness), max(g.Slack, p.Slack)
	}
	return r
}

// A Step is a change of a generation's state in time, for logs.
type Step struct {
	Generation int
	State      State
}

// Next returns the record with the transitions that are due at an instant in the store's
// time, and lists these. It closes generations whose writers have moved, and opens the
// next one when it is due. It drains the oldest sealed one if more than the policy's
// Keep are live in addition to the newest. Entities written to a generation before the
// next one's ramp is over have then been there for Keep times Every. While one generation
// drains the others wait, unless it is blocked: it has only entities left that the store
// refuses to carry. Next changes nothing else: only sweeps know what is left in a
// generation, and retire it.
func (r Record) Next(p Policy, now time.Time, blocked ...int) (Record, []Step) {
	var steps []Step
	now = now.UTC().Truncate(time.Microsecond)
	r.Generations = slices.Clone(r.Generations)
	for i := 0; i+1 < len(r.Generations); i++ {
		next := r.Generations[i+1]
		if g := &r.Generations[i]; g.Closed.IsZero() && !now.Before(next.Opened.Add(next.Ramp)) {
			g.Closed = now
			steps = append(steps, Step{g.Number, Closed})
		}
	}
	if n := len(r.Generations); n > 0 && p.Every > 0 && r.RampOver(now) &&
		!now.Before(r.Generations[n-1].Opened.Add(p.Every)) {
		if next, err := r.Advance(p, now, false); err == nil {
			r = next
			steps = append(steps, Step{r.Generations[n].Number, Filling})
		}
	}
	if len(r.Generations) > p.Keep+1 && p.Keep > 0 && r.RampOver(now) {
		// One at a time: all carries go to the newest, so a second draining generation
		// would only compete for its pace.
		for i := range r.Generations {
			g := &r.Generations[i]
			s := r.State(i, now, p.Settle)
			if s == Draining && !slices.Contains(blocked, g.Number) {
				break
			}
			if s == Sealed {
				g.Draining = now
				steps = append(steps, Step{g.Number, Draining})
				break
			}
		}
	}
	return r, steps
}

// Retire returns the record without a generation that has nothing well-formed left. The
// newest one cannot retire, nor one to which somebody may still write.
func (r Record) Retire(number int, now time.Time, settle int) (Record, error) {
	i := slices.IndexFunc(r.Generations, func(g Generation) bool { return g.Number == number })
	if i < 0 {
		return r, fmt.Errorf("target %s: generation %08d is not live", r.Target, number)
	}
	if s := r.State(i, now, settle); s != Sealed && s != Draining {
		return r, fmt.Errorf("target %s: generation %08d is %s: it cannot retire before it is sealed", r.Target, number, s)
	}
	r.Generations = slices.Delete(slices.Clone(r.Generations), i, i+1)
	return r, nil
}
