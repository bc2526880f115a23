package sweep

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/shardquery"
)

// order returns the ranges oldest generation first, the nursery last, and in
// random order within a generation, which chance decides: two processes that begin
// together must not meet at every range.
func (p *pass) order(chance float64) []shardquery.Range {
	list := slices.Clone(p.ranges)
	rng := rand.New(rand.NewPCG(math.Float64bits(chance), 0))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b shardquery.Range) int { return age(a) - age(b) })
	return list
}

func age(r shardquery.Range) int {
	if r.Generation == 0 {
		return int(^uint(0) >> 2)
	}
	return r.Generation
}

// A turn is a range's place in the queue.
type turn struct {
	r     shardquery.Range
	again bool      // another worker held it the last time
	after time.Time // not before then
}

// A queue hands out turns, first come first served.
type queue struct {
	mu   sync.Mutex
	list []turn
}

func (q *queue) add(t turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, t)
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list) == 0
}

func (q *queue) next() (t turn, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return t, false
	}
	t, q.list = q.list[0], q.list[1:]
	return t, true
}
