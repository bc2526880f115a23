package plan

import (
	"cmp"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A rangeSet says which ranges a target has, and which cursor records lie in none of them.
// It takes time in proportion to the cursors to make one, so that a plan hands it on to the
// [Plan.Next] one for as long as it holds. It is immutable, and has no cursors.
type rangeSet struct {
	namespaces
	form   layout.Form
	values []store.Value // of the shard property, if there is one

	live     []*liveGeneration  // in the order of the record
	byNumber map[int]int        // indexes of live
	extra    []shardquery.Range // past the last shards, in the order of their cursors' keys
	strays   strays
}

// A liveGeneration is one live generation.
type liveGeneration struct {
	generation.Generation
	extra []shardquery.Range // past its last shard, by namespace and shard
}

// The strays are what a rangeSet knows of the cursor records of a target in addition to its ranges.
type strays struct {
	stored  map[int]bool        // the generations that have cursor records
	foreign map[int][]cursor.ID // those of namespaces that only other deployments sweep, by live generation
	gone    []cursor.ID         // those of namespaces that the store no longer lists
}

// findRanges goes over the namespaces, and over the cursors to find shards past the last
// one.
func findRanges(rules *Rules, view *View) *rangeSet {
	s := &rangeSet{namespaces: newNamespaces(rules, view), form: rules.Form, values: rules.ShardValues,
		byNumber: map[int]int{}, strays: strays{stored: map[int]bool{}, foreign: map[int][]cursor.ID{}}}
	if s.form.HasGenerations() {
		for i, g := range view.Record.Live() {
			s.live = append(s.live, &liveGeneration{Generation: g})
			s.byNumber[g.Number] = i
		}
	}
	for id := range view.Cursors.IDs() {
		s.strays.stored[id.Generation] = true
		if s.isForeignRange(id) {
			s.strays.foreign[id.Generation] = append(s.strays.foreign[id.Generation], id)
		}
		if s.isGone(id.Namespace) {
			s.strays.gone = append(s.strays.gone, id)
		}
		if r, ok := s.pastLast(id); ok {
			s.extra = append(s.extra, r)
		}
	}
	slices.SortFunc(s.extra, func(a, b shardquery.Range) int {
		return strings.Compare(rules.ID(a).Key(), rules.ID(b).Key())
	})
	for _, r := range s.extra {
		g := s.generation(r.Generation)
		g.extra = append(g.extra, r)
	}
	for _, g := range s.live {
		slices.SortFunc(g.extra, byShard)
	}
	return s
}

// isForeignRange reports whether a cursor is of a namespace that only other deployments sweep:
// no generation may retire while one of its ranges there holds anything.
func (s *rangeSet) isForeignRange(id cursor.ID) bool {
	return id.Generation != expirykey.Nursery && s.generation(id.Generation) != nil && s.isForeign(id.Namespace)
}

// pastLast returns the range of a cursor whose shard lies past the last one of its
// generation; ok is false for any other.
func (s *rangeSet) pastLast(id cursor.ID) (r shardquery.Range, ok bool) {
	g := s.generation(id.Generation)
	if g == nil || !s.sweeps(id.Namespace) {
		return r, false
	}
	shard, err := strconv.Atoi(id.Shard)
	r = shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard}
	return r, err == nil && shard >= g.Shards && shard <= expirykey.MaxShard && r.ShardName() == id.Shard
}

func byShard(a, b shardquery.Range) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Shard, b.Shard))
}

// generation returns a live generation; nil if it is not live.
func (s *rangeSet) generation(number int) *liveGeneration {
	if i, ok := s.byNumber[number]; ok {
		return s.live[i]
	}
	return nil
}

// extraIn returns the ranges past the last shard in a namespace.
func (g *liveGeneration) extraIn(namespace string) []shardquery.Range {
	lo, _ := slices.BinarySearchFunc(g.extra, shardquery.Range{Namespace: namespace}, byShard)
	hi := lo
	for hi < len(g.extra) && g.extra[hi].Namespace == namespace {
		hi++
	}
	return g.extra[lo:hi]
}

// size returns how many ranges a generation has.
func (s *rangeSet) size(g *liveGeneration) int { return g.Shards*len(s.names) + len(g.extra) }

// rangeAt returns the range of a generation that has an index.
func (s *rangeSet) rangeAt(g *liveGeneration, i int) shardquery.Range {
	if regular := g.Shards * len(s.names); i >= regular {
		return g.extra[i-regular]
	}
	return shardquery.Range{Namespace: s.names[i/g.Shards], Generation: g.Number, Shard: i % g.Shards}
}

