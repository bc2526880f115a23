package plan

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A rangeIndex holds what was found out about all ranges of a target. To find it takes time in
// proportion to their number, so a plan hands it on to the [Plan.Next] one, which updates
// it for the changed cursors. It holds no cursors.
type rangeIndex struct {
	live       []*liveGeneration // the live generations, in the order of the record
	byNumber   map[int]int       // places in live
	namespaces map[string]int    // places in the view's list
	extra      []shardquery.Range
	stored     map[int]bool // the generations of which there are cursor records
	// foreign are the cursors of namespaces that other deployments sweep, by generation, and
	// gone those of namespaces that the store lists no longer.
	foreign map[int][]cursor.ID
	gone    []cursor.ID
	swept   []string     // see [Plan.Swept]
	audits  []auditDue   // by namespace
	lookups atomic.Int64 // of cursors; another goroutine may show the plan at the same time
}

// A liveGeneration is one live generation.
type liveGeneration struct {
	generation.Generation
	// extra are its ranges past its last shard, by namespace and shard.
	extra []shardquery.Range
	sums  tree // nil until somebody asks for it
}

// An auditDue says when the audit of a namespace is due.
type auditDue struct {
	at       time.Time
	underWay bool
	// Whether the audit has anything to read: no, or yes; neither before it was asked.
	nothing, something bool
}

// findRanges goes over the namespaces, and over the cursors to find shards past the last
// one.
func (p *Plan) findRanges() *rangeIndex {
	k := &rangeIndex{
		byNumber: map[int]int{}, namespaces: make(map[string]int, len(p.view.Namespaces)), stored: map[int]bool{},
		foreign: map[int][]cursor.ID{}, swept: p.findSwept(),
	}
	for i, ns := range p.view.Namespaces {
		k.namespaces[ns] = i
	}
	if p.rules.Form.HasGenerations() {
		for i, g := range p.view.Record.Live() {
			k.live = append(k.live, &liveGeneration{Generation: g})
			k.byNumber[g.Number] = i
		}
	}
	for id := range p.view.Cursors.IDs() {
		k.stored[id.Generation] = true
		if p.isForeign(k, id) {
			k.foreign[id.Generation] = append(k.foreign[id.Generation], id)
		}
		if p.isGone(k, id.Namespace) {
			k.gone = append(k.gone, id)
		}
		if r, ok := k.pastLast(id); ok {
			k.extra = append(k.extra, r)
		}
	}
	slices.SortFunc(k.extra, func(a, b shardquery.Range) int { return strings.Compare(p.ID(a).Key(), p.ID(b).Key()) })
	for _, r := range k.extra {
		g := k.generation(r.Generation)
		g.extra = append(g.extra, r)
	}
	for _, g := range k.live {
		slices.SortFunc(g.extra, byPlace)
	}
	return k
}

// pastLast returns the range of a cursor whose shard lies past the last one of its
// generation; ok is false for any other.
func (k *rangeIndex) pastLast(id cursor.ID) (r shardquery.Range, ok bool) {
	g := k.generation(id.Generation)
	if g == nil {
		return r, false
	}
	if _, swept := k.namespaces[id.Namespace]; !swept {
		return r, false
	}
	shard, err := strconv.Atoi(id.Shard)
	r = shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard}
	return r, err == nil && shard >= g.Shards && shard <= expirykey.MaxShard && r.ShardName() == id.Shard
}

func byPlace(a, b shardquery.Range) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Shard, b.Shard))
}

// generation returns a live generation; nil if it is not live.
func (k *rangeIndex) generation(number int) *liveGeneration {
	if i, ok := k.byNumber[number]; ok {
		return k.live[i]
	}
	return nil
}

// extraIn returns the shards past the last one in a namespace.
func (g *liveGeneration) extraIn(namespace string) []shardquery.Range {
	lo, _ := slices.BinarySearchFunc(g.extra, shardquery.Range{Namespace: namespace}, byPlace)
	hi := lo
	for hi < len(g.extra) && g.extra[hi].Namespace == namespace {
		hi++
	}
	return g.extra[lo:hi]
}

// len returns how many ranges a generation has.
func (k *rangeIndex) len(g *liveGeneration) int { return g.Shards*len(k.namespaces) + len(g.extra) }

