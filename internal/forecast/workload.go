package forecast

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

// A Workload is what an application does to a target.
type Workload struct {
	Writes   float64 `json:"writes_per_second"`  // of entities that expire
	Lives    []Life  `json:"lives"`              // their shares add up to 1; empty if they are not known
	Size     float64 `json:"entity_bytes"`       // of one entity without the expiry's index rows; 0 if it is not known
	Backlog  float64 `json:"backlog"`            // entities that are due already
	Entities float64 `json:"entities,omitempty"` // that were counted; 0: as many as writes and lives make
	Swept    bool    `json:"swept"`              // by a sweep with --apply before
}

// A Life is a time to live, and the share of the entities that have it.
type Life struct {
	For   time.Duration
	Share float64
}

// lifeJSON is the form of a life in JSON.
type lifeJSON struct {
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"`
}

// MarshalJSON prints the time in seconds.
func (l Life) MarshalJSON() ([]byte, error) { return json.Marshal(lifeJSON{l.For.Seconds(), l.Share}) }

// UnmarshalJSON reads what MarshalJSON prints.
func (l *Life) UnmarshalJSON(text []byte) error {
	var j lifeJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	if !(j.Seconds > 0 && j.Seconds <= LongestLife.Seconds()) {
		return fmt.Errorf("a life of %v s is not above 0 and at most 100 years", j.Seconds)
	}
	*l = Life{time.Duration(j.Seconds * float64(time.Second)), j.Share}
	return nil
}

// A Mode is the kind of a store.
type Mode string

// The modes.
const (
	Native    Mode = "native"
	Datastore Mode = "datastore"
	Embedded  Mode = "embedded"
	Cloud     Mode = "" // native or Datastore mode: which is not known
)

// Settings are those of a target that a forecast depends on.
type Settings struct {
	Mode       Mode
	Layout     Layout
	Namespaces int
	Shards     int // of each namespace
	Retention  time.Duration
	Page       int
	Tick       time.Duration // from one tick of the schedule to the next
	Job        bool          // a job runs sweep at each tick; else serve runs all the time
	Guard      Way           // Datastore mode: ByLookup or ByQuery
	Pace       Pace
	Breaker    breaker.Rules
}

// A Layout is what a forecast has to know of how entities say when they expire.
type Layout struct {
	Every time.Duration // from one generation to the next; 0 if there are no generations
	Ramp  time.Duration // how long writers take to move
	Keep  int           // live generations in addition to the newest
	Row   Row
}

// A Pace bounds how fast entities go, in entities a second; 0 means unlimited.
type Pace struct {
	Start float64 `json:"start"` // of each range
	Max   float64 `json:"max"`   // of each range
	Total float64 `json:"total"` // of the target: the least of pace.total and the limits
}

// Bounds of a workload: what lies beyond them is a mistake, and they keep all results finite.
const (
	MostWrites   = 1e9 // a second
	MostEntities = 1e15
	MostBytes    = 1_048_572 // of an entity: the services' own limit
	LongestLife  = 100 * 365 * 24 * time.Hour
)

// sharesMayDiffer is how far from 1 shares may add up to: 33% three times is a person's third.
const sharesMayDiffer = 0.0101

// Check says what is wrong with a workload.
func (w Workload) Check() error {
	var problems []error
	within := func(what string, n, most float64) {
		if math.IsNaN(n) || n < 0 || n > most {
			problems = append(problems, fmt.Errorf("%s: %v is not between 0 and %.0f", what, n, most))
		}
	}
	within("writes a second", w.Writes, MostWrites)
	within("bytes of an entity", w.Size, MostBytes)
	within("backlog", w.Backlog, MostEntities)
	within("entities", w.Entities, MostEntities)
	sum := 0.0
	for _, l := range w.Lives {
		if l.For <= 0 || l.For > LongestLife {
			problems = append(problems, fmt.Errorf("lives: %v is not above 0 and at most 100 years", l.For))
		}
		within("share of a life", l.Share, 1)
		sum += l.Share
	}
	if len(w.Lives) > 0 && math.Abs(sum-1) > sharesMayDiffer {
		problems = append(problems, fmt.Errorf("lives: the shares add up to %.4g%%, not to 100%%", 100*sum))
	}
	return errors.Join(problems...)
}

// Check says what is wrong with settings.
func (s Settings) Check() error {
	var problems []error
	refuse := func(wrong bool, what string) {
		if wrong {
			problems = append(problems, errors.New(what))
		}
	}
	refuse(s.Namespaces < 1 || s.Namespaces > mostNamespaces, "namespaces: not between 1 and 1,000,000")
	refuse(s.Shards < 1, "shards: less than 1")
	refuse(s.Page < 1, "page: less than 1")
	refuse(s.Tick <= 0, "tick: not positive")
	refuse(s.Retention < 0 || s.Retention > LongestLife, "retention: not between 0 and 100 years")
	refuse(s.Layout.Every < 0 || s.Layout.Ramp < 0 || s.Layout.Ramp > s.Layout.Every, "ramp: not between 0 and every")
	for _, rate := range []float64{s.Pace.Start, s.Pace.Max, s.Pace.Total} {
		refuse(math.IsNaN(rate) || math.IsInf(rate, 0) || rate < 0, "pace: not a rate")
	}
	return errors.Join(problems...)
}

const mostNamespaces = 1_000_000

// ranges returns how many ranges a generation has, over all namespaces.
func (s Settings) ranges() float64 { return float64(s.Shards) * float64(s.Namespaces) }

// inStore returns how long entities of a life stay in the store.
func (s Settings) inStore(l Life) float64 { return (l.For + s.Retention).Seconds() }

// Held returns how many entities there are once writes and deletes are even: as many as were written
// within their life.
func (s Settings) Held(w Workload) float64 {
	sum := 0.0
	for _, l := range w.Lives {
		sum += w.Writes * l.Share * s.inStore(l)
	}
	return sum
}

// Longest returns the longest time that entities stay in the store; 0 if lives are not known.
func (s Settings) Longest(w Workload) time.Duration {
	longest := time.Duration(0)
	for _, l := range w.Lives {
		if l.Share > 0 {
			longest = max(longest, l.For+s.Retention)
		}
	}
	return longest
}
