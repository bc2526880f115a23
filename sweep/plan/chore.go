package plan

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A Kind is a kind of chore.
type Kind string

// The chores. Those that are due at the same instant begin in this order.
const (
	Life   Kind = "life"   // change the target record as time and configuration require
	Probe  Kind = "probe"  // find generations in use that a new target record does not list
	Seal   Kind = "seal"   // go over a whole sealed generation, to find which ranges hold anything
	Look   Kind = "look"   // find shards past the last one, find an empty index, count what lies in no range
	Retire Kind = "retire" // end a generation that the last read found empty
	Forget Kind = "forget" // remove records of generations and namespaces that no longer exist
	Raise  Kind = "raise"  // write the target record in the present schema
	Audit  Kind = "audit"  // read retired generations, in one namespace
)

// A Chore is work on a target that belongs to no range.
type Chore struct {
	Kind       Kind
	Generation int       // of Seal and Retire
	Namespace  string    // of Audit
	At         time.Time // when it is, or was, due
}

// Key returns the chore without its time, as which a Book knows it.
func (c Chore) Key() Chore {
	c.At = time.Time{}
	return c
}

// Name returns a name that no other chore of the target has.
func (c Chore) Name() string {
	name := string(c.Kind)
	if c.Generation > 0 {
		name += fmt.Sprintf(" %08d", c.Generation)
	}
	if c.Namespace != "" {
		name += "@" + c.Namespace
	}
	return name
}

const (
	// AuditEvery is how often a round over retired generations begins.
	AuditEvery = 24 * time.Hour
	// AuditShard takes the place of the shard in the audit's cursor records. There is
	// one for each namespace, in generation 0.
	AuditShard = "audit"
	// retryChore is how soon a chore that is still due after a try is tried again:
	// another process may have been faster, or the store failed.
	retryChore = 30 * time.Second
	// lookAgain is how soon an empty index is checked again, so that the warning about
	// it repeats while there is cause, and stops soon afterwards.
	lookAgain = time.Minute
)

// Chores lists what is due now, in the order in which it should begin.
func (p *Plan) Chores() (list []Chore) {
	if next, _ := Desired(p.rules, p.view.Record, p.Blocked(), p.now); !p.view.Record.EqualContent(next) {
		list = p.add(list, Chore{Kind: Life, At: p.now}, time.Second)
	}
	probeDue := p.view.Record.Probe
	if !probeDue.IsZero() && !p.now.Before(probeDue) {
		list = p.add(list, Chore{Kind: Probe, At: probeDue}, retryChore)
	}
	for _, g := range p.view.Record.Generations {
		if s := p.stages[g.Number]; s.IsSealed() && p.sealDue(g.Number, s.Since) {
			list = p.add(list, Chore{Kind: Seal, Generation: g.Number, At: s.Since}, retryChore)
		}
	}
	if p.isToBeRaised() {
		list = p.add(list, Chore{Kind: Raise, At: p.now}, retryChore)
	}
	list = p.addLook(list)
	for _, g := range p.view.Record.Generations {
		if s := p.stages[g.Number]; s.Final && !p.Unread(g.Number, s.Since) && probeDue.IsZero() {
			list = p.add(list, Chore{Kind: Retire, Generation: g.Number, At: s.Since}, retryChore)
		}
	}
	if p.anyForgotten() {
		list = p.add(list, Chore{Kind: Forget, At: p.now}, retryChore)
	}
	return p.addAudits(list)
}

// add adds a chore, unless it was tried within the given time.
func (p *Plan) add(list []Chore, c Chore, again time.Duration) []Chore {
	if tried, ok := p.book.Tried[c.Key()]; ok && p.now.Before(tried.Add(again)) {
		return list
	}
	return append(list, c)
}

func (p *Plan) addLook(list []Chore) []Chore {
	due := p.view.Record.Checked.Add(Jitter(p.rules.Rewind, p.rules.Target))
	isAsked := p.view.Record.Checked.Before(p.rules.ReadSince) &&
		p.book.Tried[Chore{Kind: Look}].Before(p.rules.ReadSince) // a dry run saves nothing
	if p.view.Record.EmptyIndex || isAsked {
		due = p.now
	}
	if p.now.Before(due) {
		return list
	}
	return p.add(list, Chore{Kind: Look, At: due}, lookAgain)
}

func (p *Plan) addAudits(list []Chore) []Chore {
	if !p.rules.Form.HasGenerations() || len(p.view.Record.Generations) == 0 {
		return list
	}
	if p.known.audits == nil {
		for _, ns := range p.view.Namespaces {
			p.known.audits = append(p.known.audits, p.auditDue(ns))
		}
	}
	for i, ns := range p.view.Namespaces {
		due := &p.known.audits[i]
		at := due.at
		if due.underWay {
			at = p.now // it resumes
		}
		if due.nothing || p.now.Before(at) {
			continue
		}
		if !due.something { // remembered until a cursor of the namespace, or a stage, changes
			due.something = p.hasAuditSpans(ns)
			due.nothing = !due.something
		}
		if due.something {
			list = p.add(list, Chore{Kind: Audit, Namespace: ns, At: at}, retryChore)
		}
	}
	return list
}

