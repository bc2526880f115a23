package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/store"
)

// MostDollars is what a run may cost at most. What cleans up is allowed beyond it; a
// tenth is kept back for that.
const MostDollars = 0.01

// errLimit is why calls fail once a run has cost what it may.
var errLimit = fmt.Errorf("%w: the self-test would cost more than $%.2f", store.ErrFailed, MostDollars)

// dollars returns what operations cost in the multi-region nam5: most locations are cheaper.
func dollars(o store.Operations) float64 {
	of := func(name forecast.PriceName, n int64) float64 {
		each, _ := nam5.OfOne(name)
		return each * float64(n)
	}
	return of(forecast.Reads, o.Reads) + of(forecast.Writes, o.Writes) + of(forecast.Deletes, o.Deletes)
}

var nam5, _ = forecast.ProvenPrices("nam5")

// A ledger counts the calls of a run: what they cost, how long they took, how they failed.
type ledger struct {
	billed bool // the store bills its operations
	now    func() time.Time

	mu      sync.Mutex
	spent   store.Operations
	took    map[string][]time.Duration
	broken  map[string]int // calls that failed, by name
	calls   int
	trouble trouble
}

// A trouble is what went wrong with calls since a check began.
type trouble struct {
	calls     int
	transient int
	last      error // the last transient error
	missing   error // a query needs an index that the database does not have
	lacking   error // the database cannot do what was asked
	denied    error
}

func newLedger(now func() time.Time, billed bool) *ledger {
	return &ledger{billed: billed, now: now, took: map[string][]time.Duration{}, broken: map[string]int{}}
}

// allows returns errLimit once no more may be spent.
func (l *ledger) allows() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.billed && dollars(l.spent) > MostDollars*9/10 {
		return errLimit
	}
	return nil
}

func (l *ledger) note(method string, took time.Duration, o store.Operations, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spent.Reads += o.Reads
	l.spent.Writes += o.Writes
	l.spent.Deletes += o.Deletes
	l.took[method] = append(l.took[method], took)
	l.calls++
	l.trouble.calls++
	if err == nil {
		return
	}
	l.broken[method]++
	switch {
	case errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrNotFound):
		l.trouble.denied = err
	case errors.Is(err, store.ErrMissingIndex):
		l.trouble.missing = err
	case errors.Is(err, store.ErrUnsupported):
		l.trouble.lacking = err
	case errors.Is(err, context.Canceled):
	case store.Transient(err) && !errors.Is(err, store.ErrContention):
		l.trouble.transient++
		l.trouble.last = err
	}
}

// begin forgets the trouble of earlier checks.
func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = trouble{}
}

func (l *ledger) troubles() trouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

func (l *ledger) operations() store.Operations {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent
}

// latencies returns the table of all calls, by their names.
func (l *ledger) latencies() []Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []Latency{}
	for method, all := range l.took {
		sorted := slices.Sorted(slices.Values(all))
		at := func(part float64) float64 {
			return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))].Seconds()
		}
		list = append(list, Latency{Call: method, Count: len(sorted), Failed: l.broken[method],
			Median: at(0.5), P95: at(0.95), Longest: sorted[len(sorted)-1].Seconds()})
	}
	slices.SortFunc(list, func(a, b Latency) int { return strings.Compare(a.Call, b.Call) })
	return list
}