// place returns the index of a range in its generation; ok is false if there is no such
// range.
func (k *rangeIndex) place(g *liveGeneration, r shardquery.Range) (i int, ok bool) {
	ns, ok := k.namespaces[r.Namespace]
	if !ok || r.Shard < 0 {
		return 0, false
	}
	if r.Shard < g.Shards {
		return ns*g.Shards + r.Shard, true
	}
	i, ok = slices.BinarySearchFunc(g.extra, r, byPlace)
	return len(k.namespaces)*g.Shards + i, ok
}

// holdsFor reports whether what a plan knows of the ranges is also true by another view,
// and returns the cursors that differ there.
func (p *Plan) holdsFor(v *View) (changed []cursor.ID, ok bool) {
	was := p.view
	isSame := func(a, b generation.Generation) bool {
		return a.Number == b.Number && a.Shards == b.Shards && a.Opened.Equal(b.Opened)
	}
	same := slices.Equal(was.Namespaces, v.Namespaces) && was.Record.Created.Equal(v.Record.Created) &&
		slices.EqualFunc(was.Record.Generations, v.Record.Generations, isSame) &&
		isSame(was.Record.Nursery(), v.Record.Nursery())
	if !same {
		return nil, false
	}
	same = maps.EqualFunc(was.Seals, v.Seals, func(a, b cursor.Seal) bool {
		return a.Revision == b.Revision && a.Done.Equal(b.Done)
	}) && slices.EqualFunc(was.Record.Namespaces, v.Record.Namespaces, func(a, b generation.Swept) bool {
		return a.Name == b.Name // when a deployment last named it does not matter here
	})
	if !same {
		return nil, false
	}
	changed, ok = v.Cursors.Since(was.Cursors)
	for _, id := range changed {
		if ok = ok && p.known.knows(v.Cursors, id); !ok {
			return nil, false
		}
	}
	return changed, ok
}

// knows reports whether a cursor that was read again belongs to the ranges that are known:
// it adds none and removes none.
func (k *rangeIndex) knows(cursors cursor.Table, id cursor.ID) bool {
	if !cursors.Has(id) || !k.stored[id.Generation] {
		return false
	}
	r, past := k.pastLast(id)
	if !past {
		return true
	}
	_, found := k.place(k.generation(r.Generation), r)
	return found
}

// change takes in a changed cursor of a range or of an audit. The stages are still those of
// the plan before.
func (p *Plan) change(id cursor.ID) {
	k := p.known
	if ns, ok := k.namespaces[id.Namespace]; ok && id == p.auditID(id.Namespace) && k.audits != nil {
		k.audits[ns] = p.auditDue(id.Namespace)
		return
	}
	g := k.generation(id.Generation)
	shard, err := strconv.Atoi(id.Shard)
	if g == nil || err != nil {
		return
	}
	r := shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard}
	i, ok := k.place(g, r)
	if !ok {
		return
	}
	if g.sums != nil {
		g.sums.change(i, k.len(g), p.leaves(g))
	}
	if s := p.stages[id.Generation]; s.IsSealed() && k.audits != nil {
		due := &k.audits[k.namespaces[id.Namespace]]
		_, due.something = p.beforeSurvivors(r, s) // else another range has to be asked
		due.nothing = due.nothing && !due.something
	}
}

// totals returns the sum of the cursors of a generation; ok is false if no range of it is
// swept.
func (p *Plan) totals(number int) (s sum, ok bool) {
	g := p.known.generation(number)
	if g == nil {
		return s, false
	}
	if g.sums == nil {
		g.sums = newTree(p.known.len(g), p.leaves(g))
	}
	s, ok = g.sums.total()
	for _, id := range p.known.foreign[number] {
		s = s.plus(sumOf(p.cursorAt(id, p.opened[number])))
	}
	return s, ok
}

// isGone reports whether the store no longer lists a namespace, and no deployment names it.
func (p *Plan) isGone(k *rangeIndex, namespace string) bool {
	_, listed := k.namespaces[namespace]
	return !listed && slices.Contains(p.rules.Namespaces, cursor.AllNamespaces) &&
		!slices.ContainsFunc(p.view.Record.Namespaces, func(n generation.Swept) bool { return n.Name == namespace })
}