func (p *Plan) auditDue(namespace string) auditDue {
	c := p.AuditCursor(namespace)
	return auditDue{at: p.NextAudit(c), underWay: !c.Rewind.Began.IsZero()}
}

// NextAudit returns when the next round of an audit is due.
func (p *Plan) NextAudit(c cursor.Cursor) time.Time {
	return c.Rewind.Done.Add(Jitter(AuditEvery, c.Key()))
}

// AuditCursor returns the cursor of a namespace's audit.
func (p *Plan) AuditCursor(namespace string) cursor.Cursor {
	return p.cursorAt(p.auditID(namespace), p.view.Record.Created)
}

func (p *Plan) auditID(namespace string) cursor.ID {
	return cursor.ID{Target: p.rules.Target, Namespace: namespace, Generation: expirykey.Nursery, Shard: AuditShard}
}

// isDead reports whether a cursor belongs to a namespace that has been gone for two rewinds.
// If it had existed meanwhile, its range would have been read from the start, and the
// cursor would have a later time.
func (p *Plan) isDead(c cursor.Cursor) bool {
	if !p.isGone(p.known, c.Namespace) || p.stages[c.Generation].IsSealed() { // removed with their generation
		return false
	}
	since := p.now.Add(-2 * p.rules.Rewind)
	for _, at := range []time.Time{c.Swept.Add(p.rules.Retention), c.Rewind.Done, c.Lease.Released, c.RateUsed} {
		if at.After(since) {
			return false
		}
	}
	return true
}

// Forgotten lists the cursors of generations and namespaces that no longer exist, in the
// order of their keys. A generation newer than all that the record lists is not forgotten:
// another worker has just opened it.
func (p *Plan) Forgotten() (list []cursor.Cursor) {
	for _, c := range p.view.Cursors.All() {
		if p.IsForgotten(c.Generation) || p.isDead(c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b cursor.Cursor) int { return compareIDs(a.ID, b.ID) })
	return list
}

// anyForgotten reports whether there are records to forget.
func (p *Plan) anyForgotten() bool {
	for number := range p.known.stored {
		if p.IsForgotten(number) {
			return true
		}
	}
	for number := range p.view.Seals {
		if p.IsForgotten(number) {
			return true
		}
	}
	return slices.ContainsFunc(p.known.gone, func(id cursor.ID) bool {
		c, ok := p.view.Cursors.At(id)
		return ok && p.isDead(c)
	})
}

// IsForgotten reports whether a generation has existed and is not live any more.
func (p *Plan) IsForgotten(number int) bool {
	newest := 0
	for _, g := range p.view.Record.Generations {
		if g.Number == number {
			return false
		}
		newest = max(newest, g.Number)
	}
	return number != expirykey.Nursery && number <= newest
}

// A KeySpan is a span of keys, [From, To), in which there should be no entity.
type KeySpan struct {
	From, To    string
	First, Last int // generations
}

// Has reports whether the span has keys of this generation.
func (s KeySpan) Has(number int) bool { return s.First <= number && number <= s.Last }

// AuditSpans lists the spans that should be empty, in the order of keys: retired
// generations and, in the ranges of sealed ones, what lies before the first survivor.
func (p *Plan) AuditSpans(namespace string) []KeySpan { return slices.Collect(p.auditSpans(namespace)) }

// hasAuditSpans reports whether there is anything for an audit to go over.
func (p *Plan) hasAuditSpans(namespace string) bool {
	for range p.auditSpans(namespace) {
		return true
	}
	return false
}

func (p *Plan) auditSpans(namespace string) iter.Seq[KeySpan] {
	return func(yield func(KeySpan) bool) {
		next := generation.First
		for _, g := range p.view.Record.Generations {
			if span, ok := retired(next, g.Number-1); ok && !yield(span) {
				return
			}
			next = g.Number + 1
			s := p.stages[g.Number]
			if !s.IsSealed() {
				continue
			}
			for _, r := range p.rangesOf(namespace, g.Number) {
				if span, ok := p.beforeSurvivors(r, s); ok && !yield(span) {
					return
				}
			}
		}
	}
}

// beforeSurvivors returns the span before the first survivor of a range in a sealed
// generation. Ok is false if the range's own reads handle that span, or if its record does
// not say yet where the survivors begin.
func (p *Plan) beforeSurvivors(r shardquery.Range, s Stage) (span KeySpan, ok bool) {
	c := p.Cursor(r)
	if c.Rewind.Done.Before(s.Sealed) || c.Stock.Suspects || c.Stock.Refused || c.Stock == (cursor.Stock{}) {
		return span, false
	}
	from, to := expirykey.Range(r.Generation, r.Shard)
	if !c.Stock.Next.IsZero() {
		to = r.At(c.Stock.Next).Value.Text
	}
	return KeySpan{from, to, r.Generation, r.Generation}, true
}

// retired returns the span of generations that have retired; ok is false if there are
// none between the two numbers.
func retired(first, last int) (span KeySpan, ok bool) {
	if first > last {
		return span, false
	}
	from, _ := expirykey.GenerationRange(first)
	_, to := expirykey.GenerationRange(last)
	return KeySpan{from, to, first, last}, true
}
