package store

import (
	"context"
	"sync/atomic"
)

// A Meter adds up billed units, as the services count them: a read for each
// entity looked up, for each query, for every 1,000 index entries counted (a
// COUNT with an upper bound counts no further); a write or a delete for each
// entity written or deleted.
// The zero Meter is ready, and it is safe for concurrent use.
type Meter struct {
	reads, writes, deletes atomic.Int64
}

// Operations are billed units.
type Operations struct {
	Reads   int64 `json:"reads"`
	Writes  int64 `json:"writes"`
	Deletes int64 `json:"deletes"`
}

// Operations returns what was added up so far.
func (m *Meter) Operations() Operations {
	return Operations{m.reads.Load(), m.writes.Load(), m.deletes.Load()}
}

type meterKey struct{}

// WithMeter returns a context in which drivers bill to m.
func WithMeter(ctx context.Context, m *Meter) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// Bill adds to the context's meter, if it has one. Drivers call it.
func Bill(ctx context.Context, o Operations) {
	if m, ok := ctx.Value(meterKey{}).(*Meter); ok {
		m.reads.Add(o.Reads)
		m.writes.Add(o.Writes)
		m.deletes.Add(o.Deletes)
	}
}
