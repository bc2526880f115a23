package spend

import (
	"errors"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// Hours and what is late take turns, a count is made once at a time, and one that failed waits.
func TestCountQueue(t *testing.T) {
	now := noon
	q := newCountQueue(func() time.Time { return now })
	first, second, late := breaker.Key{Hour: noon}, breaker.Key{Hour: noon.Add(time.Hour)}, breaker.Late()
	wantAll := func() { q.want([]breaker.Want{{Key: first, N: 3}, {Key: second, N: 4}, {Key: late, N: 5}}) }
	next := func(want breaker.Key, wanted int64) {
		t.Helper()
		if k, n, ok := q.next(); !ok || k != want || n != wanted {
			t.Fatalf("next is %v (%v), %d wanted, want %v, %d", k, ok, n, want, wanted)
		}
	}
	q.want([]breaker.Want{{Key: first, Max: 9}})
	if _, _, ok := q.next(); ok {
		t.Fatal("what nobody needs is counted")
	}
	wantAll()
	next(late, 5)
	wantAll() // it is at work
	q.putBack(late, 5)
	next(first, 3)
	q.fail(first, errors.New("too slow"))
	next(late, 5)
	q.done(late)
	next(second, 4)
	q.done(second)
	wantAll()
	if q.givenUp(first) != nil {
		t.Error("given up after one try")
	}
	next(late, 5)
	q.done(late)
	next(second, 4) // the first one failed just now
	q.done(second)
	if k, _, ok := q.next(); ok {
		t.Fatalf("%v is counted again at once", k)
	}
	now = now.Add(countAgain)
	q.want([]breaker.Want{{Key: first, N: 3}})
	next(first, 3)
	q.fail(first, errors.New("too slow"))
	if q.givenUp(first) == nil {
		t.Error("not given up")
	}
}