// indexOf returns the index of a range in its generation; ok is false if there is no such
// range.
func (s *rangeSet) indexOf(g *liveGeneration, r shardquery.Range) (i int, ok bool) {
	ns, ok := s.index[r.Namespace]
	if !ok || r.Shard < 0 {
		return 0, false
	}
	if r.Shard < g.Shards {
		return ns*g.Shards + r.Shard, true
	}
	i, ok = slices.BinarySearchFunc(g.extra, r, byShard)
	return len(s.names)*g.Shards + i, ok
}

// find returns the range of a cursor, its generation and its index there; ok is false if it
// is of no range with a generation.
func (s *rangeSet) find(id cursor.ID) (r shardquery.Range, g *liveGeneration, i int, ok bool) {
	g = s.generation(id.Generation)
	shard, err := strconv.Atoi(id.Shard)
	if g == nil || err != nil {
		return r, nil, 0, false
	}
	r = shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard}
	i, ok = s.indexOf(g, r)
	return r, g, i, ok
}

// holdsFor reports whether the set that was made of one view is also that of another one,
// and returns the cursors that differ there.
func (s *rangeSet) holdsFor(was, is *View) (changed []cursor.ID, ok bool) {
	if !was.listsSame(is) {
		return nil, false
	}
	changed, ok = is.Cursors.Since(was.Cursors)
	for _, id := range changed {
		if ok = ok && is.Cursors.Has(id) && s.knows(id); !ok {
			return nil, false
		}
	}
	return changed, ok
}

// knows reports whether a cursor record, which may be new, adds no range.
func (s *rangeSet) knows(id cursor.ID) bool {
	if !s.strays.stored[id.Generation] {
		return false
	}
	r, past := s.pastLast(id)
	if !past {
		return true
	}
	_, found := s.indexOf(s.generation(r.Generation), r)
	return found
}

// Has reports whether a range is one of the target's.
func (s *rangeSet) Has(r shardquery.Range) bool {
	if !s.form.HasGenerations() {
		return s.sweeps(r.Namespace)
	}
	g := s.generation(r.Generation)
	if g == nil {
		return false
	}
	_, ok := s.indexOf(g, r)
	return ok
}

// All yields the target's ranges as far as target record and cursors tell: the
// configured ones, and then those of shards past the last one that have a record.
func (s *rangeSet) All() iter.Seq[shardquery.Range] {
	return func(yield func(shardquery.Range) bool) {
		if !s.form.HasGenerations() {
			for _, r := range s.form.Ranges(s.values, s.names) {
				if !yield(r) {
					return
				}
			}
			return
		}
		for _, g := range s.live {
			for _, ns := range s.names {
				for shard := range g.Shards {
					if !yield(shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}) {
						return
					}
				}
			}
		}
		for _, r := range s.extra {
			if !yield(r) {
				return
			}
		}
	}
}

// Ranges lists the target's ranges.
func (s *rangeSet) Ranges() []shardquery.Range { return slices.Collect(s.All()) }

// RangesIn lists the ranges of one namespace.
func (s *rangeSet) RangesIn(namespace string) (list []shardquery.Range) {
	if !s.form.HasGenerations() {
		return s.form.Ranges(s.values, []string{namespace})
	}
	for _, g := range s.live {
		list = append(list, s.rangesOf(namespace, g.Number)...)
	}
	return list
}

// rangesOf lists the ranges of a generation in one namespace, in the order of keys.
func (s *rangeSet) rangesOf(namespace string, number int) (list []shardquery.Range) {
	g := s.generation(number)
	if g == nil || !s.sweeps(namespace) {
		return nil
	}
	list = shardquery.Ranges([]generation.Generation{g.Generation}, []string{namespace})
	return append(list, g.extraIn(namespace)...)
}

// Len returns how many ranges the target has.
func (s *rangeSet) Len() (n int) {
	if !s.form.HasGenerations() {
		return max(1, len(s.values)) * len(s.names)
	}
	for _, g := range s.live {
		n += s.size(g)
	}
	return n
}

// ShardsOf returns how many shards a live generation was opened with; 0 if it is not live.
func (s *rangeSet) ShardsOf(number int) int {
	if g := s.generation(number); g != nil {
		return g.Shards
	}
	return 0
}

// ExtraShards returns the shards past a generation's last one that are known.
func (s *rangeSet) ExtraShards(namespace string, g generation.Generation) (extra []int) {
	live := s.generation(g.Number)
	if live == nil {
		return nil
	}
	for _, r := range live.extraIn(namespace) {
		if r.Shard >= g.Shards {
			extra = append(extra, r.Shard)
		}
	}
	return extra
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
