package archive

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// DefaultMemory is how many bytes of whole entities a process holds at once: what all its ranges have read and not
// yet given to a writer, which holds compressed bytes alone.
const DefaultMemory = 256 << 20

// Memory bounds the bytes of whole entities that a process holds.
type Memory struct {
	all  int64
	sema *semaphore.Weighted
}

// NewMemory returns a bound of so many bytes.
func NewMemory(bytes int64) *Memory { return &Memory{bytes, semaphore.NewWeighted(bytes)} }

// Acquire waits until n more bytes may be held, or for all of them if n is more. Waiters are served in order.
func (m *Memory) Acquire(ctx context.Context, n int64) error {
	return m.sema.Acquire(ctx, min(n, m.all))
}

// Release gives back what Acquire was asked for.
func (m *Memory) Release(n int64) { m.sema.Release(min(n, m.all)) }
