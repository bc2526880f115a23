package plan

import (
	"time"

	"github.com/reaper-ttl/reaper/cursor"
)

// A sum combines the cursors of some ranges of one generation.
type sum struct {
	done    time.Time // the earliest of their last reads from the start
	emptied time.Time // when the last of them was found empty
	swept   time.Time // the earliest horizon of those that are not empty
	left    bool      // one of them is not empty
	refused bool      // the store refuses something in one of them
	// noCarry says that no survivor is left that could be carried: what is left is
	// suspect, or was refused.
	noCarry bool
}

func sumOf(c cursor.Cursor) sum {
	left := c.Stock.Emptied.IsZero()
	return sum{done: c.Rewind.Done, emptied: c.Stock.Emptied, swept: c.Swept, left: left, refused: c.Stock.Refused,
		noCarry: !left || (c.Stock.Suspects || c.Stock.Refused) && c.Stock.Next.IsZero()}
}

func (s sum) plus(o sum) sum {
	if o.done.Before(s.done) {
		s.done = o.done
	}
	if o.emptied.After(s.emptied) {
		s.emptied = o.emptied
	}
	if o.left && (!s.left || o.swept.Before(s.swept)) {
		s.swept = o.swept
	}
	s.left, s.refused, s.noCarry = s.left || o.left, s.refused || o.refused, s.noCarry && o.noCarry
	return s
}

// emptySince returns when the last read of a generation that was sealed at an instant may begin:
// one slack after its last entity was disposed of. Empty is false if anything is left in a range.
func (s sum) emptySince(sealed time.Time, slack time.Duration) (ready time.Time, empty bool) {
	if s.left || s.done.Before(sealed) {
		return sealed, false
	}
	if ready = s.emptied.Add(slack); ready.Before(sealed) {
		ready = sealed
	}
	return ready, true
}

// isBlocked reports whether a draining generation has only entities left that are not carried.
func (s sum) isBlocked(at Stage, retention time.Duration) bool {
	return s.refused && !s.done.Before(at.Sealed) && s.noCarry && (!s.left || at.hasCarried(s.swept, retention))
}

// isDrained reports whether ranges are empty, or were read to their end since their generation
// began to be drained: what is left could then not be carried. If a survivor is left that
// could be carried, that read began before the draining.
func (s sum) isDrained(at Stage, retention time.Duration) bool {
	return !s.left || s.noCarry && at.hasCarried(s.swept, retention) // an empty range is not visited any more
}

// fan is how many ranges a block of a tree has, and how many blocks the next larger
// one.
const fan = 32

// A tree holds the sums of a generation: of blocks of ranges, of blocks of these blocks,
// and so on up to one sum. When the cursor of a range changes, only the blocks that
// contain it are added up again.
type tree [][]sum

// newTree adds up n ranges, of which leaf returns each.
func newTree(n int, leaf func(int) sum) (t tree) {
	for n > 0 {
		level := make([]sum, (n+fan-1)/fan)
		for i := range level {
			level[i] = block(i, n, leaf)
		}
		t = append(t, level)
		if len(level) == 1 {
			break
		}
		n, leaf = len(level), func(i int) sum { return level[i] }
	}
	return t
}

// block adds up a block of n sums.
func block(i, n int, leaf func(int) sum) sum {
	s := leaf(i * fan)
	for k := i*fan + 1; k < min(n, (i+1)*fan); k++ {
		s = s.plus(leaf(k))
	}
	return s
}

// change updates the tree after a change of the i-th of n ranges.
func (t tree) change(i, n int, leaf func(int) sum) {
	for _, level := range t {
		i /= fan
		level[i] = block(i, n, leaf)
		n, leaf = len(level), func(i int) sum { return level[i] }
	}
}

// total returns the sum of all ranges; ok is false if there are none.
func (t tree) total() (s sum, ok bool) {
	if len(t) == 0 {
		return sum{}, false
	}
	return t[len(t)-1][0], true
}

// The totals are the sums of the live generations. Each is added up when somebody asks for it
// first, and kept up to date from plan to plan.
type totals struct {
	ranges  *rangeSet
	records *records
	trees   map[int]tree // by generation
}

// of returns the sum of the cursors of a generation; ok is false if no range of it is
// swept.
func (t *totals) of(number int) (s sum, ok bool) {
	g := t.ranges.generation(number)
	if g == nil {
		return s, false
	}
	if t.trees[number] == nil {
		t.trees[number] = newTree(t.ranges.size(g), t.leaves(g))
	}
	s, ok = t.trees[number].total()
	for _, id := range t.ranges.strays.foreign[number] {
		s = s.plus(sumOf(t.records.at(id, t.records.opened[number])))
	}
	return s, ok
}

// change takes in that the cursor of the i-th range of a generation has changed.
func (t *totals) change(g *liveGeneration, i int) {
	if sums := t.trees[g.Number]; sums != nil {
		sums.change(i, t.ranges.size(g), t.leaves(g))
	}
}

// leaves returns the leaf function of a generation's tree: the sum of each single range.
func (t *totals) leaves(g *liveGeneration) func(int) sum {
	return func(i int) sum { return sumOf(t.records.Cursor(t.ranges.rangeAt(g, i))) }
}
