package orphans

import (
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

// growAfter is how many calls of the full size go well before the next one is larger: a size that is too large costs
// the time that a call may take.
const growAfter = 4

// A batchSize is how many orphans one call deletes at most. All workers of a run share it, since they share what is
// slow: the store and the archive.
type batchSize struct {
	mu   sync.Mutex
	most int
	well int // calls of that size that went well
}

func newBatchSize() *batchSize { return &batchSize{most: mostBelow} }

func (b *batchSize) current() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

// failed makes calls smaller than one for n orphans that was too much.
func (b *batchSize) failed(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most, b.well = min(b.most, (n+1)/2), 0
}

// wentWell makes calls larger, after some for as many orphans as a call may have.
func (b *batchSize) wentWell(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < b.most {
		return
	}
	if b.well++; b.well >= growAfter {
		b.most, b.well = min(mostBelow, 2*b.most), 0
	}
}

// cut makes the first list no longer than a call may have. No list is empty.
func (b *batchSize) cut(lists [][]store.Relative) [][]store.Relative {
	first, most := lists[0], b.current()
	if len(first) <= most {
		return lists
	}
	return append([][]store.Relative{first[:most], first[most:]}, lists[1:]...)
}