// isForeign reports whether a cursor is of a namespace that only other deployments sweep:
// no generation may retire while one of its ranges there holds anything.
func (p *Plan) isForeign(k *rangeIndex, id cursor.ID) bool {
	_, own := k.namespaces[id.Namespace]
	return !own && !slices.Contains(p.rules.Namespaces, cursor.AllNamespaces) && k.generation(id.Generation) != nil &&
		id.Generation != expirykey.Nursery && slices.ContainsFunc(p.view.Record.Namespaces, func(n generation.Swept) bool {
		return n.Name == id.Namespace || n.Name == cursor.AllNamespaces
	})
}

// leaves returns the leaf function of a generation's tree: the sum of each single range.
func (p *Plan) leaves(g *liveGeneration) func(int) sum {
	regular := g.Shards * len(p.known.namespaces)
	names := p.view.Namespaces
	return func(i int) sum {
		if i >= regular {
			return sumOf(p.Cursor(g.extra[i-regular]))
		}
		return sumOf(p.Cursor(shardquery.Range{Namespace: names[i/g.Shards], Generation: g.Number, Shard: i % g.Shards}))
	}
}

// SameRanges reports whether this plan and the one before it have the same ranges.
func (p *Plan) SameRanges(last *Plan) bool { return p.known == last.known }

// Has reports whether a range is one of the target's.
func (p *Plan) Has(r shardquery.Range) bool {
	if !p.rules.Form.HasGenerations() {
		_, ok := p.known.namespaces[r.Namespace]
		return ok
	}
	g := p.known.generation(r.Generation)
	if g == nil {
		return false
	}
	_, ok := p.known.place(g, r)
	return ok
}

// All yields the target's ranges as far as target record and cursors tell: the
// configured ones, and then those of shards past the last one that have a record.
func (p *Plan) All() iter.Seq[shardquery.Range] {
	return func(yield func(shardquery.Range) bool) {
		if !p.rules.Form.HasGenerations() {
			for _, r := range p.rules.Form.Ranges(p.rules.ShardValues, p.view.Namespaces) {
				if !yield(r) {
					return
				}
			}
			return
		}
		for _, g := range p.known.live {
			for _, ns := range p.view.Namespaces {
				for shard := range g.Shards {
					if !yield(shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}) {
						return
					}
				}
			}
		}
		for _, r := range p.known.extra {
			if !yield(r) {
				return
			}
		}
	}
}

// HasAll reports whether all ranges past a last shard that another plan knows are ranges
// of this one, too.
func (p *Plan) HasAll(of *Plan) bool {
	return !slices.ContainsFunc(of.known.extra, func(r shardquery.Range) bool { return !p.Has(r) })
}

// Ranges lists the target's ranges.
func (p *Plan) Ranges() []shardquery.Range { return slices.Collect(p.All()) }

// RangesIn lists the ranges of one namespace.
func (p *Plan) RangesIn(namespace string) (list []shardquery.Range) {
	if !p.rules.Form.HasGenerations() {
		return p.rules.Form.Ranges(p.rules.ShardValues, []string{namespace})
	}
	for _, g := range p.known.live {
		list = append(list, p.rangesOf(namespace, g.Number)...)
	}
	return list
}

// rangesOf lists the ranges of a generation in one namespace, in the order of keys.
func (p *Plan) rangesOf(namespace string, number int) (list []shardquery.Range) {
	g := p.known.generation(number)
	if _, swept := p.known.namespaces[namespace]; g == nil || !swept {
		return nil
	}
	list = shardquery.Ranges([]generation.Generation{g.Generation}, []string{namespace})
	return append(list, g.extraIn(namespace)...)
}

// Len returns how many ranges the target has.
func (p *Plan) Len() (n int) {
	if !p.rules.Form.HasGenerations() {
		return max(1, len(p.rules.ShardValues)) * len(p.view.Namespaces)
	}
	for _, g := range p.known.live {
		n += p.known.len(g)
	}
	return n
}

// Shards returns the shards past a generation's last one that are known.
func (p *Plan) Shards(namespace string, g generation.Generation) (extra []int) {
	ground := p.known.generation(g.Number)
	if ground == nil {
		return nil
	}
	for _, r := range ground.extraIn(namespace) {
		if r.Shard >= g.Shards {
			extra = append(extra, r.Shard)
		}
	}
	return extra
}

// Lookups returns how many cursors this plan and the plans before it have looked up since
// the ranges were found. Tests check by it that work depends only on what has changed.
func (p *Plan) Lookups() int { return int(p.known.lookups.Load()) }
