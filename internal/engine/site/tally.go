package site

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
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
	outside   *outside  // nil if nobody has looked
	behind    cursor.Behind
	Preview   preview
}

// An outside is what was found outside the ranges.
type outside struct {
	entities   int64
	emptyIndex bool
}

// counts are what steps add up.
type counts struct {
	metrics.CountsOf[atomic.Int64]
	steps
	Delays metrics.DelayTally // from due to deleted
}

// steps are the deleted points that reads stepped over: all, and those of reads from the start.
type steps struct {
	Stepped, Behind atomic.Int64
	StepsUnknown    atomic.Bool // for one page the store could not say
}

// NewTally returns a tally of nothing.
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

// Succeeded notes that a write took effect: so the store does not refuse everything.
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

// Retire notes that a generation was retired.
func (t *Tally) Retire(number int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Retired = append(t.Retired, number)
}

// NoteOutside notes what was found outside the ranges.
func (t *Tally) NoteOutside(entities int64, emptyIndex bool) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.outside = &outside{entities, emptyIndex}
}

// OutsideOr returns what this process has found outside the ranges, or the arguments if it
// has not looked yet.
func (t *Tally) OutsideOr(entities int64, emptyIndex bool) (int64, bool) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.outside != nil {
		return t.outside.entities, t.outside.emptyIndex
	}
	return entities, emptyIndex
}

// Behind returns what this process has counted last behind the cursors.
func (t *Tally) Behind() cursor.Behind {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.behind
}

func (t *Tally) noteBehind(b cursor.Behind) (last cursor.Behind) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	last, t.behind = t.behind, b
	return last
}

// A published is the part of a tally that has been added to the metrics.
type published struct {
	Mu         sync.Mutex
	Counts     metrics.Counts
	Operations store.Operations
	Throttled  map[throttle.Reason]time.Duration
	Record     recordGauges
}

// The recordGauges are what the target record says; known is false before the first look.
type recordGauges struct {
	known          bool
	held           throttle.Reason
	tripped, empty bool
	outside        int64
	newest, live   int
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
	Ranges    map[shardquery.Range]bool // that have it
	Estimated bool
	Examples  []Example
	seen      map[[2]string]bool // by namespace and key: whether the next sweep leaves it
	Oldest    time.Time          // when the first due entity expired, of those that were read
}

// FoundBehind counts what is due and left by the next sweep, in one range.
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

// Estimate notes that not everything was read.
func (t *Tally) Estimate() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Preview.Estimated = true
}

// SeenEntity notes that an entity was seen, and whether the next sweep leaves it. It returns the
// same of the last time, if it was seen before. It remembers at most mostSeen entities; with
// more, the preview is an estimate.
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

// GiveExample keeps an entity as an example, unless there are enough for its reason.
func (t *Tally) GiveExample(x Example) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	same := 0
	for _, y := range t.Preview.Examples {
		if x.Kept == y.Kept {
			same++
		}
		if x.Kept == y.Kept && x.Namespace == y.Namespace && x.ID == y.ID { // a list property is met once for each element
			return
		}
	}
	if same < MostExamples {
		t.Preview.Examples = append(t.Preview.Examples, x)
	}
}
