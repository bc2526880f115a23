package shardquery

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

const (
	// queryTimeout bounds one query. The services end a query after 60 s; one
	// that takes half of that steps over more than it should.
	queryTimeout = 30 * time.Second
	// smallPage is how far a page shrinks while the window can.
	smallPage = 50
	// goodRun is how many pages, or windows, in a row must be quick before a size that
	// had to shrink grows again.
	goodRun = 8
	// lateRun is how many queries in a row must be late, each for a shorter window,
	// before the store counts as slow for every query.
	lateRun = 4
)

// ErrShrunk is wrapped, in addition to the store's own error, by the error of a query
// that was late or too large. It means that the next query asks for less or has more
// time; the caller may make it at once.
var ErrShrunk = errors.New("the next query asks for less, or has more time")

// Patiently calls next until it succeeds, fails for good, ctx is done or patience,
// which is positive, has passed. It waits in between, as [store.Retry] does, but
// not after [ErrShrunk]. It is for callers that are not steps.
func Patiently(ctx context.Context, patience time.Duration, next func() error) error {
	// Nothing but a clock: what next does has deadlines of its own.
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return store.Retry(ctx, patience, func() error {
		err := next()
		for errors.Is(err, ErrShrunk) && patient.Err() == nil {
			err = next()
		}
		return err
	})
}
