package facts

import (
	"context"
	"sync/atomic"
)

// An Explained adds up what the service itself says that it bills for queries (Query
// Explain). The zero value is ready, and it is safe for concurrent use.
type Explained struct{ answers, reads atomic.Int64 }

// Add adds what one answer says.
func (e *Explained) Add(reads int64) {
	e.answers.Add(1)
	e.reads.Add(reads)
}

// Reads returns the billed reads so far, and how many answers told any. An emulator
// explains nothing.
func (e *Explained) Reads() (reads, answers int64) { return e.reads.Load(), e.answers.Load() }

type explainedKey struct{}

// WithExplained returns a context in which drivers have the service explain each query
// that they send, and add what it says to e.
func WithExplained(ctx context.Context, e *Explained) context.Context {
	return context.WithValue(ctx, explainedKey{}, e)
}

// ExplainedOf returns what the context's queries are added to; nil if they are not to be
// explained.
func ExplainedOf(ctx context.Context) *Explained {
	e, _ := ctx.Value(explainedKey{}).(*Explained)
	return e
}
