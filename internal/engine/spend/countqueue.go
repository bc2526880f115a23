package spend

import (
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/background"
)

const (
	// countAgain is how long after a count that failed the same is counted again.
	countAgain = 30 * time.Second
	// countTries is how often one sweep tries a count before it gives the hour up.
	countTries = 2
)

// A countQueue holds the keys that are to be counted. It is safe for concurrent use.
type countQueue struct {
	now  func() time.Time // this process's clock
	wake chan struct{}

	mu      sync.Mutex
	wanted  map[breaker.Key]int64 // to be counted, and how many entities somebody wants to delete under each
	failed  map[breaker.Key]failedCount
	atWork  *breaker.Key // is being counted; nil if nothing is
	wasLate bool         // the last turn was that of what is late
}

// A failedCount is a count that failed. Without it no more than the floor is deleted.
type failedCount struct {
	tries int
	at    time.Time // of the last try
	err   error
}

func newCountQueue(now func() time.Time) *countQueue {
	return &countQueue{now: now, wake: make(chan struct{}, 1), wanted: map[breaker.Key]int64{},
		failed: map[breaker.Key]failedCount{}}
}

// want asks for counts.
func (q *countQueue) want(unmet []breaker.Want) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range unmet {
		f, hasFailed := q.failed[w.Key]
		switch {
		case w.N == 0: // it was asked ahead of need
		case q.atWork != nil && *q.atWork == w.Key:
		case hasFailed && q.now().Sub(f.at) < countAgain:
		default:
			q.wanted[w.Key] = max(q.wanted[w.Key], w.N)
		}
	}
	if len(q.wanted) > 0 {
		background.Wake(q.wake)
	}
}

// next returns what is to be counted next, and how many entities somebody wants to delete of it.
func (q *countQueue) next() (k breaker.Key, wanted int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, next := range inKeyOrder(q.wanted) { // what is late comes last
		switch {
		case next.IsLate() && (!q.wasLate || !ok): // either may take long, so they take turns
			k, ok = next, true
		case !next.IsLate() && (!ok || q.failed[next].at.Before(q.failed[k].at)): // no hour waits for ever
			k, ok = next, true
		}
	}
	if ok {
		wanted = q.wanted[k]
		delete(q.wanted, k)
		q.atWork, q.wasLate = &k, k.IsLate()
	}
	return k, wanted, ok
}

// done ends the work on a key.
func (q *countQueue) done(k breaker.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.atWork = nil
	delete(q.failed, k)
}

// putBack queues a key again whose count takes several turns.
func (q *countQueue) putBack(k breaker.Key, wanted int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.atWork = nil
	delete(q.failed, k)
	q.wanted[k] = max(q.wanted[k], wanted)
}

// fail notes that a key could not be counted.
func (q *countQueue) fail(k breaker.Key, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.atWork = nil
	q.failed[k] = failedCount{q.failed[k].tries + 1, q.now(), err}
}

// givenUp returns why a key cannot be counted, if one sweep has tried that often enough.
func (q *countQueue) givenUp(k breaker.Key) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.failed[k]; f.tries >= countTries {
		return f.err
	}
	return nil
}
