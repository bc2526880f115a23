package site

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Tally adds up what the steps of one target did. It is safe for concurrent use.
type Tally struct {
	Counts    counts
	Meter     store.Meter
	Published published

	Mu        sync.Mutex
	throttled map[throttle.Reason]time.Duration
	Retired   []int
	wrote     time.Time // when a write that disposes of something last succeeded
	around    *around   // what was found outside the ranges; nil if nobody has looked
	Preview   preview
}

// An around is what was found outside the ranges.
type around struct {
	outside    int64
	emptyIndex bool
}

// counts are what steps add up.
type counts struct {
	metrics.CountsOf[atomic.Int64]
	steps
}

// steps are the deleted points that reads stepped over: all, and those of reads from the start.
type steps struct {
	Stepped, Behind atomic.Int64
	StepsUnknown    atomic.Bool // a page could not tell
}

func NewTally() *Tally { return &Tally{throttled: map[throttle.Reason]time.Duration{}} }

// Waited adds to the time for which a reason has held the target's ranges back.
func (t *Tally) Waited(why throttle.Reason, d time.Duration) {
	if d <= 0 || why == "" {
		return
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.throttled[why] += d
}

// ThrottledFor returns for how long each reason has held the ranges back so far.
func (t *Tally) ThrottledFor() map[throttle.Reason]time.Duration {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	all := make(map[throttle.Reason]time.Duration, len(t.throttled))
	for why, d := range t.throttled {
		all[why] = d
	}
	return all
}

// SteppedOver adds up the deleted points that a read stepped over.
func (t *Tally) SteppedOver(n int64, fromStart bool) {
	if n == store.UnknownSteps {
		t.Counts.StepsUnknown.Store(true)
		return
	}
	t.Counts.Stepped.Add(n)
	if fromStart {
		t.Counts.Behind.Add(n)
	}
}

// Succeeded notes that a write took effect: the store does not refuse everything.
func (t *Tally) Succeeded(now time.Time) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.wrote = now
}

// SucceededSince reports whether a write took effect after the instant.
func (t *Tally) SucceededSince(at time.Time) bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.wrote.After(at)
}

func (t *Tally) Retire(number int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Retired = append(t.Retired, number)
}

// LookedAround notes what was found outside the ranges.
func (t *Tally) LookedAround(outside int64, emptyIndex bool) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.around = &around{outside, emptyIndex}
}

// AroundOr returns what this process has found outside the ranges, or the arguments if it
// has not looked yet.
func (t *Tally) AroundOr(outside int64, emptyIndex bool) (int64, bool) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.around != nil {
		return t.around.outside, t.around.emptyIndex
	}
	return outside, emptyIndex
}

// A published is the part of a tally that was added to the metrics already.
type published struct {
	Mu         sync.Mutex
	Counts     metrics.Counts
	Operations store.Operations
	Throttled  map[throttle.Reason]time.Duration
}

// An Example is an entity that sweeps keep.
type Example struct {
	Kept      string `json:"kept"` // why: [KeptMalformed] or [KeptSuspect]
	Namespace string `json:"namespace"`
	ID        string `json:"id"`    // the name, or the digits of the number
	Value     string `json:"value"` // the property, as the index shows it
}

// Why entities are kept.
const (
	KeptMalformed = "malformed"
	KeptSuspect   = "suspect"
)

const (
	// MostExamples is how many examples a dry run gives for each reason.
	MostExamples = 3
	// mostSeen is how many entities a dry run remembers if it may meet one twice.
	mostSeen = 1 << 20
)

// A preview is what a dry run finds out beyond the counts. The tally has its lock.
type preview struct {
	Behind    int64
	Ranges    map[shardquery.Range]bool // in which that is
	Estimated bool
	Examples  []Example
	seen      map[[2]string]bool // by namespace and key: the next sweep leaves it
	Oldest    time.Time          // when the first of what is due has expired, as far as it was read
}

// FoundBehind counts what is due, and left by the next sweep.
func (t *Tally) FoundBehind(r shardquery.Range, n int64) {
	if n == 0 {
		return
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Preview.Behind += n
	if t.Preview.Ranges == nil {
		t.Preview.Ranges = map[shardquery.Range]bool{}
	}
	if n > 0 {
		t.Preview.Ranges[r] = true
	}
}

// Estimate notes that not all was read.
func (t *Tally) Estimate() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Preview.Estimated = true
}

// SeenEntity notes that an entity was met, and whether the next sweep leaves it. It returns how it
// was met before, if it was. It remembers no more than mostSeen, and says so.
func (t *Tally) SeenEntity(namespace, key string, isLater bool) (wasLater, again bool) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	p, id := &t.Preview, [2]string{namespace, key}
	if wasLater, again = p.seen[id]; again {
		p.seen[id] = wasLater && isLater
		return wasLater, true
	}
	if p.seen == nil {
		p.seen = map[[2]string]bool{}
	}
	if p.Estimated = p.Estimated || len(p.seen) >= mostSeen; len(p.seen) < mostSeen {
		p.seen[id] = isLater
	}
	return false, false
}

// GiveExample keeps an entity as an example, if there are not enough of its kind.
func (t *Tally) GiveExample(x Example) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	same := 0
	for _, y := range t.Preview.Examples {
		if x.Kept == y.Kept {
			same++
		}
		if x.Kept == y.Kept && x.Namespace == y.Namespace && x.ID == y.ID { // a list is met once for each element
			return
		}
	}
	if same < MostExamples {
		t.Preview.Examples = append(t.Preview.Examples, x)
	}
}
