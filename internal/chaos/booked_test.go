//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// A book says exactly how many entities of a kind were created, and removed by their writer. All others
// that are gone in the end were deleted by reaper: that is the count from outside.
type book struct {
	kind string

	mu                      sync.Mutex
	created, removed, lives int64 // lives are those that are there in the end
	unsure                  int64 // may have been created once more than was seen
}

func (b *book) String() string {
	return fmt.Sprintf("%d entities created, %d removed by their writer and %d left, so that %d were deleted (%d unsure)",
		b.created, b.removed, b.lives, b.deletes(), b.unsure)
}

func (b *book) deletes() int64 { return b.created - b.removed - b.lives }

// note records what a transaction did to one entity.
func (b *book) note(was *found, is bool, unsure bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case was == nil && is:
		b.created++
	case was != nil && !is:
		b.removed++
	}
	if was == nil && unsure {
		b.unsure++
	}
}

// A bookkeeper is the only one that writes to its slots. It does so on a good network, in transactions
// that read first, so that its book is exact.
type bookkeeper struct {
	*world
	*book
	slots []*slot
	rand  *rand.Rand
}

func (w *world) newBookkeeper(kind string, n int, part uint64) bookkeeper {
	b := bookkeeper{world: w, book: w.books[targets[kind]], rand: w.random(part)}
	for range n {
		b.slots = append(b.slots, w.newSlot(kind, targets[kind]))
	}
	return b
}

// A change is what a bookkeeper makes of one entity. Without a doc it leaves it as it is, or removes it.
type change struct {
	verdict
	to state
}

// write writes to slots in one transaction, until that is done, and returns when it was. Decide is asked
// again at each try; before holds, for each slot, a state that an earlier write may have left.
func (b *bookkeeper) write(ctx context.Context, slots []*slot, before []state, decide func(s *slot, is *found) change) time.Time {
	ids, candidates := make([]string, len(slots)), make([][]state, len(slots))
	for i, s := range slots {
		ids[i], candidates[i] = s.id, []state{s.begin()}
		if before != nil {
			candidates[i] = append(candidates[i], before[i])
		}
	}
	unsure := before != nil
	for {
		seen, made := make([]*found, len(slots)), make([]change, len(slots))
		began := time.Now()
		try, cancel := context.WithTimeout(ctx, writePatience)
		err := b.direct.changeAll(try, b.kind, ids, func(i int, is *found) verdict {
			seen[i], made[i] = is, decide(slots[i], is)
			return made[i].verdict
		})
		cancel()
		acked := time.Now()
		for i, c := range made {
			if err == nil {
				b.settle(slots[i], candidates[i], seen[i], c, acked, unsure)
			} else if !errors.Is(err, errAborted) && c.put != nil {
				candidates[i] = append(candidates[i], c.to)
			}
		}
		switch {
		case err == nil && acked.Sub(began) <= b.slack:
			return acked
		case err == nil: // stamps as old as that must be made again
			b.late.Add(1)
			for i, s := range slots {
				candidates[i] = []state{s.begin()}
			}
			unsure = false
			continue
		case ctx.Err() != nil: // the run ends early
			return acked
		case errors.Is(err, errAborted):
			b.aborted.Add(1)
		default:
			b.unknown.Add(1)
			unsure = true
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// settle records what a transaction did to one slot.
func (b *bookkeeper) settle(s *slot, candidates []state, seen *found, c change, acked time.Time, unsure bool) {
	wrong := among(candidates, seen, acked)
	switch {
	case c.put != nil:
		c.to.acked, c.to.late = acked, acked.Sub(c.to.stamped) > b.slack
		b.count(candidates[0], c.to)
		b.note(seen, true, unsure)
		s.end(c.to, changed)
	case c.remove:
		b.count(candidates[0], state{})
		b.note(seen, false, unsure)
		s.end(state{}, deleted)
	case seen == nil:
		s.end(state{}, "gone")
	default:
		to := candidates[0]
		for _, one := range candidates[1:] {
			if among([]state{to}, seen, acked) != "" {
				to = one
			}
		}
		s.end(to, "as it was")
	}
	if wrong != "" {
		b.violation(s, wrong)
	}
}
