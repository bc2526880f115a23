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
// Limits: one plan takes time and memory in proportion to the target's ranges.
package plan

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// Rules are the part of a target's configuration that decides what is due, and
// when. They are immutable.
type Rules struct {
	Target      string
	Scope       cursor.Scope      // of its cursors, without Opened, which is each generation's
	Type        store.Type        // of a well-formed expiry
	ShardValues []store.Value     // of the shard property, if there is one
	Generations bool              // the layout has generations beside the nursery
	Policy      generation.Policy // Every is 0 if the layout has none
	Retention   time.Duration     // kept this long past expires
	MaxAge      time.Duration     // an expiry older than this before the horizon is suspect
	Rewind      time.Duration     // how often a range is read from its start
}

// A View is what was read from the store. It is replaced, never changed.
type View struct {
	Record     generation.Record
	Cursors    cursor.Table
	Namespaces []string
	// When the read of each was sent, on this process's clock, and when that of
	// the cursors had been answered.
	RecordSent, CursorsSent, CursorsSeen time.Time
}

// A Book is what one process remembers beside its view.
type Book struct {
	// Own are the cursors of claims that this process has released since the
	// view's cursors were read: newer than what the view shows of them.
	Own map[cursor.ID]cursor.Cursor
	// Tried says when this process last came to the end of a chore, with success
	// or not, in the store's time. At is not part of the key.
	Tried map[Chore]time.Time
}

// A Plan is what there is to do at one instant.
type Plan struct {
	rules  Rules
	view   *View
	book   Book
	now    time.Time // the store's
	ranges []shardquery.Range
	opened map[int]time.Time // of the live generations
	ground map[int]*ground   // by generation
	stages map[int]Stage
}

// A ground is what the cursors of one generation say together.
type ground struct {
	ranges  []shardquery.Range
	done    time.Time // the earliest of their last reads from the start
	emptied time.Time // when the last of them was found empty
	empty   bool      // all of them were
}

// New returns the plan for an instant in the store's time.
func New(rules Rules, view *View, book Book, now time.Time) *Plan {
	p := &Plan{rules: rules, view: view, book: book, now: now}
	p.opened = make(map[int]time.Time, len(view.Record.Generations))
	for _, g := range view.Record.Generations {
		p.opened[g.Number] = g.Opened
	}
	p.ranges = p.knownRanges()
	p.survey()
	p.stages = p.classify()
	return p
}

// With returns the plan for the same instant by another view.
func (p *Plan) With(view *View) *Plan { return New(p.rules, view, p.book, p.now) }

// survey adds up, once for each range, what is asked of whole generations.
func (p *Plan) survey() {
	p.ground = make(map[int]*ground, len(p.opened)+1)
	for _, r := range p.ranges {
		c, g := p.Cursor(r), p.ground[r.Generation]
		if g == nil {
			g = &ground{done: c.Rewind.Done, empty: true}
			p.ground[r.Generation] = g
		}
		g.ranges = append(g.ranges, r)
		if c.Rewind.Done.Before(g.done) {
			g.done = c.Rewind.Done
		}
		if c.Stock.Emptied.After(g.emptied) {
			g.emptied = c.Stock.Emptied
		}
		g.empty = g.empty && !c.Stock.Emptied.IsZero()
	}
}

// groundOf returns what the cursors of a generation say; nothing if no range of it
// is swept.
func (p *Plan) groundOf(number int) ground {
	if g := p.ground[number]; g != nil {
		return *g
	}
	return ground{}
}

// Ranges lists the target's ranges as far as target record and cursors tell.
func (p *Plan) Ranges() []shardquery.Range { return p.ranges }

// Now returns the instant that the plan is for, in the store's time.
func (p *Plan) Now() time.Time { return p.now }

// knownRanges adds to the configured ranges those of shards past the last one
// that have a record.
func (p *Plan) knownRanges() []shardquery.Range {
	if p.rules.Type == store.Instant {
		return shardquery.InstantRanges(p.rules.ShardValues, p.view.Namespaces)
	}
	live := p.view.Record.Live()
	list := shardquery.Ranges(live, p.view.Namespaces)
	shards := map[int]int{}
	for _, g := range live {
		shards[g.Number] = g.Shards
	}
	var extra []shardquery.Range
	for id := range p.view.Cursors {
		n, isLive := shards[id.Generation]
		if !isLive || !slices.Contains(p.view.Namespaces, id.Namespace) {
			continue
		}
		shard, err := strconv.Atoi(id.Shard)
		r := shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard}
		if err == nil && shard >= n && shard <= expirykey.MaxShard && r.ShardName() == id.Shard {
			extra = append(extra, r)
		}
	}
	slices.SortFunc(extra, func(a, b shardquery.Range) int { return strings.Compare(p.ID(a).Key(), p.ID(b).Key()) })
	return append(list, extra...)
}

// ID returns the name of a range's cursor record.
func (p *Plan) ID(r shardquery.Range) cursor.ID { return p.rules.ID(r) }

// ID returns the name of a range's cursor record.
func (r Rules) ID(rng shardquery.Range) cursor.ID {
	return cursor.ID{Target: r.Target, Namespace: rng.Namespace, Generation: rng.Generation, Shard: rng.ShardName()}
}

// Cursor returns where a range stands: by its last claim here, or by the view.
func (p *Plan) Cursor(r shardquery.Range) cursor.Cursor {
	opened, ok := p.opened[r.Generation]
	if !ok {
		opened = p.view.Record.Created
	}
	return p.cursorAt(p.ID(r), opened)
}

func (p *Plan) cursorAt(id cursor.ID, opened time.Time) cursor.Cursor {
	table := p.view.Cursors
	if _, ok := p.book.Own[id]; ok {
		table = p.book.Own
	}
	scope := p.rules.Scope
	scope.Opened = opened
	c := table.Get(id, scope, p.rules.Type)
	if c.Seen.IsZero() {
		c.Seen = p.view.CursorsSent
	}
	c.TargetRevision = store.RevisionCount(p.view.Record.Revision)
	return c
}

// Shards returns the shards past a generation's last one that are known.
func (p *Plan) Shards(namespace string, g generation.Generation) (extra []int) {
	for _, r := range p.groundOf(g.Number).ranges {
		if r.Namespace == namespace && r.Shard >= g.Shards {
			extra = append(extra, r.Shard)
		}
	}
	return extra
}

// Order sorts ranges for a first visit: oldest generation first, the nursery
// last, and at random within a generation: two processes that begin together
// must not meet at every range. Chance is in [0, 1).
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

// Jitter returns four fifths of a period to all of it, always the same for the
// same name: what is due once a period is spread over its last fifth.
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
