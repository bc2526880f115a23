// Package plan decides what each range and each chore of a target needs next,
// and when. It is a pure function of a [View] (what was read from the store), a
// [Book] (what this process remembers since), the [Rules] of the target and the
// store's time: no I/O, no lock, no clock.
//
// The invariant is that a plan is at most too careful. A view may be old: then a
// range is visited once more, or a chore tried in vain, since claims and marks
// are compare-and-set and deletes are conditional. What must not be missed (a
// generation that is not empty, a range that was never read) is decided by what
// records say was done, never by what they do not say.
//
// Limits: a first plan takes time in proportion to the target's ranges, and the
// [Plan.Next] one in proportion to what has changed. What a range needs is found out
// when somebody asks. A plan holds a few bytes for each range, and no cursors.
package plan

import (
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// Rules are the part of a target's configuration that decides what is due, and
// when. They are immutable.
type Rules struct {
	Target      string
	Scope       cursor.Scope      // of its cursors, without Opened, which is each generation's
	Form        layout.Form       // of a well-formed expiry
	ShardValues []store.Value     // of the shard property, if there is one
	Generations bool              // the layout has generations in addition to the nursery
	Policy      generation.Policy // Every is 0 if the layout has none
	Retention   time.Duration     // kept this long past expires
	MaxAge      time.Duration     // an expiry older than this before the horizon is suspect
	Rewind      time.Duration     // how often a range is read from its start
	Namespaces  []string          // as configured: names, or [cursor.AllNamespaces]
	// ReadSince asks for a read of each range from its start that began then or later,
	// whatever is due; zero asks for none.
	ReadSince time.Time
}

// A View is what was read from the store. It is replaced, never changed.
type View struct {
	Record     generation.Record
	Cursors    cursor.Table
	Seals      map[int]cursor.Seal // by generation
	Namespaces []string
	// When the read of each was sent, on this process's clock.
	RecordSent, CursorsSent time.Time
}

// ToldAt returns when the last read that covered a range's record was sent, even if it
// found no record.
func (v *View) ToldAt(id cursor.ID) time.Time {
	if sent := v.Cursors.Sent(id); !sent.IsZero() {
		return sent
	}
	return v.CursorsSent
}

// A Book is what one process remembers in addition to its view.
type Book struct {
	// Own are the cursors of claims that this process has released since the
	// view's cursors were read: newer than what the view shows of them.
	Own map[cursor.ID]cursor.Packed
	// Tried says when this process last came to the end of a chore, with success
	// or not, in the store's time. At is not part of the key.
	Tried map[Chore]time.Time
}

// A Plan says what each range and chore of a target needs at one instant.
type Plan struct {
	rules   Rules
	view    *View
	book    Book
	now     time.Time         // the store's
	opened  map[int]time.Time // of the live generations
	known   *rangeIndex
	stages  map[int]Stage
	blocked []int
}

// New returns the plan for an instant in the store's time.
func New(rules Rules, view *View, book Book, now time.Time) *Plan {
	p := &Plan{rules: rules, view: view, book: book, now: now}
	p.noteOpened()
	p.known = p.findRanges()
	p.classify()
	return p
}

// With returns the plan for the same instant by another view.
func (p *Plan) With(view *View) *Plan { return New(p.rules, view, p.book, p.now) }

// Next returns the plan for another instant, by this view and by the book; changed lists
// the book's cursors that have changed. It equals what New returns, at a cost in proportion
// to the changes, unless all cursors were read again or other ranges are swept. It takes
// over p's sums: of p, only stages and shards may be used afterwards.
func (p *Plan) Next(view *View, changed []cursor.ID, now time.Time) *Plan {
	next := &Plan{rules: p.rules, view: view, book: p.book, now: now, known: p.known, stages: p.stages}
	next.noteOpened()
	if read, ok := p.holdsFor(view); !ok {
		next.known = next.findRanges()
	} else {
		for _, id := range slices.Concat(changed, read) {
			next.change(id)
		}
	}
	next.classify()
	if !maps.EqualFunc(p.stages, next.stages, func(a, b Stage) bool { return a.Sealed.Equal(b.Sealed) }) {
		next.known.audits = nil // the audit may have more to read now
	}
	return next
}

// noteOpened notes when each generation was opened.
func (p *Plan) noteOpened() {
	p.opened = make(map[int]time.Time, len(p.view.Record.Generations))
	for _, g := range p.view.Record.Generations {
		p.opened[g.Number] = g.Opened
	}
}

// Now returns the instant that the plan is for, in the store's time.
func (p *Plan) Now() time.Time { return p.now }

// ID returns the name of a range's cursor record.
func (p *Plan) ID(r shardquery.Range) cursor.ID { return p.rules.ID(r) }

// ID returns the name of a range's cursor record.
func (r Rules) ID(rng shardquery.Range) cursor.ID {
	return cursor.ID{Target: r.Target, Namespace: rng.Namespace, Generation: rng.Generation, Shard: rng.ShardName()}
}

// Cursor returns the cursor of a range: that of its last claim here, or the view's.
func (p *Plan) Cursor(r shardquery.Range) cursor.Cursor {
	opened, ok := p.opened[r.Generation]
	if !ok {
		opened = p.view.Record.Created
	}
	return p.cursorAt(p.ID(r), opened)
}

func (p *Plan) cursorAt(id cursor.ID, opened time.Time) cursor.Cursor {
	return p.sealed(p.recordedAt(id, opened))
}

// recordedAt returns the cursor of a range by its last claim here, or by its record alone.
func (p *Plan) recordedAt(id cursor.ID, opened time.Time) cursor.Cursor {
	p.known.lookups.Add(1)
	scope := p.rules.Scope
	scope.Opened = opened
	var c cursor.Cursor
	if packed, own := p.book.Own[id]; own {
		c = packed.Cursor(id).In(scope, p.rules.Form.Type())
	} else {
		c = p.view.Cursors.Get(id, scope, p.rules.Form.Type())
	}
	if c.Seen.IsZero() {
		c.Seen = p.view.CursorsSent
	}
	c.TargetRevision = store.RevisionCount(p.view.Record.Revision)
	return c
}

// isKnown reports whether a range has a cursor record, or is imagined to have one.
func (p *Plan) isKnown(id cursor.ID) bool {
	_, own := p.book.Own[id]
	return own || p.view.Cursors.Has(id)
}

// Order sorts ranges for a first visit: oldest generation first, the nursery last, and
// at random within a generation, so that two processes that begin together do not compete
// for every range. Chance is in [0, 1).
func Order(ranges []shardquery.Range, chance float64) []shardquery.Range {
	list := slices.Clone(ranges)
	rng := rand.New(rand.NewPCG(math.Float64bits(chance), 0))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b shardquery.Range) int { return generationOrder(a) - generationOrder(b) })
	return list
}

// generationOrder puts the nursery last.
func generationOrder(r shardquery.Range) int {
	if r.Generation == expirykey.Nursery {
		return int(^uint(0) >> 2)
	}
	return r.Generation
}

// Jitter returns between four fifths of a period and all of it, always the same for the
// same name. So what is due once a period is spread over the period's last fifth.
func Jitter(period time.Duration, name string) time.Duration {
	return period - time.Duration(float64(period)/5*float64(spreadHash(name))/(1<<32))
}

// spreadHash is FNV-1a (32 bit) with the finalizer of MurmurHash3: names of shards
// differ in their last digits, which FNV alone leaves in a hash's lower bits.
func spreadHash(name string) uint32 {
	f := fnv.New32a()
	f.Write([]byte(name))
	h := f.Sum32()
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}
